"""The program ``nsqlookupd``: options, database and listeners, and the order in which they start and stop.

Names, types and defaults of the options are NSQ's, so that command lines and config files keep working. Their dataclass
is a table (see `nsq_compat.cli.options`): attributes have the names of config keys, durations are in integer
nanoseconds.
"""

import logging
import signal
import sys
import time
from dataclasses import dataclass
from socket import gethostname
from typing import Final

import gevent

from nsq_compat import NSQ_VERSION, build_line, version_line, version_text
from nsq_compat.cli.flags import exit_checked, exit_fatal, read_options, report_unknown_keys
from nsq_compat.cli.kinds import DURATION, STRING, OptionError
from nsq_compat.cli.logs import configure
from nsq_compat.cli.options import DaemonOptions, option
from nsq_compat.net.connection import Connection
from nsq_compat.net.event_loop import LoopLag
from nsq_compat.net.process import Supervisor, raise_descriptor_limit, stop_signal, tune_gc
from nsq_compat.net.server import HttpServer, TcpServer
from nsq_compat.net.sockets import ListenError, check_address, listen, port_of, split_host_port
from nsq_compat.policy.access import AccessError, AccessFile
from nsq_compat.protocol.durations import MINUTE, SECOND
from nsq_compat.protocol.lookup_commands import LookupdInfo
from nsq_compat.registry.registration_db import RegistrationDb
from nsq_compat.session.lookupd_session import LookupdSession
from nsq_compat.web.access import TokenCheck
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

    access_file: str = option(STRING, "", "file with the tokens that nsqds and HTTP clients need (see nsq_access)")
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
    """Listens when it is created, and serves between `start` and `stop`.

    The constructor raises ``ListenError`` and ``AccessError``.
    """

    def __init__(self, options: NsqlookupdOptions) -> None:
        log.info("%s", version_line(PROGRAM))
        log.info("%s", build_line())
        self.db = RegistrationDb(options.inactive_producer_timeout / SECOND, options.tombstone_lifetime / SECOND)
        self._access = AccessFile(options.access_file) if options.access_file else None
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
        token_check = None
        if self._access is not None:
            token_check = TokenCheck(self._access, PROGRAM)
            metrics.collect_from(token_check.collect)
        self._http = HttpServer(http_listener, NsqlookupdApi(self.db, metrics, refuse=token_check))

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
        refuse = self._refuse if self._access is not None else None
        return LookupdSession(self.db, self.info, peer=connection.peer, now=now, refuse=refuse)

    def _refuse(self, secret: bytes, address: str) -> str:
        """Why an nsqd with this token may not register this address; "" if it may."""
        assert self._access is not None, "called only with an access file"
        token = self._access.tokens.find(secret, time.time()) if secret else None
        if token is None:
            return "needs a token of --access-file; nsqd sends that of --cluster-token-file"
        return "" if token.may_register(address) else f"the token {token.name} does not permit to register {address}"

    def reload(self) -> None:
        """Read the access file again. If it is invalid, the present tokens stay in force."""
        if self._access is not None:
            try:
                self._access.reload()
                log.info("ACCESS: %d tokens in force", len(self._access.tokens))
                self._tcp.abort_unless(lambda session: session.may_continue)
            except AccessError as error:
                log.error("keeping the tokens in force - %s", error)


def main() -> None:
    """Run nsqlookupd until SIGTERM or SIGINT."""
    options = read_options(PROGRAM, NsqlookupdOptions, sys.argv[1:], version_text(PROGRAM))
    configure(options.log_prefix, options.log_level, form=options.log_format)
    report_unknown_keys(options, PROGRAM)
    raise_descriptor_limit()
    stop = stop_signal()
    try:
        validate(options)
        if options.check_config:
            for address in filter(None, (options.tcp_address, options.http_address)):
                check_address(address)
            if options.access_file:
                AccessFile(options.access_file)
            exit_checked(PROGRAM)
        daemon = Daemon(options)
    except (OptionError, ListenError, AccessError) as error:
        exit_fatal(PROGRAM, f"failed to instantiate nsqlookupd - {error}")
    tune_gc()
    supervisor = Supervisor()
    daemon.start()
    if options.access_file:  # nsqlookupd: SIGHUP ends it
        gevent.signal_handler(signal.SIGHUP, daemon.reload)
    supervisor.ready()
    stop.wait()
    supervisor.stopping()
    daemon.stop()


if __name__ == "__main__":
    main()
