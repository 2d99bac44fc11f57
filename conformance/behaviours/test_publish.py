"""PUB, MPUB and DPUB."""

import struct
import time

import pytest

from nsq_conformance.behaviours.limits import Connect
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.raw_client import RawClient, batch, sized

BODIES = {
    "one byte": b"x",
    "a zero": b"\0",
    "a newline": b"\n",
    "every byte": bytes(range(256)),
    "like a command": b"FIN 0123456789abcdef\n",
    "like a frame": b"\0\0\0\6\0\0\0\0OK",
    "the maximum size": b"x" * 2000,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_arrives_unchanged(client: RawClient, topic: str, body: bytes) -> None:
    client.publishes(topic, body).subscribes(topic, ready=1)
    assert client.message().body == body


def test_messages_of_one_publisher_keep_their_order(client: RawClient, topic: str) -> None:
    bodies = [b"%d" % number for number in range(40)]
    client.publishes(topic, *bodies).subscribes(topic, ready=50)
    assert client.bodies(40) == bodies


def test_pipelined_publishes_are_answered_one_by_one(client: RawClient, topic: str) -> None:
    client.sends(b"".join(b"PUB %b\n" % topic.encode() + sized(b"%d" % number) for number in range(30)))
    assert [client.response() for _ in range(30)] == [b"OK"] * 30


def test_an_mpub_is_answered_once_and_arrives_in_order(client: RawClient, topic: str) -> None:
    bodies = [b"%d" % number for number in range(40)]
    client.sends(b"MPUB %b\n" % topic.encode() + sized(batch(*bodies)))
    assert client.response() == b"OK"
    client.subscribes(topic, ready=50)
    assert client.bodies(40) == bodies


def test_an_mpub_may_have_one_message(client: RawClient, topic: str) -> None:
    client.sends(b"MPUB %b\n" % topic.encode() + sized(batch(b"alone")))
    assert client.response() == b"OK"
    client.subscribes(topic, ready=1)
    assert client.message().body == b"alone"


def test_an_mpub_is_read_by_its_count_not_by_its_size(client: RawClient, topic: str) -> None:
    client.sends(b"MPUB %b\n" % topic.encode() + struct.pack(">i", 1) + batch(b"one", b"two"))
    assert client.response() == b"OK"
    client.subscribes(topic, ready=2)
    assert client.bodies(2) == [b"one", b"two"]


def test_an_invalid_mpub_publishes_nothing(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.sends(b"MPUB %b\n" % topic.encode() + sized(batch(b"one", b"")))
    assert client.error() == b"E_BAD_MESSAGE MPUB invalid message(1) body size 0"
    stats = nsqd.topic_stats(topic)
    assert stats is not None
    assert (stats["depth"], stats["message_count"]) == (0, 0)


def test_an_invalid_pub_creates_no_topic(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.sends(b"PUB %b\n" % topic.encode() + sized(b""))
    assert client.error() == b"E_BAD_MESSAGE PUB invalid message body size 0"
    assert nsqd.topic_stats(topic) is None


def test_publishing_creates_the_topic(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.publishes(topic, b"x")
    stats = nsqd.topic_stats(topic)
    assert stats is not None
    assert (stats["depth"], stats["channels"]) == (1, [])


def test_every_channel_gets_every_message(client: RawClient, connect: Connect, topic: str) -> None:
    one, other = connect().subscribes(topic, "one", ready=3), connect().subscribes(topic, "other", ready=3)
    client.publishes(topic, b"a", b"b", b"c")
    assert one.bodies(3) == other.bodies(3) == [b"a", b"b", b"c"]


def test_one_message_has_one_id_and_one_timestamp_in_all_channels(
    client: RawClient, connect: Connect, topic: str
) -> None:
    one, other = connect().subscribes(topic, "one", ready=1), connect().subscribes(topic, "other", ready=1)
    client.publishes(topic, b"a")
    first, second = one.message(), other.message()
    assert (first.id, first.timestamp) == (second.id, second.timestamp)


def test_the_first_channel_gets_messages_published_before_it(client: RawClient, topic: str) -> None:
    client.publishes(topic, b"before").subscribes(topic, "late", ready=1)
    assert client.message().body == b"before"


def test_a_second_channel_gets_only_messages_published_after_it(
    client: RawClient, connect: Connect, topic: str
) -> None:
    early = connect().subscribes(topic, "early", ready=2)
    client.publishes(topic, b"before")
    assert early.message().body == b"before"
    late = connect().subscribes(topic, "late", ready=2)
    client.publishes(topic, b"after")
    assert late.message().body == b"after"


def test_consumers_of_one_channel_share_its_messages(client: RawClient, connect: Connect, topic: str) -> None:
    one, other = connect().subscribes(topic, ready=1), connect().subscribes(topic, ready=1)
    client.publishes(topic, b"a", b"b")
    assert sorted([one.message().body, other.message().body]) == [b"a", b"b"]


def test_a_consumer_may_publish_too(client: RawClient, topic: str) -> None:
    client.subscribes(topic, ready=1).publishes(topic + ".else", b"x").sends(b"PUB %b\n" % topic.encode() + sized(b"y"))
    frames = sorted([client.reply(), client.reply()])
    assert frames[0] == (0, b"OK")
    assert frames[1].data.endswith(b"y")


def test_a_client_may_still_publish_after_cls(client: RawClient, topic: str) -> None:
    client.subscribes(topic).sends(b"CLS\n")
    assert client.response() == b"CLOSE_WAIT"
    client.publishes(topic, b"x")


def test_an_id_is_sixteen_lower_case_hexadecimal_digits(client: RawClient, topic: str) -> None:
    client.publishes(topic, b"x").subscribes(topic, ready=1)
    assert set(client.message().id) <= set(b"0123456789abcdef")


def test_ids_of_a_topic_are_all_different_and_grow(client: RawClient, topic: str) -> None:
    client.publishes(topic, *[b"x"] * 40).subscribes(topic, ready=50)
    ids = [message.id for message in client.messages(40)]
    assert ids == sorted(set(ids))


def test_the_timestamp_is_the_time_of_publishing_in_nanoseconds(client: RawClient, topic: str) -> None:
    before = time.time_ns()
    client.publishes(topic, b"x")
    after = time.time_ns()
    assert before <= client.subscribes(topic, ready=1).message().timestamp <= after


def test_a_first_delivery_is_the_first_attempt(client: RawClient, topic: str) -> None:
    client.publishes(topic, b"x").subscribes(topic, ready=1)
    assert client.message().attempts == 1


def test_nop_is_not_answered(client: RawClient, topic: str) -> None:
    client.sends(b"NOP\nNOP with parameters\nNOP\r\n").publishes(topic, b"x")


def test_publishes_over_tcp_are_counted_for_the_producer(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.publishes(topic, b"x", b"y")
    (producer,) = [
        each
        for each in nsqd.stats_document(topic=topic)["producers"]
        if each["remote_address"].endswith(f":{client.port}")
    ]
    assert producer["pub_counts"] == [{"topic": topic, "count": 2}]
