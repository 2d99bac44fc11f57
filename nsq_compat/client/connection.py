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
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol

from nsq_compat.client.message import Message
from nsq_compat.client.settings import ConnectionSettings
from nsq_compat.client.tls import TlsStream
from nsq_compat.protocol import command_writer
from nsq_compat.protocol.errors import NsqError
from nsq_compat.protocol.frames import Message as WireMessage
from nsq_compat.session.client_session import (
    Answered,
    ClientSession,
    Event,
    Failed,
    Heartbeat,
    Opened,
    ProtocolError,
    Received,
    Rejected,
)

log = logging.getLogger(__name__)

DEFAULT_MSG_TIMEOUT = 60.0
_SUB = object()
_RECEIVE_SIZE = 1 << 18
_CLOSE_TIMEOUT = 2.0


class ConnectionLost(Exception):
    """The connection failed or could not be made. nsqd may or may not have executed unanswered commands."""


class NotExecuted(ConnectionLost):
    """nsqd did not execute the command: the connection was closed, or nsqd had refused an earlier command."""


class ConnectionObserver(Protocol):
    """Receives the events of a connection, in the thread of its ``run``."""

    def received(self, connection: "Connection", messages: list[Message]) -> None: ...
    def answered(self, connection: "Connection", succeeded: bool | None) -> None:
        """A message was finished (True), requeued (False), or requeued without backoff (None).

        Called in the thread that answered.
        """

    def heartbeat(self, connection: "Connection") -> None: ...
    def closed(self, connection: "Connection", reason: Exception) -> None: ...


class Connection:
    """A connection to the nsqd at `address` (``host:port``).

    A producer needs no `observer`. With a `subscription` (topic and channel), opening the connection includes SUB.
    """

    def __init__(
        self,
        address: str,
        settings: ConnectionSettings,
        observer: ConnectionObserver | None = None,
        subscription: tuple[str, str] | None = None,
    ) -> None:
        self.address = address
        self.settings = settings
        self.in_flight = 0
        self.rejected_count = 0
        self.round_trip = 0.0
        """The longest round trip while the connection was opened, in seconds."""
        self.requeue_delay = 90.0
        self.max_requeue_delay = 900.0
        self._observer = observer
        self._session = ClientSession(settings.identify(), auth_secret=settings.secret())
        self._lock = threading.Lock()
        self._flush_wanted = threading.Event()
        self._flush_is_due = False
        self._socket: socket.socket | None = None
        self._tls: TlsStream | None = None
        self._finished = threading.Event()
        self._closing = False
        self._closed = False
        self._reason: Exception | None = None
        self._is_ready = False
        if subscription is not None:
            self._session.ask(command_writer.subscribe(*subscription), _SUB)
        self._awaits_sub = subscription is not None

    def __repr__(self) -> str:
        return f"<Connection {self.address}>"

    @property
    def id(self) -> str:
        """The address; pynsq's name for it."""
        return self.address

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def max_rdy_count(self) -> int:
        return self._session.max_rdy_count

    @property
    def msg_timeout(self) -> float:
        """Seconds that nsqd waits for an answer to a message."""
        response = self._session.response
        return response.msg_timeout / 1000 if response and response.msg_timeout else DEFAULT_MSG_TIMEOUT

    # --- Opening ------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect, negotiate and authenticate, within the settings' timeout. Raises ``ConnectionLost``."""
        deadline = time.monotonic() + self.settings.timeout
        try:
            self._connect(deadline)
            while not self._is_ready:
                self._step(deadline)
                if self._closed:
                    raise ConnectionLost("closed")
            assert self._socket is not None, "connected above"
            self._socket.settimeout(self.settings.silence)
        except (OSError, ProtocolError, NsqError, ValueError, ConnectionLost) as error:
            self._closed = True
            if self._socket is not None:
                self._socket.close()
            self._finished.set()
            raise ConnectionLost(f"{self.address}: {error}") from error
        log.info("[%s] connected: %s", self.address, self._session.response)

    def _connect(self, deadline: float) -> None:
        host, port = split_address(self.address)
        self._socket = socket.create_connection((host, port), timeout=_time_left(deadline))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _step(self, deadline: float) -> None:
        """One round trip of opening the connection."""
        sock, session = self._require_socket(), self._session
        sock.settimeout(_time_left(deadline))
        began = time.monotonic()
        self._send_pending()
        data = self._start_tls(sock, deadline) if session.tls_wanted else self._receive(sock)
        self.round_trip = max(self.round_trip, time.monotonic() - began)
        for event in session.receive_data(data) if data else ():
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Answered) or (isinstance(event, Opened) and not self._awaits_sub):
                self._is_ready = True

    def _start_tls(self, sock: socket.socket, deadline: float) -> bytes:
        """Make the TLS handshake. Returns data that nsqd sent directly after it."""
        tls = TlsStream(self.settings.tls_context(), split_address(self.address)[0])

        def receive() -> bytes:
            sock.settimeout(_time_left(deadline))
            return sock.recv(_RECEIVE_SIZE)

        tls.shake_hands(sock.sendall, receive)
        self._tls = tls
        self._session.tls_established()
        return tls.decode(b"")

    # --- Receiving ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Receive until the connection ends."""
        writer = threading.Thread(target=self._write_loop, name=f"nsqd {self.address} writer", daemon=True)
        writer.start()
        try:
            self._read_loop()
        except Exception as error:  # the top of a thread
            if not isinstance(error, OSError | ProtocolError | ConnectionLost | NsqError):
                log.exception("[%s] internal error", self.address)
            self.abort(error)
        writer.join()
        self._require_socket().close()
        self._fail_unanswered()
        self._finished.set()
        if self._observer is not None:
            self._observer.closed(self, self._reason or ConnectionLost("closed"))

    def _read_loop(self) -> None:
        sock = self._require_socket()
        while not self._closed:
            try:
                data = self._receive(sock)
            except TimeoutError:
                raise ConnectionLost(f"silent for {self.settings.silence:g} s") from None
            with self._lock:
                events = self._session.receive_data(data) if data else []
                tls_pending = self._tls is not None and self._tls.has_pending
            for event in events:
                self._on_event(event)
            if tls_pending:
                self._flush_soon()

    def _receive(self, sock: socket.socket) -> bytes:
        """Received bytes, decrypted; with TLS they may be empty. Raises ``OSError``."""
        data = sock.recv(_RECEIVE_SIZE)
        if not data:
            raise ConnectionLost("closed by nsqd")
        if self._tls is None:
            return data
        with self._lock:
            return self._tls.decode(data)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Received):
            self._on_messages(event.messages)
        elif isinstance(event, Answered):
            _resolve(event.ticket, event.data)
        elif isinstance(event, Heartbeat):
            self._flush_soon()
            if self._observer is not None:
                self._observer.heartbeat(self)
        elif isinstance(event, Rejected):
            self.rejected_count += 1
            log.warning("[%s] %s", self.address, event.error)
        elif isinstance(event, Failed):
            _resolve(event.ticket, event.error)
            raise event.error

    def _on_messages(self, wire: Sequence[WireMessage]) -> None:
        address = self.address
        messages = [Message(m.id, m.body, m.timestamp_ns, m.attempts, self, address) for m in wire]
        with self._lock:
            self.in_flight += len(messages)
        if self._observer is not None:
            self._observer.received(self, messages)

    # --- Commands -----------------------------------------------------------------------------------------------------

    def ask(self, command: bytes) -> Future[bytes]:
        """Send a command that nsqd answers. The future raises ``NsqError``, ``NotExecuted`` or ``ConnectionLost``."""
        answer: Future[bytes] = Future()
        with self._lock:
            if self._closed:
                answer.set_exception(NotExecuted(f"{self.address}: {self._reason or 'not connected'}"))
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
        if self._observer is not None:
            self._observer.answered(self, True)

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        if delay is None:
            delay = min(self.requeue_delay * message.attempts, self.max_requeue_delay)
        with self._lock:
            self._session.send(command_writer.requeue(message.id, int(delay * 1000)))
            self.in_flight -= 1
        self._flush_soon()
        if self._observer is not None:
            self._observer.answered(self, False if backoff else None)

    def touch(self, message: Message) -> None:
        self.send(command_writer.touch(message.id))

    # --- Sending ------------------------------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            self._flush_wanted.set()

    def _write_loop(self) -> None:
        try:
            while not self._closed:
                self._flush_wanted.wait()
                self._flush_wanted.clear()
                self._flush_is_due = False
                self._send_pending()
                if self._closing:
                    self._require_socket().shutdown(socket.SHUT_WR)
                    return
        except OSError as error:
            self.abort(error)

    def _send_pending(self) -> None:
        sock = self._require_socket()
        while data := self._pending_data():
            sock.sendall(data)

    def _pending_data(self) -> bytes:
        with self._lock:
            data = self._session.data_to_send()
            return data if self._tls is None else self._tls.encode(data)

    # --- Closing ------------------------------------------------------------------------------------------------------

    def close(self, timeout: float = _CLOSE_TIMEOUT) -> None:
        """Send pending commands, wait until nsqd has read them and closes, at most `timeout` seconds, then close."""
        self._closing = True
        self._flush_wanted.set()
        self._finished.wait(timeout)
        self.abort()

    def abort(self, reason: Exception | None = None) -> None:
        """End the connection immediately. `run` returns soon after."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._reason = reason or ConnectionLost("closed")
        log.info("[%s] connection closed: %s", self.address, self._reason)
        # Shutting down wakes the threads that use the socket. `run` closes it, when no thread can use its number.
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._flush_wanted.set()

    def _fail_unanswered(self) -> None:
        """Set the error of all unanswered requests."""
        session, reason = self._session, self._reason
        unknown = NotExecuted if session.failure is not None else ConnectionLost
        while session.unanswered:
            _resolve(session.unanswered.popleft(), unknown(f"{self.address}: {reason}"))

    def _require_socket(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionLost("not connected")
        return self._socket


def close_all(connections: Iterable[Connection]) -> None:
    """Close several connections at the same time."""
    threads = [threading.Thread(target=connection.close, daemon=True) for connection in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[::1]:port``. Raises ``ValueError``."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"not host:port: {address!r}")
    return host.strip("[]"), int(port)


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
