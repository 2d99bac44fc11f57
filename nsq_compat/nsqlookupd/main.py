"""``nsqlookupd``: command line in, exit code out; its database, its listeners, and the order of start and stop."""

import logging
import os
import sys

from nsq_compat import NSQ_VERSION, version_line
from nsq_compat.cli.flags import exit_checked, exit_fatal, read_options
from nsq_compat.cli.kinds import OptionError
from nsq_compat.cli.logs import configure
from nsq_compat.cli.options import hostname
from nsq_compat.net.connection import Connection
from nsq_compat.net.listeners import ListenError, check_address, listen, port_of
from nsq_compat.net.loop_tick import LoopLag
from nsq_compat.net.process import Supervisor, raise_descriptor_limit, stop_signal, tune_gc
from nsq_compat.net.server import HttpServer, TcpServer
from nsq_compat.nsqlookupd.options import PROGRAM, NsqlookupdOptions, validate
from nsq_compat.protocol.durations import SECOND
from nsq_compat.protocol.lookup_commands import LookupdInfo
from nsq_compat.registry.registration_db import RegistrationDb
from nsq_compat.session.lookupd_session import LookupdSession
from nsq_compat.web.metrics import Metrics
from nsq_compat.web.nsqlookupd_api import NsqlookupdApi

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""How long `Daemon.stop` waits for connections to end."""

RECEIVE_SIZE = 256
"""A few commands. When a thousand nsqd register all their topics at once, lookups must not wait for all of that."""

_ANY_PORT = ":0"


class Daemon:
    """Listens when it is created, and serves between `start` and `stop`. The constructor raises ``ListenError``."""

    def __init__(self, options: NsqlookupdOptions) -> None:
        log.info("%s", version_line(PROGRAM))
        self.db = RegistrationDb(options.inactive_producer_timeout / SECOND, options.tombstone_lifetime / SECOND)
        tcp_listener = listen(options.tcp_address or _ANY_PORT)
        http_listener = listen(options.http_address or _ANY_PORT)
        self.info = LookupdInfo(
            broadcast_address=options.broadcast_address,
            hostname=hostname(),
            tcp_port=port_of(tcp_listener),
            http_port=port_of(http_listener),
            version=NSQ_VERSION,
        )
        self._tcp = TcpServer(tcp_listener, self._make_session, receive_size=RECEIVE_SIZE)
        metrics = Metrics(PROGRAM, NSQ_VERSION)
        self._loop_lag = LoopLag(metrics.observe_lag, metrics.observe_held)
        self._http = HttpServer(http_listener, NsqlookupdApi(self.db, metrics))

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
        return LookupdSession(self.db, self.info, peer=connection.peer, now=now)


def main() -> None:
    """Run nsqlookupd until SIGTERM or SIGINT."""
    options = read_options(PROGRAM, NsqlookupdOptions, sys.argv[1:], version_line(PROGRAM))
    configure(options.log_prefix, options.log_level, form=options.log_format)
    raise_descriptor_limit()
    stop = stop_signal()
    try:
        validate(options)
        if options.check_config:
            for address in filter(None, (options.tcp_address, options.http_address)):
                check_address(address)
            exit_checked(PROGRAM)
        daemon = Daemon(options)
    except (OptionError, ListenError) as error:
        exit_fatal(PROGRAM, f"failed to instantiate nsqlookupd - {error}")
    tune_gc()
    supervisor = Supervisor(os.environ)
    daemon.start()
    supervisor.ready()
    stop.wait()
    supervisor.stopping()
    daemon.stop()


if __name__ == "__main__":
    main()
