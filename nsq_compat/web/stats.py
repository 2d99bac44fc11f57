"""GET /ping, /info and /stats, and /stats as JSON."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from nsq_compat.protocol.go_json import dumps
from nsq_compat.queue.broker import snapshot
from nsq_compat.queue.stats import ChannelStats, ClientStats, LatencyStats, TopicStats
from nsq_compat.session.http_message import Request, Response
from nsq_compat.web import responses
from nsq_compat.web.nsqd_service import NsqdService
from nsq_compat.web.query import parse_boolean, parse_query
from nsq_compat.web.responses import picked
from nsq_compat.web.stats_text import StatsReport, render

HEALTHY: Final = "OK"
_MAX_TOPICS_AT_ONCE: Final = 12

# The keys of nsqd's JSON (`responses.picked`).
_TOPIC_KEYS: Final = (
    "topic_name channels depth backend_depth message_count message_bytes dropped_count? rejected_count? "
    "damaged_records? paused e2e_processing_latency"
)
_CHANNEL_KEYS: Final = (
    "channel_name depth backend_depth in_flight_count deferred_count message_count zone_local_msg_count? "
    "region_local_msg_count? global_msg_count? requeue_count timeout_count dropped_count? dead_letter_count? "
    "rejected_count? client_count clients paused policy? e2e_processing_latency"
)
_CLIENT_KEYS: Final = (
    "client_id hostname version remote_address state ready_count in_flight_count message_count zone_local_msg_count? "
    "region_local_msg_count? global_msg_count? finish_count requeue_count connect_ts sample_rate deflate snappy "
    "user_agent authed? auth_identity? auth_identity_url? topology_zone topology_region pub_counts? tls "
    "tls_cipher_suite tls_version tls_negotiated_protocol tls_negotiated_protocol_is_mutual"
)


class Stats:
    def __init__(self, service: NsqdService) -> None:
        self._service = service

    def ping(self, request: Request) -> Response:
        health = self._service.health()
        return responses.plain(health, 200 if health == HEALTHY else 500)

    def info(self, request: Request) -> Response:
        service, options = self._service, self._service.options
        return responses.json(
            {
                "version": service.version,
                "broadcast_address": options.broadcast_address,
                "hostname": service.hostname,
                "http_port": service.http_port,
                "tcp_port": service.tcp_port,
                "start_time": int(service.started_at),
                "max_heartbeat_interval": options.max_heartbeat_interval,
                "max_output_buffer_size": options.max_output_buffer_size,
                "max_output_buffer_timeout": options.max_output_buffer_timeout,
                "max_deflate_level": options.max_deflate_level,
                "topology_zone": options.topology_zone,
                "topology_region": options.topology_region,
            }
        )

    def stats(self, request: Request) -> Response:
        parameters = parse_query(request.query)
        report = self._report(
            parameters.get("topic", ""),
            parameters.get("channel", ""),
            include_clients=_default_true(parameters, "include_clients"),
            include_memory=_default_true(parameters, "include_mem"),
        )
        topics = cooperatively(report.topics or (), self._service.let_others_run)
        if parameters.get("format") == "json":
            return responses.long_json(_report_json(report, topics))
        return responses.long_text(line.encode("utf-8", errors="surrogateescape") for line in render(report, topics))

    def _report(self, topic: str, channel: str, *, include_clients: bool, include_memory: bool) -> StatsReport:
        service = self._service
        # nsqd: for a topic that does not exist, producers are left out too.
        known = not topic or topic in service.broker.topics
        topics = None
        if known:
            found = snapshot(service.broker, service.now(), topic, channel, include_clients)
            topics = list(cooperatively(found, service.let_others_run))
        return StatsReport(
            version=service.version,
            version_line=service.version_line,
            health=service.health(),
            started_at=service.started_at,
            now_ns=service.now_ns(),
            topics=topics,
            memory=service.memory() if include_memory else None,
            producers=_of_topic(service.producers(), topic) if known and include_clients else (),
        )


def cooperatively(topics: Iterable[TopicStats], let_others_run: Callable[[], None]) -> Iterator[TopicStats]:
    """The same topics, with other work in between: ten thousand topics take half a second."""
    for index, topic in enumerate(topics):
        if not index % _MAX_TOPICS_AT_ONCE:
            let_others_run()
        yield topic


def _default_true(parameters: Mapping[str, str], key: str) -> bool:
    return parse_boolean(parameters.get(key, "")) is not False


def _of_topic(producers: Sequence[ClientStats], topic: str) -> Sequence[ClientStats]:
    """nsqd: the list has all producers, with the counts of this topic only."""
    if not topic:
        return producers
    return [
        replace(producer, pub_counts=tuple(entry for entry in producer.pub_counts if entry[0] == topic))
        for producer in producers
    ]


# --- JSON -------------------------------------------------------------------------------------------------------------


def _report_json(report: StatsReport, topics: Iterable[TopicStats]) -> Iterator[bytes]:
    """Pieces of JSON. `topics` are the report's, encoded one by one."""
    head = dumps({"version": report.version, "health": report.health, "start_time": int(report.started_at)})
    yield f'{head[:-1]},"topics":{"null" if report.topics is None else "["}'.encode()
    for index, topic in enumerate(topics):
        yield b"%s%s" % (b"," if index else b"", dumps(_topic_json(topic)).encode())
    memory = {} if report.memory is None else {"memory": dict(report.memory)}
    tail = dumps({**memory, "producers": [_client_json(producer) for producer in report.producers] or None})
    yield f"{'' if report.topics is None else ']'},{tail[1:]}".encode()


def _topic_json(topic: TopicStats) -> dict[str, Any]:
    value = picked(topic, _TOPIC_KEYS)
    value["channels"] = [_channel_json(channel) for channel in topic.channels]
    value["e2e_processing_latency"] = _latency_json(topic.e2e_processing_latency)
    return value


def _channel_json(channel: ChannelStats) -> dict[str, Any]:
    value = picked(channel, _CHANNEL_KEYS)
    value["clients"] = None if channel.clients is None else [_client_json(client) for client in channel.clients]
    value["e2e_processing_latency"] = _latency_json(channel.e2e_processing_latency)
    return value


def _client_json(client: ClientStats) -> dict[str, Any]:
    value = picked(client, _CLIENT_KEYS)
    if client.pub_counts:
        value["pub_counts"] = [{"topic": topic, "count": count} for topic, count in client.pub_counts]
    return value


def _latency_json(latency: LatencyStats) -> dict[str, Any]:
    percentiles = latency.percentiles
    pairs = None if percentiles is None else [{"quantile": quantile, "value": value} for quantile, value in percentiles]
    return {"count": latency.count, "percentiles": pairs}
