"""The client's side of a conversation with nsqd: received bytes in, events out; commands in, bytes to send out.

The shell connects, then sends what `data_to_send` returns and feeds `receive_data` with what the socket gives, in any
order and cut. The session opens by itself: magic, IDENTIFY, TLS, compression, AUTH, each only once the answer to the
one before has come; what is asked for meanwhile is kept until `Opened`. Heartbeats are answered by themselves. One
thread at a time: a shell with several has a lock around each call.

TLS is the shell's: once `tls_wanted` is set it sends nothing more in the clear, makes the handshake, and calls
`tls_established`. Compression is done in here.

Invariants:

- *Any cut of the input gives the same messages and answers*, in the same order; any bytes lead to these or to
  ``ProtocolError``, never to another exception.
- nsqd answers in the order it was asked, so the oldest ticket belongs to the next answer. An error ends the
  conversation, except one about a message that is no longer ours: nothing behind the command it answers was executed.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from nsq_compat.protocol import command_writer
from nsq_compat.protocol.compression import Codec, CompressionError, Deflate, Snappy
from nsq_compat.protocol.errors import E_FIN_FAILED, E_REQ_FAILED, E_TOUCH_FAILED, NsqError
from nsq_compat.protocol.frames import (
    DEFAULT_MAX_FRAME_SIZE,
    FRAME_TYPE_ERROR,
    FRAME_TYPE_MESSAGE,
    FRAME_TYPE_RESPONSE,
    Frame,
    FrameError,
    FrameReader,
    Message,
    parse_message,
)
from nsq_compat.protocol.identify import IdentifyRequest, IdentifyResponse, decode_identify_response

DEFAULT_MAX_RDY_COUNT: Final = 2500
"""What an nsqd that names none allows."""

_DEFAULT_DEFLATE_LEVEL = 6
_SURVIVED = frozenset({E_FIN_FAILED, E_REQ_FAILED, E_TOUCH_FAILED})


class ProtocolError(Exception):
    """What came cannot be from an nsqd, or nsqd lacks what we cannot do without; the connection is of no more use."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The connection is ready for commands. `auth` is what AUTH was answered, empty without."""

    response: IdentifyResponse
    auth: bytes = b""


@dataclass(frozen=True, slots=True)
class Received:
    """Messages that came together."""

    messages: list[Message]


@dataclass(frozen=True, slots=True)
class ReceivedFrames:
    """As `Received`, of a session that keeps frames: message i is the frame ``data[starts[i] : starts[i + 1]]``, whose
    header is whole. Where `starts` is a range, all of them have one size, its step."""

    data: bytes
    starts: Sequence[int]


@dataclass(frozen=True, slots=True)
class Answered:
    """nsqd has done what was asked under this ticket."""

    ticket: object
    data: bytes


@dataclass(frozen=True, slots=True)
class Rejected:
    """A FIN, REQ or TOUCH was of no effect: the message timed out before, or is another's. The connection lives on."""

    error: NsqError


@dataclass(frozen=True, slots=True)
class Failed:
    """nsqd ends the connection. `ticket` is what it would not do, None if that was a command without an answer."""

    error: NsqError
    ticket: object = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """nsqd asked whether we live; the answer is in `data_to_send`."""


Event = Opened | Received | ReceivedFrames | Answered | Rejected | Failed | Heartbeat


class ClientSession:
    """One connection to nsqd. `auth_secret` is sent when nsqd asks for authorization. With `keeps_frames` the messages
    of an open connection are not parsed: they come as `ReceivedFrames`."""

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
        """Tickets of what nsqd owes an answer, the oldest first. After a `failure` none of it was executed; when the
        connection just ends, nobody knows."""
        self.response: IdentifyResponse | None = None
        self._request = request
        self._auth_secret = auth_secret
        self._reader = FrameReader(max_frame_size)
        self._keeps_frames = keeps_frames
        self._codec: Codec | None = None
        self._out = [command_writer.MAGIC, command_writer.identify(request)]
        self._kept: list[bytes] = []
        self._expecting: Callable[[bytes, list[Event]], None] = self._on_identify_response

    @property
    def max_rdy_count(self) -> int:
        """How many messages nsqd lets us have in flight."""
        return (self.response.max_rdy_count if self.response else 0) or DEFAULT_MAX_RDY_COUNT

    # --- Commands -----------------------------------------------------------------------------------------------------

    def send(self, command: bytes) -> None:
        """A command, or several, that nsqd does not answer: RDY, FIN, REQ, TOUCH, NOP."""
        (self._out if self.is_open else self._kept).append(command)

    def ask(self, command: bytes, ticket: object) -> None:
        """A command that nsqd answers: SUB, PUB, MPUB, DPUB, CLS. `ticket` comes back with the answer."""
        self.unanswered.append(ticket)
        self.send(command)

    def data_to_send(self) -> bytes:
        """What is to be sent next; nothing while TLS is to be made."""
        if self.tls_wanted or not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        return data if self._codec is None else self._codec.encode(data)

    def tls_established(self) -> None:
        """The shell has made TLS; everything from now on goes through it."""
        self.tls_wanted = False
        self._expecting = self._on_tls_answer

    # --- Receiving ----------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> list[Event]:
        """Feed what the socket, or TLS, gave. Raises ``ProtocolError``."""
        events: list[Event] = []
        try:
            self._feed(data, events)
        except (FrameError, CompressionError) as error:
            raise ProtocolError(str(error)) from error
        return events

    def _feed(self, data: bytes, events: list[Event]) -> None:
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
            if messages:
                events.append(Received(messages))
                messages = []
            codec = self._codec
            self._receive_frame(frame, events)
            if self.tls_wanted or self._codec is not codec:
                self._cross(events)
                return
            if self._keeps_frames and self.is_open:
                self._read_block(self._reader.hand_back(), events)
                return
        if messages:
            events.append(Received(messages))

    def _read_block(self, data: bytes, events: list[Event]) -> None:
        # Nothing is upgraded any more once the connection is open, so no frame changes what those behind it are.
        block = self._reader.receive_block(data)
        begin = 0
        for number, frame in block.others:
            if number > begin:
                events.append(ReceivedFrames(block.data, block.starts[begin : number + 1]))
            self._receive_frame(frame, events)
            begin = number + 1
        if len(block.starts) - 1 > begin:
            events.append(ReceivedFrames(block.data, block.starts[begin:]))

    def _cross(self, events: list[Event]) -> None:
        """What lies behind the frame that upgrades the connection belongs to the new stream."""
        rest = self._reader.hand_back()
        if self.tls_wanted and rest:
            raise ProtocolError("nsqd sent data before TLS was made")
        if rest:
            self._feed(rest, events)

    def _receive_frame(self, frame: Frame, events: list[Event]) -> None:
        if frame.type == FRAME_TYPE_ERROR:
            self._on_error(_error_of(frame.data), events)
        elif frame.type != FRAME_TYPE_RESPONSE:
            raise ProtocolError(f"a frame of unknown type {frame.type}")
        elif frame.data == b"_heartbeat_":
            self._out.append(command_writer.NOP)
            events.append(Heartbeat())
        elif not self.is_open:
            self._expecting(frame.data, events)
        elif self.unanswered:
            events.append(Answered(self.unanswered.popleft(), frame.data))
        else:
            raise ProtocolError(f"an answer to nothing: {frame.data[:80]!r}")

    def _on_error(self, error: NsqError, events: list[Event]) -> None:
        if error.code in _SURVIVED:
            events.append(Rejected(error))
            return
        self.failure = error
        events.append(Failed(error, self.unanswered.popleft() if self.is_open and self.unanswered else None))

    # --- Opening ------------------------------------------------------------------------------------------------------

    def _on_identify_response(self, data: bytes, events: list[Event]) -> None:
        try:
            response = decode_identify_response(data)
        except ValueError as error:
            raise ProtocolError(f"not an answer to IDENTIFY: {data[:80]!r}") from error
        self.response = response
        if self._request.tls_v1:
            # Going on in the clear would show everybody what was meant to be hidden.
            if not response.tls_v1:
                raise ProtocolError("TLS was asked for and nsqd does not offer it")
            self.tls_wanted = True
        else:
            self._compress(events)

    def _on_tls_answer(self, data: bytes, events: list[Event]) -> None:
        _expect_ok(data)
        self._compress(events)

    def _compress(self, events: list[Event]) -> None:
        request, response = self._request, self.response
        if request.snappy and response and response.snappy:
            self._codec = Snappy()
        elif request.deflate and response and response.deflate:
            self._codec = Deflate(min(response.deflate_level or _DEFAULT_DEFLATE_LEVEL, 9))
        else:
            self._authenticate(events)
            return
        self._expecting = self._on_compression_answer

    def _on_compression_answer(self, data: bytes, events: list[Event]) -> None:
        _expect_ok(data)
        self._authenticate(events)

    def _authenticate(self, events: list[Event]) -> None:
        if self._auth_secret and self.response and self.response.auth_required:
            self._out.append(command_writer.auth(self._auth_secret))
            self._expecting = self._open
        else:
            self._open(b"", events)

    def _open(self, auth: bytes, events: list[Event]) -> None:
        assert self.response is not None, "nothing opens before IDENTIFY was answered"
        self.is_open = True
        self._out += self._kept
        self._kept.clear()
        events.append(Opened(self.response, auth))


def _expect_ok(data: bytes) -> None:
    if data != b"OK":
        raise ProtocolError(f"an upgraded connection began with {data[:80]!r}, not with OK")


def _error_of(data: bytes) -> NsqError:
    code, _, description = data.partition(b" ")
    return NsqError(code.decode("utf-8", "replace"), description)
