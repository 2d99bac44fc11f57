"""What one channel reads of the log for its deferred messages, the other channels of its topic need at the same moment.

So it is remembered for a moment, where there are several of them. What is remembered is bounded, and forgotten a second
after the last read.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from nsq_compat.queue.deferred import Fetch
from nsq_compat.queue.in_flight import NEVER
from nsq_compat.queue.schedule import AT_ONCE, Schedule

_MOST: Final = 2048
"""Frames read since the older ones were forgotten; twice as many are remembered at most."""
_MOST_BYTES: Final = 1 << 20
_REMEMBERED_SECONDS: Final = 1.0
_NO_LOCATIONS: Final[Mapping[bytes, bytes]] = {}


class SharedReads:
    """Of one topic. `readers` is how many channels it has. Its alarm is for the schedule."""

    def __init__(self, fetch: Fetch, schedule: Schedule) -> None:
        self.alarm = NEVER
        self.readers = 0
        self._fetch = fetch
        self._schedule = schedule
        self._recent: dict[bytes, bytes] = {}
        self._less_recent: dict[bytes, bytes] = {}
        self._bytes = 0
        self._used = False

    def fetch(self, ids: Sequence[bytes], locations: Mapping[bytes, bytes] = _NO_LOCATIONS) -> Mapping[bytes, bytes]:
        """As the log does. Raises ``OSError``."""
        if self.readers < 2:
            return self._fetch(ids, locations)
        found = {number: frame for number in ids if (frame := self._remembered(number)) is not None}
        if len(found) < len(ids):
            missing = [number for number in ids if number not in found]
            known = {number: locations[number] for number in missing if number in locations}
            more = self._fetch(missing, known)
            found.update(more)
            self._remember(more)
        return found

    def on_alarm(self, now: float) -> float:
        """Called by the schedule."""
        if self._used:
            self._used = False
            return now + _REMEMBERED_SECONDS
        self._recent, self._less_recent, self._bytes = {}, {}, 0
        return NEVER

    def _remembered(self, number: bytes) -> bytes | None:
        return self._recent.get(number) or self._less_recent.get(number)

    def _remember(self, frames: Mapping[bytes, bytes]) -> None:
        self._used = True
        self._schedule.at(AT_ONCE, self)
        self._recent.update(frames)
        self._bytes += sum(map(len, frames.values()))
        if len(self._recent) > _MOST or self._bytes > _MOST_BYTES:
            self._less_recent, self._recent, self._bytes = self._recent, {}, 0
