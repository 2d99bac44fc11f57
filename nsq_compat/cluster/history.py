"""Depths and rates of topics and channels: the last hour at full resolution, the last day in five-minute steps.

Memory is bounded: rings of fixed size, for at most `MAX_SERIES` series. If a counter decreases (its nsqd was restarted,
or the topic was created again), or if the set of nodes changes, the rate has a gap.
"""

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from nsq_compat.cluster.cluster import Snapshot
from nsq_compat.cluster.sightings import Sightings
from nsq_compat.cluster.stats import ChannelStats, Key, TopicStats, in_turns

MAX_SERIES: Final = 20_000
FINE_SECONDS: Final = 10
FINE_LENGTH: Final = 360
COARSE_SECONDS: Final = 300
COARSE_LENGTH: Final = 288
_TREND_SECONDS: Final = 120
_MAX_TOPICS_AT_ONCE: Final = 200

CLUSTER: Final[Key] = ("", "")
"""The sum of all topics."""


def node_key(address: str) -> Key:
    """The sum of all topics of a node."""
    return "", address


@dataclass(frozen=True, slots=True)
class Point:
    at: float
    """Unix seconds."""
    depth: float
    """For a topic, including its channels; nan if unknown."""
    rate: float
    """Messages a second since the previous point; nan if unknown."""


class Ring:
    """The last `length` points, `step` seconds apart. A later point in a step replaces an earlier one."""

    def __init__(self, step: int, length: int) -> None:
        self._step = step
        self._length = length
        self._slots = array("I", bytes(4 * length))  # slot number plus 1; 0 if unused
        self._depths = array("f", bytes(4 * length))
        self._rates = array("f", bytes(4 * length))

    def put(self, point: Point) -> None:
        slot = int(point.at) // self._step
        index = slot % self._length
        self._slots[index], self._depths[index], self._rates[index] = slot + 1, point.depth, point.rate

    def points(self, now: float, seconds: int | None = None) -> list[Point]:
        """Oldest first: those of the last `seconds`, and maybe older ones; by default of the last `length` steps."""
        newest = int(now) // self._step
        steps = self._length if seconds is None else min(self._length, seconds // self._step + 2)
        order = range(newest - steps + 1, newest + 1)
        return [
            Point(slot * self._step, self._depths[index], self._rates[index])
            for slot in order
            if slot >= 0 and self._slots[index := slot % self._length] == slot + 1
        ]


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
        """`nodes` is a hash of the counted nodes: counts of different nodes give no rate."""
        elapsed = at - self.last_seen
        known = self._count >= 0 and elapsed > 0 and count >= self._count and nodes == self._nodes
        self.rate = (count - self._count) / elapsed if known else math.nan
        self.last_seen, self._count, self._nodes = at, count, nodes
        point = Point(at, depth, self.rate)
        self.fine.put(point)
        self.coarse.put(point)

    def put_gap(self, at: float) -> None:
        """Nothing is known of this time. `last_seen` stays: the series is forgotten after a day of gaps."""
        self.rate, self._count = math.nan, -1
        point = Point(at, math.nan, math.nan)
        self.fine.put(point)
        self.coarse.put(point)


@dataclass(slots=True)
class Losses:
    """Messages of a topic or channel that were refused, or dropped."""

    counts: dict[str, int]
    """By node, in the last sample that had the node."""
    last_at: float
    """When a count was seen to rise last, Unix seconds."""
    is_dated: bool
    """Whether it rose while nsqadmin ran. Otherwise `last_at` is the first sample."""
    is_dismissed: bool = False

    def add(self, counts: Mapping[str, int], at: float) -> None:
        # A lower count is that of an nsqd that was restarted.
        if any(count and count != self.counts.get(node, 0) for node, count in counts.items()):
            self.last_at, self.is_dated, self.is_dismissed = at, True, False
        self.counts.update(counts)


LOSSES: Final = {"refused": "rejected_count", "dropped": "dropped_count"}
"""Kinds of losses and their counters."""

_UNKNOWN: Final = Series(FINE_SECONDS)


class History:
    """The newest snapshot, and series of depths and rates.

    `latest` is None before the first snapshot, and changes together with the rates of all series. `changed_at` is the
    time (Unix seconds) of the last action of an operator, which older snapshots do not show. `oldest` has the publish
    times of some channels' next messages. `not_ready` has the channels with all consumers at RDY 0 in the last snapshot
    with clients.
    """

    def __init__(self, step: int = FINE_SECONDS) -> None:
        self.latest: Snapshot | None = None
        self.changed_at = 0.0
        self.oldest: Mapping[Key, float] = {}
        self.not_ready: frozenset[Key] = frozenset()
        # With a shorter sample interval, a step keeps its last sample. With a longer one, the ring covers more time.
        self._step = max(FINE_SECONDS, step)
        self._series: dict[Key, Series] = {}
        self._rates: Mapping[Key, float] = {}
        self._losses: dict[tuple[str, Key], Losses] = {}
        self.sightings = Sightings()

    def add(self, snapshot: Snapshot) -> None:
        """Other threads run in between, because thousands of topics take long."""
        at = snapshot.taken_at
        if snapshot.is_known:
            waiting = sum(topic.waiting for topic in snapshot.topics)
            published = sum(topic.message_count for topic in snapshot.topics)
            self._put(CLUSTER, at, waiting, published, snapshot.node_stats)
        elif CLUSTER in self._series:
            self._series[CLUSTER].put_gap(at)
        for topic in in_turns(snapshot.topics, _MAX_TOPICS_AT_ONCE):
            self._note_losses(topic, at)
            for channel in topic.channels:
                self._note_losses(channel, at)
            # A topic that only nsqlookupd knows has no nodes, and no counts.
            for stats in [topic, *topic.channels] if topic.nodes else topic.channels:
                self._put(stats.key, at, stats.waiting, stats.message_count, (part.node for part in stats.nodes))
        for address, of_node in snapshot.node_stats.items():
            self._put(node_key(address), at, of_node.waiting, of_node.message_count, ())
        for address in snapshot.unreachable:
            if series := self._series.get(node_key(address)):
                series.put_gap(at)
        self.sightings.see(self.latest, snapshot)
        if snapshot.with_clients:
            self.not_ready = frozenset(
                channel.key
                for topic in snapshot.topics
                for channel in topic.channels
                if channel.clients and not any(client.ready_count for client in channel.clients)
            )
        before = at - COARSE_SECONDS * COARSE_LENGTH
        for key in [key for key, series in self._series.items() if series.last_seen < before]:
            del self._series[key]
        for lost in [lost for lost in self._losses if lost[1] not in self._series]:
            del self._losses[lost]
        self._rates = {key: series.rate for key, series in self._series.items() if not math.isnan(series.rate)}
        self.latest = snapshot

    def losses(self, kind: str, key: Key) -> Losses | None:
        """The losses of a kind, one of `LOSSES`; None if there are none, or no samples."""
        return self._losses.get((kind, key))

    def dismiss_losses(self, kind: str, key: Key) -> bool:
        """Mark these losses as seen, until there are more. Returns whether there were any."""
        if (losses := self.losses(kind, key)) is None:
            return False
        losses.is_dismissed = True
        return True

    def _note_losses(self, stats: TopicStats | ChannelStats, at: float) -> None:
        for kind, counter in LOSSES.items():
            counts = {part.node: count for part in stats.nodes if (count := getattr(part, counter))}
            if losses := self.losses(kind, stats.key):
                losses.add(counts, at)
            elif counts:
                self._losses[kind, stats.key] = Losses(counts, at, is_dated=self.latest is not None)

    def rate(self, key: Key) -> float | None:
        """Messages a second; None if unknown."""
        return self._rates.get(key)

    def growth(self, key: Key) -> float:
        """Change of the depth over the last two minutes, in messages a second; 0 if unknown."""
        series = self._series.get(key, _UNKNOWN)
        end = series.last_seen
        points = [
            point
            for point in series.fine.points(end, _TREND_SECONDS)
            if point.at >= end - _TREND_SECONDS and not math.isnan(point.depth)
        ]
        if len(points) < 2:
            return 0.0
        return (points[-1].depth - points[0].depth) / (points[-1].at - points[0].at)

    def seconds_to_empty(self, key: Key, depth: int) -> float | None:
        """Time until a channel is empty at the current rate; None if its depth does not shrink."""
        growth = self.growth(key)
        return depth / -growth if depth and growth < 0 else None

    def points(self, key: Key, now: float, *, day: bool = False) -> list[Point]:
        series = self._series.get(key, _UNKNOWN)
        return (series.coarse if day else series.fine).points(now)

    def _put(self, key: Key, at: float, depth: int, count: int, nodes: Iterable[str]) -> None:
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= MAX_SERIES:
                return
            series = self._series[key] = Series(self._step)
        series.put(at, depth, count, hash(frozenset(nodes)))
