"""Messages on demand, from real nsqds."""

import threading
import time
from contextlib import ExitStack
from functools import partial

import pytest

from nsq_compat.client import Consumer
from nsq_compat.tools.http_consumers.on_demand import Demand, OnDemand
from nsq_conformance.nsqd_process import installed_nsqd
from tests.client.waiting import wait_until
from tests.tools.nsqd import Nsqd

PATIENCE = 20.0


@pytest.fixture
def queue_of(topic):
    """An OnDemand of `topic`; it is stopped at the end of the test."""
    with ExitStack() as made:

        def make(*nsqds, max_in_flight=10):
            addresses = [nsqd.tcp_address for nsqd in nsqds]
            make_consumer = partial(
                Consumer, topic, "c", nsqd_tcp_addresses=addresses, max_in_flight=max_in_flight, max_tries=0
            )
            return made.enter_context(OnDemand(make_consumer, max_in_flight))

        yield make


def take(queue, count):
    """Wait for so many messages."""
    deadline = time.monotonic() + PATIENCE
    wake = threading.Event()
    with queue.request(count, wake) as demand:
        while demand.missing:
            assert time.monotonic() < deadline, f"{demand.missing} of {count} are missing"
            wake.clear()
            queue.wait(demand, PATIENCE)
    return demand.messages


def test_no_more_messages_are_taken_than_requested(queue_of, nsqd, topic):
    queue = queue_of(nsqd)
    nsqd.publish(topic, b"1", b"2", b"3")
    messages = take(queue, 2)
    assert [message.body for message in messages] == [b"1", b"2"]
    stats = nsqd.channel_stats(topic, "c")
    assert (stats["in_flight_count"], stats["depth"]) == (2, 1)
    queue.finish(messages)
    wait_until(lambda: nsqd.waiting(topic) == 1)
    assert queue.in_flight == 0


def test_a_message_that_is_put_back_is_delivered_again_at_once(queue_of, nsqd, topic):
    queue = queue_of(nsqd)
    nsqd.publish(topic, b"1")
    queue.put_back(take(queue, 1))
    (message,) = take(queue, 1)
    assert message.attempts == 2
    queue.finish([message])


def test_the_messages_handed_out_are_bounded(queue_of, nsqd, topic):
    queue = queue_of(nsqd, max_in_flight=2)
    nsqd.publish(topic, b"1", b"2", b"3")
    held = take(queue, 2)
    with queue.request(5, threading.Event()) as demand:
        assert demand.count == 2
        queue.wait(demand, 0.1)
        assert demand.missing == 2
        queue.finish(held)
        wait_until(lambda: demand.missing == 1)
    queue.finish(demand.messages)


def test_a_request_does_not_cost_more_if_thousands_wait(queue_of, nsqd, monkeypatch):
    queue = queue_of(nsqd, max_in_flight=10)
    asked = []

    def missing(demand):
        asked.append(demand)
        return demand.count - len(demand.messages)

    monkeypatch.setattr(Demand, "missing", property(missing))
    with ExitStack() as waiting:
        for _ in range(1000):
            waiting.enter_context(queue.request(1, threading.Event()))
        assert len(asked) < 20_000


def test_requests_are_served_in_order(queue_of, nsqd, topic):
    queue = queue_of(nsqd)
    with queue.request(1, threading.Event()) as first, queue.request(1, threading.Event()) as second:
        nsqd.publish(topic, b"1", b"2")
        while first.missing or second.missing:
            queue.wait(second, PATIENCE)
    assert [demand.messages[0].body for demand in (first, second)] == [b"1", b"2"]
    queue.finish(first.messages + second.messages)


def test_each_of_several_nsqd_is_asked_and_surplus_messages_are_requeued(queue_of, nsqd, topic, tmp_path):
    with Nsqd(installed_nsqd(), tmp_path) as other:
        other.create_channel(topic, "c")
        queue = queue_of(nsqd, other)
        wait_until(lambda: all(each.channel_stats(topic, "c")["client_count"] == 1 for each in (nsqd, other)))
        for each in (nsqd, other):
            each.publish(topic, b"1", b"2")
        queue.finish(take(queue, 1))
        wait_until(lambda: nsqd.waiting(topic) + other.waiting(topic) == 3)
        queue.finish(take(queue, 3))
        wait_until(lambda: nsqd.waiting(topic) == other.waiting(topic) == 0)
