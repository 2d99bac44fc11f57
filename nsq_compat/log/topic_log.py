"""A topic's log: segments that are only appended to, and messages kept when old segments are deleted.

Recovery relies on these rules:

- Segments are numbered from 1; messages from 0, and their numbers never go back. A segment's header has the next
  message number when it was created. So a group of an earlier segment with such a number is a failed write that could
  not be undone, and is skipped.
- A process never appends to a segment of an earlier one. A group that an earlier process left half written is cut off
  if possible, and skipped if not.
- Nothing is deleted before the messages that were copied from it are durable.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Final, TypeVar

from nsq_compat.log.damage import Damage
from nsq_compat.log.data_path import leftover_name, remove_folder
from nsq_compat.log.descriptors import Descriptors
from nsq_compat.log.files import TEMPORARY, Files
from nsq_compat.log.group_reader import MESSAGE_KINDS, GroupReader, extend_index, first_id_of, index_of
from nsq_compat.log.identity import UNKNOWN_SALT, FileEnd, FoundEnd
from nsq_compat.log.kept import Kept
from nsq_compat.log.migration import migrate
from nsq_compat.log.reading import (
    LogEnd,
    LogReader,
    ReadableLog,
    fetch_in_span,
    group_by_span,
    readers_from_end,
    sorted_ids,
    split_by_segment,
)
from nsq_compat.log.segment import FIRST_GROUP, INDEX_STEP, UNKNOWN_SEQ, Segment, StagedBatch, encode_group, place_of
from nsq_compat.log.sync import SyncJob, Unsynced
from nsq_compat.protocol.message import message_id
from nsq_compat.protocol.storage_schema import DEFERRED, MESSAGES

__all__ = ["DEFAULT_SEGMENT_SIZE", "LogEnd", "LogReader", "SyncJob", "TopicLog"]

log = logging.getLogger(__name__)

DEFAULT_SEGMENT_SIZE: Final = 100 << 20

_FILE_NAME: Final = re.compile(r"(log|kept)\.(00[0-9]{18})")  # any such number fits into a checkpoint
_STAGED: Final = "staged"
_COPY_AT_ONCE: Final = 1024  # ids
_FILES_AT_ONCE: Final = 16
"""Files from which messages are copied before the copies are synced."""
_SKIPPED_CALLS: Final = 16
_SPILLED_AT_ONCE: Final = 1 << 15
_ALL: Final = 1 << 62
_MAX_OFFSET: Final = 1 << 61
"""Higher ones are not believed at a start, so that no publish ever needs a number that does not fit."""
_COMPARED_FILES: Final = 4
_INDEXED_SEGMENTS: Final = 8
"""The newest segments, whose indexes stay in memory. An index has about 200 KB."""

Found = TypeVar("Found")
Later = Callable[[Callable[[], None]], object]
"""Schedules a callback for after the current request has been answered."""


class TopicLog(ReadableLog):
    """Opens the log in `folder`, or creates it. Every method that touches files raises ``OSError``, also this one.

    ``recovered`` begins at `start`, by default the oldest group. Damage is counted and skipped. `descriptors` are those
    of all logs; `files` must be the same as theirs. `later` schedules optional work. `migrates`: files of an earlier
    version become those of this one.
    """

    def __init__(
        self,
        files: Files,
        folder: str,
        *,
        segment_size: int = DEFAULT_SEGMENT_SIZE,
        start: LogEnd | None = None,
        descriptors: Descriptors | None = None,
        later: Later = lambda prepare: None,
        migrates: bool = False,
    ) -> None:
        self._own_descriptors = descriptors is None
        descriptors = descriptors or Descriptors(files)
        super().__init__(folder, Kept(descriptors, lambda number: self.path_of("kept", number), segment_size))
        self.last_place = 0
        """The position of the last group that was not of kind MESSAGES (``place_of``)."""
        self.synced_offset = 0
        """The next offset when the last sync began that has succeeded; 0 before the first of this run."""
        self.released_count = 0
        """Segments that were released since the log was opened."""
        self._descriptors = descriptors
        self._files = files
        self._segment_size = segment_size
        self._later = later
        self._active: Segment | None = None  # the last of the segments, if this run made it
        self._last_number = 0
        self._staged_count = 0
        self._unsynced = Unsynced(descriptors)
        self._calls_to_skip = 0
        self._considered = 0
        self._closed = False
        self._open(start, migrates)

    def move(self, folder: str, descriptors: Descriptors, later: Later) -> None:
        """Rename the folder of a log that was opened with descriptors of its own, and continue with these."""
        assert self._own_descriptors, "otherwise files of other logs would be closed"
        self._descriptors.close_all()
        self._files.rename(self.folder, folder)
        self.folder = folder
        self._own_descriptors, self._descriptors, self._later = False, descriptors, later
        for segment in self.segments:
            segment.move(descriptors, self.path_of("log", segment.number))
        self.kept.move(descriptors)
        self._unsynced = Unsynced(descriptors)
        self._unsynced.segments.update(dict.fromkeys(self.segments[-1:]))
        self._unsynced.add_folder(os.path.dirname(folder))

    # --- State --------------------------------------------------------------------------------------------------------

    @property
    def end(self) -> LogEnd:
        """The end of the last group. With this `start`, ``recovered`` returns the groups appended from now on."""
        last = self.segments[-1] if self.segments else None
        return LogEnd(last.number, last.end, self.next_seq) if last else LogEnd(self._last_number, 0, self.next_seq)

    @property
    def disk_bytes(self) -> int:
        """Bytes in all files, without reserved space."""
        return sum(segment.end for segment in [*self.segments, *self.kept.files])

    def found_end(self) -> FoundEnd:
        """What earlier runs have left, for the comparison with a standby. Raises ``OSError``."""
        found = [segment for segment in self.segments if segment is not self._active]
        files = [
            FileEnd(
                segment.number,
                _ALL if segment.released else segment.end,
                UNKNOWN_SALT if segment.released or segment.header_lost else segment.salt,
            )
            for segment in found[-_COMPARED_FILES:]
        ]
        return FoundEnd(self.next_seq + self.deferred_count, self._offset_after_messages(), files)

    def _offset_after_messages(self) -> int:
        for segment in reversed(self.segments):
            for reader in readers_from_end(segment, segment.end, Damage(quiet=True)):
                groups = [each for each in chain.from_iterable(iter(reader.read, [])) if each.kind in MESSAGE_KINDS]
                if groups:
                    return groups[-1].offset + len(groups[-1].frames)
        return 0

    # --- Writing ------------------------------------------------------------------------------------------------------

    def append(
        self, frames: Sequence[bytes], first_seq: int, due_ns: int = 0, kind: int = MESSAGES, joined: bytes = b""
    ) -> None:
        """Write one group, all or nothing. `first_seq` is the number of the next message that is due at once.

        For MESSAGES it must not be below ``end.seq``. `due_ns` counts for DEFERRED.
        No message may be in memory only: see ``spill``. `joined`: the frames joined, if the caller has that.
        """
        # Hot: runs for every publish.
        if not frames:
            return
        segment = self._active
        if segment is None or segment.abandoned:
            segment = self._begin_segment()
        number = first_seq
        if kind == DEFERRED:
            number += self.deferred_count
        else:
            due_ns = self.deferred_count
        offset = segment.end
        data = encode_group(kind, number, due_ns, frames, offset, segment.salt, joined)
        if offset + len(data) > self._segment_size and offset > FIRST_GROUP:
            segment = self._begin_segment()
            offset = segment.end
            data = encode_group(kind, number, due_ns, frames, offset, segment.salt, joined)
        if kind == MESSAGES and first_seq < self.next_seq:
            raise ValueError(f"message number {first_seq} again: the next one is {self.next_seq}")
        segment.append(data, self._segment_size)
        index = segment.index
        assert index is not None, "a segment that is appended to was made with an index"
        if kind in MESSAGE_KINDS:
            index.count += len(frames)
            if offset >= index.next_offset:
                index.add(first_seq if kind == MESSAGES else self.next_seq, message_id(frames[0]), offset)
                if len(data) < INDEX_STEP:  # it saves little for large groups
                    self._later(self._prepare)
        if kind == MESSAGES:
            self.next_seq = first_seq + len(frames)
        else:
            self.last_place = place_of(segment.number, offset)
            segment.other_bytes += len(data)
            if kind == DEFERRED:
                self.deferred_count += len(frames)

    def spill_some(self) -> bool:
        """Write some of the messages that are in memory only; returns whether none is left there."""
        tail = self.tail
        if tail is None:
            return True
        tail.trim()
        if tail.count:
            group = tail.read(tail.first_seq, _SPILLED_AT_ONCE)
            self.append(group.frames, group.first_seq)
            tail.drop_before(group.first_seq + len(group.frames))
        return not tail.count

    def spill(self) -> None:
        while not self.spill_some():
            pass

    def stage(self) -> StagedBatch:
        """Create a file for the messages of a large publish, to be attached when it is complete."""
        self._staged_count += 1
        return StagedBatch(self._descriptors, self.path_of(_STAGED, self._staged_count), self._segment_size)

    def attach(self, staged: StagedBatch, first_seq: int) -> None:
        """Make the file of a large publish the last segment. All or nothing."""
        if first_seq < self.next_seq:
            raise ValueError(f"message number {first_seq} again: the next one is {self.next_seq}")
        staged.assign_numbers(first_seq, self.next_seq, self.deferred_count)
        segment = staged.segment
        number = self._last_number + 1
        path = self.path_of("log", number)
        self._files.rename(segment.path, path)
        self._last_number = segment.number = number
        segment.path = segment.file.path = path
        self._add_segment(segment)
        self.next_seq = first_seq + staged.count

    def keep(self, frames: Iterable[bytes]) -> dict[bytes, bytes]:
        """Keep frames that are in no segment, so that ``fetch`` finds them; returns their locations, by id."""
        locations = self.kept.add(frames, protects=True)
        self._note_kept()
        return locations

    def begin_checkpoint(self) -> LogEnd:
        """Return the log's end, for a checkpoint of the current state, without messages that are kept later."""
        self.kept.begin_checkpoint()
        for segment in self.segments[:-_INDEXED_SEGMENTS]:
            if not segment.released:
                segment.forget_index()
        return self.end

    # --- Deleting -----------------------------------------------------------------------------------------------------

    def release(
        self,
        seq: int,
        unfinished: Callable[[], Iterable[bytes]],
        start: LogEnd | None = None,
        sync: Callable[[], None] | None = None,
        pause: Callable[[], None] = lambda: None,
        kept_from: Callable[[], int] = lambda: _ALL,
    ) -> None:
        """Delete the messages below `seq`, and deferred ones, but for those in `unfinished()`.

        Messages that were kept after ``begin_checkpoint`` are kept as well. `start` is that of the next ``open``,
        from its checkpoint; by default ``end``. Nothing from its segment on is deleted. Segments with many unfinished
        messages stay; from others these are copied, and `sync` makes the copies durable. `pause` is called after every
        few thousand. The log may be used during both. Segments from the number `kept_from()` on stay: it is asked again
        before each deletion. Errors are logged, and the work is tried again later. If nothing
        changed since the last call, only every few calls do something.
        """
        if self.tail is not None:
            self.tail.trim()
        try:
            limit = min(start.segment if start else self.end.segment, _in_steps(kept_from, pause))
        except OSError as error:
            log.warning("LOG(%s): nothing released - %s", self.folder, error)
            return
        # A segment with groups stays, because they say how many deferred messages there were.
        limit = min(limit, max((each.number for each in self.segments if each.end > FIRST_GROUP), default=limit))
        following = zip(self.segments, self.segments[1:], strict=False)
        candidates = [
            one for one, after in following if one.number < limit and after.first_seq <= seq and not one.released
        ]
        if not self._release_is_due(candidates):
            return
        alive = sorted_ids(unfinished(), pause)
        try:
            self.kept.read_ranges(pause)
            for segment in [*self.segments]:
                if not self._closed:
                    _in_steps(partial(first_id_of, segment, self.damage, in_steps=True), pause)
            if self._closed:
                return
            # Decided without a pause, so no message that is written later is in these files.
            parts = list(split_by_segment(self.segments, alive, self.damage, candidates))
            steps = [
                (partial(self._copy, segment, some, pause), partial(self._release_before, segment, kept_from))
                for segment, some in parts
            ]
            for file in self.kept.mostly_dead(alive):
                steps.append((partial(self.kept.copy, file, alive), partial(self.kept.remove, file)))
            while steps and not self._closed:
                self._copy_and_delete(steps[:_FILES_AT_ONCE], sync or self.sync, pause)
                del steps[:_FILES_AT_ONCE]
        except OSError as error:
            log.warning("LOG(%s): nothing released - %s", self.folder, error)

    def close(self) -> None:
        """Cut off reserved space and close all files, without a sync."""
        self._closed = True
        for segment in [*self.segments, *self.kept.files]:
            self._descriptors.read_faults.forget(segment)
        for segment in self.segments:
            segment.close()
        self.kept.close()
        self._active = None
        self._unsynced.close()
        if self._own_descriptors:
            self._descriptors.close_all()

    def delete(self, durably: bool = False) -> None:
        """Delete the folder, leaving what remains to ``remove_leftovers``. `durably`: also after a power cut."""
        self.close()
        parent = os.path.dirname(self.folder)
        doomed = leftover_name(self.folder, self._descriptors.with_room(lambda: self._files.listdir(parent)))
        self._files.rename(self.folder, doomed)
        if durably:
            self._descriptors.with_room(lambda: self._files.fsync_folder(parent))
        try:
            self._descriptors.with_room(lambda: remove_folder(self._files, doomed))
        except OSError as error:
            log.warning("LOG(%s): not deleted completely - %s", doomed, error)

    # --- Durability ---------------------------------------------------------------------------------------------------

    def begin_sync(self) -> SyncJob:
        """A job that syncs everything appended so far. ``finish_sync`` must follow."""
        job = self._unsynced.begin_sync()
        job.next_offset = self.next_seq + self.deferred_count
        return job

    def finish_sync(self, job: SyncJob, error: OSError | None) -> None:
        """Note the result of the job, in the thread of the log."""
        self._unsynced.finish_sync(job, error, self._active)
        if error is None:
            self.synced_offset = max(self.synced_offset, job.next_offset)
        else:
            log.error("LOG(%s): failed to sync, continuing in a new file - %s", self.folder, error)

    def note_new_name(self) -> None:
        """Note that a file was renamed, which the next sync makes durable."""
        self._unsynced.add_folder(self.folder)

    def sync(self) -> None:
        job = self.begin_sync()
        try:
            job.run()
        except OSError as error:
            self.finish_sync(job, error)
            raise
        self.finish_sync(job, None)

    # --- Opening ------------------------------------------------------------------------------------------------------

    def _open(self, start: LogEnd | None, migrates: bool) -> None:
        self.start = start
        try:
            names = self._descriptors.with_room(lambda: self._files.listdir(self.folder))
        except FileNotFoundError:
            self._files.mkdir(self.folder)
            self._unsynced.add_folder(os.path.dirname(self.folder))
            names = ()
        for name in names:
            if name.startswith(_STAGED) or name.endswith(TEMPORARY):  # of a process that ended in the middle of it
                with suppress(OSError):
                    self._files.unlink(f"{self.folder}/{name}")
        found = sorted((match[1], int(match[2])) for name in names if (match := _FILE_NAME.fullmatch(name)))
        if migrates:
            migrate(self._files, self.folder, [f"{kind}.{number:020}" for kind, number in found if kind == "log"])
        for kind, number in found:
            size = self._files.size(self.path_of(kind, number))
            if kind == "kept":
                self.kept.add_file(number, size)
            else:
                segment = Segment(self._descriptors, self.path_of(kind, number), number, UNKNOWN_SEQ, size)
                if start is not None and number == start.segment:
                    segment.acknowledged = start.offset
                segment.read_header()
                self.segments.append(segment)
        self._last_number = max([start.segment if start else 0, *(segment.number for segment in self.segments)])
        _number_segments(self.segments)
        self.next_seq, tail = _find_end(self.segments, start)
        self.deferred_count = _count_deferred(self.segments, self.next_seq)
        for segment in self.segments[-1:]:
            if tail is not None and tail < segment.end:
                try:
                    segment.truncate(tail)
                except OSError as error:
                    log.warning("LOG(%s): cannot cut off an unfinished write - %s", segment.path, error)
            self._unsynced.segments[segment] = None

    # --- Inside -------------------------------------------------------------------------------------------------------

    def path_of(self, kind: str, number: int) -> str:
        return f"{self.folder}/{kind}.{number:020}"

    def _begin_segment(self) -> Segment:
        number = self._last_number + 1
        path = self.path_of("log", number)
        self._last_number = number
        try:
            segment = Segment.create(self._descriptors, path, number, self.next_seq, self._segment_size)
        except OSError:
            try:
                self._files.size(path)
            except FileNotFoundError:
                self._last_number = number - 1  # else the number is not used again
            except OSError:
                pass  # unknown
            raise
        self._add_segment(segment)
        return segment

    def _add_segment(self, segment: Segment) -> None:
        if self._active:
            self._active.close()
        self.segments.append(segment)
        self._active = segment
        self._unsynced.segments[segment] = None
        self._unsynced.add_folder(self.folder)

    def _prepare(self) -> None:
        if self._active is not None:
            self._active.prepare(self._segment_size)

    def _note_kept(self) -> None:
        for segment in self.kept.files:
            if segment.needs_sync and segment.index is not None and segment not in self._unsynced.segments:
                self._unsynced.segments[segment] = None
                self._unsynced.add_folder(self.folder)

    def _copy_and_delete(
        self,
        steps: Sequence[tuple[Callable[[], bool], Callable[[], None]]],
        sync: Callable[[], None],
        pause: Callable[[], None],
    ) -> None:
        """Copy needed messages from some files, sync the copies, and delete the files that were wholly copied."""
        deletions = [delete for copy, delete in steps if copy()]
        self._note_kept()
        if any(segment in self._unsynced.segments for segment in self.kept.files):
            sync()
        for delete in deletions:
            if self._closed:  # the files are deleted, and another log may have their names
                return
            delete()
            pause()  # the system takes some milliseconds to free the pages of a file
        # The oldest first, because a gap between other files would look like a loss.
        while not self._closed and self.segments and self.segments[0].released:
            self.segments[0].remove()
            self._unsynced.segments.pop(self.segments.pop(0), None)

    def _release_is_due(self, candidates: Sequence[Segment]) -> bool:
        """Whether a release may find something: there is a new file, or some calls have passed."""
        if not candidates and not self.kept.files:
            return False
        self._calls_to_skip -= 1
        newest = candidates[-1].number if candidates else 0
        if newest <= self._considered and self._calls_to_skip > 0:
            return False
        self._considered = max(newest, self._considered)
        self._calls_to_skip = _SKIPPED_CALLS
        return True

    def _copy(self, segment: Segment, alive: Sequence[bytes], pause: Callable[[], None]) -> bool:
        """Copy unfinished messages, unless there are many; returns whether the segment is not needed any more."""
        while alive and not extend_index(segment, self.damage):
            pause()
            if self._closed:
                return False
        if alive and len(alive) * 2 > index_of(segment, self.damage).count:
            return False
        # Copied again even if an earlier run copied them, because that copy may not be durable.
        copied = 0
        for begin in range(0, len(alive), _COPY_AT_ONCE):
            frames: list[bytes] = []
            for span, wanted in group_by_span(segment, alive[begin : begin + _COPY_AT_ONCE], self.damage):
                frames += fetch_in_span(segment, span, wanted, self.damage).values()
                pause()
                if self._closed:
                    return False
            self.kept.add(frames)
            self._note_kept()
            copied += len(frames)
        return copied == len(alive)  # else some are unreadable now, and counted when they are fetched

    def _release_before(self, segment: Segment, kept_from: Callable[[], int]) -> None:
        with suppress(BlockingIOError):  # the next release searches on
            if segment.number < kept_from():
                segment.release()
                self.released_count += 1


def _in_steps(read: Callable[[], Found], pause: Callable[[], None]) -> Found:
    while True:
        try:
            return read()
        except BlockingIOError:
            pause()


def _number_segments(segments: Sequence[Segment]) -> None:
    """Set `first_seq` of segments with a damaged header to the number of the segment's first message.

    A number that is too high is safe; a number that is used twice is not.
    """
    following = UNKNOWN_SEQ
    for segment in reversed(segments):
        if segment.header_lost:
            segment.first_seq = _first_seq_of(segment, following)
        following = segment.first_seq


def _first_seq_of(segment: Segment, following: int) -> int:
    if segment.end > FIRST_GROUP:
        log.warning("LOG(%s): the file's header is damaged", segment.path)
    reader = GroupReader(segment, Damage(quiet=True))
    while groups := reader.read():
        for group in groups:
            if group.kind == MESSAGES:
                return group.first_seq
    return following


def _find_end(segments: Sequence[Segment], start: LogEnd | None) -> tuple[int, int | None]:
    """Find the next message number, and the offset in the last segment at which an unfinished tail begins.

    Messages that are missing before `start`, the end in the checkpoint, are found by ``audit`` and ``LogCursor``.
    """
    seq = start.seq if start else 0
    tail: int | None = None
    for segment in reversed(segments):
        begin = start.offset if start and start.segment == segment.number else FIRST_GROUP
        reader = GroupReader(segment, Damage(quiet=True), min(begin, segment.end))
        while reader.read():
            pass
        if segment is segments[-1]:
            tail = reader.tail
        known = segment.first_seq if segment.first_seq != UNKNOWN_SEQ else 0
        seq = max(seq, reader.next_seq, known)
        if known or reader.next_seq or begin > FIRST_GROUP:
            break
    for segment in segments:
        segment.first_seq = min(segment.first_seq, seq)
    return seq, tail


def _count_deferred(segments: Sequence[Segment], next_seq: int) -> int:
    """The number of deferred messages in the log's past, which the last group says. Raises ``OSError``.

    A number that is too high is safe; an offset that is used twice is not.
    """
    next_offset = 0
    for segment in reversed(segments):
        for reader in readers_from_end(segment, segment.end, Damage(quiet=True)):
            # A message may contain what looks like a group with any offset.
            groups = [group for group in chain.from_iterable(iter(reader.read, [])) if group.offset < _MAX_OFFSET]
            for group in groups:
                next_offset = max(next_offset, group.offset + (len(group.frames) if group.kind in MESSAGE_KINDS else 0))
            counts = [group.due_ns for group in groups if group.kind != DEFERRED]
            if counts:
                return max(counts[-1], next_offset - next_seq)
    return max(0, next_offset - next_seq)
