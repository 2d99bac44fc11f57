"""Who has something to do at the end of a turn of the event loop, in the order in which they asked.

First what is to be done before anybody sends, then everybody who has something to send: to the loop a message for ten
consumers is what one for a single consumer is. Who reads last ends the turn right away; otherwise the loop is asked to.
After `AT_ONCE` senders it is asked again, and looks at its sockets when that has gone on for a while.
"""

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

import gevent

from nsq_compat.queue.schedule import Schedule

log = logging.getLogger(__name__)

AT_ONCE: Final = 64
"""Senders. Where each takes 10 us, the loop may look at its sockets within a millisecond."""


class Loop(Protocol):
    """Of gevent's event loop what this needs."""

    @property
    def pendingcnt(self) -> int:
        """How many watchers have fired and were not called yet."""

    def run_callback(self, func: Callable[[], None]) -> object:
        """Call it once, when everybody who is ready has been heard."""


class Sender(Protocol):
    """Whoever has something to send."""

    def flush_when_due(self) -> None:
        """Send it. Raises nothing: the others are not to blame."""


class LoopTick:
    """One event loop's."""

    def __init__(self, loop: Loop) -> None:
        self.due: list[Sender] = []
        self._calls: list[Callable[[], None]] = []
        self._loop = loop
        self._held = False  # somebody is going to end it, and the loop need not
        self._asked = False  # the loop was asked to

    def add(self, sender: Sender) -> None:
        """Once for each turn."""
        # Hot: runs for every synchronous PUB.
        self.due.append(sender)
        if not self._held:
            self._ask()

    def call(self, callback: Callable[[], None]) -> None:
        """Before anybody sends."""
        self._calls.append(callback)
        if not self._held:
            self._ask()

    def begin_reading(self) -> None:
        """Called by the loop, to hear one of those who are ready; `end_reading` follows."""
        self._held = True

    def end_reading(self) -> None:
        """Whoever it was is heard; if it was the last, this is the end of the turn."""
        # Hot: runs for every synchronous PUB.
        self._held = False
        if self.due or self._calls:
            if self._loop.pendingcnt:
                self._ask()
            else:
                self._end()

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._loop.run_callback(self._end_as_asked)

    def _end_as_asked(self) -> None:
        self._asked = False
        self._end()

    def _end(self) -> None:
        try:
            if self._calls:
                calls, self._calls = self._calls, []
                self._held = True
                for call in calls:
                    call()
        finally:
            self._held = False
            self._send()

    def _send(self) -> None:
        now, self.due = self.due, []  # who asks meanwhile is behind them
        if len(now) > AT_ONCE:
            now, self.due = now[:AT_ONCE], now[AT_ONCE:]
            self._ask()
        for sender in now:
            sender.flush_when_due()


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


_INTERVAL_SECONDS = 0.25


def _ignore(seconds: float) -> None:
    pass


class LoopLag:
    """Tells `observe` how many seconds late it was woken, and `observe_held` how long the loop was held, repeatedly."""

    def __init__(
        self,
        observe: Callable[[float], None],
        observe_held: Callable[[float], None] = _ignore,
        interval: float = _INTERVAL_SECONDS,
    ) -> None:
        self._observe = observe
        self._observe_held = observe_held
        self._interval = interval
        self._loop = gevent.get_hub().loop
        self._timer = self._loop.timer(interval, repeat=interval)
        self._due = 0.0
        self._cpu_at_start = 0.0
        self._over = False

    def start(self) -> None:
        self._due = time.monotonic() + self._interval
        self._cpu_at_start = time.thread_time()
        self._timer.again(self._ring, update=True)

    def stop(self) -> None:
        self._over = True
        self._timer.close()

    def _ring(self) -> None:
        # A timer that is nearly due goes off when a client wakes the loop, before that client is heard. What need not
        # be done at once is not what to let it wait for.
        late = max(0.0, time.monotonic() - self._due)
        self._loop.run_callback(self._tell, late, min(late, time.thread_time() - self._cpu_at_start))

    def _tell(self, late: float, held: float) -> None:
        if not self._over:
            self._observe(late)
            self._observe_held(held)
            self.start()
