"""Two nsqd, one stream: equal, different, or different for a reason that is known.

Some of what a stream shows depends on who is quicker, however careful the generator is. So a difference counts only if
it is there again each time the stream is played anew; then the stream is made as short as it can be. What was there
once and not again is told too: it may be a race of an nsqd's own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from nsq_conformance.differential.acts import Act
from nsq_conformance.differential.loop import Loop
from nsq_conformance.differential.playing import ALONE, AMONG_MANY, Nsqd, Observation, Patience, Play, topic_names

PLAYS: Final = 3
"""How often a difference must be seen."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The acts of a stream up to the first that was observed differently."""

    acts: Sequence[Act]
    ours: Observation
    theirs: Observation


Compared = Callable[[Difference | None], None]


class Comparison:
    """Plays streams on two nsqd, given as addresses of TCP and HTTP. A context manager."""

    def __init__(self, ours: tuple[str, str], theirs: tuple[str, str], names: Iterator[bytes] | None = None) -> None:
        self._loop = Loop()
        self._nsqds = Nsqd(self._loop, *ours), Nsqd(self._loop, *theirs)
        self._names = names or topic_names()

    @property
    def running(self) -> int:
        """How much of what was begun has not come to its end."""
        return self._loop.running

    def begin(self, acts: Sequence[Act], compared: Compared, patience: Patience = AMONG_MANY) -> None:
        """Play a stream beside others; `compared` is called with the first difference."""
        topic = next(self._names)
        played: dict[Nsqd, list[Observation]] = {}

        def done(nsqd: Nsqd, observations: list[Observation]) -> None:
            played[nsqd] = observations
            if len(played) == len(self._nsqds):
                compared(_first_difference(acts, *(played[each] for each in self._nsqds)))

        for nsqd in self._nsqds:
            self._loop.start(Play(nsqd, topic, patience).run(acts), partial(done, nsqd))

    def turn(self) -> None:
        """Let what was begun go on. Raises OSError and Unanswered when an nsqd is gone."""
        self._loop.turn()

    def differs(self, acts: Sequence[Act], plays: int = PLAYS) -> Difference | None:
        """The first difference in a stream, if there is one every time it is played, with nothing else going on."""
        found: list[Difference | None] = []
        for _ in range(plays):
            self.begin(acts, found.append, ALONE)
            while self.running:
                self.turn()
            if found[-1] is None:
                return None
        return found[-1]

    def shortest(self, difference: Difference) -> Difference:
        """Leave out one act after the other while a difference remains."""
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
            nsqd.desk.close()
        self._loop.close()


def _first_difference(
    acts: Sequence[Act], ours: Sequence[Observation], theirs: Sequence[Observation]
) -> Difference | None:
    for count, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
        if one != other:
            return Difference(acts[:count], one, other)
    return None
