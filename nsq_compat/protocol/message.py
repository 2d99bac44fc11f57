"""A message is its wire frame: immutable bytes that every channel shares until the message is finished.

Everything here takes and returns frames, most of it lists of them. A queued frame carries the attempt number it *will
be* delivered with, so a delivery copies nothing; only a redelivery makes a new frame.
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
from nsq_compat.protocol.uniform_bodies import UniformBodies

HEADER: Final = derive(schema.MESSAGE_FRAME_HEADER)
HEADER_SIZE: Final = HEADER.size
_UNCOUNTED: Final = HEADER.offset("type")  # the size field does not count itself
_EMPTY_SIZE: Final = HEADER_SIZE - _UNCOUNTED
_ID: Final = HEADER.slices["id"]
_ATTEMPTS: Final = HEADER.slices["attempts"]
_TIMESTAMP: Final = HEADER.slices["timestamp_ns"]
_MAX_ATTEMPTS: Final = 0xFFFF
_SIZES: Final = [pack_size(_EMPTY_SIZE + length) for length in range(4096)]
"""The size field by the length of a body, for usual ones."""
_ID_BEGIN: Final[int] = _ID.start
_ID_END: Final[int] = _ID.stop
_id_of: Final = itemgetter(_ID)
_timestamp_of: Final = itemgetter(_TIMESTAMP)
_uint16: Final = struct.Struct(">H")


def make_frame(message_id: bytes, timestamp_ns: int, body: bytes) -> bytes:
    """A body's frame, ready for its first delivery (attempts = 1)."""
    return HEADER.pack(_EMPTY_SIZE + len(body), FRAME_TYPE_MESSAGE, timestamp_ns, 1, message_id) + body


def make_frames(
    ids: Sequence[bytes],
    timestamp_ns: int,
    bodies: Sequence[bytes],
    id_start: bytes = b"",
    lengths: Sequence[int] = (),
) -> tuple[bytes, ...]:
    """``make_frame`` of each body, all with the same timestamp.

    `ids` are what follows `id_start` in them; `lengths` those of the bodies, if they are known.
    """
    # Hot: runs for every message published. The result is a tuple, because the garbage collector soon stops
    # traversing a tuple of bytes, and a backlog may have a million frames.
    if len(ids) != len(bodies):
        raise ValueError("each body needs an id of its own")
    # Only size and id differ from frame to frame. Joining what is there costs less than packing it, and map, zip and
    # join are C: no frame costs a turn of the interpreter.
    same = _between_size_and_id(timestamp_ns) + id_start
    lengths = lengths or list(map(len, bodies))
    try:
        if lengths and lengths.count(lengths[0]) == len(lengths):
            return tuple(map(b"".join, zip(repeat(_SIZES[lengths[0]] + same), ids, bodies)))
        sizes: Iterable[bytes] = map(_SIZES.__getitem__, lengths)
        return tuple(map(b"".join, zip(sizes, repeat(same), ids, bodies)))
    except IndexError:  # one of them is bigger
        sizes = (pack_size(_EMPTY_SIZE + length) for length in lengths)
        return tuple(map(b"".join, zip(sizes, repeat(same), ids, bodies)))


def join_uniform(ids: Sequence[bytes], timestamp_ns: int, bodies: UniformBodies, id_start: bytes = b"") -> bytes:
    """The same frames, one behind the other."""
    # Hot: runs for most MPUBs. Joining a batch and cutting it again costs less than making frames one by one, and the
    # log is written from the joined bytes.
    count = len(bodies)
    if len(ids) != count:
        raise ValueError("each body needs an id of its own")
    parts = [pack_size(_EMPTY_SIZE + len(bodies[0])) + _between_size_and_id(timestamp_ns) + id_start] * (3 * count)
    parts[1::3] = ids
    parts[2::3] = bodies
    return b"".join(parts)


def cut_uniform(joined: bytes, size: int, begin: int, count: int) -> tuple[bytes, ...]:
    """So many frames of that size, the first of which is at `begin`."""
    return _uniform_layout(size, count).unpack_from(joined, begin)


@lru_cache(maxsize=64)
def _uniform_layout(size: int, count: int) -> struct.Struct:
    return struct.Struct(f"{size}s" * count)


def _between_size_and_id(timestamp_ns: int) -> bytes:
    return HEADER.pack(0, FRAME_TYPE_MESSAGE, timestamp_ns, 1, b"")[_UNCOUNTED : _ID.start]


def message_id(frame: bytes) -> bytes:
    """The 16 ASCII bytes a client names the message by."""
    return frame[_ID_BEGIN:_ID_END]


def message_ids(frames: Sequence[bytes]) -> list[bytes]:
    """The ids of many frames."""
    # Hot: runs for every message delivered; where it is a single one, an index is cheaper than `map`.
    if len(frames) == 1:
        return [frames[0][_ID_BEGIN:_ID_END]]
    return list(map(_id_of, frames))


def attempts(frame: bytes) -> int:
    """The number of the delivery the frame is meant for, 1 the first time."""
    number: int = _uint16.unpack_from(frame, _ATTEMPTS.start)[0]
    return number


def timestamp_ns(frame: bytes) -> int:
    """When the message was published, in nanoseconds since 1970."""
    return int.from_bytes(_timestamp_of(frame), "big", signed=True)


def raw_timestamps(frames: Iterable[bytes]) -> list[bytes]:
    """The timestamps of many frames as they are in them: eight bytes, equal for what was published together."""
    # Hot: runs for every message finished while latencies are watched.
    return list(map(_timestamp_of, frames))


def body(frame: bytes) -> bytes:
    """What the producer gave."""
    return frame[HEADER_SIZE:]


def next_attempt(frame: bytes) -> bytes:
    """The frame of the next delivery of a message that was delivered and not finished."""
    # nsqd: the number is 16 bits wide and wraps around.
    return with_attempts(frame, (attempts(frame) + 1) & _MAX_ATTEMPTS)


def with_attempts(frame: bytes, number: int) -> bytes:
    """The frame for the delivery of this number."""
    return frame[: _ATTEMPTS.start] + _uint16.pack(number) + frame[_ATTEMPTS.stop :]


def next_attempts(frames: Sequence[bytes]) -> list[bytes]:
    """``next_attempt`` of each."""
    return [next_attempt(frame) for frame in frames]
