"""Which parts of the logs the system does not let us read now.

An error of the system is not damage: the reader that met it keeps its position and tries again. One line is logged when
the first part becomes unreadable, one when all can be read again. In between, `problem` is the reason for the daemon
not being healthy.
"""

import logging
import os
from typing import Final, Protocol

log = logging.getLogger(__name__)

_REMEMBERED: Final = 1000
"""Places; a disk that has more of them stays unhealthy for the first ones."""


class Readable(Protocol):
    """A segment of a log."""

    path: str

    def pread(self, size: int, offset: int) -> bytes:
        """Raises ``OSError``; tells ``ReadFaults`` how it went."""


class ReadFaults:
    """Of all logs of a storage. A place is a segment and an offset in it."""

    def __init__(self) -> None:
        self.problem: str | None = None
        """What cannot be read and why, for the operator; None if everything can, as far as is known."""
        self.count = 0
        """Reads that failed since the daemon started."""
        self._sizes: dict[tuple[Readable, int], int] = {}

    def failed(self, segment: Readable, offset: int, size: int, error: OSError) -> None:
        """So many bytes from `offset` on could not be read."""
        self.count += 1
        reason = os.strerror(error.errno) if error.errno else str(error)
        if self.problem is None:
            self.problem = f"cannot read {segment.path}: {reason[:1].lower()}{reason[1:]}"
            log.error("LOG(%s): cannot read %d bytes at %d, trying again - %s", segment.path, size, offset, reason)
        if len(self._sizes) < _REMEMBERED:
            self._sizes[segment, offset] = size

    def succeeded(self, segment: Readable, offset: int, size: int) -> None:
        """So many bytes from `offset` on were read."""
        end = offset + size
        self._drop([each for each in self._of(segment) if offset <= each[1] and each[1] + self._sizes[each] <= end])

    def forget(self, segment: Readable) -> None:
        """Nothing more is read in that segment."""
        if self.problem is not None:
            self._drop(self._of(segment))

    def retry(self) -> None:
        """Read again what could not be read, because its reader may have gone."""
        for (segment, offset), size in list(self._sizes.items()):
            try:
                segment.pread(size, offset)
            except OSError:
                break  # one is enough to know that it is not over

    def _of(self, segment: Readable) -> list[tuple[Readable, int]]:
        return [each for each in self._sizes if each[0] is segment]

    def _drop(self, places: list[tuple[Readable, int]]) -> None:
        for place in places:
            del self._sizes[place]
        if not self._sizes and self.problem is not None:
            self.problem = None
            log.info("LOG: everything can be read again")
