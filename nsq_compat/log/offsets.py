"""Finds messages by offset or by time of publishing, and reads them in the order of their offsets, deferred ones too.

A group's header says its offset, so a place is found without an index: first among the segments, by bisection of their
first messages, then within one, by the first group after a position, where a few guesses come before the bisection. If
there is an index it is used. It is built if messages look like headers, because a search among them would take seconds,
and if the segment has no salt, because then a message may contain the bytes of a sound header.
Each step reads a few kilobytes, and only the first message of each segment is remembered. Times are those of the ids,
which never go back, as far as they differ.
"""

import errno
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from google_crc32c import extend as extend_crc32c
from google_crc32c import value as crc32c

from nsq_compat.log.damage import Damage
from nsq_compat.log.group_reader import (
    BLOCK_SIZE,
    MAX_CANDIDATES,
    MESSAGE_KINDS,
    NEAR,
    GroupReader,
    TooManyCandidates,
    index_of,
    next_header,
    seek_number,
    skip_control_records,
)
from nsq_compat.log.reading import ReadableLog
from nsq_compat.log.segment import (
    CHECKSUM_SIZE,
    FIRST_GROUP,
    HEADER_SIZE,
    LOW_32,
    MARK_SIZE,
    First,
    Group,
    GroupHeader,
    Part,
    Segment,
    cut_frames,
    unpack_header,
)
from nsq_compat.protocol.message import HEADER as MESSAGE_HEADER
from nsq_compat.protocol.message import message_id, publish_tick, tick_of, timestamp_ns
from nsq_compat.protocol.storage_schema import DEFERRED, GROUP_MAGIC, MESSAGES

_NO_LIMIT: Final = 1 << 62
_GUESSES: Final = 4
_READS_AT_ONCE: Final = 8
"""Of NEAR bytes each, which take a millisecond if they have a thousand groups."""
_MAX_SEARCHES: Final = 64
"""Of a log, that are to be continued. Further ones are done at once: none begins again without an end."""
_NS_PER_SECOND: Final = 1_000_000_000


class Retention(NamedTuple):
    """What a topic keeps of the messages that its channels have finished: those of the last `seconds`, in `size` bytes.

    None is no limit. Those of the last `least_seconds` are kept in any case; with 0 `seconds`, only those. Segments are
    kept or released as a whole.
    """

    seconds: float | None
    size: int | None
    least_seconds: float = 0.0


class Later(NamedTuple):
    """The messages after a place that is sought. `is_true` says whether a message is one; later ones are too.

    `value` of a message grows roughly evenly with its position in a log, and is about `sought` at that place.
    """

    is_true: Callable[[First], bool]
    value: Callable[[First], int]
    sought: int


def later_than_offset(offset: int) -> Later:
    return Later(lambda first: first.offset > offset, lambda first: first.offset, offset)


def later_than_id(sought: bytes) -> Later:
    return Later(lambda first: first.message_id > sought, _tick, publish_tick(sought))


def published_since(time_ns: int) -> Later:
    """Those that were published at that time or later."""
    tick = tick_of(time_ns)

    def is_true(first: First) -> bool:
        own = _tick(first)
        return own > tick or (own == tick and first.timestamp_ns >= time_ns)

    return Later(is_true, _tick, tick)


def _is_behind(later: Later) -> Callable[[Part], bool]:
    """Whether a part of a large group is behind the place before the first later message."""
    return lambda part: later.is_true(part.first)


def _tick(first: First) -> int:
    return publish_tick(first.message_id)


def first_of(log: ReadableLog, segment: Segment, *, in_steps: bool | None = None) -> First | None:
    """The first message of a segment; None if it has none. Raises ``OSError``, and as ``last_before`` in steps."""
    if segment.first is None and not segment.released and segment.searched_for_first < segment.end:
        is_in_steps, end = log.in_steps if in_steps is None else in_steps, segment.end
        begin = skip_control_records(segment, FIRST_GROUP, is_in_steps)
        found = _with_first(segment, next_header(segment, begin, begin + 1, MESSAGE_KINDS))
        found = found or _next_group(log, segment, begin, end, in_steps=is_in_steps)  # it is behind damage
        segment.first = found[1] if found is not None else None
        segment.searched_for_first = end
    return segment.first


def retained(log: ReadableLog) -> Sequence[Segment]:
    """The newest segments of which none was released, so that they have every message from the first one on."""
    released = (number for number, segment in enumerate(reversed(log.segments)) if segment.released)
    return log.segments[len(log.segments) - next(released, len(log.segments)) :]


def oldest(log: ReadableLog) -> First | None:
    """The first retained message. Raises ``OSError``."""
    first = None
    for segment in retained(log):  # compiled, a generator expression would read all of them
        first = first_of(log, segment)
        if first is not None:
            break
    if first is None or first.offset >= log.emptied_at:
        return first
    groups = OffsetReader(log, log.emptied_at).read(NEAR)
    return _first(groups[0].offset, groups[0].frames[0]) if groups else None


def retained_from(log: ReadableLog, retention: Retention, now_ns: int) -> int:
    """The number of the first segment that is retained. Raises ``OSError``."""
    segments = retained(log)
    if not segments:
        return 0
    first = 0
    while first + 1 < len(segments) and log.emptied_at:
        following = first_of(log, segments[first + 1])
        if following is None or following.offset > log.emptied_at:
            break
        first += 1
    least = len(segments)
    if retention.least_seconds:
        least = _first_since(log, segments, first, now_ns - int(retention.least_seconds * _NS_PER_SECOND))
    if retention.seconds:
        first = _first_since(log, segments, first, now_ns - int(retention.seconds * _NS_PER_SECOND))
    elif retention.seconds is not None:
        first = len(segments) - 1
    if retention.size is not None:
        size = 0
        for place in range(len(segments) - 1, first - 1, -1):
            size += segments[place].end
            if size >= retention.size:
                first = place
                break
    return segments[min(first, least)].number


def _first_since(log: ReadableLog, segments: Sequence[Segment], first: int, since_ns: int) -> int:
    """The place of the first segment, from `first` on, that has messages since that time. Raises ``OSError``."""
    while first + 1 < len(segments):
        following = first_of(log, segments[first + 1])
        if following is None or following.timestamp_ns > since_ns:
            break
        first += 1
    return first


def segment_of(log: ReadableLog, offset: int) -> int:
    """The number of the segment with this offset, or of the oldest one. Raises ``OSError``."""
    place = last_before(log, later_than_offset(offset), in_steps=False)
    return place[0].number if place is not None else 0


def last_before(log: ReadableLog, later: Later, *, in_steps: bool | None = None) -> tuple[Segment, int] | None:
    """The segment and position of a group that is not later, shortly before the first later one.

    None if all retained messages are later. Raises ``OSError``. If the log is read in steps, or as `in_steps` says,
    raises ``BlockingIOError`` after each part of a long search.
    """
    segments = [segment for segment in retained(log) if segment.end > FIRST_GROUP]
    low, high = -1, len(segments)
    before: First | None = None
    after: First | None = None
    while high - low > 1:
        middle = (low + high) // 2
        probe = middle
        first = None
        while probe < high and (first := first_of(log, segments[probe], in_steps=in_steps)) is None:
            probe += 1
        if first is None or later.is_true(first):
            high, after = middle, first or after
        else:
            low, before = probe, first
    if low < 0 or before is None:
        return None
    segment = segments[low]
    begin, end = FIRST_GROUP, segment.end
    guesses = _GUESSES if after is not None else 0
    while end - begin > NEAR:
        middle = (begin + end) // 2
        if guesses and after is not None:
            # Each read may wait for the disk. Two good guesses, shortly before the place and behind it, replace ten.
            guesses -= 1
            margin = NEAR // 2 if guesses % 2 == 0 else -NEAR // 2
            middle = min(max(_guess(later, before, after, begin, end) + margin, begin + 1), end - 1)
        found = _next_group(log, segment, middle, end, in_steps=log.in_steps if in_steps is None else in_steps)
        if found is None or later.is_true(found[1]):
            end, after = middle, found[1] if found is not None else after
        else:
            begin, before = found
    return segment, begin


def _guess(later: Later, before: First, after: First, begin: int, end: int) -> int:
    """Where the place that is sought should be, between the positions of two messages."""
    low, high = later.value(before), later.value(after)
    return begin + (end - begin) * (later.sought - low) // max(1, high - low)


def groups_since(log: ReadableLog, time_ns: int, kind: int) -> Iterator[Group]:
    """The retained groups of messages since that time, some earlier ones, and those of a kind of control records.

    Past damage, which is not counted: that is done where the messages are needed. Raises ``OSError``.
    """
    place = last_before(log, published_since(time_ns))
    segments = [each for each in retained(log) if place is None or each.number >= place[0].number]
    for number, segment in enumerate(segments):
        following = first_of(log, segments[number + 1]) if number + 1 < len(segments) else None
        limit = _NO_LIMIT if following is None else following.offset
        begin = FIRST_GROUP if place is None or number else place[1]
        reader = GroupReader(segment, Damage(quiet=True), begin, counts_all=False)
        while groups := reader.read():
            for group in groups:
                # A message with the offset of a later segment is a failed write.
                if group.kind == kind or (group.kind in MESSAGE_KINDS and group.offset < limit):
                    yield group


def offset_at(log: ReadableLog, later: Later, end: int) -> int:
    """The offset of the first retained message that is later; `end` if there is none. Raises ``OSError``."""
    place = last_before(log, later)
    reader = OffsetReader(log, 0, place, _is_behind(later))
    while groups := reader.read(NEAR):
        for group in groups:
            for number, frame in enumerate(group.frames):
                if later.is_true(_first(group.offset + number, frame)):
                    return max(group.offset + number, log.emptied_at)
    return end


def number_at(log: ReadableLog, offset: int, end: int) -> int:
    """The number of the first message that is due at once and has this offset or a later one; `end` if there is none.

    Raises ``OSError``. If the log is read in steps, raises ``BlockingIOError`` after each part of a long search, which
    the next call continues: there may be a million deferred messages before the next one that has a number.
    """
    reader = log.searches.pop(offset, None) or OffsetReader(log, offset)
    left = _READS_AT_ONCE
    try:
        while groups := reader.read(NEAR):
            for group in groups:
                if group.kind != DEFERRED:
                    return group.first_seq
            left -= 1
            if log.in_steps and left <= 0 and len(log.searches) < _MAX_SEARCHES:
                raise BlockingIOError(errno.EAGAIN, "more has to be read", log.folder)
    except BlockingIOError:
        log.searches[offset] = reader
        raise
    tail = log.tail
    return max(tail.first_seq, offset - log.deferred_count) if tail is not None and tail.count else end


def id_at(log: ReadableLog, offset: int) -> bytes:
    """The id of the message with this offset, b"" if the log does not have it. Raises ``OSError``."""
    groups = OffsetReader(log, offset).read(NEAR) if offset >= 0 else []
    return message_id(groups[0].frames[0]) if groups and groups[0].offset == offset else b""


def offset_of_number(log: ReadableLog, seq: int, end: int) -> int:
    """The offset of the message with this number, or of the next one; `end` if there is none. Raises ``OSError``."""
    tail = log.tail
    if tail is not None and tail.count and seq >= tail.first_seq:
        return seq + log.deferred_count
    segments = log.segments
    place = max(bisect_right(segments, seq, key=lambda each: each.first_seq) - 1, 0)
    if seq >= log.next_seq or place == len(segments):
        return end
    segment = segments[place]
    place_in_segment = segment, seek_number(segment, seq, log.damage, log.in_steps)[0]
    reader = OffsetReader(log, 0, place_in_segment, lambda part: part.seq > seq)
    while groups := reader.read(NEAR):
        for group in groups:
            if group.kind == MESSAGES and group.first_seq + len(group.frames) > seq:
                return group.offset + max(0, seq - group.first_seq)
    return end


def offsets_of(log: ReadableLog, ids: Iterable[bytes]) -> dict[bytes, int]:
    """The offsets of those of these messages that are retained, by id. Raises ``OSError``."""
    found: dict[bytes, int] = {}
    groups: list[Group] = []
    last = b""
    for wanted in sorted(ids):
        if wanted > last:
            later = later_than_id(wanted)
            reader = OffsetReader(log, 0, last_before(log, later), _is_behind(later))
            while (groups := reader.read(NEAR)) and (last := message_id(groups[-1].frames[-1])) < wanted:
                pass
        # Ids grow with the log.
        place = bisect_right(groups, wanted, key=lambda group: message_id(group.frames[0])) - 1
        if place >= 0:
            group = groups[place]
            index = bisect_left(group.frames, wanted, key=message_id)
            if index < len(group.frames) and message_id(group.frames[index]) == wanted:
                found[wanted] = group.offset + index
    return found


class Logged(NamedTuple):
    """A message in the log, with its place."""

    frame: bytes
    segment: int
    """The number of its segment."""
    offset: int
    number: int | None
    """None for a deferred message."""
    due_ns: int
    """When a deferred message was due; 0 for any other one."""


def logged(log: ReadableLog, wanted: bytes) -> Logged | None:
    """The message with this id, if the log still has it. Raises ``OSError``."""
    offset = offsets_of(log, [wanted]).get(wanted)
    if offset is None:
        return None
    groups = OffsetReader(log, offset).read(1)
    if not groups or groups[0].offset != offset:
        return None
    group = groups[0]
    is_deferred = group.kind == DEFERRED
    number, due_ns = (None, group.due_ns) if is_deferred else (group.first_seq, 0)
    return Logged(group.frames[0], segment_of(log, offset), offset, number, due_ns)


class OffsetReader:
    """Reads messages from an offset on, as groups. `offset` is that of the next message.

    With a `place`, messages before the offset are read from there on, but in a large group as `is_behind` says (as
    ``GroupReader``).
    """

    def __init__(
        self,
        log: ReadableLog,
        offset: int,
        place: tuple[Segment, int] | None = None,
        is_behind: Callable[[Part], bool] | None = None,
    ) -> None:
        self.offset = offset
        self._is_behind = is_behind or _is_behind(later_than_offset(offset))
        self._log = log
        self._place = place
        self._is_exact = place is None  # whether `offset` is that of the next message in the log, not a lower one
        self._reader: GroupReader | None = None
        self._segment: Segment | None = None

    def read(self, max_bytes: int = BLOCK_SIZE) -> list[Group]:
        """Read the next groups, about `max_bytes`; none at the end, which may move. Raises ``OSError``.

        A gap between their offsets is damage, or was never written. If the log is read in steps, raises
        ``BlockingIOError`` after a part of a long search past damage or control records.
        """
        while True:
            if self._segment is None and not self._begin():
                return []
            segment, reader = self._segment, self._reader
            assert segment is not None, "it has begun"
            assert reader is not None, "it has begun"
            if segment.removed or segment.released:
                self._segment = self._place = None
                continue
            following = self._after(segment)
            limit = self._limit(following)
            found = [self._trimmed(each) for each in reader.read_messages(max_bytes) if each.offset < limit]
            groups = [each for each in found if each.frames]
            if groups:
                self.offset = groups[-1].offset + len(groups[-1].frames)
                self._is_exact = True
                return groups
            if reader.offset < segment.end:
                continue
            if following is None:
                return []
            if reader.suspect is not None:
                reader.report_suspect(following.first_seq)
            elif self._is_exact and self.offset < limit < _NO_LIMIT and self._log.tail is None:
                self._report_gap(segment, following, max(reader.next_seq, segment.first_seq), limit)
            self._enter(following, FIRST_GROUP)

    def read_frames(self, max_bytes: int) -> "Frames | None":
        """Read the frames of the next messages without a gap, about `max_bytes`; None at the end. Raises ``OSError``.

        Whole groups are copied as they are. `read` reads what begins or ends within a group, and what is damaged.
        """
        segment, reader = self._segment, self._reader
        if segment is not None and reader is not None and not (segment.removed or segment.released):
            base = reader.offset
            block = segment.pread(min(max_bytes, segment.end - base), base)
            frames = _cut_payloads(block, base, segment.salt, self.offset, self._limit(self._after(segment)))
            if frames is not None:
                reader.offset, self.offset = frames.end, frames.next_offset
                reader.next_seq = frames.next_seq or reader.next_seq
                return frames
        groups = self.read(max_bytes)
        if not groups:
            return None
        first = groups[0].offset
        pieces: list[bytes] = []
        following = first
        for group in groups:
            if group.offset != following:
                self.offset = following
                self._segment = None
                self._place = None
                break
            pieces += group.frames
            following += len(group.frames)
        return Frames(first, following, pieces)

    def _begin(self) -> bool:
        place = self._place or last_before(self._log, later_than_offset(self.offset))
        if place is None:
            segments = retained(self._log)
            if not segments:
                return False
            place = segments[0], FIRST_GROUP
        self._enter(*place)
        return True

    def _enter(self, segment: Segment, position: int) -> None:
        self._segment = segment
        in_steps, is_behind = self._log.in_steps, self._is_behind
        self._reader = GroupReader(
            segment, self._log.damage, position, counts_all=False, in_steps=in_steps, in_parts=True, is_behind=is_behind
        )

    def _after(self, segment: Segment) -> Segment | None:
        segments = self._log.segments
        place = bisect_right(segments, segment.number, key=lambda each: each.number)
        return segments[place] if place < len(segments) else None

    def _limit(self, following: Segment | None) -> int:
        """The offset at which the next segment begins. Before it, later groups are failed writes."""
        first = first_of(self._log, following) if following is not None else None
        return _NO_LIMIT if first is None else first.offset

    def _report_gap(self, segment: Segment, following: Segment, seq: int, limit: int) -> None:
        """Report that there are no messages from `offset` up to `limit`; `seq` is the first number that is missing."""
        log = self._log
        damage, first, after = log.damage, first_of(log, segment), first_of(log, following)
        if following.number == segment.number + 1 or first is None or after is None:
            damage.note_gap(segment.path, self.offset, limit)
        else:
            deferred = limit - self.offset - (following.first_seq - seq)
            damage.report_file(segment.path, seq, following.first_seq, deferred, (first.message_id, after.message_id))

    def _trimmed(self, group: Group) -> Group:
        """The group without messages before the next offset."""
        skipped = self.offset - group.offset
        if skipped <= 0:
            return group
        return group._replace(first_seq=group.first_seq + skipped, frames=group.frames[skipped:])


class Frames(NamedTuple):
    """Frames one after another, in pieces, from `offset` up to `next_offset`."""

    offset: int
    next_offset: int
    pieces: Sequence[bytes]
    end: int = 0
    """The position in the segment behind them."""
    next_seq: int = 0
    """The number after the last one of them that has a number."""

    def cut(self, end: int) -> "Frames":
        """Those before the offset `end`, which is one of them."""
        joined = b"".join(self.pieces)
        frames = cut_frames(joined, 0, len(joined), self.next_offset - self.offset)
        return Frames(self.offset, end, frames[: max(0, end - self.offset)])


def _cut_payloads(block: bytes, base: int, salt: int, expected: int, limit: int) -> Frames | None:
    """The frames of the sound whole groups at the beginning of a block, which is at `base` of a segment with `salt`.

    None unless the first of them has the expected offset. It ends before a gap, and before the offset `limit`.
    """
    # Hot: runs for everything that is read by offset. The locals save lookups in other modules, and their types let
    # compiled code compute with numbers instead of objects.
    crc, extend, unpack = crc32c, extend_crc32c, unpack_header
    header_size, mark_size, group_magic, messages, deferred = HEADER_SIZE, MARK_SIZE, GROUP_MAGIC, MESSAGES, DEFERRED
    header_crc: int
    payload_crc: int
    first_seq: int
    due_ns: int
    size: int
    length: int
    kind: int
    pieces: list[bytes] = []
    offset, next_seq = expected, 0
    at, available = 0, len(block)
    last = available - header_size
    while at <= last:
        magic, header_crc, payload_crc, first_seq, due_ns, size, length, kind = unpack(block, at)
        begin = at + header_size
        header_crc ^= salt ^ ((base + at) & LOW_32)
        if magic != group_magic or crc(block[at + mark_size : begin]) != header_crc:
            break
        frames_begin = begin if length == 1 else begin + length * CHECKSUM_SIZE
        end = frames_begin + size
        stop = end if length == 1 else end + header_size
        if stop > available:
            break
        if kind in (messages, deferred):
            if (first_seq if kind == deferred else first_seq + due_ns) != offset or offset >= limit:
                break
            frames = block[frames_begin:end]
            if (crc(frames) if length == 1 else extend(crc(block[begin:frames_begin]), frames)) != payload_crc:
                break
            pieces.append(frames)
            offset += length
            if kind == messages:
                next_seq = first_seq + length
        at = stop
    return Frames(expected, offset, pieces, base + at, next_seq) if pieces else None


def _next_group(
    log: ReadableLog, segment: Segment, position: int, limit: int, *, in_steps: bool
) -> tuple[int, First] | None:
    """A group with messages that begins from `position` on and before `limit`, and its first message.

    None if there is none in the index, or without an index none at all.
    """
    if segment.index is None and segment.salt:
        try:
            header = next_header(segment, position, limit, MESSAGE_KINDS, MAX_CANDIDATES)
            return _with_first(segment, header)
        except TooManyCandidates:
            pass
    index = index_of(segment, log.damage, in_steps)
    return _with_first(segment, next_header(segment, index.first_from(position), limit, MESSAGE_KINDS))


def _with_first(segment: Segment, header: GroupHeader | None) -> tuple[int, First] | None:
    """Where a group begins, and its first message."""
    if header is None:
        return None
    frame = segment.pread(MESSAGE_HEADER.size, header.frames_begin)
    offset = header.first_seq if header.kind == DEFERRED else header.first_seq + header.due_ns
    return header.offset, _first(offset, frame)


def _first(offset: int, frame: bytes) -> First:
    return First(offset, message_id(frame), timestamp_ns(frame))
