"""Files whose changes are also sent to a standby.

nsqd survives its end at any moment, whatever it has written by then. So a copy to which every change is applied in
order is as good as the data path: after any change, nsqd could start on the copy.

The copy consists of *units*: a topic's folder, and nsqd.dat. After a connection is made, each unit is compared and
copied (``mirror_copy.catch_up``). Its changes meanwhile are *held*, and sent after the copy: what was copied may have
some of them already, and applying them again, in order, has the same result. From then on the unit is *live*.
"""

import os
import re
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from nsq_compat.log.data_path import FOLDER, TOPIC_SUFFIX
from nsq_compat.log.files import TEMPORARY, Files
from nsq_compat.log.storage import Done
from nsq_compat.protocol import mirror
from nsq_compat.protocol.mirror import Change

METADATA: Final = "nsqd.dat"
_ZEROS: Final = bytes(1 << 20)
"""More than a log writes ahead."""
_MAX_DATA: Final = 1 << 19
"""Bytes of a change. A command with more than its limit of bytes, --max-body-size, would be refused."""
ROUNDS: Final = 10
"""Of `Confirmations`, within the timeout. While nsqd itself stands still, no round passes, so that it does not take a
standby for lost that could not be heard."""
_UNIT: Final = re.compile(
    rf"({re.escape(METADATA)})(?:{re.escape(TEMPORARY)})?|{FOLDER}/([^/\0]+{re.escape(TOPIC_SUFFIX)})(?:/[^/\0]+)?"
)


def unit_of(path: str) -> str | None:
    """The unit of a path that is relative to the data path; None if it is not mirrored."""
    match = _UNIT.fullmatch(path)
    if match is None or path.endswith(("/.", "/..")):
        return None
    return match[1] or match[2]


def _is_folder(place: tuple[str, str]) -> bool:
    """Whether this unit and path are those of a topic's folder."""
    return place[1] == f"{FOLDER}/{place[0]}"


class Changes:
    """The changes that wait to be sent, in order. `note` may be called in any thread, the rest only in one.

    `lock` is taken where two threads may meet. `on_change` is called after a change was added, in any thread, and
    `on_replaced` after a unit was replaced by another folder, which is not a change that can be sent.
    """

    def __init__(self, lock: AbstractContextManager[object] | None = None) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.on_replaced: Callable[[], None] = lambda: None
        self.waiting_bytes = 0
        """Bytes of data in held and pending changes."""
        self.equal: dict[str, int] = {}
        """Files that the standby has as they are, and that are not written any more, with their sizes. Whatever touches
        one of them removes it here, at any time."""
        self._lock = lock if lock is not None else nullcontext()
        self._all_are_live = False
        self._live: set[str] = set()
        self._held: dict[str, list[Change]] = {}
        self._pending: deque[Change] = deque()
        self.position_taken = 0
        """The number of changes that were taken."""

    @property
    def position(self) -> int:
        """The number of changes so far."""
        return self.position_taken + len(self._pending)

    @property
    def has_pending(self) -> bool:
        """Whether there is anything to `take`."""
        return len(self._pending) > 0

    def note(self, unit: str, change: Change) -> None:
        """A unit has changed."""
        # Hot: runs for every publish.
        if self._all_are_live or unit in self._live:
            self._add(change)
            return
        with self._lock:
            if unit in self._live:
                self._add(change)
            elif unit in self._held:
                self._held[unit].append(change)
                self.waiting_bytes += len(change.data)

    def _add(self, change: Change) -> None:
        self._pending.append(change)
        self.waiting_bytes += len(change.data)
        self.on_change()

    def take(self, max_bytes: int) -> list[Change]:
        """Remove and return the next changes, about `max_bytes`."""
        pending = self._pending
        taken: list[Change] = []
        size = 0
        while pending and size < max_bytes:
            change = pending.popleft()
            taken.append(change)
            size += len(change.data)
        self.position_taken += len(taken)
        self.waiting_bytes -= size
        if not pending and not self._held:
            self.waiting_bytes = 0  # additions in threads may have been lost
        return taken

    # --- Catching up --------------------------------------------------------------------------------------------------

    def hold(self, unit: str) -> None:
        """Keep the unit's changes from now on, for `make_live`. Those that were held before are forgotten."""
        with self._lock:
            self.waiting_bytes -= sum(len(change.data) for change in self._held.get(unit, ()))
            self._held[unit] = []

    def make_live(self, unit: str) -> None:
        """The unit is copied: send what was held, and then each change."""
        with self._lock:
            self._pending.extend(self._held.pop(unit, ()))
            self._live.add(unit)
        self.on_change()

    def make_all_live(self) -> None:
        """All units are copied. Those that are new from now on are live from their beginning."""
        self._all_are_live = True

    def forget(self) -> None:
        """The connection has ended: nothing is live any more."""
        with self._lock:
            self._all_are_live = False
            self._live.clear()
            self._held.clear()
            self.position_taken += len(self._pending)
            self._pending.clear()
            self.waiting_bytes = 0


class Confirmations:
    """Publishes that wait, in their order, until the standby has all `changes` before them.

    A publish waits for ``ROUNDS`` calls of `next_round` at most. With the last of them the standby counts as lost, and
    no publish waits any more until `in_sync` is set again. `on_progress` is called for an answer of a standby that is
    not in sync.
    """

    def __init__(self, changes: Changes) -> None:
        self.is_started = False
        """Before, nothing waits."""
        self.in_sync = False
        self.acknowledged = 0
        """The number of changes that the standby has."""
        self.refusal: Callable[[], OSError | None] = lambda: None
        """What becomes of a publish that the standby does not have: an error, or None if nsqd may continue without."""
        self.on_progress: Callable[[], None] = lambda: None
        self._changes = changes
        self._round = 0
        self._lost_in = 0
        """The round in which the standby was lost."""
        self._waiting: deque[tuple[int, int, Done]] = deque()
        """The position that has to be acknowledged, and the round in which they began to wait."""

    def confirm(self, done: Done) -> None:
        """Call `done` when the standby has all changes so far, or what `refusal` returns. Calls are in their order."""
        # Hot: runs for every publish.
        position = self._changes.position
        if self.in_sync:
            if self.acknowledged >= position:
                done(None)
                return
        elif not self.is_started:
            done(None)  # topics are being restored
            return
        elif not self._waiting and self._round - self._lost_in > ROUNDS:
            done(self.refusal())
            return
        self._waiting.append((position, self._round, done))

    def acknowledge(self, position: int) -> None:
        """The standby has so many changes."""
        # Hot: runs for every group of publishes.
        self.acknowledged = position
        if self.in_sync:
            self.resolve()
        else:
            self.on_progress()

    def resolve(self) -> None:
        """Call back the publishes whose changes are acknowledged."""
        waiting, acknowledged = self._waiting, self.acknowledged
        while waiting and waiting[0][0] <= acknowledged:
            waiting.popleft()[2](None)

    def lose(self) -> None:
        """The connection to the standby has ended."""
        if self.in_sync:
            self.in_sync = False
            self._lost_in = self._round

    def next_round(self) -> bool:
        """Let go of publishes that have waited for too long; returns whether the standby counts as lost by that."""
        self._round += 1
        waiting, late = self._waiting, self._round - ROUNDS - 1
        lost_now = self.in_sync and len(waiting) > 0 and waiting[0][1] <= late
        if lost_now:
            self.in_sync = False
            self._lost_in = late
        # Once the standby counts as lost, no publish waits, and later ones do not queue behind it.
        is_lost = not self.in_sync and self._lost_in <= late
        while waiting and (is_lost or waiting[0][1] <= late):
            waiting.popleft()[2](self.refusal())
        return lost_now

    def let_all_go(self) -> None:
        while self._waiting:
            self._waiting.popleft()[2](self.refusal())


class MirroredFiles:
    """``Files`` in `data_path` that note their changes. Other files, of which there are few, are only passed on."""

    def __init__(self, files: Files, data_path: str, changes: Changes) -> None:
        self._files = files
        self._root = os.path.join(data_path, "")
        self._changes = changes
        self._open: dict[int, tuple[str, str]] = {}  # unit and path by descriptor

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        place = self._place(path)
        if place is not None and flags & os.O_ACCMODE != os.O_RDONLY:
            self._changes.equal.pop(place[1], None)
        fd = self._files.open(path, flags, mode)
        if place is None or flags & os.O_DIRECTORY:
            self._open.pop(fd, None)
            return fd
        self._open[fd] = place
        if flags & os.O_CREAT:
            self._changes.note(place[0], Change(mirror.TRUNCATE if flags & os.O_TRUNC else mirror.ZEROS, place[1]))
        return fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)
        self._files.close(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return self._files.pread(fd, size, offset)

    def next_data(self, fd: int, offset: int) -> int:
        return self._files.next_data(fd, offset)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        written = self._files.pwrite(fd, data, offset)
        place = self._open.get(fd)
        if place is not None and written:
            if written < len(data):
                data = data[:written]
            if data[0] == 0 and _ZEROS.startswith(data):  # written ahead
                self._changes.note(place[0], Change(mirror.ZEROS, place[1], offset + written))
            elif written <= _MAX_DATA:
                self._changes.note(place[0], Change(mirror.WRITE, place[1], offset, data))
            else:
                for begin in range(0, written, _MAX_DATA):
                    piece = data[begin : begin + _MAX_DATA]
                    self._changes.note(place[0], Change(mirror.WRITE, place[1], offset + begin, piece))
        return written

    def fallocate(self, fd: int, offset: int, size: int) -> None:
        self._files.fallocate(fd, offset, size)
        if (place := self._open.get(fd)) is not None:
            self._changes.note(place[0], Change(mirror.ZEROS, place[1], offset + size))

    def ftruncate(self, fd: int, size: int) -> None:
        self._files.ftruncate(fd, size)
        if (place := self._open.get(fd)) is not None:
            self._changes.note(place[0], Change(mirror.TRUNCATE, place[1], size))

    def fdatasync(self, fd: int) -> None:
        self._files.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        self._files.fsync(fd)

    def fsync_folder(self, path: str) -> None:
        self._files.fsync_folder(path)

    def size(self, path: str) -> int:
        return self._files.size(path)

    def identity(self, path: str) -> tuple[int, int]:
        return self._files.identity(path)

    def rename(self, old: str, new: str) -> None:
        before, after = self._place(old), self._place(new)
        if before is not None and _is_folder(
            before
        ):  # of a topic that is deleted: what threads still write is not sent
            for fd, place in list(self._open.items()):
                if place[0] == before[0]:
                    self._open.pop(fd, None)
        self._touch(before)
        self._touch(after)
        self._files.rename(old, new)
        for fd, place in list(self._open.items()):
            if before is not None and after is not None and place == before:
                self._open[fd] = after
        if before is not None and after is not None and before[0] == after[0]:
            self._changes.note(before[0], Change(mirror.RENAME, before[1], data=after[1].encode("utf-8")))
            return
        if before is not None:  # a topic's folder that is about to be deleted
            self._changes.note(before[0], Change(mirror.REMOVE_FOLDER, before[1]))
        if after is not None:
            self._changes.on_replaced()

    def unlink(self, path: str) -> None:
        self._touch(place := self._place(path))
        self._files.unlink(path)
        if place is not None:
            self._changes.note(place[0], Change(mirror.REMOVE, place[1]))

    def mkdir(self, path: str, mode: int = 0o700) -> None:
        self._files.mkdir(path, mode)
        if (place := self._place(path)) is not None:
            self._changes.note(place[0], Change(mirror.MAKE_FOLDER, place[1]))

    def rmdir(self, path: str) -> None:
        self._files.rmdir(path)
        if (place := self._place(path)) is not None:
            self._changes.note(place[0], Change(mirror.REMOVE_FOLDER, place[1]))

    def listdir(self, path: str) -> Sequence[str]:
        return self._files.listdir(path)

    def _touch(self, place: tuple[str, str] | None) -> None:
        """A file, or a topic's folder with all its files, is about to be replaced or deleted."""
        if place is None:
            return
        path, equal = place[1], self._changes.equal
        equal.pop(path, None)
        if _is_folder(place):
            for each in [each for each in equal.copy() if each.startswith(f"{path}/")]:
                equal.pop(each, None)

    def _place(self, path: str) -> tuple[str, str] | None:
        if not path.startswith(self._root):
            return None
        relative = path[len(self._root) :]
        unit = unit_of(relative)
        return None if unit is None else (unit, relative)
