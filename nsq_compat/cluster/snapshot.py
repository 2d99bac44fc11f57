"""The whole cluster at one moment: every node's topics and channels, and who could not be asked.

What has a page for thousands of topics, and history, are made from snapshots, so that looking costs the nodes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.fan_out import AllFailed
from nsq_compat.cluster.merge import topics_over_nodes
from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.statistics import NodeStats, TopicStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    taken_at: float
    """Unix seconds."""
    nodes: tuple[Node, ...] = ()
    answers: dict[str, NodeStats] = field(default_factory=dict)
    """By HTTP address; a node that is not in here did not answer."""
    topics: tuple[TopicStats, ...] = ()
    """Over all nodes, by name; topics that only nsqlookupd knows are empty."""
    errors: tuple[str, ...] = ()
    with_clients: bool = False
    never_described: tuple[str, ...] = ()
    """HTTP addresses of a fixed list where nobody has said who is there."""

    def silent(self) -> list[str]:
        """HTTP addresses of nodes that should be there and did not answer."""
        return [*self.never_described, *(a for node in self.nodes if (a := node.http_address) not in self.answers)]


def take_snapshot(
    cluster: Cluster, now: float, *, clients: bool = False, breathe: Callable[[], None] = lambda: None
) -> Snapshot:
    """Raises nothing: a cluster that does not answer is a snapshot with errors.

    Adding up thousands of topics takes a while; `breathe` is called now and then, so that others get their turn.
    """
    try:
        nodes = cluster.nodes()
    except AllFailed as failure:
        return Snapshot(taken_at=now, errors=(str(failure),))
    errors = nodes.errors + nodes.skipped
    answers: dict[str, NodeStats] = {}
    names: list[str] = []
    try:
        if cluster.lookupds:
            names = cluster.topics().value
        statistics = cluster.statistics(nodes.value, clients=clients)
        answers = {node.http_address: stats for node, stats in statistics.value}
        errors += statistics.errors
    except AllFailed as failure:
        if nodes.value:
            errors += (str(failure),)
    never_described = () if cluster.lookupds else nodes.silent
    topics = topics_over_nodes((topic for stats in answers.values() for topic in stats.topics), breathe)
    empty = set(names) - {topic.topic_name for topic in topics}
    topics += [TopicStats(topic_name=name) for name in empty]
    topics.sort(key=lambda topic: topic.topic_name)
    return Snapshot(
        taken_at=now,
        nodes=tuple(nodes.value),
        answers=answers,
        topics=tuple(topics),
        errors=errors,
        with_clients=clients,
        never_described=never_described,
    )
