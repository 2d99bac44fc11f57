"""Plain values: limits from nsqd's options, refusals of publishes, and the content of /stats.

``broker.snapshot`` reads the values of /stats. Their field names, order and meaning are NSQ's; `dropped_count`,
`dead_letter_count`, `expired_count`, `rejected_count`, `policy`, `log_bytes`, `damaged_records` and those of publish
ids and retention are ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """Quantiles in (0,1], in the order to be shown, and the window in seconds."""

    quantiles: tuple[float, ...]
    window: float


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Durations are in seconds. `max_channel_consumers` 0 means no limit; without `latency` none is measured.

    `topology_aware`: nearby consumers come first.
    """

    mem_queue_size: int = 10_000
    max_msg_timeout: float = 900.0
    max_channel_consumers: int = 0
    node_id: int = 0
    latency: LatencyOptions | None = None
    topology_aware: bool = False


class Refused(Exception):
    """A message is not accepted. The text is for the client."""


class NotLogged(Exception):
    """The topic or channel is ephemeral, so its messages are in no log."""


class Exiting(Refused):
    """The topic or channel is being deleted, or nsqd stops or drains. The text is NSQ's."""

    def __str__(self) -> str:
        return "exiting"


def refuse_all(count: int, now: float) -> NoReturn:
    """The admission check of a topic that is being deleted or closed, or of an nsqd that drains."""
    raise Exiting


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyStats:
    """Time from publish to FIN; `percentiles` are (quantile, nanoseconds), None where none are configured."""

    count: int = 0
    percentiles: tuple[tuple[float, float], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStats:
    """One connection, as a consumer of a channel or as a producer."""

    client_id: str
    hostname: str
    version: str
    remote_address: str
    state: int
    ready_count: int = 0
    in_flight_count: int = 0
    message_count: int = 0
    zone_local_msg_count: int = 0
    region_local_msg_count: int = 0
    global_msg_count: int = 0
    finish_count: int = 0
    requeue_count: int = 0
    connect_ts: int
    sample_rate: int = 0
    deflate: bool = False
    snappy: bool = False
    user_agent: str = ""
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    topology_zone: str = ""
    topology_region: str = ""
    pub_counts: tuple[tuple[str, int], ...] = ()
    tls: bool = False
    tls_cipher_suite: str = ""
    tls_version: str = ""
    tls_negotiated_protocol: str = ""
    tls_negotiated_protocol_is_mutual: bool = False
    active: bool = False
    """It gets all messages of an exclusive channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStats:
    """One channel; `clients` is None if the caller does not want them."""

    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    zone_local_msg_count: int = 0
    region_local_msg_count: int = 0
    global_msg_count: int = 0
    requeue_count: int
    timeout_count: int
    client_count: int
    clients: tuple[ClientStats, ...] | None
    paused: bool
    e2e_processing_latency: LatencyStats = field(default_factory=LatencyStats)
    dropped_count: int = 0
    dead_letter_count: int = 0
    expired_count: int = 0
    rejected_count: int = 0
    policy: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    """One topic; `depth` counts the messages that no channel has received yet."""

    topic_name: str
    channels: tuple[ChannelStats, ...]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: LatencyStats = field(default_factory=LatencyStats)
    dropped_count: int = 0
    rejected_count: int = 0
    duplicate_count: int = 0
    forgotten_id_count: int = 0
    """Publish ids that were forgotten within the window, because there were too many."""
    dedup_window: float = 0.0
    """Seconds for which publish ids are known; 0 if they have no effect."""
    publish_ids: int = 0
    """Publish ids in memory."""
    log_bytes: int = 0
    damaged_records: int = 0
    retained_bytes: int = 0
    """Size of the files that a policy retains, 0 without one."""
    retained_seconds: float = 0.0
    """Age of the first message in them."""
    released_segments: int = 0
