"""Finding messages in a log's segments by their ids, which grow with the log.

`ids` are sorted everywhere here. All of it raises ``OSError``.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from nsq_compat.protocol.message import message_id
from nsq_compat.queue.damage import Damage
from nsq_compat.queue.group_reader import BLOCK_SIZE, HAS_IDS, GroupReader, first_id_of, index_of
from nsq_compat.queue.segment import Segment

_BLOCK: Final = BLOCK_SIZE // 4


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


def fetch_from(segment: Segment, ids: Sequence[bytes], damage: Damage) -> dict[bytes, bytes]:
    """The frames of those ids that can be read in the segment, by id."""
    index = index_of(segment, damage)
    spans: dict[tuple[int, int], set[bytes]] = {}
    for each in ids:
        spans.setdefault(index.span_of_id(each), set()).add(each)
    found: dict[bytes, bytes] = {}
    for (begin, end), wanted in spans.items():
        reader = GroupReader(segment, damage, begin)
        missing = len(wanted)
        while missing and reader.offset < end and (groups := reader.read(_BLOCK)):
            for group in groups:
                if group.kind in HAS_IDS:
                    some = {each: frame for frame in group.frames if (each := message_id(frame)) in wanted}
                    found |= some
                    missing -= len(some)
    return found
