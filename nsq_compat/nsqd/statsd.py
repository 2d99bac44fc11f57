"""Pushes statistics to statsd in intervals, as lines `prefix.topic.orders.depth:7|g` with NSQ's names and order.

A gauge is a value as it is, a counter the difference to the previous push; the first counts from the daemon's start.

A push never waits: names are resolved in a thread, and a packet that cannot be sent at once is lost. An address that
cannot be resolved is tried again after the next interval; the counters then cover both intervals.
"""

import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import gevent
from gevent.event import Event

from nsq_compat.net.sockets import Resolver
from nsq_compat.nsqd.options import NsqdOptions
from nsq_compat.protocol.durations import SECOND
from nsq_compat.protocol.names import is_ephemeral
from nsq_compat.queue.broker import Broker, snapshot
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import ChannelStats, TopicStats
from nsq_compat.web.stats import in_steps

log = logging.getLogger(__name__)

_STOP_SECONDS = 1.0
_RESOLVE_SECONDS = 5.0
_NOT_SPREAD_OVER = 1.0
"""Seconds at the end of an interval without packets (nsqd)."""
_TOPICS_AT_ONCE = 20
_PAUSE_SECONDS = 0.001
"""With a sleep of 0 the event loop would not poll its sockets."""
_COUNTER: Final = "c"
_GAUGE: Final = "g"

# statsd's names are those of /stats, except for the number of clients.
_TOPIC_METRICS: Final = ("message_count", "message_bytes", "depth", "backend_depth")
_CHANNEL_METRICS: Final = (
    *("message_count", "depth", "backend_depth", "in_flight_count", "deferred_count"),
    *("requeue_count", "timeout_count", "clients"),
)
_COUNTERS: Final = frozenset({"message_count", "message_bytes", "requeue_count", "timeout_count"})
_COUNTED_MEMORY: Final = {"gc_total_runs": "gc_runs"}

_DEFAULT_PACKET_BYTES: Final = 4096


class StatsdPush:
    """`memory` returns the memory statistics of /stats."""

    def __init__(self, options: NsqdOptions, broker: Broker, memory: Callable[[], Mapping[str, int]]) -> None:
        self._address = options.statsd_address
        self._resolver = Resolver(self._address, socket.SOCK_DGRAM)
        self._interval = options.statsd_interval / SECOND
        self._packet_size = options.statsd_udp_packet_size
        self._memory = memory if options.statsd_mem_stats else None
        self._lines = StatsdLines(options.statsd_prefix, exclude_ephemeral=options.statsd_exclude_ephemeral)
        self._broker = broker
        self._stopping = Event()
        self._pushing = gevent.Greenlet(self._push_until_stopped)

    def start(self) -> None:
        """The first push is after one interval."""
        self._broker.observers.append(self._lines)
        self._pushing.start()

    def stop(self) -> None:
        """Send the rest of a push under way at once."""
        self._stopping.set()
        self._pushing.join(_STOP_SECONDS)
        self._pushing.kill()
        log.info("STATSD: closing")

    def _push_until_stopped(self) -> None:
        due = time.monotonic() + self._interval
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._interval, time.monotonic())
            try:
                self._push()
            except Exception:  # the top of a greenlet that must not end
                log.exception("STATSD: pushing failed")

    def _push(self) -> None:
        try:
            family, target = self._resolver.resolve(_RESOLVE_SECONDS)[0]
            sender = socket.socket(family, socket.SOCK_DGRAM)
        except OSError as error:
            log.error("failed to create UDP socket to statsd(%s) - %s", self._address, error)
            return
        with sender:
            sender.setblocking(False)
            log.info("STATSD: pushing stats to %s", self._address)
            self._send(sender, list(packets(self._all_lines(), self._packet_size)), target)

    def _all_lines(self) -> Iterator[bytes]:
        found = snapshot(self._broker, time.monotonic(), include_clients=False, in_steps=in_steps)
        for number, topic in enumerate(found, 1):
            yield from self._lines.of_topic(topic)
            if not number % _TOPICS_AT_ONCE:
                gevent.sleep(_PAUSE_SECONDS)
        if self._memory is not None:
            yield from self._lines.of_memory(self._memory())

    def _send(self, sender: socket.socket, datagrams: Sequence[bytes], target: tuple[Any, ...]) -> None:
        """Spread the packets over the interval, so that they do not overflow statsd's buffer (nsqd)."""
        pause = max(0.0, self._interval - _NOT_SPREAD_OVER) / max(1, len(datagrams))
        lost, reason = 0, ""
        for datagram in datagrams:
            try:
                sender.sendto(datagram, target)
            except OSError as error:
                lost, reason = lost + 1, str(error)
            self._stopping.wait(pause)
        if lost:
            log.warning("STATSD: lost %d of %d packets to %s - %s", lost, len(datagrams), self._address, reason)


class StatsdLines:
    """Formats lines, and remembers the last counters. `prefix` ends with a dot or is empty; lines end with a newline.

    An observer of the broker: deleted topics and channels are forgotten, because new ones of the same name count from
    0. Go's nsqd sends a negative count then.
    """

    def __init__(self, prefix: str, *, exclude_ephemeral: bool) -> None:
        self._prefix = prefix
        self._exclude_ephemeral = exclude_ephemeral
        self._last: dict[tuple[str, str], TopicStats | ChannelStats] = {}
        """By names of topic and channel, "" for the topic itself."""
        self._last_memory: Mapping[str, int] = {}

    def of_topic(self, topic: TopicStats) -> Iterator[bytes]:
        """Yield the lines about a topic and its channels."""
        name = topic.topic_name
        if self._exclude_ephemeral and is_ephemeral(name):
            return
        key = f"{self._prefix}topic.{name}."
        yield from self._lines_of(key, _TOPIC_METRICS, topic, (name, ""))
        for channel in in_steps(topic.channels):
            if not (self._exclude_ephemeral and is_ephemeral(channel.channel_name)):
                key_of_channel = f"{key}channel.{channel.channel_name}."
                yield from self._lines_of(key_of_channel, _CHANNEL_METRICS, channel, (name, channel.channel_name))

    def of_memory(self, stats: Mapping[str, int]) -> list[bytes]:
        """The lines about the process; `stats` are those of /stats."""
        key = f"{self._prefix}mem."
        lines = []
        for name, value in stats.items():
            if name in _COUNTED_MEMORY:
                lines.append(_line(key, _COUNTED_MEMORY[name], value - self._last_memory.get(name, 0), _COUNTER))
            else:
                lines.append(_line(key, name, value, _GAUGE))
        self._last_memory = stats
        return lines

    def topic_deleted(self, topic: Topic) -> None:
        for channel in ("", *topic.channels):
            self._last.pop((topic.name, channel), None)

    def channel_deleted(self, topic: Topic, channel: Channel) -> None:
        self._last.pop((topic.name, channel.name), None)

    def topic_created(self, *_: object) -> None: ...

    channel_created = topic_created

    def _lines_of(
        self, key: str, names: Iterable[str], stats: TopicStats | ChannelStats, place: tuple[str, str]
    ) -> list[bytes]:
        last, self._last[place] = self._last.get(place), stats
        lines = []
        for name in names:
            value = getattr(stats, "client_count" if name == "clients" else name)
            if name in _COUNTERS:
                lines.append(_line(key, name, value - (getattr(last, name) if last else 0), _COUNTER))
            else:
                lines.append(_line(key, name, value, _GAUGE))
        for quantile, nanoseconds in stats.e2e_processing_latency.percentiles or ():
            # nsqd: in whole percent, so 0.999 and 1.0 share a name.
            lines.append(_line(key, f"e2e_processing_latency_{quantile * 100:.0f}", int(nanoseconds), _GAUGE))
        return lines


def packets(lines: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Join the lines into packets of at most `size` bytes; a longer line has a packet of its own (nsqd).

    nsqd: a size that is not positive is 4096 bytes. Each packet is joined when it is full: those of 4,000 topics would
    take 30 ms together, and `lines` lets others run.
    """
    limit = size if size > 0 else _DEFAULT_PACKET_BYTES
    packet: list[bytes] = []
    room = limit
    for line in lines:
        if len(line) > room and packet:
            yield b"".join(packet)
            packet = []
            room = limit
        packet.append(line)
        room -= len(line)
    if packet:
        yield b"".join(packet)


def _line(key: str, name: str, value: int, kind: str) -> bytes:
    return f"{key}{name}:{value}|{kind}\n".encode()
