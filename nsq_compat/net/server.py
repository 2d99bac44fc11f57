"""Servers: a listening socket, a greenlet for each accepted connection, and an orderly stop.

`TcpServer` speaks NSQ's protocols, `HttpServer` HTTP/1.1 for programs. The conversations are those of `session`.
"""

import errno
import logging
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Generic

import gevent
from gevent.event import Event

from nsq_compat.net.connection import RECEIVE_SIZE, Connection, Session
from nsq_compat.net.event_loop import BusyPoll, LoopTick, yield_to_loop
from nsq_compat.net.process import ClientDescriptors
from nsq_compat.net.sockets import address_of, close_listener, peer_of, prepare_listener
from nsq_compat.net.tls_codec import MakeTls
from nsq_compat.policy.log_throttle import LogThrottle
from nsq_compat.protocol.names import network_of
from nsq_compat.session.http_message import HttpHandler, HttpLimits
from nsq_compat.session.http_session import HttpSession, ImmediateHandler

log = logging.getLogger(__name__)

_READABLE: Final = 1
MAX_ACCEPTS: Final = 16
"""Clients accepted in one event-loop iteration; each takes about 0.2 ms until it is served."""
_CHECKED_AT_ONCE: Final = 100
"""Connections; the end of each takes about 20 us."""
# Otherwise a greenlet keeps the stack of its spawning, which takes a twentieth of the time to set a connection up.
gevent.config.track_greenlet_tree = False
_FIRST_PAUSE: Final = 0.05
_MAX_PAUSE: Final = 1.0
# Errors of accept() if a client has already closed its connection.
_CLIENT_GONE: Final = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EINTR, errno.EPERM})

SessionFactory = Callable[[Connection[Session], str, float, int], Session]


class ConnectionLimits:
    """Limits for each address on its connections to all listeners of a daemon; 0 is no limit.

    A connection beyond a limit is refused. To accept it later would make others wait behind it in the kernel's queue,
    and a limit for all addresses together would let one address use it up. Unix sockets are exempt. IPv6 clients are
    counted by their network of 64 bits, because a client may use any address of it.
    """

    def __init__(self, per_address: int = 0, per_second: int = 0) -> None:
        self.refused = {"per_address": 0, "per_second": 0}
        self._per_address = per_address
        self._per_second = per_second
        self._open: Counter[str] = Counter()
        self._begun: dict[str, deque[float]] = {}  # when the connections of the last second were admitted
        self._second = -1
        self._throttle = LogThrottle()

    def admit(self, host: str, now: float) -> str:
        """The key for `release`. Raises ``TooManyConnections``."""
        if not host or (self._per_address <= 0 and self._per_second <= 0):
            return ""
        key = network_of(host)
        if 0 < self._per_address <= self._open[key]:
            raise self._refusal("per_address", f"{key} has {self._per_address}", now)
        if self._per_second > 0:
            begun = self._begun_since(key, now - 1)
            if len(begun) >= self._per_second:
                raise self._refusal("per_second", f"{key} began {self._per_second} within a second", now)
            begun.append(now)
        self._open[key] += 1
        return key

    def _begun_since(self, key: str, then: float) -> deque[float]:
        if int(then) != self._second:
            self._second = int(then)
            self._begun = {key: begun for key, begun in self._begun.items() if begun and begun[-1] > then}
        begun = self._begun.setdefault(key, deque())
        while begun and begun[0] <= then:
            begun.popleft()
        return begun

    def release(self, key: str) -> None:
        """A connection that was admitted has ended."""
        if key:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]

    def _refusal(self, limit: str, why: str, now: float) -> "TooManyConnections":
        self.refused[limit] += 1
        if to_log := self._throttle.add(1, now):
            flag = "max-connections-per-address" if limit == "per_address" else "max-new-connections-per-second"
            log.warning("refused %d connections: %s (--%s)", to_log, why, flag)
        return TooManyConnections(limit)


class TooManyConnections(Exception):
    """A connection is beyond a limit for its address."""


NO_LIMITS: Final = ConnectionLimits()


def refuse(client: socket.socket, refusal: bytes) -> None:
    """Send this, if the client still reads, and close the connection."""
    with suppress(OSError):
        client.send(refusal)
    client.close()


class Acceptor:
    """Accepts clients from a listening socket (TCP or unix), which it owns.

    `serve` receives each client, as `sockets.prepare_client` makes it, and its socket name. `name` is the protocol in
    NSQ's log lines, such as ``TCP: listening on 127.0.0.1:4150``.
    """

    def __init__(self, listener: socket.socket, name: str, serve: Callable[[socket.socket, object], None]) -> None:
        prepare_listener(listener)
        self._listener = listener
        self._name = name
        self._address = address_of(listener)
        self._serve = serve
        self._descriptors = ClientDescriptors(listener.fileno())
        self._greenlet: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        log.info("%s: listening on %s", self._name, self._address)
        self._greenlet = gevent.spawn(self._accept_loop)

    def stop(self) -> None:
        """Close the listener; accepted connections stay open. May be called twice."""
        if self._listener.fileno() < 0:
            return
        log.info("%s: closing %s", self._name, self._address)
        if self._greenlet is not None:
            self._greenlet.kill()
        close_listener(self._listener)

    def _accept_loop(self) -> None:
        hub = gevent.get_hub()
        watcher = hub.loop.io(self._listener.fileno(), _READABLE)
        pause = _FIRST_PAUSE
        try:
            while True:
                hub.wait(watcher)
                try:
                    self._accept_waiting()
                    pause = _FIRST_PAUSE
                except OSError as error:
                    # Out of descriptors or memory: clients wait in the kernel's queue until others have disconnected.
                    log.warning("temporary Accept() failure - %s; retrying in %.2fs", error, pause)
                    gevent.sleep(pause)
                    pause = min(2 * pause, _MAX_PAUSE)
        finally:
            watcher.close()

    def _accept_waiting(self) -> None:
        for _ in range(MAX_ACCEPTS):
            self._descriptors.check()  # each time: if one client has left, there is room for one
            try:
                client, name = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _CLIENT_GONE:
                    continue
                raise
            client.setblocking(False)
            self._serve(client, name)


class TcpServer(Generic[Session]):
    """Serves a protocol, usually one of NSQ's, on a listening socket, which it owns.

    `make_session` receives the connection, the client's host, `now` and `now_ns`. `make_tls` is for sessions that offer
    TLS. `receive_size` bounds the number of commands that are executed for one client before others are served.
    `session_waits`: whether a session may switch to other greenlets while it is fed. If not, clients are served faster,
    and `busy_poll` is notified of their requests. Servers may share a `tick`, and `limits`. `refusal` is sent to a
    client beyond these.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_session: SessionFactory[Session],
        make_tls: MakeTls | None = None,
        receive_size: int = RECEIVE_SIZE,
        *,
        name: str = "TCP",
        session_waits: bool = True,
        busy_poll: BusyPoll | None = None,
        tick: LoopTick | None = None,
        limits: ConnectionLimits = NO_LIMITS,
        refusal: bytes = b"",
    ) -> None:
        self._acceptor = Acceptor(listener, name, self._serve)
        self._limits = limits
        self._refusal = refusal
        self._make_session = make_session
        self._make_tls = make_tls
        self._receive_size = receive_size
        self._name = name
        self._session_waits = session_waits
        self._busy_poll = busy_poll
        self._tick = LoopTick(gevent.get_hub().loop) if tick is None else tick
        self._connections: dict[Connection[Session], None] = {}
        self._all_ended = Event()

    @property
    def sessions(self) -> list[Session]:
        """The sessions of all connected clients."""
        return [connection.session for connection in self._connections]

    def start(self) -> None:
        self._acceptor.start()

    def stop(self, timeout: float) -> None:
        """Close the listener and abort every connection; wait `timeout` seconds for them to end."""
        self._acceptor.stop()
        for connection in list(self._connections):
            connection.abort()
        self._wait_for_ends(timeout)

    def _wait_for_ends(self, timeout: float) -> None:
        if self._connections:
            self._all_ended.clear()
            self._all_ended.wait(timeout)

    def abort_unless(self, may_continue: Callable[[Session], bool]) -> None:
        """End the connections that may not continue, some at a time."""
        for number, connection in enumerate(list(self._connections), 1):
            if not number % _CHECKED_AT_ONCE:
                yield_to_loop()
            if connection in self._connections and not may_continue(connection.session):
                log.warning(
                    "%s: closing %s, because its token does not permit it any more", self._name, connection.peer
                )
                connection.abort()

    def close_client(self, peer: str) -> bool:
        """Close the connection of a client at once; returns whether there is one."""
        found = [connection for connection in self._connections if connection.peer == peer]
        for connection in found:
            connection.abort()
        return bool(found)

    def _serve(self, client: socket.socket, name: object) -> None:
        peer, host = peer_of(name)
        try:
            key = self._limits.admit(host, time.monotonic())
        except TooManyConnections:
            refuse(client, self._refusal)
            return
        if self._name in ("TCP", "TLS"):  # nsqd: HTTP clients are not logged
            log.info("TCP: new client(%s)", peer)
        connection: Connection[Session] = Connection(
            client,
            peer,
            lambda this, now, now_ns: self._make_session(this, host, now, now_ns),
            self._make_tls,
            self._receive_size,
            session_waits=self._session_waits,
            busy_poll=self._busy_poll,
            tick=self._tick,
        )
        self._connections[connection] = None
        connection.start(partial(self._ended, connection, key))

    def _ended(self, connection: Connection[Session], key: str) -> None:
        self._limits.release(key)
        self._connections.pop(connection, None)
        if not self._connections:
            self._all_ended.set()


_HTTP_BODY: Final = b'{"message":"TOO_MANY_CONNECTIONS"}'
HTTP_REFUSAL: Final = (
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json; charset=utf-8\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(_HTTP_BODY), _HTTP_BODY)
)


class HttpServer(TcpServer[HttpSession]):
    """Serves HTTP, or HTTPS with `tls`. `immediate` answers some requests in the event loop, which is cheaper."""

    def __init__(
        self,
        listener: socket.socket,
        handler: HttpHandler,
        limits: HttpLimits | None = None,
        *,
        name: str = "HTTP",
        tls: MakeTls | None = None,
        immediate: ImmediateHandler | None = None,
        tick: LoopTick | None = None,
        connection_limits: ConnectionLimits = NO_LIMITS,
    ) -> None:
        def make_session(connection: Connection[HttpSession], host: str, now: float, now_ns: int) -> HttpSession:
            return HttpSession(
                handler,
                limits or HttpLimits(),
                remote_address=connection.peer,
                wake=connection.wake,
                now=now,
                now_ns=now_ns,
                immediate=immediate,
                client_is_gone=connection.peer_is_gone,
                tls=tls is not None,
            )

        super().__init__(
            listener,
            make_session,
            tls,
            name=name,
            session_waits=False,
            tick=tick,
            limits=connection_limits,
            refusal=HTTP_REFUSAL if tls is None else b"",
        )

    def stop(self, timeout: float) -> None:
        """Accept no more, close idle connections, wait up to `timeout` seconds for current requests, abort the rest."""
        self._acceptor.stop()
        for connection in list(self._connections):
            if connection.session.finish():
                connection.close()
        self._wait_for_ends(timeout)
        gevent.killall([each.reader for each in self._connections if each.reader is not None])
        for connection in list(self._connections):
            connection.free()
        self._connections.clear()
