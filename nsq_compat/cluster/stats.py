"""Topics, channels and clients: as /stats of one nsqd describes them, and added up over nodes.

Field names are NSQ's.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Any, Final, TypeVar

from nsq_compat.cluster import reading
from nsq_compat.cluster.mirroring import Mirroring, read_mirroring
from nsq_compat.cluster.nodes import Node
from nsq_compat.policy.policies import DEFAULT_DEAD_LETTER_TOPIC, DeadLettering

ALL_NODES: Final = "*"
_MAX_TOPICS_AT_ONCE: Final = 50
_PAUSE_SECONDS: Final = 0.0001
"""Not 0, for which gevent runs up to 50 such turns before it serves sockets."""
_pausing: Final = threading.Lock()
_MAX_PERCENTILES: Final = 32
_MAX_SETTINGS: Final = 50
"""Of a channel. More are no answer of an nsqd that means well, and each takes time on every page."""
_SHORT_DISK: Final = 0.1

T = TypeVar("T")

Key = tuple[str, str]
"""Topic and channel; the channel is empty for a topic itself."""


def in_turns(items: Iterable[T], at_once: int, check: Callable[[], None] = lambda: None) -> Iterator[T]:
    """The items; other threads run before each so many of them, and `check` is called."""
    for index, item in enumerate(items):
        if index % at_once == 0:
            # Under gevent, hundreds of threads with pauses that end together would go on without a pause in between.
            with _pausing:
                time.sleep(_PAUSE_SECONDS)
            check()
        yield item


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
    percentiles = []
    for pair in reading.array(reading.mapping, answer["percentiles"])[:_MAX_PERCENTILES]:
        ns = reading.number(pair.get("value"))
        percentiles.append(Percentile(reading.number(pair.get("quantile")), ns, ns, ns, count))
    return Latency(count, tuple(percentiles))


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
    active: bool = False
    """It gets all messages of an exclusive channel of the node."""
    published: Mapping[str, int] = field(default_factory=dict)
    """For a producer, the number of messages by topic."""


@dataclass(slots=True, kw_only=True)
class Stats:
    """Fields of topics and channels, on one node or added up over nodes (`node` is ``*``)."""

    node: str = ""
    hostname: str = ""
    topic_name: str = ""
    channel_name: str = ""
    """Empty for a topic."""
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
    nodes: Sequence["Stats"] = ()
    """In a sum, the parts of each node."""

    @property
    def key(self) -> Key:
        return self.topic_name, self.channel_name

    @property
    def name(self) -> str:
        return self.channel_name or self.topic_name

    @property
    def waiting(self) -> int:
        """Messages waiting; for a topic, also those in its channels."""
        return self.depth

    def total(self, count: str) -> int:
        """A count of a channel, or that of all channels of a topic."""
        return int(getattr(self, count))

    def lost_by(self, action: str) -> int:
        """Messages that this action deletes: with a channel all, also deferred ones and those in flight.

        nsqd: emptying a topic leaves the messages of its channels.
        """
        if action == "empty" and not self.channel_name:
            return self.depth
        return self.waiting + self.total("deferred_count") + self.total("in_flight_count")

    @property
    def memory_depth(self) -> int:
        return self.depth - self.backend_depth

    @property
    def delivery_msg_count(self) -> int:
        return self.zone_local_msg_count + self.region_local_msg_count + self.global_msg_count


@dataclass(slots=True, kw_only=True)
class ChannelStats(Stats):
    in_flight_count: int = 0
    deferred_count: int = 0
    requeue_count: int = 0
    timeout_count: int = 0
    client_count: int = 0
    dead_letter_count: int = 0
    expired_count: int = 0
    policy: Mapping[str, str] = field(default_factory=dict)
    """Settings of our nsqd's policies; in a sum, those that are equal on all nodes."""
    clients: list[ClientStats] | None = None
    """None if not requested."""
    nodes: list["ChannelStats"] = field(default_factory=list)

    @property
    def dead_letter_topics(self) -> set[str]:
        """The topics to which its messages may have been moved: those of policies, and nsqd's default."""
        default = DeadLettering(1, DEFAULT_DEAD_LETTER_TOPIC).topic_for(self.topic_name, self.channel_name)
        written = {part.policy.get("dead_letter_topic", "") for part in (self, *self.nodes)}
        return {default, *written} - {""}


@dataclass(frozen=True, slots=True)
class Retained:
    """What a node retains of a topic, and what a rewind to a place would do there; or its error."""

    node: str = ""
    first: int = 0
    next: int = 0
    first_timestamp: float | None = None
    """Unix seconds; None without messages."""
    last_timestamp: float | None = None
    bytes: int = 0
    retain_for: str = ""
    retain_bytes: int = 0
    dedup_window: str = ""
    offset: int = 0
    """The offset of the place that was asked for."""
    channel_depth: int = 0
    depth: int = 0
    """That of the channel after a rewind to this place."""
    error: str = ""
    supported: bool = True
    """False if this nsqd does not know offsets."""

    @property
    def count(self) -> int:
        """Messages, also those that are lost by damage."""
        return self.next - self.first

    @property
    def policy(self) -> Mapping[str, Any]:
        """The settings that retain the topic."""
        settings = {"retain_for": self.retain_for, "retain_bytes": self.retain_bytes, "dedup_window": self.dedup_window}
        return {name: value for name, value in settings.items() if value}


def read_retained(node: str, value: object) -> Retained:
    """An answer of /topic/offsets. Raises `reading.InvalidAnswer`."""
    fields = reading.mapping(value)
    first, last = (
        None if fields.get(name) is None else reading.integer(fields[name]) / 1e9
        for name in ("first_timestamp", "last_timestamp")
    )
    times = {"first_timestamp": first, "last_timestamp": last}
    return reading.record(Retained, fields, node=node, error="", supported=True, **times)


@dataclass(slots=True, kw_only=True)
class TopicStats(Stats):
    message_bytes: int = 0
    duplicate_count: int = 0
    channels: list[ChannelStats] = field(default_factory=list)
    nodes: list["TopicStats"] = field(default_factory=list)
    retained: Retained | None = None
    """On a node. None if not requested, or if the node does not keep messages by offset."""

    @property
    def waiting(self) -> int:
        return self.depth + self.total("depth")

    def total(self, count: str) -> int:
        return sum(channel.total(count) for channel in self.channels)


@dataclass(slots=True, kw_only=True)
class Build:
    """What only our nsqd tells of itself."""

    version: str = ""
    compiled: bool = False
    disk_free_bytes: int = 0
    disk_bytes: int = 0
    """The size of the file system of the data path; 0 if it is not known."""
    event_loop_lag_seconds: float | None = None
    """Seconds for which timers of the event loop were overdue since the start; None for an older version."""
    mirroring: Mirroring = field(default_factory=Mirroring)

    @property
    def is_disk_short(self) -> bool:
        return self.disk_bytes > 0 and self.disk_free_bytes < _SHORT_DISK * self.disk_bytes


@dataclass(slots=True, kw_only=True)
class NodeStats:
    """The whole answer of one nsqd."""

    health: str = ""
    version: str = ""
    start_time: int = 0
    topics: list[TopicStats] = field(default_factory=list)
    producers: list[ClientStats] = field(default_factory=list)
    build: Build | None = None
    """None for Go's nsqd."""

    @property
    def mirroring(self) -> Mirroring:
        return self.build.mirroring if self.build else Mirroring()

    def total(self, count: str) -> int:
        """A count of all channels."""
        return sum(topic.total(count) for topic in self.topics)

    @property
    def waiting(self) -> int:
        return sum(topic.waiting for topic in self.topics)

    @property
    def message_count(self) -> int:
        return sum(topic.message_count for topic in self.topics)


def read_node_stats(node: Node, value: object, check: Callable[[], None] = lambda: None) -> NodeStats:
    """Raises `reading.InvalidAnswer`, and what `check` raises, which is called now and then."""
    answer = reading.mapping(value)
    topics = reading.array(reading.mapping, answer.get("topics"))
    ours = reading.mapping(answer.get("nsq_compat"))
    return reading.record(
        NodeStats,
        answer,
        topics=[_read_topic(node, topic) for topic in in_turns(topics, _MAX_TOPICS_AT_ONCE, check)],
        producers=[_read_producer(each) for each in reading.array(reading.mapping, answer.get("producers"))],
        build=_read_build(ours) if ours else None,
    )


def _read_build(answer: Mapping[str, Any]) -> Build:
    lag = answer.get("event_loop_lag_seconds")
    lag_seconds = None if lag is None else reading.number(lag)
    mirroring = read_mirroring(answer.get("mirroring"))
    return reading.record(Build, answer, event_loop_lag_seconds=lag_seconds, mirroring=mirroring)


def _read_producer(answer: Mapping[str, Any]) -> ClientStats:
    counts = reading.array(reading.mapping, answer.get("pub_counts"))
    published = {reading.text(each.get("topic")): reading.integer(each.get("count")) for each in counts}
    return reading.record(ClientStats, answer, published=published)


def _read_topic(node: Node, answer: Mapping[str, Any]) -> TopicStats:
    name = reading.text(answer.get("topic_name"))
    channels = [_read_channel(node, name, each) for each in reading.array(reading.mapping, answer.get("channels"))]
    return reading.record(TopicStats, answer, **_origin(node, answer), channel_name="", channels=channels)


def _read_setting(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return reading.text(value) if isinstance(value, str) else f"{reading.number(value):.15g}"


def _read_channel(node: Node, topic_name: str, answer: Mapping[str, Any]) -> ChannelStats:
    settings = islice(reading.mapping(answer.get("policy")).items(), _MAX_SETTINGS)
    policy = {name: _read_setting(setting) for name, setting in settings}
    clients = None
    if answer.get("clients") is not None:
        place = {"node_topology_region": node.topology_region, "node_topology_zone": node.topology_zone}
        known = {"node": node.http_address, **place}
        clients = [
            reading.record(ClientStats, each, **known) for each in reading.array(reading.mapping, answer["clients"])
        ]
    origin = _origin(node, answer)
    return reading.record(ChannelStats, answer, **origin, topic_name=topic_name, policy=policy, clients=clients)


def _origin(node: Node, answer: Mapping[str, Any]) -> dict[str, Any]:
    latency = read_latency(answer.get("e2e_processing_latency"))
    return {"node": node.http_address, "hostname": node.hostname, "latency": latency}


# --- Sums over nodes: counts are added, and a topic or channel that is paused on one node is paused -------------------

S = TypeVar("S", TopicStats, ChannelStats)
_COUNTS: Final = {kind: [each.name for each in fields(kind) if each.type is int] for kind in (TopicStats, ChannelStats)}


def sum_topics(parts: Iterable[TopicStats]) -> list[TopicStats]:
    """A sum for each name, sorted. Other threads run in between, because thousands of topics take long."""
    named = sorted(_by_key(parts).items())
    return [sum_topic(name, of_topic) for (name, _), of_topic in in_turns(named, _MAX_TOPICS_AT_ONCE)]


def sum_topic(name: str, parts: Iterable[TopicStats]) -> TopicStats:
    """The sum of one topic, with the parts in `nodes`, and with the sums of their channels, in order of appearance."""
    total = _sum(TopicStats(topic_name=name), parts)
    channels = _by_key(channel for part in total.nodes for channel in part.channels)
    total.channels = [sum_channel(name, of_channel) for (_, name), of_channel in channels.items()]
    return total


def sum_channel(name: str, parts: Iterable[ChannelStats]) -> ChannelStats:
    total = _sum(ChannelStats(channel_name=name), parts)
    if total.nodes:
        first = total.nodes[0]
        total.topic_name = first.topic_name
        total.policy = {
            setting: value
            for setting, value in first.policy.items()
            if all(part.policy.get(setting) == value for part in total.nodes)
        }
    if any(part.clients is not None for part in total.nodes):
        total.clients = sorted((client for part in total.nodes for client in part.clients or ()), key=_by_distance)
    return total


def _by_key(parts: Iterable[S]) -> dict[Key, list[S]]:
    found: dict[Key, list[S]] = {}
    for part in parts:
        found.setdefault(part.key, []).append(part)
    return found


def _sum(total: S, parts: Iterable[S]) -> S:
    nodes = sorted(parts, key=lambda part: (part.hostname, part.node))
    total.node = ALL_NODES
    for count in _COUNTS[type(total)]:
        setattr(total, count, sum(getattr(part, count) for part in nodes))
    total.paused = any(part.paused for part in nodes)
    total.latency = merged_latency(part.latency for part in nodes)
    total.nodes = nodes
    return total


def _by_distance(client: ClientStats) -> tuple[str, int, str, str]:
    """Sort by node; for each node, clients of its zone come first, then those of its region."""
    same_region = client.topology_region == client.node_topology_region
    same_zone = same_region and client.topology_zone == client.node_topology_zone
    return (client.node, 0 if same_zone else 1 if same_region else 2, client.topology_region, client.topology_zone)
