"""One TCP connection to nsqd: a socket, and a session on it. Plain blocking sockets and threads; a program that has
monkey-patched itself with gevent gets greenlets.

`open` connects and makes the connection ready for commands. `run`, in a thread of its own, receives until the end.
Commands may come from any thread, which never waits for the socket: a second thread sends what has gathered, so that a
run of FINs is one send, and a nsqd that reads nothing holds up neither handlers nor publishers beyond their timeout.

Invariants:

- Whatever happens, ``run`` ends, `closed` is called once, and every asked question has an answer or an error by then.
- A connection on which nothing came for two heartbeats is dead; so is one that takes nothing for as long.
- The session is used under the lock; of the open connection one thread sends and one receives.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Sequence
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
    """The connection ended, or never came to be. What was asked and not answered may have been done, or not."""


class NotExecuted(ConnectionLost):
    """The connection ended, and this was certainly not executed: nsqd had refused something before it."""


class ConnectionObserver(Protocol):
    """Who is told what happens on a connection, in the thread of its ``run``."""

    def received(self, connection: "Connection", messages: list[Message]) -> None: ...
    def answered(self, connection: "Connection", succeeded: bool | None) -> None:
        """A message was finished (True), requeued (False), or requeued without a meaning for the pace (None).

        Called in the thread that answered.
        """

    def heartbeat(self, connection: "Connection") -> None: ...
    def closed(self, connection: "Connection", reason: Exception) -> None: ...


class Connection:
    """To one nsqd, at `address` (``host:port``).

    `observer` is told what comes; a producer needs none. With a topic and channel as `subscription` it is no open
    connection before nsqd has agreed to SUB.
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
        """Seconds from a command to its answer: the longest exchange while the connection was opened."""
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
        """The address, as pynsq calls it."""
        return self.address

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def max_rdy_count(self) -> int:
        return self._session.max_rdy_count

    @property
    def msg_timeout(self) -> float:
        """Seconds nsqd waits for an answer to a message."""
        response = self._session.response
        return response.msg_timeout / 1000 if response and response.msg_timeout else DEFAULT_MSG_TIMEOUT

    # --- Opening ------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect, negotiate, upgrade, authenticate. Raises ``ConnectionLost``; within the settings' timeout."""
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
        """One exchange on the way to an open connection."""
        connected, session = self._connected(), self._session
        connected.settimeout(_time_left(deadline))
        began = time.monotonic()
        self._send_pending()
        data = self._start_tls(connected, deadline) if session.tls_wanted else self._receive(connected)
        self.round_trip = max(self.round_trip, time.monotonic() - began)
        for event in session.receive_data(data) if data else ():
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Answered) or (isinstance(event, Opened) and not self._awaits_sub):
                self._is_ready = True

    def _start_tls(self, connected: socket.socket, deadline: float) -> bytes:
        """Returns what nsqd has said already behind the handshake."""
        tls = TlsStream(self.settings.tls_context(), split_address(self.address)[0])

        def receive() -> bytes:
            connected.settimeout(_time_left(deadline))
            return connected.recv(_RECEIVE_SIZE)

        tls.shake_hands(connected.sendall, receive)
        self._tls = tls
        self._session.tls_established()
        return tls.decode(b"")

    # --- Receiving ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Receive until the connection ends, for whatever reason."""
        writer = threading.Thread(target=self._write_loop, name=f"nsqd {self.address} writer", daemon=True)
        writer.start()
        try:
            self._read_loop()
        except Exception as error:  # the top of a thread
            if not isinstance(error, OSError | ProtocolError | ConnectionLost | NsqError):
                log.exception("[%s] internal error", self.address)
            self.abort(error)
        writer.join()
        self._connected().close()
        self._fail_unanswered()
        self._finished.set()
        if self._observer is not None:
            self._observer.closed(self, self._reason or ConnectionLost("closed"))

    def _read_loop(self) -> None:
        connected = self._connected()
        while not self._closed:
            try:
                data = self._receive(connected)
            except TimeoutError:
                raise ConnectionLost(f"silent for {self.settings.silence:g} s") from None
            with self._lock:
                events = self._session.receive_data(data) if data else []
                tls_pending = self._tls is not None and self._tls.has_pending
            for event in events:
                self._on_event(event)
            if tls_pending:
                self._flush_soon()

    def _receive(self, connected: socket.socket) -> bytes:
        """What the session is to be fed; with TLS it may be nothing yet. Raises ``OSError``."""
        data = connected.recv(_RECEIVE_SIZE)
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
        messages = [Message(each.id, each.body, each.timestamp_ns, each.attempts, self, address) for each in wire]
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
        """Send a command that nsqd does not answer, soon. After the end of the connection it goes nowhere."""
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
                    self._connected().shutdown(socket.SHUT_WR)
                    return
        except OSError as error:
            self.abort(error)

    def _send_pending(self) -> None:
        connected = self._connected()
        while data := self._pending_data():
            connected.sendall(data)

    def _pending_data(self) -> bytes:
        with self._lock:
            data = self._session.data_to_send()
            return data if self._tls is None else self._tls.encode(data)

    # --- The end ------------------------------------------------------------------------------------------------------

    def close(self, timeout: float = _CLOSE_TIMEOUT) -> None:
        """Send what is owed, wait until nsqd has read it all and closes, or so long; then close."""
        self._closing = True
        self._flush_wanted.set()
        self._finished.wait(timeout)
        self.abort()

    def abort(self, reason: Exception | None = None) -> None:
        """End the connection at once; `run` returns soon after."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._reason = reason or ConnectionLost("closed")
        log.info("[%s] connection closed: %s", self.address, self._reason)
        # Shut down, so that nobody waits for it any more; whoever runs it closes it, when nobody can use its number.
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._flush_wanted.set()

    def _fail_unanswered(self) -> None:
        """Nothing more will come: whoever waits is told what is known."""
        session, reason = self._session, self._reason
        unknown = NotExecuted if session.failure is not None else ConnectionLost
        while session.unanswered:
            _resolve(session.unanswered.popleft(), unknown(f"{self.address}: {reason}"))

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionLost("not connected")
        return self._socket


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
