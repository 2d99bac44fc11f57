"""What is remembered of nodes: since when each is in its state, and what it had when it answered last.

A node that vanishes is kept as gone until it is dismissed or back. Memory is bounded: at most `MAX_GONE` gone nodes
are kept, the latest ones, each with a few topics. It is lost when the program stops.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from nsq_compat.cluster.cluster import Snapshot
from nsq_compat.cluster.nodes import Node, canonical_address
from nsq_compat.cluster.stats import NodeStats, TopicStats

MAX_GONE: Final = 100
_MAX_TOPICS: Final = 20
_MAX_STALLED: Final = 0.4
_MAX_ANSWER_TIME: Final = 0.25
_AVERAGED_SECONDS: Final = 10.0
"""A single pause, such as that of a long request, does not make a node slow."""

OK: Final = "OK"
SILENT: Final = "does not answer"
GONE: Final = "gone"


@dataclass(slots=True)
class Sighting:
    """Times are Unix seconds."""

    node: Node
    state: str
    """``OK``, the reason why the node is not healthy, `SILENT`, or `GONE`."""
    since: float
    """When this state was first seen."""
    last_seen: float | None = None
    """When the node answered last; None if it has never answered."""
    message_count: int = 0
    """Messages that it had then: waiting, deferred and in flight."""
    topic_count: int = 0
    largest: tuple[tuple[str, int], ...] = ()
    """The topics with the most of these messages."""
    stalled: float = 0.0
    """The share of the last seconds in which the event loop stood still, at least (our nsqd)."""
    answer_time: float = 0.0
    """Seconds until a ping was answered, averaged over the last seconds (other nsqds)."""

    @property
    def slowness(self) -> str:
        """Why the node is slow, as a phrase; empty if it is not."""
        if self.state != OK:
            return ""
        if self.stalled >= _MAX_STALLED:
            return f"its event loop stands still for {self.stalled:.0%} of the time or more"
        return f"it takes {self.answer_time:.1f} s to answer a ping" if self.answer_time >= _MAX_ANSWER_TIME else ""

    def measure(self, lag: float | None, answer_time: float | None, elapsed: float) -> None:
        """Add what was measured in the last `elapsed` seconds: by how much timers were late, or the time of a ping.

        After a restart, the lag is negative.
        """
        weight = 1 - math.exp(-elapsed / _AVERAGED_SECONDS)
        if lag is not None:
            self.stalled += weight * (min(1.0, max(0.0, lag / elapsed)) - self.stalled)
        elif answer_time is not None:
            self.answer_time += weight * (answer_time - self.answer_time)

    def text(self, now: float) -> str:
        return f"{self.state}, {self.last_state(now)}"

    def last_state(self, now: float) -> str:
        if self.last_seen is None:
            return "has never answered"
        had = f"{_count(self.message_count, 'message')} in {_count(self.topic_count, 'topic')}"
        return f"last seen {duration(now - self.last_seen)} ago, had {had}"


class Sightings:
    def __init__(self) -> None:
        self._nodes: dict[str, Sighting] = {}
        self._latest: Mapping[str, NodeStats] = {}

    def see(self, previous: Snapshot | None, snapshot: Snapshot) -> None:
        """Compare two snapshots in their order. A node is gone if it was listed by an nsqlookupd that still answers."""
        self._latest = snapshot.node_stats
        listed = {node.http_address: node for node in snapshot.nodes}
        at, before = snapshot.taken_at, previous.node_stats if previous else {}
        for address, stats in snapshot.node_stats.items():
            sighting = self._note(address, listed.get(address), stats.health or OK, at)
            sighting.last_seen = at
            if previous and at > previous.taken_at:
                lag = _lag_since(before.get(address), stats)
                sighting.measure(lag, snapshot.answer_times.get(address), at - previous.taken_at)
        for address in snapshot.unreachable:
            self._note(address, listed.get(address), SILENT, at)
        for address, sighting in self._nodes.items():
            if address not in snapshot.node_stats and address in before:
                _remember(sighting, before[address])
            if (
                address not in listed
                and address not in snapshot.unreachable
                and _is_known_to_be_gone(sighting, snapshot)
            ):
                self._note(address, None, GONE, at)
        # A node of a fixed list that answers for the first time may announce another address than the list has.
        for address in [each.node.http_address for each in self.gone() if not each.node.tcp_port]:
            self.dismiss(address)
        for sighting in sorted(self.gone(), key=lambda each: each.since)[:-MAX_GONE]:
            self.dismiss(sighting.node.http_address)

    def of(self, address: str) -> Sighting | None:
        return self._nodes.get(address)

    def recall(self, address: str) -> Sighting | None:
        """As `of`, with what the node had in the newest snapshot, if it answers no more since then."""
        if (sighting := self.of(address)) and address in self._latest:
            _remember(sighting, self._latest[address])
        return sighting

    def gone(self) -> list[Sighting]:
        return [sighting for sighting in self._nodes.values() if sighting.state == GONE]

    def dismiss(self, address: str) -> bool:
        """Forget a node that is gone. Returns whether there was one."""
        sighting = self._nodes.get(address)
        if sighting is None or sighting.state != GONE:
            return False
        del self._nodes[address]
        return True

    def _note(self, address: str, node: Node | None, state: str, at: float) -> Sighting:
        sighting = self._nodes.get(address)
        if sighting is None:
            sighting = self._nodes[address] = Sighting(node or _unnamed(address), state, at)
        elif sighting.state != state:
            sighting.state, sighting.since = state, at
        sighting.node = node or sighting.node
        return sighting


def _lag_since(before: NodeStats | None, stats: NodeStats) -> float | None:
    """Seconds for which timers of our nsqd were late between two of its answers; None if that is not known."""
    first, last = (of.build.event_loop_lag_seconds if of and of.build else None for of in (before, stats))
    return None if first is None or last is None else last - first


def message_count(topics: Iterable[TopicStats]) -> int:
    return sum(topic.waiting + topic.total("in_flight_count") + topic.total("deferred_count") for topic in topics)


def _remember(sighting: Sighting, stats: NodeStats) -> None:
    sighting.message_count, sighting.topic_count = message_count(stats.topics), len(stats.topics)
    counts = [(topic.topic_name, message_count([topic])) for topic in stats.topics]
    sighting.largest = tuple(sorted(counts, key=lambda each: -each[1])[:_MAX_TOPICS])


def _is_known_to_be_gone(sighting: Sighting, snapshot: Snapshot) -> bool:
    if not snapshot.silent_lookupds:
        return True
    return bool(sighting.node.listed_by - set(snapshot.silent_lookupds))


def _unnamed(address: str) -> Node:
    """A node of a fixed list that has never answered."""
    host, port = canonical_address(address) or (address, 0)
    return Node(broadcast_address=host, hostname=host, http_port=port)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Such as ``12 s``, ``5 min``."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{int(seconds // unit)} {name}"
    return f"{max(0, int(seconds))} s"
