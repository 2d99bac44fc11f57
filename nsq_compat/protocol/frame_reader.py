"""The client's side of nsqd's frames: received bytes in any cut, frames out; and a message out of a frame's data.

Invariants: *any cut of the input gives the same frames* and the same error at the same place; time is linear in the
bytes; what is kept is one read and at most one incomplete frame, whose size was judged before it was awaited.
"""

from collections.abc import Iterator
from typing import NamedTuple

from nsq_compat.protocol import schema
from nsq_compat.protocol.frames import FRAME_HEADER, FRAME_TYPE_MESSAGE
from nsq_compat.protocol.layout import derive
from nsq_compat.protocol.receive_buffer import ReceiveBuffer

DEFAULT_MAX_FRAME_SIZE = 16 << 20
"""Bytes; well above a message of nsqd's default --max-msg-size (1 MiB). nsqd does not announce its own limit."""

_MESSAGE_HEADER = derive(schema.MESSAGE_HEADER)
_TYPE_OFFSET = FRAME_HEADER.offset("type")
_MIN_FRAME_SIZE = FRAME_HEADER.size - _TYPE_OFFSET
_MIN_MESSAGE_SIZE = _MIN_FRAME_SIZE + _MESSAGE_HEADER.size


class FrameError(Exception):
    """What arrived cannot be frames; the connection is of no more use."""


class Frame(NamedTuple):
    """One frame: `type` is one of ``frames.FRAME_TYPE_*`` (not checked), `data` what follows it."""

    type: int
    data: bytes


class FrameBlock(NamedTuple):
    """Frames as they came: number i is ``data[starts[i] : starts[i + 1]]``, header and all. Those that are no messages
    are in `others` too, with their numbers; every message has a whole header."""

    data: bytes
    starts: list[int]
    others: list[tuple[int, Frame]]


class Message(NamedTuple):
    """What the data of a message frame says. `id` is 16 ASCII bytes, `attempts` 1 at the first delivery."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


class FrameReader:
    """Reads one connection's frames. `max_frame_size` bounds a frame's size field: its type and data, in bytes."""

    def __init__(self, max_frame_size: int = DEFAULT_MAX_FRAME_SIZE) -> None:
        self._max_frame_size = max_frame_size
        self._buffer = ReceiveBuffer(FRAME_HEADER.size)

    def receive_data(self, data: bytes) -> Iterator[Frame]:
        """Take what the socket gave; iterate over the frames that are complete.

        Lazy: what has not been iterated over stays for the next call or for `hand_back`. The iterator raises
        ``FrameError`` when a frame says it is smaller than its own type or larger than allowed, and does so every time.
        """
        return self._frames() if self._buffer.append(data) else iter(())

    def receive_block(self, data: bytes) -> FrameBlock:
        """Take what the socket gave; all frames that are complete at once, for who handles them by the thousand.

        Raises ``FrameError`` as `receive_data` does, also for a message shorter than its header, and every time.
        """
        # Hot: runs for every message a task of Spark receives.
        buffer, unpack_header, max_size = self._buffer, FRAME_HEADER.unpack_from, self._max_frame_size
        header_size, to_type = FRAME_HEADER.size, _TYPE_OFFSET
        message_type, min_size = FRAME_TYPE_MESSAGE, _MIN_MESSAGE_SIZE
        starts: list[int] = []
        others: list[tuple[int, Frame]] = []
        if not buffer.append(data):
            return FrameBlock(b"", [0], others)
        data, position = buffer.gather(), 0
        end = len(data)
        last_start = end - header_size
        buffer.needed = header_size
        while position <= last_start:
            size, frame_type = unpack_header(data, position)
            is_message = frame_type == message_type
            if not (min_size if is_message else _MIN_FRAME_SIZE) <= size <= max_size:
                raise _wrong_size(size, frame_type, max_size)
            stop = position + to_type + size
            if stop > end:
                buffer.needed = to_type + size
                break
            if not is_message:
                others.append((len(starts), Frame(frame_type, data[position + header_size : stop])))
            starts.append(position)
            position = stop
        starts.append(position)
        buffer.position = position
        buffer.gather()
        return FrameBlock(data, starts, others)

    def hand_back(self) -> bytes:
        """The bytes behind the last frame, taken out of the reader: they belong to TLS or a compressed stream now."""
        return self._buffer.hand_back()

    def _frames(self) -> Iterator[Frame]:
        # Hot: runs for every message a consumer receives. The locals save lookups.
        buffer, unpack_header, max_size = self._buffer, FRAME_HEADER.unpack_from, self._max_frame_size
        header_size, to_type = FRAME_HEADER.size, _TYPE_OFFSET
        data, position = buffer.gather(), 0
        end = len(data)
        last_start = end - header_size
        buffer.needed = header_size
        while position <= last_start:
            size, frame_type = unpack_header(data, position)
            if not _MIN_FRAME_SIZE <= size <= max_size:
                raise _bad_size(size, max_size)
            stop = position + to_type + size
            if stop > end:
                buffer.needed = to_type + size
                break
            buffer.position = stop
            yield Frame(frame_type, data[position + header_size : stop])
            position = stop
        buffer.gather()


def parse_message(data: bytes) -> Message:
    """The message in a message frame's data. Raises ``FrameError`` when it is shorter than a message's header."""
    if len(data) < _MESSAGE_HEADER.size:
        raise _short_message(len(data))
    timestamp_ns, attempts, message_id = _MESSAGE_HEADER.unpack_from(data)
    return Message(timestamp_ns, attempts, message_id, data[_MESSAGE_HEADER.size :])


def _wrong_size(size: int, frame_type: int, max_size: int) -> FrameError:
    if frame_type == FRAME_TYPE_MESSAGE and _MIN_FRAME_SIZE <= size <= max_size:
        return _short_message(size - _MIN_FRAME_SIZE)
    return _bad_size(size, max_size)


def _bad_size(size: int, max_size: int) -> FrameError:
    return FrameError(f"a frame of {size} bytes, not {_MIN_FRAME_SIZE} to {max_size}")


def _short_message(size: int) -> FrameError:
    return FrameError(f"a message of {size} bytes, its header alone has {_MESSAGE_HEADER.size}")
