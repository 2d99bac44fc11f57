"""Tables of the pages, searched, sorted and paged on the server; rows and charts of topics and channels."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from flask import request, session, url_for

from nsq_compat.cluster.history import History
from nsq_compat.cluster.snapshot import Snapshot, take_snapshot
from nsq_compat.cluster.stats import ChannelStats, TopicStats
from nsq_compat.web.admin.charts import Chart, chart, sparkline
from nsq_compat.web.admin.graphite import DEFAULT_TIMEFRAME, TIMEFRAMES
from nsq_compat.web.admin.service import AdminService

T = TypeVar("T")

ROWS_PER_PAGE: Final = 100
_MAX_SNAPSHOT_AGE: Final = 60.0
_SPANS: Final = (600.0, 1800.0, 3600.0)
_DAY: Final = 86400.0
_PARAMETERS: Final = ("q", "sort", "desc", "page", "nodes", "clients", "span", "limit")
"""Parameters of the current page that its links keep."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    rows: Sequence[T]
    found: int
    """Rows on all pages."""
    number: int
    count: int
    parameter: str = "page"
    """The parameter of the URL with the number of the page."""
    search: str = ""
    sort: str = "name"
    descending: bool = False

    def sorted_by(self, column: str) -> dict[str, Any]:
        """Parameters of a column header's link. Numbers are sorted in descending order first; a click reverses."""
        descending = not self.descending if column == self.sort else column != "name"
        return {"q": self.search or None, "sort": column, "desc": int(descending) or None, "page": None}

    def order(self, column: str) -> str:
        """The value of aria-sort."""
        if column != self.sort:
            return "none"
        return "descending" if self.descending else "ascending"


def part_of(rows: Sequence[T], arguments: Mapping[str, str], parameter: str) -> Page[T]:
    """A page of a table without search and sorting."""
    count = max(1, -(-len(rows) // ROWS_PER_PAGE))
    wanted = arguments.get(parameter, "")
    valid = wanted.isascii() and wanted.isdigit() and len(wanted) < 9
    number = min(max(1, int(wanted) if valid else 1), count)
    return Page(rows[(number - 1) * ROWS_PER_PAGE : number * ROWS_PER_PAGE], len(rows), number, count, parameter)


def page_of(
    rows: Sequence[T], arguments: Mapping[str, str], columns: Mapping[str, Callable[[T], Any]], name: Callable[[T], str]
) -> Page[T]:
    """A page for any arguments, also invalid ones. `columns` are the sort keys, among them "name"."""
    search = arguments.get("q", "").strip()[:100]
    sort = arguments.get("sort", "name")
    sort = sort if sort in columns else "name"
    descending = arguments.get("desc") == "1"
    found = [row for row in rows if search.lower() in name(row).lower()]
    found.sort(key=name)
    found.sort(key=columns[sort], reverse=descending)
    return replace(part_of(found, arguments, "page"), search=search, sort=sort, descending=descending)


def address(**changed: Any) -> str:
    """The URL of the current page with changed parameters. None removes a parameter."""
    # Other parameters of the request are dropped: url_for gives some names a meaning of their own.
    kept = {name: value for name in _PARAMETERS if (value := request.args.get(name))}
    assert request.endpoint is not None, "a page has an endpoint"
    return url_for(request.endpoint, **(request.view_args or {}), **{**kept, **changed})


# --- Topics and channels ----------------------------------------------------------------------------------------------


def current_snapshot(service: AdminService) -> Snapshot:
    """The newest sample, or a new snapshot if there is no recent sample."""
    latest, now = service.history.latest, service.now()
    if latest is not None and now - latest.taken_at < _MAX_SNAPSHOT_AGE:
        return latest
    return take_snapshot(service.cluster, now)


@dataclass(frozen=True, slots=True)
class Row:
    """A topic with the sums of its channels, or a channel."""

    name: str
    stats: TopicStats | ChannelStats
    depth: int
    """For a topic, including its channels."""
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
    **{
        name: attrgetter(name)
        for name in ("name", "depth", "in_flight", "deferred", "timed_out", "requeued", "channels", "consumers")
    },
    "messages": attrgetter("stats.message_count"),
    "rate": lambda row: -1.0 if row.rate is None else row.rate,
}


def topic_row(topic: TopicStats, history: History) -> Row:
    channels = topic.channels
    return Row(
        name=topic.topic_name,
        stats=topic,
        depth=topic.waiting,
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
    # Only for the rows of this page, because there may be thousands.
    rates = ([point.rate for point in history.points(row.name, "", now)] for row in page.rows)
    return _with_sparklines(page, rates)


def channel_page(service: AdminService, topic: TopicStats) -> Page[Row]:
    now, history = service.now(), service.history
    page = page_of(
        [channel_row(channel, history) for channel in topic.channels], request.args, _COLUMNS, lambda row: row.name
    )
    depths = ([point.depth for point in history.points(topic.topic_name, row.name, now)] for row in page.rows)
    return _with_sparklines(page, depths)


def _with_sparklines(page: Page[Row], values: Iterable[Sequence[float]]) -> Page[Row]:
    rows = [replace(row, sparkline=sparkline(each)) for row, each in zip(page.rows, values, strict=True)]
    return replace(page, rows=rows)


def charts_of(service: AdminService, topic: str, channel: str = "") -> Mapping[str, Chart]:
    """Depth and rate over the last day (``?span=24h``), or over the known part of the last hour."""
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
    """The timeframe of Graphite's graphs, as chosen with ``?t=`` in this request or an earlier one."""
    chosen = request.args.get("t", "")
    if chosen in TIMEFRAMES:
        session["timeframe"] = chosen
    kept = str(session.get("timeframe", DEFAULT_TIMEFRAME))
    return kept if kept in TIMEFRAMES else DEFAULT_TIMEFRAME
