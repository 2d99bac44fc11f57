"""File descriptors that all logs share: opened when needed, the least recently used closed when there are too many.

A few more are kept open on nothing, as a reserve. When the process runs out of descriptors, because of sockets as a
rule, one of these is given up, so that the logs go on working; it is taken back as soon as that is possible.
"""

import errno
import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from nsq_compat.log.files import Files

log = logging.getLogger(__name__)

_MAX_FAULTS: Final = 1000
"""Places; a disk that has more of them stays unhealthy for the first ones."""


class Readable(Protocol):
    """A segment of a log."""

    path: str

    def pread(self, size: int, offset: int) -> bytes:
        """Raises ``OSError``; tells ``ReadFaults`` how it went."""


class ReadFaults:
    """Which parts of the logs of a storage cannot be read now. A place is a segment and an offset in it.

    An error of the system is not damage: the reader that met it keeps its position and tries again. One line is logged
    when the first part becomes unreadable, one when all can be read again. In between, `problem` is the reason for the
    daemon not being healthy.
    """

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
        if len(self._sizes) < _MAX_FAULTS:
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


DEFAULT_LIMIT: Final = 256
DEFAULT_RESERVE: Final = 8
CLOSED: Final = -1
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})

T = TypeVar("T")


class File:
    """A file by its path. `fd` is the descriptor's business: ask ``Descriptors.use`` for it each time."""

    __slots__ = ("fd", "flags", "path", "pins")

    def __init__(self, path: str, flags: int = os.O_RDWR) -> None:
        self.path = path
        self.flags = flags
        self.fd = CLOSED
        self.pins = 0


class Descriptors:
    """At most `limit` files open at once, pinned ones aside. Not for several threads: pin what another one uses."""

    def __init__(self, files: Files, limit: int = DEFAULT_LIMIT, reserve: int = DEFAULT_RESERVE) -> None:
        self.files = files
        self.read_faults = ReadFaults()
        """Of the files that these descriptors are for."""
        self._limit = limit
        self._wanted_reserve = reserve
        self._reserve: list[int] = []
        self._open: OrderedDict[File, None] = OrderedDict()
        self._last: File | None = None
        self._refill()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def reserve(self) -> int:
        """How many are in reserve now."""
        return len(self._reserve)

    def use(self, file: File) -> int:
        """The file's descriptor, good until the next call of anything here. Raises ``OSError``."""
        if file is not self._last:
            if file.fd == CLOSED:
                self._admit(file, file.flags)
            else:
                self._open[file] = None  # it may have been closed while it is pinned
                self._open.move_to_end(file)
            self._last = file
        return file.fd

    def create(self, file: File) -> int:
        """Like ``use``, for a file that must not be there yet."""
        self._admit(file, file.flags | os.O_CREAT | os.O_EXCL)
        self._last = file
        return file.fd

    def pin(self, file: File) -> int:
        """The descriptor, which stays open until ``unpin``, so that another thread can use it."""
        fd = self.use(file)
        file.pins += 1
        return fd

    def unpin(self, file: File) -> None:
        """Undo one ``pin``."""
        file.pins -= 1
        if not file.pins and file not in self._open:  # it was given up meanwhile
            self._close(file)

    def close(self, file: File) -> None:
        """Close the file if it is open, once nothing pins it."""
        if self._open.pop(file, self) is None:
            self._forget(file)

    def with_room(self, operation: Callable[[], T]) -> T:
        """Do something that needs a descriptor for a moment; give up others while there is none for it."""
        while True:
            try:
                return operation()
            except OSError as error:
                if error.errno not in _EXHAUSTED or not self._make_room():
                    raise

    def close_all(self) -> None:
        """The reserve and every file. Those that are pinned are closed when they are unpinned."""
        for file in list(self._open):
            self.close(file)
        while self._reserve:
            self._close_fd(self._reserve.pop())

    def _admit(self, file: File, flags: int) -> None:
        while len(self._open) >= self._limit and self._evict():
            pass
        file.fd = self.with_room(lambda: self.files.open(file.path, flags | os.O_CLOEXEC))
        self._open[file] = None
        self._refill()

    def _evict(self) -> bool:
        for file in self._open:
            if not file.pins:
                self.close(file)
                return True
        return False

    def _make_room(self) -> bool:
        if self._reserve:
            self._close_fd(self._reserve.pop())
            return True
        return self._evict()

    def _refill(self) -> None:
        with suppress(OSError):
            while len(self._reserve) < self._wanted_reserve:
                self._reserve.append(self.files.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _forget(self, file: File) -> None:
        if self._last is file:
            self._last = None
        if not file.pins:
            self._close(file)

    def _close(self, file: File) -> None:
        fd, file.fd = file.fd, CLOSED
        self._close_fd(fd)

    def _close_fd(self, fd: int) -> None:
        # An error of close() is about data written earlier; who needs to know has called fdatasync.
        with suppress(OSError):
            self.files.close(fd)
