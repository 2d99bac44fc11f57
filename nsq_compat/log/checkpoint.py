"""A topic's checkpoint: each channel's position in the stream, and the messages before it that are not finished.

After a crash every channel continues from its state: messages after `position` come from the log, unfinished ones are
fetched by their ids. Only messages that were finished after the checkpoint was written are delivered again.
"""

import os
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import NamedTuple

import google_crc32c

from nsq_compat.log.damage import uncovered
from nsq_compat.log.files import Files, read_file
from nsq_compat.log.segment import NOWHERE
from nsq_compat.log.topic_log import LogEnd
from nsq_compat.protocol import storage_schema
from nsq_compat.protocol.errors import quote
from nsq_compat.protocol.layout import derive
from nsq_compat.protocol.message import attempts, message_id
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.protocol.storage_schema import CHECKPOINT_MAGIC, EMPTIED_MAGIC, LOCATIONS_MAGIC, REPLAYS_MAGIC

CHECKPOINT = "checkpoint"
"""The name of the file in the topic's folder."""
HEADER = derive(storage_schema.CHECKPOINT_HEADER)
CHANNEL = derive(storage_schema.CHECKPOINT_CHANNEL)
GAP = derive(storage_schema.CHECKPOINT_GAP)
ENTRY = derive(storage_schema.CHECKPOINT_ENTRY)
_LOCATION = derive(storage_schema.CHECKPOINT_LOCATION)
_ENTRY_ID = ENTRY.slices["id"]
_ENTRY_SIZE = ENTRY.size
_ENTRIES_PER_STEP = 4096
_UNKNOWN = bytes(_LOCATION.size)
_CRC_END = HEADER.slices["crc"].stop

_PAUSED, _AWAITS_CHANNELS, _INCOMPLETE, _HAS_HEADERS = 1, 2, 4, 8
_DUE_IMMEDIATELY = bytes(8)  # a due time of 0

_HELD_BY_TOPIC = ""
"""The channel name of the topic's own state in the file."""


class BadCheckpoint(Exception):
    """The bytes are not a whole checkpoint."""


class Replay(NamedTuple):
    """The part of the log that a channel delivers once more, because it was moved back; then it goes on in the stream.

    `ranges` of offsets, in order. A deferred message in them that was not due when the channel was moved, at `moved_ns`
    (wall clock), still waits in the channel and is passed over. From `again_from` up to `again_to` it does not wait
    there, and is deferred again.
    """

    ranges: tuple[tuple[int, int], ...]
    moved_ns: int = 0
    again_from: int = 0
    again_to: int = 0

    def has(self, offset: int) -> bool:
        return any(begin <= offset < end for begin, end in self.ranges)

    def without(self, offsets: Iterable[int]) -> "Replay":
        removed = [(offset, offset + 1) for offset in sorted(offsets)]
        left = [part for begin, end in self.ranges for part in uncovered(removed, begin, end)]
        return self._replace(ranges=tuple(left))

    def encode(self) -> bytes:
        numbers = [number for each in self.ranges for number in each]
        return struct.pack(
            f">qQQI{len(numbers)}Q", self.moved_ns, self.again_from, self.again_to, len(self.ranges), *numbers
        )


def decode_replay(data: bytes, at: int) -> tuple[Replay, int]:
    """A replay, and where it ends. Raises ``struct.error``."""
    moved_ns, again_from, again_to, count = struct.unpack_from(">qQQI", data, at)
    at += struct.calcsize(">qQQI")
    numbers = struct.unpack_from(f">{2 * count}Q", data, at)
    ranges = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    return Replay(ranges, moved_ns, again_from, again_to), at + 16 * count


class Prepared(NamedTuple):
    """Entries as a backlog has them (``queue.backlog.prepare``)."""

    immediate: deque[tuple[bytes, int]]
    """Ids, and numbers of the next deliveries."""
    deferred: list[bytes]
    """A heap of keys."""
    first_id: bytes
    """The lowest of all ids, if there is one."""


@dataclass(slots=True)
class ChannelState:
    """The messages that a channel, or a topic that holds messages back, still has to deliver.

    `position` is the number of the next message in the topic's stream. `gaps` are later ranges of numbers that are not
    delivered. `entries` are keys of messages that were taken from the stream and are not finished: the entry in the
    checkpoint followed, if it is known, by the message's location in the log. ``queue.deferred`` has the same keys.

    `unfinished` are messages without an entry yet, as `copied_messages` returns them. There may be a hundred thousand
    in flight, so their entries are created in steps.

    What `replay` has is delivered before the stream.

    `prepared`, if set, takes the place of the entries.
    """

    position: int
    entries: list[bytes] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    unfinished: Iterator[tuple[bytes, int]] = field(default_factory=lambda: iter(()), compare=False, repr=False)
    replay: Replay | None = None
    prepared: Prepared | None = field(default=None, compare=False, repr=False)

    def add_entries(self) -> bool:
        """Create entries for the next few of `unfinished`; returns whether there were any."""
        messages = list(islice(self.unfinished, _ENTRIES_PER_STEP))
        self.entries += [ENTRY.pack(0.0, 0, message_id, attempt) for message_id, attempt in messages]
        return bool(messages)

    def all_entries(self) -> list[bytes]:
        """Create the entries of all `unfinished` messages and return `entries`."""
        while self.add_entries():
            pass
        return self.entries

    def skip(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Exclude ranges of the stream from delivery. They may be empty, or overlap each other or `gaps`."""
        gaps, self.gaps = self.gaps, []
        for low, high in sorted([*gaps, *ranges]):
            if low <= self.position:
                self.position = max(self.position, high)
            elif self.gaps and low <= self.gaps[-1][1]:
                self.gaps[-1] = (self.gaps[-1][0], max(high, self.gaps[-1][1]))
            elif low < high:
                self.gaps.append((low, high))

    def immediate(self) -> list[tuple[bytes, int]]:
        """Messages that are due at once, in order: id and number of the next delivery."""
        keys = sorted(key for key in self.all_entries() if is_immediate(key))
        return [(message_id, attempt) for _, _, message_id, attempt in map(ENTRY.unpack_from, keys)]

    def take_deferred(self) -> list[bytes]:
        """The keys of deferred messages. Clears `entries`, so that millions of keys are not in two lists."""
        keys = [key for key in self.all_entries() if not is_immediate(key)]
        self.entries = []
        return keys


@dataclass(slots=True)
class TopicState:
    """The state of a topic that a checkpoint contains and recovery restores.

    `end` is the end of the topic's log, with the number of the next message. `clock_offset` plus a due time is seconds
    since 1970.
    """

    end: LogEnd
    clock_offset: float
    last_id: bytes
    channels: dict[str, ChannelState] = field(default_factory=dict)
    held: ChannelState | None = None
    """The topic's own state if it holds messages back, which no channel has received."""
    paused: bool = False
    awaits_channels: bool = False
    incomplete: bool = False
    """Some undelivered messages may have been in memory only, at level ``memory``, so the log lacks their numbers."""
    emptied_at: int = 0
    """The next offset when the topic was emptied last."""
    has_headers: bool = False
    """Messages in its files may have headers."""
    everything: ChannelState | None = None
    """If there was no checkpoint, a state with all messages, for channels without a known state. Not written."""
    gone: set[str] = field(default_factory=set)
    """Channels that were deleted after the checkpoint. Not written."""
    is_current: bool = True
    """Whether the checkpoint on disk is equal to this. Not written."""

    @property
    def held_back(self) -> bool:
        """Whether the topic holds new messages back from its channels."""
        return self.paused or self.awaits_channels

    @property
    def backlogs(self) -> list[ChannelState]:
        """All states: `held` and `everything` first, if they are set, then those of the channels."""
        return [state for _, state, _ in self.streams]

    @property
    def streams(self) -> list[tuple[str | None, ChannelState, int]]:
        """For each of `backlogs`: its channel (None for the topic), itself, and the number at which its stream ends."""
        stop = self.end.seq if self.held is None else self.held.position
        others = [(None, each, self.end.seq) for each in (self.held, self.everything) if each is not None]
        return [*others, *((name, state, stop) for name, state in sorted(self.channels.items()))]

    def encode(self) -> bytes:
        return b"".join(Encoding(self).finish())


class Encoding:
    """Encodes a checkpoint in steps, because there may be millions of entries."""

    def __init__(self, state: TopicState) -> None:
        self._state = state
        self._pieces: list[bytes] = []
        self._locations: list[bytes] = []
        self._crc = 0
        self._steps = self._encode()

    def step(self) -> bool:
        """Do one step; returns whether there may be more to do."""
        return next(self._steps, False)

    def finish(self) -> list[bytes]:
        """Do the remaining steps and return the content, in pieces."""
        while self.step():
            pass
        return self._pieces

    def _encode(self) -> Iterator[bool]:
        topic, pieces = self._state, self._pieces
        named = dict(topic.channels) if topic.held is None else {**topic.channels, _HELD_BY_TOPIC: topic.held}
        flags = topic.paused * _PAUSED | topic.awaits_channels * _AWAITS_CHANNELS | topic.incomplete * _INCOMPLETE
        flags |= topic.has_headers * _HAS_HEADERS
        header = HEADER.pack(CHECKPOINT_MAGIC, 0, *topic.end, topic.clock_offset, topic.last_id, flags, len(named))
        pieces.append(header)
        self._crc = google_crc32c.value(header[_CRC_END:])
        for state in named.values():
            while state.add_entries():
                yield True
        for name, state in named.items():
            raw = name.encode("ascii")
            gaps = [GAP.pack(*gap) for gap in state.gaps]
            self._add(b"".join((CHANNEL.pack(len(raw), state.position, len(gaps), len(state.entries)), raw, *gaps)))
            for begin in range(0, len(state.entries), _ENTRIES_PER_STEP):
                entries = state.entries[begin : begin + _ENTRIES_PER_STEP]
                self._add(b"".join([key[:_ENTRY_SIZE] for key in entries]))
                self._locations.append(b"".join([key[_ENTRY_SIZE:] or _UNKNOWN for key in entries]))
                yield True
        if any(piece.strip(b"\0") for piece in self._locations):
            self._add(LOCATIONS_MAGIC)
            for piece in self._locations:
                self._add(piece)
                yield True
        replays = [(name.encode("ascii"), state.replay) for name, state in named.items() if state.replay is not None]
        if replays:
            self._add(REPLAYS_MAGIC + struct.pack(">I", len(replays)))
            for raw, replay in replays:
                self._add(bytes([len(raw)]) + raw + replay.encode())
        if topic.emptied_at:
            self._add(EMPTIED_MAGIC + struct.pack(">Q", topic.emptied_at))
        pieces[0] = header[: _CRC_END - 4] + struct.pack(">I", self._crc) + header[_CRC_END:]

    def _add(self, piece: bytes) -> None:
        self._crc = google_crc32c.extend(self._crc, piece)
        self._pieces.append(piece)


def read_checkpoint(files: Files, folder: str) -> TopicState | None:
    """The state in a topic's folder; None if there is none. Raises ``OSError`` and ``BadCheckpoint``."""
    try:
        return decode(read_file(files, os.path.join(folder, CHECKPOINT)))
    except FileNotFoundError:
        return None


def decode(data: bytes) -> TopicState:
    """Decode a checkpoint file. Raises ``BadCheckpoint``."""
    try:
        magic, crc, segment, offset, seq, clock_offset, last_id, flags, count = HEADER.unpack_from(data)
        if magic != CHECKPOINT_MAGIC:
            raise BadCheckpoint(f"expected the constant {CHECKPOINT_MAGIC!r}, found {magic!r}")
        if google_crc32c.value(data[_CRC_END:]) != crc:
            raise BadCheckpoint("checksum does not match")
        named, emptied_at = _decode_channels(data, count)
    except (struct.error, ValueError, LookupError) as error:
        raise BadCheckpoint(str(error)) from None
    held = named.pop(_HELD_BY_TOPIC, None)
    paused, awaits_channels, incomplete, has_headers = (
        bool(flags & flag) for flag in (_PAUSED, _AWAITS_CHANNELS, _INCOMPLETE, _HAS_HEADERS)
    )
    end = LogEnd(segment, offset, seq)
    return TopicState(
        end, clock_offset, last_id, named, held, paused, awaits_channels, incomplete, emptied_at, has_headers
    )


def _decode_channels(data: bytes, count: int) -> tuple[dict[str, ChannelState], int]:
    """The states by channel name, and ``TopicState.emptied_at``. Raises ``struct.error`` and ``ValueError``."""
    found: list[tuple[str, ChannelState, int, int]] = []
    at = HEADER.size
    for _ in range(count):
        length, position, gap_count, entries = CHANNEL.unpack_from(data, at)
        name_end = at + CHANNEL.size + length
        name = data[at + CHANNEL.size : name_end].decode("ascii")
        if name != _HELD_BY_TOPIC and not is_valid_name(name):
            raise ValueError(f"{quote(name.encode())} is no name of a channel")
        gaps = [(begin, end) for begin, end in map(GAP.unpack_from, _cut(data, name_end, gap_count, GAP.size))]
        begin = name_end + gap_count * GAP.size
        found.append((name, ChannelState(position, gaps=gaps), begin, entries))
        at = begin + entries * _ENTRY_SIZE
    located = data.startswith(LOCATIONS_MAGIC, at)
    at += len(LOCATIONS_MAGIC) if located else 0
    for _, state, begin, entries in found:
        state.entries = _keys(data, begin, at if located else None, entries)
        at += entries * _LOCATION.size if located else 0
    states = {name: state for name, state, _, _ in found}
    if data.startswith(REPLAYS_MAGIC, at):
        (replays,) = struct.unpack_from(">I", data, at + len(REPLAYS_MAGIC))
        at += len(REPLAYS_MAGIC) + 4
        for _ in range(replays):
            name_end = at + 1 + data[at]
            replay, following = decode_replay(data, name_end)
            states[data[at + 1 : name_end].decode("ascii")].replay = replay
            at = following
    emptied_at: int = 0
    if data.startswith(EMPTIED_MAGIC, at):
        (emptied_at,) = struct.unpack_from(">Q", data, at + len(EMPTIED_MAGIC))
    return states, emptied_at


def _keys(data: bytes, begin: int, locations: int | None, count: int) -> list[bytes]:
    """Decode `count` entries, each followed by its location if that is known."""
    entries = _cut(data, begin, count, _ENTRY_SIZE)
    if locations is None:
        return list(entries)
    pairs = zip(entries, _cut(data, locations, count, _LOCATION.size), strict=True)
    return [entry if location == _UNKNOWN else entry + location for entry, location in pairs]


def pack_key(due: float, serial: int, message_id: bytes, attempt: int, location: bytes = NOWHERE) -> bytes:
    """An entry, followed by its message's location if that is known."""
    return ENTRY.pack(due, serial, message_id, attempt) + location


def key_location(key: bytes) -> bytes:
    """The location in the log of a key's message, or ``NOWHERE``."""
    return key[_ENTRY_SIZE:]


def immediate_entries(messages: Iterable[tuple[bytes, int]]) -> list[bytes]:
    """Keys of messages (id, number of the next delivery) that are due at once, in this order."""
    return [ENTRY.pack(0.0, serial, message_id, attempt) for serial, (message_id, attempt) in enumerate(messages)]


def copied_messages(
    in_flight: Iterable[Mapping[bytes, bytes]], returned: Iterable[bytes], restored: Iterable[tuple[bytes, int]]
) -> Iterator[tuple[bytes, int]]:
    """Id and number of the next delivery of all these messages, as of the time of the call.

    The call only copies references, which takes a twentieth of the time that decoding the frames takes.
    """
    delivered, waiting = list(chain.from_iterable(each.values() for each in in_flight)), list(returned)
    return chain(
        ((message_id(frame), (attempts(frame) + 1) & 0xFFFF) for frame in delivered),
        ((message_id(frame), attempts(frame)) for frame in waiting),
        list(restored),
    )


def is_immediate(key: bytes) -> bool:
    return key.startswith(_DUE_IMMEDIATELY)


def entry_id(key: bytes) -> bytes:
    return key[_ENTRY_ID]


def _cut(data: bytes, begin: int, count: int, size: int) -> Iterator[bytes]:
    end = begin + count * size
    if end > len(data):
        raise ValueError("cut short")
    return (data[at : at + size] for at in range(begin, end, size))
