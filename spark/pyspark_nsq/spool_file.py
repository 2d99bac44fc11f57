"""A spool file: a sequence of chunks of messages, each with a checksum.

chunk: magic, CRC-32C of everything after it, rows, size; then an Arrow IPC stream of `size` bytes with one batch.

Only one process appends to a file. When `append` returns, the chunk is on disk. Readers stop at the first incomplete or
damaged chunk, which a crash can leave at the end of the file.
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
    """The spool cannot be read or written; the text says what to do. All finished messages are in the spool."""


class Abandoned(Exception):
    """Another attempt has finished this partition, and the spool was cleaned; this attempt must not continue."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A batch, and the offset in the file where its chunk ends."""

    batch: pa.RecordBatch
    end: int


class SpoolFile:
    """A new file, written by this process only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.rows = 0
        with spool_errors(path):
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            sync_folder(path.parent)

    def append(self, batch: pa.RecordBatch) -> None:
        """Append and sync a batch. Raises ``SpoolError``, after which the file must not be appended to."""
        with spool_errors(self.path):
            data = memoryview(encode(batch))
            while data:
                data = data[os.write(self._file, data) :]
            os.fdatasync(self._file)
            self.size = os.lseek(self._file, 0, os.SEEK_CUR)
            self.rows += batch.num_rows
            if not self.path.exists():
                raise Abandoned(f"{self.path} is gone: another attempt has finished this partition")

    def close(self) -> None:
        os.close(self._file)


def encode(batch: pa.RecordBatch) -> pa.Buffer:
    """Encode a batch as a chunk."""
    # Hot: every message passes here. The batch is copied once, to the buffer that is checksummed and written.
    size = batch.schema.serialize().size + pa.ipc.get_record_batch_size(batch) + _END_OF_STREAM
    framed = np.empty(_HEADER.size + size, np.uint8)
    with pa.FixedSizeBufferWriter(pa.py_buffer(framed[_HEADER.size :])) as sink:
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        assert sink.tell() == size, "the stream has the predicted size"
    _CHECKED.pack_into(framed.data, _CHECKED_FROM, batch.num_rows, size)
    _HEADER.pack_into(framed.data, 0, _MAGIC, crc32c(pa.py_buffer(framed[_CHECKED_FROM:])), batch.num_rows, size)
    return pa.py_buffer(framed)


def chunks(path: Path, end: int | None = None, start: int = 0) -> Iterator[Chunk]:
    """Yield the intact chunks of a file from offset `start` up to offset `end`, as views of the mapped file.

    Stops at the first damage.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return
        view = pa.py_buffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
    position, end = start, size if end is None else min(end, size)
    while position + _HEADER.size <= end:
        magic, checksum, _, length = _HEADER.unpack_from(view, position)
        stop = position + _HEADER.size + length
        if magic != _MAGIC or stop > end or crc32c(view[position + _CHECKED_FROM : stop]) != checksum:
            return
        batch = pa.ipc.open_stream(view[position + _HEADER.size : stop]).read_next_batch()
        yield Chunk(batch, stop)
        position = stop


def sync_folder(folder: Path) -> None:
    """Make files created or renamed in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a small file atomically and durably."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with spool_errors(path):
        write_and_sync(temporary, data)
        os.replace(temporary, path)
        sync_folder(path.parent)


def write_and_sync(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def spool_errors(path: Path) -> Iterator[None]:
    """Convert an ``OSError`` to a ``SpoolError`` that tells the user what to do."""
    try:
        yield
    except OSError as error:
        raise SpoolError(
            f"spoolDir: {error.strerror or error} ({path}). No message is finished before it is in the spool: make "
            "room or repair the folder, and start the query again."
        ) from error
