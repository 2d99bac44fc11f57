"""Message frames and ids. A message is its frame: immutable bytes, shared by all channels until it is finished.

A queued frame has the attempt number of its *next* delivery, so that a delivery copies nothing. Only a redelivery makes
a new frame.

An id is a 64-bit number, written as 16 hex digits: ticks of 2**20 ns since an epoch of its own, 10 bits of node id, 12
bits of sequence. The ids of one factory only grow. nsqd sleeps when a tick's 4096 numbers are used up or the clock goes
back. Here the next id is the greater of "one more than the last" and "now", so publishes never wait: ids run ahead of
the clock until it catches up. A clock beyond the year 2085, for which an id has no bits, is ignored.
"""

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Final

from nsq_compat.protocol import schema
from nsq_compat.protocol.frames import FRAME_TYPE_MESSAGE, FRAME_TYPE_MESSAGE_WITH_HEADERS
from nsq_compat.protocol.headers import (
    NO_HEADERS,
    Headers,
    body_begin,
    checked,
    decode,
    encode,
    has_reserved,
    is_empty,
    with_no_headers,
    with_origin_id,
)
from nsq_compat.protocol.headers import expires_ns as expires_in
from nsq_compat.protocol.headers import publish_id as publish_id_in
from nsq_compat.protocol.layout import derive, pack_size
from nsq_compat.protocol.schema import UniformBodies

HEADER: Final = derive(schema.MESSAGE_FRAME_HEADER)
HEADER_SIZE: Final = HEADER.size
_UNCOUNTED: Final = HEADER.offset("type")  # the size field does not count itself
_EMPTY_SIZE: Final = HEADER_SIZE - _UNCOUNTED
_ID: Final = HEADER.slices["id"]
_ATTEMPTS: Final = HEADER.slices["attempts"]
_TIMESTAMP: Final = HEADER.slices["timestamp_ns"]
_TYPE_END: Final[int] = HEADER.slices["type"].stop
_MAX_ATTEMPTS: Final = 0xFFFF
_SIZES: Final = [pack_size(_EMPTY_SIZE + length) for length in range(4096)]
"""Size fields by length of the body."""
_ID_BEGIN: Final[int] = _ID.start
_ID_END: Final[int] = _ID.stop
_id_of: Final = itemgetter(_ID)
_timestamp_of: Final = itemgetter(_TIMESTAMP)
_uint16: Final = struct.Struct(">H")
_TYPE_OF_MESSAGE: Final[bytes] = HEADER.pack(0, FRAME_TYPE_MESSAGE, 0, 0, b"")[_UNCOUNTED:_TYPE_END]


def make_frame(message_id: bytes, timestamp_ns: int, body: bytes) -> bytes:
    """The frame of a body for its first delivery (attempts = 1)."""
    return HEADER.pack(_EMPTY_SIZE + len(body), FRAME_TYPE_MESSAGE, timestamp_ns, 1, message_id) + body


def make_frame_of_payload(message_id: bytes, timestamp_ns: int, payload: bytes) -> bytes:
    """The frame of a sound payload (``protocol.headers``) for its first delivery."""
    if is_empty(payload):
        return make_frame(message_id, timestamp_ns, payload[body_begin(payload, 0) :])
    size = _EMPTY_SIZE + len(payload)
    return HEADER.pack(size, FRAME_TYPE_MESSAGE_WITH_HEADERS, timestamp_ns, 1, message_id) + payload


def make_frames(
    ids: Sequence[bytes],
    timestamp_ns: int,
    bodies: Sequence[bytes],
    id_start: bytes = b"",
    lengths: Sequence[int] = (),
) -> tuple[bytes, ...]:
    """``make_frame`` of each body. An id is `id_start` and an element of `ids`; `lengths` are the bodies', if known."""
    # Hot: runs for every message published. The result is a tuple, because the garbage collector soon untracks a
    # tuple of bytes, and a backlog may have a million frames.
    if len(ids) != len(bodies):
        raise ValueError("each body needs an id of its own")
    # Only size and id differ between frames. Joining costs less than packing, and map, zip and join run in C.
    same = _between_size_and_id(timestamp_ns) + id_start
    lengths = lengths or list(map(len, bodies))
    try:
        if lengths and lengths.count(lengths[0]) == len(lengths):
            return tuple(map(b"".join, zip(repeat(_SIZES[lengths[0]] + same), ids, bodies)))
        sizes: Iterable[bytes] = map(_SIZES.__getitem__, lengths)
        return tuple(map(b"".join, zip(sizes, repeat(same), ids, bodies)))
    except IndexError:  # a body that _SIZES does not cover
        sizes = (pack_size(_EMPTY_SIZE + length) for length in lengths)
        return tuple(map(b"".join, zip(sizes, repeat(same), ids, bodies)))


def join_uniform(ids: Sequence[bytes], timestamp_ns: int, bodies: UniformBodies, id_start: bytes = b"") -> bytes:
    """The frames of ``make_frames``, concatenated."""
    # Hot: runs for most MPUBs. Joining a batch and splitting it costs less than making frames one by one, and the log
    # writes the joined bytes.
    count = len(bodies)
    if len(ids) != count:
        raise ValueError("each body needs an id of its own")
    parts = [pack_size(_EMPTY_SIZE + len(bodies[0])) + _between_size_and_id(timestamp_ns) + id_start] * (3 * count)
    parts[1::3] = ids
    parts[2::3] = bodies
    return b"".join(parts)


def cut_uniform(joined: bytes, size: int, begin: int, count: int) -> tuple[bytes, ...]:
    """The `count` frames of `size` bytes each that begin at `begin`."""
    return _uniform_layout(size, count).unpack_from(joined, begin)


@lru_cache(maxsize=64)
def _uniform_layout(size: int, count: int) -> struct.Struct:
    return struct.Struct(f"{size}s" * count)


def _between_size_and_id(timestamp_ns: int) -> bytes:
    return HEADER.pack(0, FRAME_TYPE_MESSAGE, timestamp_ns, 1, b"")[_UNCOUNTED : _ID.start]


def message_id(frame: bytes) -> bytes:
    """The message's id, 16 ASCII bytes."""
    return frame[_ID_BEGIN:_ID_END]


def message_ids(frames: Sequence[bytes]) -> list[bytes]:
    """The ids of many frames."""
    # Hot: runs for every message delivered. For a single one, an index is cheaper than `map`.
    if len(frames) == 1:
        return [frames[0][_ID_BEGIN:_ID_END]]
    return list(map(_id_of, frames))


def attempts(frame: bytes) -> int:
    """The attempt number of the frame's delivery, from 1."""
    number: int = _uint16.unpack_from(frame, _ATTEMPTS.start)[0]
    return number


def timestamp_ns(frame: bytes) -> int:
    """The time of publishing, in nanoseconds since 1970."""
    return int.from_bytes(_timestamp_of(frame), "big", signed=True)


def raw_timestamps(frames: Iterable[bytes]) -> list[bytes]:
    """The timestamp fields of many frames: eight bytes each, equal for messages of one publish."""
    # Hot: runs for every message finished while latencies are measured.
    return list(map(_timestamp_of, frames))


def has_headers(frame: bytes) -> bool:
    """Whether the message has headers, so that its frame is not one of NSQ."""
    return frame[_TYPE_END - 1] == FRAME_TYPE_MESSAGE_WITH_HEADERS


def body(frame: bytes) -> bytes:
    """The message's body."""
    return frame[body_begin(frame, HEADER_SIZE) if has_headers(frame) else HEADER_SIZE :]


def expires_ns(frame: bytes) -> int:
    """When the message expires, in nanoseconds since 1970; 0 if never."""
    return expires_in(frame, HEADER_SIZE) if has_headers(frame) else 0


def publish_id(frame: bytes) -> bytes:
    """The publish id of the message (``headers.ID``), b"" if it has none."""
    return publish_id_in(frame, HEADER_SIZE) if has_headers(frame) else b""


def headers(frame: bytes) -> Headers:
    """The message's headers."""
    return decode(frame[HEADER_SIZE:])[0] if has_headers(frame) else NO_HEADERS


def payload(frame: bytes) -> bytes:
    """The header block, which may be empty, and the body."""
    return frame[HEADER_SIZE:] if has_headers(frame) else with_no_headers(frame[HEADER_SIZE:])


def payload_again(frame: bytes) -> bytes:
    """The payload for publishing the message again on purpose."""
    if has_headers(frame) and has_reserved(frame, HEADER_SIZE):
        return encode(with_origin_id(headers(frame)).items()) + body(frame)
    return payload(frame)


def without_headers(frames: Sequence[bytes]) -> list[bytes]:
    """The frames for a client that did not ask for headers."""
    return [_without_headers(frame) if has_headers(frame) else frame for frame in frames]


def _without_headers(frame: bytes) -> bytes:
    rest = body(frame)
    return pack_size(_EMPTY_SIZE + len(rest)) + _TYPE_OF_MESSAGE + frame[_TYPE_END:HEADER_SIZE] + rest


def with_attempts(frame: bytes, number: int) -> bytes:
    """The frame with attempt number `number`."""
    return frame[: _ATTEMPTS.start] + _uint16.pack(number) + frame[_ATTEMPTS.stop :]


def next_attempts(frames: Sequence[bytes]) -> list[bytes]:
    """The frames for redelivering messages."""
    # nsqd: the attempt number has 16 bits and wraps around.
    return [with_attempts(frame, (attempts(frame) + 1) & _MAX_ATTEMPTS) for frame in frames]


def tick_of(time_ns: int) -> int:
    """The tick of a time, as in the ids of messages that are published then."""
    return (time_ns >> TICK_SHIFT) - EPOCH_TICK


def publish_tick(message_id: bytes) -> int:
    """The tick in an id: about the time of publishing, but never before that of an earlier id."""
    return int(message_id, 16) >> (NODE_ID_BITS + SEQUENCE_BITS)


MAX_LEAD_NS: Final = 120_000_000_000
"""How far ids may be ahead of the times of their messages before `MessageIds.early` notes it. Large batches take ids a
minute ahead."""
TICK_SHIFT: Final = 20
EPOCH_TICK: Final = 1288834974288
NODE_ID_BITS: Final = 10
SEQUENCE_BITS: Final = 12
_SEQUENCE_SIZE: Final = 1 << SEQUENCE_BITS
_MAX_CLOCK: Final = 1 << (41 + SEQUENCE_BITS)  # half of the range; the other half is for ids that run ahead
_THREE_DIGITS: Final = [b"%03x" % number for number in range(_SEQUENCE_SIZE)]
"""The last digits of an id, by sequence. The 13 digits for tick and node before them end in the same way."""
_MAX_LEAD: Final = (MAX_LEAD_NS >> TICK_SHIFT) << SEQUENCE_BITS
_ERA_SHIFT: Final = 14
"""The rest of a tick is an id's first 7 digits, which change every 17 s."""


class MessageIds:
    """The ids of one topic; `node_id` is in [0, 1024)."""

    def __init__(self, node_id: int) -> None:
        self._node = node_id << SEQUENCE_BITS
        self._next = 0  # tick and sequence as one number, the node id left out
        self._early = -1  # the last number that was taken more than `_MAX_LEAD` ahead of the clock
        self._before = b""  # the last id of an earlier run of nsqd
        self._tick = -1  # of `_start`
        self._start = b""
        self._era = -1  # of `_era_digits`
        self._era_digits = b""

    def take_one(self, now_ns: int) -> bytes:
        """Take the next id, 16 ASCII hex digits."""
        # Hot: runs for every synchronous PUB. Code shared with `take_runs` is written out, because calls cost most.
        number = ((now_ns >> TICK_SHIFT) - EPOCH_TICK) << SEQUENCE_BITS
        if not self._next < number < _MAX_CLOCK:
            if self._next - number > _MAX_LEAD:
                self._early = self._next
            number = self._next
        self._next = number + 1
        start = self._start if number >> SEQUENCE_BITS == self._tick else self._start_of(number)
        return start + _THREE_DIGITS[number & (_SEQUENCE_SIZE - 1)]

    def take_runs(self, count: int, now_ns: int) -> list[tuple[bytes, list[bytes]]]:
        """Take the next ids, at least one, in runs: the first digits of a tick's ids, and the last digits of each."""
        # Hot: runs for every publish. Frames are joined from pieces, so two pieces of an id do as well.
        clock = ((now_ns >> TICK_SHIFT) - EPOCH_TICK) << SEQUENCE_BITS
        first = clock if self._next < clock < _MAX_CLOCK else self._next
        self._next = first + count
        if self._next - clock > _MAX_LEAD:
            self._early = self._next - 1
        return self.runs_from(first, count)

    def runs_from(self, first: int, count: int) -> list[tuple[bytes, list[bytes]]]:
        """Like ``take_runs``, for the numbers from `first` on. They are taken already, or will be with ``skip_to``."""
        end = first + count
        runs: list[tuple[bytes, list[bytes]]] = []
        while first < end:
            sequence = first & (_SEQUENCE_SIZE - 1)
            tick_end = min(end, first - sequence + _SEQUENCE_SIZE)
            runs.append((self._start_of(first), _THREE_DIGITS[sequence : sequence + tick_end - first]))
            first = tick_end
        return runs

    def ahead(self, until_ns: int, room: int) -> int:
        """Return a number that ids taken until that time do not reach, nor the next `room` ids."""
        clock = ((until_ns >> TICK_SHIFT) - EPOCH_TICK) << SEQUENCE_BITS
        return max(self._next + room, clock if clock < _MAX_CLOCK else 0)

    def has_reached(self, number: int) -> bool:
        """Whether that number, or a later one, was taken."""
        return self._next > number

    def skip_to(self, number: int, now_ns: int) -> None:
        """Take only numbers from this one on. Those before it are of messages that were published then."""
        self._next = number
        if number - (((now_ns >> TICK_SHIFT) - EPOCH_TICK) << SEQUENCE_BITS) > _MAX_LEAD:
            self._early = self._next - 1

    @property
    def early(self) -> bytes:
        """The messages with greater ids were published at most `MAX_LEAD_NS` before the times in their ids.

        An id is ahead after the clock was set back. Of an earlier run of nsqd nothing is known.
        """
        return max(self._before, b"%016x" % self._id(self._early) if self._early >= 0 else b"")

    def _start_of(self, number: int) -> bytes:
        # Formatting digits is the largest cost. They are the same for all ids of a tick, and mostly for the next tick.
        tick = number >> SEQUENCE_BITS
        if tick != self._tick:
            self._tick = tick
            era = tick >> _ERA_SHIFT
            if era != self._era:
                self._era, self._era_digits = era, b"%07x" % era
            ends = (tick & 3) << NODE_ID_BITS | self._node >> SEQUENCE_BITS
            self._start = self._era_digits + _THREE_DIGITS[(tick >> 2) & 0xFFF] + _THREE_DIGITS[ends]
        return self._start

    @property
    def last(self) -> bytes:
        """The greatest id taken, or one below all ids."""
        return b"%016x" % (self._id(self._next - 1) if self._next else 0)

    def start_after(self, last: bytes) -> None:
        """Take only greater ids than this one, even if the clock is behind it."""
        number = int(last, 16)
        tick, sequence = number >> (NODE_ID_BITS + SEQUENCE_BITS), number & (_SEQUENCE_SIZE - 1)
        following = (tick << SEQUENCE_BITS | sequence) + 1
        if self._id(following) <= number:  # an id with a higher node id, which this daemon may have had before
            following = (tick + 1) << SEQUENCE_BITS
        self._next = max(self._next, following)
        self._before = max(self._before, last)

    def _id(self, number: int) -> int:
        tick, sequence = number >> SEQUENCE_BITS, number & (_SEQUENCE_SIZE - 1)
        return tick << (NODE_ID_BITS + SEQUENCE_BITS) | self._node | sequence


class FrameFactory:
    """Creates the frames of one topic, with its `ids`."""

    def __init__(self, node_id: int) -> None:
        self.ids = MessageIds(node_id)

    def make(self, bodies: Sequence[bytes], now_ns: int) -> tuple[tuple[bytes, ...], bytes, int]:
        """Return a frame for each body, the frames joined (b"" if that costs extra), and the size of the bodies."""
        # Hot: runs for every publish.
        if len(bodies) == 1:
            body = bodies[0]
            return (make_frame(self.ids.take_one(now_ns), now_ns, body),), b"", len(body)
        runs = self.ids.take_runs(len(bodies), now_ns)
        if type(bodies) is UniformBodies:
            joined, done = b"", 0
            for start, ends in runs:
                run = bodies if len(ends) == len(bodies) else UniformBodies(bodies[done : done + len(ends)])
                joined += join_uniform(ends, now_ns, run, start)
                done += len(ends)
            return cut_uniform(joined, len(joined) // done, 0, done), joined, done * len(bodies[0])
        lengths = list(map(len, bodies))
        if len(runs) == 1:
            ((start, ends),) = runs
            return make_frames(ends, now_ns, bodies, start, lengths), b"", sum(lengths)
        return _in_runs(runs, bodies, now_ns), b"", sum(lengths)

    def make_from(self, bodies: Sequence[bytes], now_ns: int, first: int) -> tuple[bytes, ...]:
        """Return frames with the ids from number `first` on, which is from ``MessageIds.ahead``."""
        return _in_runs(self.ids.runs_from(first, len(bodies)), bodies, now_ns)

    def make_with_headers(self, payloads: Sequence[bytes], now_ns: int) -> tuple[bytes, ...]:
        """Return a frame for each payload (``protocol.headers``). Raises ``HeaderError``."""
        sound = list(map(checked, payloads))
        return tuple([make_frame_of_payload(self.ids.take_one(now_ns), now_ns, each) for each in sound])

    def make_with_headers_from(self, payloads: Sequence[bytes], now_ns: int, first: int) -> tuple[bytes, ...]:
        """As ``make_with_headers``, with the ids of ``make_from``."""
        ids = [start + end for start, ends in self.ids.runs_from(first, len(payloads)) for end in ends]
        pairs = zip(ids, map(checked, payloads), strict=True)
        return tuple([make_frame_of_payload(each_id, now_ns, each) for each_id, each in pairs])


def _in_runs(runs: Sequence[tuple[bytes, list[bytes]]], bodies: Sequence[bytes], now_ns: int) -> tuple[bytes, ...]:
    """Return frames of bodies that need more ids than one tick has left."""
    frames: list[bytes] = []
    for start, ends in runs:
        frames += make_frames(ends, now_ns, bodies[len(frames) : len(frames) + len(ends)], start)
    return tuple(frames)
