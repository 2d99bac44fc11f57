"""Disk space that is reserved for what must be written although the disk is full."""

import errno
import os
from contextlib import suppress
from typing import Final

from nsq_compat.log.files import Files, opened

CHECKPOINTS: Final = 1 << 20
"""Bytes, enough for the checkpoint of a topic with about 30,000 unfinished messages."""


class Reserve:
    """A file of zeros at `path`, of `size` bytes. It remains when the process ends.

    Logs can only be deleted after the next checkpoint is written. Without room for it the disk would stay full. While
    the space is `given_up`, publishes are refused, because they would use it up.
    """

    def __init__(self, files: Files, path: str, size: int = CHECKPOINTS) -> None:
        self.held = False
        self.given_up = False
        self._files = files
        self._path = path
        self._size = size

    def take(self) -> None:
        """Reserve the space, unless it is reserved. Raises ``OSError`` if there is not enough."""
        if self.held:
            return
        with opened(self._files, self._path, os.O_RDWR | os.O_CREAT) as fd:
            try:
                self._files.fallocate(fd, 0, self._size)
            except OSError as error:
                self.given_up |= error.errno == errno.ENOSPC  # also at a start
                with suppress(OSError):
                    self._files.ftruncate(fd, 0)
                raise
        self.held, self.given_up = True, False

    def lose(self) -> None:
        """The file cannot be reached at the moment."""
        self.held, self.given_up = False, True

    def give_up(self) -> None:
        self.lose()
        with opened(self._files, self._path, os.O_RDWR) as fd, suppress(OSError):
            self._files.ftruncate(fd, 0)
