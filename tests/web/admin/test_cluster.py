"""The overview, the counter and the lookup page; invalid registrations on all pages."""

import html
import logging
import math
import re
from base64 import b64encode
from pathlib import Path

import pytest

import nsq_compat
from nsq_compat.cluster.cluster import take_snapshot
from nsq_compat.web.admin.operations import collect
from tests.web.admin.conftest import NOW, channel_json, shown, topic_json


def test_the_overview_shows_alerts_with_links(browser):
    page = browser.get("/")
    assert "orders / archive 12,304 messages and no consumer" in shown(page)
    assert 'href="/topics/orders/archive"' in page.text


def test_what_an_alert_offers_is_done_by_its_link(browser, submit, nsqd):
    paused = channel_json("held", paused=True, depth=1)
    nsqd.has(topic_json("orders", paused), topic_json("loose", depth=2), topic_json("held", paused=True))
    page = browser.get("/").text
    assert 'href="/create?topic=loose">Create a channel…' in page
    for path in ("/topics/orders/held", "/topics/held"):
        form = page.partition(f'<form method="post" action="{path}"')[2].partition("</form>")[0]
        assert 'value="unpause"' in form
        assert ">Unpause</button>" in form
        assert submit(path, action="unpause", next="overview").headers["Location"] == "/"
    assert nsqd.orders == ["channel/unpause?topic=orders&channel=held", "topic/unpause?topic=held"]


def test_the_link_of_an_alert_says_what_it_shows(behind_login, service, nsqd):
    nsqd.says("stats", {"health": "NOK - disk full", "topics": [topic_json("orders", channel_json("c", depth=1))]})
    page = shown(behind_login.get("/", auth=("vic", "vic-pw")))
    assert "NOK - disk full Show node" in page
    assert "1 message and no consumer Show channel" in page


def test_a_warning_names_the_daemon(browser, service, nsqd, make_nsqd):
    broken = make_nsqd()
    broken.says("stats", b"oops", 500)
    service.cluster.nsqds = [nsqd.address, broken.address]
    for path in ("/", "/topics/orders", "/topics/orders/mail", "/counter"):
        assert f"{broken.address}: got response 500 Internal Server Error &#34;oops&#34;" in browser.get(path).text, (
            path
        )
    assert "WARNING: got response 500" in browser.get("/api/topics/orders").get_json(force=True)["message"]


def test_the_overview_says_if_there_are_no_problems(browser, nsqd):
    nsqd.has(topic_json("t"))
    assert "All nodes answer" in browser.get("/").text


def test_the_overview_shows_the_newest_snapshot_but_not_an_old_one(browser, service, nsqd):
    service.history.add(take_snapshot(service.cluster, NOW))
    nsqd.has()
    assert "orders" in browser.get("/").text
    service.time = NOW + 61
    assert "No topics yet" in browser.get("/").text


def test_rates_and_charts_come_from_samples(browser, service, nsqd):
    for second in range(0, 60, 10):
        nsqd.has(topic_json("t", message_count=100 * second, depth=second))
        service.history.add(take_snapshot(service.cluster, NOW + second))
    service.time = NOW + 55
    page = browser.get("/topics/t")
    assert '<polyline class="line"' in page.text
    assert "Rate /s 100" in shown(page)
    assert '<polyline class="line"' in browser.get("/topics/t?span=24h").text
    assert "Rate /s 100" in shown(browser.get("/"))
    assert '<polyline class="line"' in browser.get("/").text


def test_the_counter_adds_up_all_channels(browser):
    page = browser.get("/counter").text
    assert 'data-counter="20000"' in page
    assert "Busiest" not in page, "no channel has a rate yet"


def test_the_lookup_page_says_if_no_nsqlookupd_is_configured(browser):
    assert "No nsqlookupd is configured" in browser.get("/lookup").text
    assert "nsqlookupd forgets the topic" in browser.get("/lookup?confirm=delete&topic=t").text


def test_a_cluster_that_does_not_answer_is_not_called_healthy(browser, nsqd):
    nsqd.says("info", b"", 500)
    for path in ("/", "/topics"):
        page = browser.get(path)
        assert page.status_code == 200
        assert "failed to query any nsqd" in page.text
        assert "All nodes answer" not in page.text
        assert "No topics yet" not in page.text


def test_a_cluster_without_nsqlookupds_keeps_its_nodes_and_figures(browser, service, nsqd, lookupd):
    service.history.add(take_snapshot(service.cluster, NOW - 20))
    for path in ("nodes", "topics", "lookup", "ping"):
        lookupd.says(path, b"", 500)
    lookupd.does("ping", lambda handler: handler.connection.close())
    service.history.add(take_snapshot(service.cluster, NOW - 10))
    overview = shown(browser.get("/"))
    assert "Nodes 1 Topics 1" in overview
    assert "Waiting 12,311" in overview
    assert f"serious {lookupd.address} nsqlookupd does not answer, and no other does" in overview
    assert "No other problems" not in overview
    nodes = shown(browser.get("/nodes"))
    assert "nsqd nodes ( 1 )" in nodes
    assert f"{nsqd.address} host OK last known" in nodes
    assert "12,311" in nodes
    assert "0 of 1" in nodes
    assert f"{lookupd.address} no answer" in nodes
    for path in ("/topics/orders", "/topics/orders/archive", f"/nodes/{nsqd.address}", "/policies"):
        page = browser.get(path)
        assert page.status_code == 200, path
        assert nsqd.address in page.text
    assert "No nsqlookupd answers, so inactive topics are not known." in shown(browser.get("/lookup"))
    assert 'data-counter="20000"' in browser.get("/counter").text
    # As NSQ's nsqadmin.
    assert browser.get("/api/nodes").status_code == 502
    assert browser.get("/api/topics/orders").status_code == 502


@pytest.mark.parametrize("listed", [False, True], ids=["nsqlookupd", "fixed list"])
def test_a_cluster_of_which_nothing_answers_has_no_figures(browser, service, nsqd, lookupd, listed):
    if listed:
        service.cluster.lookupds = []
    service.history.add(take_snapshot(service.cluster, NOW - 10)) if listed else None
    for daemon in (nsqd, lookupd):
        for path in ("nodes", "topics", "stats", "info"):
            daemon.says(path, b"", 500)
        daemon.does("ping", lambda handler: handler.connection.close())
    service.history.add(take_snapshot(service.cluster, NOW))
    overview = shown(browser.get("/"))
    for name in ("Topics", "Channels", "Consumers", "Waiting", "In flight", "Rate /s"):
        assert f"{name} \u2013" in overview, name
    assert ("Nodes 1" if listed else "Nodes \u2013") in overview
    assert overview.count("Waiting \u2013") == 2, "the tile and the plot"
    assert 'data-counter=""' in browser.get("/counter").text
    text = shown(browser.get("/nodes"))
    assert "has registered with nsqlookupd" not in text
    assert ("nsqd nodes ( 1 )" if listed else "No nsqd is known, because no nsqlookupd answers.") in text
    samples = {each.name: each.samples[0].value for each in collect(service.history)}
    assert math.isnan(samples["nsqadmin_channel_depth"])
    assert samples["nsqadmin_errors"] == 1.0


@pytest.fixture
def invalid_registration(lookupd, nsqd):
    listed = {"producers": [nsqd.info(broadcast_address="a b", hostname="web3"), nsqd.info(topics=["orders"])]}
    lookupd.says("nodes", listed).says("lookup", listed)


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/topics", "/topics/orders", "/topics/orders/archive", "/nodes", "/counter", "/lookup"),
        *("/messages/orders", "/topics/orders/archive/messages", "/nodes/{}"),
    ],
)
@pytest.mark.usefixtures("invalid_registration")
def test_a_page_skips_an_invalid_registration_and_names_it(browser, nsqd, path):
    answer = browser.get(path.format(nsqd.address))
    assert answer.status_code == 200
    assert html.unescape(shown(answer)).count('nsqd (hostname "web3"): invalid broadcast address "a b"') == 1


@pytest.mark.parametrize(
    "path", ["/api/nodes", "/api/nodes/{}", "/api/counter", "/api/topics/orders", "/api/topics/orders/archive"]
)
@pytest.mark.usefixtures("invalid_registration")
def test_the_api_skips_an_invalid_registration_and_names_it(browser, nsqd, path):
    answer = browser.get(path.format(nsqd.address))
    assert answer.status_code == 200
    message = answer.get_json(force=True)["message"]
    assert message.startswith("WARNING: ")
    assert message.count('invalid broadcast address "a b"') == 1


@pytest.mark.parametrize("path", ["/api/topics/orders", "/api/topics/orders/archive"])
def test_a_topic_whose_only_registration_is_invalid_is_an_error_that_names_it(browser, nsqd, lookupd, path):
    lookupd.says("lookup", {"producers": [nsqd.info(broadcast_address="a b", hostname="web3")]})
    answer = browser.get(path)
    assert answer.status_code == 502
    assert 'nsqd (hostname "web3"): invalid broadcast address "a b"' in answer.get_json(force=True)["message"]


@pytest.mark.parametrize("path", ["/", "/topics/orders", "/topics/orders/archive", "/nodes", "/counter", "/api/nodes"])
def test_an_nsqd_of_the_fixed_list_is_shown_whatever_address_it_announces(browser, nsqd, path):
    nsqd.says("info", nsqd.info(broadcast_address="user:pw@host"))
    assert browser.get(path).status_code == 200


def test_the_nodes_are_listed_with_their_health(browser, nsqd):
    text = shown(browser.get("/nodes"))
    assert "nsqd nodes ( 1 )" in text
    assert f"{nsqd.address} host OK 12,311" in text
    assert "Go's nsqd" in text.replace("&#39;", "'")
    assert "No nsqd has “other”" in shown(browser.get("/nodes?q=other"))


@pytest.fixture
def machines(service, nsqd, lookupd, make_nsqd):
    """Two nodes of the machine 127.0.0.1 and one of localhost, with their addresses."""
    second, other = make_nsqd(), make_nsqd()
    clients = {"clients": [{"client_id": "c"}], "client_count": 1}
    nsqd.has(topic_json("orders", channel_json("mail", depth=20, **clients)))
    second.has(topic_json("orders", channel_json("mail", depth=1000, **clients)), topic_json("events"))
    other.has(topic_json("orders", channel_json("mail", depth=500, **clients)))
    listed = [nsqd.info(), second.info(), other.info(broadcast_address="localhost")]
    lookupd.says("nodes", {"producers": listed})
    return nsqd.address, second.address, f"localhost:{other.port}"


def order_of(browser, path, *parts):
    page = shown(browser.get(path))
    page = page[page.index("nsqd nodes") :]
    return sorted(parts, key=page.index)


def test_nodes_of_one_machine_are_grouped_under_their_sums(browser, machines):
    page = browser.get("/nodes")
    text = shown(page)
    assert "nsqd nodes ( 3 )" in text
    assert "127.0.0.1 2 nodes 1,020 \u2013 2 2 " in text, "waiting, rate, consumers, and topics without repetition"
    assert page.text.count('class="host"') == 1, "none for a machine with one node"
    assert page.text.count('class="of-host"') == 2


def test_sorting_and_searching_nodes_keeps_those_of_a_machine_together(browser, machines):
    first, second, other = *sorted(machines[:2]), machines[2]
    assert order_of(browser, "/nodes", *machines) == [first, second, other]
    small, large = machines[0], machines[1]
    assert order_of(browser, "/nodes?sort=waiting&desc=1", *machines) == [large, small, other]
    assert order_of(browser, "/nodes?sort=waiting", *machines) == [other, small, large]
    found = shown(browser.get(f"/nodes?q={small}"))
    assert large not in found
    assert "nsqd nodes ( 1 )" in found
    assert "127.0.0.1 2 nodes 1,020" in found, "the sums are those of the machine"


def test_sums_of_a_machine_say_how_many_of_its_nodes_are_in_them(browser, nsqd, lookupd, make_nsqd):
    broken = make_nsqd().says("stats", b"", 500)
    lookupd.says("nodes", {"producers": [nsqd.info(), broken.info()]})
    assert "127.0.0.1 2 nodes, 1 in the sums 12,311" in shown(browser.get("/nodes"))


def test_a_node_shows_its_topics_and_clients(browser, nsqd):
    text = shown(browser.get(f"/nodes/{nsqd.address}"))
    assert "12,311 waiting (7 not yet in channels), 20,000 messages published" in text
    assert "1 client of mail" in text
    assert browser.get("/nodes/other:1").status_code == 404


def test_a_tombstone_is_confirmed_and_set(browser, submit, nsqd):
    text = shown(browser.get(f"/nodes/{nsqd.address}?confirm=tombstone&topic=orders"))
    assert "12,311 messages" in text
    assert browser.get(f"/nodes/{nsqd.address}?confirm=tombstone&topic=x").status_code == 404
    assert submit(f"/nodes/{nsqd.address}", action="tombstone", topic="orders").status_code == 303
    assert nsqd.orders == ["topic/delete?topic=orders"]
    assert submit(f"/nodes/{nsqd.address}", action="x").status_code == 400


def test_a_node_answers_what_an_operator_asks(browser, service, nsqd):
    nsqd.says("config/nsqlookupd_tcp_addresses", ["l:1", "m:1"]).says("config/auth_http_addresses", [])
    nsqd.says("config/tls_required", 2).says("config/log_level", 2)
    nsqd.says("config/mem_queue_size", 10000).says("config/data_path", b"/data").says("config/msg_timeout", 60 * 10**9)
    ours = {"version": "0.1.0", "compiled": True, "disk_free_bytes": 2**30, "disk_bytes": 2**34}
    answer = {"health": "NOK - disk full", "version": "1.3.0", "start_time": int(NOW) - 3600, "nsq_compat": ours}
    producer = {
        "hostname": "p1",
        "user_agent": "gnsq",
        "connect_ts": int(NOW),
        "pub_counts": [{"topic": "orders", "count": 7}],
    }
    channel = channel_json("archive", depth=500)
    nsqd.says("stats", {**answer, "topics": [topic_json("orders", channel)], "producers": [producer]})
    service.history.add(take_snapshot(service.cluster, NOW))
    text = html.unescape(shown(browser.get(f"/nodes/{nsqd.address}")))
    assert re.search(r"Not healthy since \S+ : NOK - disk full", text)
    for wanted in (
        *("Waiting 500", "Disk free 1.0 GiB", "Uptime 1h", "500 messages and no consumer", "The disk is full"),
        *("A channel is stuck", "p1", "orders 7", "nsq_compat 0.1.0, compiled", "--mem-queue-size 10000"),
        *("--data-path /data", "--msg-timeout 1m", "--lookupd-tcp-address l:1, m:1", "--auth-http-address \u2013"),
        *("--tls-required tcp-https", "--log-level info"),
    ):
        assert wanted in text, wanted
    row = html.unescape(shown(browser.get("/nodes")))
    assert "1.0 GiB of 16.0 GiB" in row
    assert "nsq_compat 0.1.0, compiled" in row


@pytest.fixture
def gone(service, nsqd, lookupd):
    """A node that an nsqlookupd listed, and that vanished 12 s ago."""
    service.history.add(take_snapshot(service.cluster, NOW - 12))
    lookupd.says("nodes", {"producers": []}).says("topics", {"topics": []})
    nsqd.does("ping", lambda handler: handler.connection.close())
    service.history.add(take_snapshot(service.cluster, NOW - 2))
    return nsqd.address


def test_a_node_that_is_gone_is_kept_on_the_pages(browser, gone):
    words = "gone, last seen 12 s ago, had 12,311 messages in 1 topic"
    assert f"{gone} {words.replace('12 s', '10 s')}" in shown(browser.get("/")), "at the time of the sample"
    assert f"{gone} host gone {words.removeprefix('gone, ')} Dismiss" in shown(browser.get("/nodes"))
    page = shown(browser.get(f"/nodes/{gone}"))
    assert "Gone. Last seen 12 s ago, had 12,311 messages in 1 topic." in page
    assert "orders 12,311" in page
    assert "A node is lost" in page


def test_a_node_that_hangs_leaves_time_for_the_health_of_the_others(browser, hanging):
    page = shown(browser.get("/nodes"))
    assert page.count("no answer") == 1
    assert f"{hanging.address} host no answer" in page


def test_a_node_that_dies_is_one_node_also_if_the_fixed_list_spells_it_differently(browser, service, make_nsqd):
    nsqd = make_nsqd().says("stats", {"topics": []})
    service.cluster.nsqds = [f"localhost:{nsqd.port}"]
    for time in (NOW - 20, NOW - 10):
        service.history.add(take_snapshot(service.cluster, time))
        nsqd.__exit__()
    assert shown(browser.get("/nodes")).count("no answer last seen 20 s ago") == 1
    assert shown(browser.get("/nodes")).count("gone") == 0
    assert shown(browser.get("/")).count("does not answer, last seen 10 s ago") == 1


def test_a_node_that_is_gone_is_dismissed_by_an_operator(behind_login, service, gone, caplog):
    caplog.set_level(logging.INFO)

    def log_in(name):
        token = behind_login.get("/login").text.partition('name="csrf" value="')[2].partition('"')[0]
        behind_login.post("/login", data={"csrf": token, "name": name, "password": f"{name}-pw"})
        page = behind_login.get(f"/nodes/{gone}").text
        token = page.partition('name="csrf" value="')[2].partition('"')[0]
        form = {"csrf": token, "action": "dismiss", "next": "overview"}
        answer = behind_login.post(f"/nodes/{gone}", data=form)
        return answer.status_code, answer.headers.get("Location")

    assert log_in("vic") == (403, None)
    assert len(service.history.sightings.gone()) == 1
    assert log_in("olga") == (303, "/")
    assert service.history.sightings.gone() == []
    assert f"dismiss_node at {gone}: done" in caplog.text
    assert behind_login.get(f"/nodes/{gone}").status_code == 404


def test_a_node_that_does_not_answer_has_a_page(browser, nsqd, lookupd):
    nsqd.says("stats", b"", 500)
    page = browser.get(f"/nodes/{nsqd.address}")
    assert page.status_code == 200
    assert "This node is listed and does not answer." in shown(page)


# --- Mirroring --------------------------------------------------------------------------------------------------------

IDENTITY = "0123456789abcdef" * 2


def mirrors(nsqd, standby=None, *primaries):
    """Says that the node has this standby, and copies of these primaries."""
    known = {"standby": standby, "accepts": bool(primaries), "primaries": primaries}
    nsqd.says("stats", {"health": "OK", "nsq_compat": {"version": "0.1.0", "mirroring": known}, "topics": []})


def standby_json(**fields):
    return {"address": "n2:4150", "state": "in sync", "since": int(NOW) - 12, "seconds": 12.0, "behind": 0, **fields}


def primary_json(**fields):
    at = {"address": "n1:4150", "broadcast_address": "n1", "http_port": 4151, "identity": IDENTITY}
    return {**at, "connected": True, "complete": True, "last_seen": int(NOW) - 12, "taken_over": None, **fields}


def test_nodes_that_do_not_mirror_show_nothing_of_it_and_are_asked_nothing_of_it(browser, nsqd):
    for path in ("/nodes", f"/nodes/{nsqd.address}"):
        page = shown(browser.get(path))
        assert "Mirroring" not in page
        assert "standby" not in page
    assert [heard for heard in nsqd.heard if "mirror" in heard] == []


@pytest.mark.parametrize(
    ("standby", "in_list", "on_page"),
    [
        ({"behind": 3}, "in sync standby n2:4150, 3 changes behind", "n2:4150 in sync"),
        ({"state": "catching up", "behind": 1}, "catching up for 12s standby n2:4150, 1 change behind", "catching up"),
        (
            {"state": "not connected", "failure": "connection refused", "behind": 7},
            "not mirrored for 12s standby n2:4150",
            "not mirrored for 12s connection refused",
        ),
        (
            {"state": "not connected", "failure": "closed", "when_lost": "refuse"},
            "not mirrored for 12s refuses publishes standby n2:4150",
            "messages are refused",
        ),
    ],
)
def test_a_primary_shows_its_standby_and_how_far_it_is_behind(browser, nsqd, standby, in_list, on_page):
    mirrors(nsqd, standby_json(**standby))
    row = shown(browser.get("/nodes"))
    assert in_list in row
    assert ("changes behind" in row) == (standby.get("behind") == 3)
    assert on_page in shown(browser.get(f"/nodes/{nsqd.address}"))


@pytest.mark.parametrize(
    ("primary", "in_list", "on_page"),
    [
        ({}, "in sync copy of n1:4150", "n1:4150 in sync complete connected \u2013"),
        ({"complete": False}, "catching up copy of n1:4150", "n1:4150 catching up not complete connected \u2013"),
        (
            {"connected": False},
            "primary not connected copy of n1:4150, last seen 12s ago",
            "n1:4150 primary not connected complete 12s ago Adopt…",
        ),
        (
            {"connected": False, "taken_over": ["orders", "t"]},
            "took over 2 topics of n1:4150, last seen 12s ago",
            "n1:4150 took over 2 topics taken over: orders , t 12s ago \u2013",
        ),
    ],
)
def test_a_standby_shows_the_copies_that_it_has(browser, nsqd, primary, in_list, on_page):
    mirrors(nsqd, None, primary_json(**primary))
    assert in_list in shown(browser.get("/nodes"))
    page = shown(browser.get(f"/nodes/{nsqd.address}"))
    assert on_page in page
    assert "This node has no standby." in page


def test_a_node_that_is_not_mirrored_links_to_the_guide(browser, nsqd):
    here, link = f"/nodes/{nsqd.address}", "/docs/mirroring#what-happens-when"
    mirrors(nsqd, standby_json(), primary_json())
    assert link not in browser.get(here).text
    mirrors(nsqd, standby_json(state="not connected"))
    assert link in browser.get(here).text
    mirrors(nsqd, None, primary_json(connected=False))
    assert link in browser.get(here).text
    assert 'id="what-happens-when"' in browser.get("/docs/mirroring").text


def test_primary_and_standby_link_to_each_other(browser, make_nsqd, nsqd, lookupd):
    other = make_nsqd()
    listed = [nsqd.info(topics=[]), other.info(topics=[])]
    lookupd.says("nodes", {"producers": listed})
    mirrors(nsqd, standby_json(address=f"127.0.0.1:{other.port + 1}"))
    mirrors(other, None, primary_json(broadcast_address="127.0.0.1", http_port=nsqd.port))
    page = browser.get("/nodes").text
    assert f'<a href="/nodes/{other.address}">127.0.0.1:{other.port + 1}</a>' in page
    assert f'<a href="/nodes/{nsqd.address}">n1:4150</a>' in page


def test_a_primary_that_is_gone_is_adopted_by_its_standby(browser, submit, service, nsqd, caplog):
    caplog.set_level(logging.INFO)
    mirrors(nsqd, None, primary_json(connected=False))
    nsqd.says("mirror/adopt", {"topics": ["orders", "clicks"]})
    page = browser.get("/")
    assert "has a copy of n1:4150, which is not connected and was last seen 12 s ago" in shown(page)
    here = f"/nodes/{nsqd.address}"
    assert f'href="{here}?confirm=adopt&amp;identity={IDENTITY}">Adopt…</a>' in page.text
    asked = f"{here}?confirm=adopt&identity={IDENTITY}"
    question = shown(browser.get(asked))
    assert "Adopt the topics of n1:4150?" in question
    assert "12s ago . The copy is complete." in question
    answer = submit(here, asked, action="adopt", identity=IDENTITY)
    assert (answer.status_code, answer.headers["Location"]) == (303, here)
    assert nsqd.orders == [f"mirror/adopt?identity={IDENTITY}"]
    assert f"{nsqd.address} has taken over 2 topics." in shown(browser.get(here))
    assert f"adopt_mirror identity={IDENTITY} at {nsqd.address}: done" in caplog.text
    told = service.notified[0]
    assert (told["action"], told["node"], told["identity"]) == ("adopt_mirror", nsqd.address, IDENTITY)
    assert "topic" not in told


def test_a_takeover_that_fails_says_why(browser, submit, nsqd):
    mirrors(nsqd, None, primary_json(connected=False, complete=False))
    nsqd.says("mirror/adopt", {"message": "ADOPT_FAILED: another take-over is going on"}, 400)
    here = f"/nodes/{nsqd.address}"
    asked = f"{here}?confirm=adopt&identity={IDENTITY}"
    assert "The copy is not complete : what it lacks" in shown(browser.get(asked))
    submit(here, asked, action="adopt", identity=IDENTITY)
    page = shown(browser.get(here))
    assert f"{nsqd.address}: answered 400 ADOPT_FAILED: another take-over is going on" in page
    assert "has taken over" not in page


def test_only_a_copy_without_its_primary_can_be_adopted(browser, submit, nsqd):
    here, html_only = f"/nodes/{nsqd.address}", {"Accept": "text/html"}
    for primary in (primary_json(), primary_json(connected=False, taken_over=[]), primary_json(identity="other")):
        mirrors(nsqd, None, primary)
        answer = browser.get(f"{here}?confirm=adopt&identity={IDENTITY}", headers=html_only)
        assert answer.status_code == 404
        assert f"The node {nsqd.address} has no copy to take over now" in shown(answer)
    assert submit(here, action="adopt", identity="x\nAUDIT: root").status_code == 400
    assert submit("/nodes/other:1", action="adopt", identity=IDENTITY).status_code == 404
    assert nsqd.orders == []


def test_a_viewer_sees_copies_and_cannot_adopt_them(behind_login, nsqd):
    mirrors(nsqd, None, primary_json(connected=False))
    here, credentials = f"/nodes/{nsqd.address}", {"Authorization": f"Basic {b64encode(b'vic:vic-pw').decode()}"}
    page = behind_login.get(here, headers=credentials).text
    assert "primary not connected" in page
    assert "confirm=adopt" not in page
    assert "disabled" in page.partition('id="mirroring"')[2].partition("</section>")[0]
    assert behind_login.get(f"{here}?confirm=adopt&identity={IDENTITY}", headers=credentials).status_code == 403
    form = {"action": "adopt", "identity": IDENTITY}
    assert behind_login.post(here, data=form, headers=credentials).status_code == 403
    assert nsqd.orders == []


def test_a_node_that_is_gone_names_the_standby_that_has_its_copy(browser, service, make_nsqd, nsqd, lookupd):
    standby = make_nsqd()
    mirrors(standby, None, primary_json(connected=False, broadcast_address="127.0.0.1", http_port=nsqd.port))
    lookupd.says("nodes", {"producers": [nsqd.info(topics=[]), standby.info(topics=[])]})
    service.history.add(take_snapshot(service.cluster, NOW - 12))
    lookupd.says("nodes", {"producers": [standby.info(topics=[])]})
    nsqd.__exit__()
    service.history.add(take_snapshot(service.cluster, NOW - 2))
    page = browser.get(f"/nodes/{nsqd.address}")
    assert f"{standby.address} has a copy of its messages." in shown(page)
    assert f"/nodes/{standby.address}?confirm=adopt&amp;identity={IDENTITY}" in page.text


def test_the_pages_of_nodes_link_to_sections_that_exist(browser, nsqd, gone):
    links = re.findall(r"/docs/(\w+)#([\w-]+)", browser.get(f"/nodes/{gone}").text)
    assert len(links) == 2
    for name, section in links:
        assert f'id="{section}"' in browser.get(f"/docs/{name}").text
    sections = (Path(nsq_compat.__file__).parent / "templates/nodes/node.html").read_text("utf-8")
    for section in re.findall(r'm\.runbook\("([\w-]+)"', sections):
        assert f'id="{section}"' in browser.get("/docs/runbook").text


def test_the_page_of_a_node_shows_a_limited_number_of_channels_and_clients(browser, nsqd):
    def channels(count, clients):
        client = {"hostname": "h", "client_id": "h", "remote_address": "10.0.0.1:5000"}
        return [channel_json(f"c{number}", clients=[client] * clients) for number in range(count)]

    nsqd.has(*(topic_json(f"t{number:02}", *channels(150, 2)) for number in range(30)))
    page = browser.get(f"/nodes/{nsqd.address}")
    text = shown(page)
    assert text.count("100 of 150 channels. The page of t") == 10
    assert text.count(" 0 of 150 channels. The page of t") == 20
    assert page.text.count(">Disconnect<") == 500
    assert text.count(" 0 of 2 clients. The page of c") == 750


def test_the_lookup_page_shows_a_limited_number_of_channels(browser, lookupd):
    lookupd.says("topics", {"topics": ["old"]}).says(
        "channels", {"channels": [f"c{number:03}" for number in range(150)]}
    )
    page = browser.get("/lookup")
    assert "c099 " in shown(page)
    assert "c100 " not in shown(page)
    assert "and 50 more" in shown(page)


def test_the_time_to_empty_is_computed_for_the_rows_of_a_page_only(browser, service, nsqd, monkeypatch):
    nsqd.has(topic_json("t", *(channel_json(f"c{number:03}", depth=9) for number in range(250))))
    asked = []
    monkeypatch.setattr(service.history, "seconds_to_empty", lambda key, depth: asked.append(key))
    assert "Page 1 of 3" in shown(browser.get("/topics/t"))
    assert len(asked) == 100
