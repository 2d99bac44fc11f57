"""Reads the groups of one segment, past damage.

An offset without a sound header is either the end or damage. It is damage if the data there was acknowledged
(``Segment.acknowledged``), or if a sound header or trailer follows anywhere in the file. Headers are found by their
magic bytes and a checksum that is valid only at the offset where they were written. After the acknowledged part, a
group that may be an unfinished write (the file ends in it, or it has a sector of zeros) and that nothing follows is not
damage.

The number of lost messages is known only when the next message has been found. Until then the offset is a `suspect`.
"""

import errno
import re
import struct
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import eq
from typing import Final

from google_crc32c import extend as extend_crc32c
from google_crc32c import value as crc32c

from nsq_compat.log.damage import Damage, uncovered
from nsq_compat.log.segment import (
    CHECKSUM_SIZE,
    FIRST_GROUP,
    HEADER_SIZE,
    LOW_32,
    MARK_SIZE,
    UNKNOWN_SEQ,
    First,
    Group,
    GroupHeader,
    Index,
    Part,
    Segment,
    cut_frames,
    decode_header,
    decode_trailer,
    place_of,
    unpack_header,
)
from nsq_compat.protocol.frames import FRAME_HEADER, FRAME_TYPE_MESSAGE, FRAME_TYPE_MESSAGE_WITH_HEADERS
from nsq_compat.protocol.message import HEADER as MESSAGE_HEADER
from nsq_compat.protocol.message import message_id, timestamp_ns
from nsq_compat.protocol.storage_schema import DEFERRED, GROUP_MAGIC, KINDS, MAGIC_PREFIX, MESSAGES

BLOCK_SIZE: Final = 1 << 18

MESSAGE_KINDS: Final = (MESSAGES, DEFERRED)
"""The kinds of groups that contain messages."""

NEAR: Final = 1 << 16
"""Distance in bytes from which on a group is found by reading instead of by bisection."""
_PROBE: Final = 1 << 14
MAX_CANDIDATES: Final = 1024
"""Places that may be a header by their first bytes, examined in a millisecond or two. By chance there are few."""
_NO_LIMIT: Final = 1 << 62
_NUMBERED: Final = frozenset(KINDS) - {DEFERRED}
"""The kinds of groups whose `first_seq` is a number."""

_SECTOR: Final = 512
"""Bytes that a disk writes atomically: after a power cut each sector is written or is not."""

_NEAR_INDEX: Final = 64
"""Frames. A frame that matches the checksum of one further on is taken for it only if the next frame matches, too: by
chance it can match one of a million."""
_MAX_SCAN_FACTOR: Final = 16
"""The search for frames in a damaged group ends after computing checksums of this many times its size."""
_FRAME_TYPES: Final = tuple(
    FRAME_HEADER.pack(0, each)[FRAME_HEADER.offset("type") :]
    for each in (FRAME_TYPE_MESSAGE, FRAME_TYPE_MESSAGE_WITH_HEADERS)
)
_find_frame_type: Final = re.compile(b"|".join(map(re.escape, _FRAME_TYPES))).search
_frame_size: Final = struct.Struct(">I").unpack_from
_SMALL_READ: Final = 1 << 12
_IN_A_GROUP: Final = -1
"""In a key of `Searches.reached`: the search is for a frame, not for a group."""
_FRAME_TYPE_END: Final = 7
"""Bytes of a frame's size and type that may be at the end of a block, when the rest of them is in the next one."""
LARGE_FRAME: Final = 1 << 15
"""Bytes. Larger frames are read one by one: a call of the system costs less than cutting them out of a block."""
_INDEXED_GROUPS: Final = 512
"""Groups that one step of building an index passes, about a millisecond of work."""
_INDEXED_BYTES: Final = 1 << 22
_SEARCHED_BYTES: Final = 1 << 22
"""Bytes of damage that one step searches for the next group, some 3 milliseconds of work."""
_SKIPPED_GROUPS: Final = 4096
"""Control records that one step passes over, some 10 milliseconds of work."""
_SKIPPED_BYTES: Final = 1 << 22
_MESSAGE_ID: Final = MESSAGE_HEADER.slices["id"]


_LEAST_PART: Final = 1 << 16
"""Bytes of a large group of small frames that are read at once, if fewer are asked for."""
_PASSED_PARTS: Final = 4
"""Parts of a large group, of `BLOCK_SIZE`, that one step passes over, some 10 milliseconds of work."""


class TooManyCandidates(Exception):
    """Much of what is between two headers looks like a header, because messages were made so."""


class GroupReader:
    """Reads groups from an offset on. At the end, `read` may be called again after more was appended.

    `offset` is where the next group begins. `next_seq` is the number after the last message passed, sound or not; 0
    before the first. `tail` is the offset of an end that is not the end of the file, or None. `suspect` is the offset
    of damage that is not counted yet, or None.

    `seq` is the number of the first message from `offset` on, -1 if unknown. `counts_all`: also report damage that cost
    no numbered message; otherwise a lost deferred message is reported when it is searched for by its id.

    With `in_steps`, `read` raises ``BlockingIOError`` after a part of a long search past damage, `read_messages` also
    after one past control records. The next call resumes, also that of another reader.

    With `in_parts`, `read` returns a group of large frames, or of very many, in several parts, each as a group without
    its `place`. `is_behind` says of a part whether it is behind the first message that is needed, so that parts before
    that one are not returned.
    """

    def __init__(
        self,
        segment: Segment,
        damage: Damage,
        offset: int = FIRST_GROUP,
        seq: int = -1,
        counts_all: bool = True,
        in_steps: bool = False,
        in_parts: bool = False,
        is_behind: Callable[[Part], bool] | None = None,
    ) -> None:
        self.offset = offset
        self.next_seq = 0
        self.tail: int | None = None
        self.suspect: int | None = None
        self._seq = seq
        self._counts_all = counts_all
        self._in_steps = in_steps
        self._in_parts = in_parts
        self._is_behind = is_behind
        self._reads_parts = False  # of the last group, and probably the next
        self._part: LargeGroup | None = None  # which begins at `offset`
        self._segment = segment
        self._damage = damage

    def seek(self, position: int) -> None:
        """Go to a group near this offset, which may be anywhere in the file."""
        begin, segment, quiet = max(position, FIRST_GROUP), self._segment, self._damage.quiet
        if segment.salt or quiet:  # an index may find damage, which would not be reported
            try:
                header, _ = self._search(begin, FIRST_GROUP, _NO_LIMIT if quiet else MAX_CANDIDATES)
                self.offset = header.offset if header else segment.end
                return
            except TooManyCandidates:
                pass
        self.offset = index_of(segment, self._damage, self._in_steps).last_until(begin)

    def read(self, max_bytes: int = BLOCK_SIZE) -> list[Group]:
        """Read the next groups, about `max_bytes`; none at the end. Raises ``OSError``."""
        groups: list[Group] = []
        while not groups and self.offset < self._segment.end:
            groups = self._read_parts(max_bytes) or self._read_block(max_bytes) or self._read_one(max_bytes)
        return groups

    def read_messages(self, max_bytes: int = BLOCK_SIZE) -> list[Group]:
        """As `read`, the groups of messages only. Many control records before them are not read."""
        while groups := self.read(max_bytes):
            if found := [each for each in groups if each.kind in MESSAGE_KINDS]:
                return found
            self.offset = skip_control_records(self._segment, self.offset, self._in_steps)
        return []

    def _read_block(self, max_bytes: int) -> list[Group]:
        """Read the sound groups at the beginning of the next block."""
        # Hot: runs for everything that is read back, so the header's checks are repeated inline.
        base, salt = self.offset, self._segment.salt
        block = self._segment.pread(min(max_bytes, self._segment.end - base), base)
        groups: list[Group] = []
        origin = place_of(self._segment.number, base)
        at, last = 0, len(block) - HEADER_SIZE
        while at <= last:
            magic, header_crc, payload_crc, first_seq, due_ns, size, count, kind = unpack_header(block, at)
            begin = at + HEADER_SIZE
            header_crc ^= salt ^ ((base + at) & LOW_32)
            if magic != GROUP_MAGIC or crc32c(block[at + MARK_SIZE : begin]) != header_crc:
                break
            if count == 1:
                stop = begin + size
                frame = block[begin:stop]
                if stop > len(block) or crc32c(frame) != payload_crc:
                    break
                frames = [frame]
            else:
                frames_begin = begin + count * CHECKSUM_SIZE
                end = frames_begin + size
                stop = end + HEADER_SIZE
                if stop > len(block) or crc32c(block[begin:end]) != payload_crc:
                    break
                frames = cut_frames(block, frames_begin, end, count)
            groups.append(Group(kind, first_seq, due_ns, frames, origin + at))
            if kind == MESSAGES:
                if self.suspect is not None:
                    self.report_suspect(first_seq)
                self.next_seq = first_seq + count
            at = stop
        self.offset = base + at
        self._reads_parts = self._in_parts and at > 0 and len(groups[-1].frames[-1]) >= LARGE_FRAME
        return groups

    def _read_parts(self, max_bytes: int) -> list[Group]:
        """Read the next frames of a large group. Large ones get memory of their own, which saves copies."""
        groups: list[Group] = []
        size = 0
        while self._reads_parts and self.offset < self._segment.end:
            try:
                part = self._part or self._begin_part()
                if part is None or (size and size + part.next_size() > max_bytes):
                    break
                frames = part.read(max_bytes - size)
                lost = 0 if frames else part.pass_damage(self._in_steps)
            except OSError:
                if groups:
                    break  # the next call raises it again
                raise
            if frames:
                groups.append(Group(MESSAGES, part.seq, part.header.due_ns, frames))
                size += sum(map(len, frames))
                part.advance(frames)
            else:
                self._damage.report_range(self._segment.path, part.header.offset, part.seq - lost, part.seq)
            self.next_seq = part.seq
            if part.is_read:
                self._part = None
                self.offset = part.header.end
        return groups

    def _begin_part(self) -> "LargeGroup | None":
        """The next group as one to be read in parts; None if it has to be read as a whole."""
        self._reads_parts = False
        header = decode_header(self._segment.pread(HEADER_SIZE, self.offset), 0, self.offset, self._segment.salt)
        return None if header is None else self._begin_group(header)

    def _begin_group(self, header: GroupHeader) -> "LargeGroup | None":
        part = large_group(self._segment, header)
        if part is not None and self._is_behind is not None:
            part.skip(self._is_behind, self._in_steps)
        if part is not None and self.suspect is not None:
            self.report_suspect(header.first_seq)
        self._part, self._reads_parts = part, part is not None
        return part

    def _read_one(self, max_bytes: int) -> list[Group]:
        """Read the next group if it is larger than a block, or its sound frames; none after moving past damage."""
        if self._in_parts and self._begin_part() is not None:
            return self._read_parts(max_bytes)
        header = decode_header(self._segment.pread(HEADER_SIZE, self.offset), 0, self.offset, self._segment.salt)
        return self._find_next() if header is None else self._read_group(header)

    def _read_group(self, header: GroupHeader) -> list[Group]:
        if header.end > self._segment.end:
            return self._finish(header.offset)
        data = self._segment.pread(header.end - header.offset, header.offset)
        if len(data) < header.end - header.offset:
            return self._finish(header.offset)
        begin, end = header.payload_begin - header.offset, header.payload_end - header.offset
        if crc32c(data[begin:end]) == header.payload_crc:
            if header.record_count == 1:  # of a control group it has no size
                frames = [data[begin:end]]
            else:
                frames = cut_frames(data, header.frames_begin - header.offset, end, header.record_count)
            self._pass(header)
            place = place_of(self._segment.number, header.offset)
            return [Group(header.kind, header.first_seq, header.due_ns, frames, place)]
        groups = self._salvage(header, data)
        if groups is None and header.end > self._segment.acknowledged and not self._search(header.end, header.end)[0]:
            return self._finish(header.offset)
        self._count(header, groups or [])
        self._pass(header)
        return groups or []

    def _salvage(self, header: GroupHeader, data: bytes) -> list[Group] | None:
        """As ``salvage``, which takes seconds for a large group: what it found out is remembered."""
        segment = self._segment
        if header.offset in segment.searches.torn:
            return None
        groups = salvage(header, data, may_be_torn=header.end > segment.acknowledged)
        if header.size > BLOCK_SIZE:
            if groups is None:
                segment.searches.torn.add(header.offset)
            else:
                segment.searches.ends[header.offset] = header.end
        return groups

    def _pass(self, header: GroupHeader) -> None:
        self.offset = header.end
        if header.kind == MESSAGES:
            if self.suspect is not None:
                self.report_suspect(header.first_seq)
            self.next_seq = header.first_seq + header.record_count

    def _count(self, header: GroupHeader, groups: Sequence[Group]) -> None:
        """Report the frames of a damaged group that are not among the sound `groups`."""
        if header.kind == MESSAGES:
            found = [(group.first_seq, group.first_seq + len(group.frames)) for group in groups]
            for lost in uncovered(found, header.first_seq, header.first_seq + header.record_count):
                self._damage.report_range(self._segment.path, header.offset, *lost)
        elif self._counts_all:
            lost_count = header.record_count - sum(len(group.frames) for group in groups)
            self._damage.report(self._segment.path, header.offset, lost_count)

    def report_suspect(self, seq: int) -> None:
        """Report the loss at `suspect`, now that the number of the next message is known."""
        suspect, self.suspect = self.suspect, None
        expected = self.next_seq or self._seq
        if 0 <= expected < seq:
            self._damage.report_range(self._segment.path, suspect, expected, seq)
        elif self._counts_all and not (self._segment.header_lost and not self.next_seq):
            self._damage.report(self._segment.path, suspect, 1)

    def _find_next(self) -> list[Group]:
        """Move to the next sound header or trailer, from an offset without a header."""
        offset = self.offset
        header, is_trailer = self._search(offset + 1, offset)
        if header is None:
            return self._finish(offset)
        if header.offset > offset and self.suspect is None:
            self.suspect = offset
        if is_trailer and self._in_parts and self._begin_group(header) is not None:
            self.offset = header.offset
            return self._read_parts(BLOCK_SIZE)
        self.offset = header.offset
        return self._read_group(header) if is_trailer else []

    def _finish(self, offset: int) -> list[Group]:
        """Move to the end of the file, because no group follows: this is the end, an unfinished write, or damage."""
        is_end = offset >= self._segment.acknowledged and self._is_end(offset)  # if it raises, the offset stays
        self.offset = self._segment.end
        if is_end:
            self.tail = offset
        elif self.suspect is None:
            self.suspect = offset
        return []

    def _is_end(self, offset: int) -> bool:
        data = self._segment.pread(_SECTOR, offset)
        if is_hole(data, offset) or decode_header(data, 0, offset, self._segment.salt):
            return True
        # An unfinished write may end within a header.
        start = data[: len(GROUP_MAGIC)].rstrip(b"\0")
        return GROUP_MAGIC.startswith(start) and not any(data[HEADER_SIZE - 1 :])

    def _search(self, position: int, lowest: int, most: int = _NO_LIMIT) -> tuple[GroupHeader | None, bool]:
        """Find the next sound header or trailer from `position` on, of a group that begins at `lowest` or later.

        Returns the header, and whether it is from the trailer. Raises ``TooManyCandidates`` as ``next_header`` does.
        """
        segment, salt, search = self._segment, self._segment.salt, (position, lowest)
        end = segment.end
        position = segment.searches.reached.get(search, position)
        stop = position + _SEARCHED_BYTES if self._in_steps else end
        while end - position >= HEADER_SIZE:
            if position >= stop:
                # Stays when it is found: a call that continues may have several searches behind it.
                segment.searches.note(search, position)
                raise unfinished(segment)
            block = segment.pread(BLOCK_SIZE, position)[: end - position]
            at = block.find(MAGIC_PREFIX)
            while 0 <= at <= len(block) - HEADER_SIZE:
                if header := decode_header(block, at, position + at, salt):
                    return header, False
                header = decode_trailer(block, at, position + at, salt)
                if header and header.offset >= lowest:
                    return header, True
                most -= 1
                if most < 0:
                    raise TooManyCandidates
                at = block.find(MAGIC_PREFIX, at + 1)
            if len(block) < HEADER_SIZE:
                break
            position = _behind(segment, block, position)
        return None, False


def next_header(
    segment: Segment, position: int, limit: int, kinds: Container[int], most: int = _NO_LIMIT
) -> GroupHeader | None:
    """The header of the first sound group of these kinds that begins from `position` on and before `limit`.

    If the segment has no salt, a group must begin at `position`, because messages may contain what looks like a header.
    Raises ``TooManyCandidates`` after `most` groups of other kinds, and places that only look like a group.
    """
    if segment.salt:  # else only `position` is examined
        within = (end for begin, end in segment.searches.ends.items() if begin < position < end)
        position = next(within, position)
    while position < limit:
        block = segment.pread(_PROBE, position)
        if len(block) < HEADER_SIZE:
            return None
        at = block.find(GROUP_MAGIC)
        while 0 <= at <= len(block) - HEADER_SIZE:
            header = decode_header(block, at, position + at, segment.salt)
            if header is None:
                at = block.find(GROUP_MAGIC, at + 1)
                most -= 1
                if most < 0:
                    raise TooManyCandidates
                continue
            if header.offset >= limit:
                return None
            if header.kind in kinds and header.end <= segment.end:
                return header
            most -= 1
            if most < 0:
                raise TooManyCandidates
            at = header.end - position
        position = position + at if at > len(block) - HEADER_SIZE else _behind(segment, block, position)
    return None


def _behind(segment: Segment, block: bytes, position: int) -> int:
    """Where to go on behind a block in which no header begins.

    The holes of a sparse file are skipped: they may be thousands of times as large as the rest of it.
    """
    following = position + len(block) - HEADER_SIZE + 1
    return following if block.strip(b"\0") else max(following, segment.next_data(following))


def seek_number(segment: Segment, seq: int, damage: Damage, in_steps: bool = False) -> tuple[int, int]:
    """The offset at which to begin reading to find a message by its number, and the first number after it.

    By the index if there is one, else by bisection; without a salt, or if messages look like headers, by an index that
    is built. Raises ``OSError``, and with `in_steps` ``BlockingIOError`` as ``index_of``.
    """
    if segment.index is not None:
        return segment.index.seek(seq)
    low, high, first = FIRST_GROUP, segment.end, segment.first_seq
    if segment.salt or high <= NEAR:
        try:
            while high - low > NEAR:
                middle = (low + high) // 2
                header = next_header(segment, middle, high, _NUMBERED, MAX_CANDIDATES)
                if header is None or header.first_seq > seq:
                    high = middle
                else:
                    low, first = header.offset, header.first_seq
            return low, first
        except TooManyCandidates:
            pass
    return index_of(segment, damage, in_steps).seek(seq)


class LargeGroup:
    """A group that is read in parts: large frames one by one, others in blocks. `index` is that of the next frame."""

    def __init__(self, segment: Segment, header: GroupHeader) -> None:
        self.header = header
        self.index = 0
        self._segment = segment
        self._is_of_large_frames = _has_large_frames(header)
        self._offset = header.frames_begin
        self._next_size = 0  # 0: unknown

    @property
    def seq(self) -> int:
        """The number of the next message."""
        return self.header.first_seq + self.index

    @property
    def is_read(self) -> bool:
        return self.index == self.header.record_count

    def next_size(self) -> int:
        """The size of the next frame, if it is sound. Raises ``OSError``."""
        if not self._next_size:
            if self.header.record_count == 1:
                self._next_size = self.header.size
            else:
                data = self._segment.pread(4, self._offset)
                self._next_size = 4 + _frame_size(data)[0] if len(data) == 4 else 4
        return self._next_size

    def read(self, max_bytes: int) -> list[bytes]:
        """The next frame, or the next ones, up to one that is damaged; none if that is the next. Raises ``OSError``."""
        size = self.next_size()
        if self._offset + size > self.header.payload_end:
            return []
        if self._is_of_large_frames:
            frames = [self._segment.pread(size, self._offset)]
        else:
            frames = self._cut(self._segment.pread(max(size, max_bytes, _LEAST_PART), self._offset))
        if self.header.record_count == 1:
            return frames if crc32c(frames[0]) == self.header.payload_crc else []
        count = len(frames)
        data = self._segment.pread(count * CHECKSUM_SIZE, self.header.payload_begin + self.index * CHECKSUM_SIZE)
        if len(data) < count * CHECKSUM_SIZE:
            return []
        checksums = struct.unpack(f">{count}I", data)
        sound = list(map(eq, map(crc32c, frames), checksums))
        return frames if all(sound) else frames[: sound.index(False)]

    def advance(self, frames: Sequence[bytes]) -> None:
        """Go on to the frame after these."""
        self.index += len(frames)
        self._offset += sum(map(len, frames))
        self._next_size = 0

    def pass_damage(self, in_steps: bool) -> int:
        """Go to the next sound frame, or to the end; returns how many frames are lost.

        Where that is, is remembered. Raises ``OSError``, and with `in_steps` as ``index_of``.
        """
        segment, header, search = self._segment, self.header, (self._offset, _IN_A_GROUP)
        position, left = segment.searches.reached.get(search, self._offset), _PASSED_PARTS
        found = None
        while position < header.payload_end and header.record_count > 1:
            block = segment.pread(min(BLOCK_SIZE, header.payload_end - position), position)
            found = self._sound_in(block, position)
            if found is not None:
                position = found[1]
                segment.searches.note(search, position)
                break
            if len(block) <= _FRAME_TYPE_END:
                break
            position += len(block) - _FRAME_TYPE_END
            left -= 1
            if in_steps and not left:
                segment.searches.note(search, position)
                raise unfinished(segment)
        index = header.record_count if found is None else found[0]
        lost = index - self.index
        self.index, self._offset, self._next_size = index, position, 0
        return lost

    def _sound_in(self, block: bytes, position: int) -> tuple[int, int] | None:
        """The index and the offset of the first sound frame behind the next one that begins in a block at `position`.

        The search ends early in a block that has much that looks like frames.
        """
        header, begin = self.header, self.index + 1
        most = (position + len(block) - self._offset) // MESSAGE_HEADER.size
        size = max(0, min(most, header.record_count - begin)) * CHECKSUM_SIZE
        checksums = self._segment.pread(size, header.payload_begin + begin * CHECKSUM_SIZE)
        budget = _MAX_SCAN_FACTOR * len(block)
        at = 0
        while budget > 0 and (following := _find_frame_type(block, at + 4)) is not None:
            at = following.start() - 4
            size = 4 + _frame_size(block, at)[0]
            if MESSAGE_HEADER.size <= size <= header.payload_end - position - at:
                whole = at + size <= len(block)
                frame = block[at : at + size] if whole else self._segment.pread(size, position + at)
                wanted = crc32c(frame).to_bytes(CHECKSUM_SIZE, "big")
                place = checksums.find(wanted)
                while place >= 0 and place % CHECKSUM_SIZE:
                    place = checksums.find(wanted, place + 1)
                index = begin + place // CHECKSUM_SIZE
                if place >= 0 and (index - begin < _NEAR_INDEX or self._is_sound_at(index + 1, position + at + size)):
                    return index, position + at
                budget -= size + len(checksums) // _MAX_SCAN_FACTOR
            at += 1
        return None

    def _is_sound_at(self, index: int, position: int) -> bool:
        """Whether the frame at this place in the file matches the checksum of this one; also if there is none."""
        if index == self.header.record_count:
            return position == self.header.payload_end
        following = LargeGroup(self._segment, self.header)
        following.index, following._offset = index, position
        return bool(following.read(1))

    def skip(self, is_behind: Callable[[Part], bool], in_steps: bool) -> None:
        """Go to the last part that is not behind a place.

        The parts of a group larger than a block are remembered. Raises ``OSError``; with `in_steps` as ``index_of``.
        """
        if self.header.size <= BLOCK_SIZE:
            return
        self._go_to(())
        first = self._segment.pread(MESSAGE_HEADER.size, self._offset)
        if len(first) == MESSAGE_HEADER.size and is_behind(self._part(first)):
            return  # as for every group after the place, if they are read on
        parts = self._segment.searches.parts.setdefault(self.header.offset, [])
        self._segment.index_is_used = True
        place = bisect_left(parts, True, key=is_behind)
        self._go_to(parts[:place])
        left = _PASSED_PARTS if place == len(parts) else 0
        while left:
            frames = self.read(BLOCK_SIZE)
            if not frames:
                self.pass_damage(in_steps)
                if self.is_read:
                    self._go_to(parts)
                    return
                continue
            part = self._part(frames[0])
            if not parts or part.position > parts[-1].position:
                parts.append(part)
                if is_behind(part):
                    self._go_to(parts[:-1])
                    return
            if len(frames) == part.left:
                return
            self.advance(frames)
            left -= 1
            if not left:
                if in_steps:
                    raise unfinished(self._segment)
                left = _PASSED_PARTS

    def find(self, wanted: Iterable[bytes], in_steps: bool) -> Iterator[tuple[int, bytes]]:
        """Yield the sound ones of these messages, with their offsets in the file. Raises as `skip`."""
        frames: list[bytes] = []
        begins: list[int] = []
        last, place = b"", -1
        for each in sorted(wanted):
            if each > last:
                self.skip(behind_id(each), in_steps)
                if self.index != place:
                    place = self.index
                    frames = self.read(BLOCK_SIZE)
                    begins = [*accumulate(map(len, frames), initial=self._offset)]
                    last = message_id(frames[-1]) if frames else b""
            index = bisect_left(frames, each, key=message_id)
            if index < len(frames) and message_id(frames[index]) == each:
                yield begins[index], frames[index]

    def _part(self, frame: bytes) -> Part:
        """The part that begins with this frame, the next one."""
        first = First(self.seq + self.header.due_ns, message_id(frame), timestamp_ns(frame))
        return Part(first, self.seq, self.header.record_count - self.index, self._offset)

    def _go_to(self, parts: Sequence[Part]) -> None:
        """Go to the last of these parts; without any, to the first message."""
        self.index = self.header.record_count - parts[-1].left if parts else 0
        self._offset = parts[-1].position if parts else self.header.frames_begin
        self._next_size = 0

    def _cut(self, block: bytes) -> list[bytes]:
        """The frames that are wholly in this block, which begins at the next frame."""
        frames: list[bytes] = []
        at, end = 0, min(len(block), self.header.payload_end - self._offset)
        left = self.header.record_count - self.index
        while at + 4 <= end and len(frames) < left:
            stop = at + 4 + _frame_size(block, at)[0]
            if stop > end:
                break
            frames.append(block[at:stop])
            at = stop
        return frames


def behind_id(sought: bytes) -> Callable[[Part], bool]:
    """Whether a part of a large group is behind the message with this id."""
    return lambda part: part.first.message_id > sought


def _has_large_frames(header: GroupHeader) -> bool:
    return header.size >= header.record_count * LARGE_FRAME


def large_group(segment: Segment, header: GroupHeader) -> LargeGroup | None:
    """The group as one that is read in parts; None if it is small, or may be incomplete. Raises ``OSError``."""
    is_large = header.size > BLOCK_SIZE or _has_large_frames(header)
    if header.kind != MESSAGES or not is_large or header.end > segment.end or header.offset in segment.searches.torn:
        return None
    is_acknowledged = header.end <= segment.acknowledged
    if not (is_acknowledged or header.offset in segment.searches.ends or _is_sound(segment, header)):
        return None
    if header.size > BLOCK_SIZE or not is_acknowledged:
        segment.searches.ends[header.offset] = header.end
    return LargeGroup(segment, header)


def _is_sound(segment: Segment, header: GroupHeader) -> bool:
    """Whether a large group of an earlier run matches its checksum. Raises ``OSError``."""
    checksum, at = 0, header.payload_begin
    while at < header.payload_end:
        data = segment.pread(min(BLOCK_SIZE, header.payload_end - at), at)
        if not data:
            return False
        checksum = extend_crc32c(checksum, data)
        at += len(data)
    return checksum == header.payload_crc


def index_of(segment: Segment, damage: Damage, in_steps: bool = False) -> Index:
    """The segment's index. Builds it if an earlier run wrote the segment. Raises ``OSError``.

    With `in_steps` one call does a step of that, and raises ``BlockingIOError`` if more steps are needed.
    """
    while not extend_index(segment, damage):
        if in_steps:
            raise unfinished(segment)
    assert segment.index is not None, "it is complete"
    return segment.index


def unfinished(segment: Segment) -> BlockingIOError:
    """The error of an incomplete step, which is not a failure: the next call continues where this one ended."""
    return BlockingIOError(errno.EAGAIN, "more has to be read", segment.path)


def skip_control_records(segment: Segment, offset: int, in_steps: bool = False) -> int:
    """The offset behind the control records that begin at `offset`, where a group begins. Raises ``OSError``.

    A client that requeues messages can fill a segment with them, so where many of them end is remembered. With
    `in_steps` as ``index_of``.
    """
    passed, left, stop = segment.passed, _SKIPPED_GROUPS, 0
    while True:
        begin = offset = passed.end_of(offset)
        stop = stop or offset + _SKIPPED_BYTES
        block = segment.pread(BLOCK_SIZE, offset)
        header = decode_header(block, 0, offset, segment.salt)
        while header is not None and header.kind not in MESSAGE_KINDS and header.end <= segment.end and left > 0:
            offset = header.end
            left -= 1
            header = decode_header(block, offset - begin, offset, segment.salt)
        if offset == begin:
            return offset
        passed.add(begin, offset)
        if in_steps and (left <= 0 or offset >= stop):
            raise unfinished(segment)
        left = left or _SKIPPED_GROUPS


def first_id_of(segment: Segment, damage: Damage, in_steps: bool = False) -> bytes | None:
    """The smallest message id in a segment, None if it has no message. Raises ``OSError``.

    With `in_steps` as ``index_of``.
    """
    if segment.index is not None and segment.first_id is None:
        return segment.index.first_id
    if segment.first_id is None and segment.searched_for_id < segment.end:
        end = segment.end
        begin = skip_control_records(segment, FIRST_GROUP, in_steps)
        groups = GroupReader(segment, damage, begin, counts_all=False, in_steps=in_steps).read_messages(_SMALL_READ)
        segment.first_id = message_id(groups[0].frames[0]) if groups else None
        segment.searched_for_id = end
    return segment.first_id


def extend_index(segment: Segment, damage: Damage) -> bool:
    """Index some more of the segment; returns whether the index is complete. Raises ``OSError``."""
    segment.index_is_used = True
    if segment.index is not None:
        return True
    partial = segment.partial_index
    if partial is None:
        try:
            first_id_of(segment, damage, in_steps=True)  # remembers it: a damaged group has no index entry
        except BlockingIOError:
            return False
        partial = segment.partial_index = Index(segment.first_seq)
    stop, left = partial.offset + _INDEXED_BYTES, _INDEXED_GROUPS
    while partial.offset < segment.end:
        if left <= 0 or partial.offset >= stop:
            return False
        try:
            left -= _index_block(segment, damage, partial, left)
        except BlockingIOError:
            return False
    segment.index, segment.partial_index, segment.other_bytes = partial, None, partial.other_bytes
    return True


def _index_block(segment: Segment, damage: Damage, index: Index, limit: int) -> int:
    """Index at most `limit` groups that begin in the next block; returns how many."""
    base, block = index.offset, segment.pread(BLOCK_SIZE, index.offset)
    header = decode_header(block, 0, base, segment.salt)
    if header is None:
        _step_over(segment, damage, index)
        return 1
    count = 0
    while header is not None and count < limit:
        _index_group(segment, index, header)
        count += 1
        at = header.end - base
        header = decode_header(block, at, header.end, segment.salt) if at < len(block) else None
    return count


def _index_group(segment: Segment, index: Index, header: GroupHeader) -> None:
    has_messages = header.kind in MESSAGE_KINDS
    # First, because if it raises the group is indexed again.
    first_id = _first_id(segment, header) if has_messages and header.offset >= index.next_offset else None
    if header.kind == MESSAGES:
        index.number_last_entries(header.first_seq)
        index.seq = header.first_seq
    if has_messages:
        index.count += header.record_count
        if first_id:
            index.add(index.seq, first_id, header.offset)
    if header.kind == MESSAGES:
        index.seq += header.record_count
    else:
        index.other_bytes += header.end - header.offset
    index.offset = header.end


def _first_id(segment: Segment, header: GroupHeader) -> bytes | None:
    """The id of a group's first message; None if the group is damaged, because a wrong id breaks every search."""
    payload = segment.pread(header.payload_end - header.payload_begin, header.payload_begin)
    if crc32c(payload) != header.payload_crc:
        return None
    begin = header.frames_begin - header.payload_begin
    return payload[begin + _MESSAGE_ID.start : begin + _MESSAGE_ID.stop]


def _step_over(segment: Segment, damage: Damage, index: Index) -> None:
    """Move past damage. Sound frames of the damaged group get an index entry: they can be read again at its offset."""
    offset = index.offset
    reader = GroupReader(segment, damage, offset, counts_all=False, in_steps=True)
    for group in reader._find_next():
        if group.kind in MESSAGE_KINDS:
            if offset >= index.next_offset:
                seq = group.first_seq if group.kind == MESSAGES else UNKNOWN_SEQ
                index.add(seq, message_id(group.frames[0]), offset)
            index.count += len(group.frames)
    index.offset, index.seq = reader.offset, reader.next_seq or UNKNOWN_SEQ


def salvage(header: GroupHeader, data: bytes, *, may_be_torn: bool = True) -> list[Group] | None:
    """The sound frames of a damaged group, as groups of consecutive frames; `data` is the whole group.

    None if the group `may_be_torn` and was not written completely, which a sector of zeros in it shows. Then all of it
    is ignored.
    """
    frames_begin, frames_end = header.frames_begin - header.offset, header.payload_end - header.offset
    expected = struct.unpack_from(f">{header.record_count}I", data, HEADER_SIZE) if header.record_count > 1 else ()
    found = _find_frames(data, frames_begin, frames_end, expected) if expected else []
    if may_be_torn and _is_torn(header.offset, data, frames_end, found):
        return None
    return _without_gaps(header, found)


def is_hole(data: bytes, offset: int) -> bool:
    """Whether `data`, which is at `offset` of the file, is zeros up to the end of the sector."""
    return not any(data[: _SECTOR - offset % _SECTOR])


_Found = tuple[int, int, bytes]
"""A frame's position in its group, where it begins in the data, and the frame."""


def _find_frames(data: bytes, at: int, end: int, expected: Sequence[int]) -> list[_Found]:
    """The frames in `data[at:end]` that have an expected checksum, in order."""
    wanted: dict[int, list[int]] = {}
    for index, checksum in enumerate(expected):
        wanted.setdefault(checksum, []).append(index)
    found: list[_Found] = []
    next_index = 0
    budget = _MAX_SCAN_FACTOR * len(data)
    while at < end and budget > 0:
        frame = _plausible_frame(data, at, end)
        if frame:
            budget -= len(frame)
            match = next((each for each in wanted.get(crc32c(frame), ()) if each >= next_index), None)
            if match is not None and match - next_index >= _NEAR_INDEX:
                after = _plausible_frame(data, at + len(frame), end)
                is_last = match + 1 == len(expected)
                if not is_last and (after is None or crc32c(after) != expected[match + 1]):
                    match = None
            if match is not None:
                found.append((match, at, frame))
                next_index = match + 1
                at += len(frame)
                continue
        # Damaged: search for the next frame type, which follows the frame's size.
        following = _find_frame_type(data, at + 5, end)
        at = following.start() - 4 if following is not None else end
    return found


def _plausible_frame(data: bytes, at: int, end: int) -> bytes | None:
    if at + MESSAGE_HEADER.size > end or not data.startswith(_FRAME_TYPES, at + 4):
        return None
    stop = at + 4 + _frame_size(data, at)[0]
    return data[at:stop] if at + MESSAGE_HEADER.size <= stop <= end else None


def _is_torn(offset: int, data: bytes, frames_end: int, found: Sequence[_Found]) -> bool:
    """Whether the group's part of a sector is all zeros. A sector that has only trailer bytes is not checked."""
    rest = bytearray(data)
    for _, begin, frame in found:
        rest[begin : begin + len(frame)] = b"\1" * len(frame)
    starts = [0, *range(-offset % _SECTOR or _SECTOR, frames_end, _SECTOR)]
    return any(not any(rest[start : start + _SECTOR - (offset + start) % _SECTOR]) for start in starts)


def _without_gaps(header: GroupHeader, found: Sequence[_Found]) -> list[Group]:
    groups: list[Group] = []
    run: list[bytes] = []
    expected = -1
    for index, _, frame in found:
        if index != expected:
            run = []
            first_seq = header.first_seq + (index if header.kind in MESSAGE_KINDS else 0)
            groups.append(Group(header.kind, first_seq, header.due_ns, run))
        run.append(frame)
        expected = index + 1
    return groups
