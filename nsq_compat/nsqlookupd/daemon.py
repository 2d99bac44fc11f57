"""One nsqlookupd: its database, its listeners, and the order in which they start and stop."""

import logging
import time

from nsq_compat import NSQ_VERSION, version_line
from nsq_compat.net.connection import Connection
from nsq_compat.net.event_loop import LoopLag
from nsq_compat.net.process import Process
from nsq_compat.net.server import HttpServer, TcpServer
from nsq_compat.net.sockets import listen, port_of
from nsq_compat.nsqlookupd.options import PROGRAM, NsqlookupdOptions, hostname
from nsq_compat.protocol.durations import SECOND
from nsq_compat.protocol.lookup_commands import LookupdInfo
from nsq_compat.registry.registration_db import RegistrationDb
from nsq_compat.session.lookupd_session import LookupdSession
from nsq_compat.web.metrics import Metrics
from nsq_compat.web.nsqlookupd_api import NsqlookupdApi

log = logging.getLogger(__name__)


class Service(Process):
    """The ``web.nsqlookupd_api.NsqlookupdService`` of this daemon."""

    def __init__(self, db: RegistrationDb, metrics: Metrics) -> None:
        self.db = db
        self.metrics = metrics
        self.version = NSQ_VERSION
        self.now = time.monotonic
        self.now_ns = time.time_ns


STOP_SECONDS = 5.0
"""How long `stop` waits for connections to end."""

RECEIVE_SIZE = 256
"""A few commands. When a thousand nsqd register all their topics at once, lookups must not wait for all of that."""

_ANY_PORT = ":0"


class Daemon:
    """Listens when it is created, and serves between `start` and `stop`. The constructor raises ``ListenError``."""

    def __init__(self, options: NsqlookupdOptions) -> None:
        log.info("%s", version_line(PROGRAM))
        self._db = RegistrationDb(options.inactive_producer_timeout / SECOND, options.tombstone_lifetime / SECOND)
        tcp_listener = listen(options.tcp_address or _ANY_PORT)
        http_listener = listen(options.http_address or _ANY_PORT)
        self._info = LookupdInfo(
            broadcast_address=options.broadcast_address,
            hostname=hostname(),
            tcp_port=port_of(tcp_listener),
            http_port=port_of(http_listener),
            version=NSQ_VERSION,
        )
        self._tcp = TcpServer(tcp_listener, self._make_session, receive_size=RECEIVE_SIZE)
        metrics = Metrics(PROGRAM, NSQ_VERSION)
        self._loop_lag = LoopLag(metrics.observe_lag, metrics.observe_held)
        self._http = HttpServer(http_listener, NsqlookupdApi(Service(self._db, metrics)))

    def start(self) -> None:
        self._loop_lag.start()
        self._tcp.start()
        self._http.start()

    def stop(self) -> None:
        """Stop the HTTP API before producers leave, so that no consumer is told that a topic has no producers."""
        self._http.stop(STOP_SECONDS)
        self._tcp.stop(STOP_SECONDS)
        self._loop_lag.stop()

    def _make_session(
        self, connection: Connection[LookupdSession], host: str, now: float, now_ns: int
    ) -> LookupdSession:
        return LookupdSession(self._db, self._info, peer=connection.peer, now=now)
