"""When which channel wants attention: one heap for the whole daemon, so that ten thousand idle channels cost nothing.

nsqd looks at random channels ten times a second and finds out; here each channel says when its next deadline is.
"""

import heapq
from collections.abc import Callable
from typing import Protocol

from nsq_compat.queue.in_flight import NEVER


class Scheduled(Protocol):
    """What can have an alarm."""

    alarm: float
    """When it is to be woken, monotonic seconds; written by the schedule alone."""

    def on_alarm(self, now: float) -> float:
        """Do what is due and return when the next alarm is wanted (``NEVER`` for none)."""


class Schedule:
    """`wake_at` is told of every alarm that comes before all others; it must see to it that `run` is called then."""

    def __init__(self, wake_at: Callable[[float], None] = lambda when: None) -> None:
        self.wake_at = wake_at
        self._heap: list[tuple[float, int, Scheduled]] = []
        self._serial = 0

    def at(self, when: float, what: Scheduled) -> None:
        """Set an alarm, unless an earlier one is set already."""
        if when >= what.alarm:
            return
        what.alarm = when
        self._serial += 1
        heapq.heappush(self._heap, (when, self._serial, what))
        if self._heap[0][2] is what:
            self.wake_at(when)

    def run(self, now: float) -> float:
        """Serve what is due; return when the next alarm is (``NEVER`` for none)."""
        while self._heap and self._heap[0][0] <= now:
            when, _, what = heapq.heappop(self._heap)
            if what.alarm != when:
                continue  # replaced by an earlier one
            what.alarm = NEVER
            self.at(what.on_alarm(now), what)
        return self._heap[0][0] if self._heap else NEVER

    def cancel(self, what: Scheduled) -> None:
        """Forget the alarm of what is gone."""
        what.alarm = NEVER
