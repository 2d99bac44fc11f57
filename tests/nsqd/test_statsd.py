"""Statistics pushed to a real UDP socket, by themselves and then by a running nsqd."""

import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise

import gevent
import gevent.socket
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.net.sockets import Resolver
from nsq_compat.nsqd.options import NsqdOptions
from nsq_compat.nsqd.statsd import StatsdLines, StatsdPush, packets
from nsq_compat.protocol.durations import MILLISECOND, SECOND
from nsq_compat.queue.broker import Broker, snapshot
from nsq_compat.queue.values import LatencyStats, QueueLimits
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.broker import Daemon
from tests.v2_client import Client

NOW_NS = 1_700_000_000_000_000_000


class Statsd:
    """A socket that is sent to, and the counters a statsd would keep."""

    def __init__(self) -> None:
        self.socket = gevent.socket.socket(type=gevent.socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(20)
        self.address = f"127.0.0.1:{self.socket.getsockname()[1]}"
        self.counters: dict[str, int] = {}
        self.gauges: dict[str, int] = {}
        self.sizes: list[int] = []

    def hears(self, name: str, value: int) -> None:
        """Receive until it has that value."""
        while self.counters.get(name, self.gauges.get(name)) != value:
            self.receive()

    def receive(self) -> None:
        packet = self.socket.recv(65536)
        self.sizes.append(len(packet))
        assert packet.endswith(b"\n")
        for line in packet.decode().splitlines():
            name, _, rest = line.partition(":")
            number, _, kind = rest.partition("|")
            if kind == "c":
                self.counters[name] = self.counters.get(name, 0) + int(number)
            else:
                assert kind == "g"
                self.gauges[name] = int(number)


@pytest.fixture
def statsd() -> Iterator[Statsd]:
    statsd = Statsd()
    yield statsd
    statsd.socket.close()


@pytest.fixture
def broker() -> Broker:
    return Broker(QueueLimits())


@pytest.fixture
def push(broker, statsd):
    """Starts a push of that broker to that statsd every ten milliseconds, with other options if given."""
    started = []

    def start(**options: object) -> StatsdPush:
        settled = NsqdOptions(
            **{
                "statsd_address": statsd.address,
                "statsd_prefix": "nsq.",
                "statsd_interval": 10 * MILLISECOND,
                **options,
            }
        )
        pushing = StatsdPush(settled, broker, lambda: {"heap_objects": 3, "gc_total_runs": 0})
        pushing.start()
        started.append(pushing)
        return pushing

    yield start
    for pushing in started:
        pushing.stop()


def publish(broker, *bodies, topic="orders"):
    broker.topic(topic).publish(bodies, 0.0, NOW_NS)


def test_statistics_are_pushed_in_intervals(broker, statsd, push):
    push()
    publish(broker, b"abc")
    statsd.hears("nsq.topic.orders.message_bytes", 3)
    statsd.hears("nsq.topic.orders.depth", 1)
    statsd.hears("nsq.mem.heap_objects", 3)
    publish(broker, b"d", b"e")
    statsd.hears("nsq.topic.orders.message_bytes", 5)
    statsd.hears("nsq.topic.orders.message_count", 3)


def test_counters_keep_growing_when_a_topic_is_deleted_and_created(broker, statsd, push):
    push()
    broker.topic("orders").channel("archive")
    publish(broker, b"a", b"b")
    statsd.hears("nsq.topic.orders.channel.archive.message_count", 2)
    broker.topic("orders").delete_channel("archive")
    broker.topic("orders").channel("archive")
    publish(broker, b"c", b"d", b"e")
    statsd.hears("nsq.topic.orders.channel.archive.message_count", 5)
    broker.delete_topic("orders")
    broker.topic("orders").channel("archive")
    publish(broker, b"f")
    statsd.hears("nsq.topic.orders.message_count", 6)
    statsd.hears("nsq.topic.orders.channel.archive.message_count", 6)


def test_no_packet_is_larger_than_the_option(broker, statsd, push):
    for number in range(20):
        broker.topic(f"topic{number}").channel("archive")
    publish(broker, b"x", topic="topic19")
    push(statsd_udp_packet_size=150)
    statsd.hears("nsq.topic.topic19.message_count", 1)
    assert max(statsd.sizes) <= 150
    assert len(statsd.sizes) > 20


def test_memory_and_ephemeral_names_can_be_excluded(broker, statsd, push):
    broker.topic("a#ephemeral").channel("c")
    broker.topic("b").channel("c#ephemeral")
    broker.topic("b").channel("d")
    push(statsd_mem_stats=False, statsd_exclude_ephemeral=True)
    statsd.hears("nsq.topic.b.channel.d.depth", 0)
    statsd.receive()
    assert {name.rpartition(".")[0] for name in statsd.gauges} == {"nsq.topic.b", "nsq.topic.b.channel.d"}


def test_packets_are_spread_over_the_interval_and_a_stop_sends_the_rest_at_once(broker, statsd, push):
    broker.topic("a")
    broker.topic("b")
    pushing = push(statsd_interval=600 * SECOND, statsd_udp_packet_size=1)
    gevent.sleep(0)
    spreading = gevent.spawn(pushing._push)
    statsd.receive()
    assert list(statsd.counters) == ["nsq.topic.a.message_count"]
    pushing.stop()
    statsd.hears("nsq.mem.gc_runs", 0)
    spreading.join()
    assert len(statsd.sizes) == 4 + 4 + 2


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:99999", f"{'x' * 70}:8125", "127.0.0.1:noservice"])
def test_an_unresolvable_address_is_logged_and_no_count_is_lost(address, broker, statsd, push, caplog):
    publish(broker, b"abc")
    pushing = push(statsd_address=address)
    with gevent.Timeout(20):
        while caplog.text.count(f"failed to create UDP socket to statsd({address}) - ") < 2:
            gevent.sleep(0.001)
    pushing._resolver = Resolver(
        statsd.address, socket.SOCK_DGRAM
    )  # the name is known again: nothing was lost meanwhile
    statsd.hears("nsq.topic.orders.message_count", 1)


def test_lost_packets_are_logged_once_a_push(broker, statsd, push, caplog):
    publish(broker, b"abc")
    pushing = push(statsd_prefix="x" * 70_000 + ".")  # no datagram is that long
    with gevent.Timeout(20):
        while "STATSD: lost 6 of 6 packets" not in caplog.text:
            gevent.sleep(0.001)
    assert pushing._pushing


def test_a_failed_push_is_followed_by_others(broker, statsd, push, caplog):
    pushing = push()
    memory, pushing._memory = pushing._memory, lambda: 1 // 0
    with gevent.Timeout(20):
        while "STATSD: pushing failed" not in caplog.text:
            gevent.sleep(0.001)
    pushing._memory = memory
    statsd.hears("nsq.mem.heap_objects", 3)


def test_starting_and_stopping_are_logged_in_nsqs_words(statsd, push, caplog):
    caplog.set_level(logging.INFO)
    pushing = push()
    statsd.receive()
    pushing.stop()
    assert f"STATSD: pushing stats to {statsd.address}" in caplog.text
    assert "STATSD: closing" in caplog.text


def test_a_running_nsqd_pushes_zone_counts_and_latencies(statsd, tmp_path):
    options = (
        f"--statsd-address={statsd.address}",
        "--statsd-interval=10ms",
        "--broadcast-address=my.host",
        "--broadcast-http-port=4151",
        "--e2e-processing-latency-percentile=0.99",
        "--enable-experiment=topology-aware-consumption",
        "--topology-zone=z",
    )
    with ExitStack() as stack:
        nsqd = stack.enter_context(NsqdProcess(installed_nsqd(), tmp_path, options=options))
        client = stack.enter_context(Client(nsqd.tcp_address, topology_zone="z"))
        client.publishes(b"one", topic=b"orders").subscribes(b"orders", b"archive", ready=1)
        client.finishes(client.takes(1))
        prefix = "nsq.my_host_4151.topic.orders"
        statsd.hears(f"{prefix}.channel.archive.message_count", 1)
        statsd.hears(f"{prefix}.channel.archive.in_flight_count", 0)
        for key in (prefix, f"{prefix}.channel.archive"):
            while not statsd.gauges.get(f"{key}.e2e_processing_latency_99"):
                statsd.receive()
        shown = nsqd.channel_stats("orders", "archive")
    assert (shown["zone_local_msg_count"], shown["e2e_processing_latency"]["count"]) == (1, 1)


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


def test_the_lines_of_many_channels_are_made_in_steps(daemon, lines, monkeypatch):
    turns = []
    monkeypatch.setattr("nsq_compat.web.application.yield_to_loop", lambda: turns.append(1))
    for number in range(1000):
        daemon.topic().channel(f"c{number}")
    assert said(lines, daemon).count(".depth:") == 1001
    assert len(turns) == 5


def test_every_line_has_nsqs_name_and_kind_in_nsqs_order(daemon, lines):
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


def test_a_counter_is_a_difference_and_a_gauge_a_value(daemon, lines):
    daemon.channel()
    daemon.publishes(b"a", b"b")
    said(lines, daemon, MEMORY)
    daemon.publishes(b"c")
    second = said(lines, daemon, {**MEMORY, "gc_total_runs": 12})
    assert value_of("nsq.host_4151.topic.orders.channel.archive.message_count", second) == "1|c"
    assert value_of("nsq.host_4151.topic.orders.channel.archive.depth", second) == "3|g"
    assert value_of("nsq.host_4151.mem.gc_runs", second) == "2|c"
    assert value_of("nsq.host_4151.topic.orders.message_bytes", said(lines, daemon)) == "0|c"


def test_ephemeral_names_are_sent_as_they_are(daemon, lines):
    daemon.channel("x#ephemeral", "t#ephemeral")
    assert "nsq.host_4151.topic.t#ephemeral.channel.x#ephemeral.depth:0|g\n" in said(lines, daemon)


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
    assert list(packets([b"aa\n", b"bb\n", b"c\n", b"dddd\n", b"\n"], 6)) == [b"aa\nbb\n", b"c\n", b"dddd\n\n"]


def test_a_line_too_long_for_a_packet_is_sent_alone():
    assert list(packets([b"a\n", b"bbbbbbb\n", b"c\n"], 4)) == [b"a\n", b"bbbbbbb\n", b"c\n"]


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_that_is_not_positive_is_4096(size):
    assert [len(packet) for packet in packets([b"123456789abcdef\n"] * 300, size)] == [4096, 704]


def test_a_packet_is_joined_when_it_is_full():
    """Packets joined together at the end blocked the event loop for 69 ms in a run with 4,000 topics."""
    lines = iter([b"aa\n"] * 10)
    assert next(packets(lines, 6)) == b"aa\naa\n"
    assert len(list(lines)) == 7


@given(st.lists(st.binary(min_size=1, max_size=20)), st.integers(min_value=1, max_value=50))
def test_packets_contain_every_line_whole_and_in_order(lines, size):
    made = list(packets(lines, size))
    assert b"".join(made) == b"".join(lines)
    assert all(len(packet) <= size or packet in lines for packet in made)
    assert all(len(first) + len(second) > size for first, second in pairwise(made))
