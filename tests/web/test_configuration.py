"""/config/:opt: the form of values, and options that can be changed."""

import pytest


def code(response):
    return response.status, response.body.decode()


def refused(status, name):
    return status, f'{{"message":"{name}"}}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("raw <text>", "raw <text>"),
        ("", ""),
        (True, "true"),
        (60_000_000_000, "60000000000"),
        ((), "[]"),
        (("a:1", "<"), '["a:1","\\u003c"]'),
        ((1.0, 0.99), "[1,0.99]"),
        (None, "null"),
    ],
)
def test_strings_are_raw_and_other_values_json(call, daemon, value, text):
    daemon.config["opt"] = value
    response = call.get("/config/opt")
    assert code(response) == (200, text)
    types = [header for name, header in response.headers if name == "Content-Type"]
    expected = "text/plain" if isinstance(value, str) else "application/json"
    assert types == ([f"{expected}; charset=utf-8"] if text else [])


def test_an_unknown_option_is_invalid(call):
    assert code(call.get("/config/nope")) == refused(400, "INVALID_OPTION")
    assert code(call.put("/config/nope", b"x")) == refused(400, "INVALID_OPTION")


def test_the_log_level_is_set_by_name_and_shown_as_a_number(call):
    assert code(call.put("/config/log_level", b"DEBUG")) == (200, "1")
    assert code(call.get("/config/log_level")) == (200, "1")


@pytest.mark.parametrize("body", [b"warning", b"2", b" info", b"\xff"])
def test_an_unknown_log_level_is_invalid(call, body):
    assert code(call.put("/config/log_level", body)) == refused(400, "INVALID_VALUE")


@pytest.mark.parametrize(("body", "text"), [(b'["a:1", "b:2"]', '["a:1","b:2"]'), (b"[]", "[]"), (b"null", "null")])
def test_nsqlookupds_are_replaced(call, body, text):
    assert code(call.put("/config/nsqlookupd_tcp_addresses", body)) == (200, text)


@pytest.mark.parametrize("body", [b"{}", b"[1]", b"[null", b"a:1", b'"a:1"', b"\xff", b"[" * 10_000])
def test_addresses_must_be_a_list_of_strings(call, body):
    assert code(call.put("/config/nsqlookupd_tcp_addresses", body)) == refused(400, "INVALID_VALUE")


def test_other_options_cannot_be_changed(call, daemon):
    daemon.config["snappy"] = True
    assert code(call.put("/config/snappy", b"false")) == refused(400, "INVALID_OPTION")


def test_empty_and_large_values_are_413(call, daemon):
    assert code(call.put("/config/log_level")) == refused(413, "INVALID_VALUE")
    limit, refusal = call.api.admit("PUT", "/config/log_level")
    assert (limit, code(refusal)) == (daemon.options.max_msg_size, refused(413, "INVALID_VALUE"))


def test_a_drain_starts_with_true_and_cannot_be_undone(call, daemon):
    daemon.config["drain"] = False
    assert code(call.get("/config/drain")) == (200, "false")
    assert code(call.put("/config/drain", b"false")) == refused(400, "INVALID_VALUE")
    assert not daemon.draining
    assert code(call.put("/config/drain", b"true\n")) == (200, "true")
    assert code(call.get("/readyz")) == (503, "draining")
    assert b"\nnsqd_draining 1.0\n" in call.get("/metrics").body
    assert code(call.put("/config/drain", b"false")) == refused(400, "INVALID_VALUE")
    assert daemon.draining
