"""Checks at start that the log holds every message that the checkpoint promises and that is not finished.

The audit reads the sizes and headers of the segments, the last messages of each segment that is still needed, and the
ids of retained messages. Missing messages are counted, logged, and removed from the channels' states, so that depths
are right. Damage between sound groups is found, and counted, when it is read.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from nsq_compat.log.checkpoint import ChannelState, TopicState, entry_id
from nsq_compat.log.damage import Damage, uncovered
from nsq_compat.log.group_reader import MESSAGE_KINDS, GroupReader, first_id_of
from nsq_compat.log.reading import LogEnd
from nsq_compat.log.segment import FIRST_GROUP, Segment
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol.message import message_id
from nsq_compat.protocol.storage_schema import MESSAGES

_LOOK_BACK: Final = (1 << 16, 1 << 18, 1 << 20, 1 << 62)
"""Bytes read from the end of a segment to find its last messages: the next step if one does not suffice."""
_NO_ID: Final = b""


class Missing(NamedTuple):
    """A range of message numbers that no segment contains, and where they should be."""

    begin: int
    end: int
    path: str
    where: str


def audit(log: TopicLog, last: TopicState | None, streams: Callable[[], Sequence[tuple[ChannelState, int]]]) -> None:
    """Remove from the states of channels and topic the messages that the log has lost. Raises ``OSError``.

    `streams` returns each state and the number at which the stream ends for it. It is called again for each state: a
    channel's stream ends at the position of the topic's own state, which comes first and may move.
    """
    states = streams()
    first = min((state.position for state, stop in states if state.position < stop), default=None)
    if last is not None:
        _report_short_file(log, last.end)
    if first is not None:
        for missing in _missing_numbers(log, last, first):
            for index in range(len(states)):
                _remove_numbers(missing, *streams()[index], log.damage)
    if last is not None and not last.incomplete:
        _remove_ids(log, [state for state, _ in states])


def _report_short_file(log: TopicLog, end: LogEnd) -> None:
    if not end.offset:
        return
    path = log.segment_path(end.segment)
    segment = next((each for each in log.segments if each.number == end.segment), None)
    if segment is None:
        log.damage.note(path, f"is missing; the checkpoint says that it has {end.offset} bytes")
    elif segment.end < end.offset:
        log.damage.note(path, f"has {segment.end} bytes; the checkpoint says that it has {end.offset}")


# --- Numbered messages ------------------------------------------------------------------------------------------------


def _missing_numbers(log: TopicLog, last: TopicState | None, first: int) -> Iterator[Missing]:
    """The missing numbers from `first` on."""
    complete_from = log.bounds.complete_from
    for missing in _gaps_between(log.segments, log.folder, last.end if last is not None else None, first):
        begin = missing.begin if _is_cut(log, last) else max(missing.begin, complete_from)
        if begin < missing.end:
            yield missing._replace(begin=begin)


def _is_cut(log: TopicLog, last: TopicState | None) -> bool:
    """Whether the last segment that the checkpoint knows is missing or shorter than it says."""
    if last is None or not last.end.offset:
        return False
    return not any(each.number == last.end.segment and each.end >= last.end.offset for each in log.segments)


def _gaps_between(segments: Sequence[Segment], folder: str, end: LogEnd | None, first: int) -> Iterator[Missing]:
    oldest = segments[0].first_seq if segments else (end.seq if end is not None else first)
    if first < oldest:
        yield Missing(first, oldest, folder, "its beginning: a file is missing")
    for segment, following in pairwise(segments):
        is_next = following.number == segment.number + 1
        # A released segment has no message from `first` on, but what is missing behind it may have had some.
        nothing_lost = segment.released and is_next and not following.header_lost
        if following.first_seq > first and not nothing_lost:
            where = "its end" if is_next else "its end: the next file is missing"
            yield from _missing_behind(segment, segment.end, following.first_seq, first, where)
    if end is not None and segments and segments[-1].number <= end.segment and end.seq > first:
        segment = segments[-1]
        limit = end.offset if segment.number == end.segment else segment.end
        where = "its end" if segment.number == end.segment else "its end: the next file is missing"
        yield from _missing_behind(segment, limit, end.seq, first, where)


def _missing_behind(segment: Segment, limit: int, seq: int, first: int, where: str) -> Iterator[Missing]:
    """The numbers up to `seq` that follow the last message in the segment's first `limit` bytes."""
    if seq > segment.first_seq:
        found = max(_last_in(segment, limit, seq).seq, segment.first_seq, first)
        if found < seq:
            yield Missing(found, seq, segment.path, where)


def _remove_numbers(missing: Missing, state: ChannelState, stop: int, damage: Damage) -> None:
    begin, end = max(missing.begin, state.position), min(missing.end, stop)
    for lost in uncovered(state.gaps, begin, end):
        damage.report_range(missing.path, missing.where, *lost)
    if begin < end:
        state.skip(begin, end)


# --- Messages with an entry in the checkpoint -------------------------------------------------------------------------


def _remove_ids(log: TopicLog, states: Sequence[ChannelState]) -> None:
    wanted = sorted({entry_id(key) for state in states for key in state.entries})
    outside = set(_outside_segments(log.segments, wanted, log.damage)) if wanted else set()
    if not outside:
        return
    for ids in log.kept_ids():
        outside.difference_update(ids)
    if outside:
        log.damage.report_ids(log.folder, sorted(outside))
        for state in states:
            state.entries = [key for key in state.entries if entry_id(key) not in outside]


def _outside_segments(segments: Sequence[Segment], ids: Sequence[bytes], damage: Damage) -> Iterator[bytes]:
    """The (sorted) ids that are not between the first and the last id of any segment."""
    done = 0
    firsts = [(first, each) for each in segments if (first := first_id_of(each, damage)) is not None]
    for index, (first, segment) in enumerate(firsts):
        begin = bisect_left(ids, first)
        yield from ids[done:begin]
        done = max(done, begin)
        following = firsts[index + 1][0] if index + 1 < len(firsts) else None
        share_end = len(ids) if following is None else bisect_left(ids, following)
        if begin < share_end:
            last_id = _last_in(segment, segment.end, 1 << 64, any_kind=True).id
            done = min(max(done, bisect_right(ids, last_id)), share_end)
    yield from ids[done:]


# --- The end of a segment ---------------------------------------------------------------------------------------------


class _Last(NamedTuple):
    seq: int
    """The number after the last numbered message; 0 if there is none."""
    id: bytes
    """The id of the last message of any kind."""


def _last_in(segment: Segment, limit: int, seq: int, any_kind: bool = False) -> _Last:
    """The last message that begins before `limit` and has a number below `seq`."""
    limit = min(limit, segment.end)
    for size in _LOOK_BACK:
        reader = GroupReader(segment, Damage(quiet=True))
        if size < limit - FIRST_GROUP:
            reader.seek(limit - size)
        found = _last_from(reader, limit, seq)
        if found.seq or (any_kind and found.id) or size >= limit:
            break
    return found


def _last_from(reader: GroupReader, limit: int, seq: int) -> _Last:
    found_seq, found_id = 0, _NO_ID
    while reader.offset < limit and (groups := reader.read()):
        for group in groups:
            if group.kind == MESSAGES and group.first_seq < seq:
                found_seq = group.first_seq + len(group.frames)
            if group.kind in MESSAGE_KINDS:
                found_id = message_id(group.frames[-1])
    return _Last(found_seq, found_id)
