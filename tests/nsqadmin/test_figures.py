"""The figures of a page agree with each other while traffic runs: all numbers are read from the pages themselves."""

import re
import subprocess
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from html.parser import HTMLParser

import pytest

from nsq_conformance.daemon_process import installed
from nsq_conformance.nsqadmin_process import NsqadminProcess, installed_nsqadmin
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.nsqadmin.browser import until
from tests.nsqadmin.conftest import PATIENCE, StartNsqadmin

TOPICS = ("orders", "events", "waits")
ROUNDS = 15


class Figures(HTMLParser):
    """The figures of a page: `tiles` and `plots` by title, `columns` by table and label, `totals` as `columns`.

    The sums of a machine in the table of nodes are `totals`.
    Tables that can be unfolded are named after the section that they are in, with "details".
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tiles: dict[str, str] = {}
        self.plots: dict[str, str] = {}
        self.columns: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.totals: dict[tuple[str, str], str] = {}
        self._section = self._label = self._title = ""
        self._is_sum = False
        self._open: list[str] = []
        self._text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if "data-live" in given:
            self._section = given["id"] or ""
        if tag == "details":
            self._section += " details"
        if tag in ("tfoot", "table"):
            self._open.append(tag)
        if tag == "tr":
            self._is_sum = self._open[-1] == "tfoot" or given.get("class") == "host"
        if tag in ("td", "th"):
            self._label = given.get("data-label") or ""
        if tag not in ("small", "span"):
            self._text = []

    def handle_endtag(self, tag: str) -> None:
        text = "".join(self._text).strip()
        key = (self._section, self._label)
        if tag == "dt":
            self._title = text
        elif tag == "dd":
            self.tiles[self._title] = text
        elif tag == "strong" and self._section == "charts":
            self.plots[self._title] = text
        elif tag == "td" and self._label and self._is_sum:
            self.totals[key] = text
        elif tag == "td" and self._label:
            self.columns[key].append(text)
        elif tag in ("tfoot", "table"):
            self._open.pop()
        elif tag == "details":
            self._section = self._section.removesuffix(" details")
        if tag in ("small", "span"):
            self._text = self._text[:1]  # the depth, without what is in memory and on disk

    def handle_data(self, data: str) -> None:
        self._text.append(data)
        if self.lasttag == "figcaption":
            self._title = data.strip() or self._title


def number(text: str) -> int:
    return int(text.replace(",", ""))


def total(cells: list[str]) -> int:
    return sum(map(number, cells))


@pytest.fixture(scope="module")
def nsqds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NsqdProcess]]:
    with ExitStack() as stack:
        folders = [tmp_path_factory.mktemp("data") for _ in range(2)]
        options = ["--broadcast-address=127.0.0.1"]
        yield [stack.enter_context(NsqdProcess(installed_nsqd(), folder, options=options)) for folder in folders]


@pytest.fixture(scope="module")
def traffic(nsqds: list[NsqdProcess]) -> Iterator[None]:
    """Messages to all topics on all nodes, a consumer, and channels that are emptied now and then."""
    over = threading.Event()

    def run() -> None:
        for round in range(10**9):
            for index, topic in enumerate(TOPICS):
                for nsqd in nsqds:
                    body = b"\n".join([b"message"] * (1 + (7 * round + index) % 40))
                    assert nsqd.asks("POST", f"/mpub?topic={topic}", body).status == 200
                    if round % 17 == 0:
                        nsqd.asks("POST", f"/channel/empty?topic={topic}&channel=archive")
            if over.wait(0.02):
                return

    for nsqd in nsqds:
        for topic in TOPICS[:2]:  # the third topic keeps its messages itself
            nsqd.create_channel(topic, "archive")
            nsqd.create_channel(topic, "mail")
    thread = threading.Thread(target=run)
    thread.start()
    addresses = [f"--nsqd-tcp-address={nsqd.tcp_address}" for nsqd in nsqds]
    command = [*installed("nsq_tail").split(), "--topic=orders", "--channel=mail", "--max-in-flight=20", *addresses]
    consumer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    yield
    over.set()
    thread.join(PATIENCE)
    consumer.terminate()
    consumer.wait(PATIENCE)


@pytest.fixture(scope="module")
def nsqadmin(nsqds: list[NsqdProcess], traffic: None) -> Iterator[NsqadminProcess]:
    addresses = [f"--nsqd-http-address={nsqd.http_address}" for nsqd in nsqds]
    with NsqadminProcess(installed_nsqadmin(), options=[*addresses, "--sample-interval=1s"]) as nsqadmin:
        until(lambda: Figures(nsqadmin.get("/")).tiles["Rate /s"] != "\u2013", "a rate")
        yield nsqadmin


def test_tiles_plots_and_tables_of_the_overview_agree(nsqadmin):
    for _ in range(ROUNDS):
        page = Figures(nsqadmin.get("/"))
        assert page.plots["Waiting"] == page.tiles["Waiting"]
        assert page.plots["Rate /s"] == page.tiles["Rate /s"]
        for tile in ("Waiting", "In flight", "Channels", "Consumers"):
            assert total(page.columns["topic-table", tile]) == number(page.tiles[tile]), tile


@pytest.mark.parametrize("topic", TOPICS)
def test_tiles_plots_and_tables_of_a_topic_agree(nsqadmin, topic):
    for _ in range(ROUNDS):
        page = Figures(nsqadmin.get(f"/topics/{topic}"))
        assert page.plots["Waiting"] == page.tiles["Waiting"] == page.totals["nodes", "Waiting"]
        assert page.plots["Rate /s"] == page.tiles["Rate /s"]
        assert page.tiles["Messages"] == page.totals["nodes", "Messages"]
        for label in ("Waiting", "Messages"):
            assert total(page.columns["nodes", label]) == number(page.totals["nodes", label]), label
        for tile in ("In flight", "Deferred", "Consumers"):
            assert total(page.columns["channels", tile]) == number(page.tiles[tile]), tile
        if topic != "waits":  # no message waits in the topic itself
            assert total(page.columns["channels", "Waiting"]) == number(page.tiles["Waiting"])


@pytest.mark.parametrize("channel", ["archive", "mail"])
def test_tiles_plots_and_tables_of_a_channel_agree(nsqadmin, channel):
    for _ in range(ROUNDS):
        page = Figures(nsqadmin.get(f"/topics/orders/{channel}"))
        assert page.plots["Waiting"] == page.tiles["Waiting"]
        assert page.plots["Rate /s"] == page.tiles["Rate /s"]
        for tile in ("Waiting", "In flight", "Deferred", "Consumers"):
            assert page.tiles[tile] == page.totals["nodes", tile], tile
            assert total(page.columns["nodes", tile]) == number(page.tiles[tile]), tile


def test_headings_tiles_plots_and_tables_of_a_node_agree(nsqadmin, nsqds):
    for _ in range(ROUNDS):
        text = nsqadmin.get(f"/nodes/{nsqds[0].http_address}")
        page = Figures(text)
        assert page.plots["Waiting"] == page.tiles["Waiting"]
        assert page.plots["Rate /s"] == page.tiles["Rate /s"]
        headings = re.findall(r"([0-9,]+) waiting(?: \(([0-9,]+) not yet in channels\))?, ([0-9,]+) message", text)
        assert len(headings) == number(page.tiles["Topics"]) == len(TOPICS)
        assert total([waiting for waiting, _, _ in headings]) == number(page.tiles["Waiting"])
        in_topics = total([undelivered or "0" for _, undelivered, _ in headings])
        assert in_topics + total(page.columns["topics", "Waiting"]) == number(page.tiles["Waiting"])
        for tile, of_clients in (("In flight", "In flight"), ("Consumers", "Connections")):
            assert total(page.columns["topics", tile]) == number(page.tiles[tile]), tile
            assert total(page.columns["clients", of_clients]) == number(page.tiles[tile]), tile
        assert page.columns["topics details", "In flight"] == page.columns["clients", "In flight"]


def test_the_table_of_nodes_agrees_with_its_heading_and_with_the_overview_of_the_same_sample(nsqds, traffic, start):
    addresses = [f"--nsqd-http-address={nsqd.http_address}" for nsqd in nsqds]
    # One sample is taken at the start, and the next one only after this test.
    nsqadmin = start(*addresses, "--sample-interval=1h")
    until(lambda: "nsqadmin_nodes 2" in nsqadmin.get("/metrics"), "the sample")
    nodes, overview = nsqadmin.get("/nodes"), Figures(nsqadmin.get("/"))
    page = Figures(nodes)
    rows = page.columns
    assert f"data-live>{len(rows['node-table', 'Waiting'])}</span>" in nodes
    assert len(rows["node-table", "Waiting"]) == number(overview.tiles["Nodes"]) == len(nsqds)
    for tile in ("Waiting", "Consumers"):
        assert total(rows["node-table", tile]) == number(overview.tiles[tile]), tile
        assert page.totals["node-table", tile] == overview.tiles[tile], "both nodes are on one machine"


def test_the_counter_agrees_with_its_table(nsqadmin):
    for _ in range(ROUNDS):
        page = nsqadmin.get("/counter")
        counted = int(page.partition('data-counter="')[2].partition('"')[0])
        assert total(Figures(page).columns["busiest", "Messages"]) == counted


def test_an_emptied_channel_is_empty_on_all_pages_at_once(nsqd, start: StartNsqadmin):
    nsqd.create_channel("full", "archive")
    assert nsqd.asks("POST", "/mpub?topic=full", b"\n".join([b"x"] * 3000)).status == 200
    # One sample is taken at the start, and the next one only after this test.
    nsqadmin = start(f"--nsqd-http-address={nsqd.http_address}", "--sample-interval=1h")
    until(lambda: Figures(nsqadmin.get("/")).tiles["Waiting"] == "3,000", "the sample")
    nsqadmin.send("/api/topics/full/archive", '{"action": "empty"}')
    for path, name in (("/", "Waiting"), ("/topics/full", "Waiting"), ("/topics/full/archive", "Waiting")):
        page = Figures(nsqadmin.get(path))
        assert (page.tiles[name], page.plots[name]) == ("0", "0"), path
    assert number(Figures(nsqadmin.get("/topics")).columns["topic-table", "Waiting"][0]) == 0
