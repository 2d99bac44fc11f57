"""/pub and /mpub: accepted and refused requests, and the order of checks."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol import schema
from nsq_compat.session.http_message import Request
from nsq_compat.web import publishing
from nsq_compat.web.application import ApiError
from nsq_compat.web.nsqd_api import NsqdApi
from nsq_compat.web.publishing import split_binary, split_text
from tests.web.conftest import code, refused


def joined(parts):
    return [body for part in parts for body in part]


def batch(*bodies, count=None):
    sized = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    return struct.pack(">i", len(bodies) if count is None else count) + sized


# --- /pub -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["/pub", "/put"])
def test_pub_publishes_the_body_as_it_is(call, daemon, drain, route):
    response = call.post(f"{route}?topic=t", b"one\n\0two")
    assert (response.status, response.body) == (200, b"OK")
    assert ("Content-Type", "text/plain; charset=utf-8") in response.headers
    assert drain(daemon.broker.topics["t"]) == [b"one\n\0two"]


@pytest.mark.parametrize(
    ("query", "body", "answer"),
    [
        ("?topic=%zz", b"", refused(400, "MSG_EMPTY")),
        ("?topic=%zz", b"x", refused(400, "INVALID_REQUEST")),
        ("?topic=t;x", b"x", refused(400, "INVALID_REQUEST")),
        ("", b"x", refused(400, "MISSING_ARG_TOPIC")),
        ("?topic=", b"x", refused(400, "INVALID_TOPIC")),
        ("?topic=a%23b", b"x", refused(400, "INVALID_TOPIC")),
        ("?topic=t%0a", b"x", refused(400, "INVALID_TOPIC")),
        ("?topic=" + "t" * 65, b"x", refused(400, "INVALID_TOPIC")),
        ("?topic=t&defer=", b"x", refused(400, "INVALID_DEFER")),
        ("?topic=t&defer=1.5", b"x", refused(400, "INVALID_DEFER")),
        ("?topic=t&defer=-1", b"x", refused(400, "INVALID_DEFER")),
        ("?topic=t&defer=3600001", b"x", refused(400, "INVALID_DEFER")),
        ("?topic=t&defer=" + "9" * 5000, b"x", refused(400, "INVALID_DEFER")),
        ("?topic=t&defer=3600000", b"x", (200, "OK")),
        ("?topic=t&defer=%2B5", b"x", (200, "OK")),
        ("?topic=t&defer=0", b"x", (200, "OK")),
        ("?topic=t%23ephemeral", b"x", (200, "OK")),
    ],
)
def test_pub_checks_in_nsqds_order(call, query, body, answer):
    assert code(call.post("/pub" + query, body)) == answer


def test_a_topic_is_created_even_if_the_defer_is_refused(call, daemon):
    call.post("/pub?topic=made&defer=x", b"x")
    call.post("/pub?topic=not-made", b"")
    assert list(daemon.broker.topics) == ["made"]


def test_a_deferred_message_waits(call, daemon):
    call.post("/channel/create?topic=t")
    call.post("/topic/create?topic=t")
    call.post("/channel/create?topic=t&channel=c")
    call.post("/pub?topic=t&defer=1500", b"later")
    assert daemon.broker.topics["t"].channels["c"].deferred_count == 1


def test_a_stopping_broker_is_exiting(call, daemon):
    call.post("/topic/create?topic=old")
    daemon.broker.close()
    for topic in ("old", "new"):
        assert code(call.post(f"/pub?topic={topic}", b"x")) == refused(503, "EXITING")
        assert code(call.post(f"/mpub?topic={topic}", b"x")) == refused(503, "EXITING")


def test_a_failed_write_is_exiting(call, daemon, monkeypatch):
    def refuse(*args):
        raise OSError(28, "No space left on device")

    call.post("/topic/create?topic=t")
    monkeypatch.setattr(type(daemon.broker.topics["t"]), "publish", refuse)
    assert code(call.post("/pub?topic=t", b"x")) == refused(503, "EXITING")


def test_a_body_may_be_as_large_as_a_message(call, daemon):
    limit, refusal, _ = call.admission("POST", "/pub")
    assert (limit, code(refusal)) == (daemon.options.max_msg_size, refused(413, "MSG_TOO_BIG"))
    limit, refusal, _ = call.admission("POST", "/mpub")
    assert (limit, code(refusal)) == (daemon.options.max_body_size, refused(413, "BODY_TOO_BIG"))


# --- /mpub, text ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ["/mpub?", "/mput?", "/mpub?binary=false&", "/mpub?binary=0&", "/mpub?defer=x&"])
def test_mpub_publishes_a_message_per_line(call, daemon, drain, route):
    assert code(call.post(f"{route}topic=t", b"\none\n\ntwo\r\nthree")) == (200, "OK")
    assert drain(daemon.broker.topics["t"]) == [b"one", b"two\r", b"three"]


@pytest.mark.parametrize("body", [b"", b"\n", b"\n\n\n"])
def test_an_empty_mpub_succeeds_and_creates_the_topic(call, daemon, body):
    assert code(call.post("/mpub?topic=t", body)) == (200, "OK")
    assert daemon.broker.topics["t"].message_count == 0


def test_a_line_that_is_too_long_publishes_nothing(call, daemon):
    assert code(call.post("/mpub?topic=t", b"fine\n" + b"x" * 101)) == refused(413, "MSG_TOO_BIG")
    assert daemon.broker.topics["t"].message_count == 0


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("", refused(400, "MISSING_ARG_TOPIC")),
        ("?topic=a+b", refused(400, "INVALID_TOPIC")),
        ("?topic=%", refused(400, "INVALID_REQUEST")),
    ],
)
def test_mpub_checks_the_query_before_the_body(call, query, answer):
    assert code(call.post("/mpub" + query, b"x" * 200)) == answer


@given(st.lists(st.binary(max_size=12)))
def test_joined_lines_are_split_again(lines):
    pieces = [line.replace(b"\n", b"") for line in lines]
    assert joined(split_text(b"\n".join(pieces), 100)) == [piece for piece in pieces if piece]


def test_a_large_body_of_lines_is_split_in_parts():
    lines = [b"%d" % number for number in range(50_000)]
    parts = list(split_text(b"\n".join(lines), 100))
    assert joined(parts) == lines
    assert max(map(len, parts)) < 20_000


def test_the_empty_lines_of_a_large_body_let_others_run(call, daemon, monkeypatch):
    turns = []
    monkeypatch.setattr(publishing, "yield_to_loop", lambda: turns.append(1))
    assert call.post("/mpub?topic=t", b"\n" * 100_000).status == 200
    assert len(turns) >= 3
    assert daemon.broker.topics["t"].message_count == 0


def test_a_large_batch_is_published_in_steps_that_let_others_run(call, daemon, monkeypatch):
    seen = []
    monkeypatch.setattr(publishing, "yield_to_loop", lambda: seen.append(daemon.broker.topics["t"].depth))
    assert call.post("/mpub?topic=t", b"x\n" * 100_000).status == 200
    assert (
        daemon.broker.topics["t"].depth
        == daemon.broker.topics["t"].message_count - daemon.broker.topics["t"].dropped_count
    )
    assert len(seen) > 20
    assert seen == sorted(seen)
    assert set(seen) == {0, daemon.broker.topics["t"].depth}, "all at once, in the last step"


# --- /mpub, binary ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["true", "1", "", "TRUE", "yes"])
def test_a_binary_mpub_publishes_the_counted_messages(call, daemon, drain, value):
    response = call.post(f"/mpub?topic=t&binary={value}", batch(b"one\n", b"\0") + b"ignored")
    assert code(response) == (200, "OK")
    assert drain(daemon.broker.topics["t"]) == [b"one\n", b"\0"]


def test_an_unknown_value_of_binary_is_logged_as_deprecated(call, caplog):
    call.post("/mpub?topic=t&binary=yes", batch(b"x"))
    assert caplog.messages == ["deprecated value 'yes' used for /mpub binary param"]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"", "BAD_BODY"),
        (b"\0\0\0", "BAD_BODY"),
        (batch(), "BAD_BODY"),
        (batch(count=-1), "BAD_BODY"),
        (batch(count=100), "BAD_BODY"),
        (batch(count=99), "BAD_MESSAGE"),
        (batch(count=1) + b"\0\0", "BAD_MESSAGE"),
        (batch(b""), "BAD_MESSAGE"),
        (batch(b"a", b""), "BAD_MESSAGE"),
        (batch(b"a", count=2), "BAD_MESSAGE"),
        (batch(b"x" * 101), "BAD_MESSAGE"),
        (batch(b"abc")[:-1], "BAD_MESSAGE"),
        (struct.pack(">ii", 1, -5), "BAD_MESSAGE"),
        (struct.pack(">ii", 1, 2**31 - 1), "BAD_MESSAGE"),
    ],
)
def test_an_invalid_batch_is_refused_with_413(call, daemon, body, name):
    assert code(call.post("/mpub?topic=t&binary=true", body)) == refused(413, name)
    assert daemon.broker.topics["t"].message_count == 0


@pytest.mark.parametrize("path", ["/pub", "/mpub", "/put", "/mput"])
def test_with_auth_servers_publishing_is_forbidden_and_the_error_names_the_option(daemon, path):
    daemon.options.publishing_over_http = False
    api = NsqdApi(daemon)
    reply = api.respond(Request("POST", b"", path, b"topic=t", {}, b"x", "127.0.0.1:50000"))
    status, message = code(reply)
    assert status == 403
    assert "--http-publish-without-auth" in message
    assert not daemon.broker.topics


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=10))
def test_binary_batches_match_the_schema(bodies):
    assert joined(split_binary(schema.HTTP_MPUB_BODY.build({"bodies": bodies}), 100, 1000)) == bodies


def test_a_large_binary_body_is_split_in_parts():
    bodies = [b"%d" % number for number in range(50_000)]
    parts = list(split_binary(batch(*bodies), 100, 1_000_000))
    assert joined(parts) == bodies
    assert max(map(len, parts)) < 20_000


@given(st.binary(max_size=60))
def test_any_bytes_are_a_batch_or_an_error(body):
    with contextlib.suppress(ApiError):
        bodies = joined(split_binary(body, 100, 1000))
        assert body.startswith(schema.HTTP_MPUB_BODY.build({"bodies": bodies}))
