"""How late the event loop is, and how much of that was one piece of work that let nothing else run.

Looked at a few times a second, which costs nothing. *Late* is wall-clock time and includes what other processes took of
the CPU. *Held* is the CPU time this thread used while the timer was overdue: with one timer the part of a long piece of
work that lies behind the timer's due time is seen, so the longest value seen is a lower bound.
"""

import time
from collections.abc import Callable

import gevent

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
