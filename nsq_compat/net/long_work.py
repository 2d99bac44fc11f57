"""Long work on the event loop, cut into steps: between any two steps the loop looks at its sockets and timers.

However many greenlets have such work, one of them does one step in each iteration of the loop, in the order in which
they asked. So a client that asks for little waits for one step at most, and not for one of every busy client.
"""

from collections import deque
from typing import Any, Final
from weakref import WeakKeyDictionary

import gevent
from gevent.hub import Hub, get_hub

A_TURN: Final = 1e-9
"""Seconds until the loop has looked at its sockets. Not zero: a thousand callbacks pass before it does."""


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
