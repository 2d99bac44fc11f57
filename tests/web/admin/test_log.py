"""What is retained, reading it, and rewinds: pages of topics and channels whose nodes keep messages by offset."""

from contextlib import suppress
from html import unescape
from urllib.parse import parse_qsl

import pytest

from nsq_compat.protocol.message import make_frame
from tests.cluster.daemon import reply
from tests.web.admin.conftest import NOW, channel_json, shown, topic_json

OURS = {"health": "OK", "nsq_compat": {"version": "0.1.0"}}


class Log:
    """The log of the topic orders on a node: its answers, as nsqd gives them."""

    def __init__(self, nsqd, first=100, end=160, **fields):
        self.first, self.next, self.lost = first, end, range(0)
        times = {"first_timestamp": int((NOW - 7200) * 1e9), "last_timestamp": int((NOW - 60) * 1e9)}
        self.fields = {"bytes": 4096, **times, **fields}
        topics = [topic_json("orders", channel_json("archive", depth=7))]
        nsqd.says("stats", {**OURS, "topics": topics})
        nsqd.does("topic/offsets", self.offsets).does("topic/read", self.read)

    def offsets(self, handler):
        query = query_of(handler)
        at = query.get("at", "oldest")
        offset = {"oldest": self.first, "latest": self.next, "1h": 130}.get(at, int(at) if at.isdigit() else None)
        if offset is None:
            reply({"message": "INVALID_ARG_AT: oldest, latest, an offset or 15m"}, 400)(handler)
        elif offset < self.first:
            reply({"message": f"OFFSET_GONE: the first offset is {self.first}"}, 410)(handler)
        else:
            answer = {"first": self.first, "next": self.next, **self.fields}
            reply(answer | ({"offset": offset} if "at" in query else {}))(handler)

    def read(self, handler):
        query = query_of(handler)
        begin, end = int(query["from"]), int(query["to"])
        first = begin
        while first in self.lost and first < end:
            first += 1
        frames = [
            make_frame(b"%016x" % number, int((NOW - 9) * 1e9), b'{"number": %d}' % number)
            for number in range(first, end)
        ]
        body = b"".join(frames)
        handler.send_response(200)
        handler.send_header("X-NSQ-First-Offset", str(first))
        handler.send_header("X-NSQ-Next-Offset", str(max(first, end)))
        if first > begin:
            handler.send_header("X-NSQ-Gap", f"{begin}-{first - 1}")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


def query_of(handler):
    return dict(parse_qsl(handler.path.partition("?")[2]))


@pytest.fixture
def log(nsqd):
    return Log(nsqd)


# --- What is retained -------------------------------------------------------------------------------------------------


def test_a_topic_shows_what_each_node_retains_and_why(browser, service, nsqd, make_nsqd):
    other = make_nsqd()
    service.cluster.nsqds = [nsqd.address, other.address]
    Log(nsqd, retain_for="72h0m0s", retain_bytes=50_000_000_000)
    Log(other, first=0, end=40)
    page = shown(browser.get("/topics/orders"))
    assert f"{nsqd.address} 60 100 160" in page
    assert "2h ago" in page
    assert "retain_for 72h0m0s, retain_bytes 50,000,000,000" in page
    assert f"{other.address} 40 0 40" in page
    assert "none: kept until finished" in page
    assert "Total 100" in page
    assert "8.0 KiB" in page


def test_nodes_that_know_no_offsets_are_not_asked_or_not_shown(browser, service, nsqd, make_nsqd):
    assert "Retained" not in browser.get("/topics/orders").text
    assert not [request for request in nsqd.heard if "offsets" in request], "Go's nsqd"
    older = make_nsqd()
    service.cluster.nsqds = [nsqd.address, older.address]
    older.says("stats", {**OURS, "topics": [topic_json("orders")]})
    page = browser.get("/topics/orders")
    assert page.status_code == 200
    assert "Retained" not in page.text
    assert "did not answer" not in page.text


def test_a_node_that_hangs_leaves_time_for_what_others_retain(browser, log, hanging):
    page = shown(browser.get("/topics/orders"))
    assert "Retained" in page
    assert f"{hanging.address} no answer" in page


# --- Reading ----------------------------------------------------------------------------------------------------------


def test_the_log_is_read_by_offset_and_by_time_page_by_page(browser, nsqd, log):
    latest = browser.get("/log/orders")
    assert f"{nsqd.address} retains 60 messages , the offsets 100 to 159" in shown(latest)
    assert [f"offset {number} " in shown(latest) for number in (149, 150, 159)] == [False, True, True]
    assert 'rel="next"' not in latest.text
    before = browser.get(link(latest, "prev"))
    assert [f"offset {number} " in shown(before) for number in (139, 140, 149, 150)] == [False, True, True, False]
    assert "at=150" in link(before, "next")
    hour = shown(browser.get("/log/orders?at=1h&limit=25"))
    assert [f"offset {number} " in hour for number in (129, 130, 154, 155)] == [False, True, True, False]
    oldest = browser.get("/log/orders?at=oldest")
    assert "offset 100 " in shown(oldest)
    assert 'rel="prev"' not in oldest.text
    assert "No message was published since then." in shown(browser.get("/log/orders?at=160"))


def test_released_and_lost_messages_are_named(browser, nsqd, log):
    page = shown(browser.get("/log/orders?at=5"))
    assert f"{nsqd.address}: the message with this offset was released; the first offset is 100." in page
    log.lost = range(110, 115)
    page = shown(browser.get("/log/orders?at=110"))
    assert "The messages with the offsets 110 to 114 are missing here" in page
    assert "offset 115 " in page
    log.lost = range(110, 200)
    page = browser.get("/log/orders?at=110")
    assert "offsets 110 to 119 are missing" in shown(page)
    assert "at=120" in link(page, "next")


def test_bodies_are_shown_and_filtered_as_on_other_pages(browser, log):
    page = browser.get("/log/orders?at=oldest").text
    assert "&#34;number&#34;: 100\n}" in page
    assert "7b 22 6e" in browser.get("/log/orders?at=oldest&form=hex").text
    found = shown(browser.get("/log/orders?at=oldest&find=105"))
    assert "offset 105 " in found
    assert "offset 104 " not in found
    assert "None of these messages contains “absent”." in shown(browser.get("/log/orders?find=absent"))


def test_a_large_message_is_cut_off(browser, nsqd, log):
    large = make_frame(b"0123456789abcdef", 1, b"x" * 10_000_000)

    def send(handler):
        handler.send_response(200)
        for name, value in (("X-NSQ-First-Offset", 100), ("X-NSQ-Next-Offset", 101), ("Content-Length", len(large))):
            handler.send_header(name, str(value))
        handler.end_headers()
        with suppress(OSError):  # the reader has enough
            handler.wfile.write(large)

    nsqd.does("topic/read", send)
    page = shown(browser.get("/log/orders?at=100"))
    assert "9.5 MiB" in page
    assert "Only the first 16.0 KiB are shown." in page


def test_a_node_that_does_not_show_messages_is_named_with_the_reason(browser, nsqd, log):
    nsqd.says("topic/read", {"message": "NOT_FOUND"}, 404)
    page = shown(browser.get("/log/orders"))
    assert f"{nsqd.address}: it does not show messages over HTTP, because it authorizes clients" in page
    assert "has no log of this topic" in shown(browser.get("/log/orders?node=127.0.0.1:1"))


def test_a_cluster_without_logs_says_so(browser, hanging):
    assert "only the nsqd of nsq_compat does" in shown(browser.get("/log/orders"))
    assert f"No answer: {hanging.address}" in shown(browser.get("/log/elsewhere"))
    assert browser.get("/log/nope").status_code in (200, 404)


def test_viewers_cannot_read_the_log(behind_login, log):
    assert behind_login.get("/log/orders", auth=("vic", "vic-pw")).status_code == 403
    assert behind_login.get("/log/orders", auth=("olga", "olga-pw")).status_code == 200


def link(page, rel):
    return unescape(page.text.partition(f'rel="{rel}" href="')[2].partition('"')[0])
