"""Many streams side by side on the same two nsqd, each with its own topics, and the count of results."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from nsq_conformance.differential.acts import Act, ShutDown
from nsq_conformance.differential.comparing import Comparison, Difference
from nsq_conformance.differential.streams import stream

MAX_SUSPECTS: Final = 20
"""Number of differences after which their streams are played again alone."""
MAX_UNCHECKED: Final = 10_000
"""Number of streams after which differences are checked again in any case."""
MAX_SHORTENED: Final = 20
"""Number of differences to shorten; with more, the first ones are enough."""


@dataclass(slots=True)
class Counts:
    """The counts of results so far."""

    streams: int = 0
    acts: int = 0
    connections: int = 0
    differences: list[tuple[int, Difference]] = field(default_factory=list)
    """Seeds with recurring differences."""
    once: list[tuple[int, Difference]] = field(default_factory=list)
    """Differences that did not recur when the stream was played again."""
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def add(self, acts: list[Act]) -> None:
        self.streams += 1
        self.acts += len(acts)
        self.connections += sum(isinstance(act, ShutDown) for act in acts)

    def __str__(self) -> str:
        rate = self.streams / self.seconds if self.seconds else 0.0
        differing = f"{len(self.differences)} differ, {len(self.once)} differed once"
        return f"{self.streams} streams, {self.acts} acts, {differing}, {rate:.0f}/s"


class Campaign:
    """Plays the streams of seeds; `found` is called with each confirmed difference."""

    def __init__(self, comparison: Comparison, side_by_side: int, found: Callable[[int, Difference], None]) -> None:
        self.counts = Counts()
        self.underway: set[int] = set()
        """Seeds of the streams that are being played."""
        self._comparison = comparison
        self._side_by_side = side_by_side
        self._found = found
        self._suspects: list[tuple[int, Difference]] = []
        self._unseen = 0

    def play(self, seeds: Iterator[int], may_go_on: Callable[[], bool]) -> None:
        """Play all seeds, or until `may_go_on` returns False. Raises OSError or Unanswered if an nsqd is gone."""
        ended = False
        while not ended or self._comparison.running:
            while not ended and len(self.underway) < self._side_by_side and not self._must_look_again:
                seed = next(seeds, None) if may_go_on() else None
                if seed is None:
                    ended = True
                else:
                    self._begin(seed)
            if self._must_look_again and not self._comparison.running:
                self._look_again()
            self._comparison.turn()
            ended = ended or not may_go_on()
        self._look_again()

    @property
    def _must_look_again(self) -> bool:
        return len(self._suspects) >= MAX_SUSPECTS or bool(self._suspects and self._unseen >= MAX_UNCHECKED)

    def _begin(self, seed: int) -> None:
        acts = stream(seed)
        self.underway.add(seed)

        def compared(difference: Difference | None) -> None:
            self.underway.remove(seed)
            self.counts.add(acts)
            self._unseen += 1
            if difference is not None:
                self._suspects.append((seed, difference))

        self._comparison.begin(acts, compared)

    def _look_again(self) -> None:
        self._unseen = 0
        for seed, seen in self._play_again():
            difference = self._comparison.differs(stream(seed))
            if difference is None:
                self.counts.once.append((seed, seen))
                continue
            if len(self.counts.differences) < MAX_SHORTENED:
                difference = self._comparison.shortest(difference)
            self.counts.differences.append((seed, difference))
            self._found(seed, difference)

    def _play_again(self) -> list[tuple[int, Difference]]:
        """Play only the suspects again; returns those that still differ, and records the others as not recurring."""
        suspects, self._suspects = self._suspects, []
        found: list[tuple[int, Difference]] = []

        def compared(seed: int, seen: Difference, difference: Difference | None) -> None:
            (self.counts.once if difference is None else found).append((seed, seen))

        for seed, seen in suspects:
            self._comparison.begin(stream(seed), partial(compared, seed, seen))
        while self._comparison.running:
            self._comparison.turn()
        return found
