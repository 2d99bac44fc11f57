"""From a checkpoint and the log behind it to where every channel stood when the process ended.

The checkpoint is a moment some time before the end; what the log holds behind it is replayed over it: messages only
move the end of the stream, deferred ones are entered wherever they went at the time, and what came, went, was emptied
or paused is done again.

Without a checkpoint all of the log is replayed. If the log is not whole either, since what was finished is deleted, it
does not tell who had what any more: every channel gets all there is.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
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
from nsq_compat.log.group_reader import MESSAGE_KINDS
from nsq_compat.log.storage import CHECKPOINT
from nsq_compat.log.topic_log import DEFAULT_SEGMENT_SIZE, TopicLog
from nsq_compat.protocol.message import attempts, message_id, message_ids, with_attempts
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
        self.seq = group.first_seq + len(group.frames)
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
        if kept and group.kind in MESSAGE_KINDS:
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


_FETCHED_AT_ONCE: Final = 1024


class StoredTopic:
    """A topic's log and where its channels stood. Raises ``OSError``; damage is counted, here and in `log`.

    To be closed. Nobody else may use the folder meanwhile.
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
        """Close the files."""
        self.log.close()

    def __enter__(self) -> "StoredTopic":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def depths(self) -> dict[str | None, int]:
        """Messages by channel, None being what no channel has got."""
        return {name: len(place.entries) + _distance(place, end) for name, place, end in self._places()}

    def backlogs(self) -> Iterator[tuple[str | None, Iterator[bytes]]]:
        """By channel, the frames of the next deliveries: those taken from the stream before, then what follows in it.

        None, where there is such a thing, is what no channel has got; it comes first.
        """
        for name, place, end in self._places():
            yield name, self._frames(place, end)

    def read_needed(self) -> None:
        """Read everything that is still to be delivered, so that `log` has counted what is damaged of it."""
        places = list(self._places())
        for _, place, _ in places:
            for _ in self._unfinished(place.entries):
                pass
        first = min((place.position for _, place, _ in places), default=self.state.end.seq)
        for _ in self._stream(ChannelState(first), self.state.end.seq):
            pass

    def _places(self) -> Iterator[tuple[str | None, ChannelState, int]]:
        """Each channel's name and place, and where the stream ends for it."""
        state = self.state
        if state.held is not None:
            yield None, state.held, state.end.seq
        for name, place in sorted(state.channels.items()):
            yield name, place, state.end.seq if state.held is None else state.held.position

    def _frames(self, place: ChannelState, end: int) -> Iterator[bytes]:
        yield from self._unfinished(place.entries)
        yield from self._stream(place, end)

    def _unfinished(self, entries: Iterable[bytes]) -> Iterator[bytes]:
        keys = iter(sorted(entries))
        while some := [ENTRY.unpack_from(key) for key in islice(keys, _FETCHED_AT_ONCE)]:
            found = self.log.fetch([number for _, _, number, _ in some])
            for _, _, number, attempt in some:
                if number in found:
                    yield with_attempts(found[number], attempt)

    def _stream(self, place: ChannelState, end: int) -> Iterator[bytes]:
        position = place.position
        for gap, following in [*place.gaps, (end, end)]:
            yield from self._part(position, gap)
            position = following

    def _part(self, position: int, end: int) -> Iterator[bytes]:
        if position >= end:
            return
        reader = self.log.reader(position)
        while reader.seq < end and (groups := reader.read()):
            for group in groups:
                yield from _before(end, group.first_seq, group.frames)

    def _last_checkpoint(self, files: Files, folder: str) -> TopicState | None:
        try:
            return checkpoint.decode(read_file(files, os.path.join(folder, CHECKPOINT)))
        except FileNotFoundError:
            return None
        except BadCheckpoint as error:
            self.checkpoint_error = str(error)
            return None


def _distance(place: ChannelState, end: int) -> int:
    return max(0, end - place.position - sum(stop - begin for begin, stop in place.gaps))


def _before(end: int, first: int, frames: Sequence[bytes]) -> Sequence[bytes]:
    return frames if first + len(frames) <= end else frames[: max(0, end - first)]
