"""Charts as coordinates for the inline SVG of the templates."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from typing import Final

WIDTH: Final = 600
HEIGHT: Final = 160
SPARK_WIDTH: Final = 100
SPARK_HEIGHT: Final = 22


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    """Pixels."""
    value: float


@dataclass(frozen=True, slots=True)
class Chart:
    lines: tuple[str, ...]
    """Points for <polyline>; one for each part between gaps."""
    areas: tuple[str, ...]
    """The same points closed along the axis, for <polygon>."""
    value_ticks: tuple[Tick, ...]
    time_ticks: tuple[Tick, ...]
    """Values are seconds before now."""
    latest: float | None
    highest: float


def chart(points: Sequence[tuple[float, float]], now: float, span: float) -> Chart:
    """A chart of (time, value) pairs of the last `span` seconds. A nan, or `span` / 40 without a pair, is a gap."""
    known = [value for at, value in points if now - at <= span and not math.isnan(value)]
    top = _round_up(max(known, default=0.0))
    step = span / 40
    runs: list[list[tuple[float, float]]] = []
    previous = -math.inf
    for at, value in points:
        if now - at > span:
            continue
        if math.isnan(value):
            previous = -math.inf
            continue
        if at - previous > step:
            runs.append([])
        previous = at
        runs[-1].append((WIDTH * (1 - (now - at) / span), HEIGHT * (1 - value / top)))
    return Chart(
        lines=tuple(_points(run) for run in runs),
        areas=tuple(_points([(run[0][0], HEIGHT), *run, (run[-1][0], HEIGHT)]) for run in runs),
        value_ticks=tuple(Tick(HEIGHT * (1 - part / 2), top * part / 2) for part in range(3)),
        time_ticks=tuple(Tick(WIDTH * part / 4, span * (4 - part) / 4) for part in range(5)),
        latest=known[-1] if known else None,
        highest=max(known, default=0.0),
    )


def sparkline(values: Iterable[float]) -> str:
    """Points for a small <polyline>; empty if there are fewer than two."""
    # The first rates of a series are unknown.
    known = [0.0 if math.isnan(value) else value for value in dropwhile(math.isnan, values)][-60:]
    if len(known) < 2:
        return ""
    top = max(known) or 1.0
    step = SPARK_WIDTH / (len(known) - 1)
    # One pixel above and below is left for the width of the line.
    height = SPARK_HEIGHT - 2
    return _points([(index * step, 1 + height * (1 - value / top)) for index, value in enumerate(known)])


def _points(run: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in run)


def _round_up(value: float) -> float:
    """The next larger 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    value = max(value, 1e-9)  # smaller values would underflow
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if value <= step * power * (1 + 1e-9))
