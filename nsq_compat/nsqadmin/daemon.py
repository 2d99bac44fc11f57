"""The daemon nsqadmin: HTTP server, samples, notifications, and the interface to its pages (`AdminService`)."""

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

import gevent
from gevent.queue import Full, Queue
from gevent.threadpool import ThreadPool

import nsq_compat
from nsq_compat import missing_package
from nsq_compat.cli.flags import load_access
from nsq_compat.cli.kinds import OptionError
from nsq_compat.cli.logs import parse_log_level, set_level
from nsq_compat.cli.options import option_value
from nsq_compat.cluster.cluster import Cluster, take_snapshot
from nsq_compat.cluster.history import History
from nsq_compat.cluster.http_client import HttpClient
from nsq_compat.cluster.peek import oldest_messages
from nsq_compat.cluster.reading import UpstreamError
from nsq_compat.net.event_loop import LoopLag
from nsq_compat.net.server import ConnectionLimits, HttpServer
from nsq_compat.net.sockets import listen
from nsq_compat.nsqadmin.options import PROGRAM, NsqadminOptions
from nsq_compat.protocol.durations import SECOND, seconds
from nsq_compat.protocol.errors import without_secrets, without_user
from nsq_compat.protocol.go_json import dumps
from nsq_compat.web.admin.access import LoginProvider
from nsq_compat.web.admin.app import WsgiHandler, body_limit, create_app
from nsq_compat.web.admin.operations import collect
from nsq_compat.web.admin.sessions import Run, SessionFileError, Sessions
from nsq_compat.web.admin.users import PasswordCheck, TooBusy, Users, parse_role
from nsq_compat.web.hosts import OPEN_PATHS, HostCheck
from nsq_compat.web.metrics import Metrics, count_refused_connections

log = logging.getLogger(__name__)

STOP_TIMEOUT: Final = 5.0
MAX_NOTIFICATIONS: Final = 1000
"""Notifications that wait to be sent; others are dropped."""
MAX_PROVIDER_BYTES: Final = 1024 * 1024
HASH_THREADS: Final = 2
MAX_HASHES: Final = 16
"""Passwords that are hashed, or wait for it; others are refused."""
_CLIENTS_INTERVAL: Final = 6
"""Every sixth sample includes clients, the largest part of nsqd's stats, and the ages of messages."""
_NOTIFICATION_HEADERS: Final = {"Content-Type": "application/json", "User-Agent": "Go-http-client/1.1"}


class Daemon:
    """Listens when created, and serves from `start` to `stop`. Creation raises ``OptionError`` and ``ListenError``."""

    def __init__(self, options: NsqadminOptions) -> None:
        log.info("%s", nsq_compat.version_line(PROGRAM))
        log.info("%s", nsq_compat.build_line())
        self.options = options
        self.users = read_users(options.user_file) if options.user_file else None
        self.access = load_access(options.access_file)
        self.now = time.time
        self._hash_threads = ThreadPool(HASH_THREADS)
        self._hashes = 0
        self.password_check = PasswordCheck(self._hash)
        self.provider = make_provider(options) if options.oidc_issuer else None
        self.sessions = open_sessions(options, self._hash_threads.apply)
        self._client = HttpClient(
            connect_timeout=seconds(options.http_client_connect_timeout),
            request_timeout=seconds(options.http_client_request_timeout),
            tls_cert=options.http_client_tls_cert,
            tls_key=options.http_client_tls_key,
            tls_root_ca_file=options.http_client_tls_root_ca_file,
            tls_skip_verify=options.http_client_tls_insecure_skip_verify,
            token=options.cluster_token,
        )
        self.cluster = Cluster(self._client, options.nsqlookupd_http_addresses, options.nsqd_http_addresses)
        self.history = History(max(1, options.sample_interval // SECOND))
        self.metrics = Metrics(PROGRAM)
        self.metrics.collect_from(lambda: collect(self.history))
        self._loop_lag = LoopLag(self.metrics.observe_lag, self.metrics.observe_held)
        self._notifications: Queue[Mapping[str, Any]] = Queue(MAX_NOTIFICATIONS)
        self._background: list[gevent.Greenlet[..., None]] = []
        app = create_app(self)
        pages = WsgiHandler(app, options.base_path, partial(body_limit, app))
        open_paths = [options.base_path.rstrip("/") + path for path in OPEN_PATHS]
        handler = HostCheck(pages, PROGRAM, options.http_address, options.allowed_hosts, open_paths=open_paths)
        limits = ConnectionLimits(options.max_connections_per_address, options.max_new_connections_per_second)
        count_refused_connections(self.metrics, PROGRAM, limits.refused)
        self._http = HttpServer(listen(options.http_address), handler, connection_limits=limits)

    def start(self) -> None:
        self._loop_lag.start()
        if self.options.sample_interval > 0:
            self._background.append(gevent.spawn(self._sample))
        if self.options.notification_http_endpoint:
            self._background.append(gevent.spawn(self._send_notifications))
        self._http.start()

    def reload(self) -> None:
        """Read the access file and the user file again. If one is invalid, its present content stays in force."""
        if self.access is not None:
            self.access.reload()  # first, because ending logins may wait for the session file
        if self.options.user_file:
            try:
                before, self.users = self.users, read_users(self.options.user_file)
                for name in before.changed(self.users) if before is not None else ():
                    self.sessions.end_all(name)
                log.info("read --user-file (%s) again", self.options.user_file)
            except OptionError as failure:
                log.error("keeping the users - %s", failure)

    def stop(self) -> None:
        self._http.stop(STOP_TIMEOUT)
        gevent.killall(self._background)
        self._loop_lag.stop()

    # --- For the pages ------------------------------------------------------------------------------------------------

    def notify(self, action: Mapping[str, Any]) -> None:
        endpoint = self.options.notification_http_endpoint
        if endpoint:
            try:
                self._notifications.put_nowait(action)
            except Full:
                shown = without_secrets(endpoint)
                log.error("notification dropped: %d are already waiting for %s", MAX_NOTIFICATIONS, shown)

    def config_value(self, name: str) -> object:
        return option_value(self.options, name)

    def set_log_level(self, text: str) -> None:
        self.options.log_level = parse_log_level(text)
        set_level(self.options.log_level)

    def _hash(self, work: Callable[[], bytes]) -> bytes:
        """Hash a password in a thread, while other requests are served."""
        if self._hashes >= MAX_HASHES:
            raise TooBusy
        self._hashes += 1
        try:
            return self._hash_threads.apply(work)
        finally:
            self._hashes -= 1

    # --- In the background --------------------------------------------------------------------------------------------

    def _sample(self) -> None:
        """Take snapshots of the cluster in intervals, for rates, history, alerts and fast pages."""
        interval = seconds(self.options.sample_interval)
        samples = 0
        while True:
            began = time.monotonic()
            try:
                with_clients = samples % _CLIENTS_INTERVAL == 0
                # Twice: nsqlookupds are asked first, and an nsqd may then take its whole time.
                cluster = self.cluster.within(2 * seconds(self.options.http_client_request_timeout))
                latest = self.history.latest
                timed = [node.http_address for node in latest.nodes] if latest else []
                snapshot = take_snapshot(cluster, time.time(), clients=with_clients, timed=timed)
                self.history.add(snapshot)
                if with_clients:
                    self.history.oldest = oldest_messages(self._client, snapshot)
            except Exception:  # the top of a greenlet that must not end
                log.exception("SAMPLER: failed")
            samples += 1
            # A slow cluster is sampled less often.
            gevent.sleep(max(interval - (time.monotonic() - began), interval / 2))

    def _send_notifications(self) -> None:
        """POST each action to `--notification-http-endpoint`, in order. Go's nsqadmin exits if it cannot be reached."""
        endpoint = self.options.notification_http_endpoint
        shown = without_secrets(endpoint)
        for action in self._notifications:
            log.info("POSTing notification to %s", shown)
            try:
                self._client.exchange("POST", endpoint, dumps(dict(action)).encode(), _NOTIFICATION_HEADERS)
            except UpstreamError as failure:
                log.error("failed to POST notification - %s", str(failure).replace(without_user(endpoint), shown))


def read_users(path: str) -> Users:
    """Raises ``OptionError``."""
    try:
        with open(path, encoding="utf-8") as file:
            return Users(file.read())
    except (OSError, ValueError) as failure:
        raise OptionError(f"failed to read --user-file ({path}) - {failure}") from None


def open_sessions(options: NsqadminOptions, run: Run) -> Sessions:
    """Raises ``OptionError``."""
    idle_timeout, timeout = seconds(options.session_idle_timeout), seconds(options.session_timeout)
    try:
        return Sessions(time.time, idle_timeout, timeout, options.session_file, run)
    except SessionFileError as failure:
        raise OptionError(f"failed to open --session-file ({failure})") from None


def make_provider(options: NsqadminOptions) -> LoginProvider:
    """Raises ``OptionError``."""
    if find_spec("authlib") is None:
        raise OptionError(missing_package("authlib", "oidc"))
    from nsq_compat.web.admin.oidc import Provider, Settings  # Authlib is an extra

    settings = Settings(
        issuer=options.oidc_issuer,
        client_id=options.oidc_client_id,
        client_secret=options.oidc_client_secret,
        role_claim=options.oidc_role_claim,
        roles=tuple(map(parse_role, options.oidc_role_map)),
        scopes=options.oidc_scope,
    )
    client = HttpClient(
        connect_timeout=seconds(options.http_client_connect_timeout),
        request_timeout=seconds(options.http_client_request_timeout),
        tls_root_ca_file=options.oidc_root_ca_file,
        max_answer_bytes=MAX_PROVIDER_BYTES,
    )
    return Provider(settings, client, time.time)
