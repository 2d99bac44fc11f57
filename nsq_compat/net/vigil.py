"""Staying awake for a moment, where the next request comes a few microseconds after the last one was answered.

Who awaits each answer before the next request lets the event loop fall asleep in between, and being woken takes longer
than what is asked for. So the loop looks again and again instead, if it can afford to: every request earns some time,
which looking takes, and looking in vain costs many requests' earnings. Where requests come at other times it is hardly
tried, and nowhere does it take more of a CPU than `EARNED` for each request. Unless time matters more than CPU: then
every request earns all the looking there is patience for.
"""

import os
import time
from collections.abc import Callable
from typing import Any, Final

from gevent.hub import get_hub

EARNED: Final = 64e-6
"""Seconds by each request: where waking is dear, what one takes with a sleep before it."""
MOMENT: Final = 100e-6
"""Seconds of looking until it was in vain."""
PENALTY: Final = 10 * MOMENT


class Vigil:
    """One event loop's. Tell it of each request that was answered, and a `patient` one of those still to be.

    `idle` is that loop's watcher for having nothing to do, `now` monotonic seconds, `cpus` how many there are for us.
    With `patience` it looks for so many seconds after each request, whatever that takes.
    """

    def __init__(
        self,
        idle: Any = None,
        now: Callable[[], float] = time.monotonic,
        cpus: int = len(os.sched_getaffinity(0)),
        patience: float = 0.0,
    ) -> None:
        self.awake = False
        self.patient = patience > 0.0
        self._idle = get_hub().loop.idle() if idle is None else idle
        self._now = now
        self._looking_since = 0.0  # 0: it is not
        self._credit = 0.0
        self._moment, self._penalty = MOMENT, PENALTY
        self._earned = EARNED if cpus > 1 else 0.0  # whoever is to ask next needs a CPU as well
        if self.patient:
            self._moment, self._penalty = patience, 0.0
            self._earned = 2 * patience  # one request is enough, also after one that came too late

    def served(self) -> None:
        """A client was, and what it says next may come soon."""
        # Hot: runs for every synchronous PUB of who is alone, and every FIN.
        self._credit = min(self._credit + self._earned, self._moment)
        if not self.awake:
            if self._credit == self._moment:
                self.awake = True
                self._idle.start(self._look)
        elif self._looking_since:
            self._credit -= self._now() - self._looking_since
            self._looking_since = 0.0
            if self._credit < 0.0:
                self._sleep()

    def stop(self) -> None:
        """For good."""
        self._sleep()
        self._idle.close()

    def _look(self) -> None:
        """The event loop has nothing to do."""
        now = self._now()
        if not self._looking_since:
            self._looking_since = now
        elif now - self._looking_since > self._moment:
            self._credit -= self._penalty
            self._sleep()

    def _sleep(self) -> None:
        self.awake = False
        self._looking_since = 0.0
        self._idle.stop()
