"""The event loop itself: work at the end of an iteration (`LoopTick`), alarms (`AlarmClock`), its delay (`LoopLag`),
polling instead of sleeping (`BusyPoll`), and long work in steps (`yield_to_loop`, `endings`).
"""

import logging
import os
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

import gevent
from gevent.hub import Hub, get_hub
from gevent.lock import Semaphore

from nsq_compat.queue.schedule import NEVER, Schedule

log = logging.getLogger(__name__)

MAX_FLUSHES: Final = 64
"""Connections flushed before the loop polls its sockets again. At about 10 us each, they take less than 1 ms."""
_MAX_FLUSH_SECONDS: Final = 0.004
"""Time for flushes in one iteration. The last one may exceed it: compressing a large message takes long."""
_MAX_READ_SECONDS: Final = 0.01
"""Time for reads in one iteration. The last one may exceed it: executing what was read may take long."""
_MAX_ALARM_SECONDS: Final = 0.004
"""Time for alarms in one iteration. The last one may exceed it; the others run in the next iteration."""
_LAG_INTERVAL: Final = 0.25


_SHORT_SECONDS: Final = 0.002
"""An iteration that takes no longer is short."""


class TurnQueue:
    """Runs callbacks in later iterations of the event loop, in each for about `seconds` and at least one.

    Clients take turns, and each has its callbacks run in FIFO order: a client with hundreds of connections holds up
    another one by a single callback. `client` is any text that identifies one. With `most`, callbacks get as much time
    as all else in a long iteration took, up to this, so that they go on where others make each iteration long.
    """

    def __init__(self, loop: Any, seconds: float = 0.0, most: float = 0.0) -> None:
        self._waiting: OrderedDict[str, deque[Callable[[], object]]] = OrderedDict()
        self._seconds = seconds
        self._most = most
        self._waiting_since = 0.0  # in this iteration
        # A timer fires once in an iteration. A thousand of the callbacks of a loop may run before sockets are served.
        self._timer = loop.timer(0)
        self._is_set = False

    def add(self, client: str, callback: Callable[[], object]) -> None:
        """Call it in a later iteration, when it is the client's turn. It should raise nothing."""
        callbacks = self._waiting.get(client)
        if callbacks is None:
            callbacks = self._waiting[client] = deque()
        callbacks.append(callback)
        self._set_timer()

    def remove(self, client: str, callback: Callable[[], object]) -> None:
        """Do not call it, if it still waits."""
        callbacks = self._waiting.get(client, deque())
        if callback in callbacks:
            callbacks.remove(callback)
            if not callbacks:
                del self._waiting[client]

    def wait(self, client: str) -> None:
        """Return in a later iteration, when it is the client's turn. Must not be called in the hub."""
        switch = gevent.getcurrent().switch
        self.add(client, switch)
        try:
            get_hub().switch()
        except BaseException:  # killed, or timed out, while it waited
            self.remove(client, switch)
            raise

    def _next(self) -> None:
        """Runs in the hub, once in an iteration while something waits."""
        self._is_set = False
        self._timer.stop()
        began = time.monotonic()
        seconds = max(self._seconds, min(self._most, began - self._waiting_since - _SHORT_SECONDS))
        try:
            while self._waiting:
                client, callbacks = self._waiting.popitem(last=False)
                callback = callbacks.popleft()
                if callbacks:
                    self._waiting[client] = callbacks
                callback()
                if time.monotonic() - began > seconds:
                    break
        finally:
            if self._waiting:
                self._set_timer()

    def _set_timer(self) -> None:
        if not self._is_set:
            self._is_set = True
            if self._most:
                self._waiting_since = time.monotonic()
            self._timer.start(self._next, update=False)


class TimeLimit(TurnQueue):
    """Limits the time for work of one kind to `seconds` since the first of it in an iteration.

    What there is no time for is added to the queue, and clients take turns.
    """

    def __init__(self, loop: Any, seconds: float) -> None:
        super().__init__(loop, seconds)
        self._loop = loop
        self._iteration = -1
        self._until = 0.0  # in that iteration

    def has_time(self, now: float) -> bool:
        """Whether there is time for more in this iteration, and nothing waits that has to come first."""
        # Hot: runs for every read and every flush.
        iteration = self._loop.iteration
        if iteration != self._iteration:
            self._iteration, self._until = iteration, now + self._seconds
        return now <= self._until and not self._waiting


class Flushable(Protocol):
    """A connection with something to send."""

    @property
    def client(self) -> str:
        """The address of the other side. Addresses take turns where flushes take long."""

    def flush_when_due(self) -> None:
        """Send it. Must not raise, because other connections follow."""


class LoopTick:
    """The work at the end of an event-loop iteration: first `calls`, then a flush of the connections in `due`.

    A connection sets `is_reading` while it reads from its socket, and then calls `run` if there is work. Code that adds
    work at other times calls `schedule`.

    Reads and flushes take some time of an iteration. One client with hundreds of connections that have much to execute
    or to compress does not hold up another one.
    """

    def __init__(self, loop: Any) -> None:
        self.due: list[Flushable] = []
        self.calls: list[Callable[[], None]] = []
        self.is_reading = False
        self.reads = TimeLimit(loop, _MAX_READ_SECONDS)
        self.flushes = TimeLimit(loop, _MAX_FLUSH_SECONDS)
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
            connections, self.due = self.due, []  # connections that are woken meanwhile are flushed after these
            if not self.flushes.has_time(time.monotonic()):
                self._put_off(connections)
            else:
                if len(connections) > MAX_FLUSHES:
                    connections, self.due = connections[:MAX_FLUSHES], connections[MAX_FLUSHES:]
                    self.schedule()
                self.flush(connections)

    def flush(self, connections: Sequence[Flushable]) -> None:
        """Flush them in this iteration, as far as there is time."""
        for number, connection in enumerate(connections):
            if number and not self.flushes.has_time(time.monotonic()):
                self._put_off(connections[number:])
                break
            connection.flush_when_due()

    def _put_off(self, connections: Sequence[Flushable]) -> None:
        for connection in connections:
            self.flushes.add(connection.client, connection.flush_when_due)


class AlarmClock:
    """Runs a schedule whenever something in it is due, with one timer that is set to the earliest. Start it once."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._loop = get_hub().loop
        self._timer = self._loop.timer(1e-9)
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
        # Entries that the running schedule adds must not set the timer: the result of `run` includes them.
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
    """Measures the delay of the event loop a few times a second.

    `observe` receives the delay of a timer in wall-clock seconds, and `observe_held` the CPU time that this thread used
    while the timer was overdue. Both miss the part of a long piece of work before the timer's due time.
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
        self._loop.run_callback(self._report, late, min(late, time.thread_time() - self._cpu_at_start))

    def _report(self, late: float, held: float) -> None:
        if not self._is_stopped:
            self._observe(late)
            self._observe_held(held)
            self.start()


# --- Busy polling -----------------------------------------------------------------------------------------------------

MAX_POLL: Final = 100e-6
"""Seconds after which polling without a request ends."""
MAX_GAP: Final = 2 * MAX_POLL
"""Seconds between two requests of a run. They include the time to wake the loop if it sleeps."""
MIN_RUN: Final = 64
"""Requests of a run before the loop polls, so that an unsuccessful poll costs less than 2 us for each of them."""


class BusyPoll:
    """Decides for one event loop whether it polls or sleeps when it has nothing to do.

    A client that waits for each reply lets the event loop sleep between two requests, and waking a process can take
    longer than serving the request. So after a run of requests from one connection in quick succession the loop polls
    its sockets after each further request, until `MAX_POLL` passes without one. Polling does not speed up other loads,
    for which it would only use CPU time (docs/decisions/0025).

    With `fixed_time` it polls for that many seconds after each request (``--busy-poll-time``). `idle` is an idle
    watcher of the loop; `now` is monotonic time.
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
        self._min_run = sys.maxsize  # connections that are still open may call `served`
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

MAX_ENDINGS: Final = 32
"""Connections that end in one iteration, at about 0.1 ms each; thousands may end at once."""
MAX_TURNS: Final = 8
"""Turns of streams in one iteration, at about 0.1 ms each; hundreds may have messages at once."""


MAX_SECONDS: Final = 0.01
"""What callbacks of one queue, or steps of TLS handshakes, may take in one iteration.

A step takes 0.5 to 5 ms, depending on the server's key and on the curve and key that the client chooses, and thousands
of clients may begin at once.
"""


class CallbackQueue:
    """Runs callbacks in FIFO order, at most `limit` of them in each iteration of the event loop, within `MAX_SECONDS`.

    Between two iterations the loop serves its sockets and timers. So a client with a short request waits for one step
    of all long work at most, not for a step of every busy client.
    """

    def __init__(self, hub: Hub, limit: int) -> None:
        self._hub: Any = hub
        self._limit = limit
        self._waiting: deque[Callable[[], object]] = deque()
        # A timer fires once in an iteration. A thousand of the callbacks of a loop may run before sockets are served.
        self._timer = self._hub.loop.timer(0)
        self._is_set = False
        self._iteration = -1
        self._count = 0  # in that iteration
        self._began = 0.0  # the first of these

    def take_slot(self) -> bool:
        """Take one of this iteration's slots, so that the caller may act at once; return whether one was free."""
        return not self._waiting and self._count_one()

    def call(self, callback: Callable[[], None]) -> None:
        """Call it in the hub, in this iteration or a later one, after this method has returned."""
        if self.take_slot():
            self._hub.loop.run_callback(self._call_in_time, callback)
        else:
            self._call_later(callback)

    def _call_in_time(self, callback: Callable[[], object]) -> None:
        """Call it, unless others that took their slots before it have taken long."""
        if time.monotonic() - self._began > MAX_SECONDS:
            self._call_later(callback)
        else:
            callback()

    def _call_later(self, callback: Callable[[], object]) -> None:
        self._waiting.append(callback)
        self._set_timer()

    def wait(self) -> None:
        """Return in a later iteration, when it is the calling greenlet's turn."""
        switch = gevent.getcurrent().switch
        self._call_later(switch)
        try:
            self._hub.switch()
        except BaseException:  # killed, or timed out, while it waited
            if switch in self._waiting:
                self._waiting.remove(switch)
            raise

    def _next(self) -> None:
        """Runs in the hub, once in an iteration while something waits."""
        self._is_set = False
        self._timer.stop()
        try:
            while self._waiting and self._count_one():
                self._waiting.popleft()()
        finally:
            if self._waiting:
                self._set_timer()

    def _count_one(self) -> bool:
        # Hot: runs for every connection that ends.
        iteration = self._hub.loop.iteration
        if iteration != self._iteration:
            self._iteration, self._count, self._began = iteration, 0, time.monotonic()
        if self._count and (self._count >= self._limit or time.monotonic() - self._began > MAX_SECONDS):
            return False
        self._count += 1
        return True

    def _set_timer(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._timer.start(self._next, update=False)


_Queues = tuple[TurnQueue, CallbackQueue, CallbackQueue, TimeLimit]
_queues: "WeakKeyDictionary[Hub, _Queues]" = WeakKeyDictionary()


def _queues_of_this_loop() -> _Queues:
    """The queues of steps of long work, of connections that end, of streams that have messages, and of handshakes."""
    hub = get_hub()
    found = _queues.get(hub)
    if found is None:
        ended, streams = CallbackQueue(hub, MAX_ENDINGS), CallbackQueue(hub, MAX_TURNS)
        work = TurnQueue(hub.loop, most=MAX_SECONDS)
        found = _queues[hub] = work, ended, streams, TimeLimit(hub.loop, MAX_SECONDS)
    return found


def yield_to_loop(client: str | None = None, turn: str = "") -> None:
    """Wait between two steps of long work. Must not be called in the hub, which cannot wait.

    `client` is the address for which this greenlet works from now on; steps for different ones take turns. Work for
    which other clients wait has a `turn` of its own instead, with any text that is no address.
    """
    greenlet: Any = gevent.getcurrent()
    if client is not None:
        greenlet.works_for = client
    _queues_of_this_loop()[0].wait(turn or getattr(greenlet, "works_for", ""))


class ClientLocks:
    """A lock for each address for which greenlets work (see `yield_to_loop`), for work that takes much memory."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[Semaphore, list[None]]] = {}  # with an item for each greenlet that has it or waits

    @contextmanager
    def mine(self) -> Iterator[None]:
        """Hold the lock of this greenlet's client. Others wait in FIFO order."""
        client = getattr(gevent.getcurrent(), "works_for", "")
        lock, users = self._locks.setdefault(client, (Semaphore(), []))
        users.append(None)
        try:
            with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[client]


def endings() -> CallbackQueue:
    """The queue of connections that end."""
    return _queues_of_this_loop()[1]


def turns() -> CallbackQueue:
    """The queue of streams that have messages to encode."""
    return _queues_of_this_loop()[2]


def handshakes() -> TimeLimit:
    """The limit of steps of TLS handshakes."""
    return _queues_of_this_loop()[3]
