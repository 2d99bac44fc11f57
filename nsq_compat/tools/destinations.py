"""The choice among several destinations for a message, in the modes of NSQ's utilities.

    round-robin      each in turn
    hostpool         each healthy one in turn: one that fails is skipped for 30 s, and each time it fails again for
                     twice as long, up to 15 min
    epsilon-greedy   healthy ones by their speed; sometimes any of them, to measure it

The caller names the destinations that have failed this message, and gets another one until none is left. When no other
destination is healthy, skipped ones count as healthy again, because the network may have failed.

May be used by any thread. Given the same clock and random numbers, the choices are the same.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

FIRST_PENALTY: Final = 30.0
MAX_PENALTY: Final = 900.0
FIRST_EPSILON: Final = 0.3
"""The probability of choosing any destination, which decreases each time."""
MIN_EPSILON: Final = 0.01
_EPSILON_DECAY: Final = 0.9
WINDOW: Final = 300.0
"""Seconds for which a measured time counts, with decreasing weight."""
_SPANS: Final = 30
_MIN_SECONDS: Final = 1e-6
"""Bounds the speed of a destination."""


@dataclass
class Destinations:
    """Round-robin, and the common part of the modes: turns, and one lock."""

    addresses: Sequence[str]
    """One or more; one that is named twice has two turns."""
    clock: Callable[[], float] = time.monotonic
    random: Random = field(default_factory=Random)
    _turn: int = field(default=1, init=False)  # nsq_to_http: the second one is the first
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def choose(self, failed: Collection[str] = ()) -> str | None:
        """The next destination that has not failed this message; None if all have."""
        with self._lock:
            others = [each for each in self._in_turn() if each not in failed]
            return self._choose(others, self.clock()) if others else None

    def succeeded(self, address: str, seconds: float) -> None:
        """It has accepted a message in so many seconds."""

    def failed(self, address: str) -> None:
        """It has not accepted a message."""

    def _choose(self, others: Sequence[str], now: float) -> str:
        """Choose one of these, which are in the order of their turns."""
        return self._take(others[0])

    def _in_turn(self) -> list[str]:
        return [*self.addresses[self._turn :], *self.addresses[: self._turn]]

    def _take(self, address: str) -> str:
        """Move the turn behind `address`."""
        self._turn = (self._turn + self._in_turn().index(address) + 1) % len(self.addresses)
        return address


@dataclass
class HostPool(Destinations):
    _turn: int = field(default=0, init=False)
    _penalties: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)
    """Of destinations that are not healthy: until when, and for how long."""

    def _choose(self, others: Sequence[str], now: float) -> str:
        allowed = [each for each in others if self._may_be_tried(each, now)]
        if not allowed:
            for each in others:
                self._penalties.pop(each, None)
        return self._try(self._take((allowed or others)[0]), now)

    def _may_be_tried(self, address: str, now: float) -> bool:
        return address not in self._penalties or self._penalties[address][0] < now

    def _try(self, address: str, now: float) -> str:
        """A penalized destination is tried once; the penalty is doubled until it succeeds."""
        if address in self._penalties:
            penalty = min(2 * self._penalties[address][1], MAX_PENALTY)
            self._penalties[address] = (now + penalty, penalty)
        return address

    def succeeded(self, address: str, seconds: float) -> None:
        with self._lock:
            self._penalties.pop(address, None)

    def failed(self, address: str) -> None:
        with self._lock:
            self._penalties.setdefault(address, (self.clock() + FIRST_PENALTY, FIRST_PENALTY))


@dataclass(slots=True)
class _Speed:
    """Recent times of a destination."""

    _spans: dict[int, tuple[int, float]] = field(default_factory=dict)
    """The count and sum of the times in each part of the window, the oldest first."""

    def measured(self, seconds: float, now: float) -> None:
        number = _span_number(now)
        count, total = self._spans.get(number, (0, 0.0))
        self._spans[number] = (count + 1, total + seconds)
        if len(self._spans) > _SPANS:
            del self._spans[next(iter(self._spans))]

    def average(self, now: float) -> float | None:
        """The weighted average, in which recent times count more; None without times."""
        oldest = _span_number(now) - _SPANS
        means = {number - oldest: total / count for number, (count, total) in self._spans.items() if number > oldest}
        return sum(weight * mean for weight, mean in means.items()) / sum(means) if means else None


def _span_number(now: float) -> int:
    return int(now * _SPANS / WINDOW)


@dataclass
class EpsilonGreedy(HostPool):
    _epsilon: float = field(default=FIRST_EPSILON, init=False)
    _speeds: defaultdict[str, _Speed] = field(default_factory=lambda: defaultdict(_Speed), init=False)

    def _choose(self, others: Sequence[str], now: float) -> str:
        if self.random.random() < self._epsilon:
            self._epsilon = max(MIN_EPSILON, self._epsilon * _EPSILON_DECAY)
            return super()._choose(others, now)
        shares = {
            each: 1 / max(average, _MIN_SECONDS)
            for each in others
            if self._may_be_tried(each, now) and (average := self._speeds[each].average(now)) is not None
        }
        if not shares:
            return super()._choose(others, now)
        return self._try(self.random.choices(list(shares), list(shares.values()))[0], now)

    def succeeded(self, address: str, seconds: float) -> None:
        super().succeeded(address, seconds)
        with self._lock:
            self._speeds[address].measured(seconds, self.clock())


MODES: Final = {"round-robin": Destinations, "hostpool": HostPool, "epsilon-greedy": EpsilonGreedy}
