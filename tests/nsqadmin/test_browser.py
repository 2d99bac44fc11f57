"""The pages in a real Chromium, over a real nsqlookupd, nsqd and nsqadmin; each test has topics of its own."""

import base64
import itertools
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from nsq_compat.web.admin.users import make_line
from nsq_conformance.daemon_process import own_host
from nsq_conformance.nsqadmin_process import NsqadminProcess, installed_nsqadmin
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.cluster.daemon import Daemon, reply
from tests.nsqadmin.browser import ARROW_LEFT, ENTER, Browser, until
from tests.nsqadmin.conftest import StartNsqadmin, publish


@dataclass
class Site:
    nsqd: NsqdProcess
    nsqlookupd: NsqlookupdProcess
    nsqadmin: NsqadminProcess

    def url(self, path: str) -> str:
        return f"http://{self.nsqadmin.http_address}{path}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as stack:
        nsqlookupd = stack.enter_context(
            NsqlookupdProcess(installed_nsqlookupd(), options=["--broadcast-address=127.0.0.1"])
        )
        nsqd = stack.enter_context(
            NsqdProcess(
                installed_nsqd(),
                tmp_path_factory.mktemp("data"),
                options=["--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={nsqlookupd.tcp_address}"],
            )
        )
        until(lambda: nsqd.http_address in str(_addresses(nsqlookupd)), "nsqd at nsqlookupd")
        nsqadmin = stack.enter_context(
            NsqadminProcess(
                installed_nsqadmin(),
                options=[f"--lookupd-http-address={nsqlookupd.http_address}", "--sample-interval=1s"],
            )
        )
        yield Site(nsqd, nsqlookupd, nsqadmin)


def _addresses(nsqlookupd: NsqlookupdProcess) -> list[str]:
    return [f"{node['broadcast_address']}:{node['http_port']}" for node in nsqlookupd.get("/nodes")["producers"]]


@pytest.fixture
def browser(chromium: Browser, site: Site) -> Browser:
    """A window of a new visitor."""
    chromium.start_over()
    chromium.devtools("Storage.clearDataForOrigin", origin=site.url(""), storageTypes="all")
    chromium.complaints()
    return chromium


def filled(site: Site, topic: str, *bodies: str) -> None:
    """A topic with these messages in its channel `archive`, known to nsqlookupd."""
    site.nsqd.create_channel(topic, "archive")
    publish(site.nsqd, topic, *bodies)
    until(lambda: topic in site.nsqlookupd.get("/topics")["topics"], f"{topic} at nsqlookupd")


def test_a_topic_appears_on_an_open_page(site, browser):
    browser.open(site.url("/"))
    filled(site, "arriving", "one")
    browser.sees("arriving")
    browser.sees("1 message and no consumer")


def test_a_channel_is_found_opened_and_paused(site, browser):
    filled(site, "orders.found", "one", "two")
    filled(site, "orders.other", "one")
    browser.open(site.url("/"))
    browser.find(".find input").type("found\n")
    browser.sees("1 topic with “found” in the name")
    assert "orders.other" not in browser.text_of("main")
    browser.click("main a", "orders.found")
    browser.click("#channels a", "archive")
    browser.sees("archive", "h1")
    browser.click("#actions button", "Pause")
    browser.sees("Paused orders.found/archive.")
    browser.sees("paused", "h1")
    assert site.nsqd.channel_stats("orders.found", "archive")["paused"]
    browser.click("#actions button", "Unpause")
    browser.sees_no_more("paused", "h1")


def test_emptying_is_confirmed_with_the_number_of_messages(site, browser):
    filled(site, "emptied", *(f"message {number}" for number in range(12)))
    browser.open(site.url("/topics/emptied/archive"))
    browser.click("#actions a", "Empty")
    browser.sees("12 messages on 1 node will be deleted", "dialog")
    assert browser.path == "/topics/emptied/archive", "asked in a dialog, not on another page"
    browser.click("dialog a", "Cancel")
    browser.sees_no_more("12 messages", "dialog[open]")
    assert site.nsqd.channel_stats("emptied", "archive")["depth"] == 12
    browser.click("#actions a", "Empty")
    browser.click("dialog button", "Empty emptied/archive")
    browser.sees("Emptied emptied/archive.")
    assert site.nsqd.channel_stats("emptied", "archive")["depth"] == 0


def test_a_channel_and_its_topic_are_deleted(site, browser):
    filled(site, "deleted", "one")
    browser.open(site.url("/topics/deleted/archive"))
    browser.click("#actions a", "Delete")
    browser.click("dialog button", "Delete deleted/archive")
    browser.sees("Deleted deleted/archive.")
    browser.sees("No channels.")
    browser.click("#actions a", "Delete")
    browser.click("dialog button", "Delete deleted")
    browser.sees("Deleted deleted.")
    assert browser.path == "/topics"
    assert "deleted" not in site.nsqlookupd.get("/topics")["topics"]


def test_a_node_is_tombstoned_for_a_topic(site, browser):
    filled(site, "tombstoned", "one", "two")
    browser.open(site.url("/topics/tombstoned"))
    browser.click("#nodes a", "Tombstone")
    browser.sees("2 messages", "dialog")
    browser.click("dialog button", "Tombstone")
    browser.sees(f"Tombstoned {site.nsqd.http_address} for tombstoned.")
    browser.sees("Only nsqlookupd knows this topic")
    browser.open(site.url("/lookup"))
    browser.sees("tombstoned")


def test_a_standby_adopts_the_topics_of_a_node_that_is_lost_with_its_disk(browser, start, tmp_path):
    for name in ("primary", "standby"):
        (tmp_path / name).mkdir()
    with ExitStack() as stack:
        lookupd = stack.enter_context(NsqlookupdProcess(installed_nsqlookupd()))
        known = ["--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={lookupd.tcp_address}"]
        on_order = [*known, "--node-id=2", "--mirror-accept", "--mirror-takeover-after=manual"]
        standby = stack.enter_context(NsqdProcess(installed_nsqd(), tmp_path / "standby", options=on_order))
        options = [*known, "--node-id=3", f"--mirror-to={standby.tcp_address}"]
        primary = stack.enter_context(NsqdProcess(installed_nsqd(), tmp_path / "primary", options=options))
        primary.create_channel("mirrored", "archive")
        publish(primary, "mirrored", "one", "two")
        nsqadmin = start(f"--lookupd-http-address={lookupd.http_address}", "--sample-interval=1s")
        lost, address = primary.http_address, primary.tcp_address
        own = Site(primary, lookupd, nsqadmin)
        browser.open(own.url("/nodes"))
        until(lambda: "in sync" in browser.text_of(f"tr:has(a[href='/nodes/{lost}'])"), "a standby in sync")
        killed_at = int(time.time())
        primary.kill()
        shutil.rmtree(tmp_path / "primary")
        copy = until(lambda: next(filter(_is_lost, standby.asks("GET", "/mirror").json()["primaries"]), None), "a loss")
        assert copy["last_seen"] >= killed_at, "a connection without new messages is seen, too"
        browser.open(own.url("/"))
        browser.sees(f"{standby.http_address} has a copy of {address}, which is not connected")
        browser.click("#alerts a", "Adopt…")
        browser.sees(f"Adopt the topics of {address}?", "dialog")
        browser.click("dialog button", f"Adopt {address}")
        browser.sees(f"{standby.http_address} has taken over 1 topic.")
        browser.sees("took over 1 topic", "#mirroring")
        assert standby.channel_stats("mirrored", "archive")["depth"] == 2
        browser.open(own.url("/"))
        browser.sees_no_more("has a copy of", "#alerts")


def _is_lost(primary: dict[str, Any]) -> bool:
    return not primary["connected"]


def test_a_topic_known_only_to_nsqlookupd_is_created_on_nodes_or_deleted(site, browser):
    for topic in ("idle.kept", "idle.gone"):
        site.nsqadmin.send("/api/topics", f'{{"topic":"{topic}","channel":"c"}}')
    browser.open(site.url("/topics"))
    browser.click("main a", "idle.gone")
    browser.sees("Only nsqlookupd knows this topic")
    browser.click("main a", "Delete…")
    browser.sees("no messages are lost", "dialog")
    browser.click("dialog button", "Delete idle.gone")
    browser.sees("Deleted idle.gone.")
    assert "idle.gone" not in site.nsqlookupd.get("/topics")["topics"]
    browser.open(site.url("/topics/idle.kept/c"))
    browser.sees("Only nsqlookupd knows the topic idle.kept.")
    browser.open(site.url("/lookup"))
    browser.click("li:has(a[href='/topics/idle.kept']) a", "Create on nodes…")
    browser.click("main button", "Create")
    browser.sees(f"Created idle.kept on {site.nsqd.http_address}.")
    # nsqd asks nsqlookupd for the channels of a new topic.
    browser.sees("c", "#channels tbody")


def test_a_topic_is_created_and_a_message_published_and_seen(site, browser):
    browser.open(site.url("/topics"))
    browser.click("main a", "Create a topic…")
    browser.find("input[name=topic]").type("not valid")
    browser.click("main button", "Create")
    browser.sees("“not valid” is not a valid name of a topic.")
    browser.sees("letters (A to Z, a to z), digits, dots, dashes and underscores")
    browser.run("document.querySelector('input[name=topic]').value = ''")
    browser.find("input[name=topic]").type("made")
    browser.click("main button", "Create")
    browser.sees(f"Created made on {site.nsqd.http_address}.")
    browser.find("textarea").type("Grüße")
    browser.click("#publish button", "Publish")
    browser.sees(f"Published a message to made on {site.nsqd.http_address}.")
    browser.click("#channels a", "Create a channel…")
    browser.sees("Create a channel of made", "h1")
    browser.find("input[name=channel]").type("archive")
    browser.click("main button", "Create")
    browser.sees(f"Created made/archive on {site.nsqd.http_address}.")
    assert browser.path == "/topics/made/archive"
    browser.click("#actions a", "Messages")
    browser.sees("Grüße", "pre")
    assert site.nsqd.channel_stats("made", "archive")["depth"] == 1


def test_the_chart_is_updated_on_an_open_page(site, browser):
    filled(site, "charted", "one")
    browser.open(site.url("/topics/charted/archive"))
    browser.find("#charts polyline")
    before = browser.run("return document.querySelector('#charts polyline').getAttribute('points')")
    publish(site.nsqd, "charted", *("more" for _ in range(20)))
    until(
        lambda: browser.run("return document.querySelector('#charts polyline').getAttribute('points')") != before,
        "a chart that moves",
    )
    browser.sees("21", "#figures")


def test_a_plot_shows_its_values_to_the_pointer_and_to_the_keyboard(site, browser):
    filled(site, "plotted", *("message" for _ in range(37)))
    browser.open(site.url("/topics/plotted"))
    until(
        lambda: browser.run("return document.querySelectorAll('#charts .chart:first-of-type .reading').length") > 1,
        "samples",
    )
    browser.run("document.querySelector('#charts .chart').focus()")
    browser.sees("37, ", "#charts output")
    before = browser.text_of("#charts output")
    browser.find("#charts .chart").type(ARROW_LEFT)
    until(lambda: browser.text_of("#charts output") not in (before, ""), "an earlier value")
    chosen = browser.run("return document.querySelector('#charts .chart').getAttribute('aria-valuetext')")
    assert chosen.endswith(" ago")
    # A page that is refreshed keeps the focus.
    publish(site.nsqd, "plotted", "one more")
    browser.sees("38", "#figures")
    assert browser.run("return document.activeElement.matches('#charts .chart')")
    browser.run("document.activeElement.blur()")
    assert browser.text_of("#charts output") == ""
    browser.find("#charts .chart").hover()
    browser.sees(" ago", "#charts output")


def test_the_time_of_a_rewind_is_picked_on_a_plot_with_the_pointer_and_with_the_keyboard(site, browser):
    filled(site, "picked", "one")
    browser.open(site.url("/topics/picked/archive"))
    browser.click("#actions a", "Rewind…")

    def times() -> list[str]:
        script = "return [...document.querySelectorAll('#charts figure:first-child .reading')].map(e => e.dataset.at)"
        return list(browser.run(script))

    until(lambda: len(times()) > 2 and times()[0] < times()[-2], "samples of different times")
    browser.sees("click the time in a plot")
    browser.click("#live")  # the plot must not move while it is used

    def picked() -> str:
        return str(browser.run("return document.querySelector('input[name=to]').value"))

    browser.run("document.querySelector('#charts .chart').focus()")
    browser.find("#charts .chart").type(ARROW_LEFT)
    assert picked() == ""
    browser.find("#charts .chart").type(ENTER)
    assert picked() == times()[-2]
    browser.sees(f"{picked()} chosen", "#charts output")
    browser.find("#charts .reading rect").click()
    first = picked()
    assert first == times()[0]
    browser.click("button", "Show what would come")
    browser.sees(f"Move archive to {first}?", "#confirm")


def test_a_channel_is_rewound_and_the_log_read_without_scripts(site, browser):
    filled(site, "again", *(f"message {number}" for number in range(12)))
    assert site.nsqd.asks("POST", "/channel/empty?topic=again&channel=archive").status == 200
    browser.scripts(on=False)
    browser.open(site.url("/topics/again"))
    browser.sees("12\t0\t12", "#retained", reloading=True)
    browser.click("#retained a", "Read the log")
    browser.sees("message 11")
    browser.click("a[rel=prev]")
    browser.sees("message 0")
    browser.open(site.url("/topics/again/archive"))
    browser.click("#actions a", "Rewind…")
    browser.find("input[name=to]").type("4")
    browser.click("button", "Show what would come")
    browser.sees("8 messages will be delivered from there, on 1 node. Now 0 wait.", "#confirm", reloading=True)
    assert site.nsqd.channel_stats("again", "archive")["depth"] == 0
    browser.click("#confirm button", "Rewind")
    browser.sees("Moved archive to the offset 4")
    assert site.nsqd.channel_stats("again", "archive")["depth"] == 8
    browser.open(site.url("/create?topic=again"))
    browser.find("input[name=channel]").type("replay")
    browser.find("input[name=from]").type("1h")
    browser.click("button", "Create")
    browser.find(".notice.done", "Created again/replay")
    assert site.nsqd.channel_stats("again", "replay")["depth"] == 12


def test_new_messages_appear_on_the_watch_page(site, browser):
    filled(site, "tailed", "before")
    browser.open(site.url("/topics/tailed"))
    browser.click("#actions a", "Watch")
    browser.sees("before", "#looks")
    publish(site.nsqd, "tailed", "while one looks")
    browser.sees("while one looks", "#looks li:first-child")


def test_ephemeral_and_deferred_messages_appear_on_the_watch_page(site, browser):
    topic = "tailed%23ephemeral"
    filled(site, "tailed#ephemeral")
    browser.open(site.url(f"/messages/{topic}"))
    browser.sees("No messages yet", "#looks")
    assert site.nsqd.asks("POST", f"/pub?topic={topic}", b"at once").status == 200
    assert site.nsqd.asks("POST", f"/pub?topic={topic}&defer=90000", b"tomorrow").status == 200
    browser.sees("tomorrow", "#looks li:first-child")
    browser.sees("deferred, due in 1m", "#looks li:first-child")
    browser.sees("at once", "#looks li + li")
    browser.open(site.url(f"/topics/{topic}/archive/messages"))
    browser.sees("Deferred", "#looks h3 + ol + h3")
    assert site.nsqd.channel_stats("tailed#ephemeral", "archive")["deferred_count"] == 1


def test_refreshing_can_be_paused(site, browser):
    filled(site, "paused.page", "one")
    browser.open(site.url("/topics/paused.page/archive"))
    browser.sees("\n1\n", "#figures")
    browser.click("#live", "Live")
    browser.sees("Paused", ".tools")
    # Switching refreshes on again fetches the page at once.
    publish(site.nsqd, "paused.page", "two")
    assert "\n1\n" in browser.text_of("#figures")
    browser.click("#live", "Paused")
    browser.sees("\n2\n", "#figures")


def test_everything_works_without_scripts(site, browser):
    filled(site, "plain", "one", "two", "three")
    browser.scripts(on=False)
    browser.open(site.url("/topics/plain/archive"))
    browser.click("#actions button", "Pause")
    browser.find(".notice.done", "Paused plain/archive.")
    browser.click("#actions a", "Empty")
    browser.find("#confirm", "3 messages on 1 node")
    browser.click("#confirm button", "Empty plain/archive")
    browser.find(".notice.done", "Emptied plain/archive.")
    assert site.nsqd.channel_stats("plain", "archive")["depth"] == 0


def test_dark_mode_is_dark(site, browser):
    brightness = {}
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        browser.open(site.url("/"))
        colour = browser.run("return getComputedStyle(document.body).backgroundColor")
        brightness[scheme] = sum(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(","))
    assert brightness["dark"] < 150 < 600 < brightness["light"]


PAGES = (
    *("/", "/topics", "/topics/everywhere", "/topics/everywhere/archive", "/topics/everywhere/archive/messages"),
    *("/messages/everywhere", "/log/everywhere", "/topics/everywhere/archive/rewind"),
    *("/nodes", "/counter", "/lookup", "/topics/everywhere?confirm=delete", "/create", "/create?topic=everywhere"),
    *("/topics/everywhere?form=publish", "/docs/nsqadmin", "/docs/flags"),
)


WIDE_ELEMENTS = """
return [...document.body.querySelectorAll("*")]
    .filter(each => each.getBoundingClientRect().right > innerWidth)
    .map(each => each.outerHTML.slice(0, 300))
"""


@pytest.mark.parametrize("path", PAGES)
def test_pages_fit_on_a_phone_without_console_errors(site, browser, path):
    filled(site, "everywhere", '{"a": 1}', "x" * 500)
    for width in (360, 1280):
        browser.resize(width, 800)
        browser.open(site.url(path))
        if browser.run("return document.scrollingElement.scrollWidth") > width:
            wide = browser.run(WIDE_ELEMENTS)
            pytest.fail(f"at a width of {browser.run('return innerWidth')}: {wide}, {browser.complaints()}")
    assert browser.complaints() == []


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_accessible_by_keyboard_and_screen_reader(site, browser, path):
    filled(site, "everywhere", '{"a": 1}')
    browser.open(site.url(path))
    assert browser.run("return document.querySelectorAll('h1').length") == 1
    # Every control has a name, and is reachable with the tab key.
    nameless = browser.run("""
        return [...document.querySelectorAll('a, button, input:not([type=hidden]), select, textarea, summary')]
            .filter(each => !(each.textContent.trim() || each.getAttribute('aria-label') || each.labels?.length))
            .map(each => each.outerHTML)""")
    assert nameless == []
    assert browser.run("return document.querySelectorAll('[tabindex]:not([tabindex=\"0\"], main)').length") == 0
    assert browser.run("return document.querySelector('a').getAttribute('href')") == "#main"


@pytest.fixture
def liar() -> Iterator[Daemon]:
    """An nsqd that sends HTML in all strings."""
    trap = '"><img src=x onerror="window.hit=1">{{7*7}}'
    client = dict.fromkeys(("hostname", "client_id", "remote_address", "user_agent", "tls_version"), trap)
    channel = {"channel_name": trap, "depth": 5, "paused": True, "client_count": 1, "clients": [client]}
    topic = {"topic_name": trap, "channels": [channel], "depth": 5, "paused": True}
    message = {"id": trap, "timestamp": 1, "attempts": 1, "size": 9, "body": base64.b64encode(trap.encode()).decode()}
    with Daemon() as daemon:
        counts = itertools.count()

        def stats(handler: BaseHTTPRequestHandler) -> None:
            channel["message_count"] = next(counts)  # the counter lists channels with a rate
            reply({"health": trap, "start_time": 1, "topics": [topic]})(handler)

        daemon.does("stats", stats)
        daemon.says("info", daemon.info(tcp_port=1) | {"hostname": trap, "version": trap})
        daemon.says("channel/peek", {"messages": [message], "in_flight": [message]})
        state = {"channel_name": trap, "state": trap, "client": client}
        daemon.says(
            "topic/message", {"message": {**message, "headers": {"nsq-origin-topic": trap}}, "channels": [state]}
        )
        daemon.says("topic/recent", {"messages": [message]}).says("topic/pause", trap.encode(), 500)
        yield daemon


def test_text_of_a_hostile_nsqd_is_not_executed(liar, browser, start: StartNsqadmin):
    nsqadmin = start(f"--nsqd-http-address={liar.address}", "--sample-interval=1s")
    name = quote('"><img src=x onerror="window.hit=1">{{7*7}}', safe="")
    topic = f"/topics/{name}"
    pages = ("/", "/topics", topic, f"{topic}/{name}", f"{topic}/{name}/messages", f"/messages/{name}", "/nodes")
    message = f"/message/{name}/{name}"
    for page in (*pages, f"/nodes/{liar.address}", "/counter", f"{topic}?confirm=delete", message):
        browser.open(f"http://{nsqadmin.http_address}{page}")
        browser.sees("onerror=")
        assert browser.run("return [window.hit, document.images.length]") == [None, 1], page
    # Parts replaced by the script are escaped too.
    browser.open(f"http://{nsqadmin.http_address}{topic}")
    browser.click("#actions a", "Delete")
    browser.sees("onerror=", "dialog")
    assert browser.run("return window.hit") is None
    assert browser.complaints() == []


def test_logging_in_and_a_refused_action(site, browser, start: StartNsqadmin, tmp_path: Path):
    users = tmp_path / "users"
    users.write_text(f"{make_line('vic', 'viewer', 'secret')}\n{make_line('ada', 'admin', 'secret')}\n")
    filled(site, "guarded", "one")
    nsqadmin = start(f"--lookupd-http-address={site.nsqlookupd.http_address}", f"--user-file={users}")
    browser.open(f"http://{nsqadmin.http_address}/topics/guarded/archive")
    browser.sees("Log in", "h1")
    browser.find("input[name=name]").type("vic")
    browser.find("input[name=password]").type("wrong\n")
    browser.sees("Wrong user name or password")
    browser.find("input[name=password]").type("secret\n")
    browser.sees("archive", "h1")
    browser.sees("Your role (viewer) does not allow the disabled actions.", "#actions")
    assert browser.run("return document.querySelectorAll('#actions :is(a, button:enabled)').length") == 0
    refused = browser.run("return fetch('/api/topics/guarded', {method: 'DELETE'}).then(answer => answer.status)")
    assert refused == 403
    browser.open(f"http://{nsqadmin.http_address}/topics/guarded?confirm=delete")
    browser.sees("Your role (viewer) does not allow this. It needs the role admin.")
    browser.click(".tools button", "Log out")
    browser.sees("Log in", "h1")
    assert site.nsqd.channel_stats("guarded", "archive")["depth"] == 1


@pytest.fixture
def restarted(site: Site, start: StartNsqadmin) -> NsqadminProcess:
    """An nsqadmin of its own, on a host where its port stays free."""
    options = f"--lookupd-http-address={site.nsqlookupd.http_address}", "--sample-interval=1s"
    return start(*options, f"--http-address={own_host()}:0")


def test_a_page_says_that_nsqadmin_is_gone_and_continues_when_it_is_back(site, browser, restarted):
    filled(site, "outlasting", "one")
    browser.open(f"http://{restarted.http_address}/topics/outlasting?form=publish")
    browser.sees("archive", "#channels")
    restarted.stop()
    browser.sees("nsqadmin does not answer.", "#gone:not([hidden])")
    assert browser.run("return parseFloat(getComputedStyle(document.querySelector('#gone strong')).fontSize)") > 24
    browser.click("#channels a", "archive")
    assert browser.path == "/topics/outlasting", "the link would lead to an error page of the browser"
    restarted.start()
    browser.sees_no_more("nsqadmin does not answer.", "#gone:not([hidden])")
    publish(site.nsqd, "outlasting", "two", "three")
    browser.sees("\n3\n", "#figures")
    # The new nsqadmin accepts a form of the page that the old one made.
    browser.find("textarea").type("four")
    browser.click("#publish button", "Publish")
    browser.sees("Published a message to outlasting")


def test_a_page_that_is_not_refreshed_says_that_nsqadmin_is_gone_too(browser, restarted):
    browser.open(f"http://{restarted.http_address}/create")
    browser.find("input[name=topic]").type("typed")
    restarted.stop()
    browser.sees("nsqadmin does not answer.", "#gone:not([hidden])")
    restarted.start()
    browser.sees_no_more("nsqadmin does not answer.", "#gone:not([hidden])")
    assert browser.run("return document.querySelector('input[name=topic]').value") == "typed"
