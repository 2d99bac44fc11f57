"""Control records in a topic's log: creation and deletion of channels, pauses, emptying, REQ delays, headers, ids.

Recovery replays them in order, so they are written when the change happens. If a write fails, the next checkpoint
contains the change.
"""

import logging
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from nsq_compat.log.checkpoint import ChannelState, Replay, decode_replay, entry_id, key_location, pack_key
from nsq_compat.log.offsets import offsets_of
from nsq_compat.log.segment import NOWHERE
from nsq_compat.log.storage import TopicStore
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol import storage_schema
from nsq_compat.protocol.layout import derive
from nsq_compat.protocol.message import message_id as id_of
from nsq_compat.protocol.storage_schema import (
    CHANNEL_CREATED,
    CHANNEL_MOVED,
    DIGEST_SIZE,
    PUBLISH_IDS,
    REQUEUED,
    TOPIC_HAS_HEADERS,
)

log = logging.getLogger(__name__)


class ControlLog:
    """The control records of one topic. Without a store nothing is written."""

    def __init__(self, topic_name: str, store: TopicStore | None) -> None:
        self._topic_name = topic_name
        self._store = store
        self._requeued: dict[str, list[bytes]] = {}  # by channel; not written yet

    def note(self, kind: int, name: str, seq: int) -> None:
        """Write a record; it takes effect before message number `seq`."""
        try:
            self._write(kind, name, seq)
        except OSError as error:
            log.error("TOPIC(%s): cannot write to the log - %s", self._topic_name, error)

    def note_creation(self, name: str, seq: int) -> None:
        """Record a new channel. Raises ``OSError`` if the channel must not exist without the record."""
        if self._store is not None and self._store.is_write_through:
            self._write(CHANNEL_CREATED, name, seq)
        else:
            self.note(CHANNEL_CREATED, name, seq)

    def note_headers(self, seq: int) -> None:
        """Record that messages from here on may have headers. Raises ``OSError`` if they must not have any."""
        self._write(TOPIC_HAS_HEADERS, "", seq)

    def note_move(self, move: "Move", seq: int) -> None:
        """Record that a channel is moved. Raises ``OSError`` if it must not be."""
        if self._store is not None:
            self.write_requeued()
            self._store.append([move.encode()], seq, kind=CHANNEL_MOVED)

    def note_ids(self, digests: Sequence[bytes], time_ns: int, seq: int) -> None:
        """Record publish ids of another nsqd. Raises ``OSError`` if they must not be known."""
        if self._store is not None:
            self.write_requeued()
            self._store.append([_TIME.pack(time_ns) + b"".join(digests)], seq, kind=PUBLISH_IDS)

    def _write(self, kind: int, name: str, seq: int) -> None:
        if self._store is not None:
            self.write_requeued()
            self._store.append([name.encode("ascii")], seq, kind=kind)

    def note_requeued(self, channel: str, message_id: bytes, attempts: int, due: float) -> None:
        """Record a REQ until `due`, in monotonic seconds. Those of an event-loop iteration are written together."""
        store = self._store
        if store is None or not store.is_write_through:
            return
        due_ns = int((due + store.clock_offset()) * _NS_PER_SECOND)
        is_first = not self._requeued
        self._requeued.setdefault(channel, []).append(ROW.pack(due_ns, message_id, attempts))
        if is_first:
            store.at_end_of_iteration(self.write_requeued)

    def write_requeued(self) -> None:
        """Write the records of ``note_requeued``. If that fails, the next checkpoint has them."""
        if not self._requeued:
            return
        store, requeued = self._store, self._requeued
        self._requeued = {}
        assert store is not None, "without a store there is nothing to write"
        try:
            for channel, rows in requeued.items():
                store.append([encode_requeued(channel, rows)], store.log.end.seq, kind=REQUEUED)
        except OSError as error:
            log.error("TOPIC(%s): cannot write REQ delays to the log - %s", self._topic_name, error)

    def discard_requeued(self) -> None:
        """Drop unwritten records, because the topic is deleted."""
        self._requeued = {}

    def commit(self) -> None:
        """Make the records as durable as messages. Call it last, because it may block."""
        if self._store is not None:
            try:
                self._store.commit()
            except OSError as error:
                log.error("TOPIC(%s): cannot sync the log - %s", self._topic_name, error)


ROW: Final = derive(storage_schema.REQUEUED_MESSAGE)
_NS_PER_SECOND: Final = 1_000_000_000


_MOVE: Final = struct.Struct(">QQQB")
_TIME: Final = struct.Struct(">q")


class Move(NamedTuple):
    """A channel that is moved to another place in the topic's log (``MOVED_CHANNEL``)."""

    channel: str
    reached: int
    skip_from: int
    skip_to: int
    drops: bool
    replay: Replay

    def encode(self) -> bytes:
        """Return the frame of a CHANNEL_MOVED group."""
        name = self.channel.encode("ascii")
        numbers = _MOVE.pack(self.reached, self.skip_from, self.skip_to, self.drops)
        return bytes([len(name)]) + name + numbers + self.replay.encode()

    def apply(self, state: ChannelState) -> None:
        """Move the channel in its state of before.

        Its state may be older than the move. So what it may have taken in between, and not finished, stays, unless it
        was dropped.
        """
        before: tuple[tuple[int, int], ...] = ()
        if self.drops:
            state.entries = []
        elif state.replay is not None:
            cut = ((begin, min(end, self.reached)) for begin, end in state.replay.ranges)
            before = tuple((begin, end) for begin, end in cut if begin < end)
        state.skip([(0 if self.drops else self.skip_from, self.skip_to)])
        ranges = _merged([*before, *self.replay.ranges])
        state.replay = self.replay._replace(ranges=ranges) if ranges or state.replay is not None else None


def decode_move(frame: bytes) -> Move:
    """Raises ``struct.error`` if it is none."""
    begin = 1 + frame[0]
    reached, skip_from, skip_to, drops = _MOVE.unpack_from(frame, begin)
    replay, _ = decode_replay(frame, begin + _MOVE.size)
    return Move(frame[1:begin].decode("ascii"), reached, skip_from, skip_to, bool(drops), replay)


def decode_ids(frame: bytes) -> tuple[int, list[bytes]]:
    """The time and the hashes of a PUBLISH_IDS group (``ADOPTED_IDS``)."""
    ends = range(_TIME.size + DIGEST_SIZE, len(frame) + 1, DIGEST_SIZE)
    return _TIME.unpack_from(frame)[0], [frame[end - DIGEST_SIZE : end] for end in ends]


def _merged(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return tuple(merged)


class Delay(NamedTuple):
    """The delay of one message: `due_ns` is wall-clock time, `attempts` the count at the next delivery."""

    due_ns: int
    message_id: bytes
    attempts: int


def encode_requeued(channel: str, rows: Sequence[bytes]) -> bytes:
    """Return the frame of a REQUEUED group; `rows` are packed ``ROW``s."""
    return b"".join((bytes([len(channel)]), channel.encode("ascii"), *rows))


def decode_requeued(frame: bytes) -> tuple[str, list[Delay]]:
    begin = 1 + frame[0]
    end = begin + (len(frame) - begin) // ROW.size * ROW.size
    return frame[1:begin].decode("ascii"), [Delay(*ROW.unpack_from(frame, at)) for at in range(begin, end, ROW.size)]


class Requeued:
    """The delays in the replayed part of a log, by channel and message id. The last one of each message applies."""

    def __init__(self) -> None:
        self.channels: dict[str, dict[bytes, Delay]] = {}
        self._since_move: dict[str, set[bytes]] = {}

    def add(self, frame: bytes) -> None:
        channel, delays = decode_requeued(frame)
        self.channels.setdefault(channel, {}).update((each.message_id, each) for each in delays)
        self._since_move.setdefault(channel, set()).update(each.message_id for each in delays)

    def note_move(self, channel: str) -> None:
        """What the channel delivers again because of the move is not deferred by the delays until now."""
        self._since_move.pop(channel, None)

    def forget(self, channel: str) -> None:
        """The channel has none of its messages any more."""
        self.channels.pop(channel, None)
        self._since_move.pop(channel, None)

    def earliest_due(self) -> float:
        """Return the earliest due time, in seconds since 1970."""
        return min(delay.due_ns for each in self.channels.values() for delay in each.values()) / _NS_PER_SECOND

    def apply(self, states: dict[str, ChannelState], clock_offset: float, log: TopicLog) -> None:
        """Defer the messages in the states of their channels. Raises ``OSError``.

        A message is among the state's entries, or in its replay or the stream after its position, where it is then
        skipped. A message that is in none of them was finished before, or is damaged and counted elsewhere.
        """
        for name, delays in self.channels.items():
            state = states.get(name)
            if state is None:
                continue
            rest = dict(delays)
            for index, key in enumerate(state.entries):
                delay = rest.pop(entry_id(key), None)
                if delay is not None:
                    state.entries[index] = _entry(delay, index, clock_offset, key_location(key))
            in_stream = {found: seq for seq, found in _find_in_stream(log, state, rest)}
            state.skip((seq, seq + 1) for seq in in_stream.values())
            in_replay: dict[bytes, int] = {}
            left = (rest.keys() - in_stream.keys()) & self._since_move.get(name, set())
            if state.replay is not None and left:
                in_replay = {found: at for found, at in offsets_of(log, left).items() if state.replay.has(at)}
                state.replay = state.replay.without(in_replay.values())
            for found in (*in_stream, *in_replay):
                state.entries.append(_entry(rest[found], len(state.entries), clock_offset))


def _entry(delay: Delay, serial: int, clock_offset: float, location: bytes = NOWHERE) -> bytes:
    due = delay.due_ns / _NS_PER_SECOND - clock_offset
    return pack_key(max(0.0, due), serial, delay.message_id, delay.attempts, location)


def _find_in_stream(log: TopicLog, state: ChannelState, wanted: dict[bytes, Delay]) -> Iterator[tuple[int, bytes]]:
    """Yield numbers and ids of messages from the position on. Ids grow with the numbers, so the search can end."""
    missing = set(wanted)
    if not missing:
        return
    last = max(missing)
    reader = log.reader(state.position)
    while missing and (groups := reader.read()):
        for group in groups:
            for seq, frame in enumerate(group.frames, group.first_seq):
                found = id_of(frame)
                if found in missing:
                    missing.remove(found)
                    yield seq, found
        if id_of(groups[-1].frames[-1]) > last:
            return
