"""What tables of topics and channels show: one row each, from the newest snapshot and its history."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from flask import request, session

from nsq_compat.cluster.history import History
from nsq_compat.cluster.snapshot import Snapshot, take_snapshot
from nsq_compat.cluster.statistics import ChannelStats, TopicStats
from nsq_compat.web.admin.charts import Chart, chart, sparkline
from nsq_compat.web.admin.graphite import DEFAULT_TIMEFRAME, TIMEFRAMES
from nsq_compat.web.admin.paging import Page, page_of
from nsq_compat.web.admin.service import AdminService

_OLDEST_SHOWN: Final = 60.0
_SPANS: Final = (600.0, 1800.0, 3600.0)
_DAY: Final = 86400.0


def current_snapshot(service: AdminService) -> Snapshot:
    """The newest, or where nothing is sampled one taken now."""
    latest, now = service.history.latest, service.now()
    if latest is not None and now - latest.taken_at < _OLDEST_SHOWN:
        return latest
    return take_snapshot(service.cluster, now)


@dataclass(frozen=True, slots=True)
class Row:
    """A topic or channel; where a topic's channels count together, they are added up."""

    name: str
    stats: TopicStats | ChannelStats
    depth: int
    """Of a topic, its channels' included: what somebody still has to read."""
    in_flight: int
    deferred: int
    requeued: int
    timed_out: int
    consumers: int
    channels: int
    rate: float | None
    sparkline: str = ""
    to_empty: float | None = None


_COLUMNS: Final[Mapping[str, Callable[[Row], Any]]] = {
    "name": lambda row: row.name,
    "depth": lambda row: row.depth,
    "in_flight": lambda row: row.in_flight,
    "deferred": lambda row: row.deferred,
    "timed_out": lambda row: row.timed_out,
    "requeued": lambda row: row.requeued,
    "messages": lambda row: row.stats.message_count,
    "rate": lambda row: -1.0 if row.rate is None else row.rate,
    "channels": lambda row: row.channels,
    "consumers": lambda row: row.consumers,
}


def topic_row(topic: TopicStats, history: History) -> Row:
    channels = topic.channels
    return Row(
        name=topic.topic_name,
        stats=topic,
        depth=topic.depth + sum(channel.depth for channel in channels),
        in_flight=sum(channel.in_flight_count for channel in channels),
        deferred=sum(channel.deferred_count for channel in channels),
        requeued=sum(channel.requeue_count for channel in channels),
        timed_out=sum(channel.timeout_count for channel in channels),
        consumers=sum(channel.client_count for channel in channels),
        channels=len(channels),
        rate=history.rate(topic.topic_name),
    )


def channel_row(channel: ChannelStats, history: History) -> Row:
    topic, name = channel.topic_name, channel.channel_name
    return Row(
        name=name,
        stats=channel,
        depth=channel.depth,
        in_flight=channel.in_flight_count,
        deferred=channel.deferred_count,
        requeued=channel.requeue_count,
        timed_out=channel.timeout_count,
        consumers=channel.client_count,
        channels=0,
        rate=history.rate(topic, name),
        to_empty=history.seconds_to_empty(topic, name, channel.depth),
    )


def topic_page(service: AdminService, snapshot: Snapshot) -> Page[Row]:
    now, history = service.now(), service.history
    rows = [topic_row(topic, history) for topic in snapshot.topics]
    page = page_of(rows, request.args, _COLUMNS, lambda row: row.name)
    # Lines are drawn for what is shown only: there may be thousands.
    shown = [replace(row, sparkline=sparkline(_rates(history, row.name, now))) for row in page.rows]
    return replace(page, rows=shown)


def channel_page(service: AdminService, topic: TopicStats) -> Page[Row]:
    now, history = service.now(), service.history
    page = page_of(
        [channel_row(channel, history) for channel in topic.channels], request.args, _COLUMNS, lambda row: row.name
    )
    depths = (history.depths(topic.topic_name, row.name, now) for row in page.rows)
    return replace(
        page, rows=[replace(row, sparkline=sparkline(each)) for row, each in zip(page.rows, depths, strict=True)]
    )


def charts_of(service: AdminService, topic: str, channel: str = "") -> Mapping[str, Chart]:
    """What waits and the rate, over the last hour (as much of it as is known) or (``?span=24h``) day."""
    now, day = service.now(), wants_day()
    points = service.history.points(topic, channel, now, day=day)
    age = now - points[0].at if points else 0.0
    span = _DAY if day else next((span for span in _SPANS if age <= span), _SPANS[-1])
    return {
        "Depth" if channel else "Waiting": chart([(point.at, point.depth) for point in points], now, span),
        "Messages a second": chart([(point.at, point.rate) for point in points], now, span),
    }


def wants_day() -> bool:
    return request.args.get("span") == "24h"


def timeframe() -> str:
    """Of Graphite's pictures: as chosen (``?t=``), now or before."""
    chosen = request.args.get("t", "")
    if chosen in TIMEFRAMES:
        session["timeframe"] = chosen
    kept = str(session.get("timeframe", DEFAULT_TIMEFRAME))
    return kept if kept in TIMEFRAMES else DEFAULT_TIMEFRAME


def _rates(history: History, topic: str, now: float) -> Iterable[float]:
    return [point.rate for point in history.points(topic, "", now)]
