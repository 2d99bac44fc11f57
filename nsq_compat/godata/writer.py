"""Writes a disk queue that Go's nsqd reads as one of its own.

Data first, the positions last and atomically: Go ignores data files without positions, so a queue that was written only
in part does not exist for it.
"""

import os
from collections.abc import Iterable
from contextlib import suppress

from nsq_compat.godata.format import GoMessage, Positions, data_name, encode_record, positions_name, queues_among
from nsq_compat.log.files import Files, replace_file, write_all

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_WRITE_SIZE = 1 << 20  # bytes gathered for one write


def write_queue(
    files: Files, folder: str, name: str, messages: Iterable[GoMessage], max_bytes_per_file: int
) -> Positions:
    """Write the queue `name`, which must not exist in `folder`; all of it is on disk on return.

    Raises ``FileExistsError`` for a queue that has files already (``.bad`` ones do not count), ``OSError`` when writing
    fails; what was written is removed then if the system lets us.
    """
    existing = queues_among(files.listdir(folder)).get(name)
    if existing and existing.live:
        raise FileExistsError(f"the queue {name} exists already in {folder}")
    writer = _Writer(files, folder, name, max_bytes_per_file)
    try:
        for stored in messages:
            writer.add(encode_record(stored))
        writer.end_file()
        # A name in the folder must not be lost when the content it stands for is kept.
        files.fsync_folder(folder)
        replace_file(files, os.path.join(folder, positions_name(name)), writer.positions.encode(), sync=True)
    except BaseException:
        # Our own reader believes in data files without positions.
        writer.remove()
        raise
    return writer.positions


class _Writer:
    """The data files of one queue, one after the other."""

    def __init__(self, files: Files, folder: str, name: str, max_bytes_per_file: int) -> None:
        self.positions = Positions(0, 0, 0, 0, 0)
        self._files = files
        self._folder = folder
        self._name = name
        self._limit = max_bytes_per_file
        self._gathered = bytearray()
        self._descriptor = -1
        self._written = 0

    def add(self, record: bytes) -> None:
        """Append one record."""
        depth, _, _, number, offset = self.positions
        # nsqd: a file is full when the next record would exceed the limit; a record larger than that has one to itself.
        if offset > 0 and offset + len(record) > self._limit:
            self.end_file()
            number, offset = number + 1, 0
        self._gathered += record
        self.positions = Positions(depth + 1, 0, 0, number, offset + len(record))
        if len(self._gathered) >= _WRITE_SIZE:
            self._write()

    def end_file(self) -> None:
        """Write what is left of the current file, to the disk."""
        try:
            self._write()
            if self._descriptor >= 0:
                self._files.fsync(self._descriptor)
        finally:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                self._files.close(descriptor)

    def remove(self) -> None:
        """Undo everything, as far as possible."""
        self._gathered.clear()
        with suppress(OSError):
            self.end_file()
        for number in range(self.positions.write_file + 1):
            with suppress(OSError):
                self._files.unlink(os.path.join(self._folder, data_name(self._name, number)))

    def _write(self) -> None:
        if not self._gathered:
            return
        if self._descriptor < 0:
            path = os.path.join(self._folder, data_name(self._name, self.positions.write_file))
            self._descriptor = self._files.open(path, _CREATE)
            self._written = 0
        data = bytes(self._gathered)
        self._gathered.clear()
        write_all(self._files, self._descriptor, data, self._written)
        self._written += len(data)
