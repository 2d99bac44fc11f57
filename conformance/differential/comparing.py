"""Two nsqd, one stream: equal, different, or different for a reason that is known.

Some of what a stream shows depends on who is quicker, however careful the generator is. So a difference counts only if
it is there again each time the stream is played anew; then the stream is made as short as it can be.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from conformance.differential.acts import Act
from conformance.differential.playing import Nsqd, Observation, play, topic_names

PLAYS: Final = 3
"""How often a difference must be seen."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The acts of a shortest stream that shows it, the last of them observed differently."""

    acts: Sequence[Act]
    ours: Observation
    theirs: Observation


class Comparison:
    """Plays streams on two nsqd."""

    def __init__(self, ours: Nsqd, theirs: Nsqd, names: Iterator[bytes] | None = None) -> None:
        self._ours, self._theirs = ours, theirs
        self._names = names or topic_names()

    def differs(self, acts: Sequence[Act]) -> Difference | None:
        """The first difference in a stream, if there is one every time."""
        found = self._play(acts)
        for _ in range(PLAYS - 1):
            if found is None:
                return None
            found = self._play(acts)
        return found

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

    def _play(self, acts: Sequence[Act]) -> Difference | None:
        topic = next(self._names)
        ours, theirs = play(acts, self._ours, topic), play(acts, self._theirs, topic)
        for count, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
            if one != other:
                return Difference(acts[:count], one, other)
        return None
