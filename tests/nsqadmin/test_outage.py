"""What the pages say, in a real Chromium, when daemons end or are slow. Each test has a cluster of its own."""

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nsq_conformance.nsqadmin_process import NsqadminProcess, installed_nsqadmin
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.nsqadmin.browser import Browser, until
from tests.nsqadmin.conftest import publish


@pytest.fixture
def nsqlookupd() -> Iterator[NsqlookupdProcess]:
    with NsqlookupdProcess(installed_nsqlookupd()) as process:
        yield process


@pytest.fixture
def nsqd(nsqlookupd: NsqlookupdProcess, tmp_path: Path) -> Iterator[NsqdProcess]:
    options = ["--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={nsqlookupd.tcp_address}"]
    (tmp_path / "data").mkdir()
    with NsqdProcess(installed_nsqd(), tmp_path / "data", options=options) as process:
        process.create_channel("orders", "archive")
        publish(process, "orders", *"abc")
        yield process


@pytest.fixture
def url(nsqlookupd: NsqlookupdProcess, nsqd: NsqdProcess) -> Iterator[str]:
    options = [f"--lookupd-http-address={nsqlookupd.http_address}", "--sample-interval=1s", "--page-timeout=8s"]
    with ExitStack() as stack:
        nsqadmin = stack.enter_context(NsqadminProcess(installed_nsqadmin(), options=options))
        yield f"http://{nsqadmin.http_address}"


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    chromium.start_over()
    return chromium


def tile(browser: Browser, name: str) -> str:
    figures = browser.text_of("#figures").split("\n")
    return figures[figures.index(name) + 1] if name in figures else ""


def test_a_cluster_that_loses_nsqlookupd_never_looks_empty(nsqlookupd, nsqd, url, browser):
    browser.open(f"{url}/")
    until(lambda: tile(browser, "Waiting") == "3", "the messages")
    nsqlookupd.kill()
    browser.sees("serious", "#alerts")
    browser.sees(f"{nsqlookupd.http_address} nsqlookupd does not answer, and no other does", "#alerts")
    assert (tile(browser, "Nodes"), tile(browser, "Topics"), tile(browser, "Waiting")) == ("1", "1", "3")
    browser.click("#alerts .fix a", "Show nsqlookupds")
    browser.sees("nsqd nodes (1)")
    browser.sees("last known", "#node-table")
    browser.sees("no answer", "#lookupds")
    # A page of each kind still finds the node.
    for path in ("/topics/orders", "/topics/orders/archive", f"/nodes/{nsqd.http_address}"):
        browser.open(url + path)
        assert tile(browser, "Waiting") == "3", path
    nsqd.kill()
    browser.open(f"{url}/")
    until(lambda: tile(browser, "Waiting") == "\u2013", "figures that are not known")
    assert (tile(browser, "Nodes"), tile(browser, "Topics")) == ("1", "\u2013")
    browser.sees("Waiting \u2013", "#charts")
    assert "does not answer, last seen" in browser.text_of("#alerts")


@pytest.fixture
def halting(nsqd: NsqdProcess) -> Iterator[None]:
    """nsqd stands still for nine tenths of the time."""
    is_over = threading.Event()

    def halt() -> None:
        while not is_over.wait(0.1):
            nsqd.send_signal(signal.SIGSTOP)
            is_over.wait(0.9)
            nsqd.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=halt)
    thread.start()
    yield
    is_over.set()
    thread.join()


@pytest.mark.usefixtures("halting")
def test_a_node_that_stands_still_most_of_the_time_is_marked_as_slow(nsqd, url, browser):
    browser.open(f"{url}/")
    browser.sees(f"{nsqd.http_address} slow: its event loop stands still for", "#alerts")
    browser.open(f"{url}/nodes")
    browser.sees("slow", "#node-table .tag.warn")
    browser.click("#node-table tbody th a")
    browser.sees("Slow: its event loop stands still", "#state")
    browser.sees("Everything is slow", "#next")
