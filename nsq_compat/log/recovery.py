"""Restores the state of a topic and its channels from the last checkpoint and the log after it.

The log after the checkpoint is replayed: messages only move the end of the stream, deferred messages are entered in the
states that received them, and control records (channels created, deleted, emptied, pauses) are applied again.

Without a checkpoint the whole log is replayed. If old segments were deleted, the log no longer tells which channel
still needs which message, so every channel gets all of them.

A ``StoredTopic`` is a topic that a tool or an import reads from its folder, without a daemon.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import Final

from nsq_compat.log import checkpoint
from nsq_compat.log.audit import audit
from nsq_compat.log.checkpoint import (
    ENTRY,
    BadCheckpoint,
    ChannelState,
    TopicState,
    entries_at_once,
    key_location,
    pack_key,
)
from nsq_compat.log.control_log import Requeued
from nsq_compat.log.files import Files, read_file
from nsq_compat.log.group import NOWHERE, Group, locations_of
from nsq_compat.log.group_reader import MESSAGE_KINDS
from nsq_compat.log.storage import CHECKPOINT
from nsq_compat.log.topic_log import DEFAULT_SEGMENT_SIZE, TopicLog
from nsq_compat.protocol.message import attempts, message_id, message_ids, with_attempts
from nsq_compat.protocol.names import is_ephemeral
from nsq_compat.protocol.storage_schema import (
    CHANNEL_CREATED,
    CHANNEL_DELETED,
    CHANNEL_EMPTIED,
    DEFERRED,
    MESSAGES,
    REQUEUED,
    TOPIC_AWAITS_CHANNELS,
    TOPIC_EMPTIED,
    TOPIC_KNOWS_CHANNELS,
    TOPIC_PAUSED,
    TOPIC_UNPAUSED,
)

_NS_PER_SECOND = 1_000_000_000
_NO_ID = b"0" * 16


class _Replay:
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
            _count_from_1970(topic)
        due = group.due_ns / _NS_PER_SECOND - topic.clock_offset
        receivers = [topic.held] if topic.held is not None else list(topic.channels.values())
        if topic.everything is not None:
            receivers.append(topic.everything)
        locations = locations_of(group.place, group.frames) if group.place else [NOWHERE] * len(group.frames)
        for each_id, location in zip(message_ids(group.frames), locations, strict=True):
            topic.last_id = max(topic.last_id, each_id)
            for state in receivers:
                state.entries.append(pack_key(due, len(state.entries), each_id, 1, location))

    def was_requeued(self, group: Group) -> None:
        self.requeued.add(group.frames[0])

    def channel_created(self, group: Group) -> None:
        topic, name = self.topic, _name(group)
        if name in topic.channels:
            return
        state = ChannelState(group.first_seq)
        if topic.held is not None and not topic.held_back:
            state, topic.held = topic.held, None  # the first channel receives the topic's messages
        if not is_ephemeral(name):  # an ephemeral channel and its messages ended with the process
            topic.channels[name] = state
            topic.gone.discard(name)

    def channel_deleted(self, group: Group) -> None:
        topic, name = self.topic, _name(group)
        topic.channels.pop(name, None)
        self.requeued.forget(name)
        topic.gone.add(name)
        if not topic.channels and topic.held is None:
            topic.held = ChannelState(group.first_seq)

    def channel_emptied(self, group: Group) -> None:
        topic, name = self.topic, _name(group)
        self.requeued.forget(name)
        if name in topic.channels:
            topic.channels[name] = ChannelState(topic.held.position if topic.held is not None else group.first_seq)

    def topic_emptied(self, group: Group) -> None:
        topic = self.topic
        if topic.held is not None:
            for state in topic.channels.values():
                state.skip(topic.held.position, group.first_seq)
            topic.held = ChannelState(group.first_seq)

    def topic_paused(self, group: Group) -> None:
        self.topic.paused = True
        self._hold(group)

    def topic_unpaused(self, _: Group) -> None:
        self.topic.paused = False
        self._hand_over()

    def topic_awaits_channels(self, group: Group) -> None:
        self.topic.awaits_channels = True
        self._hold(group)

    def topic_knows_channels(self, _: Group) -> None:
        self.topic.awaits_channels = False
        self._hand_over()

    def _hold(self, group: Group) -> None:
        if self.topic.held is None:
            self.topic.held = ChannelState(group.first_seq)

    def _hand_over(self) -> None:
        topic = self.topic
        if topic.held is not None and topic.channels and not topic.held_back:
            for state in topic.channels.values():
                state.entries += topic.held.entries
            topic.held = None


_REPLAY = {
    MESSAGES: _Replay.messages,
    DEFERRED: _Replay.deferred,
    REQUEUED: _Replay.was_requeued,
    CHANNEL_CREATED: _Replay.channel_created,
    CHANNEL_DELETED: _Replay.channel_deleted,
    CHANNEL_EMPTIED: _Replay.channel_emptied,
    TOPIC_EMPTIED: _Replay.topic_emptied,
    TOPIC_PAUSED: _Replay.topic_paused,
    TOPIC_UNPAUSED: _Replay.topic_unpaused,
    TOPIC_AWAITS_CHANNELS: _Replay.topic_awaits_channels,
    TOPIC_KNOWS_CHANNELS: _Replay.topic_knows_channels,
}


def recover(last: TopicState | None, log: TopicLog) -> TopicState:
    """Replay the log from the checkpoint `last` on, or all of it if that is None, and audit it. Raises ``OSError``.

    The channel states of `last` are changed, and become those of the result.
    """
    topic = _nothing_known(log) if last is None else _as_of_checkpoint(last)
    log.bounds.complete_from = topic.end.seq if topic.incomplete else 0
    kept = {message_id(frame): attempts(frame) for frame in log.kept_frames()} if last is None else {}
    replay = _Replay(topic)
    for group in log.recovered():
        topic.is_current = False
        # At level memory, numbers may have been used for messages that are not in the log.
        replay.seq = max(replay.seq, group.first_seq)
        _REPLAY[group.kind](replay, group)
        if kept and group.kind in MESSAGE_KINDS:
            for each_id in message_ids(group.frames):
                kept.pop(each_id, None)
    topic.end = log.end._replace(seq=max(replay.seq, log.end.seq))
    if topic.everything is not None and not log.is_whole:
        _give_everything_to_all(topic, topic.everything, kept, replay.requeued)
    _defer_requeued(topic, replay.requeued, log)
    audit(log, last, lambda: topic.streams)
    topic.is_current = topic.is_current and not log.damaged_records  # else every start would report the loss again
    return topic


def _nothing_known(log: TopicLog) -> TopicState:
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


def _as_of_checkpoint(last: TopicState) -> TopicState:
    topic = replace(last, channels=dict(last.channels))
    holds = topic.held is not None and bool(topic.channels)
    topic.paused = last.paused or (holds and not topic.awaits_channels)
    return topic


def _defer_requeued(topic: TopicState, requeued: Requeued, log: TopicLog) -> None:
    """Apply REQ delays after the replay, because the messages may be anywhere in the replayed part of the log."""
    if requeued:
        if requeued.earliest_due() <= topic.clock_offset:
            _count_from_1970(topic)
        requeued.apply(topic.channels, topic.clock_offset, log)


def _give_everything_to_all(
    topic: TopicState, everything: ChannelState, kept: dict[bytes, int], requeued: Requeued
) -> None:
    everything.entries += entries_at_once(sorted(kept.items()))
    topic.last_id = max(topic.last_id, max(kept, default=_NO_ID))
    names = dict.fromkeys((*topic.channels, *requeued.names))
    topic.channels = {name: ChannelState(everything.position, list(everything.entries)) for name in names}
    topic.held = None if topic.channels else everything
    topic.paused = topic.awaits_channels = False


def _count_from_1970(topic: TopicState) -> None:
    """Make due times relative to 1970: the wall clock was set back, so one is before the monotonic clock's zero."""
    for state in topic.backlogs:
        state.entries = [_shifted(key, topic.clock_offset) for key in state.entries]
    topic.clock_offset = 0.0


def _shifted(key: bytes, by: float) -> bytes:
    due, serial, each_id, attempt = ENTRY.unpack_from(key)
    return pack_key(due + by if due else 0.0, serial, each_id, attempt, key_location(key))


def _name(group: Group) -> str:
    return group.frames[0].decode("ascii")


_FETCHED_AT_ONCE: Final = 1024


class StoredTopic:
    """A topic's log and recovered state, read from its folder. Must be closed. Raises ``OSError``.

    No other process may use the folder meanwhile. A damaged checkpoint is described in `checkpoint_error`; damage in
    the log is counted in `log`.
    """

    def __init__(self, files: Files, folder: str, segment_size: int = DEFAULT_SEGMENT_SIZE) -> None:
        self.checkpoint_error = ""
        last = self._last_checkpoint(files, folder)
        start = last.end if last is not None else None
        self.log = TopicLog.open(files, folder, segment_size=segment_size, start=start)
        try:
            self.state: TopicState = recover(last, self.log)
        except OSError:
            self.log.close()
            raise

    def close(self) -> None:
        self.log.close()

    def __enter__(self) -> "StoredTopic":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def depths(self) -> dict[str | None, int]:
        """The number of messages by channel; None stands for the topic itself."""
        return {name: len(state.entries) + _distance(state, end) for name, state, end in self._states()}

    def backlogs(self) -> Iterator[tuple[str | None, Iterator[bytes]]]:
        """By channel, the frames of the next deliveries: first unfinished messages, then those in the stream.

        None stands for the topic itself, if it holds messages back, and comes first.
        """
        for name, state, end in self._states():
            yield name, chain(self._unfinished(state.entries), self._stream(state, end))

    def read_needed(self) -> None:
        """Read all undelivered messages, so that `log` has counted the damaged ones."""
        states = list(self._states())
        for _, state, _ in states:
            for _ in self._unfinished(state.entries):
                pass
        first = min((state.position for _, state, _ in states), default=self.state.end.seq)
        for _ in self._stream(ChannelState(first), self.state.end.seq):
            pass

    def _states(self) -> Iterator[tuple[str | None, ChannelState, int]]:
        """Each channel's name and state, and the number at which the stream ends for it."""
        topic = self.state
        if topic.held is not None:
            yield None, topic.held, topic.end.seq
        for name, state in sorted(topic.channels.items()):
            yield name, state, topic.end.seq if topic.held is None else topic.held.position

    def _unfinished(self, entries: Iterable[bytes]) -> Iterator[bytes]:
        keys = iter(sorted(entries))
        while fetched := [ENTRY.unpack_from(key) for key in islice(keys, _FETCHED_AT_ONCE)]:
            found = self.log.fetch([each_id for _, _, each_id, _ in fetched])
            for _, _, each_id, attempt in fetched:
                if each_id in found:
                    yield with_attempts(found[each_id], attempt)

    def _stream(self, state: ChannelState, end: int) -> Iterator[bytes]:
        position = state.position
        for gap, following in [*state.gaps, (end, end)]:
            yield from self._range(position, gap)
            position = following

    def _range(self, position: int, end: int) -> Iterator[bytes]:
        if position >= end:
            return
        reader = self.log.reader(position)
        while reader.seq < end and (groups := reader.read()):
            for group in groups:
                yield from group.frames[: max(0, end - group.first_seq)]

    def _last_checkpoint(self, files: Files, folder: str) -> TopicState | None:
        try:
            return checkpoint.decode(read_file(files, os.path.join(folder, CHECKPOINT)))
        except FileNotFoundError:
            return None
        except BadCheckpoint as error:
            self.checkpoint_error = str(error)
            return None


def _distance(state: ChannelState, end: int) -> int:
    return max(0, end - state.position - sum(stop - begin for begin, stop in state.gaps))
