"""One daemon that hangs holds no page and no API answer. Real processes are stopped with SIGSTOP.

The environment variables NSQD_COMMAND and NSQLOOKUPD_COMMAND select other daemons, such as Go's.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPConnection
from itertools import product, repeat

import pytest

from nsq_conformance.daemon_process import DaemonProcess
from nsq_conformance.nsqadmin_process import NsqadminProcess, installed_nsqadmin
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.cluster.daemon import Daemon
from tests.cluster.hostile import ENDLESS, HostileServer, TicketServer
from tests.nsqadmin.browser import until
from tests.nsqadmin.conftest import StartNsqadmin, publish

PAGES = (
    *("/", "/topics", "/topics/orders", "/topics/orders/archive", "/topics/orders/archive/messages"),
    *("/messages/orders", "/topics/orders?confirm=delete", "/nodes", "/counter", "/lookup", "/create?topic=orders"),
    *("/log/orders", "/topics/orders/archive/rewind?to=oldest", "/topics/orders/archive/redrive"),
)
API = ("/api/topics", "/api/topics?inactive=true", "/api/topics/orders", "/api/topics/orders/archive", "/api/nodes")
BUSY = ("--page-timeout=8s", "--http-client-request-timeout=120s")
"""For a busy machine, on which healthy daemons are slow too."""
PATIENCE = 60.0
"""Half of the time that nsqadmin would wait for a daemon without --page-timeout."""


@dataclass
class Site:
    nsqds: list[NsqdProcess]
    nsqlookupds: list[NsqlookupdProcess]
    announced: Daemon
    """An nsqlookupd that answers with the nodes that the test chooses."""
    nsqadmin: NsqadminProcess
    arguments: Sequence[str]
    """Those of nsqadmin."""

    def fetch(self, path: str) -> tuple[int, str]:
        connection = HTTPConnection(self.nsqadmin.http_address, timeout=PATIENCE)
        try:
            connection.request("GET", path, headers={"Accept": "text/html"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def fetch_all(self, *paths: str) -> dict[str, str]:
        """All at once. Fails if one takes too long, or is an error."""
        with ThreadPoolExecutor(len(paths)) as pool:
            answers = dict(zip(paths, pool.map(self.fetch, paths), strict=True))
        assert {path: text for path, (status, text) in answers.items() if status != 200} == {}
        return {path: text for path, (_, text) in answers.items()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two nsqds with a topic, and three nsqlookupds."""
    nsqd_command = os.environ.get("NSQD_COMMAND") or installed_nsqd()
    nsqlookupd_command = os.environ.get("NSQLOOKUPD_COMMAND") or installed_nsqlookupd()
    with ExitStack() as stack:
        nsqlookupds = [stack.enter_context(NsqlookupdProcess(nsqlookupd_command)) for _ in range(2)]
        registered = [f"--lookupd-tcp-address={each.tcp_address}" for each in nsqlookupds]
        options = ["--broadcast-address=127.0.0.1", *registered]
        nsqds = []
        for _ in range(2):
            folder = tmp_path_factory.mktemp("data")
            nsqds.append(stack.enter_context(NsqdProcess(nsqd_command, folder, options=options)))
            nsqds[-1].create_channel("orders", "archive")
            publish(nsqds[-1], "orders", *"abc")
        for nsqlookupd in nsqlookupds:
            until(partial(_has, nsqlookupd, "orders", 2), "both nsqds")
        announced = stack.enter_context(Daemon())
        announced.says("topics", {"topics": []}).says("channels", {"channels": []})
        addresses = [*(each.http_address for each in nsqlookupds), announced.address]
        arguments = [*(f"--lookupd-http-address={address}" for address in addresses), *BUSY, "--sample-interval=1s"]
        nsqadmin = stack.enter_context(NsqadminProcess(installed_nsqadmin(), options=arguments))
        yield Site(nsqds, nsqlookupds, announced, nsqadmin, arguments)


@pytest.fixture
def stopped() -> Iterator[list[DaemonProcess]]:
    """Daemons that are stopped, and continue after the test."""
    daemons: list[DaemonProcess] = []
    yield daemons
    for daemon in daemons:
        daemon.send_signal(signal.SIGCONT)


@pytest.fixture
def site(cluster: Site) -> Site:
    """The cluster when all of it is healthy, also in nsqadmin's newest sample."""
    announce(cluster)
    until(partial(_is_healthy, cluster), "a healthy cluster")
    return cluster


def _is_healthy(site: Site) -> bool:
    status, page = site.fetch("/topics/orders")
    _, nodes = site.fetch("/nodes")
    return (
        status == 200
        and "did not answer" not in page + nodes
        and "no answer" not in nodes
        and all(nsqd.http_address in page for nsqd in site.nsqds)
    )


def _has(nsqlookupd: NsqlookupdProcess, topic: str, nodes: int) -> bool:
    return str(nsqlookupd.get("/nodes")).count(f"'{topic}'") == nodes


def accepts(_: HostileServer) -> Iterator[bytes]:
    """Never answers."""
    yield from repeat(b"")


def drips(_: HostileServer) -> Iterator[bytes]:
    """Sends a byte now and then, for ever."""
    yield b"HTTP/1.1 200 OK\r\nX: "
    yield from repeat(b"x")


def hang(daemon: DaemonProcess, stopped: list[DaemonProcess]) -> None:
    daemon.send_signal(signal.SIGSTOP)
    stopped.append(daemon)


def announce(site: Site, *addresses: str) -> None:
    ports = [int(address.rpartition(":")[2]) for address in addresses]
    entry = {"broadcast_address": "127.0.0.1", "hostname": "hostile", "version": "1.3.0", "topics": ["orders"]}
    listed = {"producers": [{**entry, "http_port": port, "tcp_port": port} for port in ports]}
    site.announced.says("nodes", listed).says("lookup", listed)


def unsampled(site: Site, start: StartNsqadmin, *arguments: str) -> Site:
    """With another nsqadmin, whose first sample waits for the daemons that hang longer than a page does."""
    return replace(site, nsqadmin=start(*(arguments or site.arguments)))


def assert_marked(page: str, address: str) -> None:
    """The row of the node says that it does not answer."""
    row = next(row for row in page.split("<tr") if f"/nodes/{address}" in row)
    assert "no answer" in row


def test_a_stopped_nsqd_holds_no_page_and_is_marked_on_it(site, stopped):
    hang(site.nsqds[1], stopped)
    pages = site.fetch_all(*PAGES, *API, "/api/counter", f"/nodes/{site.nsqds[1].http_address}")
    for path in ("/topics/orders", "/topics/orders/archive", "/nodes"):
        assert_marked(pages[path], site.nsqds[1].http_address)
    for path in ("/topics/orders", "/topics/orders/archive"):
        assert "Part of the cluster did not answer." in pages[path]
        assert site.nsqds[0].http_address in pages[path], "the other node is shown"
    assert "timeout" in pages["/api/topics/orders"]


def test_all_pages_and_the_api_mark_a_stopped_nsqlookupd(site, stopped):
    hang(site.nsqlookupds[1], stopped)
    pages = site.fetch_all(*PAGES, *API, "/api/counter")
    for path in ("/topics/orders", "/topics/orders/archive", "/nodes", "/lookup", *API):
        assert site.nsqlookupds[1].http_address in pages[path], path
    assert site.nsqds[1].http_address in pages["/topics/orders"]


def test_an_nsqd_that_accepts_and_does_not_answer_holds_no_page(site, start):
    with HostileServer(accepts) as accepting, HostileServer(drips) as dripping:
        addresses = (accepting.address, dripping.address)
        announce(site, *addresses)
        pages = unsampled(site, start).fetch_all(
            *PAGES, *API, "/api/counter", *(f"/nodes/{each}" for each in addresses)
        )
        for path, address in product(("/topics/orders", "/nodes"), addresses):
            assert_marked(pages[path], address)


@pytest.mark.parametrize("answer", ENDLESS)
def test_an_nsqd_that_sends_small_parts_without_end_holds_up_nothing(site, start, answer):
    """Reading what has arrived never waits, so no other greenlet would run, not even the one with the deadline."""
    with HostileServer(answer) as server:
        pages = unsampled(site, start, f"--nsqd-http-address={server.address}", "--sample-interval=0s").fetch_all(
            "/", "/ping"
        )
    assert "did not answer" in pages["/"]


def test_an_nsqlookupd_that_sends_session_tickets_without_end_holds_up_nothing(site, start, tmp_path):
    with TicketServer(tmp_path) as server:
        flags = ("--http-client-tls-insecure-skip-verify", "--sample-interval=0s")
        pages = unsampled(site, start, f"--lookupd-http-address=https://{server.address}", *flags).fetch_all(
            "/", "/ping"
        )
    assert "timeout" in pages["/"]


def test_daemons_of_each_kind_that_hang_together_hold_no_page(site, stopped, start):
    hang(site.nsqds[1], stopped)
    hang(site.nsqlookupds[0], stopped)
    with HostileServer(accepts) as accepting, HostileServer(drips) as dripping:
        announce(site, accepting.address, dripping.address)
        pages = unsampled(site, start).fetch_all(*PAGES, *API)
    assert site.nsqds[0].http_address in pages["/topics/orders"]


@pytest.mark.parametrize("listed", [False, True], ids=["nsqlookupd", "fixed list"])
def test_topics_and_channels_that_only_a_stopped_nsqd_has_are_pages_that_mark_it(site, stopped, start, listed):
    node = site.nsqds[1]
    node.create_channel("single", "mail")
    node.create_channel("orders", "mail")
    for nsqlookupd in site.nsqlookupds:
        until(partial(_has, nsqlookupd, "single", 1), "the topic")
    hang(node, stopped)
    if listed:
        addresses = [f"--nsqd-http-address={nsqd.http_address}" for nsqd in site.nsqds]
        site = unsampled(site, start, *addresses, *BUSY)
    of_topic, of_channels = ("/topics/single", "/messages/single"), ("/topics/single/mail", "/topics/orders/mail")
    below = [f"{path}/{page}" for path in of_channels for page in ("messages", "redrive", "rewind")]
    pages = site.fetch_all(*of_topic, "/log/single", *of_channels, *below)
    for path, page in pages.items():
        assert f'No answer: <a href="/nodes/{node.http_address}"' in page, path
        assert f"<li>{node.http_address}: timeout</li>" in page, path
        assert not any(nsqlookupd.http_address in page for nsqlookupd in site.nsqlookupds), path


def test_an_nsqadmin_without_samples_is_not_held(site, stopped, start):
    hang(site.nsqds[1], stopped)
    addresses = [f"--nsqd-http-address={nsqd.http_address}" for nsqd in site.nsqds]
    pages = unsampled(site, start, *addresses, *BUSY, "--sample-interval=0s").fetch_all(*PAGES, *API)
    assert "Part of the cluster did not answer." in pages["/"]
    assert site.nsqds[0].http_address in pages["/topics/orders"]
