"""What topics and channels looked like over the last hour, finely, and the last day, coarsely.

Fixed in size: a ring for each series, and no more than `MOST_SERIES` of them. Fed with snapshots; a counter that went
back (its nsqd was started anew, or the topic is a new one) makes a gap in the rate, not a negative one, and so does a
node that is missing, or comes back.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from nsq_compat.cluster.snapshot import Snapshot
from nsq_compat.cluster.statistics import ChannelStats, TopicStats

MOST_SERIES: Final = 20_000
FINE_SECONDS: Final = 10
FINE_LENGTH: Final = 360
COARSE_SECONDS: Final = 300
COARSE_LENGTH: Final = 288
_TREND_SECONDS: Final = 120
_AT_ONCE: Final = 200

Key = tuple[str, str]
"""Topic, and channel or the empty string."""
CLUSTER: Final[Key] = ("", "")
"""All topics together: what waits in them and their channels, and what is published."""


@dataclass(frozen=True, slots=True)
class Point:
    at: float
    """Unix seconds."""
    depth: float
    """Of a topic, its channels' included."""
    rate: float
    """Messages a second since the point before; nan where it is not known."""


class Ring:
    """The last so many points, `step` seconds apart; a later point in the same step replaces the earlier."""

    def __init__(self, step: int, length: int) -> None:
        self._step = step
        self._length = length
        self._slots = array("I", bytes(4 * length))  # one more than the slot; 0 for nothing yet
        self._depths = array("f", bytes(4 * length))
        self._rates = array("f", bytes(4 * length))

    def put(self, point: Point) -> None:
        slot = int(point.at) // self._step
        index = slot % self._length
        self._slots[index], self._depths[index], self._rates[index] = slot + 1, point.depth, point.rate

    def points(self, now: float) -> list[Point]:
        """Oldest first, without what is older than the ring is long."""
        newest = int(now) // self._step
        order = range(newest - self._length + 1, newest + 1)
        return [self._point(slot) for slot in order if slot >= 0 and self._slots[slot % self._length] == slot + 1]

    def _point(self, slot: int) -> Point:
        index = slot % self._length
        return Point(slot * self._step, self._depths[index], self._rates[index])


class Series:
    """One topic or channel."""

    def __init__(self, step: int) -> None:
        self.fine = Ring(step, FINE_LENGTH)
        self.coarse = Ring(COARSE_SECONDS, COARSE_LENGTH)
        self.last_seen = 0.0
        self._count = -1
        self._nodes = 0
        self.rate = math.nan

    def put(self, at: float, depth: int, count: int, nodes: int) -> None:
        """`nodes` stands for those that were counted: where they are others, what was counted before says nothing."""
        passed = at - self.last_seen
        known = self._count >= 0 and passed > 0 and count >= self._count and nodes == self._nodes
        self.rate = (count - self._count) / passed if known else math.nan
        self.last_seen, self._count, self._nodes = at, count, nodes
        point = Point(at, depth, self.rate)
        self.fine.put(point)
        self.coarse.put(point)

    def growth(self) -> float:
        """Messages a second by which the depth has changed over the last minutes; 0 where that is not known."""
        points = [point for point in self.fine.points(self.last_seen) if point.at >= self.last_seen - _TREND_SECONDS]
        if len(points) < 2 or points[-1].at == points[0].at:
            return 0.0
        return (points[-1].depth - points[0].depth) / (points[-1].at - points[0].at)


def _nodes(stats: TopicStats | ChannelStats) -> Iterator[str]:
    return (part.node for part in stats.nodes)


def _not_ready(snapshot: Snapshot) -> Iterator[Key]:
    for topic in snapshot.topics:
        for channel in topic.channels:
            if channel.clients and not any(client.ready_count for client in channel.clients):
                yield (topic.topic_name, channel.channel_name)


def _waiting(topic: TopicStats) -> int:
    """What somebody still has to read."""
    return topic.depth + sum(channel.depth for channel in topic.channels)


class History:
    """What is known of the past, in four forms.

    `latest` is the newest snapshot, None before the first; `oldest` says when the next message of some channels was
    published, in Unix seconds; `not_ready` are the channels whose consumers were all at RDY 0 when clients were last
    asked about; and there are series.
    """

    def __init__(self, step: int = FINE_SECONDS) -> None:
        self.latest: Snapshot | None = None
        self.oldest: Mapping[Key, float] = {}
        self.not_ready: frozenset[Key] = frozenset()
        # Looked at more often, a step shows the last look; less often, the ring is longer than an hour.
        self._step = max(FINE_SECONDS, step)
        self._series: dict[Key, Series] = {}

    def add(self, snapshot: Snapshot, breathe: Callable[[], None] = lambda: None) -> None:
        """`breathe` is called now and then, as `take_snapshot` does."""
        self.latest = snapshot
        waiting, published = sum(map(_waiting, snapshot.topics)), sum(topic.message_count for topic in snapshot.topics)
        self._put(CLUSTER, snapshot.taken_at, waiting, published, snapshot.answers)
        for number, topic in enumerate(snapshot.topics):
            if number % _AT_ONCE == 0:
                breathe()
            if topic.nodes:
                key = (topic.topic_name, "")
                self._put(key, snapshot.taken_at, _waiting(topic), topic.message_count, _nodes(topic))
            for channel in topic.channels:
                key = (topic.topic_name, channel.channel_name)
                self._put(key, snapshot.taken_at, channel.depth, channel.message_count, _nodes(channel))
        if snapshot.with_clients:
            self.not_ready = frozenset(_not_ready(snapshot))
        self._forget(snapshot.taken_at - COARSE_SECONDS * COARSE_LENGTH)

    def rate(self, topic: str, channel: str = "") -> float | None:
        """Messages a second; None where it is not known."""
        series = self._series.get((topic, channel))
        return None if series is None or math.isnan(series.rate) else series.rate

    def growth(self, topic: str, channel: str = "") -> float:
        series = self._series.get((topic, channel))
        return 0.0 if series is None else series.growth()

    def seconds_to_empty(self, topic: str, channel: str, depth: int) -> float | None:
        """When a backlog will be gone if it goes on like this; None if it does not shrink."""
        growth = self.growth(topic, channel)
        return depth / -growth if depth and growth < 0 else None

    def points(self, topic: str, channel: str, now: float, *, day: bool = False) -> list[Point]:
        series = self._series.get((topic, channel))
        if series is None:
            return []
        return (series.coarse if day else series.fine).points(now)

    def depths(self, topic: str, channel: str, now: float) -> Iterable[float]:
        return [point.depth for point in self.points(topic, channel, now)]

    def _put(self, key: Key, at: float, depth: int, count: int, nodes: Iterable[str]) -> None:
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= MOST_SERIES:
                return
            series = self._series[key] = Series(self._step)
        series.put(at, depth, count, hash(frozenset(nodes)))

    def _forget(self, before: float) -> None:
        for key in [key for key, series in self._series.items() if series.last_seen < before]:
            del self._series[key]
