"""Whose turn it is: the consumers of a channel that found nothing and wait, and those that were woken and are to come.

Invariants of a ``Line``:

- No more consumers are woken than there are frames, and they are woken in turn.
- What one of them gets is capped by its share of what is there, with the others that were woken in mind.

With topology-aware consumption (``NearestFirst``) the same holds for each locality by itself, and:

- Nobody is woken, and nobody is given anything, while somebody nearer is awake; and whoever is awake comes, or stands
  back. So nothing waits for a consumer nearby that does not take it.
"""

from collections import deque
from enum import IntEnum
from typing import Protocol


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


class Line:
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


class NearestFirst(Line):
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
