"""Disk space set aside, so that a data path full to the last page can be worked free again.

Space comes back when logs are deleted, and a log may be deleted only when a checkpoint was written that needs it no
longer: without a page for that checkpoint the disk would stay full for ever, though consumers empty every channel. So a
file of zeros takes some space early. When a checkpoint finds no room the file is emptied for it, and until the space is
taken back nothing may be published, or publishers would be quicker.
"""

import os
from contextlib import suppress

from nsq_compat.queue.files import Files

DEFAULT_SIZE = 1 << 20
"""Bytes: enough for the checkpoint of a topic with some 30,000 unfinished messages."""


class Reserve:
    """`path` is the file; it outlives the process. `given_up` says that its space is in use now, or up for it."""

    def __init__(self, files: Files, path: str, size: int = DEFAULT_SIZE) -> None:
        self.held = False
        self.given_up = False
        self._files = files
        self._path = path
        self._size = size

    def take(self) -> None:
        """Set the space aside, if it is not. Raises ``OSError`` when there is not that much."""
        if self.held:
            return
        fd = self._files.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            self._files.fallocate(fd, 0, self._size)
        except OSError:
            self._empty(fd)
            raise
        finally:
            self._files.close(fd)
        self.held, self.given_up = True, False

    def give_up(self) -> None:
        """Let others have the space. Raises ``OSError``."""
        self.held, self.given_up = False, True
        fd = self._files.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._empty(fd)
        finally:
            self._files.close(fd)

    def _empty(self, fd: int) -> None:
        with suppress(OSError):
            self._files.ftruncate(fd, 0)
