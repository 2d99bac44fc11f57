"""The whole cluster at one moment.

Pages with thousands of topics, and the history, read snapshots, so that they do not query nsqd each time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.http_client import AllFailed
from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.stats import NodeStats, TopicStats, sum_topics


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    taken_at: float
    """Unix seconds."""
    nodes: tuple[Node, ...] = ()
    node_stats: Mapping[str, NodeStats] = field(default_factory=dict)
    """By HTTP address, of the nodes that answered."""
    unreachable: tuple[str, ...] = ()
    """HTTP addresses of the nodes that did not answer. `nodes` lacks those that only the fixed list names."""
    topics: tuple[TopicStats, ...] = ()
    """Sums over all nodes, sorted by name. Topics that only nsqlookupd knows are empty."""
    errors: tuple[str, ...] = ()
    with_clients: bool = False


def take_snapshot(cluster: Cluster, now: float, *, clients: bool = False) -> Snapshot:
    """Never raises ``AllFailed``: if the cluster does not answer, the snapshot has `errors`."""
    try:
        nodes = cluster.nodes()
    except AllFailed as failure:
        return Snapshot(taken_at=now, errors=(str(failure),))
    errors = nodes.errors + nodes.skipped
    node_stats: dict[str, NodeStats] = {}
    names: list[str] = []
    if cluster.lookupds:
        try:
            names = cluster.topics().value
        except AllFailed as failure:
            errors += (str(failure),)
    try:
        stats = cluster.stats(nodes.value, clients=clients)
        node_stats = {node.http_address: of_node for node, of_node in stats.value}
        errors += stats.errors
    except AllFailed as failure:
        if nodes.value:  # otherwise there was no nsqd to query
            errors += (str(failure),)
    topics = sum_topics(topic for of_node in node_stats.values() for topic in of_node.topics)
    topics += [TopicStats(topic_name=name) for name in set(names) - {topic.topic_name for topic in topics}]
    silent = [address for node in nodes.value if (address := node.http_address) not in node_stats]
    return Snapshot(
        taken_at=now,
        nodes=tuple(nodes.value),
        node_stats=node_stats,
        unreachable=(*nodes.unreachable, *silent),
        topics=tuple(sorted(topics, key=lambda topic: topic.topic_name)),
        errors=errors,
        with_clients=clients,
    )
