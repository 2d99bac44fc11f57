"""The program ``nsqlookupd``: options, database and listeners, and the order in which they start and stop.

Names, types and defaults of the options are NSQ's, so that command lines and config files keep working. Their dataclass
is a table (see `nsq_compat.cli.options`): attributes have the names of config keys, durations are in integer
nanoseconds.
"""

import logging
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from socket import gethostname
from typing import Final

import gevent

from nsq_compat import NSQ_VERSION, build_line, version_line, version_text
from nsq_compat.cli.flags import exit_checked, exit_fatal, load_access, read_options, warn_of_options
from nsq_compat.cli.kinds import (
    DURATION,
    STRING,
    TLS_MIN_VERSION,
    TLS_NOT_REQUIRED,
    TLS_REQUIRED,
    TLS_REQUIREMENT,
    TLS_VERSIONS,
    OptionError,
    choice,
)
from nsq_compat.cli.logs import configure
from nsq_compat.cli.options import DaemonOptions, option, repeated
from nsq_compat.net.certificates import REQUIRE, REQUIRE_VERIFY, CertificateError, load_certificates
from nsq_compat.net.connection import Connection
from nsq_compat.net.event_loop import LoopLag
from nsq_compat.net.process import Supervisor, on_hangup, raise_descriptor_limit, stop_signal, tune_gc
from nsq_compat.net.server import ConnectionLimits, HttpServer, TcpServer
from nsq_compat.net.sockets import ListenError, check_address, listen, port_of, split_host_port
from nsq_compat.protocol.durations import MINUTE, SECOND
from nsq_compat.protocol.layout import sized
from nsq_compat.protocol.lookup_commands import LookupdInfo
from nsq_compat.registry.registration_db import RegistrationDb
from nsq_compat.registry.registration_policy import RegistrationPolicy
from nsq_compat.session.authorization import TOKEN_SECONDS
from nsq_compat.session.http_message import HttpHandler
from nsq_compat.session.lookupd_session import LookupdSession
from nsq_compat.web.access import TokenCheck
from nsq_compat.web.application import TlsRequired
from nsq_compat.web.hosts import HostCheck
from nsq_compat.web.metrics import Metrics, count_refused_connections
from nsq_compat.web.nsqlookupd_api import NsqlookupdApi

log = logging.getLogger(__name__)

PROGRAM: Final = "nsqlookupd"
STOP_SECONDS = 5.0
"""How long `Daemon.stop` waits for connections to end."""

RECEIVE_SIZE = 256
"""A few commands. When a thousand nsqd register all their topics at once, lookups must not wait for all of that."""

_ANY_PORT = ":0"
_REFUSAL: Final = sized(b"E_TOO_MANY_CONNECTIONS this address has too many connections")


@dataclass(slots=True, kw_only=True)
class NsqlookupdOptions(DaemonOptions):
    """The options of one nsqlookupd; `NsqlookupdOptions()` are the defaults."""

    log_prefix: str = option(STRING, "[nsqlookupd] ", "text at the start of every log line")
    tcp_address: str = option(
        STRING, "0.0.0.0:4160", "where nsqd daemons connect: host:port; with --tls-tcp-address, empty for none"
    )
    http_address: str = option(
        STRING, "0.0.0.0:4161", "where HTTP clients connect: host:port; with --https-address, empty for none"
    )
    tls_tcp_address: str = option(STRING, "", "where nsqd daemons connect with TLS: host:port; needs --https-address")
    https_address: str = option(STRING, "", "where HTTPS clients connect: host:port; needs --tls-cert and --tls-key")
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

    # TLS.
    tls_cert: str = option(STRING, "", "PEM file with the certificate")
    tls_key: str = option(STRING, "", "PEM file with the certificate's key")
    tls_client_auth_policy: str = option(
        choice("", REQUIRE, REQUIRE_VERIFY),
        "",
        "ask clients for a certificate: 'require', or 'require-verify' to check it too",
    )
    tls_root_ca_file: str = option(STRING, "", "PEM file with the authorities that sign client certificates")
    tls_required: int = option(
        TLS_REQUIREMENT, TLS_NOT_REQUIRED, "refuse clients without TLS: true, false, or tcp-https to allow plain HTTP"
    )
    tls_min_version: int = option(
        TLS_MIN_VERSION, TLS_VERSIONS["tls1.2"], "oldest TLS version to accept: " + ", ".join(TLS_VERSIONS)
    )
    registration_patterns: tuple[str, ...] = repeated(
        "`name=pattern`: nsqds whose certificate has this name may register with broadcast addresses of this pattern"
    )

    def __post_init__(self) -> None:
        # As nsqd does.
        if self.tls_client_auth_policy and self.tls_required == TLS_NOT_REQUIRED:
            self.tls_required = TLS_REQUIRED


def validate(options: NsqlookupdOptions) -> None:
    """Raise OptionError for values with which NSQ refuses to start."""
    for address in addresses_of(options):
        # nsqlookupd: no unix sockets; an empty address is any port.
        if address and split_host_port(address) is None:
            raise OptionError(f"listen ({address}) failed - missing port in address")
    verifies = options.tls_client_auth_policy == REQUIRE_VERIFY
    plain_nsqds = listens(options, "tcp") and options.tls_required == TLS_NOT_REQUIRED
    for refusal, is_wrong in (
        ("--tls-cert and --tls-key need each other", bool(options.tls_cert) != bool(options.tls_key)),
        ("--https-address needs --tls-cert and --tls-key", options.https_address and not options.tls_cert),
        ("--tls-cert needs --https-address", options.tls_cert and not options.https_address),
        # nsqd calls the HTTP API of the port that it is told over TCP.
        ("--tls-tcp-address needs --https-address", options.tls_tcp_address and not options.https_address),
        ("nsqds at --tcp-address need --http-address", plain_nsqds and not listens(options, "http")),
        ("--tls-required needs --tls-cert and --tls-key", options.tls_required and not options.tls_cert),
        ("--tls-root-ca-file needs --tls-client-auth-policy=require-verify", options.tls_root_ca_file and not verifies),
        (
            "--registration-patterns needs --tls-client-auth-policy=require-verify",
            options.registration_patterns and not verifies,
        ),
    ):
        if is_wrong:
            raise OptionError(refusal)
    try:
        RegistrationPolicy(options.registration_patterns)
    except ValueError as error:
        raise OptionError(f"--registration-patterns: {error}") from None


def addresses_of(options: NsqlookupdOptions) -> tuple[str, ...]:
    return options.tcp_address, options.http_address, options.tls_tcp_address, options.https_address


def listens(options: NsqlookupdOptions, kind: str) -> bool:
    """Whether there is a plain port of this kind, ``tcp`` or ``http``.

    nsqlookupd: an empty address is any port. Only one that has a counterpart with TLS can be left out.
    """
    if kind == "tcp":
        return bool(options.tcp_address or not options.tls_tcp_address)
    return bool(options.http_address or not options.https_address)


class Daemon:
    """Listens when it is created, and serves between `start` and `stop`.

    The constructor raises ``OptionError``, ``CertificateError`` and ``ListenError``.
    """

    def __init__(self, options: NsqlookupdOptions) -> None:
        log.info("%s", version_line(PROGRAM))
        log.info("%s", build_line())
        self.db = RegistrationDb(options.inactive_producer_timeout / SECOND, options.tombstone_lifetime / SECOND)
        self.policy = RegistrationPolicy(
            options.registration_patterns,
            tls_required=options.tls_required != TLS_NOT_REQUIRED,
            refuse_token=self._refuse_token,
        )
        self._access = load_access(options.access_file)
        self._token_watch = gevent.Greenlet(self._watch_tokens)
        self._certificates = load_certificates(options)
        make_tls = self._certificates.make_tls if self._certificates is not None else None
        tcp_listener = listen(options.tcp_address or _ANY_PORT) if listens(options, "tcp") else None
        http_listener = listen(options.http_address or _ANY_PORT) if listens(options, "http") else None
        tls_listener = listen(options.tls_tcp_address) if options.tls_tcp_address else None
        https_listener = listen(options.https_address) if options.https_address else None
        self.info = LookupdInfo(
            broadcast_address=options.broadcast_address,
            hostname=gethostname(),
            tcp_port=port_of(tcp_listener) if tcp_listener else 0,
            http_port=port_of(http_listener) if http_listener else 0,
            version=NSQ_VERSION,
        )
        self.tls_info = replace(
            self.info,
            tcp_port=port_of(tls_listener) if tls_listener else 0,
            http_port=port_of(https_listener) if https_listener else 0,
        )
        """What an nsqd is told that is connected with TLS: the ports with TLS."""
        metrics = Metrics(PROGRAM)
        limits = ConnectionLimits(options.max_connections_per_address, options.max_new_connections_per_second)
        count_refused_connections(metrics, PROGRAM, limits.refused)
        self._loop_lag = LoopLag(metrics.observe_lag, metrics.observe_held)
        self._tcp: list[TcpServer[LookupdSession]] = []
        if tcp_listener:
            self._tcp.append(
                TcpServer(tcp_listener, self._make_session, receive_size=RECEIVE_SIZE, limits=limits, refusal=_REFUSAL)
            )
        if tls_listener:
            self._tcp.append(
                TcpServer(
                    tls_listener,
                    self._make_tls_session,
                    make_tls,
                    receive_size=RECEIVE_SIZE,
                    name="TLS",
                    limits=limits,
                )
            )
        token_check = TokenCheck(self._access, PROGRAM) if self._access is not None else None
        api = NsqlookupdApi(self.db, metrics, self.policy, refuse=token_check)
        handler: HttpHandler = api
        if token_check is not None:
            metrics.collect_from(partial(token_check.collect, api))
            names = (options.broadcast_address,)
            handler = HostCheck(api, PROGRAM, options.http_address, names, authorized_pass=True)
        self._http: list[HttpServer] = []
        if http_listener and options.tls_required == TLS_REQUIRED:
            self._http.append(HttpServer(http_listener, TlsRequired(self.tls_info.http_port), connection_limits=limits))
        elif http_listener:
            self._http.append(HttpServer(http_listener, handler, connection_limits=limits))
        if https_listener:
            self._http.append(HttpServer(https_listener, handler, name="HTTPS", tls=make_tls, connection_limits=limits))

    def start(self) -> None:
        if self._access is not None:
            self._token_watch.start()
        self._loop_lag.start()
        for tcp in self._tcp:
            tcp.start()
        for http in self._http:
            http.start()

    def stop(self) -> None:
        """Stop the HTTP API before producers are removed, so that no lookup returns a topic without producers."""
        self._token_watch.kill()
        for http in self._http:
            http.stop(STOP_SECONDS)
        for tcp in self._tcp:
            tcp.stop(STOP_SECONDS)
        self._loop_lag.stop()

    def reload(self) -> None:
        """Read the certificates and the access file again. If they are invalid, the present ones stay in force."""
        if self._certificates is not None:
            self._certificates.reload()
        if self._access is not None and self._access.reload():
            self._end_unauthorized()

    def _watch_tokens(self) -> None:
        """End the registrations of tokens that have expired."""
        while True:
            gevent.sleep(TOKEN_SECONDS)
            self._end_unauthorized()

    def _end_unauthorized(self) -> None:
        for server in self._tcp:
            server.abort_unless(LookupdSession.may_continue)

    def _refuse_token(self, secret: bytes, address: str) -> str:
        """Why an nsqd with this token may not register this address; "" if it may."""
        if self._access is None:
            return ""
        token = self._access.tokens.find(secret, time.time()) if secret else None
        if token is None:
            return "a valid token is needed, see --cluster-token of nsqd"
        return "" if token.may_register(address) else f"the token {token.name} does not permit to register {address}"

    def _make_session(
        self, connection: Connection[LookupdSession], host: str, now: float, now_ns: int
    ) -> LookupdSession:
        return LookupdSession(self.db, self.info, self.policy, peer=connection.peer, now=now)

    def _make_tls_session(
        self, connection: Connection[LookupdSession], host: str, now: float, now_ns: int
    ) -> LookupdSession:
        return LookupdSession(self.db, self.tls_info, self.policy, peer=connection.peer, now=now, tls=True)


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
            load_certificates(options)
            load_access(options.access_file)
            for address in filter(None, addresses_of(options)):
                check_address(address)
            exit_checked(PROGRAM)
        daemon = Daemon(options)
    except (OptionError, CertificateError, ListenError) as error:
        exit_fatal(PROGRAM, f"failed to instantiate nsqlookupd - {error}")
    tune_gc()
    supervisor = Supervisor()
    if options.tls_cert or options.access_file:  # NSQ's nsqlookupd ends at SIGHUP
        on_hangup(daemon.reload)
    daemon.start()
    supervisor.ready()
    stop.wait()
    supervisor.stopping()
    daemon.stop()


if __name__ == "__main__":
    main()
