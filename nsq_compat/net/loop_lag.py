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
        self._loop = gevent.get_hub().loop
        self._timer = self._loop.timer(interval, repeat=interval)
        self._due = 0.0
        self._over = False

    def start(self) -> None:
        self._due = time.monotonic() + self._interval
        self._timer.again(self._ring, update=True)

    def stop(self) -> None:
        self._over = True
        self._timer.close()

    def _ring(self) -> None:
        # A timer that is nearly due goes off when a client wakes the loop, before that client is heard. What need not
        # be done at once is not what to let it wait for.
        self._loop.run_callback(self._tell, max(0.0, time.monotonic() - self._due))

    def _tell(self, late: float) -> None:
        if not self._over:
            self._observe(late)
            self.start()
