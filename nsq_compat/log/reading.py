"""Reading the segments of a log: in order, by message number, by location, or by message id.

- ``LogCursor`` and ``LogReader`` read across segments, all groups or only the numbered messages.
- ``fetch_at`` reads frames at known locations. It leaves out whatever does not match its checksum; the search by id,
  which can read past damage, then decides and reports.
- ``fetch_from`` finds messages by id. Ids grow with the log. All lists of ids here are sorted.
- ``number_segments`` and ``find_end`` restore the message numbers when a log is opened, although headers and groups may
  be damaged. A number that is too high is safe; a number that is used twice is not.

All of it raises ``OSError``. What would take long, and is asked to go `in_steps`, raises ``BlockingIOError`` after each
step but the last; the next call goes on from there.
"""

import heapq
import logging
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

from nsq_compat.log.damage import Damage
from nsq_compat.log.group import HEADER_SIZE, Group, cut_frames, decode_header, unpack_header
from nsq_compat.log.group_reader import BLOCK_SIZE, MESSAGE_KINDS, GroupReader, first_id_of, index_of, unfinished
from nsq_compat.log.memory_tail import MemoryTail
from nsq_compat.log.segment import FIRST_GROUP, UNKNOWN_SEQ, Segment, SegmentHeader
from nsq_compat.protocol.message import HEADER as MESSAGE_HEADER
from nsq_compat.protocol.message import message_id
from nsq_compat.protocol.storage_schema import GROUP_MAGIC, MESSAGES

log = logging.getLogger(__name__)

_LOOK_BACK: Final = (1 << 16, 1 << 18, 1 << 20, 1 << 21)
"""Bytes read from the end of a segment to find its last messages: the next step if one does not suffice."""
_MAX_SEGMENTS_READ: Final = 3


class LogEnd(NamedTuple):
    """A position between two groups: segment number (0: before the first), offset, number of the next message."""

    segment: int
    offset: int
    seq: int


class LogBounds:
    """The range of message numbers that the log must contain: from `complete_from` up to `next_seq()`."""

    def __init__(self, next_seq: Callable[[], int]) -> None:
        self.complete_from = 0
        self.next_seq = next_seq


class LogCursor:
    """Reads the groups of a log, from one segment to the next. `counts_all` is that of ``GroupReader``.

    `in_steps` is for `seek_seq`, which may need an index that is not built yet.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        damage: Damage,
        bounds: LogBounds,
        *,
        counts_all: bool = False,
        in_steps: bool = False,
    ) -> None:
        self.in_steps = in_steps
        self._segments = segments  # the log's own list, which changes
        self._damage = damage
        self._bounds = bounds
        self._counts_all = counts_all
        self._segment: Segment | None = None
        self._reader: GroupReader | None = None
        self._seq = 0  # the number after the last message passed

    @property
    def is_lost(self) -> bool:
        """Whether the cursor needs a seek: its segment was deleted, or it has none yet."""
        return self._segment is None or self._segment.removed

    def seek_to(self, start: LogEnd | None) -> None:
        """Go to a position; None is the oldest group."""
        segments = self._segments
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
                self._lose(segment, "before", start.seq, segment.first_seq)
                break

    def seek_seq(self, seq: int) -> None:
        """Go to the group of the message with this number, or to an earlier one."""
        segments = self._segments
        if segments:
            segment = segments[max(bisect_right(segments, seq, key=lambda segment: segment.first_seq) - 1, 0)]
            offset, first = index_of(segment, self._damage, self.in_steps).seek(seq)
            self._lose(segment, "before", seq, segment.first_seq)
            self._seq = max(seq, segment.first_seq)
            self._enter(segment, offset, segment.first_seq if offset == FIRST_GROUP else first)

    def read(self, max_bytes: int) -> list[Group]:
        """Read the next groups; none at the end of the log, which may grow."""
        while self._segment and self._reader:
            following = self._following()
            groups = self._reader.read(max_bytes)
            if following:
                groups = [each for each in groups if each.kind != MESSAGES or each.first_seq < following.first_seq]
            self._seq = max(self._seq, self._reader.next_seq)
            if groups:
                return groups
            if self._reader.offset < self._segment.end:
                continue
            if following is None:
                self._end()
                return []
            self._cross(following)
        return []

    def unfinished(self) -> BlockingIOError:
        """The error that says: there is more to read here."""
        assert self._segment is not None, "something was read"
        return unfinished(self._segment)

    def _following(self) -> Segment | None:
        assert self._segment
        segments = self._segments
        if segments and segments[-1] is self._segment:
            return None
        place = bisect_right(segments, self._segment.number, key=lambda segment: segment.number)
        return segments[place] if place < len(segments) else None

    def _cross(self, following: Segment) -> None:
        assert self._segment is not None
        if not self._segment.released:  # nothing is missing in a released segment
            self._settle(following, "before", following.first_seq)
        self._seq = following.first_seq
        self._enter(following, FIRST_GROUP, following.first_seq)

    def _end(self) -> None:
        assert self._segment is not None
        self._settle(self._segment, "its end", self._bounds.next_seq())
        self._seq = max(self._seq, self._bounds.next_seq())

    def _settle(self, segment: Segment, place: str, seq: int) -> None:
        """Report messages before `seq`, the next number in the log, that were not found."""
        assert self._reader is not None
        if self._lose(segment, place, max(self._seq, self._reader.next_seq), seq):
            self._reader.suspect = None
        elif self._reader.suspect is not None:
            self._reader.settle(seq)

    def _lose(self, segment: Segment, place: str, begin: int, end: int) -> bool:
        """Report the numbers from `begin` up to `end` as lost, if the log had them. Returns whether it did."""
        begin = max(begin, self._bounds.complete_from)
        self._damage.report_range(segment.path, place, begin, end)
        return begin < end

    def _enter(self, segment: Segment, offset: int, seq: int) -> None:
        self._segment = segment
        self._reader = GroupReader(segment, self._damage, offset, seq, self._counts_all)


def latest_groups(segments: Sequence[Segment], count: int, damage: Damage) -> list[Group]:
    """The last groups of messages, including deferred ones, oldest first: `count` messages, or those in 2 MiB."""
    groups: list[Group] = []
    for segment in reversed(segments[-_MAX_SEGMENTS_READ:]):
        groups = _last_groups(segment, count - _messages(groups), damage) + groups
        if _messages(groups) >= count or segment.end > _LOOK_BACK[-1]:
            break
    return groups


def _last_groups(segment: Segment, count: int, damage: Damage) -> list[Group]:
    found: list[Group] = []
    for size in _LOOK_BACK:
        reader = GroupReader(segment, damage, counts_all=False)
        reader.seek(segment.end - size)
        found = []
        while groups := reader.read():
            found += (group for group in groups if group.kind in MESSAGE_KINDS)
        if _messages(found) >= count or size >= segment.end:
            break
    return found


def _messages(groups: Iterable[Group]) -> int:
    return sum(len(group.frames) for group in groups)


class LogReader:
    """Reads the numbered messages of a log, from a number on. `seq` is the number of the next one.

    `tail` holds the newest messages, if they are in no segment.
    """

    def __init__(self, cursor: LogCursor, seq: int, tail: MemoryTail | None = None) -> None:
        self.seq = seq
        self._cursor = cursor
        self._tail = tail

    def read(self, max_bytes: int = BLOCK_SIZE) -> list[Group]:
        """Read the next messages, about `max_bytes`; none at the end of the log, which may grow.

        Consecutive groups are merged. Numbers may be missing: messages that were never logged, and damaged ones. If
        the cursor goes in steps, raises ``BlockingIOError`` after a block without a message that is wanted.
        """
        tail = self._tail
        if tail is not None and tail.count and self.seq >= tail.first_seq:
            return self._read_tail(tail, max_bytes)
        if self._cursor.is_lost:
            self._cursor.seek_seq(self.seq)
        merged: list[Group] = []
        while not merged and (groups := self._cursor.read(max_bytes)):
            self._merge(groups, merged)
            if self._cursor.in_steps and not merged:
                raise self._cursor.unfinished()
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


def number_segments(segments: Sequence[Segment], headers: Sequence[SegmentHeader | None]) -> None:
    """Set `first_seq` of all segments. If a header is damaged, it is the number of the segment's first message."""
    following = UNKNOWN_SEQ
    for segment, header in zip(reversed(segments), reversed(headers), strict=True):
        segment.first_seq = following = header.first_seq if header else _first_seq_of(segment, following)


def _first_seq_of(segment: Segment, following: int) -> int:
    if segment.end > FIRST_GROUP:
        log.warning("LOG(%s): its header is damaged", segment.path)
    segment.header_lost = True
    reader = GroupReader(segment, Damage(quiet=True))
    while groups := reader.read():
        for group in groups:
            if group.kind == MESSAGES:
                return group.first_seq
    return following


def find_end(segments: Sequence[Segment], start: LogEnd | None) -> tuple[int, int | None]:
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


_BLOCK: Final = BLOCK_SIZE // 4
_GROUP_PROBE: Final = 1 << 10
"""Bytes to read of a group of unknown size; enough for a whole small group."""
_MAX_READ_GAP: Final = 1 << 12
"""Two wanted groups that are at most this far apart are read together."""
_ID_BEGIN: Final = HEADER_SIZE + MESSAGE_HEADER.offset("id")
_ID_END: Final = HEADER_SIZE + MESSAGE_HEADER.slices["id"].stop
_SIZE_FIELD: Final = 4
_SORT_CHUNK: Final = 4096
_FIRST: Final = itemgetter(0)
_size_of: Final = struct.Struct(">I").unpack_from


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
    unique = map(_FIRST, groupby(heapq.merge(*pieces)))  # compiled, a generator expression is a list
    while piece := list(islice(unique, _SORT_CHUNK)):
        found += piece
        pause()
    return found


def split_by_segment(
    segments: Sequence[Segment], chosen: Iterable[Segment], ids: Sequence[bytes], damage: Damage
) -> Iterator[tuple[Segment, Sequence[bytes]]]:
    """For each of the chosen segments, the part of the ids in its range of ids."""
    firsts = [(first_id_of(segment, damage), segment) for segment in segments]
    begins = [first for first, _ in firsts if first is not None]
    asked = frozenset(chosen)
    for first, segment in firsts:
        if segment not in asked:
            continue
        if first is None:
            yield segment, ()
            continue
        at = bisect_left(begins, first)
        end = bisect_left(ids, begins[at + 1]) if at + 1 < len(begins) else len(ids)
        yield segment, ids[bisect_left(ids, first) : end]


def fetch_at(segment: Segment, wanted: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """The sound frames at the `wanted` offsets and checksums, which are sorted by offset."""
    start, count = 0, len(wanted)
    while start < count:
        first = last = wanted[start][0]
        stop = start + 1
        while stop < count and (following := wanted[stop][0]) - last <= _MAX_READ_GAP and following - first <= _BLOCK:
            last = following
            stop += 1
        block = segment.pread(max(min(last + _GROUP_PROBE, segment.end) - first, 0), first)
        for offset, crc in wanted[start:stop]:
            frame = _frame_at(segment, block, offset - first, offset)
            if crc32c(frame) == crc:
                yield frame
        start = stop


def _frame_at(segment: Segment, block: bytes, at: int, offset: int) -> bytes:
    """The bytes of the frame that should be at `block[at:]`, which is at `offset` of the file."""
    if at + 4 > len(block):
        return b""
    size = _SIZE_FIELD + _size_of(block, at)[0]
    if at + size > len(block) and offset + size <= segment.end:
        return segment.pread(size, offset)
    return block[at : at + size]


def fetch_from(segment: Segment, ids: Sequence[bytes], damage: Damage) -> dict[bytes, bytes]:
    """The frames of these messages, by id, as far as they can be read in the segment."""
    found: dict[bytes, bytes] = {}
    for span, wanted in group_by_span(segment, ids, damage):
        found.update(fetch_in_span(segment, span, wanted, damage))
    return found


def fetch_in_span(segment: Segment, span: tuple[int, int], wanted: set[bytes], damage: Damage) -> dict[bytes, bytes]:
    """The frames of these messages, by id, as far as they can be read in a span that ``group_by_span`` returned."""
    found = {each: frame for each, (_, frame) in find_in_span(segment, span, wanted).items()}
    if missing := wanted - found.keys():
        found |= _search(segment, span, missing, damage)
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


def find_in_span(segment: Segment, span: tuple[int, int], wanted: set[bytes]) -> dict[bytes, tuple[int, bytes]]:
    """The offsets and frames of these messages, by id. Skips other groups unchecked, and stops at damage."""
    found: dict[bytes, tuple[int, bytes]] = {}
    base, stop = span
    stop = min(stop, segment.end)
    block = b""
    at = 0
    while len(found) < len(wanted) and base + at < stop:
        if at + _ID_END > len(block):
            base, at = base + at, 0
            block = segment.pread(min(min(stop - base, _BLOCK) + _GROUP_PROBE, segment.end - base), base)
            if len(block) < HEADER_SIZE:
                break
        magic, _, _, _, _, size, count, kind = unpack_header(block, at)
        if magic != GROUP_MAGIC:
            break
        if count == 1 and (kind not in MESSAGE_KINDS or block[at + _ID_BEGIN : at + _ID_END] not in wanted):
            at += HEADER_SIZE + size  # if `size` is damaged, no group begins there
            continue
        header = decode_header(block, at, base + at)
        if header is None or header.end > segment.end:
            break
        if header.end > base + len(block):
            base, at = header.offset, 0
            block = segment.pread(header.end - base, base)
        begin, end = header.payload_begin - base, header.payload_end - base
        if crc32c(block[begin:end]) != header.payload_crc:
            break
        begin = header.frames_begin - base
        for frame in cut_frames(block, begin, end, count) if kind in MESSAGE_KINDS else ():
            if (found_id := message_id(frame)) in wanted:
                found[found_id] = base + begin, frame
            begin += len(frame)
        at = header.end - base
    return found


def _search(segment: Segment, span: tuple[int, int], wanted: set[bytes], damage: Damage) -> dict[bytes, bytes]:
    """The frames of these messages that can be read past damage, which is reported."""
    found: dict[bytes, bytes] = {}
    begin, end = span
    reader = GroupReader(segment, damage, begin, counts_all=False)
    while len(found) < len(wanted) and reader.offset < end and (groups := reader.read(_BLOCK)):
        for group in groups:
            if group.kind in MESSAGE_KINDS:
                found.update((each, frame) for frame in group.frames if (each := message_id(frame)) in wanted)
    return found
