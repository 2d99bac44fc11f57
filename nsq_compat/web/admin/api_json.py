"""The JSON of nsqadmin's API: keys and their order are NSQ's."""

from collections.abc import Sequence
from typing import Any, Final

from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.stats import ChannelStats, ClientStats, Latency, Percentile, TopicStats
from nsq_compat.web.application import picked

_SECOND_NS: Final = 1_000_000_000

# Keys of NSQ's JSON (`responses.picked`).
_DELIVERY: Final = "zone_local_msg_count? region_local_msg_count? global_msg_count?"
_TOPIC: Final = (
    f"node hostname topic_name depth memory_depth backend_depth message_count delivery_msg_count {_DELIVERY}"
)
_CHANNEL: Final = (
    "node hostname topic_name channel_name depth memory_depth backend_depth in_flight_count deferred_count "
    f"requeue_count timeout_count message_count delivery_msg_count? {_DELIVERY} client_count"
)
_CLIENT: Final = "node remote_address version client_id hostname user_agent connect_ts"
_CLIENT_REST: Final = (
    "in_flight_count ready_count finish_count requeue_count message_count sample_rate deflate snappy authed "
    "auth_identity auth_identity_url node_topology_region? node_topology_zone? topology_region? topology_zone? tls "
    "tls_cipher_suite tls_version tls_negotiated_protocol tls_negotiated_protocol_is_mutual"
)
_NODE: Final = "remote_address hostname broadcast_address tcp_port http_port version topology_zone? topology_region?"


def topic(stats: TopicStats, now: float) -> dict[str, Any]:
    return {
        **picked(stats, _TOPIC),
        "nodes": [topic(part, now) for part in stats.nodes] or None,
        "channels": _list(stats, [channel(each, now) for each in stats.channels]),
        "paused": stats.paused,
        "e2e_processing_latency": _latency(stats.latency, stats, ""),
    }


def channel(stats: ChannelStats, now: float) -> dict[str, Any]:
    return {
        **picked(stats, _CHANNEL),
        "nodes": [channel(part, now) for part in stats.nodes] or None,
        "clients": None if stats.clients is None else _list(stats, [client(each, now) for each in stats.clients]),
        "paused": stats.paused,
        "e2e_processing_latency": _latency(stats.latency, stats, stats.channel_name),
    }


def client(stats: ClientStats, now: float) -> dict[str, Any]:
    connected = (int(now) - stats.connect_ts) * _SECOND_NS
    return {**picked(stats, _CLIENT), "connected": connected, **picked(stats, _CLIENT_REST)}


def node(described: Node) -> dict[str, Any]:
    topics = [{"topic": name, "tombstoned": tombstoned} for name, tombstoned in described.topics.items()]
    return {
        "remote_addresses": described.remote_addresses or None,
        **picked(described, _NODE),
        "topics": topics or None,
        "out_of_date": described.out_of_date,
    }


def counters(channels: Sequence[ChannelStats]) -> dict[str, Any]:
    """By ``topic:channel:node``."""
    stats = {
        f"{channel.topic_name}:{channel.channel_name}:{channel.node}": picked(
            channel, "node topic_name channel_name message_count"
        )
        for channel in channels
    }
    return dict(sorted(stats.items()))


def _latency(latency: Latency, stats: TopicStats | ChannelStats, channel_name: str) -> dict[str, Any]:
    # nsqadmin: only a sum has the names of its topic and channel.
    total = bool(stats.nodes)
    percentiles = latency.percentiles
    return {
        "count": latency.count,
        "percentiles": None if percentiles is None else [_percentile(each, total) for each in percentiles],
        "topic": stats.topic_name if total else "",
        "channel": channel_name if total else "",
        "host": stats.node if total else "",
    }


def _percentile(percentile: Percentile, total: bool) -> dict[str, Any]:
    values = picked(percentile, "average count max min quantile")
    return values if total else {**values, "value": percentile.average}


def _list(stats: TopicStats | ChannelStats, values: list[Any]) -> list[Any] | None:
    """nsqadmin: an empty list is null in a sum, and [] on a node."""
    return values or (None if stats.nodes else [])
