"""Comparison of two nsqd on the same stream.

Some observations depend on timing in spite of a careful generator. Therefore a difference counts only if it recurs
every time the stream is played again; the stream is then shortened as far as possible. A difference that does not recur
is reported too, because it may be a race in an nsqd.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from nsq_conformance.differential.acts import Act
from nsq_conformance.differential.loop import Loop
from nsq_conformance.differential.playing import ALONE, AMONG_MANY, Nsqd, Observation, Patience, Play, topic_names

PLAYS: Final = 3
"""How often a difference must recur."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A stream up to the first act with different observations."""

    acts: Sequence[Act]
    ours: Observation
    theirs: Observation


Compared = Callable[[Difference | None], None]


class Comparison:
    """Plays streams on two nsqd, given by their TCP and HTTP addresses. A context manager."""

    def __init__(self, ours: tuple[str, str], theirs: tuple[str, str], names: Iterator[bytes] | None = None) -> None:
        self._loop = Loop()
        self._nsqds = Nsqd(self._loop, *ours), Nsqd(self._loop, *theirs)
        self._names = names or topic_names()

    @property
    def running(self) -> int:
        """The number of unfinished plays."""
        return self._loop.running

    def begin(self, acts: Sequence[Act], compared: Compared, patience: Patience = AMONG_MANY) -> None:
        """Start playing a stream beside others; `compared` is called with the first difference, or None."""
        topic = next(self._names)
        played: dict[Nsqd, list[Observation]] = {}

        def done(nsqd: Nsqd, observations: list[Observation]) -> None:
            played[nsqd] = observations
            if len(played) == len(self._nsqds):
                compared(_first_difference(acts, *(played[each] for each in self._nsqds)))

        for nsqd in self._nsqds:
            self._loop.start(Play(nsqd, topic, patience).run(acts), partial(done, nsqd))

    def turn(self) -> None:
        """Run the plays until something has happened. Raises OSError or Unanswered if an nsqd is gone."""
        self._loop.turn()

    def differs(self, acts: Sequence[Act], plays: int = PLAYS) -> Difference | None:
        """The first difference of a stream, if it recurs every time the stream is played alone."""
        found: list[Difference | None] = []
        for _ in range(plays):
            self.begin(acts, found.append, ALONE)
            while self.running:
                self.turn()
            if found[-1] is None:
                return None
        return found[-1]

    def shortest(self, difference: Difference) -> Difference:
        """Shorten a stream: remove acts as long as a difference remains."""
        place = len(difference.acts) - 1
        while place >= 0:
            acts = [*difference.acts[:place], *difference.acts[place + 1 :]]
            shorter = self.differs(acts)
            if shorter is not None:
                difference = shorter
                place = min(place, len(difference.acts))
            place -= 1
        return difference

    def close(self) -> None:
        for nsqd in self._nsqds:
            nsqd.http.close()
        self._loop.close()


def _first_difference(
    acts: Sequence[Act], ours: Sequence[Observation], theirs: Sequence[Observation]
) -> Difference | None:
    for count, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
        if one != other:
            return Difference(acts[:count], one, other)
    return None
