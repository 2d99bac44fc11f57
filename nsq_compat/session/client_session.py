"""The client side of a connection to nsqd, without I/O: received bytes to events, commands to bytes to send.

The caller connects, sends the bytes that `data_to_send` returns, and passes received bytes to `receive_data`. The
session negotiates, answers heartbeats, compresses and decompresses. Commands given before `Opened` are sent after it.
TLS is left to the caller: when `tls_wanted` is set, it does the handshake and calls `tls_established`. A session is not
thread-safe.

Invariants:

- The messages and answers, and their order, do not depend on how the input is split. Any bytes lead to events or to
  ``ProtocolError``.
- nsqd answers in order, so the next answer belongs to the oldest ticket. An error ends the connection, and later
  commands were not executed; the exception are errors for messages that are no longer in flight.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from nsq_compat.protocol import command_writer
from nsq_compat.protocol.compression import Codec, CompressionError, Deflate, Snappy
from nsq_compat.protocol.errors import E_FIN_FAILED, E_REQ_FAILED, E_TOUCH_FAILED, NsqError
from nsq_compat.protocol.frames import (
    DEFAULT_MAX_FRAME_SIZE,
    FRAME_TYPE_ERROR,
    FRAME_TYPE_MESSAGE,
    FRAME_TYPE_MESSAGE_WITH_HEADERS,
    FRAME_TYPE_RESPONSE,
    Frame,
    FrameError,
    FrameReader,
    Message,
    parse_message,
)
from nsq_compat.protocol.identify import IdentifyRequest, IdentifyResponse, decode_identify_response

DEFAULT_MAX_RDY_COUNT: Final = 2500
"""Used if nsqd does not name a limit."""

_DEFAULT_DEFLATE_LEVEL = 6
_MAX_OPENING_FRAME: Final = 64 << 10
"""Bytes of a frame before the connection is open. Answers are small then, and JSON of megabytes takes seconds."""
_MAX_ERROR: Final = 1024
"""Bytes of an error that are kept, because errors are logged. NSQ's are much shorter."""
_NON_FATAL = frozenset({E_FIN_FAILED, E_REQ_FAILED, E_TOUCH_FAILED})


class ProtocolError(Exception):
    """nsqd sent invalid data, or does not offer a required feature. The connection must be closed."""


class Opened(NamedTuple):
    """The connection is ready for commands. `auth` is the response to AUTH, or empty."""

    response: IdentifyResponse
    auth: bytes = b""


class Received(NamedTuple):
    """Messages that arrived together."""

    messages: list[Message]


class ReceivedFrames(NamedTuple):
    """Messages that arrived together, unparsed: message i is the frame ``data[starts[i] : starts[i + 1]]``, which is at
    least as long as its header. If `starts` is a range, all frames have one size, its step."""

    data: bytes
    starts: Sequence[int]


class Answered(NamedTuple):
    """nsqd has executed the command with this ticket."""

    ticket: object
    data: bytes


class Rejected(NamedTuple):
    """A FIN, REQ or TOUCH had no effect: the message is no longer in flight here. The connection stays open."""

    error: NsqError


class Failed(NamedTuple):
    """nsqd closes the connection. `ticket` is that of the refused command, if it had one."""

    error: NsqError
    ticket: object = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """nsqd sent heartbeats; `data_to_send` contains the answer."""


Event = Opened | Received | ReceivedFrames | Answered | Rejected | Failed | Heartbeat


class ClientSession:
    """A connection to nsqd. `auth_secret` is sent if nsqd requires authorization. With `keeps_frames`, messages are not
    parsed: they are returned as `ReceivedFrames`."""

    def __init__(
        self,
        request: IdentifyRequest,
        *,
        auth_secret: bytes = b"",
        max_frame_size: int = DEFAULT_MAX_FRAME_SIZE,
        keeps_frames: bool = False,
    ) -> None:
        self.is_open = False
        self.tls_wanted = False
        self.failure: NsqError | None = None
        self.unanswered: deque[object] = deque()
        """Tickets of unanswered commands, oldest first. After a `failure` they were not executed. If the connection
        ends without one, they may have been."""
        self._unsent = 0  # the last of them, of commands that `data_to_send` has not returned
        self.response: IdentifyResponse | None = None
        self.has_headers = False
        """nsqd has granted messages with headers."""
        self._request = request
        self._auth_secret = auth_secret
        self._reader = FrameReader(min(_MAX_OPENING_FRAME, max_frame_size))
        self._max_frame_size = max_frame_size
        self._keeps_frames = keeps_frames
        self._codec: Codec | None = None
        self._out = [command_writer.MAGIC, command_writer.identify(request)]
        self._queued: list[bytes] = []
        self._on_response: Callable[[bytes, list[Event]], None] = self._on_identify_response

    @property
    def max_rdy_count(self) -> int:
        """The largest RDY that nsqd accepts."""
        return (self.response.max_rdy_count if self.response else 0) or DEFAULT_MAX_RDY_COUNT

    # --- Commands -----------------------------------------------------------------------------------------------------

    def send(self, command: bytes) -> None:
        """Send one or more commands that nsqd does not answer: RDY, FIN, REQ, TOUCH, NOP."""
        (self._out if self.is_open else self._queued).append(command)

    def ask(self, command: bytes, ticket: object) -> None:
        """Send a command that nsqd answers: SUB, PUB, MPUB, DPUB, CLS. Its `Answered` event has the `ticket`."""
        self.unanswered.append(ticket)
        self._unsent += 1
        self.send(command)

    def ask_in_pieces(self, command: Iterable[bytes], ticket: object) -> None:
        """As `ask`, for a command that is not joined yet."""
        self.unanswered.append(ticket)
        self._unsent += 1
        (self._out if self.is_open else self._queued).extend(command)

    @property
    def answers_due(self) -> int:
        """The number of answers that nsqd may send now: commands that were not sent have none."""
        return len(self.unanswered) - self._unsent

    @property
    def is_between_answers(self) -> bool:
        """Whether the next received bytes are the beginning of an answer, uncompressed."""
        return self.is_open and self._codec is None and self._reader.is_empty

    @property
    def is_compressed(self) -> bool:
        return self._codec is not None

    def data_to_send(self) -> bytes:
        """The bytes to send; empty during the TLS handshake."""
        if self.tls_wanted or not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        if self.is_open:
            self._unsent = 0
        return data if self._codec is None else self._codec.encode(data)

    def tls_established(self) -> None:
        """Called after the TLS handshake. Everything from now on is sent and received with TLS."""
        self.tls_wanted = False
        self._on_response = self._on_upgraded

    # --- Receiving ----------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> list[Event]:
        """Process received bytes, decrypted by TLS if used. Raises ``ProtocolError``."""
        events: list[Event] = []
        try:
            self._decode(data, events)
        except (FrameError, CompressionError, ProtocolError) as error:
            self._take_back(events)
            raise error if isinstance(error, ProtocolError) else ProtocolError(str(error)) from error
        return events

    def _take_back(self, events: list[Event]) -> None:
        """The caller does not get these answers, before invalid data: their tickets are unanswered again."""
        answers = [event for event in events if isinstance(event, Answered | Failed)]
        self.unanswered.extendleft(event.ticket for event in reversed(answers) if event.ticket is not None)
        if any(isinstance(event, Failed) for event in answers):
            self.failure = None  # commands before the refused one were executed

    def _decode(self, data: bytes, events: list[Event]) -> None:
        if self._codec is None:
            self._read(data, events)
            return
        for piece in self._codec.decode(data):
            self._read(piece, events)

    def _read(self, data: bytes, events: list[Event]) -> None:
        if self._keeps_frames and self.is_open:
            self._read_block(data, events)
            return
        # Hot: runs for every message a consumer receives.
        messages: list[Message] = []
        for frame in self._reader.receive_data(data):
            if frame.type == FRAME_TYPE_MESSAGE:
                messages.append(parse_message(frame.data))
                continue
            if frame.type == FRAME_TYPE_MESSAGE_WITH_HEADERS and self.has_headers:
                messages.append(parse_message(frame.data, frame.type))
                continue
            if messages:
                self._add_messages(messages, events)
                messages = []
            codec, was_open = self._codec, self.is_open
            self._receive_frame(frame, events)
            if self.tls_wanted or self._codec is not codec:
                rest = self._reader.hand_back()
                if self.tls_wanted and rest:
                    raise ProtocolError("nsqd sent data before the TLS handshake")
                if rest:
                    self._decode(rest, events)
                return
            if self.is_open and not was_open:  # frames are read in another way
                if rest := self._reader.hand_back():
                    self._read(rest, events)
                return
        if messages:
            self._add_messages(messages, events)

    def _add_messages(self, messages: list[Message], events: list[Event]) -> None:
        if not self.is_open:
            # Before TLS, any program on the way could have sent it.
            raise ProtocolError("nsqd sent a message before the connection was open")
        events.append(Received(messages))

    def _read_block(self, data: bytes, events: list[Event]) -> None:
        # An open connection is not upgraded, so no frame changes the meaning of the following bytes.
        block = self._reader.receive_block(data)
        begin = 0
        for index, frame in block.others:
            if index > begin:
                events.append(ReceivedFrames(block.data, block.starts[begin : index + 1]))
            self._receive_frame(frame, events)
            begin = index + 1
        if len(block.starts) - 1 > begin:
            events.append(ReceivedFrames(block.data, block.starts[begin:]))

    def _receive_frame(self, frame: Frame, events: list[Event]) -> None:
        if self.failure is not None:  # the end: nsqd has executed nothing after the refused command
            return
        if frame.type == FRAME_TYPE_ERROR:
            code, _, description = frame.data[:_MAX_ERROR].partition(b" ")
            self._on_error(NsqError(code.decode("utf-8", "replace"), description), events)
        elif frame.type != FRAME_TYPE_RESPONSE:
            raise ProtocolError(f"unknown frame type {frame.type}")
        elif frame.data == b"_heartbeat_":
            # One for several: an nsqd that sends many and does not read must not have answers wait for it.
            if not self._out or self._out[-1] != command_writer.NOP:
                self._out.append(command_writer.NOP)
            if not events or not isinstance(events[-1], Heartbeat):
                events.append(Heartbeat())
        elif not self.is_open:
            self._on_response(frame.data, events)
        elif len(self.unanswered) > self._unsent:
            events.append(Answered(self.unanswered.popleft(), frame.data))
        else:
            raise ProtocolError(f"unexpected response: {frame.data[:80]!r}")

    def _on_error(self, error: NsqError, events: list[Event]) -> None:
        if error.code in _NON_FATAL:
            events.append(Rejected(error))
            return
        self.failure = error
        events.append(Failed(error, self.unanswered.popleft() if len(self.unanswered) > self._unsent else None))

    # --- Opening ------------------------------------------------------------------------------------------------------

    def _on_identify_response(self, data: bytes, events: list[Event]) -> None:
        try:
            response = decode_identify_response(data)
        except ValueError as error:
            raise ProtocolError(f"invalid response to IDENTIFY: {data[:80]!r}") from error
        self.response = response
        self.has_headers = self._request.message_headers and response.message_headers
        if self._request.tls_v1:
            # Continuing without TLS would disclose the data.
            if not response.tls_v1:
                raise ProtocolError("TLS is required, and nsqd does not offer it")
            self.tls_wanted = True
        else:
            self._compress(events)

    def _on_upgraded(self, data: bytes, events: list[Event]) -> None:
        if data != b"OK":
            raise ProtocolError(f"expected OK after an upgrade, not {data[:80]!r}")
        if self._codec is None:  # it was TLS
            self._compress(events)
        else:
            self._authenticate(events)

    def _compress(self, events: list[Event]) -> None:
        request, response = self._request, self.response
        if request.snappy and response and response.snappy:
            self._codec = Snappy()
        elif request.deflate and response and response.deflate:
            self._codec = Deflate(min(response.deflate_level or _DEFAULT_DEFLATE_LEVEL, 9))
        else:
            self._authenticate(events)
            return
        self._on_response = self._on_upgraded

    def _authenticate(self, events: list[Event]) -> None:
        if self._auth_secret and self.response and self.response.auth_required:
            self._out.append(command_writer.auth(self._auth_secret))
            self._on_response = self._open
        else:
            self._open(b"", events)

    def _open(self, auth: bytes, events: list[Event]) -> None:
        assert self.response is not None, "IDENTIFY is answered before the connection opens"
        self.is_open = True
        self._reader.max_frame_size = self._max_frame_size
        self._out += self._queued
        self._queued.clear()
        events.append(Opened(self.response, auth))
