"""Alarms in time order: one heap for all channels of the daemon, so that ten thousand idle channels cost nothing.

nsqd checks random channels ten times a second. Here each channel sets an alarm for its next deadline.

An alarm that is set earlier or cancelled leaves its old entry in the heap, which is skipped when it comes up.
Invariant: such entries are never many more than half of the heap, even if their times are far in the future.
"""

import heapq
from collections.abc import Callable
from typing import Final, Protocol

_SPARE_ENTRIES: Final = 64
NEVER: Final = float("inf")
AT_ONCE: Final = 0.0
"""The time of an alarm for the next call of ``run``."""


class Scheduled(Protocol):
    """An object that can have an alarm."""

    alarm: float
    """When it is due, monotonic seconds; only the schedule writes it."""

    def on_alarm(self, now: float) -> float:
        """Handle the alarm; returns the time of the next one, or ``NEVER``."""


class Schedule:
    """`wake_at` is called with the time of each alarm that is the next one, and must arrange a call of `run` then."""

    def __init__(self, wake_at: Callable[[float], None] = lambda when: None) -> None:
        self.wake_at = wake_at
        self._heap: list[tuple[float, int, Scheduled]] = []
        self._serial = 0
        self._alarms = 0  # entries that are not skipped

    def at(self, when: float, target: Scheduled) -> None:
        """Set an alarm, unless an earlier one is set already."""
        if when >= target.alarm:
            return
        self._alarms += target.alarm == NEVER
        target.alarm = when
        self._serial += 1
        heapq.heappush(self._heap, (when, self._serial, target))
        self._forget_skipped_entries()
        if self._heap[0][2] is target:
            self.wake_at(when)

    def run(self, now: float, is_enough: Callable[[], bool] = lambda: False) -> float:
        """Handle due alarms until `is_enough`; returns the time of the next one, or ``NEVER``."""
        while self._heap and self._heap[0][0] <= now:
            when, _, target = heapq.heappop(self._heap)
            if target.alarm != when:
                continue  # replaced by an earlier one
            self.cancel(target)
            self.at(target.on_alarm(now), target)
            if is_enough():
                break
        return self._heap[0][0] if self._heap else NEVER

    def cancel(self, target: Scheduled) -> None:
        """Cancel the alarm, if there is one."""
        self._alarms -= target.alarm != NEVER
        target.alarm = NEVER

    def _forget_skipped_entries(self) -> None:
        if len(self._heap) > 2 * self._alarms + _SPARE_ENTRIES:
            current = {
                id(target): (when, serial, target) for when, serial, target in self._heap if when == target.alarm
            }
            self._heap = list(current.values())
            heapq.heapify(self._heap)
