"""/stats as text, in nsqd's columns: scripts parse them by position and pattern."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from nsq_compat.protocol.durations import format_duration
from nsq_compat.queue.stats import ChannelStats, ClientStats, LatencyStats, TopicStats

_SECOND_NS = 1_000_000_000


def format_time(unix_seconds: float) -> str:
    """As Go: RFC 3339 in whole seconds and the local zone, ``Z`` for UTC."""
    text = datetime.fromtimestamp(int(unix_seconds), UTC).astimezone().isoformat(timespec="seconds")
    return text[:-6] + "Z" if text.endswith("+00:00") else text


@dataclass(frozen=True, slots=True)
class StatsReport:
    """The contents of one /stats response, as JSON or text.

    `topics` is None if the requested topic does not exist, `memory` if it was not requested.
    """

    version: str
    version_line: str
    health: str
    started_at: float
    now_ns: int
    topics: Sequence[TopicStats] | None
    memory: Mapping[str, int] | None
    producers: Sequence[ClientStats]


def render(report: StatsReport, topics: Iterable[TopicStats]) -> Iterator[str]:
    """The lines, with line breaks. `topics` are the report's, rendered one by one."""
    for line in _lines(report, topics):
        yield f"{line}\n"


def _lines(report: StatsReport, topics: Iterable[TopicStats]) -> Iterator[str]:
    uptime_ns = max(0, report.now_ns - int(report.started_at * _SECOND_NS))
    yield report.version_line
    yield f"start_time {format_time(report.started_at)}"
    yield f"uptime {format_duration(uptime_ns)}"
    yield ""
    yield f"Health: {report.health}"
    if report.memory is not None:
        yield from ("", "Memory:")
        yield from (f"   {name:<25}\t{value}" for name, value in report.memory.items())
    yield from ("", "Topics:" if report.topics else "Topics: None")
    now = report.now_ns // _SECOND_NS
    for index, topic in enumerate(topics):
        if index:
            yield ""
        yield from _topic_lines(topic, now)
    yield from ("", "Producers:" if report.producers else "Producers: None")
    yield from (f"   {_client_text(producer, now)}" for producer in report.producers)


def _topic_lines(topic: TopicStats, now: int) -> Iterator[str]:
    yield (
        f"{'*P ' if topic.paused else '   '}[{topic.topic_name:<15}] depth: {topic.depth:<5} "
        f"be-depth: {topic.backend_depth:<5} msgs: {topic.message_count:<8} "
        f"e2e%: {_latency_text(topic.e2e_processing_latency)}"
    )
    for channel in topic.channels:
        yield from _channel_lines(channel, now)


def _channel_lines(channel: ChannelStats, now: int) -> Iterator[str]:
    yield (
        f"   {'*P ' if channel.paused else '   '}[{channel.channel_name:<25}] depth: {channel.depth:<5} "
        f"be-depth: {channel.backend_depth:<5} inflt: {channel.in_flight_count:<4} def: {channel.deferred_count:<4} "
        f"re-q: {channel.requeue_count:<5} timeout: {channel.timeout_count:<5} msgs: {channel.message_count:<8} "
        f"e2e%: {_latency_text(channel.e2e_processing_latency)}"
    )
    for client in channel.clients or ():
        yield f"        {_client_text(client, now)}"


def _client_text(client: ClientStats, now: int) -> str:
    # nsqd: a client that has published is shown as a producer, even in a list of consumers.
    name = f"{client.hostname}:{_port_of(client.remote_address)} {client.user_agent}"
    connected = format_duration((now - client.connect_ts) * _SECOND_NS)
    if client.pub_counts:
        total = sum(count for _, count in client.pub_counts)
        topics = ",".join(f"{topic}={count}" for topic, count in client.pub_counts)
        return f"[{client.version} {name:<21}] msgs: {total:<8} topics: {topics} connected: {connected}"
    return (
        f"[{client.version} {name:<21}] state: {client.state} inflt: {client.in_flight_count:<4} "
        f"rdy: {client.ready_count:<4} fin: {client.finish_count:<8} re-q: {client.requeue_count:<8} "
        f"msgs: {client.message_count:<8} connected: {connected}"
    )


def _port_of(address: str) -> str:
    return address.rpartition(":")[2] if ":" in address else ""


def _latency_text(latency: LatencyStats) -> str:
    return ", ".join(_human(value) for _, value in latency.percentiles or ())


def _human(ns: float) -> str:
    for unit, name in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if ns > unit:
            return f"{ns / unit:.1f}{name}"
    return f"{ns:.1f}ns"
