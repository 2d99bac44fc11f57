"""Message frames. A message is its wire frame: immutable bytes, shared by all channels until the message is finished.

A queued frame has the attempt number of its *next* delivery, so that a delivery copies nothing. Only a redelivery makes
a new frame.
"""

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Final

from nsq_compat.protocol import schema
from nsq_compat.protocol.frames import FRAME_TYPE_MESSAGE
from nsq_compat.protocol.layout import derive, pack_size
from nsq_compat.protocol.schema import UniformBodies

HEADER: Final = derive(schema.MESSAGE_FRAME_HEADER)
HEADER_SIZE: Final = HEADER.size
_UNCOUNTED: Final = HEADER.offset("type")  # the size field does not count itself
_EMPTY_SIZE: Final = HEADER_SIZE - _UNCOUNTED
_ID: Final = HEADER.slices["id"]
_ATTEMPTS: Final = HEADER.slices["attempts"]
_TIMESTAMP: Final = HEADER.slices["timestamp_ns"]
_MAX_ATTEMPTS: Final = 0xFFFF
_SIZES: Final = [pack_size(_EMPTY_SIZE + length) for length in range(4096)]
"""Size fields by length of the body."""
_ID_BEGIN: Final[int] = _ID.start
_ID_END: Final[int] = _ID.stop
_id_of: Final = itemgetter(_ID)
_timestamp_of: Final = itemgetter(_TIMESTAMP)
_uint16: Final = struct.Struct(">H")


def make_frame(message_id: bytes, timestamp_ns: int, body: bytes) -> bytes:
    """The frame of a body for its first delivery (attempts = 1)."""
    return HEADER.pack(_EMPTY_SIZE + len(body), FRAME_TYPE_MESSAGE, timestamp_ns, 1, message_id) + body


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


def body(frame: bytes) -> bytes:
    """The message's body."""
    return frame[HEADER_SIZE:]


def with_attempts(frame: bytes, number: int) -> bytes:
    """The frame with attempt number `number`."""
    return frame[: _ATTEMPTS.start] + _uint16.pack(number) + frame[_ATTEMPTS.stop :]


def next_attempts(frames: Sequence[bytes]) -> list[bytes]:
    """The frames for redelivering messages."""
    # nsqd: the attempt number has 16 bits and wraps around.
    return [with_attempts(frame, (attempts(frame) + 1) & _MAX_ATTEMPTS) for frame in frames]
