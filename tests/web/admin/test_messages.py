"""Bodies of messages, actions on messages, and redrives."""

import base64
import json
import logging
import re
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.web.admin.formatting import hex_dump, indented_json
from nsq_compat.web.admin.formatting import shown as body_shown
from tests.cluster.daemon import reply
from tests.web.admin.conftest import NOW, channel_json, shown, topic_json

PAGE = "/topics/orders/archive/messages"
ID = "0123456789abcde"


def message_json(number, body, **fields):
    encoded = base64.b64encode(body).decode()
    return {
        "id": f"{ID}{number}",
        "timestamp": int(NOW * 1e9),
        "attempts": 1,
        "size": len(body),
        "body": encoded,
    } | fields


@pytest.fixture
def waiting(nsqd):
    bodies = (b'{"order": 1}', b"plain text", b"\xff\x00")
    nsqd.says("channel/peek", {"messages": [message_json(number, body) for number, body in enumerate(bodies)]})
    return [f"{nsqd.address} {ID}{number}" for number in range(3)]


# --- How bodies are shown ---------------------------------------------------------------------------------------------


INDENTED = r"""{
  "a": 1.10,
  "b": [],
  "c": {
    "d": "x, {y}: \"z\""
  }
}"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a":1.10,"b":[],"c":{"d":"x, {y}: \\"z\\""}}', INDENTED),
        ("[1, 12345678901234567890.5]", "[\n  1,\n  12345678901234567890.5\n]"),
        ("{}", "{}"),
        ('{"a": 1', None),
        ("17", None),
        ("[" * 100_000, None),
    ],
)  # fmt: skip
def test_json_is_indented_and_its_values_stay_as_they_are(text, expected):
    assert indented_json(text) == expected


@given(st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_indentation_keeps_the_value_and_bounds_the_length(value):
    text = json.dumps([value])
    shown = indented_json(text)
    if shown is not None:
        assert json.loads(shown) == [value]
        assert len(shown) < 12 * len(text)


def test_json_of_many_levels_is_not_indented():
    """A producer could otherwise make a page of a gigabyte of 100 messages of 16 KiB."""
    levels = 500
    assert indented_json("[" * levels + ",".join(["0"] * 7000) + "]" * levels) is None
    assert indented_json('{"a":' * 5 + "1" + "}" * 5) is not None


def test_a_hex_dump_has_offsets_and_characters():
    first, second = hex_dump(b"nsq\x00\xff" * 4).splitlines()
    assert first == "000000  6e 73 71 00 ff 6e 73 71 00 ff 6e 73 71 00 ff 6e  nsq..nsq..nsq..n"
    assert second == f"000010  {'73 71 00 ff':<47}  sq.."


def test_a_long_body_is_folded_under_its_beginning():
    text = "first line\n" + "more\n" * 20
    assert body_shown(text, text.encode()).is_long
    assert body_shown(text, text.encode()).summary.startswith("first line more more")
    assert not body_shown("short", b"short").is_long


def test_every_body_can_be_shown_in_hex_or_as_it_is(browser, waiting):
    assert '"order": 1\n}' in browser.get(PAGE).text.replace("&#34;", '"')
    assert "ff 00" in browser.get(PAGE).text
    assert "7b 22 6f 72 64 65 72" in browser.get(f"{PAGE}?form=hex").text
    assert '{"order": 1}</pre>' in browser.get(f"{PAGE}?form=text").text.replace("&#34;", '"')


def test_the_filter_finds_text_and_ids(browser, waiting):
    def found(wanted):
        return re.findall(f'value="[^"]* {ID}([0-9])"', browser.get(f"{PAGE}?find={wanted}").text)

    assert (found("TEXT"), found(f"{ID}2"), found("order"), found("nothing")) == (["1"], ["2"], ["0"], [])
    assert "No waiting message shown contains “nothing”." in browser.get(f"{PAGE}?find=nothing").text


def test_all_shown_messages_can_be_ticked(browser, waiting):
    assert browser.get(PAGE).text.count(" checked") == 0
    assert browser.get(f"{PAGE}?all=1").text.count(" checked") == 3


def test_there_are_no_buttons_if_no_node_can_show_messages(browser):
    text = browser.get(PAGE).text
    assert "No node of this channel can show messages or act on them" in text
    assert "Finish…" not in text


# --- Finish, requeue, dead-letter -------------------------------------------------------------------------------------


@pytest.fixture
def act(browser, waiting):
    token = browser.get(PAGE).text.partition('name="csrf" value="')[2].partition('"')[0]

    def send(action, messages=waiting, **fields):
        return browser.post(PAGE, data={"csrf": token, "action": action, "message": messages, **fields})

    return send


def test_an_action_is_confirmed_first(act, nsqd):
    page = shown(act("finish"))
    assert "Finish 3 messages of orders/archive?" in page
    assert f"{ID}2" in page
    assert nsqd.orders == []
    assert "No message is selected" in shown(act("finish", []))


@pytest.mark.parametrize(
    ("action", "fields", "request_", "answer", "outcome"),
    [
        ("finish", {}, "finish?topic=orders&channel=archive", {"finished": 3}, "finished 3 messages."),
        ("requeue", {"delay": "5"}, "requeue?topic=orders&channel=archive&delay=5000", {"requeued": 3}, "requeued 3"),
        (
            "dead_letter",
            {},
            "dead_letter?topic=orders&channel=archive",
            {"dead_lettered": 3, "topic": "orders.archive.dead"},
            "moved 3 messages to orders.archive.dead.",
        ),
    ],
)
def test_a_confirmed_action_goes_to_the_nodes_and_says_what_was_done(
    act, browser, nsqd, caplog, action, fields, request_, answer, outcome
):
    nsqd.says(f"channel/{action}", {**answer, "not_found": [], "pending": []})
    with caplog.at_level(logging.INFO):
        assert act(action, confirmed="1", **fields).status_code == 303
    assert nsqd.orders == [f"channel/{request_} {ID}0\n{ID}1\n{ID}2"]
    assert outcome in shown(browser.get(PAGE))
    (line,) = [line for line in caplog.messages if line.startswith("AUDIT")]
    assert f"{action} 3 messages ({ID}0 {ID}1 {ID}2) orders/archive at {nsqd.address}: done" in line


def test_messages_that_are_gone_or_refused_are_named(act, browser, nsqd):
    answer = {"dead_lettered": 1, "topic": "dead", "not_found": [f"{ID}0"], "pending": [f"{ID}2"], "error": ""}
    nsqd.says("channel/dead_letter", answer)
    act("dead_letter", confirmed="1")
    page = shown(browser.get(PAGE))
    assert "moved 1 message to dead." in page
    assert f"1 message had left the channel: {ID}0" in page
    assert "1 message will be moved when dead accepts them" in page
    nsqd.says("channel/finish", {"message": "NOT_FOUND"}, 404)
    act("finish", confirmed="1")
    assert f"{nsqd.address}: answered 404 NOT_FOUND" in shown(browser.get(PAGE))


@pytest.mark.parametrize("delay", ["x", "-1", "999999999"])
def test_an_invalid_delay_is_asked_for_again(act, nsqd, delay):
    assert "A whole number of seconds" in shown(act("requeue", confirmed="1", delay=delay))
    assert nsqd.orders == []


def test_an_unknown_action_or_node_is_refused(act, nsqd):
    assert act("explode", confirmed="1").status_code == 400
    assert act("finish", [f"10.0.0.9:1 {ID}0"], confirmed="1").status_code == 404
    assert act("finish", [f"{ID}0"], confirmed="1").status_code == 400
    assert nsqd.orders == []


def test_an_id_of_any_characters_goes_to_the_node_which_refuses_it(act, nsqd):
    nsqd.says("channel/finish", {"message": "INVALID_ARG_ID"}, 400)
    assert act("finish", [f"{nsqd.address} \u0663\u202e"], confirmed="1").status_code == 303
    assert len(nsqd.orders) == 1


def test_viewers_and_other_sites_cannot_act(behind_login, nsqd):
    for data in ({"action": "finish"}, {"action": "finish", "csrf": "guessed"}):
        answer = behind_login.post(PAGE, data=data, auth=("olga", "olga-pw"))
        assert answer.status_code == 403
    page = behind_login.get("/nodes", auth=("vic", "vic-pw"))
    token = page.text.partition('name="csrf" value="')[2].partition('"')[0]
    answer = behind_login.post(PAGE, data={"action": "finish", "csrf": token}, auth=("vic", "vic-pw"))
    assert answer.status_code == 403
    assert behind_login.get("/topics/orders/archive/redrive", auth=("vic", "vic-pw")).status_code == 403


# --- Redrives ---------------------------------------------------------------------------------------------------------

REDRIVE = "/topics/orders.archive.dead/redrive/redrive"


class DeadLetters:
    """An nsqd's answers to /channel/redrive, as long as `allowed`."""

    def __init__(self, nsqd, count):
        self.left = count
        self.allowed = threading.Event()
        self.allowed.set()
        nsqd.has(
            topic_json("orders", channel_json("archive"), channel_json("mail")),
            topic_json("orders.archive.dead", channel_json("redrive", depth=count)),
        )
        nsqd.does("channel/redrive", self)

    def __call__(self, handler):
        assert self.allowed.wait(20)
        limit = int(handler.path.partition("limit=")[2])
        moved = min(limit, self.left)
        self.left -= moved
        reply({"moved": moved, "depth": self.left})(handler)


@pytest.fixture
def dead_letters(nsqd):
    return DeadLetters(nsqd, 600)


def wait_for(browser, text):
    deadline = time.monotonic() + 20
    while text not in (page := shown(browser.get(REDRIVE))):
        assert time.monotonic() < deadline, page
        time.sleep(0.02)
    return page


def test_a_redrive_asks_where_the_messages_go_and_which_channels_get_them(browser, dead_letters):
    page = browser.get(REDRIVE)
    assert 'name="to" value="orders"' in page.text
    assert "600 messages wait in the channel redrive of orders.archive.dead" in shown(page)
    assert "<h1>Redrive dead letters of orders/archive</h1>" in page.text
    asked = shown(browser.get(f"{REDRIVE}?to=orders"))
    assert "Both channels of orders receive these messages" in asked
    assert "archive, mail" in asked
    assert "in this topic already" in shown(browser.get(f"{REDRIVE}?to=orders.archive.dead"))
    assert "1 to 64 letters" in shown(browser.get(f"{REDRIVE}?to=no name"))


def test_a_redrive_moves_what_waits_and_says_so(browser, submit, nsqd, dead_letters, caplog):
    with caplog.at_level(logging.INFO):
        assert submit(REDRIVE, page=f"{REDRIVE}?to=orders", action="start", to="orders").status_code == 303
        page = wait_for(browser, "The redrive to orders is done")
    assert "600 of 600 messages moved" in page
    requests = [order for order in nsqd.orders if order.startswith("channel/redrive")]
    assert [order.partition("limit=")[2] for order in requests] == ["256", "256", "88"]
    audited = [line for line in caplog.messages if line.startswith("AUDIT")]
    assert "redrive to orders of 600 messages begun orders.archive.dead/redrive: done" in audited[0]
    assert "from orders.archive.dead/redrive to orders: 600 of 600 messages moved, done" in audited[1]


def test_a_redrive_can_be_cancelled_and_is_not_begun_twice(browser, submit, nsqd, dead_letters):
    dead_letters.allowed.clear()
    submit(REDRIVE, page=f"{REDRIVE}?to=orders", action="start", to="orders")
    assert "Moving messages to orders" in shown(browser.get(REDRIVE))
    assert submit(REDRIVE, page=REDRIVE, action="start", to="orders").status_code == 409
    submit(REDRIVE, page=REDRIVE, action="cancel")
    dead_letters.allowed.set()
    page = wait_for(browser, "The redrive to orders was cancelled")
    assert dead_letters.left == 600 - int(re.findall(r"(\d+) of 600 messages moved", page)[0])
    submit(REDRIVE, page=f"{REDRIVE}?to=orders", action="cancel")
    assert "No redrive of this channel is running." in shown(browser.get(REDRIVE))


def test_a_redrive_that_fails_says_why_and_where_the_messages_are(browser, submit, nsqd, dead_letters):
    nsqd.says("channel/redrive", {"message": "PUB_FAILED: topic orders is full"}, 503)
    submit(REDRIVE, page=f"{REDRIVE}?to=orders", action="start", to="orders")
    page = wait_for(browser, "The redrive to orders failed")
    assert "topic orders is full" in page
    assert "0 of 600 messages moved" in page
    assert "The messages that were not moved are still in orders.archive.dead" in page


def test_a_redrive_ends_when_other_consumers_took_the_rest(browser, submit, nsqd, dead_letters):
    dead_letters.left = 100
    submit(REDRIVE, page=f"{REDRIVE}?to=orders", action="start", to="orders")
    assert "100 of 600 messages moved" in wait_for(browser, "The redrive to orders is done")


def test_a_redrive_of_a_channel_that_only_a_hanging_node_may_have_names_that_node(browser, hanging):
    page = browser.get("/topics/orders/elsewhere/redrive")
    assert page.status_code == 200
    assert f"No node that answers has this channel. No answer: {hanging.address}" in shown(page)
