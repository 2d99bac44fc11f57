"""Finding messages in a log's segments: where they are known to be, or by their ids, which grow with the log.

`ids` are sorted everywhere here. All of it raises ``OSError``.

What is read where it is known to be is checked like everything else that is read from a log. Whatever is wrong with it
is not reported here: it is left out, and the search by id, which knows how to read past damage, has the last word.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from google_crc32c import value as crc32c

from nsq_compat.protocol.message import HEADER as MESSAGE_HEADER
from nsq_compat.protocol.message import message_id
from nsq_compat.protocol.storage_schema import GROUP_MAGIC
from nsq_compat.queue.damage import Damage
from nsq_compat.queue.group import HEADER_SIZE, LOW_32, MARK_SIZE, cut_frames, decode_header, unpack_header
from nsq_compat.queue.group_reader import BLOCK_SIZE, HAS_IDS, GroupReader, first_id_of, index_of
from nsq_compat.queue.segment import Segment

_BLOCK: Final = BLOCK_SIZE // 4
_TAIL: Final = 1 << 10
"""Bytes read of a group whose size is not known yet; enough for all of a small one."""
_GAP: Final = 1 << 12
"""Bytes between two wanted groups that are rather read than sought over."""
_ID_BEGIN: Final = HEADER_SIZE + MESSAGE_HEADER.offset("id")
_ID_SIZE: Final = 16


def shares(
    segments: Sequence[Segment], chosen: Iterable[Segment], ids: Sequence[bytes], damage: Damage
) -> Iterator[tuple[Segment, Sequence[bytes]]]:
    """For each of the chosen segments the part of the ids that is in it and not in one of the others."""
    firsts = [(first_id_of(segment, damage), segment) for segment in segments]
    begins = [first for first, _ in firsts if first is not None]
    asked = frozenset(chosen)
    for first, segment in firsts:
        if segment not in asked:
            continue
        if first is None:
            yield segment, ()
            continue
        place = bisect_left(begins, first)
        end = bisect_left(ids, begins[place + 1]) if place + 1 < len(begins) else len(ids)
        yield segment, ids[bisect_left(ids, first) : end]


def fetch_at(segment: Segment, wanted: Sequence[tuple[int, bytes]]) -> dict[bytes, bytes]:
    """The frames of messages by the (sorted) offsets of their groups, by id; neighbours are read together."""
    found: dict[bytes, bytes] = {}
    ids = {number for _, number in wanted}
    start, count = 0, len(wanted)
    while start < count:
        first = last = wanted[start][0]
        stop = start + 1
        while stop < count and (following := wanted[stop][0]) - last <= _GAP and following - first <= _BLOCK:
            last = following
            stop += 1
        block = segment.pread(min(last + _TAIL, segment.end) - first, first)
        for offset, number in wanted[start:stop]:
            if number not in found:
                _read_group(segment, block, offset - first, offset, ids, found)
        start = stop
    return found


def _read_group(
    segment: Segment, block: bytes, at: int, offset: int, ids: set[bytes], found: dict[bytes, bytes]
) -> None:
    """What is wanted of the group at `block[at:]`, which is at `offset` of the file, if the group is sound."""
    header = decode_header(block, at, offset)
    if header is None or header.kind not in HAS_IDS or header.end > segment.end:
        return
    if at + header.end - offset > len(block):
        block, at = segment.pread(header.end - offset, offset), 0
    payload = at + header.payload_begin - offset
    end = at + header.payload_end - offset
    if len(block) < end or crc32c(block[payload:end]) != header.payload_crc:
        return
    if header.record_count == 1:
        frame = block[payload:end]
        found[message_id(frame)] = frame
        return
    for frame in cut_frames(block, at + header.frames_begin - offset, end, header.record_count):
        if (number := message_id(frame)) in ids:
            found[number] = frame


def fetch_from(segment: Segment, ids: Sequence[bytes], damage: Damage) -> dict[bytes, bytes]:
    """The frames of those ids that can be read in the segment, by id."""
    found: dict[bytes, bytes] = {}
    for span, wanted in spans_of(segment, ids, damage):
        offsets = locate_in(segment, span, wanted)
        found |= fetch_at(segment, sorted((offset, number) for number, offset in offsets.items()))
        if missing := wanted - found.keys():
            found |= _search(segment, span, missing, damage)
    return found


def spans_of(segment: Segment, ids: Iterable[bytes], damage: Damage) -> Iterator[tuple[tuple[int, int], set[bytes]]]:
    """Between which offsets the groups of these ids begin, in the order of the log, and which ids they are."""
    index = index_of(segment, damage)
    spans: dict[tuple[int, int], set[bytes]] = {}
    for each in ids:
        spans.setdefault(index.span_of_id(each), set()).add(each)
    yield from spans.items()


def locate_in(segment: Segment, span: tuple[int, int], wanted: set[bytes]) -> dict[bytes, int]:
    """The offsets of the groups these messages are in, by id. Stops at whatever is damaged."""
    found: dict[bytes, int] = {}
    base, stop = span
    stop = min(stop, segment.end)
    block = b""
    at, missing = 0, len(wanted)
    while missing > 0 and base + at < stop:
        if at + _ID_BEGIN + _ID_SIZE > len(block):
            base, at = base + at, 0
            block = segment.pread(min(stop - base + _TAIL, _BLOCK + _TAIL, segment.end - base), base)
        offset = base + at
        if len(block) - at < HEADER_SIZE:
            break
        magic, header_crc, _, _, _, size, count, kind = unpack_header(block, at)
        if magic != GROUP_MAGIC:
            break
        if count == 1:
            if kind in HAS_IDS and (number := block[at + _ID_BEGIN : at + _ID_BEGIN + _ID_SIZE]) in wanted:
                found[number] = offset
                missing -= 1
            at += HEADER_SIZE + size
            continue
        if crc32c(block[at + MARK_SIZE : at + HEADER_SIZE]) != header_crc ^ (offset & LOW_32):
            break
        header = decode_header(block, at, offset)
        if header is None:
            break
        if header.end > base + len(block):
            base, at = offset, 0
            block = segment.pread(header.end - offset, offset)
            if len(block) < header.end - offset:
                break
        frames_begin, end = at + header.frames_begin - offset, at + header.payload_end - offset
        if kind in HAS_IDS:
            if crc32c(block[at + HEADER_SIZE : end]) != header.payload_crc:
                break
            for frame in cut_frames(block, frames_begin, end, count):
                if (number := message_id(frame)) in wanted:
                    found[number] = offset
                    missing -= 1
        at += header.end - offset
    return found


def _search(segment: Segment, span: tuple[int, int], wanted: set[bytes], damage: Damage) -> dict[bytes, bytes]:
    """What can be read of these messages past damage, which is counted."""
    found: dict[bytes, bytes] = {}
    begin, end = span
    reader = GroupReader(segment, damage, begin)
    while len(found) < len(wanted) and reader.offset < end and (groups := reader.read(_BLOCK)):
        for group in groups:
            if group.kind in HAS_IDS:
                found.update((each, frame) for frame in group.frames if (each := message_id(frame)) in wanted)
    return found
