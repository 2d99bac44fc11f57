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
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Final

from nsq_compat.client.link import ENDS, TURN_SECONDS, ConnectionLost, Link, NotExecuted, Observer, why
from nsq_compat.client.message import Message
from nsq_compat.client.settings import ConnectionSettings, split_address
from nsq_compat.session.client_session import Event, Failed

log: Final = logging.getLogger(__name__)

_RECEIVE_SIZE = 1 << 18
_WAIT_SECONDS: Final = 0.001
"""To receive what has arrived does not take so long."""
_PAUSE_SECONDS: Final = 0.0001
"""Not 0, for which gevent runs up to 50 such turns before it serves sockets."""


class Connection(Link):
    """A connection to the nsqd at `address` (``host:port``). With a `subscription` opening it includes SUB."""

    def __init__(
        self,
        address: str,
        settings: ConnectionSettings,
        observer: "Observer[Connection] | None" = None,
        subscription: tuple[str, str] | None = None,
        *,
        publish_ids: bool = False,
    ) -> None:
        super().__init__(address, settings, subscription, publish_ids=publish_ids)
        self._observer: Observer[Connection] = observer or Observer()
        self._lock = threading.Lock()
        self._flush_wanted = threading.Event()
        self._flush_is_due = False
        self._socket: socket.socket | None = None
        self._finished = threading.Event()
        self._closing = False
        self._has_greenlets = False
        """The program replaced sockets and threads by those of gevent."""
        self._turn_ends = 0.0

    # --- Opening ------------------------------------------------------------------------------------------------------

    def open(self, deadline: float = math.inf) -> None:
        """Connect and negotiate, by the deadline and within the settings' timeout. Raises ``ConnectionLost``."""
        deadline = min(deadline, time.monotonic() + self.settings.timeout)
        try:
            self._socket = sock = socket.create_connection(split_address(self.address), timeout=_time_left(deadline))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._has_greenlets = type(sock).__module__.startswith("gevent.")
            while not self._is_open:
                self._step(sock, deadline)
                if self.is_closed:
                    raise ConnectionLost("closed")
            sock.settimeout(self._silence)
        except (*ENDS, ValueError) as error:
            self._mark_closed(error)
            if self._socket is not None:
                self._socket.close()
            self._finished.set()
            raise self._not_opened(error, self._socket is not None) from error
        self._note_opened()

    def _step(self, sock: socket.socket, deadline: float) -> None:
        """One round trip of opening the connection."""
        sock.settimeout(_time_left(deadline))
        began = time.monotonic()
        self._send_pending(sock)
        data = self._receive(sock)
        self._note_round_trip(time.monotonic() - began)
        for event in self._decode_received(data):
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
            if not isinstance(error, ENDS):
                log.exception("[%s] internal error", self.address)
            self.abort(error)
        writer.join()
        sock.close()
        self._fail_unanswered()
        self._finished.set()
        self._observer.closed(self, self._reason or ConnectionLost("closed"))

    def _read_loop(self, sock: socket.socket) -> None:
        while not self.is_closed:
            try:
                data = self._receive(sock)
            except TimeoutError:
                raise ConnectionLost(f"silent for {self._silence:g} s") from None
            for event in self._decode_received(data):
                self._on_event(event)

    def _receive(self, sock: socket.socket) -> bytes:
        began = time.monotonic()
        data = sock.recv(_RECEIVE_SIZE)
        now = time.monotonic()
        if now - began > _WAIT_SECONDS:  # others had their turn
            self._turn_ends = now + TURN_SECONDS
        return data

    def _pace(self) -> None:
        """Let other greenlets run now and then.

        Receiving what has arrived never switches greenlets, so an nsqd that sends without end would stop the program.
        """
        if self._has_greenlets and time.monotonic() >= self._turn_ends:
            time.sleep(_PAUSE_SECONDS)
            self._turn_ends = time.monotonic() + TURN_SECONDS

    def _decode_received(self, data: bytes) -> Iterator[Event]:
        if not data:
            raise ConnectionLost("closed by nsqd")
        for piece in self._pieces(data):
            with self._lock:
                events = self._decode(piece)
            if self._tls is not None and self._tls.has_pending:
                self._flush_soon()
            yield from events
            self._pace()

    def _received(self, messages: list[Message]) -> None:
        with self._lock:
            self.in_flight += len(messages)
        self._observer.received(self, messages)

    def _beat(self) -> None:
        self._observer.heartbeat(self)

    def _resolve(self, ticket: object, outcome: bytes | Exception) -> None:
        if isinstance(ticket, Future) and ticket.set_running_or_notify_cancel():
            if isinstance(outcome, Exception):
                ticket.set_exception(outcome)
            else:
                ticket.set_result(outcome)

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
        with self._lock:
            self._session.send(self._requeue_command(message, delay))
            self.in_flight -= 1
        self._flush_soon()
        self._observer.answered(self, False if backoff else None)

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
                data = self._data_to_send()
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
            self._mark_closed(reason)
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


def _time_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left
