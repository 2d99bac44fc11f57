"""Snapshots as statsd's lines: `prefix.topic.orders.depth:7|g`. Names, kinds and their order are NSQ's.

A gauge is a figure as it is, a counter what was added to one since the snapshot before; the first counts from the
daemon's start, as the figures do.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from nsq_compat.protocol.names import is_ephemeral
from nsq_compat.queue.stats import ChannelStats, LatencyStats, TopicStats

_COUNTER: Final = "c"
_GAUGE: Final = "g"

# What is said of each: statsd's name, the field it stands in, the kind.
_TOPIC_METRICS: Final = (
    ("message_count", "message_count", _COUNTER),
    ("message_bytes", "message_bytes", _COUNTER),
    ("depth", "depth", _GAUGE),
    ("backend_depth", "backend_depth", _GAUGE),
)
_CHANNEL_METRICS: Final = (
    ("message_count", "message_count", _COUNTER),
    ("depth", "depth", _GAUGE),
    ("backend_depth", "backend_depth", _GAUGE),
    ("in_flight_count", "in_flight_count", _GAUGE),
    ("deferred_count", "deferred_count", _GAUGE),
    ("requeue_count", "requeue_count", _COUNTER),
    ("timeout_count", "timeout_count", _COUNTER),
    ("clients", "client_count", _GAUGE),
)
_COUNTED_MEMORY: Final = {"gc_total_runs": "gc_runs"}

_SIZE_UNLESS_POSITIVE: Final = 4096


class StatsdLines:
    """Remembers what was said last. `prefix` ends with a dot or is empty; every line ends with a newline.

    What is deleted has to be forgotten: whatever is made again under its name counts from 0, where Go's nsqd would send
    a negative count.
    """

    def __init__(self, prefix: str, *, exclude_ephemeral: bool) -> None:
        self._prefix = prefix
        self._exclude_ephemeral = exclude_ephemeral
        self._last_topics: dict[str, TopicStats] = {}
        self._last_channels: dict[str, dict[str, ChannelStats]] = {}
        self._last_memory: Mapping[str, int] = {}

    def of_topic(self, topic: TopicStats) -> list[bytes]:
        """What there is to say of a topic and its channels."""
        name = topic.topic_name
        if self._says_nothing_of(name):
            return []
        key = f"{self._prefix}topic.{name}."
        lines = list(_figures(key, _TOPIC_METRICS, topic, self._last_topics.get(name)))
        last = self._last_channels.get(name, {})
        for channel in topic.channels:
            if not self._says_nothing_of(channel.channel_name):
                key_of_channel = f"{key}channel.{channel.channel_name}."
                lines += _figures(key_of_channel, _CHANNEL_METRICS, channel, last.get(channel.channel_name))
        self._last_topics[name] = topic
        self._last_channels[name] = {channel.channel_name: channel for channel in topic.channels}
        return lines

    def of_memory(self, figures: Mapping[str, int]) -> list[bytes]:
        """What there is to say of the process; the figures are those of /stats."""
        key = f"{self._prefix}mem."
        lines = []
        for name, value in figures.items():
            if name in _COUNTED_MEMORY:
                lines.append(_line(key, _COUNTED_MEMORY[name], value - self._last_memory.get(name, 0), _COUNTER))
            else:
                lines.append(_line(key, name, value, _GAUGE))
        self._last_memory = figures
        return lines

    def forget_topic(self, topic: str) -> None:
        """The topic is gone, with its channels."""
        self._last_topics.pop(topic, None)
        self._last_channels.pop(topic, None)

    def forget_channel(self, topic: str, channel: str) -> None:
        """The channel is gone."""
        self._last_channels.get(topic, {}).pop(channel, None)

    def _says_nothing_of(self, name: str) -> bool:
        return self._exclude_ephemeral and is_ephemeral(name)


def packets(lines: Iterable[bytes], size: int) -> list[bytes]:
    """The lines put together in packets of at most `size` bytes; a line that is longer by itself goes alone (nsqd).

    nsqd: without a size worth the name it is 4096 bytes.
    """
    limit = size if size > 0 else _SIZE_UNLESS_POSITIVE
    gathered: list[list[bytes]] = []
    room = 0
    for line in lines:
        if len(line) > room:
            gathered.append([])
            room = limit
        gathered[-1].append(line)
        room -= len(line)
    return [b"".join(packet) for packet in gathered]


def _figures(
    key: str,
    metrics: Iterable[tuple[str, str, str]],
    stats: TopicStats | ChannelStats,
    last: TopicStats | ChannelStats | None,
) -> Iterator[bytes]:
    for name, field, kind in metrics:
        value = getattr(stats, field)
        if kind == _COUNTER and last is not None:
            value -= getattr(last, field)
        yield _line(key, name, value, kind)
    yield from _latencies(key, stats.e2e_processing_latency)


def _latencies(key: str, latency: LatencyStats) -> Iterator[bytes]:
    for quantile, nanoseconds in latency.percentiles or ():
        # nsqd: in whole percent, so that 0.999 and 1.0 share a name.
        yield _line(key, f"e2e_processing_latency_{quantile * 100:.0f}", int(nanoseconds), _GAUGE)


def _line(key: str, name: str, value: int, kind: str) -> bytes:
    return f"{key}{name}:{value}|{kind}\n".encode()
