"""Where the numbers of an opened log stand: the first of each segment and the next to be given, from what is on disk.

Headers and groups may be damaged. A number that is too high is safe, one that is used a second time is not.
"""

import logging
from collections.abc import Sequence
from typing import Final

from nsq_compat.protocol.storage_schema import MESSAGES
from nsq_compat.queue.damage import Damage
from nsq_compat.queue.group_reader import GroupReader
from nsq_compat.queue.log_reader import LogEnd
from nsq_compat.queue.segment import FIRST_GROUP, Segment, SegmentHeader

log = logging.getLogger(__name__)

UNKNOWN: Final = (1 << 64) - 1


def number_segments(segments: Sequence[Segment], headers: Sequence[SegmentHeader | None]) -> None:
    """A segment whose header is damaged gets the number of its first message, at most too high: that is safe."""
    following = UNKNOWN
    for segment, header in zip(reversed(segments), reversed(headers), strict=True):
        segment.first_seq = following = header.first_seq if header else _first_seq_of(segment, following)


def _first_seq_of(segment: Segment, following: int) -> int:
    if segment.end > FIRST_GROUP:
        log.warning("LOG(%s): its header is damaged", segment.path)
    segment.lost_header = True
    reader = GroupReader(segment, Damage(quiet=True))
    while groups := reader.read():
        for group in groups:
            if group.kind == MESSAGES:
                return group.first_seq
    return following


def find_end(segments: Sequence[Segment], start: LogEnd | None) -> tuple[int, int | None]:
    """The next number, from the last segment that tells; and where in the last one an unfinished tail begins.

    What is missing before the end that a checkpoint knows is for others to find (``audit``, ``LogWalk``).
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
        known = segment.first_seq if segment.first_seq != UNKNOWN else 0
        seq = max(seq, reader.next_seq, known)
        if known or reader.next_seq or begin > FIRST_GROUP:
            break
    for segment in segments:
        segment.first_seq = min(segment.first_seq, seq)
    return seq, tail
