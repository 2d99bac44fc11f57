"""What could not be read back: counted, and said once per file."""

import logging

log = logging.getLogger(__name__)

_REMEMBERED = 10_000
"""Places that are counted once however often they are read; a disk with more than that is counted too high."""


class Damage:
    """The count of one log. `records` is exact where the damage left that to be known, else at least one a place."""

    def __init__(self) -> None:
        self.records = 0
        self._places: set[tuple[str, object]] = set()
        self._files: set[str] = set()

    def report(self, path: str, place: object, records: int) -> None:
        """`records` messages are lost at a place of a file: an offset, or an id that is not where it should be."""
        if records <= 0 or (path, place) in self._places:
            return
        if len(self._places) < _REMEMBERED:
            self._places.add((path, place))
        self.records += records
        if path not in self._files:
            self._files.add(path)
            log.error(
                "LOG(%s): damaged at %s, %d messages lost; more of this file is only counted", path, place, records
            )
