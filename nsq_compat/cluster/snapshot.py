"""The whole cluster at one moment: the topics and channels of all nodes, added up, and the nodes that did not answer.

Pages with thousands of topics, and the history, read snapshots, so that they do not query nsqd each time.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.fan_out import AllFailed
from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.stats import ChannelStats, ClientStats, NodeStats, Stats, TopicStats, merged_latency

ALL_NODES: Final = "*"
_MAX_TOPICS_AT_ONCE: Final = 50

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    taken_at: float
    """Unix seconds."""
    nodes: tuple[Node, ...] = ()
    answers: dict[str, NodeStats] = field(default_factory=dict)
    """By HTTP address, of the nodes that answered."""
    topics: tuple[TopicStats, ...] = ()
    """Over all nodes, by name. Topics that only nsqlookupd knows are empty."""
    errors: tuple[str, ...] = ()
    with_clients: bool = False
    undescribed: tuple[str, ...] = ()
    """HTTP addresses of a fixed list that did not answer, so that `nodes` does not have them."""

    def unreachable(self) -> list[str]:
        """HTTP addresses of all nodes that did not answer."""
        return [*self.undescribed, *(a for node in self.nodes if (a := node.http_address) not in self.answers)]


def take_snapshot(
    cluster: Cluster, now: float, *, clients: bool = False, let_others_run: Callable[[], None] = lambda: None
) -> Snapshot:
    """Never raises ``AllFailed``: if the cluster does not answer, the snapshot has `errors`.

    `let_others_run` is called between steps, because it takes long to add up thousands of topics.
    """
    try:
        nodes = cluster.nodes()
    except AllFailed as failure:
        return Snapshot(taken_at=now, errors=(str(failure),))
    errors = nodes.errors + nodes.skipped
    answers: dict[str, NodeStats] = {}
    names: list[str] = []
    if cluster.lookupds:
        try:
            names = cluster.topics().value
        except AllFailed as failure:
            errors += (str(failure),)
    try:
        stats = cluster.stats(nodes.value, clients=clients)
        answers = {node.http_address: of_node for node, of_node in stats.value}
        errors += stats.errors
    except AllFailed as failure:
        if nodes.value:  # otherwise there was no nsqd to query
            errors += (str(failure),)
    topics = topics_over_nodes((topic for of_node in answers.values() for topic in of_node.topics), let_others_run)
    topics += [TopicStats(topic_name=name) for name in set(names) - {topic.topic_name for topic in topics}]
    topics.sort(key=lambda topic: topic.topic_name)
    return Snapshot(
        taken_at=now,
        nodes=tuple(nodes.value),
        answers=answers,
        topics=tuple(topics),
        errors=errors,
        with_clients=clients,
        undescribed=() if cluster.lookupds else nodes.unreachable,
    )


# --- Sums over nodes: counts are added; a topic or channel that is paused on one node is paused -----------------------


def topic_over_nodes(topic_name: str, parts: Iterable[TopicStats]) -> TopicStats:
    """The sum, with the unchanged parts in `nodes`."""
    nodes = sorted(parts, key=lambda part: (part.hostname, part.node))
    total = _sum(TopicStats(topic_name=topic_name), nodes, _TOPIC_COUNTS)
    total.nodes = nodes
    total.channels = channels_over_nodes(channel for part in nodes for channel in part.channels)
    return total


def topics_over_nodes(
    parts: Iterable[TopicStats], let_others_run: Callable[[], None] = lambda: None
) -> list[TopicStats]:
    """Sorted by name."""
    by_name: dict[str, list[TopicStats]] = {}
    for part in parts:
        by_name.setdefault(part.topic_name, []).append(part)
    totals = []
    for index, name in enumerate(sorted(by_name)):
        if index % _MAX_TOPICS_AT_ONCE == 0:
            let_others_run()
        totals.append(topic_over_nodes(name, by_name[name]))
    return totals


def channels_over_nodes(parts: Iterable[ChannelStats]) -> list[ChannelStats]:
    """The channels of one topic, in order of appearance."""
    by_name: dict[str, list[ChannelStats]] = {}
    for part in parts:
        by_name.setdefault(part.channel_name, []).append(part)
    return [channel_over_nodes(name, each) for name, each in by_name.items()]


def channel_over_nodes(channel_name: str, parts: Sequence[ChannelStats]) -> ChannelStats:
    nodes = sorted(parts, key=lambda part: (part.hostname, part.node))
    total = _sum(ChannelStats(channel_name=channel_name), nodes, _CHANNEL_COUNTS)
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


def _sum(total: S, parts: Sequence[S], counts: Sequence[str]) -> S:
    total.node = ALL_NODES
    for name in counts:
        setattr(total, name, sum(getattr(part, name) for part in parts))
    total.paused = any(part.paused for part in parts)
    total.latency = merged_latency(part.latency for part in parts)
    return total


def _by_distance(client: ClientStats) -> tuple[str, int, str, str]:
    """Sort by node; for each node, clients of its zone come first, then those of its region."""
    same_region = client.topology_region == client.node_topology_region
    same_zone = same_region and client.topology_zone == client.node_topology_zone
    return (client.node, 0 if same_zone else 1 if same_region else 2, client.topology_region, client.topology_zone)
