"""Serves HTTP on a listening socket: accepts, gives every client a greenlet, knows them all, and can end them all.

The conversation with a client is `http_connection`'s, what is answered the handler's.
"""

import errno
import logging
import socket
import ssl
from typing import Final

import gevent
from gevent.hub import get_hub

from nsq_compat.net.http_connection import HttpConnection, TlsHttpConnection
from nsq_compat.net.http_message import HttpHandler, HttpLimits
from nsq_compat.net.listeners import address_of, close_listener, peer_of, prepare_client

log = logging.getLogger(__name__)

_READABLE: Final = 1
_ACCEPT_BURST: Final = 64
_FIRST_BACKOFF: Final = 0.05
_LONGEST_BACKOFF: Final = 1.0
# What accept() says when a client has gone again: nothing to wait for.
_CLIENT_GONE: Final = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EINTR, errno.EPERM})


class HttpServer:
    """Owns a listening socket (TCP or unix) from here on, and every connection accepted from it.

    With `tls` it speaks HTTPS. `start` returns at once; `stop` lets requests under way finish.
    """

    def __init__(
        self,
        listener: socket.socket,
        handler: HttpHandler,
        limits: HttpLimits | None = None,
        *,
        name: str = "HTTP",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.limits = limits or HttpLimits()
        self.handler = handler
        self._listener = listener
        self._name = name
        self._tls = tls
        self._acceptor: gevent.Greenlet[[], None] | None = None
        self._connections: dict[HttpConnection, gevent.Greenlet[[], None]] = {}
        self._address = address_of(listener)
        listener.setblocking(False)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def start(self) -> None:
        log.info("%s: listening on %s", self._name, self._address)
        self._acceptor = gevent.spawn(self._accept_loop)

    def stop_accepting(self) -> None:
        """Close the listener; who is connected stays."""
        if self._listener.fileno() < 0:
            return
        log.info("%s: closing %s", self._name, self._address)
        if self._acceptor is not None:
            self._acceptor.kill()
        close_listener(self._listener)

    def stop(self, timeout: float = 5.0) -> None:
        """Accept no more, close idle connections, wait up to `timeout` seconds for requests under way, end the rest."""
        self.stop_accepting()
        for connection in list(self._connections):
            connection.finish()
        gevent.joinall(list(self._connections.values()), timeout=timeout)
        gevent.killall(list(self._connections.values()))
        for connection in list(self._connections):
            self._forget(connection)

    def _accept_loop(self) -> None:
        hub = get_hub()
        watcher = hub.loop.io(self._listener.fileno(), _READABLE)
        backoff = _FIRST_BACKOFF
        try:
            while True:
                hub.wait(watcher)
                try:
                    self._accept_waiting()
                    backoff = _FIRST_BACKOFF
                except OSError as error:
                    # Out of descriptors or memory: the client stays in the kernel's queue until others have left.
                    log.warning("temporary Accept() failure - %s; retrying in %.2fs", error, backoff)
                    gevent.sleep(backoff)
                    backoff = min(2 * backoff, _LONGEST_BACKOFF)
        finally:
            watcher.stop()
            watcher.close()

    def _accept_waiting(self) -> None:
        """Take what waits, but not for ever: others want to run."""
        for _ in range(_ACCEPT_BURST):
            try:
                client, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _CLIENT_GONE:
                    continue
                raise
            self._serve(client, peer_of(address)[0])

    def _serve(self, client: socket.socket, remote_address: str) -> None:
        prepare_client(client)
        connection: HttpConnection
        if self._tls is None:
            connection = HttpConnection(client, remote_address, self.handler, self.limits)
        else:
            connection = TlsHttpConnection(client, remote_address, self.handler, self.limits, self._tls)
        greenlet = self._connections[connection] = gevent.spawn(connection.run)
        # Whichever way it ends, even killed before its first step.
        greenlet.link(lambda _: self._forget(connection))

    def _forget(self, connection: "HttpConnection") -> None:
        self._connections.pop(connection, None)
        connection.close()
