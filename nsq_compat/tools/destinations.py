"""Which of several destinations a message goes to, in the modes of NSQ's utilities.

    round-robin      each in turn
    hostpool         each in turn of those that live: one that failed rests for 30 s, and each time it fails again for
                     twice as long, up to 15 min
    epsilon-greedy   of those that live the faster ones more often; now and then any, to learn how fast it is

Whoever asks says which destinations have failed this very message, and gets another one until there is none left. When
nobody else lives, those who rest are taken for living again: it may have been the network that failed.

Any thread may ask. Given the same clock and the same random numbers, the answers are the same.
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

FIRST_REST: Final = 30.0
LONGEST_REST: Final = 900.0
FIRST_EPSILON: Final = 0.3
"""How often any destination is taken, for the sake of learning; less each time it happens."""
LEAST_EPSILON: Final = 0.01
_EPSILON_DECAY: Final = 0.9
WINDOW: Final = 300.0
"""Seconds after which a measured time counts no more; until then it counts less and less."""
_SPANS: Final = 30
_SHORTEST: Final = 1e-6
"""Seconds; nothing is faster."""


@dataclass
class Destinations(ABC):
    """What the modes share: turns, and one lock around everything."""

    addresses: Sequence[str]
    """One or more; what is named twice has two turns."""
    clock: Callable[[], float] = time.monotonic
    random: Callable[[], float] = random.random
    _turn: int = field(default=0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def choose(self, failed: Collection[str] = ()) -> str | None:
        """The next one that is not among those that have failed this message; None if all have."""
        with self._lock:
            others = [each for each in self._in_turn() if each not in failed]
            return self._choose(others, self.clock()) if others else None

    @abstractmethod
    def _choose(self, others: Sequence[str], now: float) -> str:
        """One of these, which are in turn."""

    def succeeded(self, address: str, seconds: float) -> None:
        """It has taken a message, which took so long."""
        return

    def failed(self, address: str) -> None:
        """It has not."""
        return

    def _in_turn(self) -> list[str]:
        return [*self.addresses[self._turn :], *self.addresses[: self._turn]]

    def _take(self, address: str) -> str:
        """The next turn is that of the one behind it."""
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
    rests: bool = False
    until: float = 0.0
    rest: float = FIRST_REST

    def may_be_tried(self, now: float) -> bool:
        return not self.rests or self.until < now

    def begin_trial(self, now: float) -> None:
        """It rests on, for longer, unless it succeeds: until then it is tried once."""
        if self.rests:
            self.rest = min(2 * self.rest, LONGEST_REST)
            self.until = now + self.rest


@dataclass
class HostPool(Destinations):
    _health: defaultdict[str, _Health] = field(default_factory=lambda: defaultdict(_Health), init=False)

    def _choose(self, others: Sequence[str], now: float) -> str:
        chosen = next((each for each in others if self._health[each].may_be_tried(now)), None)
        if chosen is None:
            for each in others:
                self._health[each].rests = False
            chosen = others[0]
        return self._try(self._take(chosen), now)

    def _try(self, address: str, now: float) -> str:
        self._health[address].begin_trial(now)
        return address

    def succeeded(self, address: str, seconds: float) -> None:
        with self._lock:
            self._health[address].rests = False

    def failed(self, address: str) -> None:
        with self._lock:
            if not self._health[address].rests:
                self._health[address] = _Health(True, self.clock() + FIRST_REST)


@dataclass(slots=True)
class _Span:
    """What was measured in one of the spans a window has: how often, and seconds in all."""

    number: int
    count: int = 0
    total: float = 0.0


@dataclass(slots=True)
class _Speed:
    """How long a destination took lately."""

    spans: deque[_Span] = field(default_factory=lambda: deque(maxlen=_SPANS))

    def measured(self, seconds: float, now: float) -> None:
        number = _span_number(now)
        if not self.spans or self.spans[-1].number != number:
            self.spans.append(_Span(number))
        self.spans[-1].count += 1
        self.spans[-1].total += seconds

    def average(self, now: float) -> float | None:
        """Recent times count for more; None if there are none."""
        oldest = _span_number(now) - _SPANS
        weighted = [(span.number - oldest, span.total / span.count) for span in self.spans if span.number > oldest]
        weights = sum(weight for weight, _ in weighted)
        return sum(weight * mean for weight, mean in weighted) / weights if weights else None


def _span_number(now: float) -> int:
    return int(now * _SPANS / WINDOW)


def _drawn(shares: Mapping[str, float], draw: float) -> str:
    """Each as often as its share of them all, if `draw` is evenly between 0 and 1."""
    sums = list(accumulate(shares.values()))
    return list(shares)[min(bisect_right(sums, draw * sums[-1]), len(sums) - 1)]


@dataclass
class EpsilonGreedy(HostPool):
    _epsilon: float = field(default=FIRST_EPSILON, init=False)
    _speeds: defaultdict[str, _Speed] = field(default_factory=lambda: defaultdict(_Speed), init=False)

    def _choose(self, others: Sequence[str], now: float) -> str:
        if self.random() < self._epsilon:
            self._epsilon = max(LEAST_EPSILON, self._epsilon * _EPSILON_DECAY)
            return super()._choose(others, now)
        shares = {
            each: 1 / max(average, _SHORTEST)
            for each in others
            if self._health[each].may_be_tried(now) and (average := self._speeds[each].average(now)) is not None
        }
        if not shares:
            return super()._choose(others, now)
        return self._try(_drawn(shares, self.random()), now)

    def succeeded(self, address: str, seconds: float) -> None:
        super().succeeded(address, seconds)
        with self._lock:
            self._speeds[address].measured(seconds, self.clock())


MODES: Final[dict[str, type[Destinations]]] = {
    "round-robin": RoundRobin,
    "hostpool": HostPool,
    "epsilon-greedy": EpsilonGreedy,
}
