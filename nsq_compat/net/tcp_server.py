"""Serves NSQ's TCP protocol on a listening socket: gives each client a greenlet, knows them all, can end them all."""

import logging
import socket
from collections.abc import Callable
from typing import Generic

import gevent

from nsq_compat.net.acceptor import Acceptor
from nsq_compat.net.connection import RECEIVE_SIZE, Connection, Session
from nsq_compat.net.listeners import peer_of
from nsq_compat.net.tls import MakeTls
from nsq_compat.net.turn import Turn
from nsq_compat.net.vigil import Vigil

log = logging.getLogger(__name__)

SessionFactory = Callable[[Connection[Session], str, float, int], Session]


class TcpServer(Generic[Session]):
    """Owns a listening socket (TCP or unix) from here on, and every connection accepted from it.

    `make_session` is given the connection, the client's host, `now` and `now_ns`. `make_tls` is for sessions that offer
    TLS. What a client may have done before others have their turn is what `receive_size` bytes of commands ask for.
    `session_waits` says whether a session may let others run while it is fed: if none does, clients are served quicker,
    all the more with a `vigil`, which hears of every answer. A `turn` may be shared with who does something at its end.
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
        turn: Turn | None = None,
    ) -> None:
        self._acceptor = Acceptor(listener, "TCP", self._serve)
        self._make_session = make_session
        self._make_tls = make_tls
        self._receive_size = receive_size
        self._session_waits = session_waits
        self._vigil = vigil
        self._turn = Turn(gevent.get_hub().loop) if turn is None else turn
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
            turn=self._turn,
        )
        greenlet = self._connections[connection] = gevent.spawn(connection.run)
        greenlet.link(lambda _: self._connections.pop(connection, None))
