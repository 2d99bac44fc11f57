"""What statsd is told, line by line; the expected names are NSQ's."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.nsqd.statsd_lines import StatsdLines, packets
from nsq_compat.queue.broker import snapshot
from nsq_compat.queue.limits import QueueLimits
from nsq_compat.queue.stats import LatencyStats
from tests.broker import Daemon

MEMORY = {"heap_objects": 5, "next_gc_bytes": 7, "gc_total_runs": 10}


@pytest.fixture
def daemon():
    return Daemon(QueueLimits())


@pytest.fixture
def lines():
    return StatsdLines("nsq.host_4151.", exclude_ephemeral=False)


def said(lines, daemon, memory=None):
    of_topics = [
        line for topic in snapshot(daemon.broker, daemon.now, include_clients=False) for line in lines.of_topic(topic)
    ]
    return b"".join([*of_topics, *lines.of_memory(memory or {})]).decode()


def value_of(name, text):
    (value,) = [line.partition(":")[2] for line in text.splitlines() if line.partition(":")[0] == name]
    return value


def test_every_figure_has_nsqs_name_and_kind_in_nsqs_order(daemon, lines):
    consumer = daemon.consumer()
    daemon.publishes(b"one", b"four", b"seven")
    consumer.takes(room=2)
    consumer.requeues(b"one", delay=5.0)
    daemon.waits(60)
    assert said(lines, daemon, MEMORY) == (
        "nsq.host_4151.topic.orders.message_count:3|c\n"
        "nsq.host_4151.topic.orders.message_bytes:12|c\n"
        "nsq.host_4151.topic.orders.depth:0|g\n"
        "nsq.host_4151.topic.orders.backend_depth:0|g\n"
        "nsq.host_4151.topic.orders.channel.archive.message_count:3|c\n"
        "nsq.host_4151.topic.orders.channel.archive.depth:3|g\n"
        "nsq.host_4151.topic.orders.channel.archive.backend_depth:0|g\n"
        "nsq.host_4151.topic.orders.channel.archive.in_flight_count:0|g\n"
        "nsq.host_4151.topic.orders.channel.archive.deferred_count:0|g\n"
        "nsq.host_4151.topic.orders.channel.archive.requeue_count:1|c\n"
        "nsq.host_4151.topic.orders.channel.archive.timeout_count:1|c\n"
        "nsq.host_4151.topic.orders.channel.archive.clients:1|g\n"
        "nsq.host_4151.mem.heap_objects:5|g\n"
        "nsq.host_4151.mem.next_gc_bytes:7|g\n"
        "nsq.host_4151.mem.gc_runs:10|c\n"
    )


def test_a_counter_is_what_was_added_and_a_gauge_what_is(daemon, lines):
    daemon.channel()
    daemon.publishes(b"a", b"b")
    said(lines, daemon, MEMORY)
    daemon.publishes(b"c")
    second = said(lines, daemon, {**MEMORY, "gc_total_runs": 12})
    assert value_of("nsq.host_4151.topic.orders.channel.archive.message_count", second) == "1|c"
    assert value_of("nsq.host_4151.topic.orders.channel.archive.depth", second) == "3|g"
    assert value_of("nsq.host_4151.mem.gc_runs", second) == "2|c"
    assert value_of("nsq.host_4151.topic.orders.message_bytes", said(lines, daemon)) == "0|c"


def test_what_was_deleted_and_made_again_counts_from_nothing(daemon, lines):
    daemon.channel()
    daemon.publishes(b"a", b"b")
    said(lines, daemon)
    daemon.topic().delete_channel("archive")
    lines.forget_channel("orders", "archive")
    daemon.channel()
    daemon.publishes(b"c", b"d", b"e")
    text = said(lines, daemon)
    assert value_of("nsq.host_4151.topic.orders.message_count", text) == "3|c"
    assert value_of("nsq.host_4151.topic.orders.channel.archive.message_count", text) == "3|c"
    daemon.broker.delete_topic("orders")
    lines.forget_topic("orders")
    daemon.channel()
    daemon.publishes(b"f")
    text = said(lines, daemon)
    assert value_of("nsq.host_4151.topic.orders.message_count", text) == "1|c"
    assert value_of("nsq.host_4151.topic.orders.channel.archive.message_count", text) == "1|c"


def test_nothing_has_to_be_known_to_be_forgotten(lines):
    lines.forget_channel("orders", "archive")
    lines.forget_topic("orders")


def test_ephemeral_names_are_sent_as_they_are(daemon, lines):
    daemon.channel("x#ephemeral", "t#ephemeral")
    assert "nsq.host_4151.topic.t#ephemeral.channel.x#ephemeral.depth:0|g\n" in said(lines, daemon)


def test_ephemeral_topics_and_channels_may_be_left_out(daemon):
    lines = StatsdLines("", exclude_ephemeral=True)
    daemon.channel("x", "t#ephemeral")
    daemon.channel("x#ephemeral", "u")
    daemon.channel("y", "u")
    keys = {line.rpartition(".")[0] for line in said(lines, daemon).splitlines()}
    assert keys == {"topic.u", "topic.u.channel.y"}


def test_latencies_are_whole_nanoseconds_named_by_whole_percents(daemon, lines):
    daemon.channel()
    (topic,) = snapshot(daemon.broker, daemon.now)
    latency = LatencyStats(count=3, percentiles=((1.0, 2500.7), (0.999, 2400.0), (0.5, 0.0)))
    (channel,) = topic.channels
    channel = replace(channel, e2e_processing_latency=replace(latency, percentiles=((0.95, 7.0),)))
    text = b"".join(lines.of_topic(replace(topic, channels=(channel,), e2e_processing_latency=latency))).decode()
    assert text.splitlines()[4:7] == [
        "nsq.host_4151.topic.orders.e2e_processing_latency_100:2500|g",
        "nsq.host_4151.topic.orders.e2e_processing_latency_100:2400|g",
        "nsq.host_4151.topic.orders.e2e_processing_latency_50:0|g",
    ]
    assert text.splitlines()[-1] == "nsq.host_4151.topic.orders.channel.archive.e2e_processing_latency_95:7|g"


# --- Packets ----------------------------------------------------------------------------------------------------------


def test_a_packet_takes_as_many_lines_as_fit():
    assert packets([b"aa\n", b"bb\n", b"c\n", b"dddd\n", b"\n"], 6) == [b"aa\nbb\n", b"c\n", b"dddd\n\n"]


def test_a_line_too_long_for_a_packet_goes_alone():
    assert packets([b"a\n", b"bbbbbbb\n", b"c\n"], 4) == [b"a\n", b"bbbbbbb\n", b"c\n"]


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_that_is_none_is_4096(size):
    assert [len(packet) for packet in packets([b"123456789abcdef\n"] * 300, size)] == [4096, 704]


@given(st.lists(st.binary(min_size=1, max_size=20)), st.integers(min_value=1, max_value=50))
def test_packets_hold_every_line_whole_in_order_and_none_is_bigger_than_it_must_be(lines, size):
    made = packets(lines, size)
    assert b"".join(made) == b"".join(lines)
    assert all(len(packet) <= size or packet in lines for packet in made)
    assert all(len(first) + len(second) > size for first, second in pairwise(made))
