"""Long work on the event loop, cut into steps: between two steps the loop serves its sockets and timers.

However many greenlets have such work, one of them does one step in each iteration, in the order in which they asked. A
client with a short request waits for one step at most, not for a step of every busy client.

`Endings` does the same for connections that end. Thousands may end at once, and each takes a tenth of a millisecond.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

import gevent
from gevent.hub import Hub, get_hub

_NEXT_ITERATION: Final = 1e-9
"""Seconds of a timer that fires after the sockets were served. Not zero: a thousand callbacks run before that."""
MAX_ENDINGS: Final = 32
"""Connections that end in one iteration, at some 0.1 ms each."""


class StepQueue:
    """The greenlets of one event loop that wait for their next step."""

    def __init__(self, hub: Hub) -> None:
        self._hub: Any = hub
        self._waiting: deque[Any] = deque()
        self._timer = self._hub.loop.timer(_NEXT_ITERATION)
        self._is_set = False

    def wait(self) -> None:
        """Return when it is the calling greenlet's turn."""
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
        """Resume one greenlet; runs in the hub, once in an iteration."""
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
    """Wait between two steps of long work. Not to be called in the hub, which cannot wait."""
    hub = get_hub()
    queue = _queues.get(hub)
    if queue is None:
        queue = _queues[hub] = StepQueue(hub)
    queue.wait()


class Endings:
    """Runs the callbacks of connections that end, `MAX_ENDINGS` in one iteration of an event loop."""

    def __init__(self, hub: Hub) -> None:
        self._loop: Any = hub.loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._timer = self._loop.timer(_NEXT_ITERATION)
        self._count = 0  # in this iteration

    def may_go_first(self) -> bool:
        """Take a place in this iteration; return whether there was one."""
        if self._waiting or self._count >= MAX_ENDINGS:
            return False
        self._add_one()
        return True

    def call(self, end: Callable[[], None]) -> None:
        """Call `end` in the hub soon, but not within this call."""
        if self.may_go_first():
            self._loop.run_callback(end)
        else:
            self._waiting.append(end)

    def _next(self) -> None:
        """Runs in the hub at the beginning of an iteration."""
        self._timer.stop()
        self._count = 0
        while self._waiting and self._count < MAX_ENDINGS:
            self._add_one()
            self._loop.run_callback(self._waiting.popleft())

    def _add_one(self) -> None:
        if not self._count:
            self._timer.start(self._next, update=False)
        self._count += 1


_endings: "WeakKeyDictionary[Hub, Endings]" = WeakKeyDictionary()


def endings() -> Endings:
    """Those of the calling thread's event loop."""
    hub = get_hub()
    found = _endings.get(hub)
    if found is None:
        found = _endings[hub] = Endings(hub)
    return found
