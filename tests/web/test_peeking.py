"""GET /channel/peek: a look that takes nothing."""

import base64
import json

import pytest

from tests.web.conftest import Caller


def bodies(response):
    return [base64.b64decode(message["body"]) for message in json.loads(response.body)["messages"]]


@pytest.fixture
def channel(daemon):
    topic = daemon.broker.topic("t")
    channel = topic.channel("c")
    topic.publish([b"one", b"two", b"three"], 50.0, 1_700_000_000_000_000_000)
    return channel


def test_what_waits_is_shown_and_stays(call, channel):
    for _ in range(2):
        response = call.get("/channel/peek?topic=t&channel=c")
        assert bodies(response) == [b"one", b"two", b"three"]
    assert channel.depth == 3
    answer = json.loads(response.body)
    assert answer["depth"] == 3
    first = answer["messages"][0]
    assert list(first) == ["id", "timestamp", "attempts", "size", "body"]
    assert (first["timestamp"], first["attempts"], first["size"]) == (1_700_000_000_000_000_000, 1, 3)


def test_no_more_than_asked_for(call, channel):
    assert bodies(call.get("/channel/peek?topic=t&channel=c&limit=2")) == [b"one", b"two"]


def test_a_long_body_is_shown_in_part(call, daemon):
    topic = daemon.broker.topic("t")
    topic.channel("c")
    topic.publish([b"x" * 20_000], 50.0, 1)
    (message,) = json.loads(call.get("/channel/peek?topic=t&channel=c").body)["messages"]
    assert message["size"] == 20_000
    assert len(base64.b64decode(message["body"])) == 16 * 1024


@pytest.mark.parametrize("limit", ["0", "101", "-1", "x", "", "9" * 50])
def test_a_limit_that_is_none_is_refused(call, channel, limit):
    response = call.get(f"/channel/peek?topic=t&channel=c&limit={limit}")
    assert (response.status, json.loads(response.body)) == (400, {"message": "INVALID_ARG_LIMIT"})


def test_what_is_missing_is_said(call, channel):
    assert json.loads(call.get("/channel/peek?topic=t").body) == {"message": "MISSING_ARG_CHANNEL"}
    assert json.loads(call.get("/channel/peek?topic=x&channel=c").body) == {"message": "TOPIC_NOT_FOUND"}
    assert json.loads(call.get("/channel/peek?topic=t&channel=x").body) == {"message": "CHANNEL_NOT_FOUND"}


def test_where_auth_servers_decide_who_reads_nobody_peeks(daemon, channel):
    daemon.options.peeking_over_http = False
    assert json.loads(Caller(daemon).get("/channel/peek?topic=t&channel=c").body) == {"message": "NOT_FOUND"}
