"""Numbers, durations and times as text: the filters of the templates."""

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

_UNITS: Final = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


def commas(value: float) -> str:
    """``12,304``."""
    return f"{value:,.0f}"


def per_second(rate: float | None) -> str:
    """A rate; a dash if it is unknown."""
    if rate is None or math.isnan(rate):
        return "\u2013"
    return f"{rate:,.0f}" if rate >= 100 or rate == 0 else f"{rate:.1f}"


def short(value: float) -> str:
    """For axes: ``20``, ``2.5k``, ``1M``."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def nanoseconds(ns: float) -> str:
    """``12us``, ``189.11ms``, ``3.45s``, as NSQ's nsqadmin; from a minute on as `long_duration`."""
    if ns >= 60e9:
        return long_duration(ns / 1e9)
    for unit, name in _UNITS:
        if ns >= unit:
            return f"{ns / unit:.2f}".rstrip("0").rstrip(".") + name
    return f"{ns:.0f}ns"


def long_duration(seconds: float) -> str:
    """The two largest units: ``3d 4h``, ``5m 12s``."""
    left = max(0, round(seconds))
    parts = []
    for size, name in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{name}")
    return " ".join(parts[:2]) or "0s"


def percentile_name(quantile: float) -> str:
    """``99th``."""
    number = math.floor(quantile * 100)
    ending = "th" if 10 <= number % 100 <= 20 else ("th", "st", "nd", "rd", *("th",) * 6)[number % 10]
    return f"{number}{ending}"


def clock(unix_seconds: float) -> str:
    """UTC, in the form of ``<time datetime>``."""
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def octets(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return ""


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    filter.__name__: filter
    for filter in (commas, per_second, short, nanoseconds, long_duration, percentile_name, clock, octets)
}
