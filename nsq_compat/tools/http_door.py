"""HTTP for handing out messages: who answers learns what of his answer has arrived, and at once when nobody waits.

`net.http_server` answers and forgets. Here the handler writes by itself and is told three things about its caller:
whether he has gone, whether he has asked for something else meanwhile, and how many of the bytes sent to him his system
has acknowledged. Blocking sockets and two threads for each caller, one that reads and one that answers; a program that
monkey-patches itself with gevent has greenlets.

Invariants:

- Only the answering thread writes and closes. The reading one listens for the end as long as there is somebody.
- A caller who takes nothing is ended within his time; what is read of one and held never exceeds a few requests.
"""

import array
import contextlib
import fcntl
import logging
import socket
import termios
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from nsq_compat.net.listeners import address_of, close_listener, peer_of, prepare_client
from nsq_compat.net.process import ClientDescriptors
from nsq_compat.session.http_message import (
    TEXT,
    Admission,
    HttpLimits,
    Phase,
    Request,
    RequestReader,
    Response,
    encode_response,
    http_date,
)

log = logging.getLogger(__name__)

_RECEIVE_SIZE: Final = 1 << 16
_TICK: Final = 1.0
"""How late, in seconds, a deadline may be noticed."""
_AHEAD: Final = 8
"""Requests that one caller may send ahead of the answers."""
SHORTEST_LOOK: Final = 0.001
LONGEST_LOOK: Final = 0.05
"""Nothing tells when an acknowledgement comes: one looks, after pauses that double from the first to the second."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_INTERNAL_ERROR: Final = Response(500, b"INTERNAL_ERROR\n", (TEXT,), close=True)


class Gone(ConnectionError):
    """The caller has left, or takes nothing: what was sent last has not arrived as far as anybody knows."""


class DoorHandler(Protocol):
    """What a door asks of the application behind it."""

    def admit(self, method: str, path: str) -> Admission:
        """As ``http_message.HttpHandler.admit``."""

    def answer(self, request: Request, caller: "Caller") -> bool:
        """Answer with ``caller.reply`` or ``caller.send``, and say whether the connection goes on."""


class Caller:
    """One HTTP client, from accept to close.

    `wake` is set whenever something about him has changed; whoever waits for something else as well sets it too.
    """

    def __init__(
        self,
        client: socket.socket,
        address: str,
        handler: DoorHandler,
        limits: HttpLimits,
        ended: "Callable[[Caller], object]",
    ) -> None:
        self.address = address
        self.wake = threading.Event()
        self.is_gone = False
        """He has ended his side, or it broke."""
        self.broke = False
        """It broke: whatever he had not read by then he never will."""
        self.is_leaving = False
        """The program ends: answer what can be answered at once."""
        self.sent = 0
        """Bytes."""
        self._socket = client
        self._handler = handler
        self._limits = limits
        self._ended = ended
        self._reader = RequestReader(handler.admit, limits, address)
        self._requests: deque[Request | Response] = deque()
        self._is_answering = False
        self._reads = 0
        self._phase_began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"answers {address}", daemon=True)
        client.settimeout(_TICK)

    # --- For handlers -------------------------------------------------------------------------------------------------

    @property
    def reads(self) -> int:
        """How often something came from him: more than before, and he has said something since."""
        return self._reads

    @property
    def taken(self) -> int:
        """How many of the bytes sent his system has acknowledged."""
        unacknowledged = array.array("i", [0])
        fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, unacknowledged)
        return self.sent - unacknowledged[0]

    def send(self, data: bytes, due: float) -> None:
        """Return once the socket has taken it. Raises ``Gone``, when it is `due` at the latest."""
        rest = memoryview(data)
        while rest:
            try:
                count = self._socket.send(rest)
            except TimeoutError:
                count = 0
            except OSError as error:
                self.broke = True
                raise Gone(str(error)) from error
            self.sent += count
            rest = rest[count:]
            if rest and (time.monotonic() >= due or (not count and self.is_gone)):
                raise Gone("takes nothing, or too slowly")

    def due(self) -> float:
        """The moment by which he must have what is sent to him now, and his system have acknowledged it.

        However long it is: messages are only lent to us.
        """
        return time.monotonic() + self._limits.write_seconds

    def reply(self, request: Request, response: Response, due: float | None = None) -> bool:
        """Send an answer; whether the connection goes on. Raises ``Gone``."""
        goes_on = request.keep_alive and not response.close and not self.is_leaving
        data = encode_response(
            response,
            http_date(int(time.time())),
            version=request.version,
            keep_alive=goes_on,
            bodiless=request.method == "HEAD",
        )
        self.send(data, due or self.due())
        return goes_on

    def wait_until_taken(self, due: float) -> None:
        """Return once his system has all that was sent. Raises ``Gone``, when it is `due` at the latest."""
        pause = SHORTEST_LOOK
        while self.taken < self.sent:
            self.wake.clear()
            if self.is_gone or time.monotonic() >= due:
                # He may have read everything before he left: his last word came after it.
                if not self.broke and self.taken == self.sent:
                    return
                raise Gone("left before it arrived")
            self.wake.wait(pause)
            pause = min(2 * pause, LONGEST_LOOK)
        if self.broke:
            raise Gone("broken off")

    # --- His life -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        """The program ends: the request under way is the last one."""
        self.is_leaving = True
        self.wake.set()

    def join(self, timeout: float) -> None:
        self._thread.join(timeout)

    def hang_up(self) -> None:
        """End it at once; his threads end soon after."""
        with contextlib.suppress(OSError):  # he was quicker
            self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        reading = threading.Thread(target=self._read, name=f"reads {self.address}", daemon=True)
        reading.start()
        try:
            while (request := self._next()) is not None and self._answer(request):
                self._is_answering = False
                self._phase_began = time.monotonic()
            self._linger()
        except Gone:
            pass
        except Exception:  # the top of a thread
            log.exception("[%s] - connection failed", self.address)
        finally:
            self.hang_up()
            reading.join()
            self._reader.close()
            self._socket.close()
            self._ended(self)

    def _next(self) -> Request | Response | None:
        """The next request, waiting for it; None if there will be none."""
        while True:
            self.wake.clear()
            if self._requests:
                self._is_answering = True
                return self._requests.popleft()
            if self.is_gone or self.is_leaving or self._reader.finished:
                return None
            self.wake.wait()

    def _answer(self, request: Request | Response) -> bool:
        if isinstance(request, Response):
            data = encode_response(request, http_date(int(time.time())), version="1.1", keep_alive=False)
            self.send(data, self.due())
            return False
        try:
            return self._handler.answer(request, self)
        except Gone:
            raise
        except Exception:
            log.exception("panic in HTTP handler - %s %r", request.method, request.target)
            return self.reply(request, _INTERNAL_ERROR)

    def _linger(self) -> None:
        """Closing on unread bytes would destroy our last words: let him read them first, for a moment."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + self._limits.linger_seconds
        while not self.is_gone and (left := deadline - time.monotonic()) > 0:
            self.wake.clear()
            self.wake.wait(left)

    # --- Reading ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while data := self._receive():
                self._reads += 1
                self._feed(data)
                self.wake.set()
        except OSError:
            self.broke = True
        except Exception:  # the top of a thread
            log.exception("[%s] - connection failed", self.address)
            self.broke = True
        self.is_gone = True
        self.wake.set()

    def _receive(self) -> bytes:
        """What has come, waiting for it; b"" at the end. Raises ``OSError``, also when he is too slow."""
        while True:
            try:
                return self._socket.recv(_RECEIVE_SIZE)
            except TimeoutError:
                if self._is_overdue():
                    raise ConnectionError("too slow") from None

    def _feed(self, data: bytes) -> None:
        reader = self._reader
        phase = reader.phase
        requests = reader.receive_data(data)
        if len(self._requests) + len(requests) > _AHEAD:
            raise ConnectionError("too many requests ahead of their answers")
        self._requests.extend(requests)
        if reader.phase is not phase:
            self._phase_began = time.monotonic()
        if reader.owes_continue and not self._is_answering and not self._requests:
            self._socket.send(_CONTINUE)  # nobody else writes now; he waits for it with an empty socket
            self.sent += len(_CONTINUE)
            reader.continue_sent()

    def _is_overdue(self) -> bool:
        if self._is_answering or self._requests:
            return False  # our time, not his
        limits, reader = self._limits, self._reader
        allowed = {
            Phase.IDLE: limits.idle_seconds,
            Phase.HEAD: limits.head_seconds,
            Phase.BODY: limits.body_seconds + reader.body_size / limits.slowest_rate,
        }[reader.phase]
        return time.monotonic() - self._phase_began > allowed


class Door:
    """Owns a listening socket from here on, and every caller accepted from it."""

    def __init__(self, listener: socket.socket, handler: DoorHandler, limits: HttpLimits | None = None) -> None:
        listener.setblocking(True)
        self.address = address_of(listener)
        self._listener = listener
        self._handler = handler
        self._limits = limits or HttpLimits()
        self._descriptors = ClientDescriptors(listener.fileno())
        self._callers: set[Caller] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._accept_loop, name="HTTP", daemon=True)

    def start(self) -> None:
        log.info("HTTP: listening on %s", self.address)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Accept no more, let what is under way end for so many seconds, end the rest. May be called twice."""
        if self._stopping.is_set():
            return
        log.info("HTTP: closing %s", self.address)
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._thread.join()
        close_listener(self._listener)
        callers = list(self._callers)
        for caller in callers:
            caller.leave()
        deadline = time.monotonic() + timeout
        for caller in callers:
            caller.join(max(0.0, deadline - time.monotonic()))
        for caller in callers:
            caller.hang_up()
        for caller in callers:
            caller.join(_TICK)

    def _accept_loop(self) -> None:
        while not self._stopping.is_set():
            try:
                self._descriptors.check()
                client, name = self._listener.accept()
            except OSError as error:
                if not self._stopping.is_set():
                    # Out of descriptors or memory, or a client that has gone again: others wait in the kernel's queue.
                    log.warning("temporary Accept() failure - %s", error)
                    self._stopping.wait(_TICK)
                continue
            prepare_client(client)
            caller = Caller(client, peer_of(name)[0], self._handler, self._limits, self._callers.discard)
            self._callers.add(caller)
            caller.start()
