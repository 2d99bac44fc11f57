"""GET /mirror, POST /mirror/adopt, and what /stats, /readyz and /metrics tell of mirroring."""

import json

import pytest

from tests.web.conftest import Caller, code, refused

STANDBY = {"address": "n2:4150", "state": "in sync", "since": 1, "seconds": 12.5, "behind": 3, "when_lost": "refuse"}
IDENTITY = "0" * 32


def primary(**fields):
    return {"identity": IDENTITY, "address": "n1:4150", "connected": True, "taken_over": None, **fields}


def test_the_state_of_mirroring_is_shown(daemon, call):
    daemon.standby, daemon.primaries = STANDBY, [primary()]
    answer = json.loads(call.get("/mirror").body)
    assert answer == {"standby": STANDBY, "accepts": True, "primaries": [primary()]}
    assert json.loads(call.get("/stats?format=json").body)["nsq_compat"]["mirroring"] == answer


def test_an_nsqd_that_does_not_mirror_answers_and_its_stats_stay_as_they_were(call):
    assert code(call.get("/mirror")) == (200, '{"standby":null,"accepts":false,"primaries":[]}')
    assert "mirroring" not in json.loads(call.get("/stats?format=json").body)["nsq_compat"]
    assert b"nsqd_mirror" not in call.get("/metrics").body


def test_topics_are_taken_over_on_order(daemon, call):
    daemon.adopts = lambda identity: ["orders", identity]
    assert code(call.post("/mirror/adopt?identity=x")) == (200, '{"topics":["orders","x"]}')


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (KeyError("x"), refused(404, "MIRROR_NOT_FOUND")),
        (ValueError("another take-over is going on"), refused(400, "ADOPT_FAILED: another take-over is going on")),
        (OSError(28, "No space left on device"), refused(500, "INTERNAL_ERROR: no space left on device")),
    ],
)
def test_a_takeover_that_fails_says_why(daemon, call, error, answer):
    def fail(identity):
        raise error

    daemon.adopts = fail
    assert code(call.post("/mirror/adopt?identity=x")) == answer
    assert code(call.post("/mirror/adopt")) == refused(400, "MISSING_ARG_IDENTITY")


def test_an_nsqd_that_refuses_messages_without_its_standby_is_not_ready(daemon, call):
    reason = "the standby n2:4150 is not in sync, and messages are refused without it"
    for fields, answer in (
        ({}, (200, "OK")),
        ({"state": "not connected"}, (503, reason)),
        ({"state": "not connected", "when_lost": "continue"}, (200, "OK")),
    ):
        daemon.standby = STANDBY | fields
        assert code(call.get("/readyz")) == answer


def test_metrics_count_primaries_until_their_topics_are_taken_over(daemon):
    daemon.standby = STANDBY | {"state": "catching up"}
    others = [primary(connected=False), primary(connected=False, taken_over=["orders"])]
    daemon.primaries = [primary(), *others]
    lines = Caller(daemon).get("/metrics").body.decode().splitlines()
    assert [line for line in lines if line.startswith("nsqd_mirror_")] == [
        "nsqd_mirror_in_sync 0.0",
        "nsqd_mirror_changes_behind 3.0",
        "nsqd_mirror_state_seconds 12.5",
        "nsqd_mirror_primaries 2.0",
        "nsqd_mirror_primaries_connected 1.0",
    ]
