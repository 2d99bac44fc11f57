"""Filters of a Spark SQL query over mode=log that limit which offsets are read.

Spark still applies every filter to the rows, so a filter only has to leave out offsets that no matching message has.
Filters that are not understood leave out nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark_nsq.log_plan import Range

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_SLACK: Final = timedelta(milliseconds=3)
"""nsqd finds times by ids, which have a resolution of about a millisecond."""
_LAST_MS: Final = 253_402_300_799_000
"""The last second that has a datetime."""
_EQUAL: Final = ("EqualTo", "EqualNullSafe")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the rows of a query have in common. None is no limit; offsets are from `first` up to, and without, `end`.

    Times are in milliseconds since 1970, from `since_ms` up to, and without, `until_ms`.
    """

    topics: frozenset[str] | None = None
    nsqds: frozenset[str] | None = None
    partitions: frozenset[str] | None = None
    first: int = 0
    end: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def narrowed(self, filters: Iterable[Any]) -> "Bounds":
        """With Spark's filters, all of which must hold."""
        bounds = self
        for each in filters:
            column: tuple[str, ...] = getattr(each, "attribute", ())
            if len(column) == 1 and (narrow := _COLUMNS.get(column[0])):
                bounds = narrow(bounds, type(each).__name__, getattr(each, "value", None))
        return bounds

    def of(self, work: Range) -> Range:
        """The part of a range that may have such messages; it may be empty."""
        named = ((self.topics, work.topic), (self.partitions, work.nsqd), (self.nsqds, work.tcp))
        if any(names is not None and name not in names for names, name in named):
            return replace(work, end=work.begin)
        end = work.end if self.end is None else min(work.end, self.end)
        begin = max(work.begin, self.first)
        return replace(work, begin=begin, end=max(begin, end))


def _narrow_names(field: str) -> Callable[[Bounds, str, Any], Bounds]:
    def narrow(bounds: Bounds, kind: str, value: Any) -> Bounds:
        names = value if kind == "In" else (value,) if kind in _EQUAL else None
        if names is None:
            return bounds
        known = getattr(bounds, field)
        narrowed: dict[str, Any] = {field: frozenset(names) if known is None else known & frozenset(names)}
        return replace(bounds, **narrowed)

    return narrow


def _narrow_offset(bounds: Bounds, kind: str, value: Any) -> Bounds:
    if not isinstance(value, int):
        return bounds
    first, end = {
        "EqualTo": (value, value + 1),
        "EqualNullSafe": (value, value + 1),
        "GreaterThan": (value + 1, None),
        "GreaterThanOrEqual": (value, None),
        "LessThan": (0, value),
        "LessThanOrEqual": (0, value + 1),
    }.get(kind, (0, None))
    if end is not None:
        end = end if bounds.end is None else min(end, bounds.end)
    return replace(bounds, first=max(first, bounds.first), end=bounds.end if end is None else end)


def _narrow_time(bounds: Bounds, kind: str, value: Any) -> Bounds:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return bounds
    if kind in (*_EQUAL, "GreaterThan", "GreaterThanOrEqual"):
        since = max((value - _EPOCH - _SLACK) // _MILLISECOND, 0)
        bounds = replace(bounds, since_ms=since if bounds.since_ms is None else max(since, bounds.since_ms))
    if kind in (*_EQUAL, "LessThan", "LessThanOrEqual"):
        until = min(max((value - _EPOCH) // _MILLISECOND + 1, 0), _LAST_MS)
        bounds = replace(bounds, until_ms=until if bounds.until_ms is None else min(until, bounds.until_ms))
    return bounds


_COLUMNS: Final[dict[str, Callable[[Bounds, str, Any], Bounds]]] = {
    "topic": _narrow_names("topics"),
    "nsqd": _narrow_names("nsqds"),
    "partition": _narrow_names("partitions"),
    "offset": _narrow_offset,
    "timestamp": _narrow_time,
}

NO_BOUNDS: Final = Bounds()
