"""How long messages take from being published to being finished, as quantiles over the last while.

Values go into sketches (DDSketch, see docs/decisions), which are small however many there are, say every quantile
within one percent, and are merged without losing any of that: a topic's figures are exactly those of all its channels'
messages together.

nsqd: the time is kept in halves of the window, and what is told covers the present half and the one before: between
half a window and a whole one. The halves of all channels begin at the same moments.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ddsketch import LogCollapsingLowestDenseDDSketch as Sketch

from nsq_compat.protocol.message import raw_timestamps
from nsq_compat.queue.stats import LatencyStats

_RELATIVE_ACCURACY: Final = 0.01
_MAX_BINS: Final = 2200
"""From a nanosecond to thirty years at that accuracy; should that not do, the shortest times lose theirs."""


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """What is asked for: quantiles in (0,1], in the order to be shown, over so many seconds."""

    quantiles: tuple[float, ...]
    window: float


class Latency:
    """Of one channel. `now` is monotonic seconds, `now_ns` the wall clock that messages are stamped with."""

    def __init__(self, options: LatencyOptions) -> None:
        self._quantiles = options.quantiles
        self._half = options.window / 2
        self._number = 0.0  # of the present half
        self._present: Sketch | None = None
        self._before: Sketch | None = None

    def add(self, frames: Sequence[bytes], now: float, now_ns: int) -> None:
        """These were finished just now."""
        # Hot: runs for every FIN. What was published together is stamped alike, and is inserted once for all of it.
        if not frames:
            return
        self._move_on(now)
        if self._present is None:
            self._present = Sketch(_RELATIVE_ACCURACY, _MAX_BINS)
        timestamps = raw_timestamps(frames)
        first, count = timestamps[0], len(timestamps)
        alike = timestamps.count(first) == count  # cheaper to ask than to count each
        for timestamp, number in ((first, count),) if alike else Counter(timestamps).items():
            # A clock that was set back does not make a message faster than at once.
            self._present.add(max(0, now_ns - int.from_bytes(timestamp, "big")), number)

    def stats(self, now: float, others: Iterable["Latency"] = ()) -> LatencyStats:
        """What the window holds, together with that of others. nsqd: of nothing, every percentile is 0."""
        merged = Sketch(_RELATIVE_ACCURACY, _MAX_BINS)
        for each in (self, *others):
            each._move_on(now)
            for sketch in (each._before, each._present):
                if sketch is not None:
                    merged.merge(sketch)
        return LatencyStats(
            count=int(merged.count),
            percentiles=tuple((quantile, _value(merged, quantile)) for quantile in self._quantiles),
        )

    def _move_on(self, now: float) -> None:
        number = now // self._half
        if number > self._number:  # who looks at many takes his time, and may come with a moment that is over
            self._before = self._present if number == self._number + 1 else None
            self._present = None
            self._number = number


def _value(sketch: Sketch, quantile: float) -> float:
    """The smallest value that so large a part of all values does not exceed; whole nanoseconds."""
    if not sketch.count:
        return 0.0
    # The sketch's own idea of a quantile lies between two values and would say the smaller: of two, even for 0.99. It
    # counts from 0; half a place keeps rounding errors from reaching the value before.
    rank = math.ceil(quantile * sketch.count) - 0.5
    last = sketch.count - 1
    value = sketch.get_quantile_value(rank / last if rank < last else 1.0)
    assert value is not None, "only an empty sketch has none"
    return float(round(value))
