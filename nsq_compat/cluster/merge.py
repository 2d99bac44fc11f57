"""One topic or channel over all nodes: counts are added, paused anywhere is paused, latencies are weighted."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from nsq_compat.cluster.latency import merged
from nsq_compat.cluster.statistics import ChannelStats, ClientStats, Stats, TopicStats

ALL_NODES: Final = "*"
_AT_ONCE: Final = 50

_COUNTS: Final = (
    *("depth", "backend_depth", "message_count", "dropped_count", "rejected_count"),
    *("zone_local_msg_count", "region_local_msg_count", "global_msg_count"),
)
_TOPIC_COUNTS: Final = (*_COUNTS, "message_bytes")
_CHANNEL_COUNTS: Final = (
    *_COUNTS,
    *("in_flight_count", "deferred_count", "requeue_count", "timeout_count", "client_count"),
    "dead_letter_count",
)

S = TypeVar("S", bound=Stats)


def topic_over_nodes(topic_name: str, parts: Iterable[TopicStats]) -> TopicStats:
    """The parts stay what they are, under `nodes`."""
    nodes = sorted(parts, key=lambda part: (part.hostname, part.node))
    total = _added(TopicStats(topic_name=topic_name), nodes, _TOPIC_COUNTS)
    total.nodes = nodes
    total.channels = channels_over_nodes(channel for part in nodes for channel in part.channels)
    return total


def topics_over_nodes(parts: Iterable[TopicStats], breathe: Callable[[], None] = lambda: None) -> list[TopicStats]:
    """Sorted by name; `breathe` is called now and then."""
    by_name: dict[str, list[TopicStats]] = {}
    for part in parts:
        by_name.setdefault(part.topic_name, []).append(part)
    totals = []
    for number, name in enumerate(sorted(by_name)):
        if number % _AT_ONCE == 0:
            breathe()
        totals.append(topic_over_nodes(name, by_name[name]))
    return totals


def channels_over_nodes(parts: Iterable[ChannelStats]) -> list[ChannelStats]:
    """Of one topic; in the order they are first seen."""
    by_name: dict[str, list[ChannelStats]] = {}
    for part in parts:
        by_name.setdefault(part.channel_name, []).append(part)
    return [channel_over_nodes(name, each) for name, each in by_name.items()]


def channel_over_nodes(channel_name: str, parts: Sequence[ChannelStats]) -> ChannelStats:
    nodes = sorted(parts, key=lambda part: (part.hostname, part.node))
    total = _added(ChannelStats(channel_name=channel_name), nodes, _CHANNEL_COUNTS)
    total.topic_name = nodes[0].topic_name if nodes else ""
    total.policy = {
        name: value
        for name, value in (nodes[0].policy if nodes else {}).items()
        if all(part.policy.get(name) == value for part in nodes)
    }
    total.nodes = nodes
    if any(part.clients is not None for part in nodes):
        total.clients = sorted((client for part in nodes for client in part.clients or ()), key=_by_distance)
    return total


def _added(total: S, parts: Sequence[S], counts: Sequence[str]) -> S:
    total.node = ALL_NODES
    for name in counts:
        setattr(total, name, sum(getattr(part, name) for part in parts))
    total.paused = any(part.paused for part in parts)
    total.latency = merged(part.latency for part in parts)
    return total


def _by_distance(client: ClientStats) -> tuple[str, int, str, str]:
    """By node, and there those of the node's zone first, then those of its region."""
    same_region = client.topology_region == client.node_topology_region
    same_zone = same_region and client.topology_zone == client.node_topology_zone
    return (client.node, 0 if same_zone else 1 if same_region else 2, client.topology_region, client.topology_zone)
