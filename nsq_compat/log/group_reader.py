"""Walks the groups of one segment, past whatever damage there is.

A place where no sound header stands is either the end or damage. It is damage if it was acknowledged
(``Segment.acknowledged``), or if a sound header or trailer follows anywhere in the file: a header is found by its magic
bytes and a checksum that only fits where it was written. Behind what was acknowledged, what cannot be told from a write
that never finished (a group that the file is too short for, or that has a sector of zeros) is not counted as damage
when nothing follows it.

What a damaged place cost is known when the number of the next message is known. Until then the place is a `suspect`.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

from nsq_compat.log.damage import Damage, without
from nsq_compat.log.group import (
    CHECKSUM_SIZE,
    HEADER_SIZE,
    LOW_32,
    MARK_SIZE,
    Group,
    GroupHeader,
    cut_frames,
    decode_header,
    decode_trailer,
    is_hole,
    place_of,
    salvage,
    unpack_header,
)
from nsq_compat.log.segment import FIRST_GROUP, UNKNOWN_SEQ, Index, IndexEntry, Segment
from nsq_compat.protocol.message import HEADER as MESSAGE_HEADER
from nsq_compat.protocol.message import message_id
from nsq_compat.protocol.storage_schema import DEFERRED, GROUP_MAGIC, MAGIC_PREFIX, MESSAGES

BLOCK_SIZE: Final = 1 << 18

HAS_IDS: Final = (MESSAGES, DEFERRED)
"""Groups whose frames are messages."""

_FEW: Final = 1 << 12

_SECTOR: Final = 512
_MESSAGE_ID: Final = MESSAGE_HEADER.slices["id"]


class _Hit(NamedTuple):
    """What a search found: a group, and where to go on behind it if its header is damaged (it has a trailer)."""

    header: GroupHeader
    is_trailer: bool


class GroupReader:
    """Begins at the offset of a group. May be asked again at the end, when more was appended.

    `offset` is where the next group begins, `next_seq` the number behind the last message passed (0 before the first),
    whether it could be read or not. `tail` is where an end was found that was not the end of the file, or None.
    `suspect` is where a damaged place began whose cost is not known yet, or None.

    `seq` is the number of the first message from `offset` on, -1 if that is not known. `counts_all`: damage that cost
    no numbered message is counted, too: a deferred message is otherwise counted when it is looked for by its id.
    """

    def __init__(
        self,
        segment: Segment,
        damage: Damage,
        offset: int = FIRST_GROUP,
        seq: int = -1,
        counts_all: bool = True,
    ) -> None:
        self.offset = offset
        self.next_seq = 0
        self.tail: int | None = None
        self.suspect: int | None = None
        self._seq = seq
        self._counts_all = counts_all
        self._segment = segment
        self._damage = damage

    def seek(self, position: int) -> None:
        """Go where a group begins, not far before or behind a place that is anywhere."""
        hit = self._search(max(position, FIRST_GROUP), FIRST_GROUP)
        self.offset = hit.header.offset if hit else self._segment.end

    def read(self, max_bytes: int = BLOCK_SIZE) -> list[Group]:
        """The next groups, about as many as fit into `max_bytes`; nothing at the end. Raises ``OSError``."""
        groups: list[Group] = []
        while not groups and self.offset < self._segment.end:
            groups = self._read_block(max_bytes) or self._read_one()
        return groups

    def _read_block(self, max_bytes: int) -> list[Group]:
        """Sound groups that are wholly in the next block."""
        # Hot: runs for everything that is read back, so the header's checks are written out here once more.
        base = self.offset
        block = self._segment.pread(min(max_bytes, self._segment.end - base), base)
        groups: list[Group] = []
        origin = place_of(self._segment.number, base)
        at, last = 0, len(block) - HEADER_SIZE
        while at <= last:
            magic, header_crc, payload_crc, first_seq, due_ns, size, count, kind = unpack_header(block, at)
            begin = at + HEADER_SIZE
            if magic != GROUP_MAGIC or crc32c(block[at + MARK_SIZE : begin]) != header_crc ^ ((base + at) & LOW_32):
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
                    self.settle(first_seq)
                self.next_seq = first_seq + count
            at = stop
        self.offset = base + at
        return groups

    def _read_one(self) -> list[Group]:
        """The next group if it is too large for a block, or what is left of it, or nothing and a step forward."""
        if self.offset >= self._segment.end:
            return []
        header = decode_header(self._segment.pread(HEADER_SIZE, self.offset), 0, self.offset)
        if header is None:
            return self._find_next()
        if header.end > self._segment.end:
            return self._finish(self.offset)
        return self._read_group(header)

    def _read_group(self, header: GroupHeader) -> list[Group]:
        data = self._segment.pread(header.end - header.offset, header.offset)
        if len(data) < header.end - header.offset:
            return self._finish(header.offset)
        begin, end = header.payload_begin - header.offset, header.payload_end - header.offset
        if crc32c(data[begin:end]) == header.payload_crc:
            frames = cut_frames(data, header.frames_begin - header.offset, end, header.record_count)
            self._pass(header)
            place = place_of(self._segment.number, header.offset)
            return [Group(header.kind, header.first_seq, header.due_ns, frames, place)]
        groups = salvage(header, data)
        if groups is None and header.end > self._segment.acknowledged and not self._search(header.end, header.end):
            return self._finish(header.offset)
        self._count(header, groups or [])
        self._pass(header)
        return groups or []

    def _pass(self, header: GroupHeader) -> None:
        self.offset = header.end
        if header.kind == MESSAGES:
            if self.suspect is not None:
                self.settle(header.first_seq)
            self.next_seq = header.first_seq + header.record_count

    def _count(self, header: GroupHeader, groups: Sequence[Group]) -> None:
        """Of a damaged group, what is not among the `groups` that could be read."""
        if header.kind == MESSAGES:
            found = [(group.first_seq, group.first_seq + len(group.frames)) for group in groups]
            for lost in without(found, header.first_seq, header.first_seq + header.record_count):
                self._damage.lose(self._segment.path, header.offset, *lost)
        elif self._counts_all:
            lost_count = header.record_count - sum(len(group.frames) for group in groups)
            self._damage.report(self._segment.path, header.offset, lost_count)

    def settle(self, seq: int) -> None:
        """The next message has this number: what is missing before it was at the `suspect` place."""
        place, self.suspect = self.suspect, None
        expected = self.next_seq or self._seq
        if 0 <= expected < seq:
            self._damage.lose(self._segment.path, place, expected, seq)
        elif self._counts_all and not (self._segment.lost_header and not self.next_seq):
            self._damage.report(self._segment.path, place, 1)

    def _find_next(self) -> list[Group]:
        """No header where one should be."""
        offset = self.offset
        hit = self._search(offset + 1, offset)
        if hit is None:
            return self._finish(offset)
        if hit.header.offset > offset and self.suspect is None:
            self.suspect = offset
        self.offset = hit.header.offset
        return self._read_group(hit.header) if hit.is_trailer else []

    def _finish(self, offset: int) -> list[Group]:
        """Nothing follows: the end, or something torn, or damage."""
        is_end = offset >= self._segment.acknowledged and self._is_end(offset)  # may raise: the offset stays then
        self.offset = self._segment.end
        if is_end:
            self.tail = offset
        elif self.suspect is None:
            self.suspect = offset
        return []

    def _is_end(self, offset: int) -> bool:
        data = self._segment.pread(_SECTOR, offset)
        if is_hole(data, offset) or decode_header(data, 0, offset):
            return True
        # A write may end within a header.
        start = data[: len(GROUP_MAGIC)].rstrip(b"\0")
        return GROUP_MAGIC.startswith(start) and not any(data[HEADER_SIZE - 1 :])

    def _search(self, position: int, lowest: int) -> _Hit | None:
        """The next group from a position on whose header or trailer is sound and that begins at `lowest` or later."""
        end = self._segment.end
        while end - position >= HEADER_SIZE:
            block = self._segment.pread(BLOCK_SIZE, position)[: end - position]
            at = block.find(MAGIC_PREFIX)
            while 0 <= at <= len(block) - HEADER_SIZE:
                if header := decode_header(block, at, position + at):
                    return _Hit(header, is_trailer=False)
                header = decode_trailer(block, at, position + at)
                if header and header.offset >= lowest:
                    return _Hit(header, is_trailer=True)
                at = block.find(MAGIC_PREFIX, at + 1)
            if len(block) < HEADER_SIZE:
                break
            position += len(block) - HEADER_SIZE + 1
        return None


def index_of(segment: Segment, damage: Damage) -> Index:
    """The segment's index, made now if an earlier run wrote the segment. Raises ``OSError``."""
    if segment.index is None:
        segment.index = _build_index(segment, damage)
    return segment.index


def first_id_of(segment: Segment, damage: Damage) -> bytes | None:
    """The smallest id in a segment, None if there is no message. Raises ``OSError``."""
    if segment.index is not None:
        return segment.index.first_id
    reader = GroupReader(segment, damage, counts_all=False)
    while segment.first_id is None and (groups := reader.read(_FEW)):
        segment.first_id = next((message_id(each.frames[0]) for each in groups if each.kind in HAS_IDS), None)
    return segment.first_id


def _build_index(segment: Segment, damage: Damage) -> Index:
    index = Index()
    seq = segment.first_seq
    offset = FIRST_GROUP
    while offset < segment.end:
        base, block = offset, segment.pread(BLOCK_SIZE, offset)
        header = decode_header(block, 0, base)
        if header is None:
            offset, seq = _step_over(segment, damage, index, base)
            continue
        while header is not None:
            offset = header.end
            if header.kind == MESSAGES:
                index.number_last(header.first_seq)
                seq = header.first_seq
            if header.kind in HAS_IDS:
                index.count += header.record_count
                if header.offset >= index.next_offset and (first_id := _first_id(segment, header)):
                    index.add(IndexEntry(seq, first_id, header.offset))
            if header.kind == MESSAGES:
                seq += header.record_count
            header = decode_header(block, offset - base, offset) if offset - base < len(block) else None
    return index


def _first_id(segment: Segment, header: GroupHeader) -> bytes | None:
    """The id of a group's first message; None if the group is damaged: a wrong id would mislead every search."""
    payload = segment.pread(header.payload_end - header.payload_begin, header.payload_begin)
    if crc32c(payload) != header.payload_crc:
        return None
    begin = header.frames_begin - header.payload_begin
    return payload[begin + _MESSAGE_ID.start : begin + _MESSAGE_ID.stop]


def _step_over(segment: Segment, damage: Damage, index: Index, offset: int) -> tuple[int, int]:
    """Past the damage at `offset`: where the next group begins, and the number of the next message if that is known.

    What is left of a group there is found by that very offset again.
    """
    reader = GroupReader(segment, damage, offset, counts_all=False)
    for group in reader._find_next():
        if group.kind in HAS_IDS:
            if offset >= index.next_offset:
                seq = group.first_seq if group.kind == MESSAGES else UNKNOWN_SEQ
                index.add(IndexEntry(seq, message_id(group.frames[0]), offset))
            index.count += len(group.frames)
    return reader.offset, reader.next_seq or UNKNOWN_SEQ
