"""Serves NSQ's TCP protocol on a listening socket: gives each client a greenlet, knows them all, can end them all."""

import errno
import logging
import socket
from collections.abc import Callable
from typing import Final, Generic

import gevent

from nsq_compat.net.connection import RECEIVE_SIZE, Connection, Session
from nsq_compat.net.listeners import address_of, close_listener, peer_of, prepare_client
from nsq_compat.net.loop_tick import LoopTick
from nsq_compat.net.process import ClientDescriptors
from nsq_compat.net.tls import MakeTls
from nsq_compat.net.vigil import Vigil
from nsq_compat.session.http_message import HttpHandler, HttpLimits
from nsq_compat.session.http_session import HttpSession, ImmediateHandler

log = logging.getLogger(__name__)

_READABLE: Final = 1
ACCEPTED_AT_ONCE: Final = 16
"""Clients accepted in one iteration of the event loop, each of which takes some 0.2 ms until it is served."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
# What accept() says when a client has gone again: nothing to wait for.
_CLIENT_GONE: Final = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EINTR, errno.EPERM})


class Acceptor:
    """Owns a listening socket (TCP or unix) from here on.

    `serve` is given each client, prepared (`listeners.prepare_client`), and its socket name. `name` is the protocol,
    for the log lines operators look for: ``TCP: listening on 127.0.0.1:4150``.
    """

    def __init__(self, listener: socket.socket, name: str, serve: Callable[[socket.socket, object], None]) -> None:
        listener.setblocking(False)
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
        """Close the listener; who is connected stays. May be called twice."""
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
                    # Out of descriptors or memory: the client stays in the kernel's queue until others have left.
                    log.warning("temporary Accept() failure - %s; retrying in %.2fs", error, pause)
                    gevent.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            watcher.stop()
            watcher.close()

    def _accept_waiting(self) -> None:
        """Take what waits, but not for ever: others want to run."""
        for _ in range(ACCEPTED_AT_ONCE):
            self._descriptors.check()
            try:
                client, name = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _CLIENT_GONE:
                    continue
                raise
            prepare_client(client)
            self._serve(client, name)


SessionFactory = Callable[[Connection[Session], str, float, int], Session]


class TcpServer(Generic[Session]):
    """Owns a listening socket (TCP or unix) from here on, and every connection accepted from it.

    `make_session` is given the connection, the client's host, `now` and `now_ns`. `make_tls` is for sessions that offer
    TLS. What a client may have done before others have their turn is what `receive_size` bytes of commands ask for.
    `session_waits` says whether a session may let others run while it is fed: if none does, clients are served quicker,
    all the more with a `vigil`, which hears of every answer. A `tick` may be shared with who does something at its end.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_session: SessionFactory[Session],
        make_tls: MakeTls | None = None,
        receive_size: int = RECEIVE_SIZE,
        *,
        session_waits: bool = True,
        vigil: Vigil | None = None,
        tick: LoopTick | None = None,
    ) -> None:
        self._acceptor = Acceptor(listener, "TCP", self._serve)
        self._make_session = make_session
        self._make_tls = make_tls
        self._receive_size = receive_size
        self._session_waits = session_waits
        self._vigil = vigil
        self._tick = LoopTick(gevent.get_hub().loop) if tick is None else tick
        self._connections: dict[Connection[Session], gevent.Greenlet[[], None]] = {}

    @property
    def sessions(self) -> list[Session]:
        """Of every client that is connected."""
        return [connection.session for connection in self._connections]

    def start(self) -> None:
        self._acceptor.start()

    def stop(self, timeout: float) -> None:
        """Close the listener and every client, also those who never said a word; wait `timeout` seconds for them."""
        self._acceptor.stop()
        for connection in list(self._connections):
            connection.abort()
        gevent.joinall(list(self._connections.values()), timeout=timeout)

    def _serve(self, client: socket.socket, name: object) -> None:
        peer, host = peer_of(name)
        log.info("TCP: new client(%s)", peer)
        connection: Connection[Session] = Connection(
            client,
            peer,
            lambda this, now, now_ns: self._make_session(this, host, now, now_ns),
            self._make_tls,
            self._receive_size,
            session_waits=self._session_waits,
            vigil=self._vigil,
            tick=self._tick,
        )
        greenlet = self._connections[connection] = gevent.spawn(connection.run)
        greenlet.link(lambda _: self._connections.pop(connection, None))


class HttpServer:
    """Owns a listening socket (TCP or unix) from here on, and every connection accepted from it.

    With `tls` it speaks HTTPS. `start` returns at once; `stop` lets requests under way finish. `immediate` answers some
    requests in the event loop, which is cheaper. A `tick` may be shared with other servers.
    """

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
    ) -> None:
        self.limits = limits or HttpLimits()
        self.handler = handler
        self._acceptor = Acceptor(listener, name, self._serve)
        self._tls = tls
        self._immediate = immediate
        self._tick = LoopTick(gevent.get_hub().loop) if tick is None else tick
        self._connections: dict[Connection[HttpSession], gevent.Greenlet[[], None]] = {}

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def start(self) -> None:
        self._acceptor.start()

    def stop_accepting(self) -> None:
        """Close the listener; clients that are connected stay."""
        self._acceptor.stop()

    def stop(self, timeout: float = 5.0) -> None:
        """Accept no more, close idle connections, wait up to `timeout` seconds for requests under way, end the rest."""
        self.stop_accepting()
        for connection in list(self._connections):
            if connection.session.finish():
                connection.stop_reading()
        gevent.joinall(list(self._connections.values()), timeout=timeout)
        gevent.killall(list(self._connections.values()))
        for connection in list(self._connections):
            self._forget(connection)

    def _serve(self, client: socket.socket, name: object) -> None:
        peer = peer_of(name)[0]
        connection = Connection(client, peer, self._make_session, self._tls, session_waits=False, tick=self._tick)
        greenlet = self._connections[connection] = gevent.spawn(connection.run)
        # However it ends, even killed before its first step.
        greenlet.link(lambda _: self._forget(connection))

    def _make_session(self, connection: Connection[HttpSession], now: float, now_ns: int) -> HttpSession:
        return HttpSession(
            self.handler,
            self.limits,
            remote_address=connection.peer,
            wake=connection.wake,
            now=now,
            now_ns=now_ns,
            immediate=self._immediate,
            tls=self._tls is not None,
        )

    def _forget(self, connection: Connection[HttpSession]) -> None:
        self._connections.pop(connection, None)
        connection.release()
