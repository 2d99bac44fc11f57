"""Restores the state of a topic and its channels from the last checkpoint and the log after it.

The log after the checkpoint is replayed: messages only move the end of the stream, deferred messages are entered in the
states that received them, and control records (channels created, deleted, emptied, pauses) are applied again.

Without a checkpoint the whole log is replayed. If old segments were deleted, the log no longer shows which messages
each channel still needs, so every channel gets all of them.

The audit then checks that the log has every unfinished message that the checkpoint requires. It reads the sizes and
headers of the segments, the last messages of each segment that is still needed, and the ids of kept messages.
Missing messages are counted, logged, and removed from the channels' states, so that depths are right. Damage between
sound groups is found, and counted, when it is read.
"""

import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, pairwise
from typing import Final, NamedTuple

from nsq_compat.log.checkpoint import (
    ENTRY,
    BadCheckpoint,
    ChannelState,
    TopicState,
    entry_id,
    immediate_entries,
    key_location,
    pack_key,
    read_checkpoint,
)
from nsq_compat.log.control_log import Requeued, decode_move
from nsq_compat.log.damage import Damage, uncovered
from nsq_compat.log.files import Files
from nsq_compat.log.group_reader import MESSAGE_KINDS
from nsq_compat.log.migration import version_1_files
from nsq_compat.log.offsets import OffsetReader, oldest
from nsq_compat.log.reading import LogEnd, readers_from_end, split_by_segment
from nsq_compat.log.segment import NOWHERE, Group, Segment, locations_of
from nsq_compat.log.topic_log import DEFAULT_SEGMENT_SIZE, TopicLog
from nsq_compat.protocol import storage_schema as records
from nsq_compat.protocol.errors import quote
from nsq_compat.protocol.message import attempts, message_id, message_ids, with_attempts
from nsq_compat.protocol.names import is_ephemeral, is_valid_name

_NS_PER_SECOND = 1_000_000_000
_NO_ID = b"0" * 16

Sort = Callable[[Iterable[bytes]], list[bytes]]


class _History:
    """Applies the groups of a log to a state."""

    def __init__(self, topic: TopicState) -> None:
        self.topic = topic
        self.seq = topic.end.seq
        self.requeued = Requeued()

    def messages(self, group: Group) -> None:
        self.seq = max(self.seq, group.first_seq + len(group.frames))
        self.topic.last_id = max(self.topic.last_id, message_id(group.frames[-1]))

    def deferred(self, group: Group) -> None:
        topic = self.topic
        if group.due_ns / _NS_PER_SECOND < topic.clock_offset:
            _use_unix_time(topic)
        due = group.due_ns / _NS_PER_SECOND - topic.clock_offset
        receivers = [topic.held] if topic.held is not None else list(topic.channels.values())
        if topic.everything is not None:
            receivers.append(topic.everything)
        locations = locations_of(group.place, group.frames) if group.place else [NOWHERE] * len(group.frames)
        for each_id, location in zip(message_ids(group.frames), locations, strict=True):
            topic.last_id = max(topic.last_id, each_id)
            for state in receivers:
                state.entries.append(pack_key(due, len(state.entries), each_id, 1, location))

    def channel_created(self, group: Group) -> None:
        topic, name = self.topic, group.frames[0].decode("ascii")
        if name in topic.channels:
            return
        state = ChannelState(group.first_seq)
        if topic.held is not None and not topic.held_back:
            state, topic.held = topic.held, None  # the first channel receives the topic's messages
        if not is_ephemeral(name):  # an ephemeral channel and its messages ended with the process
            topic.channels[name] = state
            topic.gone.discard(name)

    def channel_deleted(self, group: Group) -> None:
        topic, name = self.topic, group.frames[0].decode("ascii")
        topic.channels.pop(name, None)
        self.requeued.forget(name)
        topic.gone.add(name)
        if not topic.channels and topic.held is None:
            topic.held = ChannelState(group.first_seq)

    def channel_emptied(self, group: Group) -> None:
        topic, name = self.topic, group.frames[0].decode("ascii")
        self.requeued.forget(name)
        if name in topic.channels:
            topic.channels[name] = ChannelState(topic.held.position if topic.held is not None else group.first_seq)

    def channel_moved(self, group: Group) -> None:
        move = decode_move(group.frames[0])
        state = self.topic.channels.get(move.channel)
        if state is not None:
            if move.drops:
                self.requeued.forget(move.channel)
            self.requeued.note_move(move.channel)
            move.apply(state)

    def topic_emptied(self, group: Group) -> None:
        topic = self.topic
        if topic.held is not None:
            for state in topic.channels.values():
                state.skip([(topic.held.position, group.first_seq)])
            topic.held = ChannelState(group.first_seq)

    def paused(self, group: Group) -> None:
        """The topic is paused, or awaits its channels."""
        setattr(self.topic, _REASONS[group.kind], True)
        if self.topic.held is None:
            self.topic.held = ChannelState(group.first_seq)

    def unpaused(self, group: Group) -> None:
        topic = self.topic
        setattr(topic, _REASONS[group.kind], False)
        if topic.held is not None and topic.channels and not topic.held_back:
            for state in topic.channels.values():
                state.entries += topic.held.entries
            topic.held = None

    def has_headers(self, group: Group) -> None:
        self.topic.has_headers = True

    def publish_ids(self, group: Group) -> None:
        """``queue.publish_ids`` reads these, also earlier ones."""


_REPLAY = {
    records.MESSAGES: _History.messages,
    records.DEFERRED: _History.deferred,
    records.REQUEUED: lambda history, group: history.requeued.add(group.frames[0]),
    records.CHANNEL_CREATED: _History.channel_created,
    records.CHANNEL_DELETED: _History.channel_deleted,
    records.CHANNEL_EMPTIED: _History.channel_emptied,
    records.CHANNEL_MOVED: _History.channel_moved,
    records.TOPIC_EMPTIED: _History.topic_emptied,
    records.TOPIC_PAUSED: _History.paused,
    records.TOPIC_UNPAUSED: _History.unpaused,
    records.TOPIC_AWAITS_CHANNELS: _History.paused,
    records.TOPIC_KNOWS_CHANNELS: _History.unpaused,
    records.TOPIC_HAS_HEADERS: _History.has_headers,
    records.PUBLISH_IDS: _History.publish_ids,
}
_REASONS = {
    records.TOPIC_PAUSED: "paused",
    records.TOPIC_UNPAUSED: "paused",
    records.TOPIC_AWAITS_CHANNELS: "awaits_channels",
    records.TOPIC_KNOWS_CHANNELS: "awaits_channels",
}


def recover(last: TopicState | None, log: TopicLog, sort: Sort = sorted) -> TopicState:
    """Replay the log from the checkpoint `last` on, or all of it if that is None, and audit it. Raises ``OSError``.

    The channel states of `last` are changed, and become those of the result. `sort` sorts ids.
    """
    if last is None:
        topic = _state_without_checkpoint(log)
    else:
        topic = replace(last, channels=dict(last.channels))
        topic.paused = last.paused or (topic.held is not None and bool(topic.channels) and not topic.awaits_channels)
    log.complete_from = topic.end.seq if topic.incomplete else 0
    log.emptied_at = topic.emptied_at
    kept = {message_id(frame): attempts(frame) for frame in log.kept.frames()} if last is None else {}
    history = _History(topic)
    for group in log.recovered():
        topic.is_current = False
        if group.kind == records.TOPIC_EMPTIED:
            log.emptied_at = group.offset
        if group.kind != records.DEFERRED:
            # At level memory, numbers may have been used for messages that are not in the log.
            history.seq = max(history.seq, group.first_seq)
        try:
            _check_channel(group)
            _REPLAY[group.kind](history, group)
        except (ValueError, IndexError, struct.error) as error:  # a sound group that no nsqd wrote, as in a forged copy
            log.damage.report(log.folder, f"a record about a channel ({error})", 1)
        if kept and group.kind in MESSAGE_KINDS:
            for each_id in message_ids(group.frames):
                kept.pop(each_id, None)
    if (topic.everything is not None and not log.is_whole) or log.damage.records:
        topic.has_headers = True  # the record that says so may be lost
    topic.end = log.end._replace(seq=max(history.seq, log.end.seq))
    if topic.everything is not None and not log.is_whole:
        _give_all_messages_to_all_channels(topic, topic.everything, kept, history.requeued)
    if history.requeued.channels:  # applied last, because the messages may be anywhere in the replayed part of the log
        if history.requeued.earliest_due() <= topic.clock_offset:
            _use_unix_time(topic)
        history.requeued.apply(topic.channels, topic.clock_offset, log)
    _audit(log, last, topic, sort)
    topic.is_current = topic.is_current and not log.damage.records  # else every start would report the loss again
    return topic


def _check_channel(group: Group) -> None:
    """Raises ``ValueError`` if the channel of a group that may make one has an invalid name."""
    if group.kind in (records.CHANNEL_CREATED, records.REQUEUED):
        frame = group.frames[0]
        name = frame[1 : 1 + frame[0]] if group.kind == records.REQUEUED else frame
        if not is_valid_name(name):
            raise ValueError(f"{quote(name)} is no name of one")


def _state_without_checkpoint(log: TopicLog) -> TopicState:
    """The state before the replay, if there is no checkpoint."""
    oldest = log.oldest
    return TopicState(
        log.end._replace(seq=oldest),
        clock_offset=0.0,
        last_id=_NO_ID,
        held=ChannelState(oldest),
        everything=ChannelState(oldest),
        is_current=False,
    )


def _give_all_messages_to_all_channels(
    topic: TopicState, everything: ChannelState, kept: dict[bytes, int], requeued: Requeued
) -> None:
    everything.entries += immediate_entries(sorted(kept.items()))
    topic.last_id = max(topic.last_id, max(kept, default=_NO_ID))
    names = dict.fromkeys((*topic.channels, *requeued.channels))
    topic.channels = {name: ChannelState(everything.position, list(everything.entries)) for name in names}
    topic.held = None if topic.channels else everything
    topic.paused = topic.awaits_channels = False


def _use_unix_time(topic: TopicState) -> None:
    """Make due times relative to 1970: the wall clock was set back, so one is before the monotonic clock's zero."""
    for state in topic.backlogs:
        state.entries = [_shifted(key, topic.clock_offset) for key in state.entries]
    topic.clock_offset = 0.0


def _shifted(key: bytes, by: float) -> bytes:
    due, serial, each_id, attempt = ENTRY.unpack_from(key)
    return pack_key(due + by if due else 0.0, serial, each_id, attempt, key_location(key))


# --- The audit --------------------------------------------------------------------------------------------------------


class _Missing(NamedTuple):
    """A range of message numbers that no segment contains, and where they should be."""

    begin: int
    end: int
    path: str
    where: str


def _audit(log: TopicLog, last: TopicState | None, topic: TopicState, sort: Sort) -> None:
    """Remove from the states of `topic` the messages that the log has lost. Raises ``OSError``."""
    end = last.end if last is not None else None
    is_cut = end is not None and _is_cut(log, end)
    first = min((state.position for _, state, stop in topic.streams if state.position < stop), default=None)
    if first is not None:
        for missing in _missing_numbers(log, end, first if is_cut else max(first, log.complete_from)):
            for index in range(len(topic.streams)):
                # A channel's stream ends at the position of the topic's own state, which comes first and may move.
                _, state, stop = topic.streams[index]
                begin, end_of_part = max(missing.begin, state.position), min(missing.end, stop)
                for lost in uncovered(state.gaps, begin, end_of_part):
                    log.damage.report_range(missing.path, missing.where, *lost)
                if begin < end_of_part:
                    state.skip([(begin, end_of_part)])
    if last is not None and not last.incomplete:
        _remove_ids(log, topic.backlogs, sort)


def _is_cut(log: TopicLog, end: LogEnd) -> bool:
    """Report if the last segment in the checkpoint is missing, or shorter than recorded there."""
    path = log.path_of("log", end.segment)
    segment = next((each for each in log.segments if each.number == end.segment), None)
    if not end.offset or (segment is not None and segment.end >= end.offset):
        return False
    if segment is None:
        log.damage.note(path, f"is missing; the checkpoint says that it has {end.offset} bytes")
    else:
        log.damage.note(path, f"has {segment.end} bytes; the checkpoint says that it has {end.offset}")
    return True


def _missing_numbers(log: TopicLog, end: LogEnd | None, first: int) -> Iterator[_Missing]:
    """The missing numbers from `first` on."""
    segments = log.segments
    oldest = segments[0].first_seq if segments else (end.seq if end is not None else first)
    if first < oldest:
        yield _Missing(first, oldest, log.folder, "its beginning: a file is missing")
    for segment, following in pairwise(segments):
        is_next = following.number == segment.number + 1
        # A released segment has no message from `first` on, but missing segments after it may have had some.
        nothing_lost = segment.released and is_next and not following.header_lost
        if following.first_seq > first and not nothing_lost:
            yield from _missing_behind(segment, segment.end, following.first_seq, first, is_next)
    if end is not None and segments and segments[-1].number <= end.segment and end.seq > first:
        segment = segments[-1]
        is_last = segment.number == end.segment
        yield from _missing_behind(segment, end.offset if is_last else segment.end, end.seq, first, is_last)


def _missing_behind(segment: Segment, limit: int, seq: int, first: int, has_next: bool) -> Iterator[_Missing]:
    """The numbers up to `seq` that follow the last message in the segment's first `limit` bytes."""
    if seq > segment.first_seq:
        found = max(_last_in(segment, limit, seq)[0], segment.first_seq, first)
        if found < seq:
            yield _Missing(found, seq, segment.path, "its end" if has_next else "its end: the next file is missing")


def _remove_ids(log: TopicLog, states: Sequence[ChannelState], sort: Sort) -> None:
    """Remove the entries of messages that are neither kept nor between the first and last id of a segment."""
    lost = {entry_id(key) for state in states for key in state.entries}
    for segment, ids in split_by_segment(log.segments, sort(lost), log.damage) if lost else ():
        if ids:
            _, last_id = _last_in(segment, segment.end, 1 << 64, any_kind=True)
            lost.difference_update(ids[: bisect_right(ids, last_id)])
    if lost:
        lost.difference_update(map(message_id, log.kept.frames()))
    if lost:
        log.damage.report_ids(log.folder, sorted(lost))
        for state in states:
            state.entries = [key for key in state.entries if entry_id(key) not in lost]


def _last_in(segment: Segment, limit: int, seq: int, any_kind: bool = False) -> tuple[int, bytes]:
    """The last message that begins before `limit` and has a number below `seq`.

    Returns the number after it, 0 if there is none, and the id of the last message of any kind.
    """
    limit = min(limit, segment.end)
    found_seq, found_id = 0, b""
    for reader in readers_from_end(segment, limit, Damage(quiet=True)):
        while reader.offset < limit and (groups := reader.read()):
            for group in groups:
                if group.kind == records.MESSAGES and group.first_seq < seq:
                    found_seq = group.first_seq + len(group.frames)
                if group.kind in MESSAGE_KINDS:
                    found_id = message_id(group.frames[-1])
        if found_seq or (any_kind and found_id):
            break
    return found_seq, found_id


# --- Without a daemon -------------------------------------------------------------------------------------------------

_FETCHED_AT_ONCE: Final = 1024


class StoredTopic:
    """A topic's log and recovered state, read by a tool, an import or a take-over. Must be closed. Raises ``OSError``.

    No other process may use the folder meanwhile. A damaged checkpoint is described in `checkpoint_error`; damage in
    the log is counted in `log`. `migrates`: as for ``TopicLog``; `sort`: as for ``recover``.
    """

    def __init__(
        self,
        files: Files,
        folder: str,
        segment_size: int = DEFAULT_SEGMENT_SIZE,
        *,
        migrates: bool = False,
        sort: Sort = sorted,
    ) -> None:
        self.checkpoint_error = ""
        self._files = files
        last = None
        try:
            last = read_checkpoint(files, folder)
        except BadCheckpoint as error:
            self.checkpoint_error = str(error)
        start = last.end if last is not None else None
        self.has_checkpoint = last is not None
        self.log = TopicLog(files, folder, segment_size=segment_size, start=start, migrates=migrates)
        try:
            self.recovered = recover(last, self.log, sort)
            self.state = replace(self.recovered, everything=None)
        except OSError:
            self.log.close()
            raise

    def __enter__(self) -> "StoredTopic":
        return self

    def __exit__(self, *_: object) -> None:
        self.log.close()

    def depths(self) -> dict[str | None, int]:
        """The number of messages by channel; None stands for the topic itself."""
        return {
            name: len(state.entries) + max(0, end - state.position - sum(high - low for low, high in state.gaps))
            for name, state, end in self.state.streams
        }

    def backlogs(self) -> Iterator[tuple[str | None, Iterator[bytes]]]:
        """By channel (None: the topic itself, first), the frames to deliver: unfinished ones, then the stream's."""
        for name, state, end in self.state.streams:
            yield name, chain(self._unfinished(state.entries), self._stream(state, end))

    def unfinished(self, now_ns: int) -> Iterator[tuple[str | None, Iterator[tuple[int, bytes]]]]:
        """By channel (None: the topic, first), its messages: due times in nanoseconds (0: at once), and frames."""
        for name, state, end in self.state.streams:
            yield (
                name,
                chain(self._with_due_times(state.entries), self._replayed(state, now_ns), self._next(state, end)),
            )

    def read_needed(self) -> None:
        """Read all undelivered messages, so that `log` has counted the damaged ones."""
        end, states = self.state.end.seq, self.state.backlogs
        for state in states:
            for _ in self._unfinished(state.entries):
                pass
        for _ in self._stream(ChannelState(min((state.position for state in states), default=end)), end):
            pass

    @property
    def old_files(self) -> list[str]:
        """The segments that nsqd migrates at its next start. Raises ``OSError``."""
        names = [os.path.basename(each.path) for each in self.log.segments]
        return version_1_files(self._files, self.log.folder, names)

    def read_retained(self) -> tuple[int, int, list[tuple[int, int]]]:
        """Read all retained messages; returns their first offset, the next offset, and the ranges that are missing."""
        first = oldest(self.log)
        end = self.state.end.seq + self.log.deferred_count
        begin = following = first.offset if first is not None else end
        gaps: list[tuple[int, int]] = []
        reader = OffsetReader(self.log, begin)
        while groups := reader.read():
            for group in groups:
                if group.offset > following:
                    gaps.append((following, group.offset))
                following = group.offset + len(group.frames)
        if following < end:
            gaps.append((following, end))
        # At level memory, numbers are used for messages that are in no file.
        return begin, end, [] if self.state.incomplete or self.log.complete_from else gaps

    def _unfinished(self, entries: Iterable[bytes]) -> Iterator[bytes]:
        keys = iter(sorted(entries))
        while fetched := [ENTRY.unpack_from(key) for key in islice(keys, _FETCHED_AT_ONCE)]:
            found = self.log.fetch([each_id for _, _, each_id, _ in fetched])
            for _, _, each_id, attempt in fetched:
                if each_id in found:
                    yield with_attempts(found[each_id], attempt)

    def _with_due_times(self, entries: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
        keys = iter(sorted(entries, key=entry_id))  # they are kept in this order: a search by id reads few of them
        while some := list(islice(keys, _FETCHED_AT_ONCE)):
            frames = {message_id(frame): frame for frame in self._unfinished(some)}
            for due, _, each_id, _ in map(ENTRY.unpack_from, some):
                if each_id in frames:
                    yield int((due + self.state.clock_offset) * _NS_PER_SECOND) if due else 0, frames[each_id]

    def _replayed(self, state: ChannelState, now_ns: int) -> Iterator[tuple[int, bytes]]:
        """The messages that a rewound channel still has to deliver again."""
        replay = state.replay
        for begin, end in replay.ranges if replay is not None else ():
            assert replay is not None, "it has ranges"
            reader = OffsetReader(self.log, begin)
            while reader.offset < end and (groups := reader.read()):
                for group in groups:
                    due = group.due_ns if group.kind == records.DEFERRED else 0
                    for offset, frame in enumerate(group.frames[: max(0, end - group.offset)], group.offset):
                        if due <= replay.moved_ns:
                            yield 0, frame
                        elif replay.again_from <= offset < replay.again_to:
                            yield due if due > now_ns else 0, frame
                        # else it waits among the entries

    def _next(self, state: ChannelState, end: int) -> Iterator[tuple[int, bytes]]:
        return ((0, frame) for frame in self._stream(state, end))

    def _stream(self, state: ChannelState, end: int) -> Iterator[bytes]:
        position = state.position
        for gap, following in [*state.gaps, (end, end)]:
            reader = self.log.reader(position)
            while reader.seq < gap and (groups := reader.read()):
                for group in groups:
                    yield from group.frames[: max(0, gap - group.first_seq)]
            position = following
