"""Serves HTTP on a listening socket: gives every client a greenlet, knows them all, and can end them all.

The conversation with a client is `http_connection`'s, what is answered the handler's.
"""

import socket
from collections.abc import Container

import gevent

from nsq_compat.net.acceptor import Acceptor
from nsq_compat.net.http_connection import HttpConnection, TlsHttpConnection
from nsq_compat.net.http_message import HttpHandler, HttpLimits
from nsq_compat.net.listeners import peer_of
from nsq_compat.net.tls import MakeTls


class HttpServer:
    """Owns a listening socket (TCP or unix) from here on, and every connection accepted from it.

    With `tls` it speaks HTTPS. `start` returns at once; `stop` lets requests under way finish. What comes to the paths
    `at_once` the handler answers without waiting for anything, which makes it cheaper.
    """

    def __init__(
        self,
        listener: socket.socket,
        handler: HttpHandler,
        limits: HttpLimits | None = None,
        *,
        name: str = "HTTP",
        tls: MakeTls | None = None,
        at_once: Container[str] = (),
    ) -> None:
        self.limits = limits or HttpLimits()
        self.handler = handler
        self._acceptor = Acceptor(listener, name, self._serve)
        self._tls = tls
        self._at_once = at_once
        self._connections: dict[HttpConnection, gevent.Greenlet[[], None]] = {}

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def start(self) -> None:
        self._acceptor.start()

    def stop_accepting(self) -> None:
        """Close the listener; who is connected stays."""
        self._acceptor.stop()

    def stop(self, timeout: float = 5.0) -> None:
        """Accept no more, close idle connections, wait up to `timeout` seconds for requests under way, end the rest."""
        self.stop_accepting()
        for connection in list(self._connections):
            connection.finish()
        gevent.joinall(list(self._connections.values()), timeout=timeout)
        gevent.killall(list(self._connections.values()))
        for connection in list(self._connections):
            self._forget(connection)

    def _serve(self, client: socket.socket, name: object) -> None:
        remote_address = peer_of(name)[0]
        connection: HttpConnection
        if self._tls is None:
            connection = HttpConnection(client, remote_address, self.handler, self.limits, self._at_once)
        else:
            connection = TlsHttpConnection(client, remote_address, self.handler, self.limits, self._tls)
        greenlet = self._connections[connection] = gevent.spawn(connection.run)
        # Whichever way it ends, even killed before its first step.
        greenlet.link(lambda _: self._forget(connection))

    def _forget(self, connection: "HttpConnection") -> None:
        self._connections.pop(connection, None)
        connection.close()
