"""Counts the lost messages of a log, and logs damage once per file.

A lost message is identified by its message number, or by its id if it has no number or is searched for by id. So it is
counted once, even if several channels search for it or the damage is read several times.
"""

import logging
import os
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

log = logging.getLogger(__name__)

_MAX_REMEMBERED: Final = 10_000
"""Places without message numbers that are remembered, to count each once. With more, the count may be too high."""
_MAX_FINDINGS: Final = 100


class Damage:
    """The damage of one log. `records` is the number of lost messages, at least one for each damaged place.

    `findings` has a line for each of the first 100 places, for ``nsq_data check``. If `quiet`, nothing is logged.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.records = 0
        self.findings: list[str] = []
        self.quiet = quiet
        self._places: set[tuple[str, object]] = set()
        self._files: set[str] = set()
        self._begins: list[int] = []  # the ranges of numbers that were counted, sorted and disjoint
        self._ends: list[int] = []

    def report(self, path: str, place: object, records: int) -> None:
        """Report the loss of `records` messages with unknown numbers; `place` is an offset in the file."""
        if records > 0 and self._is_new(path, place):
            self._add(path, place, records)

    def report_range(self, path: str, place: object, begin: int, end: int) -> None:
        """Report the loss of the messages with the numbers from `begin` up to `end`."""
        if new := self._note_range(begin, end):
            self._add(path, place, new)

    def report_file(self, path: str, begin: int, end: int, deferred: int, ids: tuple[bytes, bytes]) -> None:
        """Report that the next file is missing, with the numbers from `begin` up to `end`, and deferred messages.

        `ids` are one before and one after the ids of its messages, of which some may have been reported by id.
        """
        place = "its end: the next file is missing"
        if self._is_new(path, place):
            by_id = sum(isinstance(each, bytes) and ids[0] < each < ids[1] for _, each in self._places)
            new = self._note_range(begin, end) + deferred - by_id
            if new > 0:
                self._add(path, place, new)

    def _note_range(self, begin: int, end: int) -> int:
        """Remember a range of numbers; returns how many of them were not counted before."""
        if begin >= end:
            return 0
        first = bisect_left(self._ends, begin)
        last = first
        new = end - begin
        low, high = begin, end
        while last < len(self._begins) and self._begins[last] <= end:
            known_begin, known_end = self._begins[last], self._ends[last]
            new -= max(0, min(end, known_end) - max(begin, known_begin))
            low, high = min(low, known_begin), max(high, known_end)
            last += 1
        self._begins[first:last] = [low]
        self._ends[first:last] = [high]
        return new

    def report_ids(self, path: str, ids: Iterable[bytes]) -> None:
        lost = [each for each in ids if self._is_new(path, each)]
        if lost:
            self._add(path, "message " + lost[0].decode("ascii", "replace"), len(lost))

    def note(self, path: str, text: str) -> None:
        """Report a problem with a file. Messages that are lost by it are counted separately."""
        if self._is_new(path, text):
            if not self.quiet:
                log.error("LOG(%s): %s", path, text)
            self._list(f"{os.path.basename(path)}: {text}")

    def note_gap(self, path: str, begin: int, end: int) -> None:
        """Log that a file has no messages with the offsets from `begin` up to `end`, which follow its last one.

        They are not counted as lost, because level ``memory`` may never have written them.
        """
        if self._is_new(path, begin) and not self.quiet:
            log.warning(
                "LOG(%s): no messages from offset %d to %d, which should be behind its end", path, begin, end - 1
            )

    def _is_new(self, path: str, place: object) -> bool:
        if (path, place) in self._places:
            return False
        if len(self._places) < _MAX_REMEMBERED:
            self._places.add((path, place))
        return True

    def _add(self, path: str, place: object, records: int) -> None:
        self.records += records
        count = "1 message" if records == 1 else f"{records} messages"
        self._list(f"{os.path.basename(path)}: damaged at {place}, {count} lost")
        if path not in self._files and not self.quiet:
            self._files.add(path)
            log.error("LOG(%s): damaged at %s, %s lost; further damage in it is only counted", path, place, count)

    def _list(self, line: str) -> None:
        if len(self.findings) < _MAX_FINDINGS:
            self.findings.append(line)


def uncovered(ranges: Sequence[tuple[int, int]], begin: int, end: int) -> list[tuple[int, int]]:
    """The parts of `begin` to `end` that are in none of the (sorted) ranges."""
    left: list[tuple[int, int]] = []
    for low, high in ranges:
        if begin < min(low, end):
            left.append((begin, min(low, end)))
        begin = max(begin, high)
    if begin < end:
        left.append((begin, end))
    return left
