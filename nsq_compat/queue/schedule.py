"""When which channel wants attention: one heap for the whole daemon, so that ten thousand idle channels cost nothing.

nsqd looks at random channels ten times a second and finds out; here each channel says when its next deadline is.

An alarm that is set earlier or cancelled leaves its old entry in the heap, to be skipped when it comes up. Invariant:
such entries are never many more than half of the heap, however far away they are.
"""

import heapq
from collections.abc import Callable
from typing import Final, Protocol

from nsq_compat.queue.in_flight import NEVER

_SPARE_ENTRIES: Final = 64
AT_ONCE: Final = 0.0
"""An alarm for the next time ``run`` is called."""


class Scheduled(Protocol):
    """What can have an alarm."""

    alarm: float
    """When it is to be woken, monotonic seconds; written by the schedule alone."""

    def on_alarm(self, now: float) -> float:
        """Do what is due and return when the next alarm is wanted: ``NEVER`` for none, `now` for at once."""


class Schedule:
    """`wake_at` is told of every alarm that comes before all others; it must see to it that `run` is called then."""

    def __init__(self, wake_at: Callable[[float], None] = lambda when: None) -> None:
        self.wake_at = wake_at
        self._heap: list[tuple[float, int, Scheduled]] = []
        self._serial = 0
        self._alarms = 0  # entries that are not to be skipped

    def at(self, when: float, what: Scheduled) -> None:
        """Set an alarm, unless an earlier one is set already."""
        if when >= what.alarm:
            return
        self._alarms += what.alarm == NEVER
        what.alarm = when
        self._serial += 1
        heapq.heappush(self._heap, (when, self._serial, what))
        self._forget_skipped_entries()
        if self._heap[0][2] is what:
            self.wake_at(when)

    def run(self, now: float, is_enough: Callable[[], bool] = lambda: False) -> float:
        """Serve what is due, until there was enough of it; return when the next alarm is (``NEVER`` for none)."""
        while self._heap and self._heap[0][0] <= now:
            when, _, what = heapq.heappop(self._heap)
            if what.alarm != when:
                continue  # replaced by an earlier one
            self.cancel(what)
            self.at(what.on_alarm(now), what)
            if is_enough():
                break
        return self._heap[0][0] if self._heap else NEVER

    def cancel(self, what: Scheduled) -> None:
        """Forget the alarm, if there is one."""
        self._alarms -= what.alarm != NEVER
        what.alarm = NEVER

    def _forget_skipped_entries(self) -> None:
        if len(self._heap) > 2 * self._alarms + _SPARE_ENTRIES:
            current = {id(what): (when, serial, what) for when, serial, what in self._heap if when == what.alarm}
            self._heap = list(current.values())
            heapq.heapify(self._heap)
