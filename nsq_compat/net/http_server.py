"""Serves HTTP on a listening socket: gives every client a greenlet, knows them all, and can end them all.

The conversation with a client is ``session.http_session``'s, its responses the handler's.
"""

import socket

import gevent

from nsq_compat.net.acceptor import Acceptor
from nsq_compat.net.connection import Connection
from nsq_compat.net.listeners import peer_of
from nsq_compat.net.tls import MakeTls
from nsq_compat.net.turn import Turn
from nsq_compat.session.http_message import HttpHandler, HttpLimits
from nsq_compat.session.http_session import HttpSession, ImmediateHandler


class HttpServer:
    """Owns a listening socket (TCP or unix) from here on, and every connection accepted from it.

    With `tls` it speaks HTTPS. `start` returns at once; `stop` lets requests under way finish. `immediate` answers some
    requests in the event loop, which is cheaper. A `turn` may be shared with other servers.
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
        turn: Turn | None = None,
    ) -> None:
        self.limits = limits or HttpLimits()
        self.handler = handler
        self._acceptor = Acceptor(listener, name, self._serve)
        self._tls = tls
        self._immediate = immediate
        self._turn = Turn(gevent.get_hub().loop) if turn is None else turn
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
        connection = Connection(client, peer, self._make_session, self._tls, session_waits=False, turn=self._turn)
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
