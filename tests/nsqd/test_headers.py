"""Messages with headers in a live nsqd: published over TCP and HTTP, shown, kept through kill -9, and mirrored."""

import base64
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from nsq_conformance.cluster import eventually
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.nsqd.conftest import connect
from tests.v2_client import ASKS_FOR_HEADERS, Client, Message, hmpub, hpub, pub, split_frames

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[NsqdProcess]:
    with NsqdProcess(installed_nsqd(), data_path(tmp_path, "data")) as nsqd:
        yield nsqd


def data_path(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    path.mkdir(exist_ok=True)
    return path


def asking(nsqd: NsqdProcess) -> Client:
    return connect(nsqd, **ASKS_FOR_HEADERS)


def post(nsqd: NsqdProcess, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    answer = nsqd.asks("POST", path, body, **headers)
    return answer.status, answer.body


def taken(nsqd: NsqdProcess, count: int, topic: bytes = b"t", channel: bytes = b"c") -> list[Message]:
    with asking(nsqd) as consumer:
        return consumer.subscribes(topic, channel, ready=100).takes(count, finishing=True)


def headers_of(messages: list[Message]) -> list[tuple[bytes, Any]]:
    return [(each.body, each.headers) for each in messages]


def test_a_message_that_has_expired_is_not_delivered(nsqd):
    nsqd.create_channel("t", "c")
    for body, expires in ((b"gone", "1700000000.5"), (b"there", "99999999999")):
        assert post(nsqd, "/pub?topic=t", body, **{"X-NSQ-Header-NSQ-Expires": expires})[0] == 200
    with connect(nsqd) as consumer:
        messages = consumer.subscribes(b"t", b"c", ready=100).takes(1, finishing=True)
    assert [each.body for each in messages] == [b"there"]
    assert nsqd.channel_stats("t", "c")["expired_count"] == 1
    assert b'nsqd_channel_expired_total{channel="c",topic="t"} 1.0' in nsqd.asks("GET", "/metrics").body
    status, answer = post(nsqd, "/pub?topic=t", b"m", **{"X-NSQ-Header-NSQ-Expires": "tomorrow"})
    assert status == 400
    assert b"must be a time in Unix seconds" in answer


def test_headers_over_http_reach_a_consumer(nsqd):
    requests: list[dict[str, str]] = [
        {"traceparent": TRACE, "tracestate": "a=1", "Content-Type": "application/json"},
        {"X-NSQ-Header-Key": " x ", "X-NSQ-Header-Other-Key": "y"},
        {"X-NSQ-Header-A": "1", "Content-Type": "application/x-www-form-urlencoded"},
        {"X-NSQ-Header-Content-Type": "text/csv", "Content-Type": "text/plain"},
        {"Content-Type": "application/json"},
        {},
    ]
    expected = [
        {"traceparent": TRACE, "tracestate": "a=1", "content-type": "application/json"},
        {"key": "x", "other-key": "y"},
        {"a": "1"},
        {"content-type": "text/csv"},
        None,
        None,
    ]
    nsqd.create_channel("t", "c")
    for number, headers in enumerate(requests):
        assert post(nsqd, "/pub?topic=t", b"%d" % number, **headers) == (200, b"OK")
    assert headers_of(taken(nsqd, 6)) == [(b"%d" % number, headers) for number, headers in enumerate(expected)]


def test_requests_with_and_without_headers_alternate_on_a_connection(nsqd):
    with closing(HTTPConnection(nsqd.http_address, timeout=30)) as connection:
        for number in range(12):
            headers = {"traceparent": TRACE} if number % 3 == 2 else {}
            connection.request("POST", "/pub?topic=t", b"%d" % number, headers)
            assert connection.getresponse().read() == b"OK"
    messages = taken(nsqd, 12)
    assert headers_of(messages) == [
        (b"%d" % number, {"traceparent": TRACE} if number % 3 == 2 else None) for number in range(12)
    ]


@pytest.mark.parametrize(
    ("path", "headers", "status", "answer"),
    [
        ("/pub?topic=t", {"X-NSQ-Header-": "v"}, 400, b'INVALID_HEADER: invalid header name \\"\\"'),
        ("/pub?topic=t", {"X-NSQ-Header-traceparent": "v", "traceparent": "w"}, 400, b"traceparent is there twice"),
        ("/pub?topic=t", {"X-NSQ-Header-A": "x" * 8193}, 400, b"has 8193 bytes, 8192 are allowed"),
        ("/pub?topic=t&defer=x", {"X-NSQ-Header-A": "x"}, 400, b"INVALID_DEFER"),
        ("/pub", {"X-NSQ-Header-A": "x"}, 400, b"MISSING_ARG_TOPIC"),
        ("/mpub?topic=t", {"X-NSQ-Header-A": "x"}, 400, b"INVALID_HEADER: only the message of a /pub has headers"),
        ("/mpub?topic=t", {"traceparent": TRACE}, 200, b"OK"),
        ("/pub?topic=t&defer=10", {"X-NSQ-Header-A": "x"}, 200, b"OK"),
    ],
)
def test_headers_over_http_are_checked(nsqd, path, headers, status, answer):
    found = post(nsqd, path, b"body", **headers)
    assert found[0] == status
    assert answer in found[1]


def test_the_size_of_a_message_over_http_includes_its_headers(tmp_path):
    with NsqdProcess(installed_nsqd(), data_path(tmp_path, "data"), options=["--max-msg-size=20"]) as nsqd:
        assert post(nsqd, "/pub?topic=t", b"x" * 20) == (200, b"OK")
        assert post(nsqd, "/pub?topic=t", b"x" * 13, **{"X-NSQ-Header-A": "b"}) == (200, b"OK")
        status, answer = post(nsqd, "/pub?topic=t", b"x" * 14, **{"X-NSQ-Header-A": "b"})
        assert (status, b"MSG_TOO_BIG" in answer) == (413, True)


def test_peek_and_recent_show_headers(nsqd):
    with asking(nsqd) as producer:
        producer.says(hpub(b"with", {"Key": "välue"}), pub(b"without")).hears(b"OK", b"OK")
    nsqd.create_channel("t", "c")
    for path in ("/channel/peek?topic=t&channel=c", "/topic/recent?topic=t"):
        shown = nsqd.asks("GET", path).json()["messages"]
        assert [base64.b64decode(each["body"]) for each in shown] == [b"with", b"without"]
        assert [each.get("headers", "none") for each in shown] == [{"key": "välue"}, "none"]
        assert shown[0]["size"] == 4


def test_headers_are_kept_through_kill_9(tmp_path):
    path = data_path(tmp_path, "data")
    for life in range(3):
        with NsqdProcess(installed_nsqd(), path, options=["--sync-timeout=60s"]) as nsqd:
            if not life:
                nsqd.create_channel("t", "c")
            with asking(nsqd) as producer:
                producer.says(hmpub([(b"%d" % life, {"life": str(life)}), (b"none", {})])).hears(b"OK")
            nsqd.kill()
    with NsqdProcess(installed_nsqd(), path) as nsqd:
        with connect(nsqd) as other:
            plain = other.subscribes(b"t", b"c", ready=1).takes(1)
            assert headers_of(plain) == [(b"0", None)]
            other.says(b"RDY 0\n").requeues(plain[0]).says(b"CLS\n").hears(b"CLOSE_WAIT")
        found = headers_of(taken(nsqd, 6))
    assert sorted(found, key=str) == sorted(
        [*((b"%d" % life, {"life": str(life)}) for life in range(3)), *[(b"none", None)] * 3], key=str
    )


def test_headers_are_mirrored_and_taken_over(tmp_path):
    options = ["--mirror-accept", "--mirror-takeover-after=manual", "--node-id=2"]
    with NsqdProcess(installed_nsqd(), data_path(tmp_path, "standby"), options=options) as standby:
        with asking(standby) as producer:  # so that one topic is merged, and one is moved
            producer.says(pub(b"own", topic=b"merged")).hears(b"OK")
        standby.create_channel("merged", "c")
        options = [f"--mirror-to={standby.tcp_address}", "--mirror-timeout=60s", "--node-id=1"]
        with NsqdProcess(installed_nsqd(), data_path(tmp_path, "primary"), options=options) as primary:
            eventually(lambda: primary.asks("GET", "/mirror").json()["standby"]["state"] == "in sync")
            for topic in (b"moved", b"merged"):
                primary.create_channel(topic.decode(), "c")
                with asking(primary) as producer:
                    producer.says(hpub(b"m", {"a": "b"}, topic)).hears(b"OK")
            primary.kill()
        (lost,) = standby.asks("GET", "/mirror").json()["primaries"]
        assert post(standby, f"/mirror/adopt?identity={lost['identity']}")[0] == 200
        with connect(standby) as other:
            assert headers_of(other.subscribes(b"moved", b"c", ready=1).takes(1)) == [(b"m", None)]
            other.says(b"CLS\n").hears(b"CLOSE_WAIT")
        assert sorted(headers_of(taken(standby, 2, b"merged")), key=str) == [(b"m", {"a": "b"}), (b"own", None)]


def test_reading_by_offset_returns_the_frames_of_the_log(nsqd):
    with asking(nsqd) as producer:
        producer.says(hpub(b"with", {"a": "b"}), pub(b"without")).hears(b"OK", b"OK")
    frames, rest = split_frames(nsqd.asks("GET", "/topic/read?topic=t&from=0").body)
    assert headers_of(list(map(Message.of, frames))) == [(b"with", {"a": "b"}), (b"without", None)]
    assert rest == b""
