"""Accepts TCP clients, gives each a greenlet, knows them all, and can end them all."""

import errno
import logging
import socket
from collections.abc import Callable

import gevent

from nsq_compat.net.connection import Connection
from nsq_compat.net.listeners import address_of, close_listener, peer_of, prepare_client
from nsq_compat.session.nsqd_session import NsqdSession

log = logging.getLogger(__name__)

_ACCEPTS_PER_TURN = 64
_SHORT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PAUSE_WHEN_SHORT = 0.1
_READ = 1

SessionFactory = Callable[[Connection, str, float, int], NsqdSession]


class TcpServer:
    """Serves one listening socket. `make_session` is given the connection, the client's host, `now` and `now_ns`."""

    def __init__(self, listener: socket.socket, make_session: SessionFactory) -> None:
        self._listener = listener
        self._make_session = make_session
        self._accepting: gevent.Greenlet[[], None] | None = None
        self._connections: dict[Connection, gevent.Greenlet[[], None]] = {}

    @property
    def sessions(self) -> list[NsqdSession]:
        """Of every client that is connected."""
        return [connection.session for connection in self._connections]

    def start(self) -> None:
        log.info("TCP: listening on %s", address_of(self._listener))
        self._accepting = gevent.spawn(self._accept_loop)

    def stop_accepting(self) -> None:
        """Close the listener; who is connected stays."""
        if self._accepting is not None:
            self._accepting.kill()
            self._accepting = None
            log.info("TCP: closing %s", address_of(self._listener))
            close_listener(self._listener)

    def stop(self, timeout: float) -> None:
        """Close the listener and every client, also those who never said a word; wait `timeout` seconds for them."""
        self.stop_accepting()
        for connection in list(self._connections):
            connection.abort()
        gevent.joinall(list(self._connections.values()), timeout=timeout)

    def _accept_loop(self) -> None:
        hub = gevent.get_hub()
        readable = hub.loop.io(self._listener.fileno(), _READ)
        try:
            while True:
                hub.wait(readable)
                if not self._accept_some():
                    gevent.sleep(_PAUSE_WHEN_SHORT)
        finally:
            readable.stop()
            readable.close()

    def _accept_some(self) -> bool:
        """Accept who waits, within bounds; False when the process is short of something."""
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                client, name = self._listener.accept()
            except BlockingIOError:
                return True
            except OSError as error:
                log.warning("temporary Accept() failure - %s", error)
                if error.errno in _SHORT_OF_RESOURCES:
                    return False
                continue
            self._serve(client, name)
        return True

    def _serve(self, client: socket.socket, name: object) -> None:
        peer, host = peer_of(name)
        log.info("TCP: new client(%s)", peer)
        prepare_client(client)
        connection = Connection(client, peer, lambda this, now, now_ns: self._make_session(this, host, now, now_ns))
        greenlet = gevent.spawn(connection.run)
        self._connections[connection] = greenlet
        greenlet.link(lambda _: self._connections.pop(connection, None))
