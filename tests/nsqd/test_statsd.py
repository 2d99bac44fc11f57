"""Figures pushed to a real UDP socket, by themselves and then by an nsqd that runs."""

import logging
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import gevent
import gevent.socket
import pytest

from nsq_compat.net.dialer import Resolver
from nsq_compat.nsqd.options import NsqdOptions
from nsq_compat.nsqd.statsd import StatsdPush
from nsq_compat.protocol.durations import MILLISECOND, SECOND
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.limits import QueueLimits
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd

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


def test_figures_arrive_again_and_again(broker, statsd, push):
    push()
    publish(broker, b"abc")
    statsd.hears("nsq.topic.orders.message_bytes", 3)
    statsd.hears("nsq.topic.orders.depth", 1)
    statsd.hears("nsq.mem.heap_objects", 3)
    publish(broker, b"d", b"e")
    statsd.hears("nsq.topic.orders.message_bytes", 5)
    statsd.hears("nsq.topic.orders.message_count", 3)


def test_counters_go_on_growing_when_something_is_deleted_and_made_again(broker, statsd, push):
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


def test_no_packet_is_larger_than_was_asked_for(broker, statsd, push):
    for number in range(20):
        broker.topic(f"topic{number}").channel("archive")
    publish(broker, b"x", topic="topic19")
    push(statsd_udp_packet_size=150)
    statsd.hears("nsq.topic.topic19.message_count", 1)
    assert max(statsd.sizes) <= 150
    assert len(statsd.sizes) > 20


def test_memory_and_what_is_ephemeral_may_be_left_out(broker, statsd, push):
    broker.topic("a#ephemeral")
    broker.topic("b")
    push(statsd_mem_stats=False, statsd_exclude_ephemeral=True)
    statsd.hears("nsq.topic.b.depth", 0)
    statsd.receive()
    assert {name.split(".")[2] for name in statsd.gauges} == {"b"}


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
def test_an_address_that_leads_nowhere_is_logged_each_time_and_no_count_is_lost(address, broker, statsd, push, caplog):
    publish(broker, b"abc")
    pushing = push(statsd_address=address)
    with gevent.Timeout(20):
        while caplog.text.count(f"failed to create UDP socket to statsd({address}) - ") < 2:
            gevent.sleep(0.001)
    pushing._resolver = Resolver(
        statsd.address, socket.SOCK_DGRAM
    )  # the name is known again: nothing was lost meanwhile
    statsd.hears("nsq.topic.orders.message_count", 1)


def test_what_cannot_be_sent_is_lost_and_logged_once_a_push(broker, statsd, push, caplog):
    publish(broker, b"abc")
    pushing = push(statsd_prefix="x" * 70_000 + ".")  # no datagram is that long
    with gevent.Timeout(20):
        while "STATSD: lost 6 of 6 packets" not in caplog.text:
            gevent.sleep(0.001)
    assert pushing._pushing


def test_a_push_that_fails_is_not_the_last(broker, statsd, push, caplog):
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


def test_what_a_running_nsqd_knows_of_clients_nearby_and_of_latency_is_pushed(statsd, tmp_path):
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
        host, _, port = nsqd.tcp_address.rpartition(":")
        client = stack.enter_context(gevent.socket.create_connection((host, int(port)), timeout=20))
        client.sendall(
            b'  V2IDENTIFY\n\0\0\0\x15{"topology_zone":"z"}PUB orders\n\0\0\0\3oneSUB orders archive\nRDY 1\n'
        )
        received = b""
        while (sent := re.search(rb"([0-9a-f]{16})one", received)) is None:
            data = client.recv(1000)
            assert data, "nsqd closed the connection"
            received += data
        client.sendall(b"FIN " + sent[1] + b"\n")
        prefix = "nsq.my_host_4151.topic.orders"
        statsd.hears(f"{prefix}.channel.archive.message_count", 1)
        statsd.hears(f"{prefix}.channel.archive.in_flight_count", 0)
        for key in (prefix, f"{prefix}.channel.archive"):
            while not statsd.gauges.get(f"{key}.e2e_processing_latency_99"):
                statsd.receive()
        shown = nsqd.channel_stats("orders", "archive")
    assert (shown["zone_local_msg_count"], shown["e2e_processing_latency"]["count"]) == (1, 1)
