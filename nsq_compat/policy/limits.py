"""Limits on a topic's or channel's backlog: max_depth, max_bytes, max_age. Beyond, publishes are refused or the oldest
messages dropped.

A ``LimitEnforcer`` is the admission check of a topic that has limits. It checks the number of messages at each publish.
It checks their bytes and age when its alarm fires: soon after a publish, and every second while messages wait. Then it
also drops the excess, in parts.

Invariants: a publish is refused as a whole, before any of it is stored; messages that are dropped or refused are
counted, and logged from time to time.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from nsq_compat.policy.policies import Bounds
from nsq_compat.protocol.message import timestamp_ns
from nsq_compat.queue.backlog import Backlog
from nsq_compat.queue.errors import Refused
from nsq_compat.queue.frame_queue import ANY_SIZE
from nsq_compat.queue.in_flight import NEVER
from nsq_compat.queue.schedule import Schedule

log = logging.getLogger(__name__)

SOON_SECONDS: Final = 0.1
"""After a publish, until bytes and ages are looked at."""
LOOK_SECONDS: Final = 1.0
LOG_SECONDS: Final = 10.0
"""Between two log lines about the same."""
_AT_ONCE: Final = 1024
"""Messages dropped in one turn of the event loop, so that nobody waits for it."""
_PAUSE_SECONDS: Final = 0.001
"""Between two such turns."""
_NS_PER_SECOND: Final = 1_000_000_000


class LogThrottle:
    """Counts what happens too often to be logged each time, and says now and then how many there were."""

    def __init__(self) -> None:
        self._count = 0
        self._silent_until = 0.0

    def add(self, count: int, now: float) -> int:
        """So many more. Returns how many to speak of now; 0: not yet."""
        self._count += count
        if now < self._silent_until:
            return 0
        said, self._count = self._count, 0
        self._silent_until = now + LOG_SECONDS
        return said


class Full(Refused):
    """As much waits as may. The text is for the client."""


class Bounded(Protocol):
    """A channel, or what a topic holds."""

    backlog: Backlog
    dropped_count: int
    rejected_count: int

    @property
    def full_name(self) -> str:
        """For log lines and clients: ``topic orders``, ``channel orders:archive``."""

    def drop_oldest(self, limit: int, max_bytes: int) -> int:
        """Take out what would be taken next, count it as dropped, return how many. Raises ``OSError``."""


class Limited:
    """One bounded thing, its bounds, and what was found when it was looked at."""

    def __init__(self, target: Bounded, bounds: Bounds) -> None:
        self.target = target
        self.bounds = bounds
        self.full = ""
        """Which bound publishing is refused for, of those that are not looked at every time."""
        self.is_unreadable = False
        self._dropped = LogThrottle()
        self._rejected = LogThrottle()

    def refuse(self, count: int, now: float, bound: str) -> None:
        """Count and raise."""
        self.target.rejected_count += count
        if said := self._rejected.add(count, now):
            log.warning("%s is full (%s): %d messages refused", self.target.full_name, bound, said)
        raise Full(f"{self.target.full_name} is full ({bound})")

    def enforce(self, now: float, now_ns: int) -> bool:
        """Drop what is too much, or remember that it is. Returns whether there is more to drop. Raises ``OSError``."""
        if not self.bounds.drops:
            self.full = self._found(now_ns)
            return False
        count = self._drop(now_ns)
        if count and (said := self._dropped.add(count, now)):
            log.warning("%s holds too much: %d oldest messages dropped", self.target.full_name, said)
        return count > 0

    def _found(self, now_ns: int) -> str:
        bounds, target = self.bounds, self.target
        if bounds.max_bytes is not None and target.backlog.byte_count() >= bounds.max_bytes:
            return "max_bytes"
        if bounds.max_age is not None and self._too_old(now_ns, target.backlog.peek_waiting(1)):
            return "max_age"
        return ""

    def _drop(self, now_ns: int) -> int:
        bounds, target = self.bounds, self.target
        if bounds.max_depth is not None and (excess := len(target.backlog) - bounds.max_depth) > 0:
            return target.drop_oldest(min(excess, _AT_ONCE), ANY_SIZE)
        if bounds.max_bytes is not None and (excess := target.backlog.byte_count() - bounds.max_bytes) > 0:
            return target.drop_oldest(_AT_ONCE, excess)
        if bounds.max_age is not None and (old := self._too_old(now_ns, target.backlog.peek_waiting(_AT_ONCE))):
            return target.drop_oldest(old, ANY_SIZE)
        return 0

    def _too_old(self, now_ns: int, frames: Sequence[bytes]) -> int:
        """How many of these, from the first on."""
        assert self.bounds.max_age is not None, "asked only then"
        oldest = now_ns - int(self.bounds.max_age * _NS_PER_SECOND)
        return next((number for number, frame in enumerate(frames) if timestamp_ns(frame) >= oldest), len(frames))


class Holding(Protocol):
    """A topic."""

    @property
    def is_holding(self) -> bool:
        """Whether what is published waits in the topic, and not in its channels."""


class LimitEnforcer:
    """Of one topic: what it holds, if that is bounded, and its bounded channels. `now_ns` is the wall clock."""

    def __init__(
        self,
        schedule: Schedule,
        held: Limited | None,
        channels: Sequence[Limited],
        topic: Holding,
        now_ns: Callable[[], int],
    ) -> None:
        self.alarm = NEVER
        self._schedule = schedule
        self._held = held
        self._channels = channels
        self._topic = topic
        self._now_ns = now_ns

    def begin(self, now: float) -> None:
        """Peek at what is there already."""
        self._schedule.at(now, self)

    def end(self) -> None:
        """Peek no more."""
        self._schedule.cancel(self)

    def admit(self, count: int, now: float) -> None:
        """Somebody publishes so many messages. Raises ``Full``."""
        for kept in self._receivers():
            bounds = kept.bounds
            too_deep = bounds.max_depth is not None and len(kept.target.backlog) + count > bounds.max_depth
            if bounds.drops:
                self._schedule.at(now if too_deep else now + SOON_SECONDS, self)
            elif too_deep or kept.full:
                self._schedule.at(now + SOON_SECONDS, self)
                kept.refuse(count, now, "max_depth" if too_deep else kept.full)
            elif bounds.max_bytes is not None or bounds.max_age is not None:
                self._schedule.at(now + SOON_SECONDS, self)

    def on_alarm(self, now: float) -> float:
        """Peek at everything."""
        now_ns = self._now_ns()
        more = False
        for kept in self._all():
            try:
                more |= kept.enforce(now, now_ns)
                kept.is_unreadable = False
            except OSError as error:
                if not kept.is_unreadable:
                    log.warning("%s cannot be looked at, trying again - %s", kept.target.full_name, error)
                kept.is_unreadable = True
        if more:
            return now + _PAUSE_SECONDS
        return now + LOOK_SECONDS if any(len(kept.target.backlog) for kept in self._all()) else NEVER

    def _receivers(self) -> Iterator[Limited]:
        """Who gets what is published now."""
        if not self._topic.is_holding:
            yield from self._channels
        elif self._held is not None:
            yield self._held

    def _all(self) -> list[Limited]:
        return [*self._channels, *([self._held] if self._held is not None else [])]
