"""What both kinds of connections to nsqd share: the session, TLS below it, and the handling of events. Without I/O.

`connection` has a socket and threads, `aio.connection` an event loop. Nothing here waits, and nothing is locked.
"""

import logging
import ssl
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from nsq_compat.bounded_http import reason_of
from nsq_compat.client.message import Message
from nsq_compat.client.settings import ConnectionSettings, split_address
from nsq_compat.protocol import command_writer
from nsq_compat.protocol.errors import NsqError, one_line, shortened
from nsq_compat.session.client_session import (
    Answered,
    ClientSession,
    Event,
    Failed,
    Heartbeat,
    ProtocolError,
    Received,
    Rejected,
)

log: Final = logging.getLogger(__name__)

_TLS_READ_SIZE = 1 << 16
_MAX_COMPRESSED = 1 << 10
"""It becomes a megabyte at most, or 80,000 frames, which take 50 ms."""
_MAX_TLS = 1 << 14
"""A record has at most so much, or 600 key updates and session tickets, which take 20 us each."""
TURN_SECONDS: Final = 0.005
"""Received bytes are processed for so long before something else has a turn."""
_MAX_LOGGED = 1000
"""Refused commands of a connection that are all logged. Of later ones only each that doubles their number is."""


class ConnectionLost(Exception):
    """The connection failed or could not be made. nsqd may or may not have executed unanswered commands.

    `reason` is the text without the address.
    """

    def __init__(self, reason: object, address: str = "") -> None:
        super().__init__(f"{address}: {reason}" if address else str(reason))
        self.reason: str = str(reason)


class NotExecuted(ConnectionLost):
    """nsqd did not execute the command: the connection was closed, or nsqd had refused an earlier command."""


class TlsStream:
    """The client side of TLS, bytes to bytes. The handshake is part of it: `encode` returns what TLS has to send.

    It does not use the socket, so that one thread can receive while another sends; an ``ssl.SSLSocket`` does not allow
    that. The caller holds a lock around each call. Raises ``ssl.SSLError``.
    """

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self.has_ended: bool = False
        """The server has sent close_notify."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self.decode(b"")  # begins the handshake

    @property
    def is_established(self) -> bool:
        """Whether the handshake is complete."""
        return self._tls.version() is not None

    @property
    def has_pending(self) -> bool:
        """Whether TLS has data of its own to send."""
        return self._outgoing.pending > 0

    def decode(self, data: bytes) -> bytes:
        """Decrypt received bytes; the result may be empty."""
        self._incoming.write(data)
        pieces: list[bytes] = []
        try:
            while piece := self._tls.read(_TLS_READ_SIZE):
                pieces.append(piece)
            self.has_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:  # after data, which counts
            self.has_ended = True
        return b"".join(pieces)

    def encode(self, data: bytes) -> bytes:
        """Encrypt `data`, and add pending data of TLS itself."""
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        return self._outgoing.read()


L = TypeVar("L", bound="Link", contravariant=True)


class Observer(Generic[L]):
    """Receives the events of a connection, in the thread that receives its data. This class ignores them."""

    def received(self, connection: L, messages: list[Message]) -> None: ...
    def answered(self, connection: L, succeeded: bool | None) -> None:
        """A message was finished (True), requeued (False) or requeued without backoff (None); from any thread."""

    def heartbeat(self, connection: L) -> None: ...
    def closed(self, connection: L, reason: Exception) -> None: ...


class Link:
    """The state of a connection to the nsqd at `address`. With a `subscription` (topic and channel), opening it
    includes SUB.

    The methods at the end are implemented by the two kinds of connections.
    """

    def __init__(
        self,
        address: str,
        settings: ConnectionSettings,
        subscription: tuple[str, str] | None = None,
        *,
        publish_ids: bool = False,
    ) -> None:
        self.address: str = address
        self.id: str = address
        """`id` is pynsq's name."""
        self.settings = settings
        self.is_closed: bool = False
        self.in_flight = 0
        self.rejected_count: int = 0
        self.round_trip: float = 0.0
        """The longest round trip while the connection was opened, in seconds."""
        self.requeue_delay: float = 90.0
        self.max_requeue_delay: float = 900.0
        self.is_known: bool = False
        """An nsqd has answered at this address before."""
        self._silence = 2 * settings.heartbeat_interval
        """Seconds without received data after which the connection fails."""
        self._session = ClientSession(settings.identify(publish_ids=publish_ids), auth_secret=settings.secret())
        self._tls: TlsStream | None = None
        self._undecoded = b""
        """Decrypted bytes for the next steps."""
        self._reason: Exception | None = None
        if subscription is not None:
            self._session.ask(command_writer.subscribe(*subscription), None)

    def __repr__(self) -> str:
        return f"<Connection {self.address}>"

    @property
    def max_rdy_count(self) -> int:
        return self._session.max_rdy_count

    @property
    def lacks_secret(self) -> bool:
        """Whether nsqd requires authorization, and the settings have no secret."""
        response = self._session.response
        return response is not None and response.auth_required and not self.settings.secret()

    @property
    def has_headers(self) -> bool:
        """Whether nsqd takes messages with headers, and delivers them."""
        return self._session.has_headers

    @property
    def msg_timeout(self) -> float:
        """Seconds that nsqd waits for an answer to a message."""
        response = self._session.response
        return response.msg_timeout / 1000 if response and response.msg_timeout else 60.0

    # --- Bytes --------------------------------------------------------------------------------------------------------

    @property
    def _is_open(self) -> bool:
        """Whether everything that opening includes is done."""
        return self._session.is_open and not self._session.unanswered  # SUB

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        """Received bytes as `_decode` is to be given them, one step each; empty ones go on with what was decrypted."""
        size = _MAX_TLS if self._tls is not None else self._step_size(max(1, len(data)))
        for begin in range(0, len(data), size):
            yield data[begin : begin + size]
            while self._undecoded:
                yield b""

    def _step_size(self, size: int) -> int:
        """How many of so many bytes are decoded at once: compressed ones may become a thousand times as many."""
        return size if self._session.is_open and not self._session.is_compressed else _MAX_COMPRESSED

    def _decode(self, data: bytes) -> list[Event]:
        """The events of one of the `_pieces`. Raises ``ProtocolError``, ``OSError`` and ``ValueError``."""
        session, tls = self._session, self._tls
        if tls is not None:
            data = self._undecoded + (tls.decode(data) if data else b"")
            if session.tls_wanted and tls.is_established:
                session.tls_established()
            size = self._step_size(len(data))
            data, self._undecoded = data[:size], data[size:]
        events = session.receive_data(data) if data else []
        if session.tls_wanted and self._tls is None:
            self._tls = TlsStream(self.settings.tls_context(), split_address(self.address)[0])
        return events

    def _data_to_send(self) -> bytes:
        data = self._session.data_to_send()
        return data if self._tls is None else self._tls.encode(data)

    # --- Events -------------------------------------------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        """Raises the error that ends the connection."""
        if isinstance(event, Received):
            address = self.address
            self._received(
                [Message(m.id, m.body, m.timestamp_ns, m.attempts, self, address, m.headers) for m in event.messages]
            )
        elif isinstance(event, Answered):
            self._resolve(event.ticket, event.data)
        elif isinstance(event, Heartbeat):
            self._flush_soon()
            self._beat()
        elif isinstance(event, Rejected):
            self._note_rejected(event)
        elif isinstance(event, Failed):
            self._resolve(event.ticket, event.error)
            raise event.error

    def _note_rejected(self, event: Rejected) -> None:
        self.rejected_count = count = self.rejected_count + 1
        if count <= _MAX_LOGGED:
            log.warning("[%s] %s", self.address, one_line(str(event.error)))
        elif count.bit_count() == 1:
            text = "[%s] %s (error %d of this connection; not all are logged)"
            log.warning(text, self.address, one_line(str(event.error)), count)

    def _note_round_trip(self, seconds: float) -> None:
        self.round_trip = max(self.round_trip, seconds)

    def _note_opened(self) -> None:
        response = self._session.response
        version = shortened(one_line(response.version)) if response else ""
        log.info("[%s] connected%s", self.address, f" to nsqd v{version}" if version else "")
        if response is not None:
            text = shortened(one_line(response.encode().decode("utf-8", "replace")))
            log.debug("[%s] IDENTIFY response: %s", self.address, text)

    def _not_opened(self, error: Exception, is_connected: bool) -> ConnectionLost:
        """The reason why the connection could not be opened."""
        if isinstance(error, NsqError):
            return ConnectionLost(f"{why(error)}{self._advice(str(error))}", self.address)
        if not is_connected or self.is_known or self._session.response is not None:
            return ConnectionLost(why(error), self.address)
        # Anything may listen at the address, and the ports of nsqd are often confused.
        if isinstance(error, TimeoutError):
            what = "no answer"
        elif isinstance(error, ConnectionLost | OSError):
            what = why(error)
        else:
            what = "the answer is not NSQ's protocol"
        return ConnectionLost(f"{what}; is this nsqd's TCP port?", self.address)

    def _advice(self, refusal: str) -> str:
        """What a refusal of IDENTIFY leaves open: nsqd shows milliseconds, and the options are in seconds."""
        for name in ("msg_timeout", "heartbeat_interval"):
            value = getattr(self.settings, name)
            if value and f"{name.replace('_', ' ')} (" in refusal:
                flag = f"--max-{name.replace('_', '-')}"
                return f"; {name}={value:g} is in seconds, and this nsqd allows less ({flag})"
        return ""

    def _mark_closed(self, reason: Exception | None) -> Exception:
        self.is_closed = True
        self._reason = reason or ConnectionLost("closed")
        return self._reason

    def _fail_unanswered(self) -> None:
        """Resolve every request that has no answer. The connection has ended."""
        unanswered = self._session.unanswered
        kind = NotExecuted if self._session.failure is not None else ConnectionLost
        while unanswered:
            self._resolve(unanswered.popleft(), kind(why(self._reason), self.address))

    # --- Commands -----------------------------------------------------------------------------------------------------

    def _requeue_command(self, message: Message, delay: float | None) -> bytes:
        if delay is None:
            delay = min(self.requeue_delay * message.attempts, self.max_requeue_delay)
        return command_writer.requeue(message.id, int(delay * 1000))

    def send(self, command: bytes) -> None:
        """Send a command that nsqd does not answer. Does nothing after the end of the connection."""
        raise NotImplementedError

    def finish(self, message: Message) -> None:
        raise NotImplementedError

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        raise NotImplementedError

    def touch(self, message: Message) -> None:
        self.send(command_writer.touch(message.id))

    # --- Implemented by the kinds of connections ----------------------------------------------------------------------

    def _flush_soon(self) -> None:
        raise NotImplementedError

    def _received(self, messages: list[Message]) -> None:
        raise NotImplementedError

    def _beat(self) -> None:
        """nsqd sent a heartbeat."""
        raise NotImplementedError

    def _resolve(self, ticket: object, outcome: bytes | Exception) -> None:
        """A request with this ticket was answered, or failed."""
        raise NotImplementedError


ENDS = (OSError, ProtocolError, NsqError, ConnectionLost)
"""Errors that end a connection; any other is an internal error."""


def why(error: Exception | None) -> str:
    """Why a connection ended, without its address. Text of nsqd is one printable line."""
    if isinstance(error, ConnectionLost):
        return error.reason
    return reason_of(error) if isinstance(error, OSError) else one_line(str(error or "not connected"))
