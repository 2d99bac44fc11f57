"""Staying awake between two requests, where those who ask come sooner for it.

Who awaits each answer before the next request lets the event loop fall asleep in between, and being woken takes longer
than what is asked for. So the loop looks again and again instead, where that pays and as far as it can afford to.
Asleep it learns how soon one request follows another and what CPU one takes, being woken for it included. Then it is
awake for a while. A request may take some more CPU then; what it does not take is saved, and spent where looking takes
longer, and when that is spent it sleeps again. And if requests came no sooner than before, since they come at their own
times, it sleeps for twice as many as the last time. Unless time matters more: then it looks after each of them.
"""

import os
import time
from collections.abc import Callable
from typing import Any, Final

from gevent.hub import get_hub

ALLOWED: Final = 1.15
"""What CPU a request may take, looking included, to that of one that is slept for."""
SOONER: Final = 0.8
"""The time from one request to the next that shows that looking pays, to that of those that are slept for."""
MOMENT: Final = 100e-6
"""Seconds of looking until it was in vain, and of CPU to be saved before it is tried."""
MOST: Final = 20 * MOMENT
"""Seconds of CPU that can be saved."""
SAMPLE: Final = 256
"""Requests that are slept for before it is tried where it paid the last time, and from which is learned."""
MOST_SLEPT_FOR: Final = 32 * SAMPLE
"""The same where it did not pay many times in a row."""
TERM: Final = 1.0
"""Seconds after which it sleeps to learn again."""


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
        self._dozes = self.patient  # until somebody comes, and then looks
        self._sleeps_for = SAMPLE  # requests
        self._requests = 0  # since it began to sleep, or to look:
        self._began, self._cpu_taken = now(), cpu_time()
        self._gap = 0.0  # seconds from one request to the next while it slept
        self._saved = 0.0  # seconds of CPU; below zero it is to be earned
        self._allowed = 0.0  # the same, for each request
        self._served_at = 0.0

    def served(self) -> None:
        """A client was, and what it says next may come soon."""
        # Hot: runs for every synchronous PUB of who is alone, and every FIN.
        self._looking_since = 0.0
        if self.awake:
            if not self.patient:
                self._spend()
        elif self._dozes:
            self._go_on()
        elif self._may_look:
            self._requests += 1
            if self._requests == self._sleeps_for:
                self._learn()

    def stop(self) -> None:
        """For good."""
        self._may_look = False
        self._sleep()
        self._idle.close()

    def _spend(self) -> None:
        now = self._now()
        self._requests += 1
        self._saved = min(self._saved + self._allowed - (now - self._served_at), MOST)
        self._served_at = now
        if self._saved < 0.0 or now - self._began > TERM:
            self._judge(now)

    def _go_on(self) -> None:
        self._dozes = False
        self._requests += 1
        self._served_at = self._now()
        self._stay_awake()

    def _learn(self) -> None:
        now, taken = self._now(), self._cpu_time() - self._cpu_taken
        self._gap = (now - self._began) / self._requests
        self._allowed = ALLOWED * taken / self._requests
        self._saved = min(self._saved + (ALLOWED - 1.0) * taken, MOST)
        self._begin(now)
        if self._saved >= MOMENT:
            self._served_at = now
            self._stay_awake()

    def _look(self) -> None:
        """The event loop has nothing to do."""
        now = self._now()
        if not self._looking_since:
            self._looking_since = now
        elif now - self._looking_since > self._moment:
            self._saved -= now - self._served_at
            if self.patient or self._saved >= 0.0:
                self._doze()
            else:
                self._judge(now)

    def _judge(self, now: float) -> None:
        """Whether it was worth it tells how soon it is tried again."""
        if now - self._began < SOONER * self._gap * self._requests:
            self._sleeps_for = SAMPLE
        else:
            self._sleeps_for = min(2 * self._sleeps_for, MOST_SLEPT_FOR)
        self._sleep()

    def _stay_awake(self) -> None:
        self.awake = True
        self._idle.start(self._look)

    def _doze(self) -> None:
        self.awake, self._dozes = False, True
        self._idle.stop()

    def _sleep(self) -> None:
        self.awake = self._dozes = False
        self._looking_since = 0.0
        self._idle.stop()
        self._saved = max(self._saved, -MOMENT)  # whatever else the time went into
        self._begin(self._now())

    def _begin(self, now: float) -> None:
        self._requests, self._began, self._cpu_taken = 0, now, self._cpu_time()
