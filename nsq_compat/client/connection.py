"""A TCP connection to nsqd: a blocking socket with a session on it.

`open` connects and negotiates. `run`, in its own thread, receives until the connection ends. Any thread may give
commands, and never waits for the socket: a second thread sends the accumulated commands, so that a run of FINs is one
send, and an nsqd that does not read delays neither handlers nor publishers beyond their timeout.

Invariants:

- ``run`` always ends. The observer's `closed` is called once, when every request has an answer or an error.
- A connection fails if nothing arrives, or nothing can be sent, for two heartbeat intervals.
- The session is used under the lock. One thread sends on the socket and one receives.
"""

import contextlib
import logging
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from nsq_compat.bounded_http import reason_of
from nsq_compat.client.message import Message
from nsq_compat.client.settings import ConnectionSettings, split_address
from nsq_compat.protocol import command_writer
from nsq_compat.protocol.errors import NsqError
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

log = logging.getLogger(__name__)

_RECEIVE_SIZE = 1 << 18
_TLS_READ_SIZE = 1 << 16


class ConnectionLost(Exception):
    """The connection failed or could not be made. nsqd may or may not have executed unanswered commands.

    `reason` is the text without the address.
    """

    def __init__(self, reason: object, address: str = "") -> None:
        super().__init__(f"{address}: {reason}" if address else str(reason))
        self.reason = str(reason)


class NotExecuted(ConnectionLost):
    """nsqd did not execute the command: the connection was closed, or nsqd had refused an earlier command."""


class TlsStream:
    """The client side of TLS, bytes to bytes. The handshake is part of it: `encode` returns what TLS has to send.

    It does not use the socket, so that one thread can receive while another sends; an ``ssl.SSLSocket`` does not allow
    that. The caller holds a lock around each call. Raises ``ssl.SSLError``.
    """

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
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
        pieces = []
        # Data before close_notify counts. The socket reports the end itself.
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while piece := self._tls.read(_TLS_READ_SIZE):
                pieces.append(piece)
        return b"".join(pieces)

    def encode(self, data: bytes) -> bytes:
        """Encrypt `data`, and add pending data of TLS itself."""
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        return self._outgoing.read()


class Observer:
    """Receives the events of a connection, in the thread of its ``run``. This class ignores them."""

    def received(self, connection: "Connection", messages: list[Message]) -> None: ...
    def answered(self, connection: "Connection", succeeded: bool | None) -> None:
        """A message was finished (True), requeued (False) or requeued without backoff (None); from any thread."""

    def heartbeat(self, connection: "Connection") -> None: ...
    def closed(self, connection: "Connection", reason: Exception) -> None: ...


class Connection:
    """A connection to the nsqd at `address` (``host:port``). With a `subscription` opening it includes SUB."""

    def __init__(
        self,
        address: str,
        settings: ConnectionSettings,
        observer: Observer | None = None,
        subscription: tuple[str, str] | None = None,
    ) -> None:
        self.address = self.id = address
        """`id` is pynsq's name."""
        self.settings = settings
        self.is_closed = False
        self.in_flight = 0
        self.rejected_count = 0
        self.round_trip = 0.0
        """The longest round trip while the connection was opened, in seconds."""
        self.requeue_delay = 90.0
        self.max_requeue_delay = 900.0
        self._observer = observer or Observer()
        self._silence = 2 * settings.heartbeat_interval
        """Seconds without received data after which the connection fails."""
        self._session = ClientSession(settings.identify(), auth_secret=settings.secret())
        self._lock = threading.Lock()
        self._flush_wanted = threading.Event()
        self._flush_is_due = False
        self._socket: socket.socket | None = None
        self._tls: TlsStream | None = None
        self._finished = threading.Event()
        self._closing = False
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

    # --- Opening ------------------------------------------------------------------------------------------------------

    def open(self, deadline: float = math.inf) -> None:
        """Connect and negotiate, by the deadline and within the settings' timeout. Raises ``ConnectionLost``."""
        deadline = min(deadline, time.monotonic() + self.settings.timeout)
        session = self._session
        try:
            self._socket = sock = socket.create_connection(split_address(self.address), timeout=_time_left(deadline))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not session.is_open or session.unanswered:  # SUB
                self._step(sock, deadline)
                if self.is_closed:
                    raise ConnectionLost("closed")
            sock.settimeout(self._silence)
        except (OSError, ProtocolError, NsqError, ValueError, ConnectionLost) as error:
            self.is_closed = True
            if self._socket is not None:
                self._socket.close()
            self._finished.set()
            raise ConnectionLost(self._reason_not_opened(error), self.address) from error
        version = session.response.version if session.response else ""
        log.info("[%s] connected%s", self.address, f" to nsqd v{version}" if version else "")
        if session.response is not None:
            log.debug("[%s] IDENTIFY response: %s", self.address, session.response.encode().decode("utf-8", "replace"))

    def _reason_not_opened(self, error: Exception) -> str:
        if isinstance(error, NsqError) or self._socket is None or self._session.response is not None:
            return why(error)
        # Anything may listen at the address, and the ports of nsqd are often confused.
        if isinstance(error, TimeoutError):
            what = "no answer"
        elif isinstance(error, ConnectionLost | OSError):
            what = why(error)
        else:
            what = "the answer is not NSQ's protocol"
        return f"{what}; is this nsqd's TCP port?"

    def _step(self, sock: socket.socket, deadline: float) -> None:
        """One round trip of opening the connection."""
        session = self._session
        if session.tls_wanted and self._tls is None:
            self._tls = TlsStream(self.settings.tls_context(), split_address(self.address)[0])
        sock.settimeout(_time_left(deadline))
        began = time.monotonic()
        self._send_pending(sock)
        data = self._receive(sock)
        self.round_trip = max(self.round_trip, time.monotonic() - began)
        if session.tls_wanted and self._tls is not None and self._tls.is_established:
            session.tls_established()
        for event in session.receive_data(data) if data else ():
            if isinstance(event, Failed):
                raise event.error

    # --- Receiving ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Receive until the connection ends."""
        sock = self._socket
        assert sock is not None, "`open` is called first"
        writer = start_thread(f"nsqd {self.address} writer", self._write_loop, sock)
        try:
            self._read_loop(sock)
        except Exception as error:  # the top of a thread
            if not isinstance(error, OSError | ProtocolError | ConnectionLost | NsqError):
                log.exception("[%s] internal error", self.address)
            self.abort(error)
        writer.join()
        sock.close()
        unknown = NotExecuted if self._session.failure is not None else ConnectionLost
        while self._session.unanswered:
            _resolve(self._session.unanswered.popleft(), unknown(why(self._reason), self.address))
        self._finished.set()
        self._observer.closed(self, self._reason or ConnectionLost("closed"))

    def _read_loop(self, sock: socket.socket) -> None:
        while not self.is_closed:
            try:
                data = self._receive(sock)
            except TimeoutError:
                raise ConnectionLost(f"silent for {self._silence:g} s") from None
            with self._lock:
                events = self._session.receive_data(data) if data else []
            for event in events:
                self._on_event(event)

    def _receive(self, sock: socket.socket) -> bytes:
        """Received bytes, decrypted; with TLS they may be empty. Raises ``OSError``."""
        data = sock.recv(_RECEIVE_SIZE)
        if not data:
            raise ConnectionLost("closed by nsqd")
        if self._tls is None:
            return data
        with self._lock:
            data = self._tls.decode(data)
        if self._tls.has_pending:
            self._flush_soon()
        return data

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Received):
            address = self.address
            messages = [
                Message(m.id, m.body, m.timestamp_ns, m.attempts, self, address, m.headers) for m in event.messages
            ]
            with self._lock:
                self.in_flight += len(messages)
            self._observer.received(self, messages)
        elif isinstance(event, Answered):
            _resolve(event.ticket, event.data)
        elif isinstance(event, Heartbeat):
            self._flush_soon()
            self._observer.heartbeat(self)
        elif isinstance(event, Rejected):
            self.rejected_count += 1
            log.warning("[%s] %s", self.address, event.error)
        elif isinstance(event, Failed):
            _resolve(event.ticket, event.error)
            raise event.error

    # --- Commands -----------------------------------------------------------------------------------------------------

    def ask(self, command: bytes) -> Future[bytes]:
        """Send a command that nsqd answers. The future raises ``NsqError``, ``NotExecuted`` or ``ConnectionLost``."""
        answer: Future[bytes] = Future()
        with self._lock:
            if self.is_closed:
                answer.set_exception(NotExecuted(why(self._reason), self.address))
                return answer
            self._session.ask(command, answer)
        self._flush_soon()
        return answer

    def send(self, command: bytes) -> None:
        """Send a command that nsqd does not answer. Does nothing after the end of the connection."""
        with self._lock:
            self._session.send(command)
        self._flush_soon()

    def finish(self, message: Message) -> None:
        # Hot: runs for every message.
        with self._lock:
            self._session.send(b"FIN %s\n" % message.id)
            self.in_flight -= 1
        self._flush_soon()
        self._observer.answered(self, True)

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        if delay is None:
            delay = min(self.requeue_delay * message.attempts, self.max_requeue_delay)
        with self._lock:
            self._session.send(command_writer.requeue(message.id, int(delay * 1000)))
            self.in_flight -= 1
        self._flush_soon()
        self._observer.answered(self, False if backoff else None)

    def touch(self, message: Message) -> None:
        self.send(command_writer.touch(message.id))

    # --- Sending ------------------------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._flush_wanted.set()

    def _write_loop(self, sock: socket.socket) -> None:
        try:
            while not self.is_closed:
                self._flush_wanted.wait()
                self._flush_wanted.clear()
                self._flush_is_due = False
                self._send_pending(sock)
                if self._closing:
                    sock.shutdown(socket.SHUT_WR)
                    return
        except OSError as error:
            self.abort(error)

    def _send_pending(self, sock: socket.socket) -> None:
        while True:
            with self._lock:
                data = self._session.data_to_send()
                if self._tls is not None:
                    data = self._tls.encode(data)
            if not data:
                return
            sock.sendall(data)

    # --- Closing ------------------------------------------------------------------------------------------------------

    def close(self, timeout: float = 2.0) -> None:
        """Send pending commands, wait until nsqd has read them and closes, at most `timeout` seconds, then close."""
        self._closing = True
        self._flush_wanted.set()
        if self._session.is_open:
            self._finished.wait(timeout)
        self.abort()

    def abort(self, reason: Exception | None = None) -> None:
        """End the connection immediately. `run` returns soon after."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
            self._reason = reason or ConnectionLost("closed")
        log.info("[%s] connection closed%s", self.address, "" if self._closing else f": {why(self._reason)}")
        # Shutting down wakes the threads that use the socket. `run` closes it, when no thread can use its number.
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._flush_wanted.set()


def start_thread(name: str, act: Callable[..., object], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=act, args=arguments, name=name, daemon=True)
    thread.start()
    return thread


def do_together(calls: Iterable[Callable[[], object]]) -> None:
    """Make the calls at the same time, the first in this thread, and wait until all have returned."""
    every = list(calls)
    threads = [start_thread("nsq", call) for call in every[1:]]
    for call in every[:1]:
        call()
    for thread in threads:
        thread.join()


def why(error: Exception | None) -> str:
    """Why a connection ended, without its address."""
    if isinstance(error, ConnectionLost):
        return error.reason
    return reason_of(error) if isinstance(error, OSError) else str(error or "not connected")


def _time_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _resolve(ticket: object, outcome: bytes | Exception) -> None:
    if isinstance(ticket, Future) and ticket.set_running_or_notify_cancel():
        if isinstance(outcome, Exception):
            ticket.set_exception(outcome)
        else:
            ticket.set_result(outcome)
