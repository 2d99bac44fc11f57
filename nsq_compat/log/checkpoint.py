"""A topic's checkpoint: where each channel stands in the stream, and what it has taken from it and not finished.

Read again after a crash, it makes every channel go on from where it stood: messages behind `position` come from the
log, the unfinished ones by their ids. What was finished after the checkpoint was written comes again; nothing else.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice

import google_crc32c

from nsq_compat.log.group import NOWHERE
from nsq_compat.log.topic_log import LogEnd
from nsq_compat.protocol import storage_schema
from nsq_compat.protocol.layout import derive
from nsq_compat.protocol.message import attempts, message_id
from nsq_compat.protocol.storage_schema import LOCATIONS_MAGIC

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

_PAUSED, _AWAITS_CHANNELS, _INCOMPLETE = 1, 2, 4
_DUE_AT_ONCE = bytes(8)  # a due time of 0

_HELD_BY_TOPIC = ""
"""The name under which the file has what no channel has got."""


class BadCheckpoint(Exception):
    """The bytes are not a whole checkpoint."""


@dataclass(slots=True)
class ChannelState:
    """What a channel has still to deliver, or a topic that holds messages back.

    `position` is the place in the topic's stream, `gaps` are parts of the stream behind it that are passed over,
    `entries` are the messages taken from the stream and not finished: keys as ``deferred`` holds them. A key is an
    entry of a checkpoint and, if that is known, the location of its message in the log.

    `unfinished` are messages that have no entry yet, as `copied_messages` returns them: there may be a hundred thousand
    in flight, and their entries are made a step at a time.
    """

    position: int
    entries: list[bytes] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    unfinished: Iterator[tuple[bytes, int]] = field(default_factory=lambda: iter(()), compare=False, repr=False)

    def add_entries(self) -> bool:
        """Make entries for some of `unfinished`; returns whether there were any."""
        some = list(islice(self.unfinished, _ENTRIES_PER_STEP))
        self.entries += [ENTRY.pack(0.0, 0, number, attempt) for number, attempt in some]
        return bool(some)

    def all_entries(self) -> list[bytes]:
        """`entries`, once every message has its own."""
        while self.add_entries():
            pass
        return self.entries

    def pass_over(self, begin: int, end: int) -> None:
        """Do not deliver this part of the stream, which lies behind everything the channel has."""
        if self.position == begin:
            self.position = end
        elif begin < end:
            self.gaps.append((begin, end))

    def at_once(self) -> list[tuple[bytes, int]]:
        """Those to be delivered as soon as possible, in order: id and number of the next delivery."""
        keys = sorted(key for key in self.all_entries() if is_at_once(key))
        return [(number, attempt) for _, _, number, attempt in map(ENTRY.unpack_from, keys)]

    def deferred(self) -> list[bytes]:
        """The keys of the others."""
        return [key for key in self.all_entries() if not is_at_once(key)]

    def take_deferred(self) -> list[bytes]:
        """The same; the entries are forgotten, because with millions of them a second list would double the memory."""
        keys = self.deferred()
        self.entries = []
        return keys


@dataclass(slots=True)
class TopicState:
    """All that a checkpoint says of a topic, and that recovery finds out.

    `end` is where the topic's log ended, and the number of the next message. `clock_offset` plus a due time is seconds
    since 1970.
    """

    end: LogEnd
    clock_offset: float
    last_id: bytes
    channels: dict[str, ChannelState] = field(default_factory=dict)
    held: ChannelState | None = None
    """What no channel has got yet, if messages are held back."""
    paused: bool = False
    awaits_channels: bool = False
    incomplete: bool = False
    """Some messages that are to be delivered may be in memory only, at level ``memory``: no log has their numbers."""
    everything: ChannelState | None = None
    """Recovery found no checkpoint: all there is, for channels of which nothing is known. Not written."""
    gone: set[str] = field(default_factory=set)
    """Channels that recovery found deleted. Not written."""
    is_current: bool = True
    """Whether the checkpoint on the disk says all of this. Not written."""

    @property
    def held_back(self) -> bool:
        """Whether channels get nothing of what is published."""
        return self.paused or self.awaits_channels

    @property
    def backlogs(self) -> list[ChannelState]:
        """All there are; those that are not channels' come first."""
        return [state for state, _ in self.streams]

    @property
    def streams(self) -> list[tuple[ChannelState, int]]:
        """The same, each with the number at which the stream ends for it."""
        stop = self.end.seq if self.held is None else self.held.position
        others = [each for each in (self.held, self.everything) if each is not None]
        return [*((each, self.end.seq) for each in others), *((each, stop) for each in self.channels.values())]

    def encode(self) -> bytes:
        """The content of the checkpoint file."""
        return b"".join(Encoding(self).finish())


class Encoding:
    """A checkpoint on its way to the bytes of its file: a step at a time, because there may be millions of entries."""

    def __init__(self, state: TopicState) -> None:
        self._state = state
        self._pieces: list[bytes] = []
        self._locations: list[bytes] = []
        self._crc = 0
        self._steps = self._encode()

    def step(self) -> bool:
        """Do a little more; whether there is more to do."""
        return next(self._steps, False)

    def finish(self) -> list[bytes]:
        """Do the rest. The content, in pieces."""
        while self.step():
            pass
        return self._pieces

    def _encode(self) -> Iterator[bool]:
        topic, pieces = self._state, self._pieces
        named = dict(topic.channels) if topic.held is None else {**topic.channels, _HELD_BY_TOPIC: topic.held}
        flags = topic.paused * _PAUSED | topic.awaits_channels * _AWAITS_CHANNELS | topic.incomplete * _INCOMPLETE
        header = HEADER.pack(0, *topic.end, topic.clock_offset, topic.last_id, flags, len(named))
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
        pieces[0] = header[: _CRC_END - 4] + struct.pack(">I", self._crc) + header[_CRC_END:]

    def _add(self, piece: bytes) -> None:
        self._crc = google_crc32c.extend(self._crc, piece)
        self._pieces.append(piece)


def decode(data: bytes) -> TopicState:
    """The state that a checkpoint file says. Raises ``BadCheckpoint``."""
    try:
        crc, segment, offset, seq, clock_offset, last_id, flags, count = HEADER.unpack_from(data)
        if google_crc32c.value(data[_CRC_END:]) != crc:
            raise BadCheckpoint("checksum does not match")
        named = _decode_channels(data, count)
    except (struct.error, ValueError) as error:
        raise BadCheckpoint(str(error)) from None
    held = named.pop(_HELD_BY_TOPIC, None)
    paused, awaits_channels, incomplete = (bool(flags & flag) for flag in (_PAUSED, _AWAITS_CHANNELS, _INCOMPLETE))
    end = LogEnd(segment, offset, seq)
    return TopicState(end, clock_offset, last_id, named, held, paused, awaits_channels, incomplete)


def _decode_channels(data: bytes, count: int) -> dict[str, ChannelState]:
    """By name. Raises ``struct.error`` and ``ValueError``."""
    found: list[tuple[str, ChannelState, int, int]] = []
    at = HEADER.size
    for _ in range(count):
        length, position, gaps, entries = CHANNEL.unpack_from(data, at)
        name_end = at + CHANNEL.size + length
        name = data[at + CHANNEL.size : name_end].decode("ascii")
        gaps_end = name_end + gaps * GAP.size
        at = gaps_end + entries * ENTRY.size
        passed_over = [(begin, end) for begin, end in map(GAP.unpack_from, _cut(data, name_end, gaps_end, GAP.size))]
        if at > len(data):
            raise ValueError("cut short")
        found.append((name, ChannelState(position, gaps=passed_over), gaps_end, entries))
    located = data.startswith(LOCATIONS_MAGIC, at)
    at += len(LOCATIONS_MAGIC)
    for _, state, begin, entries in found:
        state.entries = _keys(data, begin, at if located else None, entries)
        at += entries * _LOCATION.size
    return {name: state for name, state, _, _ in found}


def _keys(data: bytes, begin: int, locations: int | None, count: int) -> list[bytes]:
    """So many entries, each with its location if that is there and known."""
    entries = _cut(data, begin, begin + count * _ENTRY_SIZE, _ENTRY_SIZE)
    if locations is None:
        return list(entries)
    pairs = zip(entries, _cut(data, locations, locations + count * _LOCATION.size, _LOCATION.size), strict=True)
    return [entry if location == _UNKNOWN else entry + location for entry, location in pairs]


def pack_key(due: float, serial: int, number: bytes, attempt: int, location: bytes = NOWHERE) -> bytes:
    """An entry, followed by its message's location if that is known."""
    return ENTRY.pack(due, serial, number, attempt) + location


def key_location(key: bytes) -> bytes:
    """Where the message of an entry is in the log, or ``NOWHERE``."""
    return key[_ENTRY_SIZE:]


def entries_at_once(messages: Iterable[tuple[bytes, int]]) -> list[bytes]:
    """Keys of messages (id, number of the next delivery) to be delivered as soon as possible, in this order."""
    return [ENTRY.pack(0.0, serial, number, attempt) for serial, (number, attempt) in enumerate(messages)]


def copied_messages(
    in_flight: Iterable[Mapping[bytes, bytes]], returned: Iterable[bytes], restored: Iterable[tuple[bytes, int]]
) -> Iterator[tuple[bytes, int]]:
    """Id and number of the next delivery of all these messages, as they are at the time of the call.

    A call copies references, which takes a twentieth of the time that it takes to look into the frames.
    """
    delivered, waiting = list(chain.from_iterable(each.values() for each in in_flight)), list(returned)
    return chain(
        ((message_id(frame), (attempts(frame) + 1) & 0xFFFF) for frame in delivered),
        ((message_id(frame), attempts(frame)) for frame in waiting),
        list(restored),
    )


def is_at_once(key: bytes) -> bool:
    """Whether an entry's message is to be delivered as soon as possible."""
    return key.startswith(_DUE_AT_ONCE)


def entry_id(key: bytes) -> bytes:
    """The id of the message an entry is about."""
    return key[_ENTRY_ID]


def _cut(data: bytes, begin: int, end: int, size: int) -> Iterator[bytes]:
    if end > len(data):
        raise ValueError("cut short")
    return (data[at : at + size] for at in range(begin, end, size))
