"""Reading the segments of a log: in order, by message number, by location, or by message id.

- A ``ReadableLog`` has all of them. ``LogCursor`` reads its groups, ``LogReader`` only the numbered messages.
- ``fetch_at`` reads frames at known locations. It leaves out frames that do not match their checksums. These are then
  searched for by id, which can read past damage and reports it.
- ``fetch_in_span`` finds messages by id. Ids grow with the log. All lists of ids here are sorted.

All of it raises ``OSError``. While a log is read `in_steps`, ``LogReader.read`` and ``fetch`` raise ``BlockingIOError``
when they would take long. This is not a failure: the next call, which may be made at once, does the next step.
"""

import heapq
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

from google_crc32c import value as crc32c

from nsq_compat.log.damage import Damage
from nsq_compat.log.group_reader import (
    BLOCK_SIZE,
    MESSAGE_KINDS,
    GroupReader,
    behind_id,
    first_id_of,
    index_of,
    large_group,
    seek_number,
    skip_control_records,
    unfinished,
)
from nsq_compat.log.kept import KEPT, Kept
from nsq_compat.log.memory_tail import MemoryTail
from nsq_compat.log.segment import (
    FIRST_GROUP,
    HEADER_SIZE,
    Group,
    Part,
    Segment,
    cut_frames,
    decode_header,
    location_of,
    place_of,
    split_location,
    unpack_header,
)
from nsq_compat.protocol.message import HEADER as MESSAGE_HEADER
from nsq_compat.protocol.message import message_id
from nsq_compat.protocol.storage_schema import GROUP_MAGIC, MESSAGES

_BLOCK: Final = BLOCK_SIZE // 4
_GROUP_PROBE: Final = 1 << 10
"""Bytes to read of a group of unknown size; enough for a whole small group."""
_MAX_READ_GAP: Final = 1 << 12
"""Two wanted groups that are at most this far apart are read together."""
_ID_BEGIN: Final = HEADER_SIZE + MESSAGE_HEADER.offset("id")
_ID_END: Final = HEADER_SIZE + MESSAGE_HEADER.slices["id"].stop
_SORT_CHUNK: Final = 4096
_FIRST: Final = itemgetter(0)
_size_of: Final = struct.Struct(">I").unpack_from
_SPANS_AT_ONCE: Final = 8
"""Parts of a segment, of about INDEX_STEP bytes each, that are searched to locate messages."""
_SCANNED: Final = 64
"""Frames that are examined in turn for each message that is sought; of more, some are."""
_NO_LOCATIONS: Final[Mapping[bytes, bytes]] = {}
_CONTROL_RECORDS: Final = 64
"""That are passed one by one; many more may follow."""
_LOOK_BACK: Final = (1 << 16, 1 << 18, 1 << 20)
"""Bytes read from the end of a segment to find its last messages: the next step if one does not suffice."""
_MAX_LATEST_BYTES: Final = 1 << 21
_MAX_LATEST_SEGMENTS: Final = 100


class LogEnd(NamedTuple):
    """A position between two groups: segment number (0: before the first), offset, number of the next message."""

    segment: int
    offset: int
    seq: int


class LogCursor:
    """Reads the groups of a log, from one segment to the next. The options are those of ``GroupReader``."""

    def __init__(self, log: "ReadableLog", *, counts_all: bool = False, in_parts: bool = False) -> None:
        self._log = log
        self._counts_all = counts_all
        self._in_parts = in_parts
        self.segment: Segment | None = None
        self._reader: GroupReader | None = None
        self._seq = 0  # the number after the last message passed

    def seek_to(self, start: LogEnd | None) -> None:
        """Go to a position; None is the oldest group."""
        segments = self._log.segments
        if start is None:
            if segments:
                self._enter(segments[0], FIRST_GROUP, segments[0].first_seq)
                self._seq = segments[0].first_seq
            return
        self._seq = start.seq
        for segment in segments:
            if segment.number == start.segment:
                self._enter(segment, max(start.offset, FIRST_GROUP), start.seq)
                break
            if segment.number > start.segment:
                self._enter(segment, FIRST_GROUP, segment.first_seq)
                self._report_lost(segment, "before", start.seq, segment.first_seq)
                break

    def seek_seq(self, seq: int) -> None:
        """Go to the group of the message with this number, or to an earlier one."""
        segments = self._log.segments
        if segments:
            segment = segments[max(bisect_right(segments, seq, key=lambda segment: segment.first_seq) - 1, 0)]
            if seq >= self._log.next_seq:
                offset, first = segment.end, seq
            else:
                offset, first = seek_number(segment, seq, self._log.damage, self._log.in_steps)
            self._report_lost(segment, "before", seq, segment.first_seq)
            self._seq = max(seq, segment.first_seq)
            self._enter(segment, offset, segment.first_seq if offset == FIRST_GROUP else first)

    def read(self, max_bytes: int) -> list[Group]:
        """Read the next groups; none at the end of the log, which may grow."""
        while (segment := self.segment) and self._reader:
            following = self._after(segment)
            groups = self._reader.read(max_bytes)
            if following:
                groups = [each for each in groups if each.kind != MESSAGES or each.first_seq < following.first_seq]
            self._seq = max(self._seq, self._reader.next_seq)
            if groups:
                return groups
            if self._reader.offset < segment.end:
                continue
            if following is None:
                self._report_missing(segment, "its end", self._log.next_seq)
                self._seq = max(self._seq, self._log.next_seq)
                return []
            if not segment.released:  # the messages of a released segment were discarded, not lost
                self._report_missing(following, "before", following.first_seq)
            self._seq = following.first_seq
            self._enter(following, FIRST_GROUP, following.first_seq)
        return []

    def _after(self, segment: Segment) -> Segment | None:
        segments = self._log.segments
        if segments and segments[-1] is segment:
            return None
        place = bisect_right(segments, segment.number, key=lambda each: each.number)
        return segments[place] if place < len(segments) else None

    def _report_missing(self, segment: Segment, place: str, seq: int) -> None:
        """Report messages before `seq`, the next number in the log, that were not found."""
        assert self._reader is not None
        if self._report_lost(segment, place, max(self._seq, self._reader.next_seq), seq):
            self._reader.suspect = None
        elif self._reader.suspect is not None:
            self._reader.report_suspect(seq)

    def _report_lost(self, segment: Segment, place: str, begin: int, end: int) -> bool:
        """Report the numbers from `begin` up to `end` as lost, if the log must have them. Returns whether it must."""
        begin = max(begin, self._log.complete_from)
        self._log.damage.report_range(segment.path, place, begin, end)
        return begin < end

    def _enter(self, segment: Segment, offset: int, seq: int) -> None:
        self.segment = segment
        self._reader = GroupReader(
            segment, self._log.damage, offset, seq, self._counts_all, self._log.in_steps, self._in_parts
        )


def _last_groups(segment: Segment, count: int, damage: Damage, in_steps: bool) -> list[Group]:
    found: list[Group] = []

    def is_behind(part: Part) -> bool:
        return part.left < count

    if (index := segment.index) is not None and segment.end - index.next_offset > _LOOK_BACK[0]:
        # Messages after the last entry are before where the next entry would be. Only control records follow.
        begin = index.last_until(segment.end)
        reader = GroupReader(
            segment, damage, begin, counts_all=False, in_steps=in_steps, in_parts=True, is_behind=is_behind
        )
        while index.first_id is not None and reader.offset < index.next_offset and (groups := reader.read_messages()):
            found += groups
        if _messages(found) >= count or index.first_id is None:
            return found
    for reader in readers_from_end(segment, segment.end, damage, _MAX_LATEST_BYTES, in_steps, is_behind):
        found = []
        while groups := reader.read_messages():
            found += groups
        if _messages(found) >= count:
            break
    return found


def readers_from_end(
    segment: Segment,
    end: int,
    damage: Damage,
    max_size: int = 1 << 62,
    in_steps: bool = False,
    is_behind: Callable[[Part], bool] | None = None,
) -> Iterator[GroupReader]:
    """Yield readers that begin before the offset `end`, each further than the last, by `max_size` bytes at most.

    With `is_behind` they read large groups in parts, as ``GroupReader``.
    """
    for size in (*_LOOK_BACK, max_size):
        in_parts = is_behind is not None
        reader = GroupReader(
            segment, damage, counts_all=False, in_steps=in_steps, in_parts=in_parts, is_behind=is_behind
        )
        if size < end - FIRST_GROUP:
            reader.seek(end - size)
        yield reader
        if size >= end:
            return


def _messages(groups: Iterable[Group]) -> int:
    return sum(len(group.frames) for group in groups)


class LogReader:
    """Reads the numbered messages of a log, from a number on. `seq` is the number of the next one."""

    def __init__(self, log: "ReadableLog", seq: int) -> None:
        self.seq = seq
        self._log = log
        self._cursor = LogCursor(log, in_parts=True)

    def read(self, max_bytes: int = BLOCK_SIZE) -> list[Group]:
        """Read the next messages, about `max_bytes`; none at the end of the log, which may grow.

        Consecutive groups are merged. Numbers of damaged messages and of messages that were never logged are missing.
        If the log is read in steps, raises ``BlockingIOError`` after a block that has no message from `seq` on.
        """
        tail = self._log.tail
        if tail is not None and tail.count and self.seq >= tail.first_seq:
            return self._read_tail(tail, max_bytes)
        segment = self._cursor.segment
        if segment is None or segment.removed:
            self._cursor.seek_seq(self.seq)
        merged: list[Group] = []
        while not merged and (groups := self._cursor.read(max_bytes)):
            self._merge(groups, merged)
            if self._log.in_steps and not merged:
                assert self._cursor.segment is not None, "something was read"
                raise unfinished(self._cursor.segment)
        return merged or (self._read_tail(tail, max_bytes) if tail is not None and tail.count else [])

    def _read_tail(self, tail: MemoryTail, max_bytes: int) -> list[Group]:
        group = tail.read(self.seq, max_bytes)
        self.seq = group.first_seq + len(group.frames)
        return [group] if group.frames else []

    def _merge(self, groups: Iterable[Group], merged: list[Group]) -> None:
        tail: list[bytes] = []
        for kind, first_seq, _, frames, _ in groups:
            end = first_seq + len(frames)
            if kind != MESSAGES or end <= self.seq:
                continue
            if first_seq < self.seq:
                frames = frames[self.seq - first_seq :]
                first_seq = self.seq
            if merged and first_seq == self.seq:
                tail += frames
            else:
                tail = list(frames)
                merged.append(Group(MESSAGES, first_seq, 0, tail))
            self.seq = end


def sorted_ids(ids: Iterable[bytes], pause: Callable[[], None]) -> list[bytes]:
    """Sort ids and drop duplicates, a few thousand at a time; `pause` is called in between."""
    remaining = iter(ids)
    pieces: list[list[bytes]] = []
    while piece := list(islice(remaining, _SORT_CHUNK)):
        if pieces:
            pause()
        pieces.append(sorted(set(piece)))
    if len(pieces) < 2:
        return pieces[0] if pieces else []
    found: list[bytes] = []
    unique = map(_FIRST, groupby(heapq.merge(*pieces)))  # mypyc would turn a generator expression into a list
    while piece := list(islice(unique, _SORT_CHUNK)):
        found += piece
        pause()
    return found


def split_by_segment(
    segments: Sequence[Segment],
    ids: Sequence[bytes],
    damage: Damage,
    chosen: Iterable[Segment] | None = None,
    in_steps: bool = False,
) -> Iterator[tuple[Segment, Sequence[bytes]]]:
    """Yield each segment, or each of the chosen ones, with the ids in its range. `in_steps` as for ``index_of``."""
    firsts = {segment: first_id_of(segment, damage, in_steps) for segment in segments}
    begins = [first for first in firsts.values() if first is not None]
    for segment in firsts if chosen is None else chosen:
        first = firsts[segment]
        if first is None:
            yield segment, ()
        else:
            at = bisect_left(begins, first)
            end = bisect_left(ids, begins[at + 1]) if at + 1 < len(begins) else len(ids)
            yield segment, ids[bisect_left(ids, first) : end]


def fetch_at(segment: Segment, wanted: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the frames at the `wanted` offsets that match their checksums. `wanted` is sorted by offset."""
    start, count = 0, len(wanted)
    while start < count:
        first = last = wanted[start][0]
        stop = start + 1
        while stop < count and (following := wanted[stop][0]) - last <= _MAX_READ_GAP and following - first <= _BLOCK:
            last = following
            stop += 1
        block = segment.pread(max(min(last + _GROUP_PROBE, segment.end) - first, 0), first)
        for offset, crc in wanted[start:stop]:
            at = offset - first
            size = 4 + _size_of(block, at)[0] if at + 4 <= len(block) else 0
            if at + size > len(block) and offset + size <= segment.end:
                frame = segment.pread(size, offset)
            else:
                frame = block[at : at + size]
            if crc32c(frame) == crc:
                yield frame
        start = stop


def fetch_in_span(
    segment: Segment, span: tuple[int, int], wanted: set[bytes], damage: Damage, in_steps: bool = False
) -> dict[bytes, bytes]:
    """The frames of these messages, by id, as far as they can be read in a span that ``group_by_span`` returned.

    Messages that a first search does not find are searched for past damage, which is reported. `in_steps` as for
    ``index_of``.
    """
    found = {each: frame for each, (_, frame) in find_in_span(segment, span, wanted, in_steps).items()}
    if len(found) == len(wanted):
        return found
    begin, end = span
    missing = wanted.difference(found)
    is_behind = behind_id(min(missing))
    reader = GroupReader(
        segment, damage, begin, counts_all=False, in_steps=in_steps, in_parts=True, is_behind=is_behind
    )
    while len(found) < len(wanted) and reader.offset < end and (groups := reader.read_messages(_BLOCK)):
        for group in groups:
            found.update((each, frame) for frame in group.frames if (each := message_id(frame)) in wanted)
        if message_id(groups[-1].frames[-1]) >= max(missing):
            break
    return found


def group_by_span(
    segment: Segment, ids: Iterable[bytes], damage: Damage
) -> Iterable[tuple[tuple[int, int], set[bytes]]]:
    """The ranges of offsets in which the groups of these messages begin, each with its ids, in the order of the log."""
    index = index_of(segment, damage)
    spans: dict[tuple[int, int], set[bytes]] = {}
    for each in ids:
        spans.setdefault(index.span_of_id(each), set()).add(each)
    return spans.items()


def find_in_span(
    segment: Segment, span: tuple[int, int], wanted: set[bytes], in_steps: bool = False
) -> dict[bytes, tuple[int, bytes]]:
    """The offsets and frames of these messages, by id. Skips other groups unchecked, and stops at damage.

    `in_steps` as for ``index_of``.
    """
    found: dict[bytes, tuple[int, bytes]] = {}
    base, stop = span
    stop = min(stop, segment.end)
    block = b""
    at = 0
    control_records = 0
    while len(found) < len(wanted) and base + at < stop:
        if at + _ID_END > len(block):
            base, at = base + at, 0
            block = segment.pread(min(min(stop - base, _BLOCK) + _GROUP_PROBE, segment.end - base), base)
            if len(block) < HEADER_SIZE:
                break
        magic, _, _, _, _, size, count, kind = unpack_header(block, at)
        if magic != GROUP_MAGIC:
            break
        if kind not in MESSAGE_KINDS:
            control_records += 1
            if control_records % _CONTROL_RECORDS == 0:
                base, at, block = skip_control_records(segment, base + at, in_steps), 0, b""
                continue
        if count == 1 and (kind not in MESSAGE_KINDS or block[at + _ID_BEGIN : at + _ID_END] not in wanted):
            at += HEADER_SIZE + size  # if `size` is damaged, no group begins there
            continue
        header = decode_header(block, at, base + at, segment.salt)
        if header is None or header.end > segment.end:
            break
        if header.size > BLOCK_SIZE and (group := large_group(segment, header)) is not None:
            found.update((message_id(frame), (offset, frame)) for offset, frame in group.find(wanted, in_steps))
            at = header.end - base
            continue
        if header.end > base + len(block):
            base, at = header.offset, 0
            block = segment.pread(header.end - base, base)
        begin, end = header.payload_begin - base, header.payload_end - base
        if crc32c(block[begin:end]) != header.payload_crc:
            break
        begin = header.frames_begin - base
        if kind in MESSAGE_KINDS:
            frames = cut_frames(block, begin, end, count)
            for index in _indexes_of(wanted, frames):
                frame = frames[index]
                found[message_id(frame)] = base + begin + sum(map(len, frames[:index])), frame
        at = header.end - base
    return found


def _indexes_of(wanted: set[bytes], frames: Sequence[bytes]) -> Iterable[int]:
    """Where these messages are in the frames of a group, of which the ids grow."""
    if len(frames) < _SCANNED * len(wanted):
        return [index for index, frame in enumerate(frames) if message_id(frame) in wanted]
    places = {bisect_left(frames, each, key=message_id): each for each in wanted}
    return [index for index, each in places.items() if index < len(frames) and message_id(frames[index]) == each]


class ReadableLog:
    """The reading part of a log; ``TopicLog`` adds writing and deleting. Methods raise ``OSError``.

    `next_seq` is the number of the next message. The log must have all messages from `complete_from` up to it.
    """

    def __init__(self, folder: str, kept: Kept) -> None:
        self.folder = folder
        self.start: LogEnd | None = None
        self.segments: list[Segment] = []  # the oldest first
        self.kept = kept
        self.tail: MemoryTail | None = None  # the newest messages, if they are in no segment
        self.damage = Damage()
        self.complete_from = 0
        self.next_seq = 0
        self.deferred_count = 0
        """The number of deferred messages so far. The next offset is the next number plus this (``GROUP_FIELDS``)."""
        self.emptied_at = 0
        """The next offset when the topic was emptied: what was before is not read any more."""
        self.in_steps = False
        self.searches: dict[int, Any] = {}
        """The readers of searches that are to be continued, by offset (``offsets.number_at``)."""

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Read without steps: what is done here cannot be continued later."""
        in_steps, self.in_steps = self.in_steps, False
        try:
            yield
        finally:
            self.in_steps = in_steps

    @property
    def oldest(self) -> int:
        """The lowest number that a message may have."""
        return self.segments[0].first_seq if self.segments else self.next_seq

    @property
    def is_whole(self) -> bool:
        """Whether no segment was deleted or released, and no message kept."""
        following = enumerate(self.segments, 1)
        return not self.kept.files and all(one.number == number and not one.released for number, one in following)

    def bytes_behind(self, seq: int) -> int:
        """Approximate bytes of the messages from `seq` on, interpolated within its segment."""
        total, following = 0, self.next_seq
        for segment in reversed(self.segments):
            if following > max(seq, segment.first_seq):
                part = (following - max(seq, segment.first_seq)) / (following - segment.first_seq)
                total += int((segment.end - segment.other_bytes) * part)
            following = segment.first_seq
            if following <= seq:
                break
        return total + (self.tail.bytes_behind(seq) if self.tail is not None else 0)

    def recovered(self) -> Iterator[Group]:
        """Yield the groups of all kinds after `start`, in order, with a block in memory at a time."""
        cursor = LogCursor(self, counts_all=True)
        cursor.seek_to(self.start)
        while groups := cursor.read(BLOCK_SIZE):
            yield from groups

    def reader(self, seq: int) -> LogReader:
        return LogReader(self, seq)

    def latest(self, count: int) -> list[Group]:
        """Return the last groups of messages, also deferred ones, oldest first: `count` messages, or 2 MiB."""
        groups = self.tail.latest(count) if self.tail is not None else []
        size = 0
        for segment in reversed(self.segments[-_MAX_LATEST_SEGMENTS:]):
            missing = count - _messages(groups)
            if missing <= 0 or size > _MAX_LATEST_BYTES:
                break
            groups = _last_groups(segment, missing, self.damage, self.in_steps) + groups
            size += segment.end
        return groups

    def fetch(self, ids: Iterable[bytes], locations: Mapping[bytes, bytes] = _NO_LOCATIONS) -> dict[bytes, bytes]:
        """Return the frames of these messages, by id. Those that cannot be found are left out, and counted.

        `locations`, by id, are the last known locations of some of them, which are tried before a search.
        """
        found = self._fetch_at(locations) if locations else {}
        wanted = sorted({each for each in ids if each not in found})
        if not wanted:
            return found
        found |= self.kept.fetch(wanted, self.in_steps)
        if missing := [each for each in wanted if each not in found]:
            parts = [*split_by_segment(self.segments, missing, self.damage, in_steps=self.in_steps)]
            self._index(segment for segment, some in parts if some)  # first: a step raises, and then all is read again
            for segment, some in parts:
                for span, wanted_here in group_by_span(segment, some, self.damage) if some else ():
                    found |= fetch_in_span(segment, span, wanted_here, self.damage, self.in_steps)
        if lost := [each for each in wanted if each not in found]:
            self._index(self.segments)  # counts the damage that has no ids
            self.damage.report_ids(self.folder, lost)
        return found

    def numbered(self, ids: Iterable[bytes]) -> dict[int, bytes]:
        """Return the frames of those of these messages that have a number, by number.

        Searches about INDEX_STEP bytes for each id. Deferred messages have no number.
        """
        wanted = set(ids)
        groups = self.tail.holding(wanted) if self.tail is not None else []
        limits = [*(each.first_seq for each in self.segments[1:]), self.next_seq]
        parts = split_by_segment(self.segments, sorted(wanted), self.damage, in_steps=self.in_steps)
        for (segment, some), limit in zip(parts, limits, strict=True) if self.segments else ():
            if some:
                self._index([segment])
            for (begin, end), sought in group_by_span(segment, some, self.damage) if some else ():
                reader = GroupReader(
                    segment,
                    self.damage,
                    begin,
                    counts_all=False,
                    in_steps=self.in_steps,
                    in_parts=True,
                    is_behind=behind_id(min(sought)),
                )
                while reader.offset < end and (found := reader.read_messages(_BLOCK)):
                    groups += [each for each in found if each.first_seq < limit]  # not of a failed write
                    if message_id(found[-1].frames[-1]) >= max(sought):
                        break
        return {
            seq: frame
            for group in groups
            if group.kind == MESSAGES
            for seq, frame in enumerate(group.frames, group.first_seq)
            if message_id(frame) in wanted
        }

    def locate(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return the locations that a bounded search finds, by id. It finds more if the ids are close together."""
        found: dict[bytes, bytes] = {}
        spans = _SPANS_AT_ONCE
        for segment, some in split_by_segment(self.segments, sorted(ids), self.damage, in_steps=self.in_steps):
            if not some:
                continue
            self._index([segment])
            for span, wanted in group_by_span(segment, some, self.damage):
                if not spans:
                    return found
                spans -= 1
                for each, (offset, frame) in find_in_span(segment, span, wanted, self.in_steps).items():
                    found[each] = location_of(place_of(segment.number, offset), frame)
        return found

    def _fetch_at(self, locations: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Return the frames that are still at their locations, and sound."""
        by_segment: dict[int, list[tuple[int, int]]] = {}
        for number, offset, crc in map(split_location, sorted(locations.values())):
            by_segment.setdefault(number, []).append((offset, crc))
        found: dict[bytes, bytes] = {}
        for number, wanted in by_segment.items():
            files: Sequence[Segment] = self.kept.files if number & KEPT else self.segments
            number &= ~KEPT
            place = bisect_left(files, number, key=attrgetter("number"))
            segment = files[place] if place < len(files) else None
            if segment is not None and segment.number == number and not segment.released:
                found.update((message_id(frame), frame) for frame in fetch_at(segment, wanted))
        return {message: found[message] for message in locations if message in found}

    def _index(self, segments: Iterable[Segment]) -> None:
        """Build missing indexes. With `in_steps`, do one step, and raise ``BlockingIOError`` if more are needed."""
        for segment in segments:
            index_of(segment, self.damage, self.in_steps)
