"""What is retained, reading it, and rewinds: pages of topics and channels whose nodes keep messages by offset."""

import logging
from contextlib import suppress
from html import unescape
from urllib.parse import parse_qsl

import pytest

from nsq_compat.cluster.http_client import HttpClient
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
        places = {"oldest": self.first, "latest": self.next, "1h": 130, "2026-11-21T02:58:15Z": 130}
        offset = places.get(at, int(at) if at.isdigit() else None)
        if offset is None:
            reply(
                {"message": "INVALID_ARG_AT: oldest, latest, an offset, a time such as 2026-01-31T15:04:05Z, or 15m"},
                400,
            )(handler)
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


# --- Rewinds ----------------------------------------------------------------------------------------------------------

REWIND = "/topics/orders/archive/rewind"


@pytest.fixture
def two(service, nsqd, make_nsqd):
    """Two nodes with logs."""
    other = make_nsqd()
    service.cluster.nsqds = [nsqd.address, other.address]
    Log(nsqd, channel_depth=7, depth=37)
    Log(other, channel_depth=1, depth=20)
    for each, depth in ((nsqd, 37), (other, 20)):
        each.says("channel/rewind", {"offset": 130, "next": 160, "depth": depth})
    return nsqd, other


def test_a_rewind_shows_what_it_will_bring_on_each_node_and_moves_nothing(browser, two):
    nsqd, other = two
    assert f'href="{REWIND}"' in browser.get("/topics/orders/archive").text
    page = browser.get(f"{REWIND}?to=1h")
    text = shown(page)
    assert "57 messages will be delivered from there, on 2 nodes. Now 8 wait." in text
    assert f"{nsqd.address} 130 7 37" in text
    assert f"{other.address} 130 1 20" in text
    assert 'name="to" value="2026-11-21T02:58:15Z"' in page.text, "an hour before now, which stays"
    assert "stays, and is delivered as without the rewind" in text
    assert not nsqd.orders
    assert not other.orders
    assert "at=2026-11-21T02%3A58%3A15Z&channel=archive" in nsqd.heard[-1]
    dropping = shown(browser.get(f"{REWIND}?to=1h&drop_pending=1&node={other.address}"))
    assert "dropped first" in dropping
    assert "20 messages will be delivered from there, on 1 node." in dropping
    assert "drop_pending=true" in other.heard[-1]


def test_a_rewind_that_passes_over_waiting_messages_says_so(browser, nsqd):
    Log(nsqd, channel_depth=9, depth=2)
    assert "7 messages that wait will not be delivered." in shown(browser.get(f"{REWIND}?to=latest"))


def test_a_confirmed_rewind_says_what_each_node_did_and_is_audited(submit, service, two, caplog):
    nsqd, other = two
    fields = {"to": "2026-11-21T02:58:15Z", "node": [nsqd.address, other.address], "drop_pending": "1"}
    with caplog.at_level(logging.INFO):
        page = shown(submit(REWIND, **fields))
    assert "Moved archive to 2026-11-21T02:58:15Z" in page
    assert f"{nsqd.address} moved 130 37" in page
    assert f"{other.address} moved 130 20" in page
    order = "channel/rewind?topic=orders&channel=archive&to=2026-11-21T02%3A58%3A15Z&drop_pending=true"
    assert nsqd.orders == other.orders == [order]
    (line,) = [line for line in caplog.messages if line.startswith("AUDIT")]
    assert "rewind_channel to=2026-11-21T02:58:15Z drop_pending=true orders/archive: done" in line
    (told,) = service.notified
    assert {"action": "rewind_channel", "topic": "orders", "channel": "archive"}.items() <= told.items()
    assert (told["to"], told["drop_pending"]) == ("2026-11-21T02:58:15Z", "true")


def test_a_rewind_that_fails_on_one_node_says_so(submit, two, caplog):
    nsqd, other = two
    other.says("channel/rewind", {"message": "OFFSET_GONE: the first offset is 140"}, 410)
    with caplog.at_level(logging.INFO):
        page = shown(submit(REWIND, to="oldest", node=[nsqd.address, other.address]))
    assert "Moved archive to the oldest message that is retained on 1 of 2 nodes only" in page
    assert f"Not moved on {other.address}." in page
    assert "the message with this offset was released; the first offset is 140" in page
    (line,) = [line for line in caplog.messages if line.startswith("AUDIT")]
    assert f"failed at 1: {other.address}" in line


def test_a_node_that_hangs_may_move_the_channel_later(submit, service, log, nsqd, hanging):
    nsqd.says("channel/rewind", {"offset": 130, "next": 160, "depth": 37})
    service.cluster.client = HttpClient(request_timeout=3)
    page = shown(submit(REWIND, to="oldest", node=[nsqd.address, hanging.address]))
    assert f"Not moved on {hanging.address}. A node that did not answer in time may still do it" in page
    assert f"{nsqd.address} moved 130 37" in page


def test_a_place_that_no_node_has_is_refused_in_the_form(browser, two):
    nsqd, _ = two
    page = shown(browser.get(f"{REWIND}?to=5&node={nsqd.address}"))
    assert f"{nsqd.address}: the message with this offset was released; the first offset is 100" in page
    assert "Show what would come…" in page
    assert "An offset is the number of a message on one node." in shown(browser.get(f"{REWIND}?to=130"))
    assert "a time such as" in shown(browser.get(f"{REWIND}?to=yesterday"))
    browser.get(f"{REWIND}?to=0&node={nsqd.address}")
    assert "at=0&" in nsqd.heard[-1], "an offset, not a time 0 seconds ago"
    assert browser.get("/topics/orders/nope/rewind").status_code == 404


def test_a_node_without_a_log_is_left_out_of_a_rewind(browser, service, nsqd, make_nsqd, log):
    gos = make_nsqd()
    service.cluster.nsqds = [nsqd.address, gos.address]
    gos.has(topic_json("orders", channel_json("archive")))
    page = shown(browser.get(REWIND))
    assert f"Not among the nodes that can do this: {gos.address}." in page
    service.cluster.nsqds = [gos.address]
    assert "No node of this channel can do this" in shown(browser.get(REWIND))


def test_viewers_and_other_sites_cannot_rewind(behind_login, two):
    nsqd, _ = two
    assert behind_login.get(REWIND, auth=("vic", "vic-pw")).status_code == 403
    for user in ("vic", "olga"):
        data = {"to": "oldest", "node": nsqd.address, "csrf": "guessed"}
        assert behind_login.post(REWIND, data=data, auth=(user, f"{user}-pw")).status_code == 403
    assert not nsqd.orders


# --- A channel that begins at a place ---------------------------------------------------------------------------------


def test_a_channel_is_created_at_a_time(browser, submit, service, nsqd, log, lookupd):
    form = browser.get("/create?topic=orders").text
    assert 'name="from"' in form
    assert 'name="from"' not in browser.get("/create").text
    assert submit("/topics", topic="orders", channel="replay", on="holders", **{"from": "1h"}).status_code == 303
    assert "channel/create?topic=orders&channel=replay&from=2026-11-21T02%3A58%3A15Z" in nsqd.orders
    assert "channel/create?topic=orders&channel=replay" in lookupd.orders
    assert service.notified[-1]["from"] == "2026-11-21T02:58:15Z"


def test_a_node_that_would_create_a_channel_at_the_end_is_not_asked_to(submit, nsqd, lookupd):
    answer = submit("/topics", topic="orders", channel="replay", on="holders", **{"from": "1h"})
    assert answer.status_code == 502
    assert f"{nsqd.address}: it cannot do this: only the nsqd of nsq_compat" in shown(answer)
    assert not [order for order in (*nsqd.orders, *lookupd.orders) if order.startswith("channel/create")]


def test_an_existing_channel_is_rewound_and_not_created(submit, nsqd, log, lookupd):
    message = "INVALID_ARG_FROM: the channel exists; /channel/rewind moves it"
    nsqd.says("channel/create", {"message": message}, 400)
    answer = submit("/topics", topic="orders", channel="archive", on="holders", **{"from": "oldest"})
    assert f"{nsqd.address}: the channel exists" in shown(answer)
