"""A topic's log: segments that are only appended to, and messages retained when old segments are deleted.

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
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Final

from nsq_compat.log.damage import Damage
from nsq_compat.log.data_path import leftover_name, remove_folder
from nsq_compat.log.descriptors import Descriptors
from nsq_compat.log.files import Files
from nsq_compat.log.group import Group, encode_group, location_of, place_of, split_location
from nsq_compat.log.group_reader import BLOCK_SIZE, MESSAGE_KINDS, extend_index, index_of
from nsq_compat.log.memory_tail import MemoryTail
from nsq_compat.log.reading import (
    LogBounds,
    LogCursor,
    LogEnd,
    LogReader,
    fetch_at,
    fetch_from,
    fetch_in_span,
    find_end,
    find_in_span,
    group_by_span,
    latest_groups,
    number_segments,
    sorted_ids,
    split_by_segment,
)
from nsq_compat.log.retained import Retained
from nsq_compat.log.segment import (
    FIRST_GROUP,
    INDEX_STEP,
    UNKNOWN_SEQ,
    IndexEntry,
    Segment,
    SegmentHeader,
    StagedBatch,
    decode_segment_header,
)
from nsq_compat.log.sync import SyncJob, Unsynced
from nsq_compat.protocol.message import message_id
from nsq_compat.protocol.storage_schema import MESSAGES

__all__ = ["DEFAULT_SEGMENT_SIZE", "LogEnd", "LogReader", "SyncJob", "TopicLog"]

log = logging.getLogger(__name__)

DEFAULT_SEGMENT_SIZE: Final = 100 << 20

_FILE_NAME: Final = re.compile(r"(log|kept)\.([0-9]{20})")
_STAGED: Final = "staged"
_COPY_AT_ONCE: Final = 1024  # ids
_FILES_AT_ONCE: Final = 16
"""Files from which messages are copied before the copies are synced."""
_PATIENCE: Final = 16
_SPILLED_AT_ONCE: Final = 1 << 15
_SPANS_AT_ONCE: Final = 8
"""Parts of a segment, of about INDEX_STEP bytes each, that are searched to locate messages."""
_NO_LOCATIONS: Final[Mapping[bytes, bytes]] = {}

Later = Callable[[Callable[[], None]], object]
"""Schedules a callback for after the current request has been answered."""


class TopicLog:
    """Created by ``open``. Every method that touches files raises ``OSError``."""

    def __init__(self, descriptors: Descriptors, folder: str, segment_size: int, later: Later) -> None:
        self.folder = folder
        self.start: LogEnd | None = None
        self.damage = Damage()
        self.last_place = 0
        """The place of the last group that was not of kind MESSAGES (``group.place_of``)."""
        self._descriptors = descriptors
        self._files = descriptors.files
        self._own_descriptors = False
        self._segment_size = segment_size
        self._later = later
        self._segments: list[Segment] = []
        self._active: Segment | None = None  # the last of the segments, if this run made it
        self._tail: MemoryTail | None = None
        self._last_number = 0
        self._staged_count = 0
        self._seq = 0
        self.bounds = LogBounds(lambda: self._seq)
        self._kept = Retained(descriptors, lambda number: self._path("kept", number), segment_size)
        self._unsynced = Unsynced(descriptors)
        self._patience = 0
        self._considered = 0
        self._closed = False
        self._in_steps = False

    @classmethod
    def open(
        cls,
        files: Files,
        folder: str,
        *,
        segment_size: int = DEFAULT_SEGMENT_SIZE,
        start: LogEnd | None = None,
        descriptors: Descriptors | None = None,
        later: Later = lambda prepare: None,
    ) -> "TopicLog":
        """Open the log in `folder`, or create it. ``recovered`` begins at `start`, by default the oldest group.

        Damage is counted and skipped. `descriptors` are those of all logs; `files` must be the same as theirs. `later`
        schedules optional work.
        """
        opened = cls(Descriptors(files) if descriptors is None else descriptors, folder, segment_size, later)
        opened._own_descriptors = descriptors is None
        opened._open(start)
        return opened

    def keep_newest_in_memory(self, limit: int, first_needed: Callable[[], int]) -> None:
        """From now on keep up to `limit` messages in memory, see `hold`: durability level ``memory``.

        `first_needed` returns the number of the first message that a channel reads. Those before it are dropped.
        """
        self._tail = MemoryTail(limit, first_needed)

    def read_in_steps(self) -> None:
        """From now on ``LogReader.read`` and ``fetch`` raise ``BlockingIOError`` when they would take long.

        Nothing is wrong then: call them again at once. Each call does a part of the work that remains.
        """
        self._in_steps = True

    # --- State --------------------------------------------------------------------------------------------------------

    @property
    def end(self) -> LogEnd:
        """The place behind the last group. With this `start`, ``recovered`` returns the groups appended from now on."""
        last = self._segments[-1] if self._segments else None
        return LogEnd(last.number, last.end, self._seq) if last else LogEnd(self._last_number, 0, self._seq)

    @property
    def oldest(self) -> int:
        """The lowest number that a message may have."""
        return self._segments[0].first_seq if self._segments else self._seq

    @property
    def has_begun(self) -> bool:
        """Whether there is a segment."""
        return bool(self._segments)

    @property
    def is_whole(self) -> bool:
        """Whether no segment was deleted or released, and no message retained."""
        following = enumerate(self._segments, 1)
        return not len(self._kept) and all(one.number == number and not one.released for number, one in following)

    @property
    def disk_bytes(self) -> int:
        """Bytes in all files, without reserved space."""
        return sum(segment.end for segment in [*self._segments, *self._kept.segments])

    @property
    def segments(self) -> Sequence[Segment]:
        """All segments, the oldest first."""
        return self._segments

    def segment_path(self, number: int) -> str:
        """Return the path of the segment with that number."""
        return self._path("log", number)

    def bytes_behind(self, seq: int) -> int:
        """Approximate bytes behind `seq`, interpolated within its segment."""
        total, following = 0, self._seq
        for segment in reversed(self._segments):
            if following > max(seq, segment.first_seq):
                part = (following - max(seq, segment.first_seq)) / (following - segment.first_seq)
                total += int(segment.end * part)
            following = segment.first_seq
            if following <= seq:
                break
        return total + (self._tail.bytes_behind(seq) if self._tail is not None else 0)

    @property
    def damaged_records(self) -> int:
        """The number of messages found lost since the log was opened."""
        return self.damage.records

    # --- Writing ------------------------------------------------------------------------------------------------------

    def append(
        self, frames: Sequence[bytes], first_seq: int, due_ns: int = 0, kind: int = MESSAGES, joined: bytes = b""
    ) -> None:
        """Write one group, all or nothing. `first_seq` counts for MESSAGES and must not be below ``end.seq``.

        No message may be in memory only: see ``spill``.

        `joined`: the frames joined, if the caller has that.
        """
        # Hot: runs for every publish.
        if not frames:
            return
        segment = self._active
        if segment is None or segment.abandoned:
            segment = self._begin_segment()
        offset = segment.end
        data = encode_group(kind, first_seq, due_ns, frames, offset, joined)
        if offset + len(data) > self._segment_size and offset > FIRST_GROUP:
            segment = self._begin_segment()
            offset = segment.end
            data = encode_group(kind, first_seq, due_ns, frames, offset, joined)
        if kind == MESSAGES and first_seq < self._seq:
            raise ValueError(f"message number {first_seq} again: the next one is {self._seq}")
        segment.append(data, self._segment_size)
        index = segment.index
        assert index is not None, "a segment that is appended to was made with an index"
        if kind in MESSAGE_KINDS:
            index.count += len(frames)
            if offset >= index.next_offset:
                index.add(IndexEntry(first_seq if kind == MESSAGES else self._seq, message_id(frames[0]), offset))
                if len(data) < INDEX_STEP:  # large groups gain little
                    self._later(self._prepare)
        if kind == MESSAGES:
            self._seq = first_seq + len(frames)
        else:
            self.last_place = place_of(segment.number, offset)

    def hold(self, frames: Sequence[bytes], first_seq: int) -> bool:
        """Keep messages in memory; returns False if there is no room."""
        assert self._tail is not None, "keep_newest_in_memory comes first"
        return self._tail.append(first_seq, frames)

    def spill_some(self) -> bool:
        """Write some of the messages that are in memory only; returns whether none is left there."""
        tail = self._tail
        if tail is None:
            return True
        tail.trim()
        if tail.count:
            group = tail.oldest(_SPILLED_AT_ONCE)
            self.append(group.frames, group.first_seq)
            tail.drop(len(group.frames))
        return not tail.count

    def spill(self) -> None:
        """Write all messages that are in memory only."""
        while not self.spill_some():
            pass

    def stage(self) -> StagedBatch:
        """Create a file for the messages of a large publish, to be attached when it is complete."""
        self._staged_count += 1
        return StagedBatch(self._descriptors, self._path(_STAGED, self._staged_count), self._segment_size)

    def attach(self, staged: StagedBatch, first_seq: int) -> None:
        """Make the file of a large publish the last segment. All or nothing."""
        if first_seq < self._seq:
            raise ValueError(f"message number {first_seq} again: the next one is {self._seq}")
        staged.assign_numbers(first_seq, self._seq)
        segment = staged.segment
        number = self._last_number + 1
        path = self._path("log", number)
        self._files.rename(segment.path, path)
        self._last_number = segment.number = number
        segment.path = segment.file.path = path
        if self._active:
            self._active.close()
        self._add_segment(segment)
        self._seq = first_seq + staged.count

    def keep(self, frames: Iterable[bytes]) -> None:
        """Retain frames that are in no segment, so that ``fetch`` finds them."""
        self._kept.add(frames)
        self._kept.protect_active()
        self._note_kept()

    # --- Reading ------------------------------------------------------------------------------------------------------

    def recovered(self) -> Iterator[Group]:
        """Yield the groups of all kinds behind `start`, in order, with a block in memory at a time."""
        cursor = LogCursor(self._segments, self.damage, self.bounds, counts_all=True)
        cursor.seek_to(self.start)
        while groups := cursor.read(BLOCK_SIZE):
            yield from groups

    def reader(self, seq: int) -> LogReader:
        """Return a reader of the immediate messages from that number on."""
        cursor = LogCursor(self._segments, self.damage, self.bounds, in_steps=self._in_steps)
        return LogReader(cursor, seq, self._tail)

    def latest(self, count: int) -> list[Group]:
        """Return the last groups of messages, also deferred ones, oldest first: `count` messages, or 2 MiB."""
        groups = self._tail.latest(count) if self._tail is not None else []
        missing = count - sum(len(group.frames) for group in groups)
        return latest_groups(self._segments, missing, self.damage) + groups if missing > 0 else groups

    def fetch(self, ids: Iterable[bytes], locations: Mapping[bytes, bytes] = _NO_LOCATIONS) -> dict[bytes, bytes]:
        """Return the frames of these messages, by id. Those that cannot be found are left out, and counted.

        `locations`, by id, are where some of them are, or were. These need not be searched for.
        """
        found = self._fetch_at(locations) if locations else {}
        wanted = sorted({each for each in ids if each not in found})
        if not wanted:
            return found
        found |= self._kept.fetch(wanted)
        if missing := [each for each in wanted if each not in found]:
            parts = [*split_by_segment(self._segments, self._segments, missing, self.damage)]
            self._index(segment for segment, some in parts if some)  # first, or each step would read the messages again
            for segment, some in parts:
                if some:
                    found |= fetch_from(segment, some, self.damage)
        if lost := [each for each in wanted if each not in found]:
            self._index(self._segments)  # counts the damage that has no ids
            self.damage.report_ids(self.folder, lost)
        return found

    def locate(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the locations that a bounded search finds, by id. It finds more if the ids are close together."""
        found: dict[bytes, bytes] = {}
        spans = _SPANS_AT_ONCE
        for segment, some in split_by_segment(self._segments, self._segments, sorted(ids), self.damage):
            if not some:
                continue
            self._index([segment])
            for span, wanted in group_by_span(segment, some, self.damage):
                if not spans:
                    return found
                spans -= 1
                for each, (offset, frame) in find_in_span(segment, span, wanted).items():
                    found[each] = location_of(place_of(segment.number, offset), frame)
        return found

    def kept_frames(self) -> Iterator[bytes]:
        """Yield the retained frames, in no order; some perhaps more than once."""
        return self._kept.frames()

    def kept_ids(self) -> Iterator[Sequence[bytes]]:
        """Yield the ids of the retained frames."""
        return self._kept.ids()

    def begin_checkpoint(self) -> LogEnd:
        """Return the log's end, for a checkpoint of this moment. It will not name messages retained later."""
        self._kept.begin_checkpoint()
        return self.end

    # --- Deleting -----------------------------------------------------------------------------------------------------

    def release(
        self,
        seq: int,
        unfinished: Callable[[], Iterable[bytes]],
        start: LogEnd | None = None,
        sync: Callable[[], None] | None = None,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        """Delete the messages below `seq`, and deferred ones, but for those in `unfinished()`.

        There may be hundreds of thousands: `pause` is called after every few thousand, and the log may be used
        meanwhile. Messages that were retained after ``begin_checkpoint`` are kept as well.

        `start` is that of the next ``open``, from its checkpoint; by default ``end``. Nothing from its segment on is
        deleted. Segments with many unfinished messages stay; from others these are copied. `sync` makes the copies
        durable; the log may be used meanwhile. Errors are logged, and the work is tried again later. If nothing changed
        since the last call, only every few calls do something.
        """
        if self._tail is not None:
            self._tail.trim()
        limit = start.segment if start else self.end.segment
        following = zip(self._segments, self._segments[1:], strict=False)
        candidates = [
            one for one, after in following if one.number < limit and after.first_seq <= seq and not one.released
        ]
        if not self._is_worth_it(candidates):
            return
        alive = sorted_ids(unfinished(), pause)
        if self._closed:
            return
        try:
            # Decided without a pause, so no message that is written later is in these files.
            parts = list(split_by_segment(self._segments, candidates, alive, self.damage))
            steps = [(partial(self._copy, segment, some, pause), segment.release) for segment, some in parts]
            for file in self._kept.mostly_dead(alive):
                steps.append((partial(self._kept.copy, file, alive), partial(self._kept.remove, file)))
            while steps and not self._closed:
                self._copy_and_delete(steps[:_FILES_AT_ONCE], sync or self.sync)
                del steps[:_FILES_AT_ONCE]
        except OSError as error:
            log.warning("LOG(%s): nothing released - %s", self.folder, error)

    def close(self) -> None:
        """Cut off reserved space and close all files, without a sync."""
        self._closed = True
        for segment in [*self._segments, *self._kept.segments]:
            self._descriptors.read_faults.forget(segment)
        for segment in self._segments:
            segment.close()
        self._kept.close()
        self._active = None
        self._unsynced.close()
        if self._own_descriptors:
            self._descriptors.close_all()

    def delete(self, durably: bool = False) -> None:
        """Delete the folder. Files that cannot be deleted now are under a name that ``leftovers`` finds.

        `durably`: a power cut does not bring it back.
        """
        self.close()
        parent = os.path.dirname(self.folder)
        doomed = leftover_name(self.folder, self._descriptors.with_room(lambda: self._files.listdir(parent)))
        self._files.rename(self.folder, doomed)
        if durably:
            self._descriptors.with_room(lambda: self._files.fsync_folder(parent))
        try:
            self._descriptors.with_room(lambda: remove_folder(self._files, doomed))
        except OSError as error:
            log.warning("LOG(%s): not wholly deleted - %s", doomed, error)

    # --- Durability ---------------------------------------------------------------------------------------------------

    def begin_sync(self) -> SyncJob:
        """Return a job that syncs everything appended so far. ``finish_sync`` must follow."""
        return self._unsynced.begin_sync()

    def finish_sync(self, job: SyncJob, error: OSError | None) -> None:
        """Note the result of the job, in the thread of the log."""
        self._unsynced.finish_sync(job, error, self._active)
        if error:
            log.error("LOG(%s): failed to sync, going on in a new file - %s", self.folder, error)

    def note_new_name(self) -> None:
        """Note that a file was renamed, which the next sync makes durable."""
        self._unsynced.add_folder(self.folder)

    def sync(self) -> None:
        """Sync everything appended so far."""
        job = self.begin_sync()
        try:
            job.run()
        except OSError as error:
            self.finish_sync(job, error)
            raise
        self.finish_sync(job, None)

    # --- Opening ------------------------------------------------------------------------------------------------------

    def _open(self, start: LogEnd | None) -> None:
        self.start = start
        try:
            names = self._descriptors.with_room(lambda: self._files.listdir(self.folder))
        except FileNotFoundError:
            self._files.mkdir(self.folder)
            self._unsynced.add_folder(os.path.dirname(self.folder))
            names = ()
        for name in names:
            if name.startswith(_STAGED):  # of a process that ended in the middle of a publish
                with suppress(OSError):
                    self._files.unlink(f"{self.folder}/{name}")
        found = sorted((match[1], int(match[2])) for name in names if (match := _FILE_NAME.fullmatch(name)))
        headers: list[SegmentHeader | None] = []
        for kind, number in found:
            size = self._files.size(self._path(kind, number))
            if kind == "kept":
                self._kept.add_file(number, size)
            else:
                segment = Segment(self._descriptors, self._path(kind, number), number, UNKNOWN_SEQ, size)
                header = decode_segment_header(segment.pread(FIRST_GROUP, 0))
                if header and header.released:
                    segment.note_released()
                headers.append(header)
                self._segments.append(segment)
        self._last_number = max([start.segment if start else 0, *(segment.number for segment in self._segments)])
        for segment in self._segments:
            if start is not None and segment.number == start.segment:
                segment.note_acknowledged(start.offset)
        number_segments(self._segments, headers)
        self._seq, tail = find_end(self._segments, start)
        if self._segments:
            self._cut_tail(self._segments[-1], tail)

    def _cut_tail(self, segment: Segment, tail: int | None) -> None:
        if tail is not None and tail < segment.end:
            try:
                segment.truncate(tail)
            except OSError as error:
                log.warning("LOG(%s): the unfinished tail stays - %s", segment.path, error)
        self._unsynced.add(segment)

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _fetch_at(self, locations: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Return the frames that are still at their locations, and sound."""
        by_segment: dict[int, list[tuple[int, int]]] = {}
        for location in sorted(locations.values()):
            number, offset, crc = split_location(location)
            by_segment.setdefault(number, []).append((offset, crc))
        found: dict[bytes, bytes] = {}
        for number, wanted in by_segment.items():
            place = bisect_left(self._segments, number, key=attrgetter("number"))
            segment = self._segments[place] if place < len(self._segments) else None
            if segment is not None and segment.number == number and not segment.released:
                found.update((message_id(frame), frame) for frame in fetch_at(segment, wanted))
        return {message: found[message] for message in locations if message in found}

    def _index(self, segments: Iterable[Segment]) -> None:
        """Build missing indexes, or do a step of that (``read_in_steps``)."""
        for segment in segments:
            index_of(segment, self.damage, self._in_steps)

    def _path(self, kind: str, number: int) -> str:
        return f"{self.folder}/{kind}.{number:020}"

    def _begin_segment(self) -> Segment:
        number = self._last_number + 1
        path = self._path("log", number)
        self._last_number = number
        try:
            segment = Segment.create(self._descriptors, path, number, self._seq, self._segment_size)
        except OSError:
            if not self._is_there(path):  # else the number is not used again
                self._last_number = number - 1
            raise
        if self._active:
            self._active.close()
        self._add_segment(segment)
        return segment

    def _add_segment(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._active = segment
        self._unsynced.add(segment)
        self._unsynced.add_folder(self.folder)

    def _prepare(self) -> None:
        if self._active is not None:
            self._active.prepare(self._segment_size)

    def _is_there(self, path: str) -> bool:
        try:
            self._files.size(path)
        except FileNotFoundError:
            return False
        except OSError:
            pass  # unknown
        return True

    def _note_kept(self) -> None:
        for segment in self._kept.segments:
            if segment.needs_sync and segment.index is not None and segment not in self._unsynced:
                self._unsynced.add(segment)
                self._unsynced.add_folder(self.folder)

    def _copy_and_delete(
        self, steps: Sequence[tuple[Callable[[], bool], Callable[[], None]]], sync: Callable[[], None]
    ) -> None:
        """Copy needed messages from some files, sync the copies, and delete the files that were wholly copied."""
        deletions = [delete for copy, delete in steps if copy()]
        self._note_kept()
        if any(segment in self._unsynced for segment in self._kept.segments):
            sync()
        if not self._closed:  # else the files are deleted, and another log may have their names
            for delete in deletions:
                delete()
            self._remove_released()

    def _is_worth_it(self, candidates: Sequence[Segment]) -> bool:
        """Whether a release may find something: there is a new file, or some calls have passed."""
        if not candidates and not self._kept:
            return False
        self._patience -= 1
        newest = candidates[-1].number if candidates else 0
        if newest <= self._considered and self._patience > 0:
            return False
        self._considered = max(newest, self._considered)
        self._patience = _PATIENCE
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
            self._kept.add(frames)
            self._note_kept()
            copied += len(frames)
        return copied == len(alive)  # else some are unreadable now, and counted when they are fetched

    def _remove_released(self) -> None:
        """Delete released segments, the oldest first. Between others they stay, or their messages would seem lost."""
        while self._segments and self._segments[0].released:
            self._segments[0].remove()
            self._unsynced.discard(self._segments.pop(0))
