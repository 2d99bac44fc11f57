"""Notifications and the audit log of actions, and which nodes may receive them."""

import logging

import pytest

from nsq_compat.cluster.http_client import HttpClient
from tests.cluster.hostile import HostileServer, silent
from tests.web.admin.conftest import NOW

PUBLISH = {"action": "publish", "body": "x"}


def test_a_notification_has_the_user_and_the_address(browser, service):
    browser.post(
        "/api/topics/orders/mail?x=1",
        data='{"action":"pause"}',
        headers={
            "User-Agent": "curl/8",
            "X-Scheme": "https",
            "Host": "admin.example:4171",
            "Authorization": "Basic YWRhOng=",
        },
        environ_overrides={"nsqadmin.remote_address": "10.1.1.1:4000"},
    )
    (told,) = service.notified
    assert list(told) == ["action", "topic", "channel", "timestamp", "user", "remote_ip", "user_agent", "url", "via"]
    assert (told["action"], told["topic"], told["channel"]) == ("pause_channel", "orders", "mail")
    assert (told["timestamp"], told["user"], told["remote_ip"]) == (int(NOW), "ada", "10.1.1.1:4000")
    assert told["url"] == "https://admin.example:4171/api/topics/orders/mail?x=1"


def test_every_action_has_its_name_in_the_notification(browser, service, nsqd):
    for method, path, body in [
        ("POST", "/api/topics", '{"topic":"t"}'),
        ("POST", "/api/topics/orders", '{"action":"empty"}'),
        ("POST", "/api/topics/orders", '{"action":"unpause"}'),
        ("DELETE", "/api/topics/orders/mail", ""),
        ("DELETE", "/api/topics/orders", ""),
        ("DELETE", f"/api/nodes/{nsqd.address}", '{"topic":"orders"}'),
    ]:
        assert browser.open(path, method=method, data=body).text == '{"message":""}'
    assert [told["action"] for told in service.notified] == [
        *("create_topic", "empty_topic", "unpause_topic", "delete_channel", "delete_topic"),
        "tombstone_topic_producer",
    ]
    assert nsqd.orders == [
        *("topic/empty?topic=orders", "topic/unpause?topic=orders"),
        *("channel/delete?topic=orders&channel=mail", "topic/delete?topic=orders", "topic/delete?topic=orders"),
    ]


def test_only_failed_changes_are_notified_not_failed_deletions(browser, service, nsqd):
    nsqd.says("stats", b"", 500)
    assert browser.post("/api/topics/orders", data='{"action":"pause"}').status_code == 502
    assert browser.delete("/api/topics/orders").status_code == 502
    assert [told["action"] for told in service.notified] == ["pause_topic"]


def test_a_name_cannot_forge_the_rest_of_a_line_of_the_audit_log(browser, caplog):
    name = "root (10.9.9.9) delete_topic orders: done"
    with caplog.at_level(logging.INFO):
        browser.post("/api/topics/orders", data='{"action":"pause"}', headers={"X-Forwarded-User": name})
    assert f'AUDIT: "{name}" () pause_topic orders: done' in caplog.text


def test_the_target_of_an_action_cannot_forge_the_rest_of_its_line(browser, caplog):
    with caplog.at_level(logging.INFO):
        browser.post("/api/topics/orders: done, and x", data='{"action":"pause"}')
        browser.post("/api/topics/orders/a: done", data='{"action":"pause"}')
    assert 'AUDIT: anonymous () pause_topic "orders: done, and x": ' in caplog.text
    assert 'AUDIT: anonymous () pause_channel orders/"a: done": ' in caplog.text


def test_the_audit_log_has_a_line_for_each_action(browser, caplog):
    with caplog.at_level(logging.INFO):
        browser.post("/api/topics/orders", data='{"action":"pause"}', headers={"X-Forwarded-User": "ada"})
    assert "AUDIT: ada () pause_topic orders: done" in caplog.text


@pytest.fixture
def stranger(make_nsqd):
    """A server outside the cluster that would accept any request."""
    return make_nsqd()


def everything_that_names(submit, browser, node):
    """The statuses of all requests that name a node."""
    forms = [
        ("/topics/orders", {"action": "pause"}),
        ("/topics/orders", {"action": "unpause"}),
        ("/topics/orders", {"action": "empty"}),
        ("/topics/orders/mail", {"action": "pause"}),
        ("/topics/orders", PUBLISH),
        ("/topics", {"topic": "new", "channel": "c"}),
        ("/topics/orders/mail", {"action": "close_client", "address": "10.0.0.1:5000"}),
    ]
    statuses = [submit(path, node=node, **fields).status_code for path, fields in forms]
    statuses.append(submit(f"/nodes/{node}", action="tombstone", topic="orders").status_code)
    statuses.append(browser.delete(f"/api/nodes/{node}", data='{"topic":"orders"}').status_code)
    return statuses


@pytest.mark.parametrize("through_nsqlookupd", [True, False])
def test_an_unknown_node_receives_no_request(request, browser, submit, service, stranger, nsqd, through_nsqlookupd):
    if through_nsqlookupd:
        request.getfixturevalue("lookupd")
    assert set(everything_that_names(submit, browser, stranger.address)) == {404}
    answer = browser.delete(f"/api/nodes/{stranger.address}", data='{"topic":"orders"}')
    assert answer.get_json(force=True) == {"message": "NODE_NOT_FOUND"}
    for path in (f"/nodes/{stranger.address}", f"/api/nodes/{stranger.address}"):
        assert browser.get(path).status_code == 404
    browser.get(f"/topics/orders?confirm=empty&node={stranger.address}")
    assert stranger.heard == []
    assert nsqd.orders == []
    assert service.notified == []


def test_a_known_node_receives_the_request(submit, browser, lookupd, nsqd):
    assert set(everything_that_names(submit, browser, nsqd.address)) == {200, 303}
    assert len(nsqd.orders) == 10
    assert lookupd.orders[:2] == ["topic/create?topic=new", "channel/create?topic=new&channel=c"]
    assert lookupd.orders[2].startswith("topic/tombstone?topic=orders&node=127.0.0.1%3A")


@pytest.mark.parametrize("spelling", ["LOCALHOST:{}", "localhost.:{}", "Localhost:{}"])
def test_another_spelling_of_a_known_node_reaches_it_at_the_clusters_spelling(submit, service, nsqd, spelling):
    service.cluster.nsqds = [f"localhost:{nsqd.port}"]
    submit("/topics/orders", action="pause", node=spelling.format(nsqd.port))
    assert nsqd.orders == ["topic/pause?topic=orders"]
    assert service.notified[0]["node"] == f"localhost:{nsqd.port}"


def test_an_ipv6_node_is_known_in_all_spellings(submit, service, lookupd):
    lookupd.says("nodes", {"producers": [{"broadcast_address": "::1", "http_port": 1, "tcp_port": 2}]})
    for node in ("[::1]:1", "[0:0:0:0:0:0:0:1]:1", "[::0001]:1"):
        assert submit("/topics/orders", action="pause", node=node).status_code == 303
    assert [told["node"] for told in service.notified] == ["[::1]:1"] * 3
    for node in ("[::1]:2", "[::2]:1", "[::1%25lo]:1", "127.0.0.1:1"):
        assert submit("/topics/orders", action="pause", node=node).status_code in (400, 404), node


@pytest.mark.parametrize(
    "node",
    [
        *("n", "n:", ":1", "n:0", "n:65536", "n:99999", "n:-1", "n:+1", "n:1 ", " n:1", "n:1\n", "n:\u0661", "n/x#:1"),
        *("u@n:1", "u:p@n:1", "n:1/x", "n:1?x", "n:1#x", "http://n:1", "n\\x:1", "n%2f:1", "a:b:1", "::1:1", "[::1:1"),
        *("::1]:1", "[n]:1", "[127.0.0.1]:1", "[::1]", "[::1%a/b]:1", "n\x00:1", "\u212a:1", "x" * 300 + ":1"),
    ],
)
def test_text_that_is_not_an_address_is_an_invalid_node(submit, nsqd, node):
    for path, fields in (("", {"topic": "new"}), ("/orders", {"action": "pause"}), ("/orders", PUBLISH)):
        assert submit(f"/topics{path}", node=node, **fields).status_code == 400
    assert nsqd.orders == []


def test_a_test_message_needs_a_topic_that_a_node_has(submit, nsqd):
    assert submit("/topics/unknown", **PUBLISH).status_code == 404
    assert nsqd.orders == []


def test_a_known_node_cannot_redirect_a_tombstone_to_another_address(browser, lookupd, nsqd, stranger):
    nsqd.says("info", stranger.info())
    assert browser.delete(f"/api/nodes/{nsqd.address}", data='{"topic":"orders"}').status_code == 200
    assert nsqd.orders == ["topic/delete?topic=orders"]
    assert stranger.heard == []


def test_actions_on_a_node_fail_while_no_nsqlookupd_answers(browser, lookupd, nsqd, stranger):
    lookupd.says("nodes", b"", 500)
    for node in (nsqd.address, stranger.address):
        assert browser.delete(f"/api/nodes/{node}", data='{"topic":"orders"}').status_code == 502
    assert nsqd.orders == stranger.heard == []


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/topics/orders", {"action": "delete"}),
        ("/nodes/known", {"action": "tombstone", "topic": "orders"}),
    ],
)
def test_an_action_waits_once_for_a_daemon_that_hangs(browser, service, nsqd, lookupd, path, fields):
    with HostileServer(silent) as hanging:
        token = browser.get("/create").text.partition('name="csrf" value="')[2].partition('"')[0]
        service.cluster.client = HttpClient(request_timeout=4)
        service.cluster.lookupds = [lookupd.address, hanging.address]
        assert browser.post(path.replace("known", nsqd.address), data={"csrf": token, **fields}).status_code == 303
        assert hanging.requests == 1
