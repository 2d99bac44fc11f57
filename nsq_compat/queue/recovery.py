"""From a checkpoint and the log behind it to where every channel stood when the process ended.

The checkpoint is a moment some time before the end; what the log holds behind it is replayed over it: messages only
move the end of the stream, deferred ones are entered wherever they went at the time, and what came, went, was emptied
or paused is done again.

Without a checkpoint all of the log is replayed. If the log is not whole either, since what was finished is deleted, it
does not tell who had what any more: every channel gets all there is.
"""

from dataclasses import dataclass, field

from nsq_compat.protocol.message import attempts, message_id, message_ids
from nsq_compat.protocol.names import is_ephemeral
from nsq_compat.queue.audit import audit
from nsq_compat.queue.checkpoint import (
    ENTRY,
    HELD_BY_TOPIC,
    Checkpoint,
    Place,
    entries_at_once,
    key_location,
    pack_key,
)
from nsq_compat.queue.group import (
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
from nsq_compat.queue.group_reader import HAS_IDS
from nsq_compat.queue.requeued import Requeued
from nsq_compat.queue.topic_log import TopicLog

_NS_PER_SECOND = 1_000_000_000
_NO_ID = b"0" * 16


@dataclass(slots=True)
class Recovered:
    """A topic as it was. Due times are of the checkpoint's clock; `clock_offset` makes seconds since 1970 of them."""

    end: int = 0
    clock_offset: float = 0.0
    last_id: bytes = _NO_ID
    paused: bool = False
    awaits_channels: bool = False
    channels: dict[str, Place] = field(default_factory=dict)
    held: Place | None = None
    """What no channel has got, if any is held back."""
    gone: set[str] = field(default_factory=set)
    """Channels that were deleted, whoever still names them."""
    everything: Place | None = None
    """All there is, for channels that nobody knows more of; None if there was a checkpoint."""
    is_current: bool = True
    """Whether the checkpoint says all of it."""
    requeued: Requeued = field(default_factory=Requeued)
    """Messages that were put back with a delay, as far as the replayed log tells."""

    @property
    def held_back(self) -> bool:
        """Whether channels get nothing of what is published."""
        return self.paused or self.awaits_channels

    @property
    def places(self) -> list[Place]:
        """All there are."""
        return [place for place, _ in self.streams]

    @property
    def streams(self) -> list[tuple[Place, int]]:
        """All places, and where the stream ends for each; those that are not channels' come first."""
        stands = self.end if self.held is None else self.held.position
        others = [each for each in (self.held, self.everything) if each is not None]
        return [*((each, self.end) for each in others), *((each, stands) for each in self.channels.values())]


def recover(last: Checkpoint | None, log: TopicLog) -> Recovered:
    """Replay the log behind the checkpoint, or all of it if there is none, and see what is lost. Raises ``OSError``."""
    if last is None:
        topic = Recovered(log.oldest, is_current=False, held=Place(log.oldest), everything=Place(log.oldest))
    else:
        topic = Recovered(last.end.seq, last.clock_offset, last.last_id, channels=dict(last.places))
        topic.held = topic.channels.pop(HELD_BY_TOPIC, None)
        topic.awaits_channels = last.awaits_channels
        holds = topic.held is not None and bool(topic.channels)
        topic.paused = last.paused or (holds and not topic.awaits_channels)
        log.bounds.complete_from = last.end.seq if last.incomplete else 0
    kept = {message_id(frame): attempts(frame) for frame in log.kept_frames()} if last is None else {}
    for group in log.recovered():
        topic.is_current = False
        topic.end = max(topic.end, group.first_seq)  # numbers are used up without a message in the log, at level memory
        _REPLAY[group.kind](topic, group)
        if kept and group.kind in HAS_IDS:
            for number in message_ids(group.frames):
                kept.pop(number, None)
    topic.end = max(topic.end, log.end.seq)
    if topic.everything is not None and not log.is_whole:
        _give_everything_to_everybody(topic, topic.everything, kept)
    _defer_requeued(topic, log)
    audit(log, last, lambda: topic.streams)
    topic.is_current = topic.is_current and not log.damaged_records  # else each start would find the loss again
    return topic


def _defer_requeued(topic: Recovered, log: TopicLog) -> None:
    """Last of all: what was put back with a delay may be anywhere in the replayed part of the log."""
    if topic.requeued:
        if topic.requeued.earliest_due() <= topic.clock_offset:
            _count_from_1970(topic)
        topic.requeued.apply(topic.channels, topic.clock_offset, log)


def _give_everything_to_everybody(topic: Recovered, everything: Place, kept: dict[bytes, int]) -> None:
    everything.entries += entries_at_once(sorted(kept.items()))
    topic.last_id = max(topic.last_id, max(kept, default=_NO_ID))
    names = dict.fromkeys((*topic.channels, *topic.requeued.names))
    topic.channels = {name: Place(everything.position, list(everything.entries)) for name in names}
    topic.held = None if topic.channels else everything
    topic.paused = topic.awaits_channels = False


def _messages(topic: Recovered, group: Group) -> None:
    topic.end = group.first_seq + len(group.frames)
    topic.last_id = max(topic.last_id, message_id(group.frames[-1]))


def _deferred(topic: Recovered, group: Group) -> None:
    if group.due_ns / _NS_PER_SECOND < topic.clock_offset:
        _count_from_1970(topic)
    due = group.due_ns / _NS_PER_SECOND - topic.clock_offset
    places = [topic.held] if topic.held is not None else list(topic.channels.values())
    if topic.everything is not None:
        places.append(topic.everything)
    locations = locations_of(group.place, group.frames) if group.place else [NOWHERE] * len(group.frames)
    for number, location in zip(message_ids(group.frames), locations, strict=True):
        topic.last_id = max(topic.last_id, number)
        for place in places:
            place.entries.append(pack_key(due, len(place.entries), number, 1, location))


def _count_from_1970(topic: Recovered) -> None:
    """The wall clock was set back so far that there is a due time before the monotonic clock began."""
    for place in topic.places:
        place.entries = [_shifted(key, topic.clock_offset) for key in place.entries]
    topic.clock_offset = 0.0


def _shifted(key: bytes, by: float) -> bytes:
    due, serial, number, attempt = ENTRY.unpack_from(key)
    return pack_key(due + by if due else 0.0, serial, number, attempt, key_location(key))


def _channel_created(topic: Recovered, group: Group) -> None:
    name = _name(group)
    if name in topic.channels:
        return
    place = Place(group.first_seq)
    if topic.held is not None and not topic.held_back:
        place, topic.held = topic.held, None  # the first channel takes what the topic held
    if not is_ephemeral(name):  # which would have ended with the process, and what it took with it
        topic.channels[name] = place
        topic.gone.discard(name)


def _channel_deleted(topic: Recovered, group: Group) -> None:
    topic.channels.pop(_name(group), None)
    topic.requeued.forget(_name(group))
    topic.gone.add(_name(group))
    if not topic.channels and topic.held is None:
        topic.held = Place(group.first_seq)


def _channel_emptied(topic: Recovered, group: Group) -> None:
    topic.requeued.forget(_name(group))
    if _name(group) in topic.channels:
        stands = topic.held.position if topic.held is not None else group.first_seq
        topic.channels[_name(group)] = Place(stands)


def _topic_emptied(topic: Recovered, group: Group) -> None:
    if topic.held is not None:
        for place in topic.channels.values():
            place.pass_over(topic.held.position, group.first_seq)
        topic.held = Place(group.first_seq)


def _topic_paused(topic: Recovered, group: Group) -> None:
    topic.paused = True
    _hold(topic, group)


def _topic_unpaused(topic: Recovered, group: Group) -> None:
    topic.paused = False
    _hand_over(topic)


def _topic_awaits_channels(topic: Recovered, group: Group) -> None:
    topic.awaits_channels = True
    _hold(topic, group)


def _topic_knows_channels(topic: Recovered, group: Group) -> None:
    topic.awaits_channels = False
    _hand_over(topic)


def _requeued(topic: Recovered, group: Group) -> None:
    topic.requeued.add(group.frames[0])


def _hold(topic: Recovered, group: Group) -> None:
    if topic.held is None:
        topic.held = Place(group.first_seq)


def _hand_over(topic: Recovered) -> None:
    if topic.held is not None and topic.channels and not topic.held_back:
        for place in topic.channels.values():
            place.entries += topic.held.entries
        topic.held = None


def _name(group: Group) -> str:
    return group.frames[0].decode("ascii")


_REPLAY = {
    MESSAGES: _messages,
    DEFERRED: _deferred,
    REQUEUED: _requeued,
    CHANNEL_CREATED: _channel_created,
    CHANNEL_DELETED: _channel_deleted,
    CHANNEL_EMPTIED: _channel_emptied,
    TOPIC_EMPTIED: _topic_emptied,
    TOPIC_PAUSED: _topic_paused,
    TOPIC_UNPAUSED: _topic_unpaused,
    TOPIC_AWAITS_CHANNELS: _topic_awaits_channels,
    TOPIC_KNOWS_CHANNELS: _topic_knows_channels,
}
