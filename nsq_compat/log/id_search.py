"""Finding messages in a log's segments: where they are known to be, or by their ids, which grow with the log.

`ids` are sorted everywhere here. All of it raises ``OSError``.

What is read where it is known to be is checked like everything else that is read from a log. Whatever is wrong with it
is not reported here: it is left out, and the search by id, which knows how to read past damage, has the last word.
"""

import heapq
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Final

from google_crc32c import value as crc32c

from nsq_compat.log.damage import Damage
from nsq_compat.log.group import HEADER_SIZE, cut_frames, decode_header, unpack_header
from nsq_compat.log.group_reader import BLOCK_SIZE, HAS_IDS, GroupReader, first_id_of, index_of
from nsq_compat.log.segment import Segment
from nsq_compat.protocol.message import HEADER as MESSAGE_HEADER
from nsq_compat.protocol.message import message_id
from nsq_compat.protocol.storage_schema import GROUP_MAGIC

_BLOCK: Final = BLOCK_SIZE // 4
_TAIL: Final = 1 << 10
"""Bytes read of a group whose size is not known yet; enough for all of a small one."""
_GAP: Final = 1 << 12
"""Bytes between two wanted groups that are rather read than sought over."""
_ID_BEGIN: Final = HEADER_SIZE + MESSAGE_HEADER.offset("id")
_ID_END: Final = HEADER_SIZE + MESSAGE_HEADER.slices["id"].stop
_SIZE_FIELD: Final = 4
_SORTED_AT_ONCE: Final = 4096
_FIRST: Final = itemgetter(0)
_size_of: Final = struct.Struct(">I").unpack_from


def sorted_ids(ids: Iterable[bytes], pause: Callable[[], None]) -> list[bytes]:
    """Sort ids and drop duplicates. Of many, a few thousand at a time: `pause` is called in between."""
    remaining = iter(ids)
    pieces: list[list[bytes]] = []
    while piece := list(islice(remaining, _SORTED_AT_ONCE)):
        if pieces:
            pause()
        pieces.append(sorted(set(piece)))
    if len(pieces) < 2:
        return pieces[0] if pieces else []
    found: list[bytes] = []
    unique = map(_FIRST, groupby(heapq.merge(*pieces)))  # compiled, a generator expression is a list
    while piece := list(islice(unique, _SORTED_AT_ONCE)):
        found += piece
        pause()
    return found


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


def fetch_at(segment: Segment, wanted: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """The frames at these offsets that have these checksums; sorted, and neighbours are read together."""
    start, count = 0, len(wanted)
    while start < count:
        first = last = wanted[start][0]
        stop = start + 1
        while stop < count and (following := wanted[stop][0]) - last <= _GAP and following - first <= _BLOCK:
            last = following
            stop += 1
        block = segment.pread(max(min(last + _TAIL, segment.end) - first, 0), first)
        for offset, crc in wanted[start:stop]:
            frame = _frame_at(segment, block, offset - first, offset)
            if crc32c(frame) == crc:
                yield frame
        start = stop


def _frame_at(segment: Segment, block: bytes, at: int, offset: int) -> bytes:
    """What is at `block[at:]`, or at that offset of the file, if it were a frame."""
    if at + 4 > len(block):
        return b""
    size = _SIZE_FIELD + _size_of(block, at)[0]
    if at + size > len(block) and offset + size <= segment.end:
        return segment.pread(size, offset)
    return block[at : at + size]


def fetch_from(segment: Segment, ids: Sequence[bytes], damage: Damage) -> dict[bytes, bytes]:
    """The frames of those ids that can be read in the segment, by id."""
    found: dict[bytes, bytes] = {}
    for span, wanted in spans_of(segment, ids, damage):
        found.update((number, frame) for number, (_, frame) in find_in(segment, span, wanted).items())
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


def find_in(segment: Segment, span: tuple[int, int], wanted: set[bytes]) -> dict[bytes, tuple[int, bytes]]:
    """The offsets and frames of these messages, by id; only what is wanted is checked. Stops at whatever is damaged."""
    found: dict[bytes, tuple[int, bytes]] = {}
    base, stop = span
    stop = min(stop, segment.end)
    block = b""
    at = 0
    while len(found) < len(wanted) and base + at < stop:
        if at + _ID_END > len(block):
            base, at = base + at, 0
            block = segment.pread(min(stop - base + _TAIL, _BLOCK + _TAIL, segment.end - base), base)
            if len(block) < HEADER_SIZE:
                break
        magic, _, _, _, _, size, count, kind = unpack_header(block, at)
        if magic != GROUP_MAGIC:
            break
        if count == 1 and (kind not in HAS_IDS or block[at + _ID_BEGIN : at + _ID_END] not in wanted):
            at += HEADER_SIZE + size  # if that is damaged, no group begins there
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
        for frame in cut_frames(block, begin, end, count) if kind in HAS_IDS else ():
            if (number := message_id(frame)) in wanted:
                found[number] = base + begin, frame
            begin += len(frame)
        at = header.end - base
    return found


def _search(segment: Segment, span: tuple[int, int], wanted: set[bytes], damage: Damage) -> dict[bytes, bytes]:
    """What can be read of these messages past damage, which is counted."""
    found: dict[bytes, bytes] = {}
    begin, end = span
    reader = GroupReader(segment, damage, begin, counts_all=False)
    while len(found) < len(wanted) and reader.offset < end and (groups := reader.read(_BLOCK)):
        for group in groups:
            if group.kind in HAS_IDS:
                found.update((each, frame) for frame in group.frames if (each := message_id(frame)) in wanted)
    return found
