"""The event loop itself: work at the end of an iteration (`LoopTick`), alarms (`AlarmClock`), how late it all is
(`LoopLag`), polling instead of sleeping (`BusyPoll`), and long work in steps (`let_others_run`, `endings`).
"""

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

import gevent
from gevent.hub import Hub, get_hub

from nsq_compat.queue.in_flight import NEVER
from nsq_compat.queue.schedule import Schedule

log = logging.getLogger(__name__)

MAX_FLUSHES: Final = 64
"""Connections flushed before the loop looks at its sockets again. At some 10 us each that is within a millisecond."""
_MAX_ALARM_SECONDS: Final = 0.004
"""Spent on alarms in one iteration; the last one may exceed it, and the rest runs in the next iteration."""
_LAG_INTERVAL: Final = 0.25


class Flushable(Protocol):
    """A connection with something to send."""

    def flush_when_due(self) -> None:
        """Send it. Raises nothing, because other connections follow."""


class LoopTick:
    """The work at the end of an event-loop iteration: first `calls`, then a flush of the connections in `due`.

    A connection that reads from its socket sets `is_reading` meanwhile, and then calls `run` if there is work. When
    work is added at other times, `schedule` follows.
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
        self._loop = get_hub().loop
        self._timer = self._loop.timer(0)
        self._set_to = NEVER

    def start(self) -> None:
        self._schedule.wake_at = self._wake_at
        self._wake_at(self._run_due())

    def stop(self) -> None:
        self._schedule.wake_at = lambda when: None
        self._timer.close()

    def _wake_at(self, when: float) -> None:
        if when >= self._set_to:
            return
        self._set_to = when
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
            self._set_to = NEVER


class LoopLag:
    """Measures a few times a second how late the event loop is.

    `observe` is told how late a timer was, in wall-clock seconds, and `observe_held` how much CPU time this thread used
    while the timer was overdue. Of a long piece of work only the part after the timer's due time is seen.
    """

    def __init__(
        self,
        observe: Callable[[float], None],
        observe_held: Callable[[float], None] = lambda seconds: None,
        interval: float = _LAG_INTERVAL,
    ) -> None:
        self._observe = observe
        self._observe_held = observe_held
        self._interval = interval
        self._loop = get_hub().loop
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


# --- Busy polling -----------------------------------------------------------------------------------------------------

MAX_POLL: Final = 100e-6
"""Seconds until a poll is in vain."""
MAX_GAP: Final = 2 * MAX_POLL
"""Seconds between two requests of a run. While the loop sleeps, they are further apart by the time to wake it."""
MIN_RUN: Final = 64
"""Requests of a run before the loop polls, so that a poll in vain costs less than 2 us for each of them."""


class BusyPoll:
    """Decides for one event loop whether it polls or sleeps when it has nothing to do.

    A client that waits for each reply lets the event loop sleep between two requests, and waking a process can take
    longer than serving the request. So after a run of requests from one connection in quick succession the loop polls
    its sockets after each further request, until it has polled in vain. Other loads do not come sooner for it, and
    would only pay the CPU (docs/decisions/0025).

    With `fixed_time` it polls for that many seconds after each request (``--busy-poll-time``). `idle` is the loop's
    watcher for having nothing to do; `now` is monotonic time.
    """

    def __init__(self, fixed_time: float = 0.0, *, idle: Any = None, now: Callable[[], float] = time.monotonic) -> None:
        self.is_fixed = fixed_time > 0.0
        self.is_polling = False
        self._max_poll = fixed_time or MAX_POLL
        self._min_run = 0 if self.is_fixed else MIN_RUN
        self._idle = get_hub().loop.idle() if idle is None else idle
        self._now = now
        self._client = 0
        self._run = 0
        self._served_at = 0.0

    def served(self, client: int) -> None:
        """Note that a request of this client has been answered; `client` is any number that identifies it."""
        # Hot: runs for every synchronous PUB of a lone producer.
        now = self._now()
        if client == self._client and now - self._served_at < MAX_GAP:
            self._run += 1
        else:
            self._client, self._run = client, 0
        self._served_at = now
        if self._run >= self._min_run and not self.is_polling:
            self.is_polling = True
            self._idle.start(self._poll)  # while this is active the loop does not sleep

    def stop(self) -> None:
        self._min_run = sys.maxsize  # connections that still end may be served
        self.is_polling = False
        self._idle.close()

    def _poll(self) -> None:
        """Called in every iteration in which the loop has nothing to do."""
        if self._now() - self._served_at > self._max_poll:
            self._run = 0
            self.is_polling = False
            self._idle.stop()


def has_spare_cpu() -> bool:
    """Whether there is a CPU for the client while the loop polls on another."""
    return len(os.sched_getaffinity(0)) > 1


# --- Long work --------------------------------------------------------------------------------------------------------

_NEXT_ITERATION: Final = 1e-9
"""Seconds of a timer that fires after the sockets were served. Not zero: a thousand callbacks run before that."""
MAX_ENDINGS: Final = 32
"""Connections that end in one iteration, at some 0.1 ms each; thousands may end at once."""


class Turns:
    """Callbacks of one event loop, of which it runs at most `most` in one iteration, in the order of their requests.

    Between two iterations the loop serves its sockets and timers. So a client with a short request waits for one step
    of all long work at most, not for a step of every busy client.
    """

    def __init__(self, hub: Hub, most: int) -> None:
        self._hub: Any = hub
        self._most = most
        self._waiting: deque[Callable[[], object]] = deque()
        self._timer = self._hub.loop.timer(_NEXT_ITERATION)
        self._is_set = False
        self._count = 0  # in this iteration

    def may_go_first(self) -> bool:
        """Take a place in this iteration; return whether there was one."""
        if self._waiting or self._count >= self._most:
            return False
        self._take()
        return True

    def call(self, callback: Callable[[], None]) -> None:
        """Call it in the hub soon, but not within this call."""
        if self.may_go_first():
            self._hub.loop.run_callback(callback)
        else:
            self._waiting.append(callback)

    def wait(self) -> None:
        """Return in a later iteration, when it is the calling greenlet's turn."""
        switch = gevent.getcurrent().switch
        self._waiting.append(switch)
        self._set_timer()
        try:
            self._hub.switch()
        except BaseException:  # killed, or timed out, while it waited
            if switch in self._waiting:
                self._waiting.remove(switch)
            raise

    def _next(self) -> None:
        """Runs in the hub, once in an iteration."""
        self._is_set = False
        self._timer.stop()
        self._count = 0
        while self._waiting and self._count < self._most:
            self._take()
            self._waiting.popleft()()

    def _take(self) -> None:
        self._set_timer()
        self._count += 1

    def _set_timer(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._timer.start(self._next, update=False)


_turns: "WeakKeyDictionary[Hub, tuple[Turns, Turns]]" = WeakKeyDictionary()


def _turns_of_this_loop() -> tuple[Turns, Turns]:
    """Those of the steps of long work, and those of endings."""
    hub = get_hub()
    found = _turns.get(hub)
    if found is None:
        found = _turns[hub] = Turns(hub, 1), Turns(hub, MAX_ENDINGS)
    return found


def let_others_run() -> None:
    """Wait between two steps of long work. Not to be called in the hub, which cannot wait."""
    _turns_of_this_loop()[0].wait()


def endings() -> Turns:
    """The turns of connections that end."""
    return _turns_of_this_loop()[1]
