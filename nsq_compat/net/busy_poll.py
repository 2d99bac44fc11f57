"""Busy polling: keep the event loop awake after a request if the next one is about to come.

A client that waits for each reply lets the event loop sleep between two requests, and waking a process can take longer
than serving the request. So after a run of requests from one connection in quick succession the loop polls its sockets
after each further request, until it has polled in vain. Other loads do not come sooner for it, and would only pay the
CPU (docs/decisions/0025).
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from gevent.hub import get_hub

MAX_POLL: Final = 100e-6
"""Seconds until a poll is in vain."""
MAX_GAP: Final = 2 * MAX_POLL
"""Seconds between two requests of a run. While the loop sleeps, they are further apart by the time to wake it."""
MIN_RUN: Final = 64
"""Requests of a run before the loop polls, so that a poll in vain costs less than 2 us for each of them."""


class BusyPoll:
    """Decides for one event loop whether it polls or sleeps when it has nothing to do.

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
        self._idle.stop()
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
