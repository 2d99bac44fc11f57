"""Latency from publish to FIN, as quantiles over a window of time.

Values are added to sketches (DDSketch, see docs/decisions). Their size is bounded, every quantile is accurate to one
percent, and merging is exact: a topic's quantiles are those of the messages of all its channels.

nsqd: the window consists of two halves, and quantiles cover the current half and the one before, that is, between half
a window and a whole one. The halves of all channels begin at the same time.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from nsq_compat.protocol.message import raw_timestamps
from nsq_compat.queue.values import LatencyOptions, LatencyStats

if TYPE_CHECKING:
    from ddsketch import LogCollapsingLowestDenseDDSketch as Sketch

_RELATIVE_ACCURACY: Final = 0.01
_MAX_BINS: Final = 2200
"""Enough for a nanosecond to thirty years. Beyond that, the shortest times lose accuracy."""


class Latency:
    """The latency of one channel. `now` is monotonic seconds, `now_ns` the wall clock of message timestamps."""

    def __init__(self, options: LatencyOptions) -> None:
        self._quantiles = options.quantiles
        self._half = options.window / 2
        self._number = 0.0  # of the current half
        self._current: Sketch | None = None
        self._previous: Sketch | None = None

    def add(self, frames: Sequence[bytes], now: float, now_ns: int) -> None:
        """Add messages that were finished just now."""
        # Hot: runs for every FIN. Messages published together have one timestamp, which is added once for all.
        if not frames:
            return
        self._rotate(now)
        if self._current is None:
            self._current = _new_sketch()
        timestamps = raw_timestamps(frames)
        first, count = timestamps[0], len(timestamps)
        are_equal = timestamps.count(first) == count  # cheaper than counting each
        for timestamp, number in ((first, count),) if are_equal else Counter(timestamps).items():
            # If the clock was set back, the difference may be negative.
            self._current.add(max(0, now_ns - int.from_bytes(timestamp, "big")), number)

    def stats(self, now: float, others: Iterable["Latency"] = ()) -> LatencyStats:
        """Return the values of the window, merged with those of others. nsqd: without values every percentile is 0."""
        merged = _new_sketch()
        for each in (self, *others):
            each._rotate(now)
            for sketch in (each._previous, each._current):
                if sketch is not None:
                    merged.merge(sketch)
        percentiles = tuple((quantile, _value(merged, quantile)) for quantile in self._quantiles)
        return LatencyStats(count=int(merged.count), percentiles=percentiles)

    def _rotate(self, now: float) -> None:
        number = now // self._half
        if number > self._number:  # a snapshot of many channels may use a time that has passed
            self._previous = self._current if number == self._number + 1 else None
            self._current = None
            self._number = number


def _new_sketch() -> "Sketch":
    from ddsketch import LogCollapsingLowestDenseDDSketch  # not at the start: most nsqd do not measure latencies

    return LogCollapsingLowestDenseDDSketch(_RELATIVE_ACCURACY, _MAX_BINS)


def _value(sketch: "Sketch", quantile: float) -> float:
    """Return the smallest value that at least this fraction of all values does not exceed, in whole nanoseconds."""
    if not sketch.count:
        return 0.0
    # The sketch places a quantile between two values and returns the smaller one: of two values, even for 0.99. Its
    # ranks begin at 0; half a rank keeps rounding errors from reaching the value before.
    rank = math.ceil(quantile * sketch.count) - 0.5
    last = sketch.count - 1
    value = sketch.get_quantile_value(rank / last if rank < last else 1.0)
    assert value is not None, "only an empty sketch has no value"
    return float(round(value))
