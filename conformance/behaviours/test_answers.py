"""FIN, REQ and TOUCH before the message times out; ``test_timeouts`` tests them afterwards."""

import pytest

from nsq_conformance.behaviours.limits import Connect
from nsq_conformance.cluster import eventually
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.raw_client import RawClient


def test_a_finished_message_is_gone(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    message = client.publishes(topic, b"x").subscribes(topic, ready=1).message()
    client.finishes(message).has_been_heard()
    channel = nsqd.channel_stats(topic, "ch")
    assert (channel["depth"], channel["in_flight_count"]) == (0, 0)
    assert channel["clients"][0]["finish_count"] == 1


def test_finishing_is_not_answered(client: RawClient, topic: str) -> None:
    message = client.publishes(topic, b"x").subscribes(topic, ready=1).message()
    assert client.finishes(message).hears_nothing()


def test_finishing_twice_is_refused(client: RawClient, topic: str) -> None:
    message = client.publishes(topic, b"x").subscribes(topic, ready=1).message()
    client.finishes(message, message)
    assert client.error() == b"E_FIN_FAILED FIN %b failed ID not in flight" % message.id


def test_messages_may_be_finished_in_any_order(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    messages = client.publishes(topic, b"a", b"b", b"c").subscribes(topic, ready=3).messages(3)
    client.finishes(*reversed(messages)).has_been_heard()
    assert nsqd.channel_stats(topic, "ch")["in_flight_count"] == 0


def test_finishing_in_one_channel_leaves_the_other_alone(
    client: RawClient, consumer: RawClient, nsqd: NsqdProcess, topic: str
) -> None:
    nsqd.create_channel(topic, "other")
    client.subscribes(topic, ready=1).publishes(topic, b"x")
    client.finishes(client.message()).has_been_heard()
    assert consumer.subscribes(topic, "other", ready=1).message().body == b"x"


def test_a_requeued_message_comes_back_as_the_next_attempt(client: RawClient, topic: str) -> None:
    message = client.publishes(topic, b"x").subscribes(topic, ready=1).message()
    again = client.requeues(message).message()
    assert again == message._replace(attempts=2)


def test_attempts_keep_counting(client: RawClient, topic: str) -> None:
    client.publishes(topic, b"x").subscribes(topic, ready=1)
    for attempt in range(1, 12):
        message = client.message()
        assert message.attempts == attempt
        client.requeues(message)


def test_a_requeued_message_goes_to_any_ready_consumer(client: RawClient, consumer: RawClient, topic: str) -> None:
    message = client.publishes(topic, b"x").subscribes(topic, ready=1).message()
    consumer.subscribes(topic, ready=1)
    client.sends(b"RDY 0\n").requeues(message)
    assert consumer.message() == message._replace(attempts=2)


def test_a_requeued_message_is_delivered_after_queued_messages(client: RawClient, topic: str) -> None:
    message = client.publishes(topic, b"a", b"b", b"c").subscribes(topic, ready=1).message()
    client.requeues(message)
    bodies = []
    for _ in range(3):
        message = client.message()
        bodies.append(message.body)
        client.finishes(message)
    assert bodies == [b"b", b"c", b"a"]


def test_requeueing_twice_is_refused(client: RawClient, topic: str) -> None:
    message = client.publishes(topic, b"x").subscribes(topic, ready=1).message()
    client.requeues(message, 30_000).requeues(message, 30_000)
    assert client.error() == b"E_REQ_FAILED REQ %b failed ID not in flight" % message.id


def test_requeues_are_counted(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    message = client.publishes(topic, b"x").subscribes(topic, ready=1).message()
    client.requeues(message).message()
    channel = nsqd.channel_stats(topic, "ch")
    assert (channel["requeue_count"], channel["clients"][0]["requeue_count"]) == (1, 1)
    assert (channel["timeout_count"], channel["message_count"]) == (0, 1)


@pytest.mark.parametrize("time_ms", [b"30000", b"30001", b"99999999"])
def test_a_requeue_with_a_delay_is_deferred_and_too_long_a_delay_is_no_error(
    client: RawClient, nsqd: NsqdProcess, topic: str, time_ms: bytes
) -> None:
    message = client.publishes(topic, b"x").subscribes(topic, ready=1).message()
    client.sends(b"REQ %b %b\n" % (message.id, time_ms)).has_been_heard()
    channel = nsqd.channel_stats(topic, "ch")
    assert (channel["deferred_count"], channel["in_flight_count"], channel["depth"]) == (1, 0, 0)


def test_an_empty_requeue_delay_is_no_delay(client: RawClient, topic: str) -> None:
    message = client.publishes(topic, b"x").subscribes(topic, ready=1).message()
    assert client.sends(b"REQ %b \n" % message.id).message().attempts == 2


def test_touching_is_not_answered(client: RawClient, topic: str) -> None:
    message = client.publishes(topic, b"x").subscribes(topic, ready=1).message()
    assert client.touches(message).hears_nothing()


def test_touching_a_finished_message_is_refused(client: RawClient, topic: str) -> None:
    message = client.publishes(topic, b"x").subscribes(topic, ready=1).message()
    client.finishes(message).touches(message)
    assert client.error() == b"E_TOUCH_FAILED TOUCH %b failed ID not in flight" % message.id


def test_messages_of_a_lost_connection_stay_in_flight(connect: Connect, nsqd: NsqdProcess, topic: str) -> None:
    client = connect()
    message = client.publishes(topic, b"x").subscribes(topic, ready=1).message()
    client.close()
    eventually(lambda: nsqd.channel_stats(topic, "ch")["client_count"] == 0)
    assert nsqd.channel_stats(topic, "ch")["in_flight_count"] == 1
    other = connect().subscribes(topic)
    assert other.finishes(message).error() == b"E_FIN_FAILED FIN %b failed client does not own message" % message.id
