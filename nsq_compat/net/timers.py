"""The queue's alarms on the event loop: one timer, set to the earliest."""

import logging
import time
from typing import Final

import gevent

from nsq_compat.queue.schedule import Schedule

log = logging.getLogger(__name__)

_NEVER: Final = float("inf")
_AT_MOST: Final = 0.004
"""Seconds of alarms in one turn of the event loop, but for the last of them; what else is due comes in the next."""


class AlarmClock:
    """Runs a schedule when its time has come. Start it once."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._loop = gevent.get_hub().loop
        self._timer = self._loop.timer(0)
        self._set_to = _NEVER

    def start(self) -> None:
        self._schedule.wake_at = self._wake_at
        self._wake_at(self._run_due())

    def stop(self) -> None:
        self._schedule.wake_at = lambda when: None
        self._timer.stop()
        self._timer.close()

    def _wake_at(self, when: float) -> None:
        if when >= self._set_to:
            return
        self._set_to = when
        self._timer.stop()
        self._timer.close()
        self._timer = self._loop.timer(max(0.0, when - time.monotonic()))
        self._timer.start(self._ring)

    def _ring(self) -> None:
        self._wake_at(self._run_due())

    def _run_due(self) -> float:
        # What `run` schedules anew must not set the timer on its way; its result says when to come back.
        self._set_to = 0.0
        began = time.monotonic()
        try:
            return self._schedule.run(began, lambda: time.monotonic() - began > _AT_MOST)
        except Exception:  # the top of a callback
            log.exception("an alarm failed")
            return time.monotonic()
        finally:
            self._set_to = _NEVER
