"""nsqadmin's application, with real daemons that send answers chosen by the test."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from flask.testing import FlaskClient

from nsq_compat.cli.logs import parse_log_level
from nsq_compat.cli.options import option_value
from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.history import History
from nsq_compat.cluster.http_client import HttpClient
from nsq_compat.nsqadmin.options import NsqadminOptions
from nsq_compat.policy.access import AccessFile
from nsq_compat.protocol.durations import SECOND
from nsq_compat.web.admin.access import LoginProvider
from nsq_compat.web.admin.app import create_app
from nsq_compat.web.admin.sessions import Sessions
from nsq_compat.web.admin.users import PasswordCheck, Users, make_line
from nsq_compat.web.metrics import Metrics
from tests.cluster.daemon import Daemon
from tests.cluster.hostile import HostileServer, silent

NOW = 1_795_233_495.0
USERS = "\n".join(
    make_line(name, role, f"{name}-pw") for name, role in (("vic", "viewer"), ("olga", "operator"), ("ada", "admin"))
)


@dataclass
class Service:
    """Satisfies `AdminService`."""

    cluster: Cluster
    options: NsqadminOptions = field(default_factory=lambda: NsqadminOptions(page_timeout=60 * SECOND))
    history: History = field(default_factory=History)
    metrics: Metrics = field(default_factory=lambda: Metrics("nsqadmin"))
    users: Users | None = None
    access: AccessFile | None = None
    provider: LoginProvider | None = None
    password_check: PasswordCheck = field(default_factory=lambda: PasswordCheck(lambda work: work()))
    time: float = NOW
    notified: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sessions = Sessions(self.now, 12 * 3600, 7 * 24 * 3600)

    def now(self) -> float:
        return self.time

    def notify(self, action: Mapping[str, Any]) -> None:
        self.notified.append(dict(action))

    def config_value(self, name: str) -> object:
        return option_value(self.options, name)

    def set_log_level(self, text: str) -> None:
        self.options.log_level = parse_log_level(text)


class Nsqd(Daemon):
    def __init__(self) -> None:
        super().__init__()
        self.says("info", self.info(tcp_port=1)).says("ping", b"OK")
        self.has()

    def has(self, *topics: dict[str, Any]) -> None:
        """These are the topics of /stats."""
        self.says("stats", {"health": "OK", "start_time": 1, "topics": topics})


def channel_json(name: str, **fields: Any) -> dict[str, Any]:
    return {"channel_name": name, "clients": [], **fields}


def topic_json(name: str, *channels: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"topic_name": name, "channels": list(channels), **fields}


@pytest.fixture
def make_nsqd() -> Iterator[Callable[[], Nsqd]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Nsqd())


@pytest.fixture
def nsqd(make_nsqd: Callable[[], Nsqd]) -> Nsqd:
    nsqd = make_nsqd()
    client = {"hostname": "c1.example", "remote_address": "10.0.0.1:5000", "connect_ts": int(NOW) - 65}
    nsqd.has(
        topic_json(
            "orders",
            channel_json("archive", depth=12304, message_count=20000),
            channel_json("mail", client_count=1, clients=[{**client, "ready_count": 0, "tls": True}]),
            depth=7,
            backend_depth=2,
            message_count=20000,
        )
    )
    return nsqd


@pytest.fixture
def service(nsqd: Nsqd) -> Service:
    return Service(Cluster(HttpClient(request_timeout=20), nsqds=[nsqd.address]))


@pytest.fixture
def lookupd(make_nsqd: Callable[[], Nsqd], nsqd: Nsqd, service: Service) -> Nsqd:
    """An nsqlookupd that announces our nsqd, instead of a fixed list."""
    lookupd = make_nsqd()
    producers = {"producers": [nsqd.info(topics=["orders"])]}
    lookupd.says("nodes", producers).says("lookup", producers)
    lookupd.says("topics", {"topics": ["orders"]}).says("channels", {"channels": ["archive"]})
    service.cluster.lookupds = [lookupd.address]
    return lookupd


@pytest.fixture
def hanging(service: Service, nsqd: Nsqd, lookupd: Nsqd) -> Iterator[HostileServer]:
    """A node beside our nsqd that answers later than a page waits for it."""
    service.options.page_timeout = 3 * SECOND
    with HostileServer(silent) as hostile:
        port = int(hostile.address.rpartition(":")[2])
        listed = {"producers": [nsqd.info(topics=["orders"]), nsqd.info(http_port=port, tcp_port=port)]}
        lookupd.says("nodes", listed).says("lookup", listed)
        yield hostile


@pytest.fixture
def browser(service: Service) -> FlaskClient:
    return create_app(service).test_client()


@pytest.fixture
def behind_login(service: Service) -> FlaskClient:
    """For the users vic, olga and ada."""
    service.users = Users(USERS)
    return create_app(service).test_client()


class Form:
    """Submits a form with the token of its page, as a browser does."""

    def __init__(self, browser: FlaskClient) -> None:
        self.browser = browser

    def __call__(self, path: str, page: str = "/create", **fields: str | list[str]) -> Any:
        text = self.browser.get(page).text
        token = text.partition('name="csrf" value="')[2].partition('"')[0]
        return self.browser.post(path, data={"csrf": token, **fields})


@pytest.fixture
def submit(browser: FlaskClient) -> Form:
    return Form(browser)


def shown(page: Any) -> str:
    """The text of a page on one line."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub("</?bdi>", "", page.text))).strip()
