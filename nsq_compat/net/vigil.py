"""Staying awake for a moment, where the next request comes a few microseconds after the last one was answered.

Who awaits each answer before the next request lets the event loop fall asleep in between, and being woken takes longer
than what is asked for. So the loop looks again and again instead, if it can afford to. Asleep it learns what CPU a
request takes, being woken for it included. Awake it may take some more; what it does not take is saved, and spent where
looking takes longer. When that is spent it sleeps until some is saved again. So the CPU it takes stays in proportion to
what the same requests take asleep, whenever they come and however dear waking is. Unless time matters more: then it
looks after each of them.
"""

import os
import time
from collections.abc import Callable
from typing import Any, Final

from gevent.hub import get_hub

ALLOWED: Final = 2.5
"""What CPU a request may take, looking included, to that of one that is slept for."""
MOMENT: Final = 100e-6
"""Seconds of looking until it was in vain, and of CPU to be saved before it is tried."""
MOST: Final = 10 * MOMENT
"""Seconds of CPU that can be saved."""
SAMPLE: Final = 32
"""Requests from which is learned what sleeping takes."""
TERM: Final = 1.0
"""Seconds after which that is learned again."""


class Vigil:
    """One event loop's. Tell it of each request that was answered, and a `patient` one of those still to be.

    `idle` is that loop's watcher for having nothing to do, `now` monotonic seconds, `cpu_time` the seconds of CPU its
    thread has taken, `cpus` how many there are for us. With `patience` it looks for so many seconds after each request,
    whatever that takes.
    """

    def __init__(
        self,
        idle: Any = None,
        now: Callable[[], float] = time.monotonic,
        cpu_time: Callable[[], float] = time.thread_time,
        cpus: int = len(os.sched_getaffinity(0)),
        patience: float = 0.0,
    ) -> None:
        self.awake = False
        self.patient = patience > 0.0
        self._idle = get_hub().loop.idle() if idle is None else idle
        self._now, self._cpu_time = now, cpu_time
        self._may_look = cpus > 1  # whoever is to ask next needs a CPU as well
        self._moment = patience or MOMENT
        self._looking_since = 0.0  # 0: it is not
        self._saved = 0.0  # seconds of CPU; below zero it is to be earned
        self._allowed = 0.0  # the same, for each request
        self._served_at = 0.0
        self._term_ends = 0.0
        self._slept_for = 0  # requests, since the thread had taken this:
        self._cpu_taken = cpu_time()

    def served(self) -> None:
        """A client was, and what it says next may come soon."""
        # Hot: runs for every synchronous PUB of who is alone, and every FIN.
        self._looking_since = 0.0
        if self.awake:
            if not self.patient:
                self._spend()
        elif self.patient:
            self._stay_awake()
        elif self._may_look:
            self._slept_for += 1
            if self._slept_for == SAMPLE:
                self._learn()

    def stop(self) -> None:
        """For good."""
        self._sleep()
        self._idle.close()

    def _spend(self) -> None:
        now = self._now()
        self._saved = min(self._saved + self._allowed - (now - self._served_at), MOST)
        self._served_at = now
        if self._saved < 0.0 or now > self._term_ends:
            self._sleep()

    def _learn(self) -> None:
        before, self._slept_for, self._cpu_taken = self._cpu_taken, 0, self._cpu_time()
        taken = self._cpu_taken - before
        self._allowed = ALLOWED * taken / SAMPLE
        self._saved = min(self._saved + (ALLOWED - 1.0) * taken, MOST)
        if self._saved >= MOMENT:
            self._served_at = self._now()
            self._term_ends = self._served_at + TERM
            self._stay_awake()

    def _look(self) -> None:
        """The event loop has nothing to do."""
        now = self._now()
        if not self._looking_since:
            self._looking_since = now
        elif now - self._looking_since > self._moment:
            self._saved -= now - self._served_at
            self._sleep()

    def _stay_awake(self) -> None:
        self.awake = True
        self._idle.start(self._look)

    def _sleep(self) -> None:
        self.awake = False
        self._looking_since = 0.0
        self._idle.stop()
        self._slept_for, self._cpu_taken = 0, self._cpu_time()
        self._saved = max(self._saved, -MOMENT)  # whatever else the time went into
