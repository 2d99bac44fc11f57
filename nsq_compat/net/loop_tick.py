"""Work on the event loop itself: at the end of an iteration (`LoopTick`), at a set time (`AlarmClock`), and a
measurement of how late it all is (`LoopLag`).
"""

import logging
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import gevent

from nsq_compat.queue.schedule import Schedule

log = logging.getLogger(__name__)

MAX_FLUSHES: Final = 64
"""Connections flushed before the loop looks at its sockets again. At some 10 us each that is within a millisecond."""
_NEVER: Final = float("inf")
_MAX_ALARM_SECONDS: Final = 0.004
"""Spent on alarms in one iteration; the last one may exceed it, and the rest runs in the next iteration."""
_LAG_INTERVAL: Final = 0.25


class Flushable(Protocol):
    """A connection with something to send."""

    def flush_when_due(self) -> None:
        """Send it. Raises nothing, because other connections follow."""


class LoopTick:
    """The work at the end of an event-loop iteration: first `calls`, then a flush of the connections in `due`.

    Flushing all connections together costs little more for ten consumers of a message than for one. A connection that
    reads from its socket sets `is_reading` meanwhile, and then calls `run` if there is work. When work is added at
    other times, `schedule` follows.
    """

    def __init__(self, loop: Any) -> None:
        self.due: list[Flushable] = []
        self.calls: list[Callable[[], None]] = []
        self.is_reading = False
        self._loop = loop
        self._is_scheduled = False

    def call(self, callback: Callable[[], None]) -> None:
        """Call this before the connections are flushed."""
        self.calls.append(callback)
        if not self.is_reading:
            self.schedule()

    def run(self) -> None:
        """Do the work now unless other sockets are waiting to be read; called after reading from one."""
        if self._loop.pendingcnt:
            self.schedule()
        else:
            self._run()

    def schedule(self) -> None:
        """Ask the loop to do the work in this iteration, after the watchers that have fired."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.run_callback(self._run_scheduled)

    def _run_scheduled(self) -> None:
        self._is_scheduled = False
        self._run()

    def _run(self) -> None:
        try:
            if self.calls:
                calls, self.calls = self.calls, []
                self.is_reading = True
                for call in calls:
                    call()
        finally:
            self.is_reading = False
            self._flush()

    def _flush(self) -> None:
        connections, self.due = self.due, []  # a connection that is woken meanwhile has its turn after these
        if len(connections) > MAX_FLUSHES:
            connections, self.due = connections[:MAX_FLUSHES], connections[MAX_FLUSHES:]
            self.schedule()
        for connection in connections:
            connection.flush_when_due()


class AlarmClock:
    """Runs a schedule whenever something in it is due, with one timer that is set to the earliest. Start it once."""

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
        # While it runs, `run` may schedule again. That must not set the timer: its result says when to come back.
        self._set_to = 0.0
        began = time.monotonic()
        try:
            return self._schedule.run(began, lambda: time.monotonic() - began > _MAX_ALARM_SECONDS)
        except Exception:  # the top of a callback
            log.exception("an alarm failed")
            return time.monotonic()
        finally:
            self._set_to = _NEVER


def _ignore(seconds: float) -> None:
    pass


class LoopLag:
    """Measures a few times a second how late the event loop is.

    `observe` is told how late a timer was in wall-clock seconds, which includes the time that other processes used the
    CPU. `observe_held` is told how much CPU time this thread used while the timer was overdue. A long piece of work is
    seen only from the timer's due time on, so the longest value observed is a lower bound.
    """

    def __init__(
        self,
        observe: Callable[[float], None],
        observe_held: Callable[[float], None] = _ignore,
        interval: float = _LAG_INTERVAL,
    ) -> None:
        self._observe = observe
        self._observe_held = observe_held
        self._interval = interval
        self._loop = gevent.get_hub().loop
        self._timer = self._loop.timer(interval, repeat=interval)
        self._due = 0.0
        self._cpu_at_start = 0.0
        self._is_stopped = False

    def start(self) -> None:
        self._due = time.monotonic() + self._interval
        self._cpu_at_start = time.thread_time()
        self._timer.again(self._ring, update=True)

    def stop(self) -> None:
        self._is_stopped = True
        self._timer.close()

    def _ring(self) -> None:
        # A timer that is nearly due fires when a client wakes the loop, before that client is served. So the client
        # does not wait for the observers, which are called later.
        late = max(0.0, time.monotonic() - self._due)
        self._loop.run_callback(self._tell, late, min(late, time.thread_time() - self._cpu_at_start))

    def _tell(self, late: float, held: float) -> None:
        if not self._is_stopped:
            self._observe(late)
            self._observe_held(held)
            self.start()
