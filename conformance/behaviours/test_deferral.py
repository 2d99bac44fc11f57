"""Deferred messages are delivered after their delay, not before, and soon after."""

import time

import pytest

from nsq_conformance.behaviours.limits import Connect
from nsq_conformance.cluster import eventually
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.raw_client import RawClient, sized, soon

DELAY_MS = 400
DELAY = DELAY_MS / 1000
MANY = 300
_SLACK = 0.001
"""Go's delays have a resolution of one millisecond."""


def test_a_deferred_message_is_delivered_after_its_delay(client: RawClient, awake: str) -> None:
    client.subscribes(awake, ready=1)
    began = time.monotonic()
    client.defers(awake, DELAY_MS, b"later")
    message = client.message()
    assert (message.body, message.attempts) == (b"later", 1)
    assert time.monotonic() - began >= DELAY - _SLACK


def test_a_requeued_message_with_a_delay_is_delivered_after_it(client: RawClient, awake: str) -> None:
    message = client.subscribes(awake, ready=1).publishes(awake, b"x").message()
    began = time.monotonic()
    assert client.requeues(message, DELAY_MS).message() == message._replace(attempts=2)
    assert time.monotonic() - began >= DELAY - _SLACK


def test_none_of_many_deferred_messages_is_early(client: RawClient, awake: str) -> None:
    client.sends(b"".join(b"DPUB %b 1000\n" % awake.encode() + sized(b"x") for _ in range(MANY)))
    assert [client.response() for _ in range(MANY)] == [b"OK"] * MANY
    client.subscribes(awake, ready=50)
    for _ in range(MANY):
        message = client.message()
        assert time.time_ns() - message.timestamp >= (1 - _SLACK) * 1e9
        client.finishes(message)
    client.has_been_heard()


def test_none_of_many_requeued_messages_is_early(client: RawClient, awake: str) -> None:
    client.publishes(awake, *[b"%d" % number for number in range(MANY)]).subscribes(awake, ready=50)
    messages = [client.message() for _ in range(50)]
    requeued = {}
    for _ in range(MANY):
        message = messages.pop(0) if messages else client.message()
        requeued[message.id] = time.monotonic()
        client.requeues(message, 1000)
    for _ in range(MANY):
        message = client.message()
        assert time.monotonic() - requeued.pop(message.id) >= 1 - _SLACK
        client.finishes(message)
    client.has_been_heard()


def test_deferred_messages_are_delivered_in_the_order_of_their_times(client: RawClient, awake: str) -> None:
    client.subscribes(awake, ready=3)
    for delay in (900, 300, 600):
        client.defers(awake, delay, b"%d" % delay)
    assert client.bodies(3) == [b"300", b"600", b"900"]


def test_an_immediate_message_overtakes_a_deferred_one(client: RawClient, awake: str) -> None:
    client.subscribes(awake, ready=2).defers(awake, DELAY_MS, b"later").sends(b"NOP\n")
    client.sends(b"PUB %b\n" % awake.encode() + sized(b"now"))
    assert client.response() == b"OK"
    assert client.bodies(2) == [b"now", b"later"]


def test_a_delay_of_0_is_no_delay(client: RawClient, topic: str) -> None:
    client.defers(topic, 0, b"x").subscribes(topic, ready=1)
    assert client.message().body == b"x"


def test_an_empty_delay_is_no_delay(client: RawClient, topic: str) -> None:
    client.sends(b"DPUB %b \n" % topic.encode() + sized(b"x"))
    assert client.response() == b"OK"
    assert client.subscribes(topic, ready=1).message().body == b"x"


def test_a_deferred_message_is_counted_separately(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.subscribes(topic, ready=1).defers(topic, 30_000, b"x")
    eventually(lambda: nsqd.channel_stats(topic, "ch")["deferred_count"] == 1)
    channel = nsqd.channel_stats(topic, "ch")
    assert (channel["depth"], channel["in_flight_count"], channel["message_count"]) == (0, 0, 1)


def test_the_maximum_delay_is_accepted(client: RawClient, topic: str) -> None:
    client.defers(topic, 30_000, b"x")


def test_a_deferred_message_is_delivered_to_every_channel(
    client: RawClient, consumer: RawClient, nsqd: NsqdProcess, topic: str
) -> None:
    client.subscribes(topic, "one", ready=1)
    consumer.subscribes(topic, "other", ready=1)
    client.defers(topic, DELAY_MS, b"x")
    assert client.message().body == consumer.message().body == b"x"


def test_a_deferred_message_does_not_count_as_in_flight(client: RawClient, topic: str) -> None:
    message = client.publishes(topic, b"a", b"b").subscribes(topic, ready=1).message()
    assert client.requeues(message, 30_000).message().body == b"b"


def test_emptying_a_channel_drops_deferred_messages_too(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.subscribes(topic).defers(topic, 30_000, b"x")
    eventually(lambda: nsqd.channel_stats(topic, "ch")["deferred_count"] == 1)
    assert nsqd.asks("POST", f"/channel/empty?topic={topic}&channel=ch").status == 200
    assert nsqd.channel_stats(topic, "ch")["deferred_count"] == 0


def test_a_paused_channel_holds_back_due_messages(client: RawClient, nsqd: NsqdProcess, awake: str) -> None:
    client.subscribes(awake, ready=1)
    assert nsqd.asks("POST", f"/channel/pause?topic={awake}&channel=ch").status == 200
    client.defers(awake, 1, b"x")
    eventually(lambda: nsqd.channel_stats(awake, "ch")["depth"] == 1)
    assert client.hears_nothing()
    assert nsqd.asks("POST", f"/channel/unpause?topic={awake}&channel=ch").status == 200
    assert client.message().body == b"x"


@pytest.mark.parametrize("defer", ["1", "30000", "0", "007"])
def test_http_accepts_a_delay(nsqd: NsqdProcess, topic: str, defer: str) -> None:
    answer = nsqd.asks("POST", f"/pub?topic={topic}&defer={defer}", b"x")
    assert (answer.status, answer.body) == (200, b"OK")


def test_messages_deferred_over_http_are_counted_separately(nsqd: NsqdProcess, topic: str) -> None:
    nsqd.create_channel(topic, "ch")
    for query in ("", "&defer=30000", "&defer=0"):
        assert nsqd.asks("POST", f"/pub?topic={topic}{query}", b"x").status == 200
    assert soon(lambda: counts(nsqd, topic) == (2, 1))


def counts(nsqd: NsqdProcess, topic: str) -> tuple[int, int]:
    channel = nsqd.channel_stats(topic, "ch")
    return channel["depth"], channel["deferred_count"]


@pytest.mark.difference("alarms")
def test_due_messages_of_a_new_channel_are_delivered_at_once(client: RawClient, connect: Connect, topic: str) -> None:
    # Go's nsqd looks for new channels every five seconds only.
    connect().subscribes(topic + ".before", ready=1).defers(topic + ".before", 1, b"x").message()
    client.subscribes(topic, ready=1).defers(topic, 100, b"x")
    assert client.reply(timeout=3).data.endswith(b"x")
