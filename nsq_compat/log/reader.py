"""Reading a log from one segment to the next: everything, or the immediate messages by their numbers.

``number_segments`` and ``find_end`` say, when a log is opened, where its numbers stand: the first of each segment and
the next to be given. Headers and groups may be damaged. A number that is too high is safe; a number that is used a
second time is not.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from nsq_compat.log.damage import Damage
from nsq_compat.log.group import MESSAGES, Group
from nsq_compat.log.group_reader import BLOCK_SIZE, HAS_IDS, GroupReader, index_of
from nsq_compat.log.memory_tail import MemoryTail
from nsq_compat.log.segment import FIRST_GROUP, Segment, SegmentHeader

log = logging.getLogger(__name__)

UNKNOWN: Final = (1 << 64) - 1
"""The number of a segment's first message before ``number_segments``."""
_LOOK_BACK: Final = (1 << 16, 1 << 18, 1 << 20, 1 << 21)
"""Bytes from the end of a segment in which the last messages are looked for, more and more of them."""
_FEW_SEGMENTS: Final = 3


class LogEnd(NamedTuple):
    """A place between two groups: a segment's number (0: before the first), an offset, the next message's number."""

    segment: int
    offset: int
    seq: int


class LogBounds:
    """What is known of a log's numbers besides what is in its files.

    All numbers from `complete_from` up to `next_seq()` were given to messages that were written to the log.
    """

    def __init__(self, next_seq: Callable[[], int]) -> None:
        self.complete_from = 0
        self.next_seq = next_seq


class LogWalk:
    """Through the groups of a log from one segment to the next, as far as they were ever acknowledged.

    `counts_all` is as ``GroupReader`` has it.
    """

    def __init__(
        self, segments: Sequence[Segment], damage: Damage, bounds: LogBounds, *, counts_all: bool = False
    ) -> None:
        self._segments = segments  # the log's own, which changes
        self._damage = damage
        self._bounds = bounds
        self._counts_all = counts_all
        self._segment: Segment | None = None
        self._reader: GroupReader | None = None
        self._seq = 0  # behind what was passed

    @property
    def is_lost(self) -> bool:
        """Whether the segment it was in is no more, or it never began."""
        return self._segment is None or self._segment.removed

    def begin_at(self, start: LogEnd | None) -> None:
        """At that place, or at the oldest group."""
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

    def begin_with(self, seq: int) -> None:
        """Where the message of that number is, or before."""
        segments = self._segments
        if segments:
            place = max(bisect_right(segments, seq, key=lambda segment: segment.first_seq) - 1, 0)
            segment = segments[place]
            offset, first = index_of(segment, self._damage).place_of_seq(seq)
            self._lose(segment, "before", seq, segment.first_seq)
            self._seq = max(seq, segment.first_seq)
            self._enter(segment, offset, segment.first_seq if offset == FIRST_GROUP else first)

    def read(self, max_bytes: int) -> list[Group]:
        """The next groups; nothing at the end, which may move."""
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

    def _following(self) -> Segment | None:
        assert self._segment
        segments = self._segments
        if segments and segments[-1] is self._segment:
            return None
        place = bisect_right(segments, self._segment.number, key=lambda segment: segment.number)
        return segments[place] if place < len(segments) else None

    def _cross(self, following: Segment) -> None:
        assert self._segment is not None
        if not self._segment.released:  # else nothing is missing
            self._settle(following, "before", following.first_seq)
        self._seq = following.first_seq
        self._enter(following, FIRST_GROUP, following.first_seq)

    def _end(self) -> None:
        """Nothing follows for now."""
        assert self._segment is not None
        self._settle(self._segment, "its end", self._bounds.next_seq())
        self._seq = max(self._seq, self._bounds.next_seq())

    def _settle(self, segment: Segment, place: str, seq: int) -> None:
        """Whatever comes next has at least this number: what is missing before it is lost."""
        assert self._reader is not None
        if self._lose(segment, place, max(self._seq, self._reader.next_seq), seq):
            self._reader.suspect = None
        elif self._reader.suspect is not None:
            self._reader.settle(seq)

    def _lose(self, segment: Segment, place: str, begin: int, end: int) -> bool:
        """Count the numbers from `begin` up to `end`, as far as these were in the log. Whether any were."""
        begin = max(begin, self._bounds.complete_from)
        self._damage.lose(segment.path, place, begin, end)
        return begin < end

    def _enter(self, segment: Segment, offset: int, seq: int) -> None:
        self._segment = segment
        self._reader = GroupReader(segment, self._damage, offset, seq, self._counts_all)


def latest_groups(segments: Sequence[Segment], count: int, damage: Damage) -> list[Group]:
    """The last groups of messages, deferred ones too, oldest first: `count` messages, or what 2 MiB hold."""
    groups: list[Group] = []
    for segment in reversed(segments[-_FEW_SEGMENTS:]):
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
            found += (group for group in groups if group.kind in HAS_IDS)
        if _messages(found) >= count or size >= segment.end:
            break
    return found


def _messages(groups: Iterable[Group]) -> int:
    return sum(len(group.frames) for group in groups)


class LogReader:
    """Reads the immediate messages of a log, from a number on. `seq` is the number of the next one to come.

    `tail` holds the newest messages, if they are in no segment.
    """

    def __init__(self, walk: LogWalk, seq: int, tail: MemoryTail | None = None) -> None:
        self.seq = seq
        self._walk = walk
        self._tail = tail

    def read(self, max_bytes: int = BLOCK_SIZE) -> list[Group]:
        """The next messages, about `max_bytes` of them; nothing at the end, for the time being.

        Publishes that follow one another are one group here. Numbers may be left out: what was never logged, and what
        is damaged.
        """
        tail = self._tail
        if tail is not None and tail.count and self.seq >= tail.first_seq:
            return self._read_tail(tail, max_bytes)
        if self._walk.is_lost:
            self._walk.begin_with(self.seq)
        merged: list[Group] = []
        while not merged and (groups := self._walk.read(max_bytes)):
            self._merge(groups, merged)
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
