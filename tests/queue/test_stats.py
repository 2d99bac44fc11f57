from dataclasses import FrozenInstanceError

import pytest

from nsq_compat.protocol.message import make_frames
from nsq_compat.queue.broker import snapshot
from nsq_compat.queue.values import LatencyOptions, LatencyStats


def test_topics_and_channels_are_sorted_by_name(daemon):
    for topic in ("b", "a", "B"):
        for channel in ("y", "x"):
            daemon.channel(channel, topic)
    seen = [
        (topic.topic_name, [channel.channel_name for channel in topic.channels])
        for topic in snapshot(daemon.broker, daemon.now)
    ]
    assert seen == [("B", ["x", "y"]), ("a", ["x", "y"]), ("b", ["x", "y"])]


def test_a_snapshot_tells_where_messages_are(start):
    daemon = start(mem_queue_size=5)
    consumer = daemon.consumer(timeout=60.0)
    daemon.publishes(b"a", b"bb", b"c", b"d", b"e", b"f", b"g")  # two too many
    assert consumer.takes(room=3) == [b"a", b"bb", b"c"]
    daemon.waits(60)
    consumer.takes(room=2)
    consumer.requeues(b"d", delay=5.0)
    daemon.channel().pause()
    daemon.topic().pause()
    daemon.publishes(b"kept")
    (topic,) = snapshot(daemon.broker, daemon.now)
    (channel,) = topic.channels
    assert (topic.topic_name, topic.depth, topic.backend_depth, topic.paused) == ("orders", 1, 0, True)
    assert (topic.message_count, topic.message_bytes, topic.dropped_count) == (8, 12, 0)
    assert (channel.depth, channel.backend_depth, channel.in_flight_count, channel.deferred_count) == (3, 0, 1, 1)
    assert (channel.message_count, channel.requeue_count, channel.timeout_count) == (7, 1, 3)
    assert (channel.client_count, channel.paused, channel.dropped_count) == (1, True, 2)
    assert channel.e2e_processing_latency == topic.e2e_processing_latency == LatencyStats(count=0, percentiles=None)


def test_clients_are_shown_when_they_are_asked_for(daemon):
    consumer = daemon.consumer()
    daemon.consumer()
    daemon.publishes(b"a")
    consumer.takes()
    (with_clients,) = snapshot(daemon.broker, daemon.now)
    (without,) = snapshot(daemon.broker, daemon.now, include_clients=False)
    clients = with_clients.channels[0].clients
    assert clients is not None
    assert [client.in_flight_count for client in clients] == [1, 0]
    assert (without.channels[0].clients, without.channels[0].client_count) == (None, 2)


def test_latency_of_a_topic_is_that_of_all_its_channels_whichever_is_shown(start):
    daemon = start(latency=LatencyOptions((1.0,), 600.0))
    daemon.publishes(b"a")
    (topic,) = snapshot(daemon.broker, daemon.now)
    assert topic.e2e_processing_latency == LatencyStats(count=0, percentiles=None)  # nsqd: no channel, no percentiles
    for name, seconds in (("x", 2), ("y", 6)):
        channel = daemon.channel(name)
        channel.latency.add(make_frames([b"0123456789abcdef"], daemon.now_ns, [b"a"]), daemon.now,
                            daemon.now_ns + seconds * 10**9)  # fmt: skip
    (topic,) = snapshot(daemon.broker, daemon.now, channel="x")
    (channel,) = topic.channels
    for latency, count, slowest in ((topic.e2e_processing_latency, 2, 6e9), (channel.e2e_processing_latency, 1, 2e9)):
        assert latency.count == count
        assert latency.percentiles is not None
        assert [value for _, value in latency.percentiles] == pytest.approx([slowest], rel=0.01)


def test_one_topic_can_be_asked_for(daemon):
    for topic in ("a", "b"):
        daemon.channel("x", topic)
    assert [topic.topic_name for topic in snapshot(daemon.broker, daemon.now, topic="b")] == ["b"]
    assert list(snapshot(daemon.broker, daemon.now, topic="nowhere")) == []


def test_with_one_channel_asked_for_topics_without_it_are_left_out(daemon):
    daemon.channel("x", "both")
    daemon.channel("y", "both")
    daemon.channel("y", "other")
    (topic,) = snapshot(daemon.broker, daemon.now, channel="x")
    assert topic.topic_name == "both"
    assert [channel.channel_name for channel in topic.channels] == ["x"]
    assert list(snapshot(daemon.broker, daemon.now, topic="other", channel="x")) == []


def test_topics_may_come_and_go_during_a_snapshot(daemon):
    for name in ("a", "b", "c"):
        daemon.topic(name)
    looking = snapshot(daemon.broker, daemon.now)
    assert next(looking).topic_name == "a"
    daemon.broker.delete_topic("b")
    daemon.topic("bb")
    assert [topic.topic_name for topic in looking] == ["c"]


def test_channels_may_come_and_go_between_the_steps_of_a_snapshot(daemon):
    topic = daemon.topic("a")
    for name in ("x", "y", "z"):
        topic.channel(name)

    def in_steps(names):
        for name in names:
            yield name
            topic.channel("yy")
            if "y" in topic.channels:
                topic.delete_channel("y")

    (found,) = snapshot(daemon.broker, daemon.now, in_steps=in_steps)
    assert [channel.channel_name for channel in found.channels] == ["x", "z"]


def test_a_topic_may_be_deleted_between_the_steps_of_a_snapshot(logging_daemon):
    daemon = logging_daemon
    for name in ("x", "y"):
        daemon.topic("a").channel(name)

    def in_steps(names):
        for name in names:
            yield name
            if "a" in daemon.broker.topics:
                daemon.broker.delete_topic("a")

    (found,) = snapshot(daemon.broker, daemon.now, in_steps=in_steps)
    assert (found.topic_name, len(found.channels)) == ("a", 2)


def test_a_snapshot_does_not_change_afterwards(daemon):
    daemon.channel()
    (before,) = snapshot(daemon.broker, daemon.now)
    daemon.publishes(b"a")
    assert before.channels[0].depth == 0
    with pytest.raises(FrozenInstanceError):
        before.depth = 5  # type: ignore[misc]
