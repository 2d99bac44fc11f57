"""A spool file: chunks of messages, each whole and proven by its checksum, or not there.

chunk: magic, CRC-32C of everything behind it, rows, size; then an Arrow IPC stream of `size` bytes with one batch.

Only one process ever appends to a file, and a chunk counts from the moment `append` returned: it is on the disk then.
What a crash leaves behind the last whole chunk, be it a part, zeros or rubbish, is no chunk.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from google_crc32c import value as crc32c

_MAGIC: Final = b"nsqS"
_HEADER: Final = struct.Struct(">4sIIQ")
_CHECKED: Final = struct.Struct(">IQ")
_CHECKED_FROM: Final = _HEADER.size - _CHECKED.size
_END_OF_STREAM: Final = 8


class SpoolError(Exception):
    """The spool cannot do its duty; the text says what to do. Nothing was finished that is not in it."""


class Abandoned(Exception):
    """Somebody else has finished this partition, and cleaned it away; this attempt must not go on."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A batch, and where in the file it ends."""

    batch: pa.RecordBatch
    end: int


class SpoolFile:
    """A file being written, new and for this process alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.rows = 0
        with said_plainly(path):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            sync_folder(path.parent)

    def append(self, batch: pa.RecordBatch) -> None:
        """Returns when the batch is on the disk. Raises ``SpoolError``; append no more then."""
        with said_plainly(self.path):
            data = memoryview(encode(batch))
            while data:
                data = data[os.write(self._file, data) :]
            os.fdatasync(self._file)
            self.size = os.lseek(self._file, 0, os.SEEK_CUR)
            self.rows += batch.num_rows
            if os.fstat(self._file).st_nlink == 0:
                raise Abandoned(f"{self.path} was cleaned away: another attempt has finished this partition")

    def close(self) -> None:
        os.close(self._file)


def encode(batch: pa.RecordBatch) -> pa.Buffer:
    """A chunk."""
    # Hot: every message goes through here. The batch is copied once, to where it is checked and written from.
    size = batch.schema.serialize().size + pa.ipc.get_record_batch_size(batch) + _END_OF_STREAM
    framed = np.empty(_HEADER.size + size, np.uint8)
    with pa.FixedSizeBufferWriter(pa.py_buffer(framed[_HEADER.size :])) as sink:
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        assert sink.tell() == size, "all of it was asked for"
    _CHECKED.pack_into(framed.data, _CHECKED_FROM, batch.num_rows, size)
    _HEADER.pack_into(framed.data, 0, _MAGIC, crc32c(pa.py_buffer(framed[_CHECKED_FROM:])), batch.num_rows, size)
    return pa.py_buffer(framed)


def chunks(path: Path, end: int | None = None) -> Iterator[Chunk]:
    """The whole chunks of a file, up to byte `end`, as views of the file. Ends where something else begins."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return
        view = pa.py_buffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
    position, end = 0, size if end is None else min(end, size)
    while position + _HEADER.size <= end:
        magic, checksum, _, length = _HEADER.unpack_from(view, position)
        stop = position + _HEADER.size + length
        if magic != _MAGIC or stop > end or crc32c(view[position + _CHECKED_FROM : stop]) != checksum:
            return
        batch = pa.ipc.open_stream(view[position + _HEADER.size : stop]).read_next_batch()
        yield Chunk(batch, stop)
        position = stop


def sync_folder(folder: Path) -> None:
    """Makes what was created or renamed in a folder outlast a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, data: bytes) -> None:
    """Replaces a small file at once: whoever looks sees the old or the new one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with said_plainly(path):
        write_new(temporary, data)
        os.replace(temporary, path)
        sync_folder(path.parent)


def write_new(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def said_plainly(path: Path) -> Iterator[None]:
    """What the system says of a disk becomes a ``SpoolError`` that tells the user what to do."""
    try:
        yield
    except OSError as error:
        raise SpoolError(
            f"spoolDir: {error.strerror or error} ({path}). Nothing is finished before it is in the spool: make room "
            "or put the folder right, and start the query again."
        ) from error
