"""Messages with the header nsq-expires are not delivered after that time."""

import pytest

from nsq_compat.protocol import message
from nsq_compat.protocol.headers import encode
from nsq_compat.protocol.schema import MAX_HEADERS
from nsq_compat.queue.wait_queue import Locality


@pytest.fixture
def daemon(logging_daemon):
    logging_daemon.channel()
    return logging_daemon


def publish(daemon, **bodies):
    """Publish messages that expire so many seconds from now; None: never."""
    payloads = [
        encode([("nsq-expires", f"{daemon.now_ns / 1e9 + seconds:.3f}")] if seconds is not None else [("a", "b")])
        + body.encode()
        for body, seconds in bodies.items()
    ]
    daemon.topic().publish_with_headers(payloads, daemon.now, daemon.now_ns)


def test_expired_messages_are_counted_and_not_delivered(daemon, caplog):
    publish(daemon, soon=10, later=1000, never=None)
    consumer = daemon.consumer()
    daemon.waits(11)
    assert consumer.takes_all() == [b"later", b"never"]
    channel = daemon.channel()
    assert (channel.expired_count, channel.depth, channel.in_flight_count) == (1, 0, 2)
    assert "CHANNEL(orders:archive): messages have expired, 1 since the start of nsqd" in caplog.text


def test_a_message_expires_in_each_channel_by_itself(daemon):
    daemon.channel("metrics")
    publish(daemon, soon=10)
    assert daemon.consumer().takes() == [b"soon"]
    daemon.waits(11)
    assert daemon.consumer("metrics").takes() == []
    assert (daemon.channel().expired_count, daemon.channel("metrics").expired_count) == (0, 1)


def test_messages_behind_expired_ones_come(daemon):
    publish(daemon, **{f"m{number}": 10 for number in range(600)}, last=1000)
    daemon.waits(11)
    consumer = daemon.consumer()
    for _ in range(10):
        if consumer.takes() == [b"last"]:
            break
        assert not consumer.awake, "others come first"
        daemon.waits(0)
        assert consumer.awake
    assert daemon.channel().expired_count == 600
    assert daemon.channel().in_flight_count == 1


def test_a_requeued_message_and_one_that_timed_out_may_expire(daemon):
    publish(daemon, requeued=50, late=50)
    consumer = daemon.consumer(timeout=60)
    assert consumer.takes_all() == [b"requeued", b"late"]
    consumer.requeues(b"requeued", 51)
    daemon.waits(61)
    assert consumer.takes_all() == []
    assert daemon.channel().expired_count == 2
    assert daemon.channel().requeue_count == 1


def test_an_expired_message_does_not_come_after_a_restart(data_path):
    daemon = data_path.start()
    daemon.channel()
    publish(daemon, soon=10, later=1000)
    daemon = data_path.restart(daemon)
    daemon.waits(11)
    assert daemon.consumer().takes_all() == [b"later"]


def test_expired_messages_go_to_the_dead_letter_topic_if_a_policy_says_so(daemon):
    daemon.follows({"max_attempts": 5, "when_expired": "dead-letter"})
    publish(daemon, soon=10)
    daemon.waits(11)
    assert daemon.consumer().takes() == []
    assert daemon.channel().expired_count == 1
    assert daemon.sends_dead_letters()
    assert daemon.channel().dead_letter_count == 1
    consumer = daemon.consumer("redrive", "orders.archive.dead")
    daemon.waits(1000)
    assert consumer.takes() == [b"soon"]
    headers = message.headers(consumer.frames[b"soon"])
    assert headers["nsq-origin-expires"]
    assert (headers["nsq-dead-letter-reason"], headers["nsq-attempts"]) == ("expired", "0")
    assert "nsq-expires" not in headers


def test_expired_messages_that_the_dead_letter_topic_refuses_are_tried_again_later(daemon):
    dead_letters = {"topic": "orders", "max_attempts": 5, "when_expired": "dead-letter"}
    daemon.follows({"topic": r".*\.dead", "max_depth": 1}, dead_letters)
    daemon.channel("redrive", "orders.archive.dead")
    daemon.publishes(b"full", topic="orders.archive.dead")
    publish(daemon, **{f"soon{number}": 10 for number in range(400)})
    daemon.waits(11)
    channel, consumer = daemon.channel(), daemon.consumer()
    assert consumer.takes(room=1) == []
    assert not daemon.sends_dead_letters()
    while channel.depth:
        assert consumer.takes() == []
        daemon.waits(0.1)
    assert (channel.expired_count, channel.in_flight_count, channel.deferred_count) == (256, 256, 144)
    daemon.topic("orders.archive.dead").channels["redrive"].empty()
    daemon.follows(dead_letters)
    while daemon.enforcer.dead_letters.is_waiting:
        assert daemon.sends_dead_letters()
    daemon.waits(61)
    while channel.depth or channel.deferred_count:
        assert consumer.takes() == []
        daemon.waits(0.1)
    while daemon.enforcer.dead_letters.is_waiting:
        assert daemon.sends_dead_letters()
    assert (channel.expired_count, channel.dead_letter_count, channel.dropped_count) == (400, 400, 0)


def test_a_dead_letter_that_has_no_room_for_more_headers_does_not_expire_again(daemon):
    daemon.follows({"max_attempts": 5, "when_expired": "dead-letter"})
    own = {f"n{number}": "" for number in range(MAX_HEADERS - 1)}
    payload = encode([*own.items(), ("nsq-expires", f"{daemon.now_ns / 1e9 + 10:.3f}")]) + b"full"
    daemon.topic().publish_with_headers([payload], daemon.now, daemon.now_ns)
    daemon.waits(11)
    assert daemon.consumer().takes() == []
    assert daemon.sends_dead_letters()
    consumer = daemon.consumer("redrive", "orders.archive.dead")
    assert consumer.takes() == [b"full"]
    assert message.headers(consumer.frames[b"full"]) == own


def test_expired_messages_are_dropped_where_a_policy_has_dead_letters_for_failures_only(daemon):
    daemon.follows({"max_attempts": 5})
    publish(daemon, soon=10)
    daemon.waits(11)
    assert daemon.consumer().takes() == []
    assert (daemon.channel().expired_count, daemon.channel().in_flight_count) == (1, 0)


def test_consumers_in_zones_get_what_has_not_expired(start):
    daemon = start(topology_aware=True)
    near = daemon.consumer(locality=Locality.ZONE_LOCAL)
    assert near.takes() == []
    payloads = [encode([("nsq-expires", "1000000000")]) + b"gone", encode([("nsq-expires", "99999999999")]) + b"there"]
    daemon.topic().publish_with_headers(payloads, daemon.now, daemon.now_ns)  # the system's clock, without a log
    assert near.takes_all() == [b"there"]
    assert daemon.channel().delivered == [1, 0, 0]
