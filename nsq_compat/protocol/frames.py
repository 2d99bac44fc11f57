"""Frames from nsqd: building responses and errors, and the client's reader of all frames.

A built frame is bytes in wire form, including the size field. ``message`` builds message frames.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from nsq_compat.protocol import schema
from nsq_compat.protocol.headers import NO_HEADERS, HeaderError, Headers, decode
from nsq_compat.protocol.layout import ReceiveBuffer, derive

FRAME_TYPE_RESPONSE: Final = 0
FRAME_TYPE_ERROR: Final = 1
FRAME_TYPE_MESSAGE: Final = 2
FRAME_TYPE_MESSAGE_WITH_HEADERS: Final = 3
"""Not in NSQ: only to clients that asked for headers, and in the log."""

FRAME_HEADER: Final = derive(schema.FRAME_HEADER)

_pack_header = FRAME_HEADER.pack
_TYPE_OFFSET: Final = FRAME_HEADER.offset("type")
_MIN_FRAME_SIZE: Final = FRAME_HEADER.size - _TYPE_OFFSET  # the type, which the size field counts


def response_frame(data: bytes) -> bytes:
    """A response: ``OK``, ``CLOSE_WAIT``, ``_heartbeat_`` or a JSON object."""
    return _pack_header(_MIN_FRAME_SIZE + len(data), FRAME_TYPE_RESPONSE) + data


def error_frame(data: bytes) -> bytes:
    """An error; `data` is ``NsqError.data``."""
    return _pack_header(_MIN_FRAME_SIZE + len(data), FRAME_TYPE_ERROR) + data


OK: Final = response_frame(b"OK")
HEARTBEAT: Final = response_frame(b"_heartbeat_")
CLOSE_WAIT: Final = response_frame(b"CLOSE_WAIT")
NO_WINDOW: Final = b"OK no-window"
"""Not in NSQ: the response to HPUB and HMPUB for a client that asks for it, at a topic where ids have no effect."""
OK_NO_WINDOW: Final = response_frame(NO_WINDOW)


# --- Reading frames ---------------------------------------------------------------------------------------------------

DEFAULT_MAX_FRAME_SIZE: Final = 16 << 20
"""Bytes; nsqd's default --max-msg-size is 1 MiB. nsqd does not announce its limit."""

_MESSAGE_HEADER: Final = derive(schema.MESSAGE_HEADER)
_MESSAGE_HEADER_SIZE: Final[int] = _MESSAGE_HEADER.size
_unpack_message_header: Final = _MESSAGE_HEADER.unpack_from
_new_tuple: Final = tuple.__new__
"""Makes a named tuple without a function of Python in between."""
_MIN_MESSAGE_SIZE: Final = _MIN_FRAME_SIZE + _MESSAGE_HEADER.size

_FIRST_PROBE: Final = 16
"""Messages that are first tested for equal sizes."""


class FrameError(Exception):
    """The input is not a sequence of valid frames; the connection must be closed."""


class Frame(NamedTuple):
    """A frame. `type` is not checked; the known ones are ``FRAME_TYPE_*``."""

    type: int
    data: bytes


class FrameBlock(NamedTuple):
    """Consecutive frames: frame i, including its header, is ``data[starts[i] : starts[i + 1]]``.

    `others` has the frames that are not messages, with their indexes. Every message is at least as long as its header.
    If `starts` is a range, all frames are messages of one size, its step, and without headers.
    """

    data: bytes
    starts: Sequence[int]
    others: list[tuple[int, Frame]]


class Message(NamedTuple):
    """A parsed message. `id` is 16 ASCII bytes; `attempts` is 1 at the first delivery."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes
    headers: Headers = NO_HEADERS


class FrameReader:
    """Reads the frames of one connection.

    `max_frame_size` limits a frame's size field (type and data, in bytes), and is checked before the rest is awaited.
    It may be changed after `hand_back`.
    """

    def __init__(self, max_frame_size: int = DEFAULT_MAX_FRAME_SIZE) -> None:
        self.max_frame_size = max_frame_size
        self._buffer = ReceiveBuffer(FRAME_HEADER.size)

    @property
    def is_empty(self) -> bool:
        """Whether there is no part of a frame."""
        return self._buffer.is_empty

    def receive_data(self, data: bytes) -> Iterator[Frame]:
        """Add received bytes and iterate over the complete frames; others remain for the next call or `hand_back`.

        The iterator raises ``FrameError`` if a size field is too small or too large, now and in every later call.
        """
        return self._frames() if self._buffer.append(data) else iter(())

    def receive_block(self, data: bytes) -> FrameBlock:
        """All complete frames at once. Raises ``FrameError``, also for a message shorter than its header."""
        # Hot: runs for every message that a Spark task receives.
        buffer, unpack_header, max_size = self._buffer, FRAME_HEADER.unpack_from, self.max_frame_size
        header_size, to_type = FRAME_HEADER.size, _TYPE_OFFSET
        message_type, with_headers, min_size = FRAME_TYPE_MESSAGE, FRAME_TYPE_MESSAGE_WITH_HEADERS, _MIN_MESSAGE_SIZE
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
            is_message = frame_type in (message_type, with_headers)
            if not (min_size if is_message else _MIN_FRAME_SIZE) <= size <= max_size:
                raise _size_error(size, max_size)
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
        """Remove and return the bytes after the last frame, for another codec."""
        return self._buffer.hand_back()

    def _frames(self) -> Iterator[Frame]:
        # Hot: runs for every message that a consumer receives. The locals save lookups.
        buffer, unpack_header, max_size = self._buffer, FRAME_HEADER.unpack_from, self.max_frame_size
        header_size, to_type = FRAME_HEADER.size, _TYPE_OFFSET
        data, position = buffer.gather(), 0
        end = len(data)
        last_start = end - header_size
        buffer.needed = header_size
        while position <= last_start:
            size, frame_type = unpack_header(data, position)
            if not _MIN_FRAME_SIZE <= size <= max_size:
                raise _size_error(size, max_size)
            stop = position + to_type + size
            if stop > end:
                buffer.needed = to_type + size
                break
            buffer.position = stop
            yield _new_tuple(Frame, (frame_type, data[position + header_size : stop]))
            position = stop
        buffer.gather()


def _uniform_run(data: bytes, max_size: int) -> range:
    """Starts, and the final end, of the complete messages at the beginning that have the size of the first one.

    Tests at most eight times as many bytes as it finds, beyond the first probe.
    """
    # Compares the headers column by column, without an object for each frame.
    if len(data) < FRAME_HEADER.size:
        return range(1)
    header = data[: FRAME_HEADER.size]
    size, frame_type = FRAME_HEADER.unpack_from(header)
    step = _TYPE_OFFSET + size
    if frame_type != FRAME_TYPE_MESSAGE or not _MIN_MESSAGE_SIZE <= size <= max_size:
        return range(1)
    position, probe = 0, _FIRST_PROBE
    while True:
        same = min(probe, (len(data) - position) // step)
        for offset in range(FRAME_HEADER.size):
            column = data[position + offset : position + same * step : step]
            same -= len(column.lstrip(header[offset : offset + 1]))
        position += same * step
        if same < probe:
            return range(0, position + 1, step)
        probe *= 8


def parse_message(data: bytes, frame_type: int = FRAME_TYPE_MESSAGE) -> Message:
    """Parse the data of a message frame. Raises ``FrameError`` if it is none, such as one that is too short."""
    # Hot: runs for every message a consumer receives.
    if len(data) < _MESSAGE_HEADER_SIZE:
        raise _short_message_error(len(data))
    timestamp_ns, attempts, message_id = _unpack_message_header(data)
    rest = data[_MESSAGE_HEADER_SIZE:]
    if frame_type != FRAME_TYPE_MESSAGE_WITH_HEADERS:
        return _new_tuple(Message, (timestamp_ns, attempts, message_id, rest, NO_HEADERS))
    try:
        headers, body = decode(rest)
    except HeaderError as error:
        raise FrameError(f"invalid headers of message {message_id!r}: {error}") from None
    return Message(timestamp_ns, attempts, message_id, body, headers)


def _size_error(size: int, max_size: int) -> FrameError:
    if _MIN_FRAME_SIZE <= size <= max_size:
        return _short_message_error(size - _MIN_FRAME_SIZE)
    return FrameError(f"invalid frame size {size}, not {_MIN_FRAME_SIZE} to {max_size}")


def _short_message_error(size: int) -> FrameError:
    return FrameError(f"message of {size} bytes is shorter than its header of {_MESSAGE_HEADER.size}")
