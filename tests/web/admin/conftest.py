"""nsqadmin's application, with real daemons that send answers chosen by the test."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from flask.testing import FlaskClient

from nsq_compat.cluster.actions import Actions
from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.history import History
from nsq_compat.cluster.http_client import HttpClient, HttpClientOptions
from nsq_compat.web.admin.app import create_app
from nsq_compat.web.admin.users import Users
from nsq_compat.web.metrics import Metrics
from tests.cluster.daemon import Daemon, Send, reply

_ORDERS = ("create", "delete", "empty", "pause", "unpause")
NOW = 1_795_233_495.0
ORDERS = ("pub", *(f"{what}/{order}" for what in ("topic", "channel") for order in _ORDERS))


@dataclass
class Options:
    base_path: str = "/"
    dev_static_dir: str = ""
    graphite_url: str = ""
    proxy_graphite: bool = False
    statsd_prefix: str = "nsq.%s"
    statsd_counter_format: str = "stats.counters.%s.count"
    statsd_gauge_format: str = "stats.gauges.%s"
    statsd_interval: int = 60_000_000_000
    nsqlookupd_http_addresses: tuple[str, ...] = ()
    nsqd_http_addresses: tuple[str, ...] = ()
    allow_config_from_cidr: str = "127.0.0.1/8"
    acl_http_header: str = "X-Forwarded-User"
    admin_users: tuple[str, ...] = ()


@dataclass
class Service:
    """Satisfies `AdminService`."""

    options: Options = field(default_factory=Options)
    version: str = "1.3.0"
    hostname: str = "admin1"
    history: History = field(default_factory=History)
    users: Users | None = None
    secret_key: bytes = b"secret"
    time: float = NOW
    notified: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cluster = Cluster(HttpClient(HttpClientOptions(request_timeout=20)), self.options)
        self.actions = Actions(self.cluster)
        self.metrics = Metrics("nsqadmin", self.version)

    def now(self) -> float:
        return self.time

    def notify(self, action: Mapping[str, Any]) -> None:
        self.notified.append(dict(action))

    def config_value(self, name: str) -> object:
        return self.config[name]

    def set_log_level(self, text: str) -> None:
        if text not in ("debug", "info"):
            raise ValueError(text)
        self.config["log_level"] = 1

    def set_lookupd_addresses(self, addresses: Sequence[str]) -> None:
        self.config["nsqlookupd_http_addresses"] = list(addresses)


class Nsqd(Daemon):
    """An nsqd's HTTP API: `topics` are those of /stats, and every POST succeeds."""

    def __init__(self) -> None:
        super().__init__()
        self.topics: list[dict[str, Any]] = []
        self.says("info", self.info(tcp_port=1))

    def answer_to(self, target: str) -> Send:
        path = target.partition("?")[0]
        if path in self._answers:
            return self._answers[path]
        if path == "stats":
            return reply({"health": "OK", "start_time": 1, "topics": self.topics})
        return reply(b"") if path in ORDERS else super().answer_to(target)


def channel_json(name: str, **fields: Any) -> dict[str, Any]:
    return {"channel_name": name, "clients": [], **fields}


def topic_json(name: str, *channels: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"topic_name": name, "channels": list(channels), **fields}


@pytest.fixture
def make_nsqd() -> Iterator[Callable[[], Nsqd]]:
    with ExitStack() as stack:

        def make() -> Nsqd:
            nsqd = Nsqd()
            stack.callback(nsqd.close)
            return nsqd

        yield make


@pytest.fixture
def nsqd(make_nsqd: Callable[[], Nsqd]) -> Nsqd:
    nsqd = make_nsqd()
    client = {
        "client_id": "c1",
        "hostname": "c1.example",
        "remote_address": "10.0.0.1:5000",
        "connect_ts": int(NOW) - 65,
    }
    nsqd.topics = [
        topic_json(
            "orders",
            channel_json("archive", depth=12304, message_count=20000),
            channel_json("mail", client_count=1, clients=[{**client, "ready_count": 0, "tls": True}]),
            depth=7,
            backend_depth=2,
            message_count=20000,
        )
    ]
    return nsqd


@pytest.fixture
def service(nsqd: Nsqd) -> Service:
    return Service(Options(nsqd_http_addresses=(nsqd.address,)))


@pytest.fixture
def browser(service: Service) -> FlaskClient:
    return create_app(service).test_client()


class Form:
    """Submits a form with the token of its page, as a browser does."""

    def __init__(self, browser: FlaskClient) -> None:
        self.browser = browser

    def __call__(self, path: str, page: str = "/lookup", **fields: str) -> Any:
        text = self.browser.get(page).text
        token = text.partition('name="csrf" value="')[2].partition('"')[0]
        return self.browser.post(path, data={"csrf": token, **fields})


@pytest.fixture
def submit(browser: FlaskClient) -> Form:
    return Form(browser)


def shown(page: Any) -> str:
    """The text of a page on one line."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.text)).strip()
