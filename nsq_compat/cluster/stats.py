"""Topics, channels and clients, as /stats of an nsqd describes them. Field names are NSQ's."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

from nsq_compat.cluster import reading
from nsq_compat.cluster.nodes import Node

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Percentile:
    """One quantile; values in nanoseconds."""

    quantile: float
    average: float
    min: float
    max: float
    count: int


@dataclass(frozen=True, slots=True)
class Latency:
    count: int = 0
    percentiles: tuple[Percentile, ...] | None = None
    """None if nsqd measures none."""


def read_latency(value: object) -> Latency:
    answer = reading.mapping(value)
    count = reading.integer(answer.get("count"))
    if answer.get("percentiles") is None:
        return Latency(count)

    def read(entry: object) -> Percentile:
        pair = reading.mapping(entry)
        ns = reading.number(pair.get("value"))
        return Percentile(reading.number(pair.get("quantile")), ns, ns, ns, count)

    return Latency(count, tuple(reading.array(read, answer["percentiles"])))


def merged_latency(latencies: Iterable[Latency]) -> Latency:
    """Combine several nodes, with quantiles in order of appearance.

    Percentiles cannot be merged exactly. As in NSQ's nsqadmin, the result is the average weighted by message counts,
    with the minimum and maximum.
    """
    total = 0
    by_quantile: dict[float, list[Percentile]] = {}
    for latency in latencies:
        total += latency.count
        for percentile in latency.percentiles or ():
            by_quantile.setdefault(percentile.quantile, []).append(percentile)
    return Latency(total, tuple(_merged_percentile(parts) for parts in by_quantile.values()) or None)


def _merged_percentile(parts: list[Percentile]) -> Percentile:
    count = sum(part.count for part in parts)
    # Nodes without measurements report 0, which must not become the minimum.
    measured = [part for part in parts if part.count] or parts
    return Percentile(
        parts[0].quantile,
        sum(part.average * part.count for part in parts) / count if count else 0.0,
        min(part.min for part in measured),
        max(part.max for part in parts),
        count,
    )


@dataclass(slots=True, kw_only=True)
class ClientStats:
    """A consumer of a channel on one node."""

    node: str = ""
    remote_address: str = ""
    version: str = ""
    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    connect_ts: int = 0
    in_flight_count: int = 0
    ready_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    message_count: int = 0
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    node_topology_region: str = ""
    node_topology_zone: str = ""
    topology_region: str = ""
    topology_zone: str = ""
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False


@dataclass(slots=True, kw_only=True)
class Stats:
    """Fields of topics and channels, on one node or added up over all nodes (`node` is ``*``)."""

    node: str = ""
    hostname: str = ""
    topic_name: str = ""
    depth: int = 0
    backend_depth: int = 0
    message_count: int = 0
    zone_local_msg_count: int = 0
    region_local_msg_count: int = 0
    global_msg_count: int = 0
    dropped_count: int = 0
    rejected_count: int = 0
    paused: bool = False
    latency: Latency = field(default_factory=Latency)

    @property
    def memory_depth(self) -> int:
        return self.depth - self.backend_depth

    @property
    def delivery_msg_count(self) -> int:
        return self.zone_local_msg_count + self.region_local_msg_count + self.global_msg_count


@dataclass(slots=True, kw_only=True)
class ChannelStats(Stats):
    channel_name: str = ""
    in_flight_count: int = 0
    deferred_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    client_count: int = 0
    dead_letter_count: int = 0
    policy: Mapping[str, str] = field(default_factory=dict)
    """Settings of our nsqd's policies; in a sum, those that are equal on all nodes."""
    clients: list[ClientStats] | None = None
    """None if not requested."""
    nodes: list["ChannelStats"] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class TopicStats(Stats):
    message_bytes: int = 0
    channels: list[ChannelStats] = field(default_factory=list)
    nodes: list["TopicStats"] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        """Messages waiting in the topic and its channels."""
        return self.depth + sum(channel.depth for channel in self.channels)


@dataclass(slots=True, kw_only=True)
class NodeStats:
    """The whole answer of one nsqd."""

    health: str
    start_time: int
    topics: list[TopicStats]


def read_node_stats(node: Node, value: object) -> NodeStats:
    """Raises `reading.InvalidAnswer`."""
    answer = reading.mapping(value)
    return NodeStats(
        health=reading.text(answer.get("health")),
        start_time=reading.integer(answer.get("start_time")),
        topics=reading.array(lambda topic: _read_topic(node, topic), answer.get("topics")),
    )


def _read_topic(node: Node, value: object) -> TopicStats:
    topic = _read(TopicStats, value)
    topic.node, topic.hostname = node.http_address, node.hostname
    answer = reading.mapping(value)
    topic.latency = read_latency(answer.get("e2e_processing_latency"))
    topic.channels = reading.array(
        lambda channel: _read_channel(node, topic.topic_name, channel), answer.get("channels")
    )
    return topic


def _read_channel(node: Node, topic_name: str, value: object) -> ChannelStats:
    channel = _read(ChannelStats, value)
    channel.node, channel.hostname, channel.topic_name = node.http_address, node.hostname, topic_name
    answer = reading.mapping(value)
    channel.latency = read_latency(answer.get("e2e_processing_latency"))
    channel.policy = _read_policy(answer.get("policy"))
    if answer.get("clients") is not None:
        channel.clients = reading.array(lambda client: _read_client(node, client), answer["clients"])
    return channel


def _read_policy(value: object) -> dict[str, str]:
    settings = reading.mapping(value)
    return {
        name: reading.text(it) if isinstance(it, str) else f"{reading.number(it):.15g}" for name, it in settings.items()
    }


def _read_client(node: Node, value: object) -> ClientStats:
    client = _read(ClientStats, value)
    client.node = node.http_address
    client.node_topology_region, client.node_topology_zone = node.topology_region, node.topology_zone
    return client


_READERS: Final = {int: reading.integer, str: reading.text, bool: reading.boolean}
_SIMPLE_FIELDS: Final[dict[type, list[tuple[str, Any]]]] = {
    kind: [(column.name, _READERS[column.type]) for column in fields(kind) if column.type in _READERS]
    for kind in (TopicStats, ChannelStats, ClientStats)
}


def _read(kind: type[T], value: object) -> T:
    """A `kind` with its numbers, strings and booleans. The caller reads the other fields."""
    answer = reading.mapping(value)
    return kind(**{name: read(answer[name]) for name, read in _SIMPLE_FIELDS[kind] if name in answer})
