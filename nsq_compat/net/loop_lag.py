"""How late the event loop is: what waits for its turn waits that long.

Looked at a few times a second, which costs nothing; a loop that is busy with one thing for a second is found out.
"""

import time
from collections.abc import Callable

import gevent

_INTERVAL_SECONDS = 0.25


class LoopLag:
    """Tells `observe` how many seconds late it was woken, again and again."""

    def __init__(self, observe: Callable[[float], None], interval: float = _INTERVAL_SECONDS) -> None:
        self._observe = observe
        self._interval = interval
        self._watching: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        self._watching = gevent.spawn(self._watch)

    def stop(self) -> None:
        if self._watching is not None:
            self._watching.kill()

    def _watch(self) -> None:
        while True:
            due = time.monotonic() + self._interval
            gevent.sleep(self._interval)
            self._observe(max(0.0, time.monotonic() - due))
