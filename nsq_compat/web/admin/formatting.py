"""What templates display: numbers, durations and times as text (their filters), and series as SVG coordinates."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, Final

_NUMBERS: Final = ("max_attempts", "max_depth", "max_bytes", "max_rate", "burst", "max_in_flight", "retain_bytes")
"""Settings of policies that are numbers."""
UNKNOWN: Final = "\u2013"


def commas(value: float | None) -> str:
    """``12,304``; a dash if it is unknown."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def count_of(number: int, noun: str) -> str:
    """``1 message``, ``12,304 messages``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def all_of(number: int, noun: str) -> str:
    """``the only node``, ``both nodes``, ``all 12 nodes``."""
    return f"the only {noun}" if number == 1 else f"both {noun}s" if number == 2 else f"all {number:,} {noun}s"


def setting(value: object, name: str) -> str:
    """The value of a setting of a policy: ``1,000,000`` for a number."""
    if isinstance(value, bool):
        return str(value).lower()
    with suppress(ValueError):
        return f"{float(str(value)):,.15g}" if name in _NUMBERS else str(value)
    return str(value)


def per_second(rate: float | None) -> str:
    """A rate; a dash if it is unknown."""
    if rate is None or math.isnan(rate):
        return UNKNOWN
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
    for unit, name in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
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
    """``5 B``, ``2.0 KiB``."""
    for unit, letter in ((1024**4, "T"), (1024**3, "G"), (1024**2, "M"), (1024, "K")):
        if size >= unit:
            return f"{size / unit:.1f} {letter}iB"
    return f"{size:.0f} B"


# --- Bodies of messages -----------------------------------------------------------------------------------------------

FORMS: Final = ("auto", "text", "hex")
_LONG_LINES: Final = 12
_LONG_CHARACTERS: Final = 1000
_SUMMARY_CHARACTERS: Final = 160
_HEX_COLUMNS: Final = 16
_MAX_GROWTH: Final = 8
"""By how much indentation may lengthen a body. A short one of many levels could otherwise fill a gigabyte."""
_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[][{},:]|[^][{},:"\s]+')


@dataclass(frozen=True, slots=True)
class Shown:
    """A body as it is displayed. `kind` is JSON, text or hex; a long one is folded under its `summary`."""

    kind: str
    text: str
    summary: str
    is_long: bool


def shown(text: str | None, body: bytes, form: str = "auto") -> Shown:
    """`text` is None for a body that is not text. `form` is one of FORMS; a body that is not text is shown in hex."""
    if text is None or form == "hex":
        kind, display = "hex", hex_dump(body)
    elif form == "auto" and (pretty := indented_json(text)) is not None:
        kind, display = "JSON", pretty
    else:
        kind, display = "text", text
    first = text if kind != "hex" and text is not None else display
    is_long = display.count("\n") >= _LONG_LINES or len(display) > _LONG_CHARACTERS
    return Shown(kind, display, " ".join(first[: 2 * _SUMMARY_CHARACTERS].split())[:_SUMMARY_CHARACTERS], is_long)


def indented_json(text: str) -> str | None:
    """A JSON object or array with indentation, its values unchanged; None if it is neither, or would be too long."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    lines, depth, previous = [""], 0, ""
    left = _MAX_GROWTH * len(text)
    for token in _TOKENS.findall(text):
        closes, follows_opening = token in ("}", "]"), previous in ("{", "[")
        depth -= closes
        if not follows_opening if closes else follows_opening or previous == ",":
            left -= 2 * depth
            if left < 0:
                return None
            lines.append("  " * depth)
        lines[-1] += ": " if token == ":" else token
        depth += token in ("{", "[")
        previous = token
    return "\n".join(lines)


def hex_dump(body: bytes) -> str:
    """Lines of an offset, 16 bytes, and their characters."""
    lines = []
    for at in range(0, len(body), _HEX_COLUMNS):
        part = body[at : at + _HEX_COLUMNS]
        characters = "".join(chr(each) if 32 <= each < 127 else "." for each in part)
        lines.append(f"{at:06x}  {part.hex(' '):<{3 * _HEX_COLUMNS - 1}}  {characters}")
    return "\n".join(lines)


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    filter.__name__: filter
    for filter in (
        commas,
        count_of,
        all_of,
        setting,
        per_second,
        short,
        nanoseconds,
        long_duration,
        percentile_name,
        clock,
        octets,
        shown,
    )
}


# --- Charts -----------------------------------------------------------------------------------------------------------

WIDTH: Final = 600
HEIGHT: Final = 160
SPARK_WIDTH: Final = 100
SPARK_HEIGHT: Final = 22
_SPANS: Final = tuple(60.0 * minutes for minutes in (1, 2, 5, 10, 30, 60, 180, 360, 720, 1440))
_MAX_READINGS: Final = 120
_PEAK: Final = 4
"""A value is a peak if it is more than this many times what nine in ten values stay below."""

Points = Sequence[tuple[float, float]]
"""Times and values, oldest first. A value may be nan."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A value that is shown when the pointer or the cursor is on its part of the chart."""

    left: float
    width: float
    x: float
    y: float
    value: float
    age: float
    """Seconds before now."""


@dataclass(frozen=True, slots=True)
class Chart:
    lines: tuple[str, ...]
    """Points for <polyline>; one for each part between gaps."""
    areas: tuple[str, ...]
    """The same points closed along the axis, for <polygon>."""
    value_ticks: tuple[tuple[float, float], ...]
    """Pixels and values."""
    time_ticks: tuple[tuple[float, float], ...]
    """Pixels and seconds before now."""
    readings: tuple[Reading, ...]
    peaks: tuple[float, ...]
    """Horizontal pixels of peaks that are cut off at the top."""
    has_peak: bool
    latest: float | None
    highest: float


def span_of(points: Points, now: float, longest: float) -> float:
    """The shortest span in seconds, up to `longest`, that contains the points."""
    age = now - points[0][0] if points else 0.0
    return min(longest, next((span for span in _SPANS if age <= span), longest))


def chart(points: Points, now: float, span: float, *, whole: bool = False) -> Chart:
    """A chart of the last `span` seconds, in which a nan, or a long time without a point, is a gap.

    Unless `whole`, peaks are cut off if they would flatten the other values.
    """
    runs = _runs(points, now, span)
    known = [value for run in runs for _, value in run]
    highest = max(known, default=0.0)
    usual = _usual(known)
    has_peak = highest > _PEAK * usual
    cut = has_peak and not whole
    top = _round_up(1.2 * usual if cut else highest)

    def place(at: float, value: float) -> tuple[float, float]:
        return WIDTH * (1 - (now - at) / span), HEIGHT * (1 - min(value, top) / top)

    drawn = [[place(*point) for point in run] for run in runs]
    return Chart(
        lines=tuple(_points(run) for run in drawn),
        areas=tuple(_points([(run[0][0], HEIGHT), *run, (run[-1][0], HEIGHT)]) for run in drawn),
        value_ticks=tuple((HEIGHT * (1 - part / 2), top * part / 2) for part in range(3)),
        time_ticks=tuple((WIDTH * part / 4, span * (4 - part) / 4) for part in range(5)),
        readings=tuple(_readings([point for run in runs for point in run], now, place)),
        peaks=tuple(place(*max(run, key=itemgetter(1)))[0] for run in _above(runs, top)),
        has_peak=has_peak,
        latest=known[-1] if known else None,
        highest=highest,
    )


def sparkline(points: Points, now: float, span: float, top: float) -> tuple[str, ...]:
    """Points for small <polyline>s. One pixel above and below is left for the width of the line."""
    height = SPARK_HEIGHT - 2

    def place(at: float, value: float) -> tuple[float, float]:
        return SPARK_WIDTH * (1 - (now - at) / span), 1 + height * (1 - value / top)

    return tuple(_points([place(*point) for point in run]) for run in _runs(points, now, span))


def scale_of(values: Iterable[float]) -> float:
    """The upper end of an axis from 0 for the values."""
    return _round_up(max((value for value in values if not math.isnan(value)), default=0.0))


def _runs(points: Points, now: float, span: float) -> list[list[tuple[float, float]]]:
    """The points of the last `span` seconds, divided at gaps."""
    times = [at for at, _ in points]
    steps = sorted(after - before for before, after in pairwise(times))
    # Samples are seconds apart, or minutes in the history of a day.
    longest = max(span / 40, 2.5 * steps[len(steps) // 2] if steps else 0.0)
    runs: list[list[tuple[float, float]]] = []
    previous = -math.inf
    for at, value in points:
        if now - at > span:
            continue
        if math.isnan(value):
            previous = -math.inf
            continue
        if at - previous > longest:
            runs.append([])
        previous = at
        runs[-1].append((at, value))
    return runs


def _usual(values: Sequence[float]) -> float:
    """What nine in ten values do not exceed. Infinite if there are few values, or if most are 0."""
    ninth = sorted(values)[len(values) * 9 // 10] if len(values) >= 10 else 0.0
    return ninth or math.inf


def _above(runs: Sequence[Points], top: float) -> Iterator[list[tuple[float, float]]]:
    """Consecutive points that are higher than `top`."""
    for run in runs:
        for is_above, points in groupby(run, lambda point: point[1] > top):
            if is_above:
                yield list(points)


def _readings(points: Points, now: float, place: Callable[[float, float], tuple[float, float]]) -> Iterator[Reading]:
    """Each has the width up to the middle between its neighbours and it. Of many points, the highest are read."""
    size = -(-len(points) // _MAX_READINGS) or 1
    read = [max(points[start : start + size], key=itemgetter(1)) for start in range(0, len(points), size)]
    places = [place(*point) for point in read]
    middles = [(left + right) / 2 for (left, _), (right, _) in pairwise(places)]
    edges = [0.0, *middles, float(WIDTH)]
    for index, ((at, value), (x, y)) in enumerate(zip(read, places, strict=True)):
        yield Reading(edges[index], max(0.0, edges[index + 1] - edges[index]), x, y, value, now - at)


def _points(run: Sequence[tuple[float, float]]) -> str:
    if len(run) == 1:
        run = [*run, *run]  # a line of one point is not drawn
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in run)


def _round_up(value: float) -> float:
    """The next larger 1, 2, 3, 4, 5, 6 or 8 times a power of ten."""
    if value <= 0:
        return 1.0
    value = max(value, 1e-9)  # smaller values would underflow
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 3, 4, 5, 6, 8, 10) if value <= step * power * (1 + 1e-9))
