"""Long work on the event loop, cut into steps: between any two steps the loop looks at its sockets and timers.

However many greenlets have such work, one of them does one step in each iteration of the loop, in the order in which
they asked. So a client that asks for little waits for one step at most, and not for one of every busy client.

`Endings` does the same for connections that end: thousands may end at once, and each takes a tenth of a millisecond.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

import gevent
from gevent.hub import Hub, get_hub

A_TURN: Final = 1e-9
"""Seconds until the loop has looked at its sockets. Not zero: a thousand callbacks pass before it does."""
ENDINGS_AT_ONCE: Final = 32
"""Calls in one iteration of the loop, each of some 0.1 ms."""


class StepQueue:
    """One event loop's: the greenlets that wait for their next step."""

    def __init__(self, hub: Hub) -> None:
        self._hub: Any = hub
        self._waiting: deque[Any] = deque()
        self._timer = self._hub.loop.timer(A_TURN)
        self._is_set = False

    def wait(self) -> None:
        """Returns when it is the calling greenlet's turn."""
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
        """Runs in the hub, once in an iteration of the loop."""
        self._is_set = False
        self._timer.stop()
        if self._waiting:
            switch = self._waiting.popleft()
            if self._waiting:
                self._set_timer()
            switch()

    def _set_timer(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._timer.start(self._next, update=False)


_queues: "WeakKeyDictionary[Hub, StepQueue]" = WeakKeyDictionary()


def let_others_run() -> None:
    """Between two steps of long work. Not for the hub itself, which cannot wait."""
    hub = get_hub()
    queue = _queues.get(hub)
    if queue is None:
        queue = _queues[hub] = StepQueue(hub)
    queue.wait()


class Endings:
    """One event loop's: what is done for connections that end, `ENDINGS_AT_ONCE` of it in an iteration of the loop."""

    def __init__(self, hub: Hub) -> None:
        self._loop: Any = hub.loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._timer = self._loop.timer(A_TURN)
        self._count = 0  # in this iteration

    def may_go_first(self) -> bool:
        """Whether there is room in this iteration, which is then taken."""
        if self._waiting or self._count >= ENDINGS_AT_ONCE:
            return False
        self._add_one()
        return True

    def call(self, end: Callable[[], None]) -> None:
        """Soon, and not from within this call; the hub calls it."""
        if self.may_go_first():
            self._loop.run_callback(end)
        else:
            self._waiting.append(end)

    def _next(self) -> None:
        """Runs in the hub at the beginning of an iteration."""
        self._timer.stop()
        self._count = 0
        while self._waiting and self._count < ENDINGS_AT_ONCE:
            self._add_one()
            self._loop.run_callback(self._waiting.popleft())

    def _add_one(self) -> None:
        if not self._count:
            self._timer.start(self._next, update=False)
        self._count += 1


_endings: "WeakKeyDictionary[Hub, Endings]" = WeakKeyDictionary()


def endings() -> Endings:
    """Of the calling thread's event loop."""
    hub = get_hub()
    found = _endings.get(hub)
    if found is None:
        found = _endings[hub] = Endings(hub)
    return found
