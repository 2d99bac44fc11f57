"""File descriptors of all logs: opened on demand; the least recently used ones are closed when there are too many.

A few more are kept open on /dev/null as a reserve. When the process runs out of descriptors, usually because of
sockets, one of them is closed so that a log can open a file. The reserve is filled again as soon as possible.
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
"""Unreadable ranges that are remembered."""


class Readable(Protocol):
    """A segment of a log."""

    path: str

    def pread(self, size: int, offset: int) -> bytes:
        """Read, and report the result to ``ReadFaults``. Raises ``OSError``."""


class ReadFaults:
    """The ranges of log files that cannot be read at the moment.

    A read error is not damage: the reader keeps its position and tries again. One line is logged when the first range
    becomes unreadable, another when all are readable again. In between, the daemon is unhealthy because of `problem`.
    """

    def __init__(self) -> None:
        self.problem: str | None = None
        """The first file that cannot be read and why, for the operator; None if there is none."""
        self.count = 0
        """Failed reads since the daemon started."""
        self._ranges: dict[tuple[Readable, int], tuple[int, str]] = {}  # by segment and offset: size, and `problem`

    def failed(self, segment: Readable, offset: int, size: int, error: OSError) -> None:
        self.count += 1
        reason = os.strerror(error.errno) if error.errno else str(error)
        problem = f"cannot read {segment.path}: {reason[:1].lower()}{reason[1:]}"
        if self.problem is None:
            self.problem = problem
            log.error("LOG(%s): cannot read %d bytes at %d, trying again - %s", segment.path, size, offset, reason)
        if len(self._ranges) < _MAX_FAULTS:
            self._ranges[segment, offset] = size, problem

    def succeeded(self, segment: Readable, offset: int, size: int) -> None:
        end = offset + size
        self._drop([each for each in self._of(segment) if offset <= each[1] and each[1] + self._ranges[each][0] <= end])

    def forget(self, segment: Readable) -> None:
        if self.problem is not None:
            self._drop(self._of(segment))

    def retry(self) -> None:
        """Read the unreadable ranges again, because their readers may have disappeared."""
        for (segment, offset), (size, _) in list(self._ranges.items()):
            try:
                segment.pread(size, offset)
            except OSError:
                break  # one failure is enough to stay unhealthy

    def _of(self, segment: Readable) -> list[tuple[Readable, int]]:
        return [each for each in self._ranges if each[0] is segment]

    def _drop(self, ranges: list[tuple[Readable, int]]) -> None:
        for each in ranges:
            del self._ranges[each]
        if self.problem is not None:
            self.problem = next((problem for _, problem in self._ranges.values()), None)
            if self.problem is None:
                log.info("LOG: everything can be read again")


DEFAULT_LIMIT: Final = 256
DEFAULT_RESERVE: Final = 8
CLOSED: Final = -1
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})

T = TypeVar("T")


class File:
    """A file that is opened on demand. Call ``Descriptors.use`` each time instead of reading `fd`."""

    __slots__ = ("fd", "flags", "path", "pins")

    def __init__(self, path: str, flags: int = os.O_RDWR) -> None:
        self.path = path
        self.flags = flags
        self.fd = CLOSED
        self.pins = 0


class Descriptors:
    """Keeps at most `limit` files open, or more while all of them are pinned.

    Not thread-safe: pin a file that another thread uses.
    """

    def __init__(self, files: Files, limit: int = DEFAULT_LIMIT, reserve: int = DEFAULT_RESERVE) -> None:
        self.files = files
        self.read_faults = ReadFaults()
        """Read errors of these files."""
        self._limit = limit
        self._wanted_reserve = reserve
        self._reserve: list[int] = []
        self._open: OrderedDict[File, None] = OrderedDict()
        self.last: File | None = None
        """The file used last. Its descriptor is valid."""
        self._refill()

    def use(self, file: File) -> int:
        """The file's descriptor, valid until the next call of any method. Opens the file. Raises ``OSError``."""
        if file is not self.last:
            if file.fd == CLOSED:
                self._admit(file, file.flags)
            else:
                self._open[file] = None  # a pinned file may have been closed
                self._open.move_to_end(file)
            self.last = file
        return file.fd

    def create(self, file: File) -> int:
        """Like ``use``, for a file that must not exist yet."""
        self._admit(file, file.flags | os.O_CREAT | os.O_EXCL)
        self.last = file
        return file.fd

    def pin(self, file: File) -> int:
        """Like ``use``; the descriptor stays open until ``unpin``, so that another thread can use it."""
        fd = self.use(file)
        file.pins += 1
        return fd

    def unpin(self, file: File) -> None:
        file.pins -= 1
        if not file.pins and file not in self._open:  # it was closed while pinned
            self._close(file)

    def close(self, file: File) -> None:
        """Close the file if it is open. A pinned file is closed when it is unpinned."""
        if self._open.pop(file, self) is None:
            if self.last is file:
                self.last = None
            if not file.pins:
                self._close(file)

    def with_room(self, operation: Callable[[], T]) -> T:
        """Call `operation`, which needs a descriptor, and close others while the process has none left."""
        while True:
            try:
                return operation()
            except OSError as error:
                if error.errno not in _EXHAUSTED or not self._make_room():
                    raise

    def close_all(self) -> None:
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

    def _close(self, file: File) -> None:
        fd, file.fd = file.fd, CLOSED
        self._close_fd(fd)

    def _close_fd(self, fd: int) -> None:
        # An error of close() concerns earlier writes, which fdatasync reports to callers that depend on them.
        with suppress(OSError):
            self.files.close(fd)
