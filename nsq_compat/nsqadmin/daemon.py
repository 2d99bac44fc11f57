"""The daemon nsqadmin: HTTP server, sampler, notifications, and the interface to its pages (`AdminService`)."""

import logging
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import nsq_compat
from nsq_compat.cli.kinds import OptionError
from nsq_compat.cli.logs import parse_log_level, set_level
from nsq_compat.cli.options import option_value
from nsq_compat.cluster.actions import Actions
from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.history import History
from nsq_compat.cluster.http_client import HttpClient, HttpClientOptions
from nsq_compat.net.event_loop import LoopLag
from nsq_compat.net.server import HttpServer
from nsq_compat.net.sockets import listen
from nsq_compat.nsqadmin.notifications import Notifications
from nsq_compat.nsqadmin.options import PROGRAM, NsqadminOptions
from nsq_compat.nsqadmin.sampler import Sampler
from nsq_compat.protocol.durations import SECOND, seconds
from nsq_compat.web.admin.app import create_app
from nsq_compat.web.admin.monitoring import collect
from nsq_compat.web.admin.users import UserFileError, Users
from nsq_compat.web.admin.wsgi import WsgiHandler
from nsq_compat.web.metrics import Metrics
from nsq_compat.web.responses import error

log = logging.getLogger(__name__)

STOP_TIMEOUT: Final = 5.0
_MAX_BODY_BYTES: Final = 1024 * 1024 + 64 * 1024


def client_options(options: NsqadminOptions) -> HttpClientOptions:
    return HttpClientOptions(
        connect_timeout=seconds(options.http_client_connect_timeout),
        request_timeout=seconds(options.http_client_request_timeout),
        tls_cert=options.http_client_tls_cert,
        tls_key=options.http_client_tls_key,
        tls_root_ca_file=options.http_client_tls_root_ca_file,
        tls_skip_verify=options.http_client_tls_insecure_skip_verify,
    )


class Daemon:
    """Listens when created, and serves from `start` to `stop`. Creation raises ``OptionError`` and ``ListenError``."""

    def __init__(self, options: NsqadminOptions) -> None:
        log.info("%s", nsq_compat.version_line(PROGRAM))
        self.options = options
        self.version = nsq_compat.NSQ_VERSION
        self.hostname = os.uname().nodename
        self.secret_key = secrets.token_bytes(32)
        self.users = read_users(options.user_file) if options.user_file else None
        self.now = time.time
        client = HttpClient(client_options(options))
        self.cluster = Cluster(client, options)
        self.actions = Actions(self.cluster)
        self.history = History(max(1, options.sample_interval // SECOND))
        self._sampler = Sampler(self.cluster, self.history, seconds(options.sample_interval))
        self._notifications = Notifications(client, options.notification_http_endpoint)
        self.metrics = Metrics(PROGRAM, self.version)
        self.metrics.collect_from(lambda: collect(self.history))
        self._loop_lag = LoopLag(self.metrics.observe_lag, self.metrics.observe_held)
        handler = WsgiHandler(
            create_app(self),
            base_path=options.base_path,
            body_limit=_MAX_BODY_BYTES,
            too_large=error(413, "INVALID_VALUE"),
        )
        self._http = HttpServer(listen(options.http_address), handler)

    def start(self) -> None:
        self._loop_lag.start()
        self._sampler.start()
        self._notifications.start()
        self._http.start()

    def stop(self) -> None:
        self._http.stop(STOP_TIMEOUT)
        self._sampler.stop()
        self._notifications.stop()
        self._loop_lag.stop()

    def notify(self, action: Mapping[str, Any]) -> None:
        self._notifications.notify(action)

    def config_value(self, name: str) -> object:
        return option_value(self.options, name)

    def set_log_level(self, text: str) -> None:
        self.options.log_level = parse_log_level(text)
        set_level(self.options.log_level)

    def set_lookupd_addresses(self, addresses: Sequence[str]) -> None:
        self.options.nsqlookupd_http_addresses = tuple(addresses)


def read_users(path: str) -> Users:
    """Raises ``OptionError``."""
    try:
        with open(path, encoding="utf-8") as file:
            return Users(file.read())
    except (OSError, UserFileError, UnicodeDecodeError) as failure:
        raise OptionError(f"failed to read --user-file ({path}) - {failure}") from None
