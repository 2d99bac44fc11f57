"""IDENTIFY: fields, nsqd's answer, and their effects."""

import json
import os
from typing import Any

import pytest

from nsq_conformance.behaviours.limits import MAX_MSG_TIMEOUT_MS, MSG_TIMEOUT_MS
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.raw_client import RawClient, sized


def identifies(client: RawClient, document: bytes) -> RawClient:
    return client.sends(b"IDENTIFY\n" + sized(document))


def client_stats(nsqd: NsqdProcess, topic: str) -> dict[str, Any]:
    """The entry in /stats of the only consumer of the channel."""
    (client,) = nsqd.channel_stats(topic, "ch")["clients"]
    stats: dict[str, Any] = client
    return stats


def test_without_feature_negotiation_the_answer_is_ok(client: RawClient) -> None:
    assert identifies(client, b"{}").response() == b"OK"


def test_feature_negotiation_is_answered_in_this_order(client: RawClient) -> None:
    answer = client.identifies()
    assert list(answer) == [
        "max_rdy_count",
        "version",
        "max_msg_timeout",
        "msg_timeout",
        "tls_v1",
        "deflate",
        "deflate_level",
        "max_deflate_level",
        "snappy",
        "sample_rate",
        "auth_required",
        "output_buffer_size",
        "output_buffer_timeout",
        "topology_region",
        "topology_zone",
    ]


ANSWERS = {
    "max_rdy_count": 50,
    "version": "1.3.0",
    "max_msg_timeout": MAX_MSG_TIMEOUT_MS,
    "msg_timeout": MSG_TIMEOUT_MS,
    "tls_v1": False,
    "deflate": False,
    "deflate_level": 6,
    "max_deflate_level": 6,
    "snappy": False,
    "sample_rate": 0,
    "auth_required": False,
    "output_buffer_size": 16384,
    "output_buffer_timeout": 25,
    "topology_region": "",
    "topology_zone": "",
}


@pytest.mark.parametrize(("field", "value"), ANSWERS.items(), ids=ANSWERS)
def test_the_answer_contains(client: RawClient, field: str, value: object) -> None:
    assert client.identifies()[field] == value


def test_the_answer_is_written_without_spaces(client: RawClient) -> None:
    identifies(client, b'{"feature_negotiation":true}')
    answer = client.response()
    assert answer == json.dumps(json.loads(answer), separators=(",", ":")).encode()


# A field, the requested value, and the granted one.
GRANTED: tuple[tuple[str, object, object], ...] = (
    ("sample_rate", 0, 0),
    ("sample_rate", 1, 1),
    ("sample_rate", 99, 99),
    ("msg_timeout", 1000, 1000),
    ("msg_timeout", MAX_MSG_TIMEOUT_MS, MAX_MSG_TIMEOUT_MS),
    ("msg_timeout", 0, MSG_TIMEOUT_MS),
    ("msg_timeout", None, MSG_TIMEOUT_MS),
    ("output_buffer_size", 64, 64),
    ("output_buffer_size", 65536, 65536),
    ("output_buffer_size", 0, 16384),
    ("output_buffer_size", -1, 1),
    ("output_buffer_timeout", 25, 25),
    ("output_buffer_timeout", 30000, 30000),
    ("output_buffer_timeout", 0, 25),
    ("output_buffer_timeout", -1, 0),
    ("tls_v1", True, False),
    ("deflate_level", 3, 6),
)


@pytest.mark.parametrize(("field", "asked", "granted"), GRANTED)
def test_a_requested_value_is_granted(client: RawClient, field: str, asked: object, granted: object) -> None:
    assert client.identifies(**{field: asked})[field] == granted


@pytest.mark.parametrize(("asked", "granted"), [(1, 1), (6, 6), (7, 6), (0, 6), (-1, 6), (100, 6)])
def test_the_level_of_deflate_has_a_limit(client: RawClient, asked: int, granted: int) -> None:
    answer = client.identifies(deflate=True, deflate_level=asked)
    assert (answer["deflate"], answer["deflate_level"]) == (True, granted)


def test_an_unbuffered_client_has_no_timeout_either(client: RawClient) -> None:
    answer = client.identifies(output_buffer_size=-1, output_buffer_timeout=500)
    assert (answer["output_buffer_size"], answer["output_buffer_timeout"]) == (1, 0)


REFUSED = (
    ("heartbeat_interval", 999, "heartbeat interval (999) is invalid"),
    ("heartbeat_interval", 120_001, "heartbeat interval (120001) is invalid"),
    ("heartbeat_interval", -2, "heartbeat interval (-2) is invalid"),
    ("output_buffer_timeout", 24, "output buffer timeout (24) is invalid"),
    ("output_buffer_timeout", 30_001, "output buffer timeout (30001) is invalid"),
    ("output_buffer_timeout", -2, "output buffer timeout (-2) is invalid"),
    ("output_buffer_size", 63, "output buffer size (63) is invalid"),
    ("output_buffer_size", 65_537, "output buffer size (65537) is invalid"),
    ("output_buffer_size", -2, "output buffer size (-2) is invalid"),
    ("sample_rate", 100, "sample rate (100) is invalid"),
    ("sample_rate", -1, "sample rate (-1) is invalid"),
    ("msg_timeout", 999, "msg timeout (999) is invalid"),
    ("msg_timeout", MAX_MSG_TIMEOUT_MS + 1, f"msg timeout ({MAX_MSG_TIMEOUT_MS + 1}) is invalid"),
    ("msg_timeout", -1, "msg timeout (-1) is invalid"),
)


@pytest.mark.parametrize(("field", "asked", "reason"), REFUSED)
def test_a_requested_value_is_refused(client: RawClient, field: str, asked: int, reason: str) -> None:
    identifies(client, json.dumps({field: asked}).encode())
    assert client.error() == b"E_BAD_BODY IDENTIFY " + reason.encode()
    assert client.is_closed()


def test_the_first_of_several_errors_is_reported(client: RawClient) -> None:
    identifies(client, b'{"msg_timeout":1,"sample_rate":100,"heartbeat_interval":1}')
    assert client.error() == b"E_BAD_BODY IDENTIFY heartbeat interval (1) is invalid"


@pytest.mark.parametrize("interval", [0, -1, 1000, 120_000])
def test_a_heartbeat_interval_that_is_granted(client: RawClient, interval: int) -> None:
    assert identifies(client, json.dumps({"heartbeat_interval": interval}).encode()).response() == b"OK"


TAKEN = {
    "null instead of an object": b"null",
    "space around the object": b" \r\n\t{} ",
    "unknown fields": b'{"fields":["not","known"],"x":{"y":null}}',
    "null for a field": b'{"client_id":null,"heartbeat_interval":null}',
    "a field twice, of which the last counts": b'{"sample_rate":5,"sample_rate":6}',
    "bytes that are not UTF-8": b'{"client_id":"\xff"}',
    "another spelling of a name": b'{"Client_ID":"x"}',
}


@pytest.mark.parametrize("document", TAKEN.values(), ids=TAKEN)
def test_an_accepted_document(client: RawClient, document: bytes) -> None:
    assert identifies(client, document).response() == b"OK"


NOT_TAKEN = {
    "a list": b"[]",
    "a number": b"1",
    "a text": b'""',
    "half an object": b'{"client_id":',
    "text after the object": b"{}x",
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a zero": b"\0",
    "a fraction": b'{"heartbeat_interval":1000.5}',
    "a fraction that is whole": b'{"heartbeat_interval":1000.0}',
    "an exponent": b'{"heartbeat_interval":1e3}',
    "a number as a text": b'{"heartbeat_interval":"1000"}',
    "true for a number": b'{"heartbeat_interval":true}',
    "a number for true": b'{"feature_negotiation":1}',
    "a number for a text": b'{"client_id":1}',
    "a number beyond 64 bits": b'{"heartbeat_interval":9223372036854775808}',
    "a sample rate beyond 32 bits": b'{"sample_rate":2147483648}',
}


@pytest.mark.parametrize("document", NOT_TAKEN.values(), ids=NOT_TAKEN)
def test_a_refused_document(client: RawClient, document: bytes) -> None:
    identifies(client, document)
    assert client.error() == b"E_BAD_BODY IDENTIFY failed to decode JSON body"
    assert client.is_closed()


def test_names_are_case_insensitive(client: RawClient) -> None:
    identifies(client, b'{"FEATURE_negotiation":true,"Sample_Rate":7}')
    assert json.loads(client.response())["sample_rate"] == 7


def test_both_compressions_at_once_are_refused(client: RawClient) -> None:
    identifies(client, b'{"feature_negotiation":true,"snappy":true,"deflate":true}')
    assert client.error() == b"E_IDENTIFY_FAILED cannot enable both deflate and snappy compression"
    assert client.is_closed()


def test_without_feature_negotiation_there_is_no_compression(client: RawClient) -> None:
    assert identifies(client, b'{"snappy":true}').response() == b"OK"
    client.sends(b"WRONG\n")
    assert client.error() == b"E_INVALID invalid command WRONG"


@pytest.mark.parametrize("field", ["client_id", "hostname", "user_agent", "topology_zone", "topology_region"])
def test_fields_of_identify_are_in_stats(client: RawClient, nsqd: NsqdProcess, topic: str, field: str) -> None:
    client.identifies(**{field: "näme <&>"})
    client.subscribes(topic)
    assert client_stats(nsqd, topic)[field] == "näme <&>"


@pytest.mark.parametrize(
    ("field", "value"), [("client_id", "127.0.0.1"), ("hostname", "127.0.0.1"), ("user_agent", "")]
)
def test_a_client_without_identify_is_known_by_its_address(
    client: RawClient, nsqd: NsqdProcess, topic: str, field: str, value: str
) -> None:
    client.subscribes(topic)
    assert client_stats(nsqd, topic)[field] == value


@pytest.mark.parametrize("field", ["client_id", "hostname"])
def test_a_client_that_identifies_without_a_name_has_none(
    client: RawClient, nsqd: NsqdProcess, topic: str, field: str
) -> None:
    client.identifies()
    client.subscribes(topic)
    assert client_stats(nsqd, topic)[field] == ""


def test_the_sample_rate_is_in_stats(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.identifies(sample_rate=99)
    client.subscribes(topic)
    assert client_stats(nsqd, topic)["sample_rate"] == 99


def test_a_client_may_identify_again_before_it_subscribes(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    client.identifies(client_id="first", user_agent="first")
    assert client.identifies(client_id="second")["version"] == "1.3.0"
    client.subscribes(topic)
    stats = client_stats(nsqd, topic)
    assert (stats["client_id"], stats["user_agent"]) == ("second", "")


def test_a_client_that_publishes_only_need_not_identify(client: RawClient, topic: str) -> None:
    client.publishes(topic, b"x")


def test_commands_may_be_sent_before_the_answer_arrives(client: RawClient, topic: str) -> None:
    client.sends(b"IDENTIFY\n" + sized(b"{}") + b"PUB %b\n" % topic.encode() + sized(b"x"))
    assert [client.response(), client.response()] == [b"OK", b"OK"]


@pytest.mark.parametrize("count", [2, 3, 5, 8, 13])
def test_a_session_sent_in_pieces_gets_the_same_answers(client: RawClient, topic: str, count: int) -> None:
    conversation = b"IDENTIFY\n\0\0\0\2{}PUB %b\n\0\0\0\1xNOP\nSUB %b ch\nRDY 1\n" % (topic.encode(), topic.encode())
    for start in range(0, len(conversation), count):
        client.sends(conversation[start : start + count])
    assert [client.response() for _ in range(3)] == [b"OK"] * 3
    assert client.message().body == b"x"


def test_names_of_any_length_are_accepted(client: RawClient, nsqd: NsqdProcess, topic: str) -> None:
    name = os.urandom(2000).hex()
    client.identifies(client_id=name)
    client.subscribes(topic)
    shown = client_stats(nsqd, topic)["client_id"]
    # docs/differences.md: document-size
    assert len(shown) >= 256
    assert name.startswith(shown)
