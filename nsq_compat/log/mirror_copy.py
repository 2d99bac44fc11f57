"""A standby's copy of a data path: applied changes on its side, and what the primary sends to complete it.

The files of a topic are copied in an order that leaves the copy usable at any moment, as after a crash: first the log,
then the checkpoint that needs it, and only then what the checkpoint before needed is deleted or released.
"""

import errno
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Final

import google_crc32c

from nsq_compat.log.checkpoint import CHECKPOINT
from nsq_compat.log.data_path import FOLDER, TOPIC_SUFFIX, remove_topic_folder, topic_folder, topics_in
from nsq_compat.log.files import TEMPORARY, Files, opened, read_file, read_up_to, write_all
from nsq_compat.log.identity import UNKNOWN_SALT, FileEnd
from nsq_compat.log.mirrored_files import METADATA, Changes, unit_of
from nsq_compat.log.segment import FIRST_GROUP, decode_segment_header
from nsq_compat.protocol import mirror
from nsq_compat.protocol.mirror import Change, command
from nsq_compat.protocol.storage_schema import RELEASED_MAGIC

CHUNK: Final = 1 << 19
"""Bytes that are compared, and copied, at once."""
_SUM_OF_ZEROS: Final = google_crc32c.value(bytes(CHUNK))
_OPEN_FILES: Final = 64
_SYNCED_TOGETHER: Final = 4
_APPLIED_AT_ONCE: Final = 128
"""Changes, of which each takes up to 30 us."""
_MAX_FILE: Final = 1 << 40
"""A larger file is an error of the primary. Summing up a sparse one would take hours."""
_FOLDER_KINDS: Final = (mirror.MAKE_FOLDER, mirror.REMOVE_FOLDER)
_LOG_PREFIX: Final = "log."
_LOG_NAME: Final = re.compile(r"log\.[0-9]+")
_APPENDED: Final = (_LOG_PREFIX, "kept.")
_COPIED: Final = ".copied" + TEMPORARY

Steps = Generator[bytes | list[Change], bytes, None]
"""Commands to the standby, with their answers sent back, and changes, which need no answer."""


class MirrorCopy:
    """The copy in `folder`, which exists. With `syncs`, what was applied can be synced.

    Raises ``OSError``, and ``ValueError`` for what a primary never asks.
    """

    def __init__(self, files: Files, folder: str, *, syncs: bool) -> None:
        self._files = files
        self._folder = folder
        self._syncs = syncs
        self._times_closed = 0
        self._open: OrderedDict[str, int] = OrderedDict()
        self._paths: dict[str, str] = {}
        """Of the open files, by the path in the data path."""
        self._unsynced: set[str] = set()
        self._unsynced_folders: set[str] = set()
        self._failed: set[str] = set()
        """Files of which a sync has failed. The system reports that once, and takes the data for written."""

    def apply(
        self,
        changes: Iterable[Change],
        *,
        pause: Callable[[], None] = lambda: None,
        remove: Callable[[Files, str], None] = remove_topic_folder,
    ) -> None:
        """Apply changes in order. A change that was applied already has no effect.

        `pause` and `remove` may let others run. If these close the copy, it ends early, with ``ValueError``.
        """
        times_closed = self._times_closed
        for number, change in enumerate(changes, 1):
            # Hot: the primary's publishes wait. Most changes are of a file that is open.
            path = self._paths.get(change.path, "") if change.kind == mirror.WRITE else ""
            if not path:
                path = self._path(change.path, is_folder=change.kind in _FOLDER_KINDS)
            if change.offset + len(change.data) > _MAX_FILE:
                raise ValueError(f"{change.path!r} would be larger than {_MAX_FILE} bytes")
            if change.kind == mirror.WRITE:
                write_all(self._files, self._use(path), change.data, change.offset)
            elif change.kind == mirror.ZEROS:
                fd = self._use(path)
                if self._files.size(path) < change.offset:
                    self._files.ftruncate(fd, change.offset)
            elif change.kind == mirror.TRUNCATE:
                self._files.ftruncate(self._use(path), change.offset)
            else:
                self._change_name(change, path, remove)
                self._require_open(times_closed)
            if number % _APPLIED_AT_ONCE == 0:
                pause()
                self._require_open(times_closed)

    def sync(
        self, run: Callable[[Sequence[Callable[[], None]]], object], *, pause: Callable[[], None] = lambda: None
    ) -> None:
        """Make everything applied so far durable, if the copy `syncs`.

        `run` calls the functions that it is given, at the same time if it can: the file system then writes its journal
        once for several files. It raises their errors. `pause`: as in `apply`.
        """
        self._write_again(pause)
        paths, self._unsynced = self._unsynced, set()
        folders, self._unsynced_folders = self._unsynced_folders, set()
        try:
            run([partial(self._sync_files, part) for part in _parts(paths)])
            run([partial(self._sync_folders, part) for part in _parts(folders)])
        except BaseException:
            self._unsynced |= paths
            self._unsynced_folders |= folders
            raise

    def _sync_files(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError), opened(self._files, path, os.O_RDWR) as fd:
                try:
                    self._files.fdatasync(fd)
                except OSError:
                    self._failed.add(path)
                    raise

    def _write_again(self, pause: Callable[[], None]) -> None:
        """Write what a sync that failed has not. Not in a thread, because a take-over moves the files."""
        times_closed = self._times_closed
        for path in sorted(self._failed):
            with suppress(FileNotFoundError), opened(self._files, path, os.O_RDWR) as fd:
                offset, size = 0, self._files.size(path)
                while (offset := max(offset, self._files.next_data(fd, offset))) < size:
                    data = read_up_to(self._files, fd, CHUNK, offset)
                    write_all(self._files, fd, data, offset)
                    offset += len(data)
                    pause()
                    self._require_open(times_closed)
            self._failed.discard(path)

    def _sync_folders(self, paths: Iterable[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                self._files.fsync_folder(path)

    def units(self) -> dict[str, dict[str, int]]:
        """The sizes of all files by unit and path."""
        return {unit: sizes_of(self._files, self._folder, unit) for unit in units_in(self._files, self._folder)}

    def ends(self) -> dict[str, FileEnd]:
        """By topic, the end of the last log file that has groups."""
        found: dict[str, FileEnd] = {}
        for topic in topics_in(self._files, self._folder):
            folder = topic_folder(self._folder, topic)
            with suppress(FileNotFoundError):
                for name in sorted(filter(_LOG_NAME.fullmatch, self._files.listdir(folder)), reverse=True):
                    last = self._end_of(os.path.join(folder, name), int(name.removeprefix(_LOG_PREFIX)))
                    if last.end > FIRST_GROUP:
                        found[topic] = last
                        break
        return found

    def _end_of(self, path: str, number: int) -> FileEnd:
        """Without the zeros that are reserved. A group does not consist of zeros."""
        with opened(self._files, path) as fd:
            header = decode_segment_header(read_up_to(self._files, fd, FIRST_GROUP, 0))
            salt = UNKNOWN_SALT if header is None or header.is_released else header.salt
            end = self._end_of_data(fd, self._files.size(path))
            while end > FIRST_GROUP:
                begin = max(FIRST_GROUP, end - CHUNK)
                end = begin + len(read_up_to(self._files, fd, end - begin, begin).rstrip(b"\0"))
                if end > begin:
                    break
            return FileEnd(number, end, salt)

    def _end_of_data(self, fd: int, size: int) -> int:
        """An offset up to a chunk behind the last data, because a hole may be as large as a file can be."""
        low, high = 0, size
        while high - low > CHUNK:
            middle = (low + high) // 2
            if self._files.next_data(fd, middle) < size:
                low = middle
            else:
                high = middle
        return high

    def sums(self, relative: str) -> list[int]:
        """The CRC-32C of each chunk of a file. Ends early, with ``ValueError``, when the copy is closed."""
        times_closed = self._times_closed
        with opened(self._files, self._path(relative)) as fd:
            found: list[int] = []
            while piece := read_up_to(self._files, fd, CHUNK, CHUNK * len(found)):
                found.append(google_crc32c.value(piece))
                if not piece.strip(b"\0"):
                    found += [_SUM_OF_ZEROS] * self._chunks_without_data(relative, fd, CHUNK * len(found))
                self._require_open(times_closed)
            return found

    def _require_open(self, times_closed: int) -> None:
        if self._times_closed != times_closed:
            raise ValueError("the connection has ended")

    def _chunks_without_data(self, relative: str, fd: int, offset: int) -> int:
        """The number of whole chunks from `offset` on that are in a hole of the file."""
        end = min(self._files.next_data(fd, offset), self._files.size(self._path(relative)))
        return max(0, end - offset) // CHUNK

    def close(self) -> None:
        """Close all files. They are opened again if more changes are applied."""
        self._times_closed += 1
        for path in list(self._open):
            with suppress(OSError):
                self._close_one(path)

    def _change_name(self, change: Change, path: str, remove: Callable[[Files, str], None]) -> None:
        self._close_below(path)
        if change.kind == mirror.RENAME:
            new = self._path(change.data.decode("utf-8"))
            self._close_below(new)
            self._files.rename(path, new)
            if path in self._unsynced:
                self._unsynced.remove(path)
                self._unsynced.add(new)
            if path in self._failed:
                self._failed.remove(path)
                self._failed.add(new)
        elif change.kind == mirror.REMOVE:
            with suppress(FileNotFoundError):
                self._files.unlink(path)
        elif change.kind == mirror.MAKE_FOLDER:
            with suppress(FileExistsError):
                self._files.mkdir(path)
        elif change.kind == mirror.REMOVE_FOLDER:
            remove(self._files, path)
        else:
            raise ValueError(f"a change of the unknown kind {change.kind}")
        if self._syncs:
            self._unsynced_folders.add(os.path.dirname(path))

    def _path(self, relative: str, *, is_folder: bool = False) -> str:
        unit = unit_of(relative)
        if unit is None or is_folder != (relative == f"{FOLDER}/{unit}"):
            raise ValueError(f"{relative!r} is not a file that is mirrored")
        return os.path.join(self._folder, relative)

    def _use(self, path: str) -> int:
        """A descriptor of the file, which is created if need be, because it is about to be changed."""
        if self._syncs:
            self._unsynced.add(path)
        fd = self._open.get(path)
        if fd is not None:
            self._open.move_to_end(path)
            return fd
        while len(self._open) >= _OPEN_FILES:
            self._close_one(next(iter(self._open)))
        fd = self._open[path] = self._files.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self._paths[path[len(self._folder) + 1 :]] = path
        if self._syncs:
            self._unsynced_folders.add(os.path.dirname(path))
        return fd

    def _close_below(self, path: str) -> None:
        for each in [each for each in self._open if each == path or each.startswith(path + "/")]:
            self._close_one(each)

    def _close_one(self, path: str) -> None:
        self._paths.pop(path[len(self._folder) + 1 :], None)
        self._files.close(self._open.pop(path))


def _parts(paths: Iterable[str]) -> list[list[str]]:
    ordered = sorted(paths)
    parts = (ordered[first::_SYNCED_TOGETHER] for first in range(_SYNCED_TOGETHER))
    return [part for part in parts if part]


def units_in(files: Files, folder: str) -> list[str]:
    """The units of a data path, or of a copy."""
    found = [name for name in files.listdir(folder) if name == METADATA]
    with suppress(FileNotFoundError):
        found += [name for name in files.listdir(os.path.join(folder, FOLDER)) if name.endswith(TOPIC_SUFFIX)]
    return sorted(found)


def sizes_of(files: Files, folder: str, unit: str) -> dict[str, int]:
    """The sizes of a unit's files, by path. Files that end meanwhile are left out."""
    paths = [METADATA]
    if unit != METADATA:
        try:
            paths = [f"{FOLDER}/{unit}/{name}" for name in files.listdir(os.path.join(folder, FOLDER, unit))]
        except FileNotFoundError:
            return {}
    found: dict[str, int] = {}
    for path in sorted(paths):
        with suppress(FileNotFoundError):
            found[path] = files.size(os.path.join(folder, path))
    return found


# --- The primary ------------------------------------------------------------------------------------------------------


def catch_up(files: Files, data_path: str, changes: Changes, *, pause: Callable[[], None] = lambda: None) -> Steps:
    """Complete the copy, unit by unit, and make each live. Raises ``OSError``, and ``ValueError`` for a wrong answer.

    Log files in ``changes.equal`` are not compared; more are added. `pause` may let others run.
    """
    theirs = mirror.sizes_in((yield command("files")))
    for unit in theirs:
        if not _is_unit(unit):  # the folder would be read, and copied
            raise ValueError(f"the standby has a copy of {unit!r}, which is not mirrored")
    copied: set[str] = set()
    while missing := (theirs.keys() | set(units_in(files, data_path))) - copied:
        growth: dict[str, int] = {}
        for unit in sorted(missing):
            ours = sizes_of(files, data_path, unit)
            growth[unit] = sum(ours.values()) - sum(theirs.get(unit, {}).values())
            pause()
        for unit in sorted(growth, key=growth.__getitem__):  # the standby's disk may have no room before some shrink
            copying = _Copying(files, data_path, unit, theirs.get(unit), changes.equal)
            yield from copying.steps(changes)
            copied.add(unit)
    changes.make_all_live()


def _is_unit(name: str) -> bool:
    return name == METADATA or unit_of(f"{FOLDER}/{name}") == name


def _is_log(path: str) -> bool:
    return os.path.basename(path).startswith(_LOG_PREFIX)


def _adopted(path: str, size: int, suffix: str = _COPIED) -> list[Change]:
    """A file that was written under a name with this suffix gets its own name."""
    copied = path + suffix
    return [Change(mirror.TRUNCATE, copied, size), Change(mirror.RENAME, copied, data=path.encode("utf-8"))]


class _Copying:
    """Copies one unit. `theirs` are the sizes of the standby's files, None if it has no such unit.

    The primary may be lost in the middle of this, and the standby then has the checkpoint of an earlier connection. So
    files do not lose anything before the next checkpoint is there: segments that were released since are released after
    it. What is released while the unit is copied is among the changes that are held.

    If the primary has deleted all log files that the standby has, messages between those and the next ones would look
    lost. All files are then copied `aside`, and replace the others together.
    """

    def __init__(
        self, files: Files, data_path: str, unit: str, theirs: dict[str, int] | None, equal: dict[str, int]
    ) -> None:
        self._files = files
        self._data_path = data_path
        self._unit = unit
        self._state = METADATA if unit == METADATA else f"{FOLDER}/{unit}/{CHECKPOINT}"
        self._theirs = theirs or {}
        self._has_folder = theirs is not None or unit == METADATA
        self._equal = equal
        self._after_state: list[Change] = []
        self._is_aside = False
        self._aside: dict[str, int] = {}
        """Sizes of the files that were copied aside."""

    def steps(self, changes: Changes) -> Steps:
        yield from self._forget_another()
        # The bulk first, so that few changes have to be held.
        ours = sizes_of(self._files, self._data_path, self._unit)
        for path in sorted(path for path in ours if _is_log(path))[:-1]:
            if not self._is_equal(path, ours[path]):
                self._equal[path] = ours[path]  # first, so that it is removed if the file is replaced meanwhile
                with suppress(FileNotFoundError):
                    yield from self._copy(path, ours[path])
        while True:
            changes.hold(self._unit)
            try:
                ours = sizes_of(self._files, self._data_path, self._unit)
                if self._unit not in units_in(self._files, self._data_path):
                    yield from self._remove()
                    break
                yield from self._make_folder()
                yield from self._copy_all(ours)
                break
            except FileNotFoundError:
                continue  # a file was renamed, deleted or cut before it was read
        changes.make_live(self._unit)

    def _copy_all(self, ours: dict[str, int]) -> Steps:
        """Copy all files, and delete others. Whatever changes from the call on is held."""
        self._after_state.clear()
        state = ours.get(self._state)
        # Opened at once: a later checkpoint would name messages that the logs do not have when they are copied.
        with self._opened(self._state) if state is not None else nullcontext(-1) as state_fd:
            for path in sorted(ours.keys() - {self._state}):
                if not self._is_equal(path, ours[path]):
                    yield from self._copy(path, ours[path])
            together = [each for path in self._aside if path in ours for each in _adopted(path, self._aside[path])]
            if state is not None and not self._is_aside:
                yield from self._replace(self._state, state, state_fd)
            elif state is not None:
                yield from self._write_all(self._state + _COPIED, state, state_fd)
                together += _adopted(self._state, state)
        if self._unit == METADATA:
            yield from self._copy_temporary()
        self._after_state += [Change(mirror.REMOVE, path) for path in self._theirs if path not in ours]
        if together or self._after_state:
            yield [*together, *self._after_state]

    def _copy_temporary(self) -> Steps:
        """Complete the file that replaces nsqd.dat, because a thread may have written some of it before.

        The end of that, which is held, renames it.
        """
        temporary = METADATA + TEMPORARY
        try:
            data = self._read_all(temporary)
        except FileNotFoundError:
            data = self._read_all(METADATA)  # it was renamed just now
        yield [
            Change(mirror.TRUNCATE, temporary),
            *(Change(mirror.WRITE, temporary, at, data[at : at + CHUNK]) for at in range(0, len(data), CHUNK)),
        ]

    def _is_equal(self, path: str, size: int) -> bool:
        return size == self._theirs.get(path) == self._equal.get(path)

    def _forget_another(self) -> Steps:
        """Delete the standby's files of a topic that was deleted and created again."""
        ours = sizes_of(self._files, self._data_path, self._unit)
        logs = [path for path in self._theirs if _is_log(path) and not path.endswith(TEMPORARY)]
        common = sorted(path for path in ours if path in logs)
        if not logs:
            return
        if max(logs) < min(filter(_is_log, ours), default=""):
            self._is_aside = True  # what the standby has was deleted since
            return
        if common:
            sums = mirror.sums_in((yield command(f"sums {common[0]}")))
            with suppress(FileNotFoundError):
                if ours[common[0]] >= CHUNK <= self._theirs[common[0]]:
                    with self._opened(common[0]) as fd:
                        if sums[:1] == [google_crc32c.value(read_up_to(self._files, fd, CHUNK, 0))]:
                            return
                else:
                    return  # one chunk, which is copied as a whole
        yield from self._remove()

    def _remove(self) -> Steps:
        for path in self._theirs:
            self._equal.pop(path, None)
        path = METADATA if self._unit == METADATA else f"{FOLDER}/{self._unit}"
        kind = mirror.REMOVE if self._unit == METADATA else mirror.REMOVE_FOLDER
        yield [Change(kind, path)]
        self._theirs.clear()
        self._has_folder = self._unit == METADATA

    def _make_folder(self) -> Steps:
        if not self._has_folder:
            self._has_folder = True
            yield [Change(mirror.MAKE_FOLDER, f"{FOLDER}/{self._unit}")]

    def _copy(self, path: str, size: int) -> Steps:
        """Copy a file, which had this size when it was listed."""
        known = self._theirs.get(path, 0)
        yield from self._make_folder()
        with self._opened(path) as fd:
            if self._is_aside:
                yield from self._write_all(path + _COPIED, size, fd)
                self._aside[path] = self._theirs[path] = size
                return
            if not os.path.basename(path).startswith(_APPENDED):
                yield from self._replace(path, size, fd)
                return
            sums = mirror.sums_in((yield command(f"sums {path}"))) if known else []
            first = read_up_to(self._files, fd, CHUNK, 0)
            if first.startswith(RELEASED_MAGIC) and known > len(first):
                if len(first) >= size:  # else it was released after it was listed, and the held changes do that
                    self._after_state += [Change(mirror.WRITE, path, 0, first), Change(mirror.TRUNCATE, path, size)]
                return
            if known and sums[:1] != [google_crc32c.value(first)]:
                yield from self._replace(path, size, fd)  # at once, because it may be another file
                return
            yield from self._write(path, size, fd, sums)
        if known > size:
            self._after_state.append(Change(mirror.TRUNCATE, path, size))
        else:
            yield [Change(mirror.TRUNCATE, path, size)]
            self._theirs[path] = size

    def _replace(self, path: str, size: int, fd: int) -> Steps:
        """Copy a file that is replaced as a whole. Raises ``OSError`` if that changes meanwhile."""
        suffix = TEMPORARY if self._unit == METADATA else _COPIED
        yield from self._write_all(path + suffix, size, fd)
        yield _adopted(path, size, suffix)
        self._theirs[path] = size

    def _write_all(self, target: str, size: int, fd: int) -> Steps:
        if not (yield from self._write(target, size, fd, ())):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), target)  # it was released, or closed

    def _write(
        self, target: str, size: int, fd: int, sums: Sequence[int]
    ) -> Generator[bytes | list[Change], bytes, bool]:
        """Write the chunks that do not have these `sums`. Returns whether the file had this size until the end."""
        is_whole = True
        for number, begin in enumerate(range(0, size, CHUNK)):
            data = read_up_to(self._files, fd, CHUNK, begin)
            is_whole = begin + len(data) >= min(begin + CHUNK, size)
            if number < len(sums) and google_crc32c.value(data) == sums[number]:
                continue
            # A file of this name may be there since an earlier connection.
            changes = [Change(mirror.TRUNCATE, target)] if not sums and not begin else []
            if data.strip(b"\0") or number < len(sums):
                changes.append(Change(mirror.WRITE, target, begin, data))
            else:
                changes.append(Change(mirror.ZEROS, target, begin + len(data)))
            yield changes
        return is_whole

    def _read_all(self, path: str) -> bytes:
        return read_file(self._files, os.path.join(self._data_path, path))

    def _opened(self, path: str) -> AbstractContextManager[int]:
        return opened(self._files, os.path.join(self._data_path, path))
