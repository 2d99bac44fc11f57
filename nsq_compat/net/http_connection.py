"""One HTTP client, from accept to close: its greenlet, its socket, its deadlines.

What keeps it fast, and one client from another:

- It waits until there is something to read, then reads once; the replies to all requests of that read leave in one
  send. (Reading first would cost a failed system call and an exception per request.)
- A request like the one before, to a path whose answer waits for nothing (`at_once`), is answered in the event loop,
  which saves switching to the greenlet and back. Everything else its own greenlet answers and sends. A client that does
  not take its reply is waited for there, and nothing more is read from it meanwhile.
- Deadlines are plain numbers. One timer per connection looks at them when the earliest one might be due, and ends an
  overdue connection by shutting its socket down, which wakes the greenlet on its usual paths.
"""

import contextlib
import logging
import socket
import time
from collections.abc import Container
from typing import Any, Final

import gevent
import greenlet
from gevent.hub import get_hub

from nsq_compat.net.http_message import (
    HttpHandler,
    HttpLimits,
    Request,
    Response,
    encode_response,
    http_date,
)
from nsq_compat.net.http_reader import Phase, RequestReader
from nsq_compat.net.tls import MakeTls

log = logging.getLogger(__name__)

INTERNAL_ERROR: Final = Response(
    500,
    b'{"message":"INTERNAL_ERROR"}',
    (("Content-Type", "application/json; charset=utf-8"), ("X-Nsq-Content-Type", "nsq; version=1.0")),
)

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_NEVER: Final = float("inf")
_READABLE: Final = 1
_WRITABLE: Final = 2

# One read. Small, because a buffer of this size is allocated for every request; large bodies get the large one.
_READ_SIZE: Final = 32 * 1024
_BODY_READ_SIZE: Final = 256 * 1024
# What is answered in the event loop, where nothing can wait for its turn.
_MOST_IN_PLACE: Final = 8 * 1024
# Replies to pipelined requests are gathered up to this size.
_GATHERED_SIZE: Final = 64 * 1024


class HttpConnection:
    """One client, from accept to close."""

    def __init__(
        self,
        client: socket.socket,
        remote_address: str,
        handler: HttpHandler,
        limits: HttpLimits,
        at_once: Container[str] = (),
    ) -> None:
        self._socket = client
        self._at_once = at_once
        self._remote_address = remote_address
        self._handler = handler
        self._limits = limits
        self._reader = RequestReader(handler.admit, limits, remote_address)
        self._finishing = False
        self._answering = False
        self._client_left = False
        self._ended_here = False
        self._greenlet: greenlet.greenlet | None = None
        self._wants_to_read = False
        self._read_size = _READ_SIZE
        self._received: bytes | None = None
        self._unsent: tuple[bytes, int] | None = None  # a reply, and how much of it has left
        self._said: tuple[Response, bytes, bytes] | None = None  # the last plain reply: date, wire form
        self._hub = get_hub()
        self._readable: Any = self._hub.loop.io(client.fileno(), _READABLE)
        self._writable: Any = None
        self._phase = Phase.IDLE
        self._body_began = 0.0
        self._closed = False
        # What is overdue when, and when the timer looks next.
        self._deadline = time.monotonic() + limits.head_seconds
        self._timer: Any = None
        self._next_look = _NEVER
        self._look_at(self._deadline)

    def run(self) -> None:
        """Serve until either side has had enough. Raises nothing."""
        self._greenlet = gevent.getcurrent()
        try:
            self._open()
            while self._serve_one_read():
                pass
            if not self._client_left:
                self._linger()
        except OSError:
            pass  # the client has gone, or was too slow
        except Exception:
            log.exception("[%s] - connection failed", self._remote_address)
        finally:
            self.close()

    def finish(self) -> None:
        """The server stops: the request under way is the last one."""
        self._finishing = True
        if not self._answering and self._reader.phase is not Phase.BODY:
            # Reading only: a request that is already here is still answered.
            self._shut_down(socket.SHUT_RD)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._cancel_timer()
        for watcher in (self._readable, self._writable):
            if watcher is not None:
                watcher.stop()
                watcher.close()
        self._reader.close()
        self._socket.close()

    # --- Requests -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Nothing to do before the first byte; TLS shakes hands here."""

    def _serve_one_read(self) -> bool:
        """Answer everything one read brings; False when the connection ends here."""
        reader = self._reader
        data = self._receive(_READ_SIZE if reader.body_size < _READ_SIZE else _BODY_READ_SIZE)
        if not data:
            self._client_left = not self._ended_here
            return False
        requests = self._read_requests(data)
        if requests:
            self._deadline = _NEVER  # our time from here on, not the client's
            self._answering = True
            self._answer_all(requests)
            self._answering = False
            if reader.finished or self._finishing:
                return False
        if reader.owes_continue:
            self._send(_CONTINUE)
            reader.continue_sent()
        self._move_deadline(bool(requests))
        return True

    def _read_requests(self, data: bytes) -> list[Request | Response]:
        try:
            return self._reader.receive_data(data)
        except Exception:
            log.exception("panic in HTTP handler")
            self._finishing = True
            return [INTERNAL_ERROR]

    def _answer_all(self, requests: list[Request | Response]) -> None:
        if len(requests) == 1:  # Hot: nothing is gathered for who awaits each answer
            reply, goes_on = self._answer(requests[0], is_last=True)
            self._finishing = self._finishing or not goes_on
            self._send(reply)
            return
        gathered: list[bytes] = []
        size = 0
        last = len(requests) - 1
        for position, request in enumerate(requests):
            reply, goes_on = self._answer(request, is_last=position == last)
            gathered.append(reply)
            size += len(reply)
            if not goes_on:
                self._finishing = True
                break
            if size >= _GATHERED_SIZE:
                self._send(b"".join(gathered))
                gathered.clear()
                size = 0
        if gathered:
            self._send(gathered[0] if len(gathered) == 1 else b"".join(gathered))

    def _answer(self, request: Request | Response, *, is_last: bool) -> tuple[bytes, bool]:
        """The reply's bytes, and whether the connection goes on after it."""
        date = http_date(int(time.time()))
        if isinstance(request, Response):
            return encode_response(request, date, version="1.1", keep_alive=False), False
        try:
            response = self._handler.respond(request)
            keep_alive = request.keep_alive and not response.close and not (self._finishing and is_last)
            if keep_alive and request.version == "1.1" and request.method == "POST":
                return self._encode_plain(response, date), True
            reply = encode_response(
                response, date, version=request.version, keep_alive=keep_alive, bodiless=request.method == "HEAD"
            )
        except Exception:
            log.exception("panic in HTTP handler - %s %r", request.method, request.target)
            return encode_response(INTERNAL_ERROR, date, version=request.version, keep_alive=False), False
        return reply, keep_alive

    def _encode_plain(self, response: Response, date: bytes) -> bytes:
        # Hot: whoever publishes is told the same for a whole second.
        said = self._said
        if said is None or said[0] is not response or said[1] is not date:
            said = self._said = response, date, encode_response(response, date, version="1.1", keep_alive=True)
        return said[2]

    def _answer_in_place(self, request: Request) -> bool:
        """In the event loop; False when that leaves something to the greenlet."""
        reply, goes_on = self._answer(request, is_last=True)
        sent = self._try_send(reply)
        if sent < len(reply):
            self._unsent = reply, sent
        if not goes_on:
            self._finishing = True
        self._set_deadline(time.monotonic() + self._limits.idle_seconds)
        return goes_on and sent == len(reply)

    # --- The socket ---------------------------------------------------------------------------------------------------

    def _receive(self, size: int) -> bytes:
        """What is there, waiting for it; b"" at the end. Raises OSError."""
        # Hot: a watcher that stays started saves two calls a request, and hub.wait's waiter a third. It is
        # level-triggered: when it fires while the greenlet waits for something else, it stops itself.
        self._read_size = size
        while True:
            self._wants_to_read = True
            if not self._readable.active:
                self._readable.start(self._on_readable)
            self._hub.switch()
            if self._unsent is not None:
                (reply, sent), self._unsent = self._unsent, None
                self._send_rest(reply, sent)
            if self._received is not None:
                data, self._received = self._received, None
                return data
            if self._finishing:  # that reply was the last
                self._ended_here = True
                return b""

    def _on_readable(self) -> None:
        """Runs in the hub."""
        if not self._wants_to_read or self._greenlet is None:
            self._readable.stop()
            return
        try:
            data = self._socket.recv(self._read_size)
        except BlockingIOError:
            return
        except OSError as error:
            self._wants_to_read = False
            self._greenlet.throw(error)
            return
        if len(data) <= _MOST_IN_PLACE and self._reader.known_path in self._at_once and not self._finishing:
            request = self._reader.read_known(data)
            if request is None:
                self._received = data
            elif self._answer_in_place(request):
                return
        else:
            self._received = data
        self._wants_to_read = False
        self._greenlet.switch()

    def _try_send(self, data: bytes | memoryview) -> int:
        """How many bytes left at once."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def _send(self, data: bytes) -> None:
        """All of it, waiting for the client no longer than the limits say. Raises OSError."""
        sent = self._try_send(data)
        if sent < len(data):
            self._send_rest(data, sent)

    def _send_rest(self, data: bytes, sent: int) -> None:
        began = time.monotonic()
        before = self._deadline
        rest = memoryview(data)
        while sent < len(data):
            self._set_deadline(began + self._limits.write_seconds + sent / self._limits.slowest_rate)
            self._wait_writable()
            sent += self._try_send(rest[sent:])
        self._deadline = before

    def _wait_writable(self) -> None:
        if self._writable is None:
            self._writable = self._hub.loop.io(self._socket.fileno(), _WRITABLE)
        self._hub.wait(self._writable)

    def _linger(self) -> None:
        """Drop what the client still sends, for a moment: closing on unread bytes would destroy our last reply."""
        self._shut_down(socket.SHUT_WR)
        self._set_deadline(time.monotonic() + self._limits.linger_seconds)
        while self._receive(_BODY_READ_SIZE):
            pass

    def _shut_down(self, how: int) -> None:
        with contextlib.suppress(OSError):  # the client was quicker
            self._socket.shutdown(how)

    # --- Deadlines ----------------------------------------------------------------------------------------------------

    def _move_deadline(self, answered: bool) -> None:
        """After a read: how long the client may take with what it does now."""
        phase = self._reader.phase
        now = time.monotonic()
        if phase is Phase.BODY:
            if answered or phase is not self._phase:
                self._body_began = now
            allowed = self._limits.body_seconds + self._reader.body_size / self._limits.slowest_rate
            self._set_deadline(self._body_began + allowed)
        elif answered or phase is not self._phase:
            self._set_deadline(now + (self._limits.idle_seconds if phase is Phase.IDLE else self._limits.head_seconds))
        self._phase = phase

    def _set_deadline(self, deadline: float) -> None:
        self._deadline = deadline
        if deadline < self._next_look:
            self._look_at(deadline)

    def _look_at(self, moment: float) -> None:
        self._cancel_timer()
        self._next_look = moment
        self._timer = self._hub.loop.timer(max(0.0, moment - time.monotonic()))
        self._timer.start(self._look)

    def _look(self) -> None:
        """Runs in the hub: must not block."""
        now = time.monotonic()
        if now >= self._deadline:
            self._next_look = _NEVER
            log.debug("[%s] - deadline passed (%s)", self._remote_address, self._phase.name)
            self._shut_down(socket.SHUT_RDWR)
        else:
            self._look_at(min(self._deadline, now + self._limits.head_seconds))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None


class TlsHttpConnection(HttpConnection):
    """The same over TLS."""

    def __init__(
        self,
        client: socket.socket,
        remote_address: str,
        handler: HttpHandler,
        limits: HttpLimits,
        make_tls: MakeTls,
    ) -> None:
        super().__init__(client, remote_address, handler, limits)
        self._tls = make_tls()
        self._ended = False

    def _open(self) -> None:
        received = b""
        try:
            while not self._tls.shake_hands(received):
                self._send(b"")
                received = super()._receive(_READ_SIZE)
                if not received:
                    raise ConnectionError("EOF")
        except OSError as error:
            log.warning("http: TLS handshake error from %s: %s", self._remote_address, error)
            raise
        finally:
            self._send(b"")  # the last of it, or the alert

    def _receive(self, size: int) -> bytes:
        received = b""  # some may have come with the handshake
        while not self._ended:
            try:
                pieces = list(self._tls.decode(received))
            finally:
                self._send(b"")
            self._ended = b"" in pieces
            if pieces:
                return b"".join(pieces)
            received = super()._receive(size)
            self._ended = not received
        return b""

    def _send(self, data: bytes) -> None:
        wire = self._tls.encode(data)
        if wire:
            super()._send(wire)
