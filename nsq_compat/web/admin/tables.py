"""Tables of the pages, searched, sorted and paged on the server; rows and charts of topics and channels."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from flask import request, session, url_for

from nsq_compat.cluster.history import Point
from nsq_compat.cluster.stats import ChannelStats, Key, TopicStats
from nsq_compat.web.admin.access import service
from nsq_compat.web.admin.formatting import Chart, chart, scale_of, span_of, sparkline
from nsq_compat.web.admin.graphite import DEFAULT_TIMEFRAME, TIMEFRAMES
from nsq_compat.web.application import cooperatively

T = TypeVar("T")

ROWS_PER_PAGE: Final = 100
_ROWS_AT_ONCE: Final = 1000
"""Rows of all pages, at about 5 us each."""
_HOUR: Final = 3600.0
_DAY: Final = 86400.0
_PARAMETERS: Final = (
    *("q", "sort", "desc", "page", "nodes", "clients", "span", "peaks"),
    *("limit", "find", "form", "all", "node", "at", "to", "drop_pending"),
)
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
    span: float = 0.0
    """Seconds that the sparklines of all rows show."""
    scale: float = 0.0
    """The value at the upper edge of all sparklines."""

    def sorted_by(self, column: str) -> dict[str, Any]:
        """Parameters of a column header's link. Numbers are sorted in descending order first; a click reverses."""
        descending = not self.descending if column == self.sort else column != "name"
        return {"q": self.search or None, "sort": column, "desc": int(descending) or None, "page": None}

    def order(self, column: str) -> str:
        """The value of aria-sort."""
        order = "descending" if self.descending else "ascending"
        return order if column == self.sort else "none"


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
    return url_for(request.endpoint, **{**kept, **changed, **(request.view_args or {})})


# --- Topics and channels ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    stats: TopicStats | ChannelStats
    rate: float | None
    to_empty: float | None = None
    """Seconds, for a channel with a shrinking depth."""
    sparkline: tuple[str, ...] = ()


_COLUMNS: Final[Mapping[str, Callable[[Row], Any]]] = {
    "name": attrgetter("stats.name"),
    "depth": attrgetter("stats.waiting"),
    "messages": attrgetter("stats.message_count"),
    "rate": lambda row: -1.0 if row.rate is None else row.rate,
    "channels": lambda row: len(row.stats.channels) if isinstance(row.stats, TopicStats) else 0,
    "in_flight": lambda row: row.stats.total("in_flight_count"),
    "deferred": lambda row: row.stats.total("deferred_count"),
    "timed_out": lambda row: row.stats.total("timeout_count"),
    "requeued": lambda row: row.stats.total("requeue_count"),
    "consumers": lambda row: row.stats.total("client_count"),
}


def row_of(stats: TopicStats | ChannelStats) -> Row:
    history = service().history
    to_empty = history.seconds_to_empty(stats.key, stats.depth) if isinstance(stats, ChannelStats) else None
    return Row(stats, history.rate(stats.key), to_empty)


def rows_page(found: Sequence[TopicStats] | Sequence[ChannelStats]) -> Page[Row]:
    """A page of topics with their rates as sparklines, or of channels with their depths."""
    rate = service().history.rate
    everything: Sequence[TopicStats | ChannelStats] = found
    unsorted = [Row(stats, rate(stats.key)) for stats in cooperatively(everything, _ROWS_AT_ONCE)]
    page = page_of(unsorted, request.args, _COLUMNS, attrgetter("stats.name"))
    # Only for the rows of this page, because there may be thousands.
    now, known = service().now(), [_values(row.stats) for row in page.rows]
    span = max((span_of(points, now, _HOUR) for points in known), default=0.0)
    scale = scale_of(value for points in known for _, value in points)
    lines = [sparkline(points, now, span, scale) for points in known]
    rows = [replace(row_of(row.stats), sparkline=line) for row, line in zip(page.rows, lines, strict=True)]
    return replace(page, rows=rows, span=span, scale=scale)


def _values(stats: TopicStats | ChannelStats) -> list[tuple[float, float]]:
    points = service().history.points(stats.key, service().now())
    return [(point.at, point.rate if isinstance(stats, TopicStats) else point.depth) for point in points]


def charts_of(key: Key, waiting: int | None, rate: float | None, at: float) -> Mapping[str, Chart]:
    """Depth and rate over the known part of the last day (``?span=24h``) or hour; peaks whole with ``?peaks=whole``.

    They end with the figures that the page shows elsewhere, which are from the time `at` and may be newer than the last
    sample. None is unknown, and shown as a gap.
    """
    now, day = service().now(), wants_day()
    known = [point for point in service().history.points(key, now, day=day) if point.at < at]
    points = [*known, Point(at, *(math.nan if value is None else value for value in (waiting, rate)))]
    depths, rates = ([(point.at, getattr(point, name)) for point in points] for name in ("depth", "rate"))
    span = span_of(depths, now, _DAY if day else _HOUR)
    whole = wants_whole_peaks()
    return {
        "Waiting": replace(chart(depths, now, span, whole=whole), latest=waiting),
        "Rate /s": replace(chart(rates, now, span, whole=whole), latest=rate),
    }


def wants_whole_peaks() -> bool:
    return request.args.get("peaks") == "whole"


def wants_day() -> bool:
    return request.args.get("span") == "24h"


def timeframe() -> str:
    """The timeframe of Graphite's graphs, as chosen with ``?t=`` in this request or an earlier one."""
    chosen = request.args.get("t", "")
    if chosen in TIMEFRAMES:
        session["timeframe"] = chosen
    kept = str(session.get("timeframe", DEFAULT_TIMEFRAME))
    return kept if kept in TIMEFRAMES else DEFAULT_TIMEFRAME
