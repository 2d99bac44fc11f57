"""Disks that fail: ``SimulatedDisk`` forgets what was not synced, ``FaultyFiles`` fails or writes short at one call.

The simulated disk keeps, for every file, what is durable and the writes since. A power cut keeps any part of those,
sector by sector, files independent of each other; names come and go in their order, folder by folder, as a journal
does it, up to any point after the last sync of the folder. A sync that fails drops what it should have written, and the
next one says nothing of it, as Linux does.
"""

import errno
import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from nsq_compat.queue.files import Files

SECTOR = 512


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


def _apply(content: bytes, changes: Sequence[tuple[int, bytes] | int]) -> bytes:
    changed = bytearray(content)
    for change in changes:
        if isinstance(change, int):
            _resize(changed, change)
        else:
            _write(changed, *change)
    return bytes(changed)


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


class SimulatedDisk:
    """Files in memory; folders are there when somebody made them. Implements ``Files``."""

    def __init__(self) -> None:
        self.folders: dict[str, dict[str, Inode]] = {"/": {}}
        self.journal: dict[str, list[Callable[[dict[str, Inode]], Any]]] = {"/": []}
        self.durable_names: dict[str, dict[str, Inode]] = {"/": {}}
        self.open_files: dict[int, Inode | str] = {}
        self.failing_syncs = 0
        self._next_fd = 100

    # --- Accidents ----------------------------------------------------------------------------------------------------

    def kill(self) -> "SimulatedDisk":
        """The process ends; the disk is as it was."""
        self.open_files.clear()
        return self

    def power_cut(self, random: Random) -> "SimulatedDisk":
        """The disk as it may be found afterwards."""
        found = SimulatedDisk()
        for folder, names in self.durable_names.items():
            survived = dict(names)
            journal = self.journal[folder]
            for change in journal[: random.randint(0, len(journal))]:
                change(survived)
            found._add_folder(folder)
            for name, inode in survived.items():
                found.put(f"{folder}/{name}", inode.after_power_cut(random))
        return found

    def put(self, path: str, content: bytes) -> None:
        """A file with that durable content."""
        folder, name = os.path.split(path)
        inode = Inode(content)
        self.folders[folder][name] = self.durable_names[folder][name] = inode

    def copy(self) -> "SimulatedDisk":
        """Another disk with the same content, all of it durable."""
        other = SimulatedDisk()
        for folder, names in self.folders.items():
            other._add_folder(folder)
            for name, inode in names.items():
                other.put(f"{folder}/{name}", bytes(inode.now))
        return other

    def content(self, path: str) -> bytes:
        """What a process reads in a file."""
        return bytes(self._inode(path).now)

    # --- Files --------------------------------------------------------------------------------------------------------

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        self._next_fd += 1
        if path == os.devnull:
            self.open_files[self._next_fd] = Inode()
        elif flags & os.O_DIRECTORY:
            self._folder(path)
            self.open_files[self._next_fd] = path
        else:
            self.open_files[self._next_fd] = self._open_file(path, flags)
        return self._next_fd

    def _open_file(self, path: str, flags: int) -> Inode:
        folder, name = os.path.split(path)
        names = self._folder(folder)
        inode = names.get(name)
        if inode is None:
            if not flags & os.O_CREAT:
                raise FileNotFoundError(errno.ENOENT, "no such file", path)
            inode = Inode()
            self._change(folder, lambda names: names.__setitem__(name, inode))
        elif flags & os.O_EXCL:
            raise FileExistsError(errno.EEXIST, "file exists", path)
        if flags & os.O_TRUNC and inode.now:
            inode.resize(0)
        return inode

    def close(self, fd: int) -> None:
        del self.open_files[fd]

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return bytes(self._file(fd).now[offset : offset + size])

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
        inode = self._file(fd)
        pending, inode.pending = inode.pending, []
        if self.failing_syncs:
            self.failing_syncs -= 1
            raise OSError(errno.EIO, "the disk is broken")
        inode.durable = _apply(inode.durable, pending)

    def fsync(self, fd: int) -> None:
        opened = self.open_files[fd]
        if isinstance(opened, str):
            self.fsync_folder(opened)
        else:
            self.fdatasync(fd)

    def fsync_folder(self, path: str) -> None:
        self.durable_names[path] = dict(self._folder(path))
        self.journal[path].clear()

    def size(self, path: str) -> int:
        return len(self._inode(path).now)

    def rename(self, old: str, new: str) -> None:
        (folder, old_name), (new_folder, new_name) = os.path.split(old), os.path.split(new)
        if old in self.folders:
            for entries in self._by_folder():
                entries[new] = entries.pop(old)
            return
        assert folder == new_folder, "files move within their folder"
        self._inode(old)

        def move(names: dict[str, Inode]) -> None:
            names[new_name] = names.pop(old_name)

        self._change(folder, move)

    def unlink(self, path: str) -> None:
        folder, name = os.path.split(path)
        self._inode(path)
        self._change(folder, lambda names: names.pop(name, None))

    def mkdir(self, path: str, mode: int = 0o700) -> None:
        if path in self.folders:
            raise FileExistsError(errno.EEXIST, "folder exists", path)
        self._add_folder(path)

    def rmdir(self, path: str) -> None:
        if self._folder(path):
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        for entries in self._by_folder():
            del entries[path]

    def listdir(self, path: str) -> Sequence[str]:
        below = [os.path.basename(folder) for folder in self.folders if os.path.dirname(folder) == path != folder]
        return [*self._folder(path), *below]

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _by_folder(self) -> Sequence[dict[str, Any]]:
        return self.folders, self.journal, self.durable_names

    def _add_folder(self, path: str) -> None:
        self.folders.setdefault(path, {})
        self.journal.setdefault(path, [])
        self.durable_names.setdefault(path, {})

    def _change(self, folder: str, change: Callable[[dict[str, Inode]], Any]) -> None:
        change(self.folders[folder])
        self.journal[folder].append(change)

    def _folder(self, path: str) -> dict[str, Inode]:
        try:
            return self.folders[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such folder", path) from None

    def _inode(self, path: str) -> Inode:
        folder, name = os.path.split(path)
        try:
            return self._folder(folder)[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", path) from None

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
