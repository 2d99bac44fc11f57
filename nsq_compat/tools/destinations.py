"""The choice among several destinations for a message, in the modes of NSQ's utilities.

    round-robin      each in turn
    hostpool         each healthy one in turn: one that fails is skipped for 30 s, and each time it fails again for
                     twice as long, up to 15 min
    epsilon-greedy   healthy ones by their speed; sometimes any of them, to measure it

The caller names the destinations that have failed this message, and gets another one until none is left. When no other
destination is healthy, skipped ones count as healthy again, because the network may have failed.

May be used by any thread. Given the same clock and random numbers, the choices are the same.
"""

import random
import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
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
class Destinations(ABC):
    """The common part of the modes: turns, and one lock."""

    addresses: Sequence[str]
    """One or more; one that is named twice has two turns."""
    clock: Callable[[], float] = time.monotonic
    random: Callable[[], float] = random.random
    _turn: int = field(default=0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def choose(self, failed: Collection[str] = ()) -> str | None:
        """The next destination that has not failed this message; None if all have."""
        with self._lock:
            others = [each for each in self._in_turn() if each not in failed]
            return self._choose(others, self.clock()) if others else None

    @abstractmethod
    def _choose(self, others: Sequence[str], now: float) -> str:
        """Choose one of these, which are in the order of their turns."""

    def succeeded(self, address: str, seconds: float) -> None:
        """It has accepted a message in so many seconds."""
        return

    def failed(self, address: str) -> None:
        """It has not accepted a message."""
        return

    def _in_turn(self) -> list[str]:
        return [*self.addresses[self._turn :], *self.addresses[: self._turn]]

    def _take(self, address: str) -> str:
        """Move the turn behind `address`."""
        self._turn = (self._turn + self._in_turn().index(address) + 1) % len(self.addresses)
        return address


@dataclass
class RoundRobin(Destinations):
    def __post_init__(self) -> None:
        self._turn = 1 % len(self.addresses)  # nsq_to_http: the second one is the first

    def _choose(self, others: Sequence[str], now: float) -> str:
        return self._take(others[0])


@dataclass(slots=True)
class _Health:
    is_penalized: bool = False
    until: float = 0.0
    penalty: float = FIRST_PENALTY

    def may_be_tried(self, now: float) -> bool:
        return not self.is_penalized or self.until < now

    def begin_trial(self, now: float) -> None:
        """A penalized destination is tried once; the penalty is doubled until it succeeds."""
        if self.is_penalized:
            self.penalty = min(2 * self.penalty, MAX_PENALTY)
            self.until = now + self.penalty


@dataclass
class HostPool(Destinations):
    _health: defaultdict[str, _Health] = field(default_factory=lambda: defaultdict(_Health), init=False)

    def _choose(self, others: Sequence[str], now: float) -> str:
        chosen = next((each for each in others if self._health[each].may_be_tried(now)), None)
        if chosen is None:
            for each in others:
                self._health[each].is_penalized = False
            chosen = others[0]
        return self._try(self._take(chosen), now)

    def _try(self, address: str, now: float) -> str:
        self._health[address].begin_trial(now)
        return address

    def succeeded(self, address: str, seconds: float) -> None:
        with self._lock:
            self._health[address].is_penalized = False

    def failed(self, address: str) -> None:
        with self._lock:
            if not self._health[address].is_penalized:
                self._health[address] = _Health(True, self.clock() + FIRST_PENALTY)


@dataclass(slots=True)
class _Span:
    """Measurements in one part of the window: their count and total seconds."""

    number: int
    count: int = 0
    total: float = 0.0


@dataclass(slots=True)
class _Speed:
    """Recent times of a destination."""

    spans: deque[_Span] = field(default_factory=lambda: deque(maxlen=_SPANS))

    def measured(self, seconds: float, now: float) -> None:
        number = _span_number(now)
        if not self.spans or self.spans[-1].number != number:
            self.spans.append(_Span(number))
        self.spans[-1].count += 1
        self.spans[-1].total += seconds

    def average(self, now: float) -> float | None:
        """The weighted average, in which recent times count more; None without times."""
        oldest = _span_number(now) - _SPANS
        weighted = [(span.number - oldest, span.total / span.count) for span in self.spans if span.number > oldest]
        weights = sum(weight for weight, _ in weighted)
        return sum(weight * mean for weight, mean in weighted) / weights if weights else None


def _span_number(now: float) -> int:
    return int(now * _SPANS / WINDOW)


def _draw(shares: Mapping[str, float], draw: float) -> str:
    """Choose in proportion to the shares, with a `draw` uniform in 0 to 1."""
    sums = list(accumulate(shares.values()))
    return list(shares)[min(bisect_right(sums, draw * sums[-1]), len(sums) - 1)]


@dataclass
class EpsilonGreedy(HostPool):
    _epsilon: float = field(default=FIRST_EPSILON, init=False)
    _speeds: defaultdict[str, _Speed] = field(default_factory=lambda: defaultdict(_Speed), init=False)

    def _choose(self, others: Sequence[str], now: float) -> str:
        if self.random() < self._epsilon:
            self._epsilon = max(MIN_EPSILON, self._epsilon * _EPSILON_DECAY)
            return super()._choose(others, now)
        shares = {
            each: 1 / max(average, _MIN_SECONDS)
            for each in others
            if self._health[each].may_be_tried(now) and (average := self._speeds[each].average(now)) is not None
        }
        if not shares:
            return super()._choose(others, now)
        return self._try(_draw(shares, self.random()), now)

    def succeeded(self, address: str, seconds: float) -> None:
        super().succeeded(address, seconds)
        with self._lock:
            self._speeds[address].measured(seconds, self.clock())


MODES: Final[dict[str, type[Destinations]]] = {
    "round-robin": RoundRobin,
    "hostpool": HostPool,
    "epsilon-greedy": EpsilonGreedy,
}
