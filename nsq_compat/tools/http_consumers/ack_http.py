"""An HTTP server that tells its handlers how much of an answer the client's system has acknowledged.

`net.server` sends an answer and forgets it. Here a handler writes by itself, in a greenlet for each client, and
can ask for three things: whether the client has left, whether it has sent something else meanwhile, and how many of the
bytes sent to it have been acknowledged.

Invariants:

- Only the handler writes, and the connection is read all the time.
- A client that reads nothing is disconnected in time; at most a few requests of one client are queued.
- Each request waits for its turn in the event loop, in which the clients' addresses take turns.
"""

import array
import fcntl
import logging
import socket
import termios
import time
from typing import Any, Final, Protocol

import gevent
import gevent.socket
from gevent.event import Event

from nsq_compat.net.connection import Connection
from nsq_compat.net.event_loop import LoopTick, yield_to_loop
from nsq_compat.net.server import HTTP_REFUSAL, NO_LIMITS, Acceptor, ConnectionLimits, TooManyConnections, refuse
from nsq_compat.net.sockets import address_of, peer_of
from nsq_compat.session.ack_session import AckSession
from nsq_compat.session.http_message import TEXT, Admission, HttpLimits, Request, Response, encode_response, http_date

log = logging.getLogger(__name__)

MIN_POLL_SECONDS: Final = 0.001
MAX_POLL_SECONDS: Final = 0.05
"""Acknowledgements cause no event, so they are polled for, after pauses that double between these bounds."""
_STALL_SECONDS: Final = 1.0
"""A client that has left and takes nothing for so long is given up."""
_ABORT_SECONDS: Final = 1.0
MAX_IGNORED_BODY: Final = 64 << 10
"""Of a request that needs no body."""
_TOO_LARGE: Final = Response(413, b"too large\n", (TEXT,), close=True)
_INTERNAL_ERROR: Final = Response(500, b"INTERNAL_ERROR\n", (TEXT,), close=True)


class ClientGone(ConnectionError):
    """The client has left or takes nothing: the last bytes sent may not have arrived."""


class AckHandler(Protocol):
    """The application behind an `AckHttpServer`."""

    def max_body(self, path: str) -> int:
        """The largest body of a request for this path."""

    def answer(self, request: Request, client: "AckConnection") -> bool:
        """Answer with ``client.reply`` or ``client.send``; return whether the connection is kept."""


class AckConnection:
    """One HTTP client, from accept to close.

    `wake` is set whenever the client's state has changed; handlers may set it for reasons of their own.
    """

    def __init__(
        self, client: socket.socket, address: str, handler: AckHandler, limits: HttpLimits, tick: LoopTick
    ) -> None:
        self.address = address
        self.wake = Event()
        self.is_stopping = False
        """The server stops: answer what can be answered at once."""
        self._socket = client
        self._handler = handler
        self._limits = limits
        self._acknowledged = 0
        self._connection = Connection(client, address, self._make_session, session_waits=False, tick=tick)
        self.session = self._connection.session
        """Whether the client is gone, how much it has sent and was sent."""

    def _make_session(self, connection: Connection[AckSession], now: float, now_ns: int) -> AckSession:
        return AckSession(self._admit, self._limits, self.address, self.wake.set, now)

    def _admit(self, head: Request) -> Admission:
        return Admission(self._handler.max_body(head.path), _TOO_LARGE)

    # --- For handlers -------------------------------------------------------------------------------------------------

    @property
    def acknowledged(self) -> int:
        """How many of the bytes sent the client's system has acknowledged."""
        if self._socket.fileno() >= 0:
            unacknowledged = array.array("i", [0])
            fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, unacknowledged)
            self._acknowledged = self.session.sent - unacknowledged[0]
        return self._acknowledged

    def write_deadline(self) -> float:
        """When an answer sent now must be acknowledged, however long it is: its messages are in flight meanwhile."""
        return time.monotonic() + self._limits.write_seconds

    def send(self, data: bytes, deadline: float) -> None:
        """Return when the socket has accepted `data`. Raises ``ClientGone``, at `deadline` at the latest."""
        left = memoryview(data)
        while left:
            if self.session.is_broken:
                raise ClientGone("connection closed")
            try:
                count = self._socket.send(left)
            except BlockingIOError:
                self._wait_writable(deadline)
            except OSError as error:
                raise ClientGone(str(error)) from error
            else:
                self.session.sent += count
                left = left[count:]
            if left and time.monotonic() >= deadline:
                raise ClientGone("reads too slowly")

    def _wait_writable(self, deadline: float) -> None:
        seconds = max(0.0, min(deadline - time.monotonic(), _STALL_SECONDS))
        try:
            gevent.socket.wait_write(self._socket.fileno(), seconds, TimeoutError())
        except TimeoutError:
            if self.session.is_gone:
                raise ClientGone("left without reading") from None

    def reply(self, request: Request, response: Response, deadline: float | None = None) -> bool:
        """Send an answer; returns whether the connection is kept. Raises ``ClientGone``."""
        keep_alive = request.keep_alive and not response.close and not self.is_stopping
        self._send(
            response, deadline, version=request.version, keep_alive=keep_alive, bodiless=request.method == "HEAD"
        )
        return keep_alive

    def _send(self, response: Response, deadline: float | None = None, **form: Any) -> None:
        data = encode_response(response, http_date(int(time.time())), **form)
        self.send(data, deadline or self.write_deadline())

    def wait_until_acknowledged(self, deadline: float) -> None:
        """Return when everything sent is acknowledged. Raises ``ClientGone``, at `deadline` at the latest."""
        pause = MIN_POLL_SECONDS
        while self.acknowledged < self.session.sent:
            self.wake.clear()
            if self.session.is_gone or time.monotonic() >= deadline:
                # The client may have read everything before it left: its FIN came after the acknowledgement.
                if not self.session.is_broken and self.acknowledged == self.session.sent:
                    return
                raise ClientGone("left before the answer arrived")
            self.wake.wait(pause)
            pause = min(2 * pause, MAX_POLL_SECONDS)
        if self.session.is_broken:
            raise ClientGone("connection broke")

    # --- For the server -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Answer one request after the other, until either side ends the connection."""
        reading = gevent.spawn(self._connection.run)
        try:
            while (request := self._next()) is not None and self._answer(request):
                self.session.answered(time.monotonic())
                self._connection.wake()
            self.session.closing = True
            self._connection.wake()
        except ClientGone:
            self.abort()
        except Exception:  # the top of a greenlet
            log.exception("[%s] - connection failed", self.address)
            self.abort()
        reading.join()

    def stop(self) -> None:
        """The request under way is the last one."""
        self.is_stopping = True
        self.wake.set()

    def abort(self) -> None:
        self._connection.abort()

    def _next(self) -> Request | Response | None:
        """Wait for the next request; None if there will be none."""
        session = self.session
        while True:
            self.wake.clear()
            if session.requests:
                session.is_answering = True
                return session.requests.popleft()
            if self.is_stopping or not session.expects_requests:
                return None
            self.wake.wait()

    def _answer(self, request: Request | Response) -> bool:
        if isinstance(request, Response):
            self._send(request, version="1.1", keep_alive=False)
            return False
        # Hundreds may have arrived at once, and to read the parameters alone can take 10 ms.
        yield_to_loop(self._connection.client)
        try:
            return self._handler.answer(request, self)
        except ClientGone:
            raise
        except Exception:
            log.exception("panic in HTTP handler - %s %r", request.method, request.target)
            return self.reply(request, _INTERNAL_ERROR)


class AckHttpServer:
    """Owns a listening socket from here on, and every connection accepted from it."""

    def __init__(
        self,
        listener: socket.socket,
        handler: AckHandler,
        limits: HttpLimits | None = None,
        connection_limits: ConnectionLimits = NO_LIMITS,
    ) -> None:
        self.address = address_of(listener)
        self._acceptor = Acceptor(listener, "HTTP", self._serve)
        self._handler = handler
        self._limits = limits or HttpLimits()
        self._connection_limits = connection_limits
        self._tick = LoopTick(gevent.get_hub().loop)
        self._connections: dict[AckConnection, gevent.Greenlet[[], None]] = {}

    def start(self) -> None:
        self._acceptor.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Accept no more, wait up to `timeout` seconds for requests under way, abort the rest."""
        self._acceptor.stop()
        for connection in list(self._connections):
            connection.stop()
        gevent.joinall(list(self._connections.values()), timeout)
        for connection in list(self._connections):
            connection.abort()
        gevent.joinall(list(self._connections.values()), _ABORT_SECONDS)

    def _serve(self, client: socket.socket, name: object) -> None:
        peer, host = peer_of(name)
        try:
            key = self._connection_limits.admit(host, time.monotonic())
        except TooManyConnections:
            refuse(client, HTTP_REFUSAL)
            return
        connection = AckConnection(client, peer, self._handler, self._limits, self._tick)
        greenlet = self._connections[connection] = gevent.spawn(connection.run)
        greenlet.link(lambda _: self._ended(connection, key))

    def _ended(self, connection: AckConnection, key: str) -> None:
        self._connection_limits.release(key)
        self._connections.pop(connection, None)
