"""Disks that fail: ``SimulatedDisk`` forgets what was not synced, ``FaultyFiles`` fails or writes short at one call.
``DyingFiles`` and ``DyingDisk`` end the process at one.

The simulated disk keeps, for every file, what is durable and the writes since. A power cut keeps any part of those,
sector by sector, files independent of each other; names, of files and of folders, come and go in their order, folder by
folder, as a journal does it, up to any point after the last sync of the folder. A sync that fails drops what it should
have written, and the next one says nothing of it, as Linux does.
"""

import errno
import os
import sys
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Self, TypeVar

from nsq_compat.log.files import Files, OsFiles

SECTOR = 512

Entry = TypeVar("Entry", "Inode", "Folder")


class Inode:
    """A file's content: `now` is what a process sees, `durable` plus any of `pending` what a power cut leaves."""

    def __init__(self, durable: bytes = b"") -> None:
        self.now = bytearray(durable)
        self.durable = durable
        self.pending: list[tuple[int, bytes] | int] = []  # a write, or the size it was truncated or extended to

    def write(self, offset: int, data: bytes) -> None:
        self.pending.append((offset, data))
        _write(self.now, offset, data)

    def resize(self, size: int) -> None:
        self.pending.append(size)
        _resize(self.now, size)

    def sync(self, failing: bool) -> None:
        """Make the writes since the last sync durable. If that fails, the next sync says nothing of them."""
        pending, self.pending = self.pending, []
        if failing:
            raise OSError(errno.EIO, "the disk is broken")
        content = bytearray(self.durable)
        for change in pending:
            if isinstance(change, int):
                _resize(content, change)
            else:
                _write(content, *change)
        self.durable = bytes(content)

    def after_power_cut(self, random: Random) -> bytes:
        """One of the contents there may be."""
        content = bytearray(self.durable)
        last = random.randint(0, len(self.pending))
        alike = random.random() < 0.3  # the cut falls cleanly between two writes
        survivors: dict[int, int] = {}  # of each sector, how many of the writes
        for number, change in enumerate(self.pending[:last] if alike else self.pending):
            if isinstance(change, int):
                if alike or random.random() < 0.5:
                    _resize(content, change)
                continue
            offset, data = change
            for begin, piece in _sectors(offset, data):
                upto = survivors.setdefault(begin // SECTOR, random.choice([0, random.randint(0, last), 1 << 30]))
                if alike or number < upto:
                    _write(content, begin, piece)
        return bytes(content)


def _write(content: bytearray, offset: int, data: bytes) -> None:
    _resize(content, max(len(content), offset))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _sectors(offset: int, data: bytes):
    while data:
        size = SECTOR - offset % SECTOR
        yield offset, data[:size]
        offset, data = offset + size, data[size:]


class Folder:
    """A folder's names: `now` is what a process sees, `durable` with some of the `changes` what a power cut leaves."""

    def __init__(self) -> None:
        self.now: dict[str, Inode | Folder] = {}
        self.durable: dict[str, Inode | Folder] = {}
        self.changes: list[Callable[[dict[str, Inode | Folder]], Any]] = []

    def change(self, change: Callable[[dict[str, "Inode | Folder"]], Any]) -> None:
        change(self.now)
        self.changes.append(change)

    def sync(self) -> None:
        self.durable = dict(self.now)
        self.changes.clear()

    def put(self, name: str, entry: "Inode | Folder") -> None:
        """A name that is durable at once."""
        self.now[name] = self.durable[name] = entry

    def after_power_cut(self, random: Random) -> "Folder":
        """One of those there may be, and of what is in it."""
        survived = dict(self.durable)
        for change in self.changes[: random.randint(0, len(self.changes))]:
            change(survived)
        found = Folder()
        for name, entry in survived.items():
            after = entry.after_power_cut(random)
            found.put(name, after if isinstance(after, Folder) else Inode(after))
        return found

    def copy(self) -> "Folder":
        """Another one with the same content, all of it durable."""
        other = Folder()
        for name, entry in self.now.items():
            other.put(name, entry.copy() if isinstance(entry, Folder) else Inode(bytes(entry.now)))
        return other


class SimulatedDisk:
    """Files in memory. Implements ``Files``."""

    def __init__(self) -> None:
        self.root = Folder()
        self.open_files: dict[int, Inode | Folder] = {}
        self.failing_syncs = 0
        self._next_fd = 100
        self._last_killed = 0

    # --- Accidents ----------------------------------------------------------------------------------------------------

    def kill(self) -> "SimulatedDisk":
        """The process ends; the disk is as it was."""
        self.open_files.clear()
        self._last_killed = self._next_fd
        return self

    def power_cut(self, random: Random) -> Self:
        """The disk as it may be found afterwards."""
        return self._with(self.root.after_power_cut(random))

    def put(self, path: str, content: bytes) -> None:
        """A file with that durable content."""
        folder, name = self._place(path)
        folder.put(name, Inode(content))

    def copy(self) -> Self:
        """Another disk with the same content, all of it durable."""
        return self._with(self.root.copy())

    def content(self, path: str) -> bytes:
        """What a process reads in a file."""
        return bytes(self._inode(path).now)

    # --- Files --------------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        self._next_fd += 1
        opened = self._folder(path) if flags & os.O_DIRECTORY else self._open_file(path, flags)
        self.open_files[self._next_fd] = opened
        return self._next_fd

    def _open_file(self, path: str, flags: int) -> Inode:
        if path == os.devnull:
            return Inode()
        folder, name = self._place(path)
        inode = folder.now.get(name)
        if inode is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            inode = self._new(folder, name, Inode())
        elif flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, "file exists", path)
        assert isinstance(inode, Inode), "a folder is not read or written"
        if flags & os.O_TRUNC and inode.now:
            inode.resize(0)
        return inode

    def close(self, fd: int) -> None:
        if fd > self._last_killed:  # otherwise a generator of a process that was killed is deleted
            del self.open_files[fd]

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return bytes(self._file(fd).now[offset : offset + size])

    def next_data(self, fd: int, offset: int) -> int:
        return next((at for at, byte in enumerate(self._file(fd).now[offset:], offset) if byte), sys.maxsize)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self._file(fd).write(offset, data)
        return len(data)

    def fallocate(self, fd: int, offset: int, size: int) -> None:
        inode = self._file(fd)
        if offset + size > len(inode.now):
            inode.resize(offset + size)

    def ftruncate(self, fd: int, size: int) -> None:
        self._file(fd).resize(size)

    def fdatasync(self, fd: int) -> None:
        failing = self.failing_syncs > 0
        self.failing_syncs -= failing
        self._file(fd).sync(failing)

    def fsync(self, fd: int) -> None:
        opened = self.open_files[fd]
        if isinstance(opened, Folder):
            opened.sync()
        else:
            self.fdatasync(fd)

    def fsync_folder(self, path: str) -> None:
        self._folder(path).sync()

    def size(self, path: str) -> int:
        return len(self._inode(path).now)

    def identity(self, path: str) -> tuple[int, int]:
        return 0, id(self._entry(path))

    def rename(self, old: str, new: str) -> None:
        (folder, old_name), (new_folder, new_name) = self._place(old), self._place(new)
        entry = self._entry(old)
        if folder is new_folder:
            folder.change(lambda names: names.__setitem__(new_name, names.pop(old_name)))
        else:
            new_folder.change(lambda names: names.__setitem__(new_name, entry))
            folder.change(lambda names: names.pop(old_name))

    def unlink(self, path: str) -> None:
        self._inode(path)
        self._remove(path)

    def mkdir(self, path: str, mode: int = 0o700) -> None:
        folder, name = self._place(path)
        if name in folder.now:
            raise FileExistsError(errno.EEXIST, "folder exists", path)
        self._new(folder, name, Folder())

    def rmdir(self, path: str) -> None:
        if self._folder(path).now:
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        self._remove(path)

    def listdir(self, path: str) -> Sequence[str]:
        return list(self._folder(path).now)

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _with(self, root: Folder) -> Self:
        other = type(self)()
        other.root = root
        return other

    @staticmethod
    def _new(folder: Folder, name: str, entry: Entry) -> Entry:
        folder.change(lambda names: names.__setitem__(name, entry))
        return entry

    def _remove(self, path: str) -> None:
        folder, name = self._place(path)
        folder.change(lambda names: names.pop(name, None))

    def _place(self, path: str) -> tuple[Folder, str]:
        parent, name = os.path.split(path)
        return self._folder(parent), name

    def _folder(self, path: str) -> Folder:
        folder = self.root
        for name in filter(None, path.split("/")):
            entry = folder.now.get(name)
            if not isinstance(entry, Folder):
                raise FileNotFoundError(errno.ENOENT, "no such folder", path)
            folder = entry
        return folder

    def _entry(self, path: str) -> Inode | Folder:
        folder, name = self._place(path)
        try:
            return folder.now[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None

    def _inode(self, path: str) -> Inode:
        entry = self._entry(path)
        assert isinstance(entry, Inode), "a folder is not read or written"
        return entry

    def _file(self, fd: int) -> Inode:
        opened = self.open_files[fd]
        assert isinstance(opened, Inode), "a folder is not read or written"
        return opened


SHORT_WRITE = "short write"


class FaultyFiles:
    """Passes calls on, and lets some fail: the `first` call (from 1) and the `length` - 1 that follow.

    `fault` is an errno, or SHORT_WRITE: then writes in that range write half, and only writes count. `calls` tells
    afterwards how many there were.
    """

    _METHODS = tuple(name for name in vars(Files) if not name.startswith("_"))

    def __init__(self, files: Files, first: int, fault: int | str, length: int = 1) -> None:
        self.calls = 0
        self._files = files
        self._fault = fault
        self._failing = range(first, first + length)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._files, name)
        if name not in self._METHODS or name == "close":
            return method

        def call(*arguments: Any) -> Any:
            if self._fault == SHORT_WRITE and name != "pwrite":
                return method(*arguments)
            self.calls += 1
            if self.calls not in self._failing:
                return method(*arguments)
            if self._fault == SHORT_WRITE:
                fd, data, offset = arguments
                return method(fd, data[: len(data) // 2], offset)
            assert isinstance(self._fault, int)
            raise OSError(self._fault, f"{name} fails")

        return call


class Crash(BaseException):
    """The end of the process, or of its power. A BaseException, so that error handlers do not catch it."""


class _Dying:
    """Files that raise ``Crash`` instead of the n-th call that may change the disk; `left` counts down to it."""

    left = 1 << 60

    def __getattribute__(self, name: str) -> Any:
        if name in _CHANGING:
            self.left -= 1
            if self.left <= 0:
                raise Crash
        return super().__getattribute__(name)


_CHANGING = ("open", "pwrite", "fsync", "fdatasync", "fsync_folder", "rename", "unlink", "mkdir", "rmdir")


class DyingFiles(_Dying, OsFiles):
    def __init__(self, number: int) -> None:
        self.left = number


class DyingDisk(_Dying, SimulatedDisk):
    pass
