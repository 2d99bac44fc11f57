"""The overview, the counter and the lookup page; invalid registrations on all pages."""

import html
import logging
import math
import re
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


def test_the_pages_of_nodes_link_to_sections_that_exist(browser, nsqd, gone):
    links = re.findall(r"/docs/(\w+)#([\w-]+)", browser.get(f"/nodes/{gone}").text)
    assert len(links) == 2
    for name, section in links:
        assert f'id="{section}"' in browser.get(f"/docs/{name}").text
    sections = (Path(nsq_compat.__file__).parent / "templates/nodes/node.html").read_text("utf-8")
    for section in re.findall(r'm\.runbook\("([\w-]+)"', sections):
        assert f'id="{section}"' in browser.get("/docs/runbook").text
