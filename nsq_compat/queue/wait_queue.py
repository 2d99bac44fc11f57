"""Whose turn it is: the consumers of a channel that found nothing and wait, and those that were woken and are to come.

Invariants of a ``WaitQueue``:

- No more consumers are woken than there are frames, and they are woken in turn.
- What one of them gets is capped by its share of what is there, with the others that were woken in mind.

A ``Throttle`` stands in front of either: a token bucket, so that consumers get messages at no more than a rate. There
is no polling: consumers that find the bucket empty wait as they do when there is no message, and an alarm, set to when
there will be a token, wakes as many of them as there are tokens, in order.

With topology-aware consumption (``ZoneWaitQueue``) the same holds for each locality by itself, and:

- Nobody is woken, and nobody is given anything, while somebody nearer is awake; and whoever is awake comes, or stands
  back. So nothing waits for a consumer nearby that does not take it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from nsq_compat.queue.in_flight import NEVER
from nsq_compat.queue.schedule import Schedule

TICK_SECONDS: Final = 0.005
"""Between two alarms, at least: a high rate comes in small batches."""
_ROUNDING: Final = 1e-9


class Locality(IntEnum):
    """How near a consumer is to the daemon, nearest first (nsqd's names)."""

    ZONE_LOCAL = 0
    REGION_LOCAL = 1
    GLOBAL = 2


class Waiting(Protocol):
    """Whoever stands in a line."""

    locality: Locality

    def wake(self) -> None:
        """Frames may be there to take. Must not take them at once: it is called from within `put`."""


class WaitQueue:
    """Everybody is equally near."""

    def __init__(self) -> None:
        self.waiting: set[Waiting] = set()
        """Everybody who asked and found nothing."""
        self._order: deque[Waiting] = deque()  # the same, who came first before the others
        self._add_last = self._order.append  # compiled, looking for a method costs as much as calling it
        self._take_first = self._order.popleft
        self._woken: set[Waiting] = set()  # and has not asked since

    def share(self, consumer: Waiting, depth: int) -> int:
        """A consumer asks: so many of the frames that are there may be its own."""
        # Hot: runs for every delivery.
        return _share(self._woken, consumer, depth)

    def wait(self, consumer: Waiting) -> None:
        """It wants to be woken; asking again does not cost its place in the line."""
        # Hot: runs for every delivery that leaves nothing; an ``OrderedDict`` takes twice as long.
        if consumer not in self.waiting:
            self.waiting.add(consumer)
            self._add_last(consumer)

    def leave(self, consumer: Waiting) -> bool:
        """It wants nothing for now. Returns whether it was to come, so that somebody else may."""
        if _removed(self.waiting, consumer):  # seldom: who leaves has as a rule just been given something
            self._order.remove(consumer)
        return _removed(self._woken, consumer)

    def wake(self, depth: int) -> None:
        """So many frames are there."""
        while self._order and len(self._woken) < depth:
            consumer = self._take_first()
            self.waiting.remove(consumer)
            self._woken.add(consumer)
            consumer.wake()


class ZoneWaitQueue(WaitQueue):
    """A line for each locality, the nearer before the farther; counts what each was given."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = [0 for _ in Locality]
        self._tiers = [_Tier() for _ in Locality]

    def share(self, consumer: Waiting, depth: int) -> int:
        tier = self._tiers[consumer.locality]
        tier.coming.discard(consumer)
        share = _share(tier.woken, consumer, depth)
        nearer = self._tiers[: consumer.locality]
        return 0 if any(each.is_awake for each in nearer) else share

    def wait(self, consumer: Waiting) -> None:
        if consumer not in self.waiting:
            self.waiting.add(consumer)
            self._tiers[consumer.locality].order.append(consumer)

    def leave(self, consumer: Waiting) -> bool:
        tier = self._tiers[consumer.locality]
        if _removed(self.waiting, consumer):
            tier.order.remove(consumer)
        was_coming = _removed(tier.coming, consumer)
        return _removed(tier.woken, consumer) or was_coming

    def wake(self, depth: int) -> None:
        for tier in self._tiers:
            while tier.order and len(tier.woken) < depth:
                consumer = tier.order.popleft()
                self.waiting.remove(consumer)
                tier.woken.add(consumer)
                consumer.wake()
            if tier.is_awake:
                break

    def took(self, consumer: Waiting, count: int, room: int, depth: int, now: float) -> None:
        """It was given `count` of the frames it had room for, and `depth` are left; what time it is matters to none."""
        self.counts[consumer.locality] += count
        if depth and 0 < count < room:
            self._tiers[consumer.locality].coming.add(consumer)
        self.wake(depth)


class _Tier:
    """The consumers of one locality."""

    def __init__(self) -> None:
        self.order: deque[Waiting] = deque()  # who waits, who came first before the others
        self.woken: set[Waiting] = set()
        self.coming: set[Waiting] = set()  # got some, have room, and come for more by themselves

    @property
    def is_awake(self) -> bool:
        return bool(self.woken or self.coming)


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages a second; `burst` is how many may be delivered at once after a pause."""

    per_second: float
    burst: int


class Throttle(WaitQueue):
    """Stands where the channel's line stood; `line` is that one, and everybody in it stays.

    `wake_channel` makes the channel call `wake`, if there is something and it is not paused.
    """

    def __init__(self, inner: WaitQueue, schedule: Schedule, wake_channel: Callable[[], None]) -> None:
        super().__init__()
        self.inner = inner
        self.waiting = inner.waiting
        self.alarm = NEVER
        self._zones = inner if isinstance(inner, ZoneWaitQueue) else None
        self._schedule = schedule
        self._wake_channel = wake_channel
        self._rate = Rate(1.0, 1)
        self._tokens = 0.0
        self._filled = 0.0  # when that was so

    def follow(self, rate: Rate, now: float) -> None:
        """From now on keep to this rate; the bucket begins full."""
        if rate != self._rate:
            self._rate, self._tokens, self._filled = rate, float(rate.burst), now

    @property
    def is_empty(self) -> bool:
        """Whether a message would have to wait for its token."""
        return self._whole < 1

    @property
    def _whole(self) -> int:
        return int(self._tokens + _ROUNDING)

    # --- As a line ----------------------------------------------------------------------------------------------------

    def share(self, consumer: Waiting, depth: int) -> int:
        return self.inner.share(consumer, min(depth, self._whole))

    def wait(self, consumer: Waiting) -> None:
        self.inner.wait(consumer)

    def leave(self, consumer: Waiting) -> bool:
        return self.inner.leave(consumer)

    def wake(self, depth: int) -> None:
        self.inner.wake(min(depth, self._whole))

    def took(self, consumer: Waiting, count: int, room: int, depth: int, now: float) -> None:
        """It was given `count` of the frames it had room for, and `depth` are left."""
        self._fill(now)
        self._tokens -= count
        self._schedule.at(self._next(now), self)
        if self._zones is not None:
            self._zones.took(consumer, count, room, min(depth, self._whole), now)

    # --- As something with an alarm -----------------------------------------------------------------------------------

    def on_alarm(self, now: float) -> float:
        self._fill(now)
        self._wake_channel()
        return self._next(now)

    def _fill(self, now: float) -> None:
        gained = (now - self._filled) * self._rate.per_second
        self._tokens = min(float(self._rate.burst), self._tokens + gained)
        self._filled = now

    def _next(self, now: float) -> float:
        """When there is a token, or all there can be."""
        missing = (1.0 if self.is_empty else self._rate.burst) - self._tokens
        if missing <= _ROUNDING:
            return NEVER
        return now + max(missing / self._rate.per_second, TICK_SECONDS)


def _share(woken: set[Waiting], consumer: Waiting, depth: int) -> int:
    # Those woken and yet to come have their share too, the first to come must not take it all; and what is left over by
    # an even division is for the woken (nsqd: who waits is served before who comes by).
    claims = consumer in woken
    woken.discard(consumer)
    others = len(woken)
    return (depth + (others if claims else 0)) // (others + 1)


def _removed(some: set[Waiting], consumer: Waiting) -> bool:
    """Whether it was there; it is not any more."""
    if consumer not in some:
        return False
    some.remove(consumer)
    return True
