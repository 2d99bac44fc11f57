"""The interface to the file system: logs, checkpoints and metadata use files only through ``Files``.

Tests replace it with a simulated disk on which calls fail, writes are incomplete, or power cuts lose unsynced data.
"""

import errno
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Protocol

TEMPORARY = ".tmp"
"""The end of the name of a file that is not complete."""


_MAX_ZEROS: Final = 1 << 26
_LEAST_DATA: Final = 64
"""A file that is read as a whole has at most `_MAX_ZEROS` bytes of zeros, or a 64th of it is something else."""


class Files(Protocol):
    """One system call per method. Each may raise ``OSError``; none is repeated."""

    def open(self, path: str, flags: int, mode: int = 0o600) -> int: ...

    def close(self, fd: int) -> None: ...

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        """Read at most `size` bytes."""

    def next_data(self, fd: int, offset: int) -> int:
        """Where the next bytes from `offset` on may be that are not in a hole of the file, or a large number."""

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        """Write `data`; returns how many of its bytes were written, which may be fewer than all."""

    def fallocate(self, fd: int, offset: int, size: int) -> None:
        """Reserve zeroed blocks; the file grows to at least `offset` + `size`."""

    def ftruncate(self, fd: int, size: int) -> None: ...

    def fdatasync(self, fd: int) -> None: ...

    def fsync(self, fd: int) -> None: ...

    def fsync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""

    def size(self, path: str) -> int: ...

    def identity(self, path: str) -> tuple[int, int]:
        """The file system and the number of a file or folder, whatever its path."""

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def mkdir(self, path: str, mode: int = 0o700) -> None: ...

    def rmdir(self, path: str) -> None: ...

    def listdir(self, path: str) -> Sequence[str]: ...


class OsFiles:
    """The operating system's files."""

    close = staticmethod(os.close)
    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    fallocate = staticmethod(os.posix_fallocate)
    ftruncate = staticmethod(os.ftruncate)
    fdatasync = staticmethod(os.fdatasync)
    fsync = staticmethod(os.fsync)
    size = staticmethod(os.path.getsize)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    rmdir = staticmethod(os.rmdir)
    listdir = staticmethod(os.listdir)

    @staticmethod
    def open(path: str, flags: int, mode: int = 0o600) -> int:
        return os.open(path, flags, mode)  # os.open's default mode is 0o777

    @staticmethod
    def mkdir(path: str, mode: int = 0o700) -> None:
        os.mkdir(path, mode)

    @staticmethod
    def next_data(fd: int, offset: int) -> int:
        try:
            return os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return sys.maxsize
            raise

    @staticmethod
    def identity(path: str) -> tuple[int, int]:
        found = os.stat(path)
        return found.st_dev, found.st_ino

    @staticmethod
    def fsync_folder(path: str) -> None:
        with opened(OsFiles(), path, os.O_RDONLY | os.O_DIRECTORY) as fd:
            os.fsync(fd)


@contextmanager
def opened(files: Files, path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    """A descriptor that is closed at the end of the block. Raises ``OSError``."""
    fd = files.open(path, flags | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        files.close(fd)


def read_up_to(files: Files, fd: int, size: int, offset: int) -> bytes:
    """Read `size` bytes, fewer only at the end of the file: a single read may return less than requested."""
    data = files.pread(fd, size, offset)
    while len(data) < size and (more := files.pread(fd, size - len(data), offset + len(data))):
        data += more
    return data


def write_all(files: Files, fd: int, data: bytes, offset: int) -> None:
    """Write all of `data`. If it raises ``OSError``, some of it may have been written."""
    written = files.pwrite(fd, data, offset)
    while written < len(data):
        more = files.pwrite(fd, data[written:], offset + written)
        if more <= 0:
            raise OSError(errno.EIO, "nothing could be written")
        written += more


def read_file(files: Files, path: str) -> bytes:
    """Read a whole small file. Raises ``OSError``; ``FileNotFoundError`` if there is none.

    Of a file that is almost only zeros, as a forged one may be at no cost on the disk, the rest is left out.
    """
    try:
        with opened(files, path) as fd:
            pieces: list[bytes] = []
            offset = zeros = 0
            while piece := files.pread(fd, 1 << 20, offset):
                pieces.append(piece)
                offset += len(piece)
                if not piece.strip(b"\0"):
                    zeros += len(piece)
                    if zeros > max(_MAX_ZEROS, offset - offset // _LEAST_DATA):
                        break
            return b"".join(pieces)
    except OSError as error:
        error.filename = path
        raise


def replace_file(files: Files, path: str, data: bytes, *, sync: bool) -> None:
    """Replace the content of a file atomically. With `sync`, the new content is durable when this returns.

    If it raises ``OSError``, the file has its old content or, if only the sync of its name failed, the new.
    """
    write_temporary(files, path, data, sync=sync)
    adopt_temporary(files, path)
    if sync:
        files.fsync_folder(os.path.dirname(path))


def write_temporary(files: Files, path: str, *pieces: bytes, sync: bool) -> None:
    """The first, slow half of ``replace_file``: write the new content to a temporary file."""
    temporary = path + TEMPORARY
    try:
        with opened(files, temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
            offset = 0
            for piece in pieces:
                write_all(files, fd, piece, offset)
                offset += len(piece)
            if sync:
                files.fsync(fd)
    except OSError:
        with suppress(OSError):
            files.unlink(temporary)
        raise


def adopt_temporary(files: Files, path: str) -> None:
    """The second half: the temporary file replaces the file."""
    temporary = path + TEMPORARY
    try:
        files.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            files.unlink(temporary)
        raise
