"""GET /ping, /info and /stats, as JSON and as text. Scripts parse nsqd's columns by position and pattern."""

import gc
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from socket import gethostname
from typing import Any, Final, TypeVar

from nsq_compat import NSQ_VERSION, build_info, version_line
from nsq_compat.protocol.durations import SECOND, format_duration
from nsq_compat.protocol.errors import one_line
from nsq_compat.protocol.go_json import Encoded, dumps
from nsq_compat.queue.broker import snapshot
from nsq_compat.queue.values import ChannelStats, ClientStats, LatencyStats, TopicStats
from nsq_compat.session.http_message import TEXT, Request, Response
from nsq_compat.web.application import (
    JSON,
    cooperatively,
    json_response,
    long_response,
    parse_boolean,
    parse_query,
    picked,
    plain,
)
from nsq_compat.web.mirroring import is_used
from nsq_compat.web.nsqd_service import NsqdService

T = TypeVar("T")

HEALTHY: Final = "OK"
MAX_TOPICS_AT_ONCE: Final = 12
"""Ten thousand take half a second."""
_CLIENTS_AT_ONCE: Final = 50
"""A thousand take a tenth of a second, and twice that if their names need escapes."""
_CHANNELS_AT_ONCE: Final = 200
"""Ten thousand take a fifth of a second."""
_COUNTS_OF_CLIENT: Final = 64
"""Topics to which a client has published that take as long as a client."""
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_MAX_PAUSES: Final = 1000

# The keys of nsqd's JSON (`picked`).
_INFO_KEYS: Final = (
    "max_heartbeat_interval max_output_buffer_size max_output_buffer_timeout max_deflate_level topology_zone "
    "topology_region"
)
_TOPIC_KEYS: Final = (
    "topic_name channels depth backend_depth message_count message_bytes dropped_count? rejected_count? "
    "duplicate_count? forgotten_id_count? damaged_records? paused e2e_processing_latency"
)
_CHANNEL_KEYS: Final = (
    "channel_name depth backend_depth in_flight_count deferred_count message_count zone_local_msg_count? "
    "region_local_msg_count? global_msg_count? requeue_count timeout_count dropped_count? dead_letter_count? "
    "expired_count? rejected_count? client_count clients paused policy? e2e_processing_latency"
)
_CLIENT_KEYS: Final = (
    "client_id hostname version remote_address state ready_count in_flight_count message_count zone_local_msg_count? "
    "region_local_msg_count? global_msg_count? finish_count requeue_count connect_ts sample_rate deflate snappy "
    "user_agent authed? auth_identity? auth_identity_url? topology_zone topology_region pub_counts? tls "
    "tls_cipher_suite tls_version tls_negotiated_protocol tls_negotiated_protocol_is_mutual active?"
)


class Stats:
    """With `hides_others`, a topic is shown without what clients publish to others: tokens may be limited to topics."""

    def __init__(self, service: NsqdService, *, hides_others: bool = False) -> None:
        self._service = service
        self._hides_others = hides_others

    def ping(self, request: Request) -> Response:
        health = self._service.health()
        return plain(health, 200 if health == HEALTHY else 500)

    def info(self, request: Request) -> Response:
        service, options = self._service, self._service.options
        return json_response(
            {
                "version": NSQ_VERSION,
                "broadcast_address": options.broadcast_address,
                "hostname": gethostname(),
                "http_port": service.http_port,
                "tcp_port": service.tcp_port,
                "start_time": int(service.started_at),
                **picked(options, _INFO_KEYS),
                "nsq_compat": build_info(),
            }
        )

    def stats(self, request: Request) -> Response:
        service, parameters = self._service, parse_query(request.query)
        topic = parameters.get("topic", "")
        include_clients = _default_true(parameters, "include_clients")
        topics: Iterator[TopicStats] | None = None
        producers: Sequence[ClientStats] = ()
        # nsqd: for a topic that does not exist, producers are left out too.
        if not topic or topic in service.broker.topics:
            channel = parameters.get("channel", "")
            found = snapshot(service.broker, service.now(), topic, channel, include_clients, in_steps)
            if topic and include_clients and self._hides_others:
                found = map(_without_others, found)
            topics = cooperatively(found, MAX_TOPICS_AT_ONCE)
            if include_clients:
                connected = cooperatively(service.producers(), _CLIENTS_AT_ONCE, _weight)
                producers = [*(self._of_topic(connected, topic) if topic else connected)]
        memory = service.memory() if _default_true(parameters, "include_mem") else {}
        if parameters.get("format") == "json":
            return long_response(_json_pieces(service, topics, memory, producers), JSON)
        lines = _lines(service, topics or iter(()), memory, producers)
        return long_response((f"{line}\n".encode("utf-8", errors="surrogateescape") for line in lines), TEXT)

    def _of_topic(self, producers: Iterable[ClientStats], topic: str) -> Iterator[ClientStats]:
        # nsqd: the list has all producers, with the counts of this topic only (docs/differences.md: stats-producers).
        for producer in producers:
            counted = _counted(producer, topic)
            if counted.pub_counts or not self._hides_others:
                yield counted


def _without_others(topic: TopicStats) -> TopicStats:
    """Without what its consumers have published to other topics."""
    name = topic.topic_name
    channels = [
        replace(each, clients=tuple(_counted(client, name) for client in each.clients or ())) for each in topic.channels
    ]
    return replace(topic, channels=tuple(channels))


def _counted(client: ClientStats, topic: str) -> ClientStats:
    """With the counts of this topic only."""
    if not client.pub_counts:
        return client
    return replace(client, pub_counts=tuple(entry for entry in client.pub_counts if entry[0] == topic))


def in_steps(channels: Sequence[T]) -> Iterable[T]:
    """The same channels; for many of them, with other work in between."""
    return channels if len(channels) <= _CHANNELS_AT_ONCE else cooperatively(channels, _CHANNELS_AT_ONCE)


def _default_true(parameters: Mapping[str, str], key: str) -> bool:
    return parse_boolean(parameters.get(key, "")) is not False


def _weight(client: ClientStats) -> int:
    """How many clients it counts for in a step."""
    return 1 + len(client.pub_counts) // _COUNTS_OF_CLIENT


def _is_one_step(clients: Sequence[ClientStats]) -> bool:
    return sum(map(_weight, clients)) <= _CLIENTS_AT_ONCE


# --- JSON -------------------------------------------------------------------------------------------------------------


def _json_pieces(
    service: NsqdService,
    topics: Iterator[TopicStats] | None,
    memory: Mapping[str, int],
    producers: Sequence[ClientStats],
) -> Iterator[bytes]:
    head = dumps({"version": NSQ_VERSION, "health": service.health(), "start_time": int(service.started_at)})
    yield f'{head[:-1]},"topics":{"null" if topics is None else "["}'.encode()
    for index, topic in enumerate(topics or ()):
        yield b"%s%s" % (b"," if index else b"", dumps(_topic_json(topic)).encode())
    requested = {"memory": dict(memory)} if memory else {}
    free, size = service.disk_space()
    lag = round(service.loop_lag, 3)
    ours = {**build_info(), "disk_free_bytes": free, "disk_bytes": size, "event_loop_lag_seconds": lag}
    if is_used(mirroring := service.mirroring()):
        ours["mirroring"] = mirroring
    tail = dumps({**requested, "producers": _clients_json(producers) or None, "nsq_compat": ours})
    yield f"{'' if topics is None else ']'},{tail[1:]}".encode()


def _topic_json(topic: TopicStats) -> dict[str, Any]:
    value = picked(topic, _TOPIC_KEYS)
    if topic.dedup_window:
        value["dedup_window"] = format_duration(int(topic.dedup_window * SECOND))
    value["channels"] = _channels_json(topic.channels)
    value["e2e_processing_latency"] = _latency_json(topic.e2e_processing_latency)
    return value


def _channels_json(channels: Sequence[ChannelStats]) -> Encoded | list[dict[str, Any]]:
    if len(channels) <= _CHANNELS_AT_ONCE:
        return [_channel_json(channel) for channel in channels]
    encoded = (dumps(_channel_json(channel)) for channel in cooperatively(channels, _CHANNELS_AT_ONCE))
    return Encoded(f"[{','.join(encoded)}]")


def _channel_json(channel: ChannelStats) -> dict[str, Any]:
    value = picked(channel, _CHANNEL_KEYS)
    value["clients"] = None if channel.clients is None else _clients_json(channel.clients)
    value["e2e_processing_latency"] = _latency_json(channel.e2e_processing_latency)
    return value


def _clients_json(clients: Sequence[ClientStats]) -> Encoded | list[dict[str, Any]]:
    if _is_one_step(clients):
        return [_client_json(client) for client in clients]
    encoded = (dumps(_client_json(client)) for client in cooperatively(clients, _CLIENTS_AT_ONCE, _weight))
    return Encoded(f"[{','.join(encoded)}]")


def _client_json(client: ClientStats) -> dict[str, Any]:
    value = picked(client, _CLIENT_KEYS)
    if client.pub_counts:
        value["pub_counts"] = [{"topic": topic, "count": count} for topic, count in client.pub_counts]
    return value


def _latency_json(latency: LatencyStats) -> dict[str, Any]:
    percentiles = latency.percentiles
    pairs = None if percentiles is None else [{"quantile": quantile, "value": value} for quantile, value in percentiles]
    return {"count": latency.count, "percentiles": pairs}


# --- Text -------------------------------------------------------------------------------------------------------------


def _lines(
    service: NsqdService, topics: Iterator[TopicStats], memory: Mapping[str, int], producers: Sequence[ClientStats]
) -> Iterator[str]:
    """Without line breaks."""
    now_ns = service.now_ns()
    yield version_line("nsqd")
    yield f"start_time {_time_text(service.started_at)}"
    yield f"uptime {format_duration(max(0, now_ns - int(service.started_at * SECOND)))}"
    yield ""
    yield f"Health: {service.health()}"
    if memory:
        yield from ("", "Memory:")
        yield from (f"   {name:<25}\t{value}" for name, value in memory.items())
    now = now_ns // SECOND
    first = next(topics, None)
    yield from ("", "Topics: None" if first is None else "Topics:")
    if first is not None:
        yield from _topic_lines(first, now)
    for topic in topics:
        yield ""
        yield from _topic_lines(topic, now)
    yield from ("", "Producers:" if producers else "Producers: None")
    yield from (f"   {text}" for text in _client_texts(producers, now))


def _topic_lines(topic: TopicStats, now: int) -> Iterator[str]:
    yield (
        f"{'*P ' if topic.paused else '   '}[{topic.topic_name:<15}] depth: {topic.depth:<5} "
        f"be-depth: {topic.backend_depth:<5} msgs: {topic.message_count:<8} "
        f"e2e%: {_latency_text(topic.e2e_processing_latency)}"
    )
    for channel in in_steps(topic.channels):
        yield from _channel_lines(channel, now)


def _channel_lines(channel: ChannelStats, now: int) -> Iterator[str]:
    yield (
        f"   {'*P ' if channel.paused else '   '}[{channel.channel_name:<25}] depth: {channel.depth:<5} "
        f"be-depth: {channel.backend_depth:<5} inflt: {channel.in_flight_count:<4} def: {channel.deferred_count:<4} "
        f"re-q: {channel.requeue_count:<5} timeout: {channel.timeout_count:<5} msgs: {channel.message_count:<8} "
        f"e2e%: {_latency_text(channel.e2e_processing_latency)}"
    )
    yield from (f"        {text}" for text in _client_texts(channel.clients or (), now))


def _client_texts(clients: Sequence[ClientStats], now: int) -> Iterator[str]:
    for client in clients if _is_one_step(clients) else cooperatively(clients, _CLIENTS_AT_ONCE, _weight):
        yield _client_text(client, now)


def _client_text(client: ClientStats, now: int) -> str:
    # nsqd: a client that has published is shown as a producer, even in a list of consumers.
    _, colon, port = client.remote_address.rpartition(":")
    name = one_line(f"{client.hostname}:{port if colon else ''} {client.user_agent}")
    connected = format_duration((now - client.connect_ts) * SECOND)
    if client.pub_counts:
        total = sum(count for _, count in client.pub_counts)
        topics = ",".join(f"{topic}={count}" for topic, count in client.pub_counts)
        return f"[{client.version} {name:<21}] msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"[{client.version} {name:<21}] state: {client.state} inflt: {client.in_flight_count:<4} "
        f"rdy: {client.ready_count:<4} fin: {client.finish_count:<8} re-q: {client.requeue_count:<8} "
        f"msgs: {client.message_count:<8} connected: {connected}{' active' if client.active else ''}"
    )


def _latency_text(latency: LatencyStats) -> str:
    return ", ".join(_human(value) for _, value in latency.percentiles or ())


def _human(ns: float) -> str:
    for unit, name in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if ns > unit:
            return f"{ns / unit:.1f}{name}"
    return f"{ns:.1f}ns"


def _time_text(unix_seconds: float) -> str:
    """As Go: RFC 3339 in whole seconds and the local zone, ``Z`` for UTC."""
    from datetime import UTC, datetime  # 0.4 MB

    text = datetime.fromtimestamp(int(unix_seconds), UTC).astimezone().isoformat(timespec="seconds")
    return text[:-6] + "Z" if text.endswith("+00:00") else text


# --- Memory -----------------------------------------------------------------------------------------------------------


class MemoryStats:
    """The memory section of /stats, as far as Python has an equivalent (docs/differences.md).

    Observes the garbage collector from its construction on. One per process.
    """

    def __init__(self) -> None:
        self._pauses_us: deque[float] = deque(maxlen=_MAX_PAUSES)
        self._began = 0.0
        self._pages = (0, 0)  # total and resident, when last read
        gc.callbacks.append(self._on_collection)

    def stats(self) -> dict[str, int]:
        """By NSQ's names and in its order; sizes in bytes, pauses in microseconds."""
        with suppress(OSError):  # without a free descriptor the values of the last call are used
            with open("/proc/self/statm", encoding="ascii") as file:
                size, resident = file.read().split()[:2]
            self._pages = int(size), int(resident)
        total_bytes, resident_bytes = (pages * _PAGE for pages in self._pages)
        pauses = sorted(self._pauses_us)
        return {
            "heap_objects": sys.getallocatedblocks(),
            "heap_idle_bytes": total_bytes - resident_bytes,
            "heap_in_use_bytes": resident_bytes,
            "heap_released_bytes": 0,
            "gc_pause_usec_100": _percentile(pauses, 100),
            "gc_pause_usec_99": _percentile(pauses, 99),
            "gc_pause_usec_95": _percentile(pauses, 95),
            "next_gc_bytes": 0,
            "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
        }

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self._pauses_us.append((time.perf_counter() - self._began) * 1e6)


def _percentile(values: list[float], percent: int) -> int:
    return int(values[(len(values) - 1) * percent // 100]) if values else 0
