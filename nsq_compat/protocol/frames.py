"""The frames nsqd sends that are not messages: responses and errors. Message frames are made in ``message``.

A frame is immutable bytes in wire form, size field included, ready to be joined with others and sent.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from nsq_compat.protocol import schema
from nsq_compat.protocol.layout import derive
from nsq_compat.protocol.receive_buffer import ReceiveBuffer

FRAME_TYPE_RESPONSE: Final = 0
FRAME_TYPE_ERROR: Final = 1
FRAME_TYPE_MESSAGE: Final = 2

FRAME_HEADER: Final = derive(schema.FRAME_HEADER)

_pack_header = FRAME_HEADER.pack
_TYPE_SIZE: Final = FRAME_HEADER.size - FRAME_HEADER.offset("type")  # what the size field counts besides the data


def response_frame(data: bytes) -> bytes:
    """A response in wire form: ``OK``, ``CLOSE_WAIT``, ``_heartbeat_`` or a JSON object."""
    return _pack_header(_TYPE_SIZE + len(data), FRAME_TYPE_RESPONSE) + data


def error_frame(data: bytes) -> bytes:
    """An error in wire form; ``data`` is what ``NsqError.data`` gives."""
    return _pack_header(_TYPE_SIZE + len(data), FRAME_TYPE_ERROR) + data


OK: Final = response_frame(b"OK")
HEARTBEAT: Final = response_frame(b"_heartbeat_")
CLOSE_WAIT: Final = response_frame(b"CLOSE_WAIT")


DEFAULT_MAX_FRAME_SIZE = 16 << 20
"""Bytes; well above a message of nsqd's default --max-msg-size (1 MiB). nsqd does not announce its own limit."""

_MESSAGE_HEADER = derive(schema.MESSAGE_HEADER)
_TYPE_OFFSET = FRAME_HEADER.offset("type")
_MIN_FRAME_SIZE = FRAME_HEADER.size - _TYPE_OFFSET
_MIN_MESSAGE_SIZE = _MIN_FRAME_SIZE + _MESSAGE_HEADER.size

# Messages, when it is tried whether those at the beginning are alike.
_FIRST_LOOK = 16


class FrameError(Exception):
    """What arrived cannot be frames; the connection is of no more use."""


class Frame(NamedTuple):
    """One frame: `type` is one of ``frames.FRAME_TYPE_*`` (not checked), `data` what follows it."""

    type: int
    data: bytes


class FrameBlock(NamedTuple):
    """Frames as they came: number i is ``data[starts[i] : starts[i + 1]]``, header and all. Those that are no messages
    are in `others` too, with their numbers; every message has a whole header. Where `starts` is a range, all frames are
    messages of one size, its step."""

    data: bytes
    starts: Sequence[int]
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
        others: list[tuple[int, Frame]] = []
        if not buffer.append(data):
            return FrameBlock(b"", [0], others)
        data = buffer.gather()
        table = _uniform_run(data, max_size)
        starts, position = list[int](), table[-1]
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
                others.append((len(table) - 1 + len(starts), Frame(frame_type, data[position + header_size : stop])))
            starts.append(position)
            position = stop
        buffer.position = position
        buffer.gather()
        return FrameBlock(data, [*table[:-1], *starts, position] if starts else table, others)

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


def _uniform_run(data: bytes, max_size: int) -> range:
    """Where the whole messages begin, and where the last ends, that stand at the beginning and all have the size of the
    first. Looks at no more than some times what it finds."""
    # Column by column, without an object for a frame: what is published by programs often has one size.
    if len(data) < FRAME_HEADER.size:
        return range(1)
    header = data[: FRAME_HEADER.size]
    size, frame_type = FRAME_HEADER.unpack_from(header)
    step = _TYPE_OFFSET + size
    if frame_type != FRAME_TYPE_MESSAGE or not _MIN_MESSAGE_SIZE <= size <= max_size:
        return range(1)
    position, most = 0, _FIRST_LOOK
    while True:
        alike = min(most, (len(data) - position) // step)
        for place in range(FRAME_HEADER.size):
            column = data[position + place : position + alike * step : step]
            alike -= len(column.lstrip(header[place : place + 1]))
        position += alike * step
        if alike < most:
            return range(0, position + 1, step)
        most *= 8


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
