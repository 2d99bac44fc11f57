"""The wait queue of a channel: idle consumers in FIFO order, and woken ones that have not taken frames yet.

Invariants of a ``WaitQueue``:

- No more consumers are woken than there are frames, and they are woken in turn.
- A consumer takes at most its share of the frames. The other woken consumers have theirs.

A ``Throttle`` wraps either kind, so that deliveries do not exceed a rate (with a token bucket) or a number in flight,
or all go to one consumer. There is no polling: a consumer that may not take a message waits as if there was none. An
alarm, set for the next token or after an answer, wakes as many consumers as may take one, in order.

With topology-aware consumption (``ZoneWaitQueue``) the same holds for each locality by itself, and:

- No consumer is woken or given frames while a nearer one is awake. An awake one takes frames, or stands back. So no
  message waits for a nearby consumer that does not take it.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from nsq_compat.queue.schedule import AT_ONCE, NEVER, Schedule

TICK_SECONDS: Final = 0.005
"""Minimum time between two alarms, so that at a high rate messages are delivered in small batches."""
_ROUNDING: Final = 1e-9


class Locality(IntEnum):
    """How near a consumer is to the daemon, nearest first. The names are nsqd's."""

    ZONE_LOCAL = 0
    REGION_LOCAL = 1
    GLOBAL = 2


class Waiting(Protocol):
    """A consumer, as the wait queue sees it."""

    locality: Locality

    def wake(self) -> None:
        """Note that there may be frames. Must not take them yet, because it is called from within `put`."""


class WaitQueue:
    """The wait queue of consumers that are all equally near."""

    def __init__(self) -> None:
        self.waiting: set[Waiting] = set()
        """Consumers that found no frame."""
        self._order: deque[Waiting] = deque()  # the same, in FIFO order
        self._add_last = self._order.append  # compiled, looking up a method costs as much as calling it
        self._take_first = self._order.popleft
        self.woken: set[Waiting] = set()
        """Consumers that were woken and have not taken frames since."""

    def share(self, consumer: Waiting, depth: int) -> int:
        """Return how many of the frames a consumer may take.

        Other woken consumers have their share too: the first one must not take all. The remainder of the division is
        for woken consumers. nsqd: a waiting consumer is served before one that is not.
        """
        # Hot: runs for every delivery.
        woken = self.woken
        claims = consumer in woken
        woken.discard(consumer)
        others = len(woken)
        return (depth + (others if claims else 0)) // (others + 1)

    def wait(self, consumer: Waiting) -> None:
        """Add a consumer, unless it waits already."""
        # Hot: runs for every delivery that empties the backlog. An ``OrderedDict`` takes twice as long.
        if consumer not in self.waiting:
            self.waiting.add(consumer)
            self._add_last(consumer)

    def leave(self, consumer: Waiting) -> bool:
        """Remove a consumer; returns whether it was woken, so that another one should be."""
        if _removed(self.waiting, consumer):  # rare: usually it has just taken frames
            self._order.remove(consumer)
        return _removed(self.woken, consumer)

    def wake(self, depth: int) -> None:
        """Wake consumers for `depth` frames."""
        while self._order and len(self.woken) < depth:
            consumer = self._take_first()
            self.waiting.remove(consumer)
            self.woken.add(consumer)
            consumer.wake()

    def wake_only(self, consumer: Waiting) -> None:
        """Wake this consumer, if it waits."""
        if _removed(self.waiting, consumer):
            self._order.remove(consumer)
            self.woken.add(consumer)
            consumer.wake()


class _Tier(WaitQueue):
    """The consumers of one locality; `waiting` are those of all."""

    def __init__(self, waiting: set[Waiting]) -> None:
        super().__init__()
        self.waiting = waiting
        self.coming: set[Waiting] = set()  # took frames, have room, and take more by themselves


class ZoneWaitQueue(WaitQueue):
    """A queue for each locality, nearest first. Counts the deliveries of each."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = [0 for _ in Locality]
        self._tiers = [_Tier(self.waiting) for _ in Locality]

    def share(self, consumer: Waiting, depth: int) -> int:
        tier = self._tiers[consumer.locality]
        tier.coming.discard(consumer)
        share = tier.share(consumer, depth)
        nearer = self._tiers[: consumer.locality]
        return 0 if any(each.woken or each.coming for each in nearer) else share

    def wait(self, consumer: Waiting) -> None:
        self._tiers[consumer.locality].wait(consumer)

    def leave(self, consumer: Waiting) -> bool:
        tier = self._tiers[consumer.locality]
        was_coming = _removed(tier.coming, consumer)
        return tier.leave(consumer) or was_coming

    def wake(self, depth: int) -> None:
        for tier in self._tiers:
            tier.wake(depth)
            if tier.woken or tier.coming:
                break

    def wake_only(self, consumer: Waiting) -> None:
        self._tiers[consumer.locality].wake_only(consumer)

    def answered(self) -> None:
        """Nothing depends on answers here."""

    def delivered(self, consumer: Waiting, count: int, room: int, depth: int, now: float) -> None:
        """Note a delivery of `count` frames; `depth` are left. `now` is unused here."""
        self.counts[consumer.locality] += count
        if depth and 0 < count < room:
            self._tiers[consumer.locality].coming.add(consumer)
        self.wake(depth)


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages per second; `burst` is the number that may be delivered at once after a pause."""

    per_second: float
    burst: int


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """Limits of a channel's deliveries, in addition to those of each consumer; None is unlimited."""

    rate: Rate | None = None
    max_in_flight: int | None = None
    """Of all consumers together."""
    is_exclusive: bool = False
    """All messages go to the consumer that subscribed first. When it leaves, the next one follows."""


NO_LIMITS: Final = DeliveryLimits()


class Throttled(Protocol):
    """The channel of a throttle."""

    @property
    def consumers(self) -> Iterable[Waiting]:
        """The consumers, in the order in which they subscribed."""

    @property
    def unanswered_count(self) -> int:
        """The number of messages in flight at consumers, also at those that have left."""

    def wake(self) -> None:
        """Call `wake` of the wait queue, if there are messages and the channel is not paused."""


class Throttle(WaitQueue):
    """Wraps a channel's wait queue, with the consumers in it."""

    def __init__(self, inner: WaitQueue, schedule: Schedule, channel: Throttled) -> None:
        super().__init__()
        self.inner = inner
        self.waiting = inner.waiting
        self.alarm = NEVER
        self._zones = inner if isinstance(inner, ZoneWaitQueue) else None
        self._schedule = schedule
        self._channel = channel
        self._limits = NO_LIMITS
        self._tokens = 0.0
        self._filled = 0.0  # when `_tokens` was computed

    def set_limits(self, limits: DeliveryLimits, now: float) -> None:
        """Change the limits. The bucket of a new rate begins full."""
        if limits == self._limits:
            return
        if limits.rate is not None and limits.rate != self._limits.rate:
            self._tokens, self._filled = float(limits.rate.burst), now
        if self._limits != NO_LIMITS:
            self._schedule.at(AT_ONCE, self)  # more may be allowed now
        self._limits = limits

    @property
    def _whole(self) -> int:
        """The number of messages that need not wait for a token."""
        return int(self._tokens + _ROUNDING)

    def _allowed(self, depth: int) -> int:
        """The number of messages, `depth` at most, that may be delivered now."""
        if self._limits.rate is not None:
            depth = min(depth, self._whole)
        if self._limits.max_in_flight is not None:
            depth = min(depth, max(0, self._limits.max_in_flight - self._channel.unanswered_count))
        return depth

    @property
    def _only(self) -> Waiting | None:
        """The consumer that gets all messages of an exclusive channel."""
        return next(iter(self._channel.consumers), None)

    # --- A wait queue -------------------------------------------------------------------------------------------------

    def share(self, consumer: Waiting, depth: int) -> int:
        if self._limits.is_exclusive and consumer is not self._only:
            self.inner.leave(consumer)  # it may have been woken before the channel became exclusive
            return 0
        return self.inner.share(consumer, self._allowed(depth))

    def wait(self, consumer: Waiting) -> None:
        self.inner.wait(consumer)

    def leave(self, consumer: Waiting) -> bool:
        # Another consumer of an exclusive channel follows, although this one was not woken.
        return self.inner.leave(consumer) or self._limits.is_exclusive

    def wake(self, depth: int) -> None:
        if not self._limits.is_exclusive:
            self.inner.wake(self._allowed(depth))
        elif self._allowed(depth) and (only := self._only) is not None:
            self.inner.wake_only(only)

    def delivered(self, consumer: Waiting, count: int, room: int, depth: int, now: float) -> None:
        if self._limits.rate is not None:
            self._fill(self._limits.rate, now)
            self._tokens -= count
            self._schedule.at(self._next(self._limits.rate, now), self)
        if self._zones is not None:
            depth = 0 if self._limits.is_exclusive else self._allowed(depth)
            self._zones.delivered(consumer, count, room, depth, now)

    def answered(self) -> None:
        """Fewer messages are in flight, or will be after this."""
        if self._limits.max_in_flight is not None and self.waiting:
            self._schedule.at(AT_ONCE, self)

    # --- An alarm -----------------------------------------------------------------------------------------------------

    def on_alarm(self, now: float) -> float:
        if (rate := self._limits.rate) is not None:
            self._fill(rate, now)
        self._channel.wake()
        return NEVER if rate is None else self._next(rate, now)

    def _fill(self, rate: Rate, now: float) -> None:
        gained = (now - self._filled) * rate.per_second
        self._tokens = min(float(rate.burst), self._tokens + gained)
        self._filled = now

    def _next(self, rate: Rate, now: float) -> float:
        """Return when there will be a token, or, if there is one, when the bucket will be full."""
        missing = (rate.burst if self._whole else 1.0) - self._tokens
        if missing <= _ROUNDING:
            return NEVER
        return now + max(missing / rate.per_second, TICK_SECONDS)


def _removed(consumers: set[Waiting], consumer: Waiting) -> bool:
    """Remove a consumer from a set; returns whether it was there."""
    if consumer not in consumers:
        return False
    consumers.remove(consumer)
    return True
