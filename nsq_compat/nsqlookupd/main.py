"""The program ``nsqlookupd``: options, database and listeners, and the order in which they start and stop.

Names, types and defaults of the options are NSQ's, so that command lines and config files keep working. Their dataclass
is a table (see `nsq_compat.cli.options`): attributes have the names of config keys, durations are in integer
nanoseconds.
"""

import logging
import sys
from dataclasses import dataclass
from socket import gethostname
from typing import Final

from nsq_compat import NSQ_VERSION, build_line, version_line, version_text
from nsq_compat.cli.flags import exit_checked, exit_fatal, read_options, warn_of_options
from nsq_compat.cli.kinds import DURATION, STRING, OptionError
from nsq_compat.cli.logs import configure
from nsq_compat.cli.options import DaemonOptions, option
from nsq_compat.net.connection import Connection
from nsq_compat.net.event_loop import LoopLag
from nsq_compat.net.process import Supervisor, raise_descriptor_limit, stop_signal, tune_gc
from nsq_compat.net.server import HttpServer, TcpServer
from nsq_compat.net.sockets import ListenError, check_address, listen, port_of, split_host_port
from nsq_compat.protocol.durations import MINUTE, SECOND
from nsq_compat.protocol.lookup_commands import LookupdInfo
from nsq_compat.registry.registration_db import RegistrationDb
from nsq_compat.session.lookupd_session import LookupdSession
from nsq_compat.web.metrics import Metrics
from nsq_compat.web.nsqlookupd_api import NsqlookupdApi

log = logging.getLogger(__name__)

PROGRAM: Final = "nsqlookupd"
STOP_SECONDS = 5.0
"""How long `Daemon.stop` waits for connections to end."""

RECEIVE_SIZE = 256
"""A few commands. When a thousand nsqd register all their topics at once, lookups must not wait for all of that."""

_ANY_PORT = ":0"


@dataclass(slots=True, kw_only=True)
class NsqlookupdOptions(DaemonOptions):
    """The options of one nsqlookupd; `NsqlookupdOptions()` are the defaults."""

    log_prefix: str = option(STRING, "[nsqlookupd] ", "text at the start of every log line")
    tcp_address: str = option(STRING, "0.0.0.0:4160", "where nsqd daemons connect: host:port")
    http_address: str = option(STRING, "0.0.0.0:4161", "where HTTP clients connect: host:port")
    broadcast_address: str = option(
        STRING, gethostname, "host under which nsqd reaches this nsqlookupd; by default the host name"
    )

    inactive_producer_timeout: int = option(
        DURATION, 5 * MINUTE, "how long an nsqd may be silent before consumers are no longer sent to it"
    )
    tombstone_lifetime: int = option(
        DURATION, 45 * SECOND, "how long a tombstone keeps consumers from a topic's producer"
    )


def validate(options: NsqlookupdOptions) -> None:
    """Raise OptionError for values with which NSQ refuses to start."""
    for address in (options.tcp_address, options.http_address):
        # nsqlookupd: no unix sockets; an empty address is any port.
        if address and split_host_port(address) is None:
            raise OptionError(f"listen ({address}) failed - missing port in address")


class Daemon:
    """Listens when it is created, and serves between `start` and `stop`. The constructor raises ``ListenError``."""

    def __init__(self, options: NsqlookupdOptions) -> None:
        log.info("%s", version_line(PROGRAM))
        log.info("%s", build_line())
        self.db = RegistrationDb(options.inactive_producer_timeout / SECOND, options.tombstone_lifetime / SECOND)
        tcp_listener = listen(options.tcp_address or _ANY_PORT)
        http_listener = listen(options.http_address or _ANY_PORT)
        self.info = LookupdInfo(
            broadcast_address=options.broadcast_address,
            hostname=gethostname(),
            tcp_port=port_of(tcp_listener),
            http_port=port_of(http_listener),
            version=NSQ_VERSION,
        )
        self._tcp = TcpServer(tcp_listener, self._make_session, receive_size=RECEIVE_SIZE)
        metrics = Metrics(PROGRAM)
        self._loop_lag = LoopLag(metrics.observe_lag, metrics.observe_held)
        self._http = HttpServer(http_listener, NsqlookupdApi(self.db, metrics))

    def start(self) -> None:
        self._loop_lag.start()
        self._tcp.start()
        self._http.start()

    def stop(self) -> None:
        """Stop the HTTP API before producers are removed, so that no lookup returns a topic without producers."""
        self._http.stop(STOP_SECONDS)
        self._tcp.stop(STOP_SECONDS)
        self._loop_lag.stop()

    def _make_session(
        self, connection: Connection[LookupdSession], host: str, now: float, now_ns: int
    ) -> LookupdSession:
        return LookupdSession(self.db, self.info, peer=connection.peer, now=now)


def main() -> None:
    """Run nsqlookupd until SIGTERM or SIGINT."""
    options = read_options(PROGRAM, NsqlookupdOptions, sys.argv[1:], version_text(PROGRAM))
    configure(options.log_prefix, options.log_level, form=options.log_format)
    warn_of_options(options, PROGRAM)
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
    supervisor = Supervisor()
    daemon.start()
    supervisor.ready()
    stop.wait()
    supervisor.stopping()
    daemon.stop()


if __name__ == "__main__":
    main()
