"""From a checkpoint and the log behind it to where every channel stood when the process ended.

The checkpoint is a moment some time before the end; what the log holds behind it is replayed over it: messages only
move the end of the stream, deferred ones are entered wherever they went at the time, and what came, went, was emptied
or paused is done again.

Without a checkpoint all of the log is replayed. If the log is not whole either, since what was finished is deleted, it
does not tell who had what any more: every channel gets all there is.
"""

from dataclasses import replace

from nsq_compat.log.audit import audit
from nsq_compat.log.checkpoint import (
    ENTRY,
    ChannelState,
    TopicState,
    entries_at_once,
    key_location,
    pack_key,
)
from nsq_compat.log.control_log import Requeued
from nsq_compat.log.group import (
    CHANNEL_CREATED,
    CHANNEL_DELETED,
    CHANNEL_EMPTIED,
    DEFERRED,
    MESSAGES,
    NOWHERE,
    REQUEUED,
    TOPIC_AWAITS_CHANNELS,
    TOPIC_EMPTIED,
    TOPIC_KNOWS_CHANNELS,
    TOPIC_PAUSED,
    TOPIC_UNPAUSED,
    Group,
    locations_of,
)
from nsq_compat.log.group_reader import HAS_IDS
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol.message import attempts, message_id, message_ids
from nsq_compat.protocol.names import is_ephemeral

_NS_PER_SECOND = 1_000_000_000
_NO_ID = b"0" * 16


class _Replay:
    """Does again to a state what the log says was done."""

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
        for number, location in zip(message_ids(group.frames), locations, strict=True):
            topic.last_id = max(topic.last_id, number)
            for state in receivers:
                state.entries.append(pack_key(due, len(state.entries), number, 1, location))

    def was_requeued(self, group: Group) -> None:
        self.requeued.add(group.frames[0])

    def channel_created(self, group: Group) -> None:
        topic, name = self.topic, _name(group)
        if name in topic.channels:
            return
        state = ChannelState(group.first_seq)
        if topic.held is not None and not topic.held_back:
            state, topic.held = topic.held, None  # the first channel takes what the topic held
        if not is_ephemeral(name):  # which would have ended with the process, and what it took with it
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
                state.pass_over(topic.held.position, group.first_seq)
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
    """Replay the log behind the checkpoint, or all of it if there is none, and see what is lost. Raises ``OSError``.

    The states of the checkpoint's channels become those of the result.
    """
    topic = _nothing_known(log) if last is None else _as_of_checkpoint(last)
    log.bounds.complete_from = topic.end.seq if topic.incomplete else 0
    kept = {message_id(frame): attempts(frame) for frame in log.kept_frames()} if last is None else {}
    replay = _Replay(topic)
    for group in log.recovered():
        topic.is_current = False
        replay.seq = max(
            replay.seq, group.first_seq
        )  # numbers are used up without a message in the log, at level memory
        _REPLAY[group.kind](replay, group)
        if kept and group.kind in HAS_IDS:
            for number in message_ids(group.frames):
                kept.pop(number, None)
    topic.end = log.end._replace(seq=max(replay.seq, log.end.seq))
    if topic.everything is not None and not log.is_whole:
        _give_everything_to_all(topic, topic.everything, kept, replay.requeued)
    _defer_requeued(topic, replay.requeued, log)
    audit(log, last, lambda: topic.streams)
    topic.is_current = topic.is_current and not log.damaged_records  # else each start would find the loss again
    return topic


def _nothing_known(log: TopicLog) -> TopicState:
    """Before anything is replayed, where there is no checkpoint."""
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
    """Last of all: what was put back with a delay may be anywhere in the replayed part of the log."""
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
    """The wall clock was set back so far that there is a due time before the monotonic clock began."""
    for state in topic.backlogs:
        state.entries = [_shifted(key, topic.clock_offset) for key in state.entries]
    topic.clock_offset = 0.0


def _shifted(key: bytes, by: float) -> bytes:
    due, serial, number, attempt = ENTRY.unpack_from(key)
    return pack_key(due + by if due else 0.0, serial, number, attempt, key_location(key))


def _name(group: Group) -> str:
    return group.frames[0].decode("ascii")
