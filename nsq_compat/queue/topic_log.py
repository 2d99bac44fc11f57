"""A topic's log: segments that are only appended to, and the messages kept when old segments are deleted.

The order of things, which recovery relies on:

- Segments are numbered from 1; messages from 0, and a message's number (seq) never goes back. A segment's header says
  where the numbers stood when it was begun, so a group of an earlier segment with such a number is one whose write
  failed and could not be undone: it is passed over.
- A run never appends to a segment of an earlier run. What an earlier run left half written is cut off if possible and
  passed over if not.
- Nothing is deleted before what was copied out of it is durable.
"""

import itertools
import logging
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from nsq_compat.protocol.message import message_id
from nsq_compat.queue.damage import Damage
from nsq_compat.queue.descriptors import Descriptors, File
from nsq_compat.queue.files import Files
from nsq_compat.queue.group import MESSAGES, Group, encode_group
from nsq_compat.queue.group_reader import BLOCK_SIZE, HAS_IDS, GroupReader, first_id_of, index_of
from nsq_compat.queue.kept import Kept
from nsq_compat.queue.log_reader import LogEnd, LogReader, LogWalk
from nsq_compat.queue.segment import FIRST_GROUP, Place, Segment, SegmentHeader, decode_segment_header
from nsq_compat.queue.sync_job import SyncJob, Target

__all__ = ["DEFAULT_SEGMENT_SIZE", "LogEnd", "LogReader", "SyncJob", "TopicLog", "remove_leftovers"]

log = logging.getLogger(__name__)

DEFAULT_SEGMENT_SIZE: Final = 100 << 20

_FILE_NAME: Final = re.compile(r"(log|kept)\.([0-9]{20})")
_FOLDER_SUFFIX: Final = ".topic"
_LEFTOVER: Final = re.compile(r".+\.deleted-[0-9]+")
_COPY_AT_ONCE: Final = 4096  # ids
_PATIENCE: Final = 16
_UNKNOWN: Final = (1 << 64) - 1


class TopicLog:
    """Made by ``open``. Every method that touches files raises ``OSError`` when the system refuses."""

    def __init__(self, descriptors: Descriptors, folder: str, segment_size: int) -> None:
        self.folder = folder
        self.start: LogEnd | None = None
        self.damage = Damage()
        self._descriptors = descriptors
        self._files = descriptors.files
        self._own_descriptors = False
        self._segment_size = segment_size
        self._segments: list[Segment] = []
        self._active: Segment | None = None  # the last of the segments, if this run made it
        self._last_number = 0
        self._seq = 0
        self._kept = Kept(descriptors, lambda number: self._path("kept", number), segment_size, self.damage)
        self._unsynced: dict[Segment, None] = {}
        self._unsynced_folders: list[File] = []
        self._patience = 0
        self._considered = 0

    @classmethod
    def open(
        cls,
        files: Files,
        folder: str,
        *,
        segment_size: int = DEFAULT_SEGMENT_SIZE,
        start: LogEnd | None = None,
        descriptors: Descriptors | None = None,
    ) -> "TopicLog":
        """The log in `folder`, made if need be; `start` is where ``recovered`` begins, the oldest group by default.

        Damage is counted and passed over. `descriptors` are those of all logs; `files` must be the same as theirs.
        """
        opened = cls(Descriptors(files) if descriptors is None else descriptors, folder, segment_size)
        opened._own_descriptors = descriptors is None
        opened._open(start)
        return opened

    # --- Where things stand -------------------------------------------------------------------------------------------

    @property
    def end(self) -> LogEnd:
        """Behind the last group. What is appended from now on is what ``recovered`` gives if started here."""
        last = self._segments[-1] if self._segments else None
        return LogEnd(last.number, last.end, self._seq) if last else LogEnd(self._last_number, 0, self._seq)

    @property
    def oldest(self) -> int:
        """The number of the oldest message there may be."""
        return self._segments[0].first_seq if self._segments else self._seq

    @property
    def is_whole(self) -> bool:
        """Whether nothing was deleted from it or kept beside it yet."""
        return not len(self._kept) and (not self._segments or self._segments[0].number == 1)

    @property
    def disk_bytes(self) -> int:
        """Bytes in all files, without what is only reserved."""
        return sum(segment.end for segment in [*self._segments, *self._kept.segments])

    @property
    def damaged_records(self) -> int:
        """Messages found lost since the log was opened."""
        return self.damage.records

    # --- Writing ------------------------------------------------------------------------------------------------------

    def append(self, frames: Sequence[bytes], first_seq: int, due_ns: int = 0, kind: int = MESSAGES) -> None:
        """Write one group, all or nothing. `first_seq` counts for MESSAGES and must not be below ``end.seq``."""
        # Hot: runs for every publish.
        if not frames:
            return
        segment = self._active
        if segment is None or segment.abandoned:
            segment = self._begin_segment()
        offset = segment.end
        data = encode_group(kind, first_seq, due_ns, frames, offset)
        if offset + len(data) > self._segment_size and offset > FIRST_GROUP:
            segment = self._begin_segment()
            offset = segment.end
            data = encode_group(kind, first_seq, due_ns, frames, offset)
        if kind == MESSAGES and first_seq < self._seq:
            raise ValueError(f"message number {first_seq} again: the next one is {self._seq}")
        segment.append(data, self._segment_size)
        index = segment.index
        assert index is not None, "a segment that is appended to was made with an index"
        if kind in HAS_IDS:
            index.count += len(frames)
            if offset >= index.next_offset:
                index.add(Place(first_seq if kind == MESSAGES else self._seq, message_id(frames[0]), offset))
        if kind == MESSAGES:
            self._seq = first_seq + len(frames)

    def keep(self, frames: Iterable[bytes]) -> None:
        """Write frames that ``fetch`` shall find though they are in no segment, or soon will not be."""
        self._kept.add(frames)
        self._note_kept()

    # --- Reading ------------------------------------------------------------------------------------------------------

    def recovered(self) -> Iterator[Group]:
        """The groups behind `start` of all kinds, in order, a block in memory at a time."""
        walk = LogWalk(self._segments, self.damage)
        walk.begin_at(self.start)
        while groups := walk.read(BLOCK_SIZE):
            yield from groups

    def reader(self, seq: int) -> LogReader:
        """Reads immediate messages from that number on."""
        return LogReader(LogWalk(self._segments, self.damage), seq)

    def fetch(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """The frames of these messages, by id. Those that cannot be found are left out, and counted."""
        wanted = sorted(set(ids))
        found = self._kept.fetch(wanted)
        for segment, some in self._by_segment([each for each in wanted if each not in found]):
            found |= self._fetch_from(segment, some)
        for missing in wanted:
            if missing not in found:
                self.damage.report(self.folder, missing, 1)
        return found

    def kept_frames(self) -> Iterator[bytes]:
        """What was written by ``keep``, in no order; some perhaps more than once."""
        return self._kept.frames()

    # --- Deleting -----------------------------------------------------------------------------------------------------

    def release(self, seq: int, unfinished: Callable[[], Iterable[bytes]], start: LogEnd | None = None) -> None:
        """Nothing below `seq` is needed any more but the messages in `unfinished()`, deferred ones included.

        `start` is the one of the checkpoint that the next ``open`` will be given, ``end`` by default: from its segment
        on nothing is touched. Segments with many unfinished messages stay, of others these are copied. Best effort:
        when the system refuses, that is logged and tried again another time; what did not change since the last call is
        only looked at every few calls.
        """
        limit = start.segment if start else self.end.segment
        following = zip(self._segments, self._segments[1:], strict=False)
        candidates = [
            one for one, after in following if one.number < limit and after.first_seq <= seq and not one.released
        ]
        if not self._is_worth_it(candidates):
            return
        alive = sorted(unfinished())
        try:
            for segment, some in list(self._shares(candidates, alive)):
                self._release_segment(segment, some)
            self._remove_released()
            self._kept.release(alive, self._sync_kept)
        except OSError as error:
            log.warning("LOG(%s): nothing released - %s", self.folder, error)

    def close(self) -> None:
        """Cut off what is reserved and close all files. Syncs nothing."""
        for segment in self._segments:
            segment.close()
        self._kept.close()
        self._active = None
        for folder in self._unsynced_folders:
            self._descriptors.close(folder)
        if self._own_descriptors:
            self._descriptors.close_all()

    def delete(self) -> None:
        """Delete everything; what cannot be deleted now is under a name that ``remove_leftovers`` knows."""
        self.close()
        doomed = self._doomed_name()
        self._files.rename(self.folder, doomed)
        try:
            self._descriptors.with_room(lambda: _remove_folder(self._files, doomed))
        except OSError as error:
            log.warning("LOG(%s): not wholly deleted - %s", doomed, error)

    # --- Durability ---------------------------------------------------------------------------------------------------

    def begin_sync(self) -> SyncJob:
        """What makes all that was appended so far durable. ``finish_sync`` must follow."""
        segments = [segment for segment in self._unsynced if segment.needs_sync and not segment.removed]
        targets: list[Target] = []
        folders: list[tuple[File, int]] = []
        try:
            for segment in segments:
                targets.append(Target(segment, self._descriptors.pin(segment.file), segment.end))
            for folder in self._unsynced_folders:
                folders.append((folder, self._descriptors.pin(folder)))
        except OSError:
            for file in [*(target.segment.file for target in targets), *(folder for folder, _ in folders)]:
                self._descriptors.unpin(file)
            raise
        return SyncJob(self._files, targets, folders)

    def finish_sync(self, job: SyncJob, error: OSError | None) -> None:
        """Take note of how the job went, in the thread of the log."""
        failed = job.failed if error else ()
        for target in job.targets:
            self._descriptors.unpin(target.segment.file)
            if error is None:
                target.segment.synced = max(target.segment.synced, target.end)
        for segment, _, end in failed:
            segment.refused = max(segment.refused, end)
            segment.poisoned = segment.abandoned = True
        for folder, _ in job.folders:
            self._descriptors.unpin(folder)
            if error is None and folder in self._unsynced_folders:
                self._unsynced_folders.remove(folder)
                self._descriptors.close(folder)
        if error:
            log.error("LOG(%s): failed to sync, going on in a new file - %s", self.folder, error)
        for segment in [
            each for each in self._unsynced if each.removed or not (each.needs_sync or each is self._active)
        ]:
            del self._unsynced[segment]

    def sync(self) -> None:
        """Make all that was appended durable, here and now."""
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
            self._note_folder(os.path.dirname(self.folder))
            names = ()
        found = sorted((match[1], int(match[2])) for name in names if (match := _FILE_NAME.fullmatch(name)))
        headers: list[SegmentHeader | None] = []
        for kind, number in found:
            size = self._files.size(self._path(kind, number))
            if kind == "kept":
                self._kept.found(number, size)
            else:
                segment = Segment(self._descriptors, self._path(kind, number), number, _UNKNOWN, size)
                header = decode_segment_header(segment.pread(FIRST_GROUP, 0))
                if header and header.released:
                    segment.note_released()
                headers.append(header)
                self._segments.append(segment)
        self._last_number = max([start.segment if start else 0, *(segment.number for segment in self._segments)])
        self._number_segments(headers)
        self._find_end(start)

    def _number_segments(self, headers: Sequence[SegmentHeader | None]) -> None:
        """A segment whose header is damaged gets the number of its first message, at most too high: that is safe."""
        following = _UNKNOWN
        for segment, header in zip(reversed(self._segments), reversed(headers), strict=True):
            segment.first_seq = following = header.first_seq if header else self._first_seq_of(segment, following)

    def _first_seq_of(self, segment: Segment, following: int) -> int:
        if segment.end > FIRST_GROUP:
            log.warning("LOG(%s): its header is damaged", segment.path)
        reader = GroupReader(segment, self.damage)
        while groups := reader.read():
            for group in groups:
                if group.kind == MESSAGES:
                    return group.first_seq
        return following

    def _find_end(self, start: LogEnd | None) -> None:
        """Where the numbers stand, from the last segment that tells; and the last one's end."""
        seq = start.seq if start else 0
        for segment in reversed(self._segments):
            begin = start.offset if start and start.segment == segment.number else FIRST_GROUP
            reader = GroupReader(segment, self.damage, min(begin, segment.end))
            while reader.read():
                pass
            if segment is self._segments[-1]:
                self._cut_tail(segment, reader.tail)
            known = segment.first_seq if segment.first_seq != _UNKNOWN else 0
            seq = max(seq, reader.next_seq, known)
            if known or reader.next_seq or begin > FIRST_GROUP:
                break
        self._seq = seq
        for segment in self._segments:
            segment.first_seq = min(segment.first_seq, seq)

    def _cut_tail(self, segment: Segment, tail: int | None) -> None:
        if tail is not None and tail < segment.end:
            try:
                segment.truncate(tail)
            except OSError as error:
                log.warning("LOG(%s): the unfinished tail stays - %s", segment.path, error)
        self._unsynced[segment] = None

    # --- Inside -------------------------------------------------------------------------------------------------------

    def _path(self, kind: str, number: int) -> str:
        return f"{self.folder}/{kind}.{number:020}"

    def _doomed_name(self) -> str:
        parent, name = os.path.split(self.folder)
        taken = set(self._descriptors.with_room(lambda: self._files.listdir(parent)))
        stem = name.removesuffix(_FOLDER_SUFFIX)
        return next(
            os.path.join(parent, candidate)
            for number in itertools.count(1)
            if (candidate := f"{stem}.deleted-{number}") not in taken
        )

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
        self._segments.append(segment)
        self._active = segment
        self._unsynced[segment] = None
        self._note_folder(self.folder)
        return segment

    def _is_there(self, path: str) -> bool:
        try:
            self._files.size(path)
        except FileNotFoundError:
            return False
        except OSError:
            pass  # nobody knows
        return True

    def _note_folder(self, path: str) -> None:
        """A name in there is new. A job under way may be too early for it, so it gets a file of its own."""
        self._unsynced_folders.append(File(path, os.O_RDONLY | os.O_DIRECTORY))

    def _sync_kept(self) -> None:
        self._note_kept()
        self.sync()

    def _note_kept(self) -> None:
        for segment in self._kept.segments:
            if segment.needs_sync and segment.index is not None and segment not in self._unsynced:
                self._unsynced[segment] = None
                self._note_folder(self.folder)

    def _by_segment(self, ids: Sequence[bytes]) -> Iterator[tuple[Segment, Sequence[bytes]]]:
        """The sorted ids, each with the segment it must be in."""
        return self._shares(self._segments, ids) if ids else iter(())

    def _shares(self, segments: Sequence[Segment], ids: Sequence[bytes]) -> Iterator[tuple[Segment, Sequence[bytes]]]:
        """For each of some segments the part of the sorted ids that is in it and not in one of the others."""
        firsts = [(first_id_of(segment, self.damage), segment) for segment in self._segments]
        begins = [first for first, _ in firsts if first is not None]
        chosen = set(segments)
        for first, segment in firsts:
            if segment not in chosen:
                continue
            if first is None:
                yield segment, ()
                continue
            place = bisect_left(begins, first)
            end = bisect_left(ids, begins[place + 1]) if place + 1 < len(begins) else len(ids)
            yield segment, ids[bisect_left(ids, first) : end]

    def _fetch_from(self, segment: Segment, ids: Sequence[bytes]) -> dict[bytes, bytes]:
        index = index_of(segment, self.damage)
        spans: dict[tuple[int, int], set[bytes]] = {}
        for each in ids:
            spans.setdefault(index.span_of_id(each), set()).add(each)
        found: dict[bytes, bytes] = {}
        for (begin, end), wanted in spans.items():
            reader = GroupReader(segment, self.damage, begin)
            missing = len(wanted)
            while missing and reader.offset < end and (groups := reader.read(BLOCK_SIZE // 4)):
                for group in groups:
                    if group.kind in HAS_IDS:
                        some = {each: frame for frame in group.frames if (each := message_id(frame)) in wanted}
                        found |= some
                        missing -= len(some)
        return found

    def _is_worth_it(self, candidates: Sequence[Segment]) -> bool:
        """Whether to look at all: there is something new, or it is a while since the last time."""
        if not candidates and not self._kept:
            return False
        self._patience -= 1
        newest = candidates[-1].number if candidates else 0
        if newest <= self._considered and self._patience > 0:
            return False
        self._considered = max(newest, self._considered)
        self._patience = _PATIENCE
        return True

    def _release_segment(self, segment: Segment, alive: Sequence[bytes]) -> None:
        if alive:
            if len(alive) * 2 > index_of(segment, self.damage).count:
                return
            # Copied again even if an earlier run did so already: whether that copy is durable nobody knows.
            copied = 0
            for begin in range(0, len(alive), _COPY_AT_ONCE):
                frames = self._fetch_from(segment, alive[begin : begin + _COPY_AT_ONCE])
                self.keep(frames.values())
                copied += len(frames)
            self.sync()
            if copied < len(alive):
                return  # unreadable now; whoever fetches these counts them
        segment.release()

    def _remove_released(self) -> None:
        """From the oldest on: between others a file that says it was released stays, else its messages seemed lost."""
        while self._segments and self._segments[0].released:
            self._segments[0].remove()
            self._unsynced.pop(self._segments.pop(0), None)


def remove_leftovers(files: Files, folder: str) -> None:
    """Delete what is left of deleted topics in the folder of all topics. Raises ``OSError``."""
    for name in files.listdir(folder):
        if _LEFTOVER.fullmatch(name):
            _remove_folder(files, os.path.join(folder, name))


def _remove_folder(files: Files, folder: str) -> None:
    for name in files.listdir(folder):
        files.unlink(os.path.join(folder, name))
    files.rmdir(folder)
