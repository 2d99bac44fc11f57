"""One file of nsq_to_file: written, synced, compressed, moved when it is finished, repaired after a crash.

`sync` makes all data durable, and at any time after it the file can be opened. With gzip a sync ends a member of the
file. A member is written in one call when it is complete, so a process that is killed leaves whole members. Only a kill
during that call can leave a part of one; none of its messages was finished, and `cut_unfinished_member` removes it.

A process that writes to a file holds a lock on it, which shows others that the file was not left by a dead process.
"""

import errno
import fcntl
import os
import shutil
import time
import zlib
from contextlib import suppress
from typing import Final

from nsq_compat.log.files import OsFiles

_FILE_MODE: Final = 0o666
_FOLDER_MODE: Final = 0o770
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_PIECE: Final = 1 << 16
_LOOK_SECONDS: Final = 1.0


class OutputFile:
    """An open file. Every method may raise ``OSError``, after which data that was not synced may be lost."""

    def __init__(self, path: str, *, exclusive: bool, shared: bool = False, gzip_level: int | None = None) -> None:
        """Open or create a file, with its folders.

        `exclusive` raises ``FileExistsError`` if the file exists; otherwise it is appended to. The same is raised if
        another process has just moved it or, unless it may be `shared`, writes to it.
        """
        make_folder(os.path.dirname(path))
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | (os.O_EXCL if exclusive else 0)
        fd = os.open(path, flags, _FILE_MODE)
        self.path = path
        self._fd = fd
        self._gzip_level = gzip_level
        self._compressor: zlib._Compress | None = None
        self._member: list[bytes] = []
        try:
            # Another process may look whether a dead one has left this file, before it is locked.
            is_alone = lock(fd, _LOOK_SECONDS if exclusive else 0.0)
            # It may also have moved it, as that of a dead process.
            if not is_still_there(path, fd) or not (is_alone or shared):
                raise FileExistsError(f"{path} is in use")
            OsFiles.fsync_folder(os.path.dirname(path) or ".")
            self.size = os.fstat(fd).st_size
            """Bytes at its opening, plus bytes written since, before compression."""
            if is_alone and gzip_level is None and self.size and os.pread(fd, 1, self.size - 1) != b"\n":
                _write_all(fd, b"\n")  # ends a line that a dead process left unfinished
                self.size += 1
        except BaseException:
            os.close(fd)
            raise

    def write(self, data: bytes) -> None:
        """Write whole lines. Without gzip, they may be there twice."""
        self.size += len(data)
        if self._gzip_level is None:
            _write_lines(self._fd, data)
            return
        if self._compressor is None:
            self._compressor = zlib.compressobj(self._gzip_level, zlib.DEFLATED, _GZIP_WINDOW)
        self._member.append(self._compressor.compress(data))

    def sync(self) -> None:
        """Return when all data is on the disk and readable."""
        if self._compressor is not None:
            self._member.append(self._compressor.flush())
            _write_all(self._fd, b"".join(self._member))
            self._compressor = None
            self._member.clear()
        os.fsync(self._fd)

    def close(self) -> None:
        """Sync, and close it whether or not that succeeds."""
        try:
            if self._gzip_level is not None and not self.size:
                self.write(b"")  # an empty file is not a gzip file
            self.sync()
        finally:
            os.close(self._fd)


def cut_unfinished_member(fd: int) -> bool:
    """Truncate a gzip file to whole members; False if it is damaged, and then it is not changed."""
    whole = position = 0
    while True:
        member = zlib.decompressobj(_GZIP_WINDOW)
        while not member.eof:
            data = os.pread(fd, _PIECE, position)
            if not data:
                os.ftruncate(fd, whole)
                os.fsync(fd)
                return True
            try:
                member.decompress(data)
            except zlib.error:
                return False
            position += len(data)
        whole = position = position - len(member.unused_data)


def lock(fd: int, patience: float = 0.0) -> bool:
    """Lock the file until it is closed; False if another process has it, and keeps it for so many seconds.

    Succeeds on file systems without locks.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        except OSError:
            return True
        else:
            return True


def make_folder(folder: str) -> None:
    """Create a folder and its parents durably."""
    if not folder or os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    make_folder(above)
    try:
        os.mkdir(folder, _FOLDER_MODE)
    except FileExistsError:
        return
    OsFiles.fsync_folder(above or ".")


def is_still_there(path: str, fd: int) -> bool:
    """Whether the open file has this path, not another one, or none."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _write_lines(fd: int, data: bytes) -> None:
    """Append lines that begin at the beginning of a line.

    Another process that shares the file may be killed in the middle of its own. What was appended to such a piece ends
    it, and is written again.
    """
    is_whole = False
    while not is_whole:
        written = os.write(fd, data)
        begin = os.lseek(fd, 0, os.SEEK_CUR) - written
        _write_all(fd, data[written:])
        is_whole = begin <= 0 or os.pread(fd, 1, begin - 1) == b"\n"


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK})


def move(source: str, target: str) -> None:
    """Move a file durably. Raises ``FileExistsError``. After a crash it is in one of the two places, or in both."""
    make_folder(os.path.dirname(target))
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _copy(source, target)
    OsFiles.fsync_folder(os.path.dirname(target) or ".")
    os.unlink(source)


def _copy(source: str, target: str) -> None:
    """Copy to another file system, or on one without links."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))  # reserves the name
    copy = target + ".moving"
    try:
        with open(source, "rb") as old, open(copy, "wb") as new:
            shutil.copyfileobj(old, new)
            new.flush()
            os.fsync(new.fileno())
        os.rename(copy, target)
    except OSError:
        for each in (copy, target):
            with suppress(OSError):
                os.unlink(each)
        raise


def repair(path: str) -> bool:
    """Repair a gzip file that a dead process left; False if its process lives, or it is damaged."""
    with open(path, "r+b") as file:
        return lock(file.fileno()) and cut_unfinished_member(file.fileno())
