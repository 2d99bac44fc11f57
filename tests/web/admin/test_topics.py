"""Pages of topics and channels, and their forms."""

import base64
import logging
import re
import time

import pytest

from nsq_compat.cluster.cluster import take_snapshot
from nsq_compat.cluster.http_client import HttpClient
from tests.web.admin.conftest import NOW, channel_json, shown, topic_json


def test_the_list_shows_the_depth_of_a_topic_and_its_channels(browser):
    text = shown(browser.get("/topics"))
    assert "orders 12,311" in text  # 12,304 in a channel and 7 in the topic


def test_the_list_is_searched_sorted_and_paged(browser, nsqd):
    nsqd.has(*(topic_json(f"t{number:03}", depth=number) for number in range(250)))
    first = browser.get("/topics").text
    assert "t099" in first
    assert "t100" not in first
    assert "Page 1 of 3" in first
    assert "t100" in browser.get("/topics?page=2").text
    deepest = browser.get("/topics?sort=depth&desc=1").text
    assert deepest.index("t249") < deepest.index("t248")
    found = browser.get("/topics?q=T24").text
    assert "10 topics" in found
    assert "t240" in found
    assert "No topic has" in browser.get("/topics?q=nothing").text


def test_channels_of_a_topic_are_searched_sorted_and_paged(browser, nsqd):
    nsqd.has(topic_json("orders", *(channel_json(f"c{number:03}", depth=number) for number in range(250))))
    first = browser.get("/topics/orders?span=24h")
    assert "c099" in first.text
    assert "c100" not in first.text
    assert 'href="/topics/orders?span=24h&amp;page=2"' in first.text
    deepest = browser.get("/topics/orders?sort=depth&desc=1").text
    assert deepest.index("c249") < deepest.index("c248")
    assert "Page 1 of" not in browser.get("/topics/orders?q=C24").text
    assert "No channel has" in browser.get("/topics/orders?q=nothing").text


def test_clients_of_a_channel_and_topics_of_a_node_are_paged(browser, nsqd):
    clients = [{"hostname": f"box{number:03}", "remote_address": "1.2.3.4:5"} for number in range(150)]
    topics = (topic_json(f"t{number:03}") for number in range(150))
    nsqd.has(topic_json("orders", channel_json("mail", client_count=150, clients=clients)), *topics)
    assert "box100" not in browser.get("/topics/orders/mail").text
    assert "box100" in browser.get("/topics/orders/mail?clients=2").text
    node = browser.get(f"/nodes/{nsqd.address}").text
    assert ("t098" in node, "t099" in node, "100 of 150 clients" in node) == (True, False, True)
    assert "t149" in browser.get(f"/nodes/{nsqd.address}?page=2").text
    assert "all 151" in browser.get("/nodes").text


def test_an_operator_disconnects_a_consumer(browser, submit, nsqd, caplog):
    for page in ("/topics/orders/mail", f"/nodes/{nsqd.address}"):
        assert '<input type="hidden" name="address" value="10.0.0.1:5000">' in browser.get(page).text
    fields = {"action": "close_client", "node": nsqd.address, "address": "10.0.0.1:5000"}
    with caplog.at_level(logging.INFO):
        assert submit("/topics/orders/mail", **fields).location == "/topics/orders/mail"
    assert nsqd.orders == ["client/close?topic=orders&channel=mail&address=10.0.0.1%3A5000"]
    assert f"close_client address=10.0.0.1:5000 orders/mail at {nsqd.address}: done" in caplog.text
    assert "Closed the connection of 10.0.0.1:5000" in browser.get("/topics/orders/mail").text
    assert submit("/topics/orders/mail", next="node", **fields).location == f"/nodes/{nsqd.address}"
    assert submit("/topics/orders/mail", **{**fields, "address": "10.0.0.1:5 at n: done"}).status_code == 400
    assert submit("/topics/orders", **fields).status_code == 400


def test_inactive_topics_are_paged_and_only_channels_of_the_page_are_queried(browser, lookupd):
    lookupd.says("topics", {"topics": [f"t{number:03}" for number in range(150)]})
    page = browser.get("/lookup").text
    assert ("t099" in page, "t100" in page) == (True, False)
    assert len([request for request in lookupd.heard if "channels" in request]) == 100
    assert len(browser.get("/api/topics?inactive=true").json["topics"]) == 150


def test_links_drop_unknown_parameters(browser):
    page = browser.get("/topics/orders?_scheme=javascript&_external=1&_anchor=x&topic=evil&sort=depth").text
    assert "javascript:" not in page
    assert "evil" not in page


def test_a_topic_shows_its_channels_and_nodes(browser, nsqd):
    text = shown(browser.get("/topics/orders"))
    assert "archive 12,304" in text
    assert nsqd.address in text
    assert "12,311 2 on disk" in text


def test_a_channel_shows_the_active_consumer_of_an_exclusive_channel(browser, nsqd):
    clients = [{"hostname": "one", "remote_address": "1.2.3.4:5", "active": True}, {"hostname": "two"}]
    nsqd.has(topic_json("orders", channel_json("mail", client_count=2, clients=clients)))
    page = shown(browser.get("/topics/orders/mail"))
    assert page.count(" active ") == 1
    assert page.index("one:5") < page.index(" active ") < page.index("two:")


def test_a_channel_shows_its_clients(browser):
    text = shown(browser.get("/topics/orders/mail"))
    assert "c1.example:5000" in text
    assert "TLS" in text
    assert "1m 5s" in text
    assert "No clients are connected" in shown(browser.get("/topics/orders/archive"))


def test_a_channel_shows_its_policies_and_their_counts(browser, nsqd):
    policy = {"max_attempts": 5, "dead_letter_topic": "orders.archive.dead", "max_rate": 2.5, "exclusive": True}
    nsqd.has(
        topic_json("orders", channel_json("archive", policy=policy, dead_letter_count=7), channel_json("mail")),
        topic_json("orders.archive.dead"),
    )
    page = browser.get("/topics/orders/archive")
    assert "max_attempts 5, dead_letter_topic orders.archive.dead , max_rate 2.5, exclusive true 7 0 0" in shown(page)
    assert 'href="/topics/orders.archive.dead"' in page.text
    assert 'id="policies"' not in browser.get("/topics/orders/mail").text


def test_expired_messages_are_counted_where_there_are_any(browser, nsqd):
    assert "Expired" not in shown(browser.get("/topics/orders/archive"))
    nsqd.has(topic_json("orders", channel_json("archive", expired_count=7, dead_letter_count=3)))
    page = shown(browser.get("/topics/orders/archive"))
    assert "Dead-lettered Expired Refused Dropped" in page
    assert re.search(" 3 7 0 0 Total", page)


def test_a_policy_that_differs_between_nodes_is_shown_per_node(browser, service, nsqd, make_nsqd):
    other = make_nsqd()
    service.cluster.nsqds = [nsqd.address, other.address]
    nsqd.has(topic_json("orders", channel_json("archive", policy={"max_rate": 10, "burst": 1})))
    other.has(topic_json("orders", channel_json("archive", policy={"max_rate": 20, "burst": 1})))
    text = shown(browser.get("/topics/orders/archive"))
    assert "max_rate 10, burst 1" in text
    assert "max_rate 20, burst 1" in text
    assert "Total burst 1 0 0 0" in text


def test_unknown_topics_and_channels_are_error_pages(browser):
    for path, reason in (
        ("/topics/nope", "The cluster has no topic nope."),
        ("/topics/orders/nope", "No node has a channel nope of the topic orders."),
        ("/nodes/nope:1", "The cluster has no node nope:1."),
        ("/nowhere", "This page does not exist."),
    ):
        page = browser.get(path, headers={"Accept": "text/html"})
        assert page.status_code == 404
        assert reason in page.text


HOSTILE = "<script>alert(1)</script>\"'&"


def test_a_hostile_name_is_escaped_on_every_page(browser, nsqd):
    nsqd.has(
        topic_json(
            HOSTILE, channel_json(HOSTILE, client_count=1, clients=[{"user_agent": HOSTILE, "hostname": HOSTILE}])
        )
    )
    for path in ("/", "/topics", "/nodes", "/counter", f"/nodes/{nsqd.address}"):
        page = browser.get(path)
        assert page.status_code == 200
        assert "<script>alert" not in page.text
    page = browser.get("/topics/" + HOSTILE.replace("/", "%2F"), headers={"Accept": "text/html"})
    assert "<script>alert" not in page.text


def test_text_of_a_client_cannot_turn_round_its_address(browser, nsqd):
    name = "a\u202eb"
    clients = [{"hostname": name, "client_id": "x", "remote_address": "1.2.3.4:5678"}]
    nsqd.has(topic_json("orders", channel_json("archive", client_count=1, clients=clients)))
    assert f"<bdi>{name}</bdi>:5678" in browser.get("/topics/orders/archive").text


def test_a_node_that_does_not_answer_is_a_warning_on_the_page(browser, service, nsqd, make_nsqd):
    broken = make_nsqd()
    broken.says("stats", b"<b>oops</b>", 500)
    service.cluster.nsqds = [nsqd.address, broken.address]
    page = browser.get("/topics/orders")
    assert "may be incomplete" in page.text
    assert "&lt;b&gt;oops" in page.text
    assert "archive" in page.text


def test_a_cluster_without_answers_is_an_error_page(browser, nsqd):
    nsqd.says("stats", b"", 500)
    page = browser.get("/topics/orders", headers={"Accept": "text/html"})
    assert page.status_code == 502
    assert f"failed to query any nsqd: {nsqd.address}: got response 500" in page.text


@pytest.mark.parametrize("action", ["pause", "unpause"])
def test_a_form_changes_a_channel_everywhere_or_on_one_node(submit, nsqd, action):
    answer = submit("/topics/orders/mail", action=action)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/topics/orders/mail")
    submit("/topics/orders/mail", action=action, node=nsqd.address)
    assert nsqd.orders == 2 * [f"channel/{action}?topic=orders&channel=mail"]


def test_the_next_page_shows_the_outcome(browser, submit, nsqd):
    submit("/topics/orders", action="pause")
    assert "Paused orders." in browser.get("/topics/orders").text
    nsqd.says("topic/unpause", b"no", 500)
    submit("/topics/orders", action="unpause")
    assert "got response 500" in browser.get("/topics/orders").text


def test_a_confirmation_shows_how_many_messages_are_deleted(browser):
    text = shown(browser.get("/topics/orders/archive?confirm=empty"))
    assert "Empty orders/archive? 12,304 messages on 1 node will be deleted" in text
    text = shown(browser.get("/topics/orders?confirm=delete"))
    assert "12,311 messages" in text
    assert "permanently. Its 2 channels will be deleted too. 1 connected consumer will be disconnected." in text
    assert "7 messages on 1 node" in shown(browser.get("/topics/orders?confirm=empty"))


def test_a_confirmation_counts_messages_in_flight_and_deferred_as_nsqd_deletes_them(browser, nsqd):
    nsqd.has(topic_json("orders", channel_json("archive", depth=1, in_flight_count=2, deferred_count=3)))
    for path in ("/topics/orders/archive?confirm=empty", "/topics/orders?confirm=delete"):
        text = shown(browser.get(path))
        assert "6 messages on 1 node will be deleted permanently, including 2 in flight and 3 deferred." in text


def test_no_question_is_asked_about_no_messages(browser, nsqd):
    page = browser.get("/topics/orders/mail")
    assert "confirm=empty" not in page.text
    assert 'disabled title="No messages to delete">Empty…' in page.text
    asked = browser.get("/topics/orders/mail?confirm=empty")
    assert "Nothing to delete orders/mail has no messages." in shown(asked)
    assert "<button" not in asked.text.partition('id="confirm"')[2]
    text = shown(browser.get("/topics/orders/mail?confirm=delete"))
    assert "It has no messages. 1 connected consumer will be disconnected." in text


def test_an_action_that_timed_out_may_still_be_done(browser, submit, service, hanging):
    service.cluster.client = HttpClient(request_timeout=2)
    submit("/topics/orders", action="pause", node=hanging.address)
    page = shown(browser.get("/create"))
    assert f"{hanging.address}: timeout" in page
    assert "may still be done" in page


def test_an_nsqlookupd_without_the_topic_is_no_warning(browser, submit, make_nsqd, service, lookupd):
    other = make_nsqd().says("lookup", {"message": "TOPIC_NOT_FOUND"}, 404).says("topics", {"topics": []})
    other.says("nodes", {"producers": []}).says("channels", {"channels": []})
    service.cluster.lookupds = [lookupd.address, other.address]
    assert "did not answer" not in browser.get("/topics/orders").text
    submit("/topics/orders", action="delete")
    page = browser.get("/topics").text
    assert "Deleted orders." in page
    assert "NOT_FOUND" not in page


def test_a_deletion_redirects_to_the_parent(submit, nsqd):
    assert submit("/topics/orders/mail", action="delete").headers["Location"] == "/topics/orders"
    assert submit("/topics/orders", action="delete").headers["Location"] == "/topics"
    assert nsqd.orders == ["channel/delete?topic=orders&channel=mail", "topic/delete?topic=orders"]


def test_a_test_message_is_published_to_the_chosen_node(submit, nsqd):
    submit("/topics/orders", action="publish", node=nsqd.address, body="hello", delay="0.5")
    assert nsqd.orders == ["pub?topic=orders&defer=500 hello"]
    assert submit("/topics/orders", action="publish", node=nsqd.address, body="").status_code == 400
    assert submit("/topics/orders", action="publish", node=nsqd.address, body="x", delay="-1").status_code == 400


@pytest.fixture
def full(nsqd):
    channel = channel_json("archive", depth=5, policy={"max_depth": 5, "when_full": "reject"})
    nsqd.has(topic_json("orders", channel, channel_json("mail", depth=9)))
    nsqd.says("pub", {"message": "TOPIC_FULL"}, 503)
    return nsqd


def test_a_refused_message_stays_in_the_form_with_the_reason(submit, full):
    answer = submit("/topics/orders", action="publish", node=full.address, body="<typed>", delay="2.5")
    assert answer.status_code == 502
    assert f"{full.address}: channel archive is full (max_depth 5)" in shown(answer)
    assert "autofocus>&lt;typed&gt;</textarea>" in answer.text
    assert 'value="2.5"' in answer.text
    full.has(topic_json("orders", channel_json("archive")))
    answer = submit("/topics/orders", action="publish", node=full.address, body="typed")
    assert "orders, or a channel of it, has reached a limit of its policy" in shown(answer)


@pytest.mark.parametrize("wrong", [{"delay": "soon"}, {"node": "gone:1"}])
def test_a_message_that_cannot_be_sent_stays_in_the_form_with_the_reason(submit, nsqd, wrong):
    answer = submit("/topics/orders", **{"action": "publish", "node": nsqd.address, "body": "typed", **wrong})
    assert "autofocus>typed</textarea>" in answer.text
    reasons = ("The delay is a number of seconds", "The cluster has no node gone:1.")
    assert any(reason in shown(answer) for reason in reasons)
    assert nsqd.orders == []


def test_any_node_is_one_that_accepts_the_message(submit, browser, service, full, make_nsqd):
    other = make_nsqd()
    other.has(topic_json("orders"))
    service.cluster.nsqds = [full.address, other.address]
    assert '<option value="">any node of the topic' in browser.get("/topics/orders?form=publish").text
    answer = submit("/topics/orders", action="publish", node="", body="hello")
    assert answer.headers["Location"] == "/topics/orders?form=publish"
    assert (full.orders, other.orders) == (["pub?topic=orders hello"], ["pub?topic=orders hello"])
    # The node may have the message although it did not answer: another one would be the second.
    full.does("pub", lambda handler: time.sleep(1))
    service.cluster.client = HttpClient(request_timeout=0.5)
    answer = submit("/topics/orders", action="publish", node="", body="again")
    assert "What timed out may still be done" in shown(answer)
    assert other.orders == ["pub?topic=orders hello"]


def test_an_alert_of_refused_messages_is_dismissed_on_the_overview(submit, browser, service, nsqd):
    nsqd.has(topic_json("orders", channel_json("archive", rejected_count=3)))
    service.history.add(take_snapshot(service.cluster, NOW))
    words = "3 messages refused because the channel was full"
    assert f"{words} Show channel Dismiss" in shown(browser.get("/"))
    answer = submit("/topics/orders/archive", action="dismiss", kind="refused")
    assert answer.headers["Location"] == "/"
    assert words not in shown(browser.get("/"))
    assert submit("/topics/orders/mail", action="dismiss", kind="refused").status_code == 404


def test_pages_of_a_topic_name_nodes_that_are_gone_with_its_messages(browser, service, nsqd, lookupd, make_nsqd):
    other = make_nsqd()
    other.has(topic_json("orders", channel_json("archive", depth=3)))
    lookupd.says("nodes", {"producers": [nsqd.info(), other.info()]})
    service.history.add(take_snapshot(service.cluster, NOW - 20))
    lookupd.says("nodes", {"producers": [nsqd.info()]})
    service.history.add(take_snapshot(service.cluster, NOW - 10))
    for path in ("/topics/orders", "/topics/orders/archive"):
        text = shown(browser.get(path))
        assert f"Not counted, because the node is gone: 3 messages of orders on {other.address} ." in text


def test_the_button_of_a_topic_with_messages_in_channels_only_says_where_to_empty_them(browser, nsqd):
    nsqd.has(topic_json("orders", channel_json("archive", depth=5)))
    page = browser.get("/topics/orders")
    assert 'disabled title="Its messages are in its channels, which can be emptied">Empty…' in page.text
    assert "All waiting messages are in channels; empty those." in shown(page)


def test_a_dead_letter_topic_that_does_not_exist_is_no_link(browser, nsqd):
    policy = {"dead_letter_topic": "orders.archive.dead"}
    nsqd.has(topic_json("orders", channel_json("archive", policy=policy)))
    assert 'href="/topics/orders.archive.dead"' not in browser.get("/topics/orders/archive").text
    nsqd.has(topic_json("orders", channel_json("archive", policy=policy)), topic_json("orders.archive.dead"))
    assert 'href="/topics/orders.archive.dead"' in browser.get("/topics/orders/archive").text


def test_without_nsqlookupd_a_topic_is_created_on_a_node(submit, nsqd):
    submit("/topics", topic="new", channel="c", node=nsqd.address)
    assert nsqd.orders == ["topic/create?topic=new", "channel/create?topic=new&channel=c"]


def test_an_unknown_action_is_refused(submit):
    assert submit("/topics/orders", action="explode").status_code == 400
    assert submit("/topics/orders/mail", action="publish").status_code == 400


def test_an_inactive_topic_has_a_page_from_which_it_is_created_on_nodes_or_deleted(browser, lookupd):
    lookupd.says("topics", {"topics": ["shadow"]}).says("lookup", {"producers": []})
    page = browser.get("/topics/shadow")
    assert "Only nsqlookupd knows this topic" in shown(page)
    assert 'href="/create?topic=shadow">Create on nodes…' in page.text
    assert 'href="/lookup?confirm=delete&amp;topic=shadow">Delete…' in page.text
    assert "shadow" in shown(browser.get("/lookup"))
    assert "Create shadow on nodes" in shown(browser.get("/create?topic=shadow"))


@pytest.mark.parametrize("path", ["/topics/shadow/c", "/topics/shadow/c/messages", "/messages/shadow"])
def test_pages_below_an_inactive_topic_say_that_no_nsqd_has_it(browser, lookupd, path):
    lookupd.says("topics", {"topics": ["shadow"]}).says("lookup", {"producers": []})
    answer = browser.get(path, headers={"Accept": "text/html"})
    assert (answer.status_code, "Only nsqlookupd knows the topic shadow." in answer.text) == (404, True)
    lookupd.says("topics", {"topics": []}).says("lookup", {"message": "TOPIC_NOT_FOUND"}, 404)
    answer = browser.get(path, headers={"Accept": "text/html"})
    assert (answer.status_code, "The cluster has no topic shadow." in answer.text) == (404, True)


def test_actions_on_a_topic_that_was_deleted_meanwhile_say_so(submit, lookupd, nsqd):
    lookupd.says("topics", {"topics": []}).says("lookup", {"message": "TOPIC_NOT_FOUND"}, 404)
    assert [submit("/topics/orders", action=action).status_code for action in ("pause", "empty", "delete")] == 3 * [404]
    assert nsqd.orders == []


# --- Creating ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def three(make_nsqd, lookupd, nsqd):
    """Three nsqds; the second has the fewest messages. nsqlookupd lists a new topic on all of them."""
    nodes = [nsqd, make_nsqd(), make_nsqd()]
    nodes[2].has(topic_json("orders", depth=1))
    producers = {"producers": [node.info(topics=["orders"], hostname=f"h{at}") for at, node in enumerate(nodes)]}
    lookupd.says("nodes", producers).says("lookup", producers)
    return nodes


def made_on(nodes):
    return [bool(node.orders) for node in nodes]


def test_a_topic_is_created_at_nsqlookupd_and_on_all_nodes_and_can_be_published_to(browser, submit, lookupd, three):
    answer = submit("/topics", topic="new", channel="c", on="all")
    assert answer.headers["Location"] == "/topics/new?form=publish"
    for daemon in (lookupd, *three):
        assert daemon.orders == ["topic/create?topic=new", "channel/create?topic=new&channel=c"]
        daemon.has(topic_json("new"))
    page = browser.get("/topics/new?form=publish")
    assert "Created new/c on 3 nodes." in shown(page)
    assert '<textarea name="body"' in page.text


def test_a_topic_is_created_on_the_node_with_the_fewest_messages_or_on_chosen_nodes(browser, submit, three):
    assert f"fewest messages, now {three[1].address}" in shown(browser.get("/create"))
    submit("/topics", topic="new", on="least")
    assert made_on(three) == [False, True, False]
    browser_form = submit("/topics", topic="new", on="chosen", node=[three[0].address, three[2].address])
    assert browser_form.status_code == 303
    assert made_on(three) == [True, True, True]


def test_a_channel_is_created_on_the_nodes_that_have_the_topic(browser, submit, lookupd, three):
    lookupd.says("lookup", {"producers": [three[0].info(), three[1].info()]})
    assert "the 2 nodes with orders" in shown(browser.get("/create?topic=orders"))
    assert submit("/topics", topic="orders", channel="c", on="holders").headers["Location"] == "/topics/orders/c"
    assert made_on(three) == [True, True, False]


def test_a_node_that_cannot_create_a_topic_is_named(browser, submit, three):
    three[1].says("topic/create", b"disk full", 500)
    submit("/topics", topic="new", on="all")
    text = shown(browser.get("/topics"))
    assert "Created new on 2 of 3 nodes." in text
    assert f"{three[1].address}: got response 500 Internal Server Error" in text


def test_a_topic_that_no_node_created_leaves_the_form_with_the_reasons(submit, service, three):
    for node in three:
        node.says("topic/create", b"disk full", 500)
    answer = submit("/topics", topic="new", channel="c", on="all")
    assert answer.status_code == 502
    assert all(f"{node.address}: got response 500" in answer.text for node in three)
    assert 'value="new"' in answer.text
    assert 'value="c"' in answer.text
    assert [told["node"] for told in service.notified if told["action"] == "create_topic"] == [
        node.address for node in three
    ]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"topic": "a b"}, "“a b” is not a valid name of a topic."),
        ({"topic": ""}, "“” is not a valid name of a topic."),
        ({"topic": "x" * 65}, "is not a valid name of a topic."),
        ({"topic": "new", "channel": "#ephemeral"}, "“#ephemeral” is not a valid name of a channel."),
        ({"topic": "new", "on": "chosen"}, "Choose at least one node."),
    ],
)
def test_an_invalid_form_says_why_and_keeps_what_was_typed(submit, three, fields, reason):
    answer = submit("/topics", **{"on": "all", **fields})
    assert answer.status_code == 400
    assert reason in shown(answer)
    assert "A name has 1 to 64 letters" in shown(answer)
    assert f'value="{fields["topic"]}"' in answer.text
    assert made_on(three) == [False, False, False]


def test_without_an_nsqd_a_topic_is_registered_at_nsqlookupd_only(browser, submit, lookupd):
    lookupd.says("nodes", {"producers": []}).says("lookup", {"producers": []}).says("topics", {"topics": ["new"]})
    assert "No nsqd has registered with nsqlookupd" in shown(browser.get("/create"))
    submit("/topics", topic="new")
    assert "Registered new at nsqlookupd. No nsqd has it yet." in shown(browser.get("/topics/new"))


def test_a_viewer_cannot_open_the_form(behind_login):
    assert behind_login.get("/create", auth=("vic", "vic-pw")).status_code == 403


# --- Messages ---------------------------------------------------------------------------------------------------------


def message_json(published, **fields):
    return {"id": "i", "timestamp": int(published * 1e9), "attempts": 2, "size": 1, "body": "eA==", **fields}


def test_messages_are_shown_as_text_or_hexadecimal(browser, nsqd):
    bodies = [(base64.b64encode(body).decode(), len(body)) for body in (b"<b>hello</b>", b"\xff\x00")]
    messages = [message_json(NOW - 65, body=body, size=size, offset=size) for body, size in bodies]
    nsqd.says("channel/peek", {"messages": messages})
    page = browser.get("/topics/orders/archive/messages")
    assert "&lt;b&gt;hello" in page.text
    assert "ff 00" in page.text
    assert "1m 5s old" in shown(page)
    assert "offset 12 " in shown(page)


def test_headers_of_messages_are_shown_and_found(browser, nsqd):
    messages = [message_json(NOW, headers={"customer": "<b>42</b>"}), message_json(NOW, headers={"other": "7"})]
    nsqd.says("channel/peek", {"messages": messages})
    page = browser.get("/topics/orders/archive/messages")
    assert "&lt;b&gt;42" in page.text
    assert "other 7" in shown(page)
    assert "customer" not in shown(browser.get("/topics/orders/archive/messages?find=OTHER"))


def test_deferred_and_in_flight_messages_show_their_deadline(browser, nsqd):
    due, deadline = (message_json(NOW, **{key: int((NOW + 90) * 1e9)}) for key in ("due", "deadline"))
    nsqd.says("channel/peek", {"deferred": [due], "in_flight": [deadline]})
    page = shown(browser.get("/topics/orders/archive/messages"))
    assert "No waiting messages." in page
    assert "next attempt: 2 deferred, due in 1m 30s" in page
    assert "attempt 2 times out in 1m 30s" in page


@pytest.mark.parametrize("path", ["/topics/orders/archive/messages", "/messages/orders"])
def test_a_node_that_hangs_leaves_time_for_the_messages_of_the_others(browser, nsqd, hanging, path):
    messages = [{"id": "0123456789abcdef", "body": "aGVsbG8=", "size": 5}]
    nsqd.says("channel/peek", {"messages": messages, "deferred": [], "in_flight": []})
    nsqd.says("topic/recent", {"messages": messages})
    assert "hello" in shown(browser.get(path))


def test_an_nsqd_that_cannot_show_messages_is_named(browser):
    assert "cannot show messages" in browser.get("/topics/orders/archive/messages?limit=25").text


def test_published_messages_are_shown_newest_first(browser, nsqd):
    messages = [message_json(NOW - 9 + number, id=str(number) * 16) for number in range(3)]
    nsqd.says("topic/recent", {"messages": messages})
    text = browser.get("/messages/orders").text
    assert text.index("2" * 16) < text.index("1" * 16) < text.index("0" * 16)
    nsqd.says("topic/recent", {"messages": [messages[0] | {"due": int((NOW + 60) * 1e9)}]})
    assert "deferred, due in 1m" in browser.get("/messages/orders").text
    nsqd.says("topic/recent", {"messages": []})
    assert "New messages appear here when they are published" in browser.get("/messages/orders").text
    nsqd.says("topic/recent", {"message": "NOT_FOUND"}, 404)
    assert "cannot show messages" in browser.get("/messages/orders").text


def test_a_topic_shows_how_many_repeated_publishes_it_recognized(browser, nsqd):
    assert "Duplicates" not in browser.get("/topics/orders").text
    nsqd.has(topic_json("orders", duplicate_count=1234))
    assert "Duplicates 1,234" in shown(browser.get("/topics/orders"))


# --- Where a message is -----------------------------------------------------------------------------------------------

ID = "0123456789abcdef"


@pytest.fixture
def states(nsqd):
    """Sets what the node answers about a message in the channels archive and mail."""

    def answer(archive, mail=None, message=None, **fields):
        channels = [{"channel_name": "archive", **archive}, {"channel_name": "mail", **(mail or {"state": "gone"})}]
        found = message_json(NOW - 65, id=ID, offset=12, segment=3, **fields) if message is None else message
        nsqd.says("topic/message", {"message": found or None, "held": False, "channels": channels})

    return answer


def test_a_message_has_a_page_with_its_headers_and_its_state_in_each_channel(browser, nsqd, states):
    client = {"hostname": "c1.example", "remote_address": "10.0.0.1:5000", "user_agent": "pynsq"}
    since, deadline = int((NOW - 5) * 1e9), int((NOW + 55) * 1e9)
    states(
        {"state": "in_flight", "attempts": 2, "since": since, "deadline": deadline, "client": client},
        headers={"traceparent": "00-a-b-01"},
    )
    page = shown(browser.get(f"/message/orders/{ID}?node={nsqd.address}"))
    assert "traceparent 00-a-b-01" in page
    assert f"Published to orders on {nsqd.address} , offset 12, in segment 3 of the log." in page
    assert "in flight delivered, and not answered yet 2 this one" in page
    assert "5s ago" in page
    assert "in 55s" in page
    assert "c1.example 10.0.0.1:5000 pynsq" in page
    assert "not here finished, emptied, passed over by a rewind, or published before the channel was created" in page
    assert "There is no other history" in page


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ({"reason": "requeued"}, "last at c1 10.0.0.1:5000, which requeued it, 1m 5s ago"),
        ({"reason": "timed_out"}, "last at c1 10.0.0.1:5000, which did not answer in time, 1m 5s ago"),
        ({"reason": "disconnected"}, "last at c1 10.0.0.1:5000, which disconnected, 1m 5s ago"),
        ({"reason": "disconnected", "at": None}, "last at c1 10.0.0.1:5000, which disconnected 2 the next one"),
        ({"reason": "disconnected", "client": None}, "last at a consumer that has left, which disconnected, 1m 5s ago"),
        ({"reason": "operator", "client": None}, "requeued by an operator, 1m 5s ago"),
    ],
)
def test_a_message_that_came_back_shows_why(browser, states, returned, text):
    client = {"client_id": "c1", "remote_address": "10.0.0.1:5000"}
    returned = {"at": int((NOW - 65) * 1e9), "client": client, **returned}
    states({"state": "waiting", "attempts": 2, "returned": returned})
    assert f"waiting to be delivered again {text}" in shown(browser.get(f"/message/orders/{ID}"))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"state": "waiting", "attempts": 1}, "waiting for its first delivery 1 the next one"),
        ({"state": "waiting", "attempts": 3}, "waiting to be delivered again 3 the next one"),
        ({"state": "deferred", "attempts": 2, "due": int((NOW + 90) * 1e9)}, "deferred requeued with a delay 2"),
        ({"state": "in_flight", "attempts": 1}, "in flight its consumer has left the channel 1 this one"),
        ({"state": "dead_lettering", "attempts": 5}, "dead letter on its way to the dead-letter topic 5"),
        ({"state": "held", "attempts": 1}, "held the topic has it, and gives it to the channel later 1"),
        ({"state": "unknown"}, "not known it would have to be searched for among too many messages"),
    ],
)
def test_every_state_is_explained(browser, states, state, text):
    states(state)
    assert text in shown(browser.get(f"/message/orders/{ID}"))


def test_how_a_message_may_have_left_a_channel_depends_on_its_counts(browser, nsqd, states):
    nsqd.has(topic_json("orders", channel_json("archive", expired_count=1, dead_letter_count=1, dropped_count=1)))
    states({"state": "gone"})
    assert "not here finished, expired, dead-lettered, dropped, emptied" in shown(browser.get(f"/message/orders/{ID}"))


def test_a_dead_letter_shows_where_it_comes_from(browser, states):
    origin = {"nsq-origin-topic": "orders", "nsq-origin-channel": "archive", "nsq-attempts": "5"}
    states({"state": "waiting", "attempts": 1}, headers={**origin, "nsq-first-published": str(int(NOW - 3600) * 10**9)})
    page = browser.get(f"/message/orders/{ID}")
    assert "First published to orders ." in shown(page)
    assert "Dead-lettered from the channel archive after 5 attempts, or expired there." in shown(page)
    for reason, text in (
        ("attempts", "archive after 5 attempts. Its id there was 0f ."),
        ("expired", "archive because it expired after 5 attempts."),
        ("operator", "archive by an operator after 5 attempts."),
    ):
        told = {"nsq-dead-letter-reason": reason, "nsq-origin-message-id": "0f"}
        states({"state": "waiting"}, headers={**origin, **told})
        assert f"Dead-lettered from the channel {text}" in shown(browser.get(f"/message/orders/{ID}"))
    states({"state": "waiting"}, headers={**origin, "nsq-first-published": "yesterday"})
    assert "First published" not in shown(browser.get(f"/message/orders/{ID}"))


def test_a_message_that_expires_or_has_expired_says_when(browser, states):
    states({"state": "waiting"}, headers={"nsq-expires": str(int(NOW) + 65)})
    page = shown(browser.get(f"/message/orders/{ID}"))
    assert "Expires, in 1m " in page
    assert ": it is not delivered after that." in page
    states({"state": "gone"}, headers={"nsq-expires": str(int(NOW) - 60)})
    page = shown(browser.get(f"/message/orders/{ID}"))
    assert "expired It is not delivered any more." in page
    for nonsense in ("300 s", "9" * 12, ""):
        states({"state": "gone"}, headers={"nsq-expires": nonsense})
        assert "delivered any more" not in shown(browser.get(f"/message/orders/{ID}"))


def test_a_consumer_with_a_message_is_shown_with_its_client_id(browser, states):
    client = {"hostname": "c1.example", "remote_address": "10.0.0.1:5000", "client_id": "c1"}
    states({"state": "in_flight", "client": client})
    assert "(c1)" not in shown(browser.get(f"/message/orders/{ID}"))
    states({"state": "in_flight", "client": {**client, "client_id": "billing"}})
    assert "c1.example 10.0.0.1:5000 (billing)" in shown(browser.get(f"/message/orders/{ID}"))


def test_a_message_is_found_by_its_id(browser, nsqd, states):
    states({"state": "waiting"})
    answer = browser.get(f"/topics?q={ID}")
    assert (answer.status_code, answer.location) == (302, f"/message/orders/{ID}?node={nsqd.address}")
    nsqd.says("topic/message", {"message": "MESSAGE_NOT_FOUND"}, 404)
    assert "and none that was asked has a message with this id" in shown(browser.get(f"/topics?q={ID}"))
    nsqd.has(topic_json(f"t{ID}"))
    assert f"t{ID}" in shown(browser.get(f"/topics?q={ID}"))


def test_watch_shows_up_to_100_messages_and_its_filter_searches_all_that_there_are(browser, nsqd):
    messages = [message_json(NOW - 100 + number, id=f"{number:016}") for number in range(100)]
    nsqd.says("topic/recent", {"messages": messages})

    def ids(query=""):
        return sorted(set(re.findall("0{14}[0-9]{2}", shown(browser.get(f"/messages/orders{query}")))))

    assert ids() == [f"{number:016}" for number in range(100)]
    assert ids("?limit=10") == [f"{number:016}" for number in range(90, 100)]
    assert ids("?limit=10&find=000000000000002") == [f"{number:016}" for number in range(20, 30)]
    assert "None of the 100 newest messages contains" in browser.get("/messages/orders?limit=10&find=none").text


def test_a_message_that_left_the_log_has_its_states_only(browser, states):
    states({"state": "in_flight", "attempts": 1}, message={})
    page = shown(browser.get(f"/message/orders/{ID}"))
    assert "does not have this message any more" in page
    assert "in flight" in page


def test_a_node_that_cannot_tell_where_a_message_is_says_so(browser, nsqd):
    assert "only the nsqd of nsq_compat can" in shown(browser.get(f"/message/orders/{ID}"))
    nsqd.says("topic/message", {"message": "MESSAGE_NOT_FOUND"}, 404)
    assert "it does not have the message: its log was released" in shown(browser.get(f"/message/orders/{ID}"))
    nsqd.says("topic/message", {"channels": [{"state": 5}]})
    assert "invalid answer" in shown(browser.get(f"/message/orders/{ID}"))
    assert "10.0.0.9:1 does not have the topic orders" in shown(browser.get(f"/message/orders/{ID}?node=10.0.0.9:1"))


@pytest.mark.parametrize("path", ["/topics/orders/archive/messages", "/messages/orders"])
def test_the_pages_of_messages_lead_to_that_of_each(browser, nsqd, path):
    message = message_json(NOW, id=ID)
    nsqd.says("channel/peek", {"in_flight": [message]}).says("topic/recent", {"messages": [message]})
    assert f'href="/message/orders/{ID}?node={nsqd.address}"' in browser.get(path).text


def test_a_viewer_cannot_see_a_message(behind_login, states):
    states({"state": "waiting"})
    assert behind_login.get(f"/message/orders/{ID}", auth=("vic", "vic-pw")).status_code == 403
