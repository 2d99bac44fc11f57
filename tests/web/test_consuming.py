"""/channel/consume and /message/...: all requests for a channel are one consumer."""

import base64
import json

import pytest

from nsq_compat.queue.broker import Broker
from nsq_compat.queue.values import QueueLimits
from tests.web.conftest import Caller, Daemon, code, refused

HERE = "topic=orders&channel=archive"
UNKNOWN = "f" * 16


def publish(call: Caller, *bodies: bytes) -> None:
    for body in bodies:
        assert code(call.post("/pub?topic=orders", body)) == (200, "OK")


def consume(call: Caller, query: str = "max=100") -> dict[bytes, str]:
    """Bodies and ids, in order."""
    response = call.get(f"/channel/consume?{HERE}&{query}")
    assert response.status == 200, response.body
    return {base64.b64decode(each["body"]): each["id"] for each in json.loads(response.body)["messages"]}


def answer(call: Caller, what: str, *ids: str, **others: object) -> dict[str, object]:
    query = "".join(f"&{name}={value}" for name, value in others.items())
    response = call.post(f"/message/{what}?{HERE}{query}", "\n".join(ids).encode())
    assert response.status == 200, response.body
    return dict(json.loads(response.body))


@pytest.fixture
def archive(call: Caller) -> None:
    call.post("/topic/create?topic=orders")
    assert code(call.post(f"/channel/create?{HERE}")) == (200, "")


def test_messages_are_in_flight_until_they_are_finished(call, daemon, archive):
    publish(call, b"a", b"b", b"\xff\x00")
    messages = consume(call)
    assert list(messages) == [b"a", b"b", b"\xff\x00"]
    channel = daemon.broker.topics["orders"].channels["archive"]
    assert (channel.depth, channel.in_flight_count) == (0, 3)
    assert consume(call) == {}
    assert answer(call, "finish", messages[b"a"], messages[b"b"], UNKNOWN) == {"finished": 2, "not_found": [UNKNOWN]}
    assert answer(call, "finish", messages[b"a"]) == {"finished": 0, "not_found": [messages[b"a"]]}
    assert channel.in_flight_count == 1


def test_a_message_has_its_id_timestamp_attempts_and_body(call, archive):
    publish(call, b"a")
    (message,) = json.loads(call.get(f"/channel/consume?{HERE}").body)["messages"]
    assert message == {
        "id": message["id"], "timestamp": 1127 * 10**9 + 687_255_628, "attempts": 1, "body": "YQ==",
    }  # fmt: skip
    answer(call, "requeue", message["id"])
    (message,) = json.loads(call.get(f"/channel/consume?{HERE}").body)["messages"]
    assert message["attempts"] == 2


def test_a_request_gets_as_many_as_it_asks_for_and_others_get_the_rest(call, archive):
    publish(call, *(b"%d" % number for number in range(5)))
    assert list(consume(call, "")) == [b"0"]
    assert list(consume(call, "max=3")) == [b"1", b"2", b"3"]
    assert list(consume(call)) == [b"4"]


def test_large_messages_come_in_several_answers(call, daemon, archive):
    daemon.options.max_msg_size = daemon.options.max_body_size = 1 << 20
    for number in range(8):
        publish(call, b"%d" % number * 300_000)
    counts: list[int] = []
    while sum(counts) < 8:
        counts.append(len(consume(call)))
    assert max(counts) < 6


def test_no_more_are_in_flight_than_a_client_over_tcp_may_have(call, daemon, archive):
    daemon.options.max_rdy_count = 3
    publish(call, *(b"%d" % number for number in range(5)))
    messages = consume(call)
    assert list(messages) == [b"0", b"1", b"2"]
    assert consume(call) == {}
    daemon.while_waiting = lambda: answer(call, "finish", messages[b"0"], messages[b"1"])
    assert list(consume(call, "max=100&wait=5s")) == [b"3", b"4"]


def test_the_first_request_creates_topic_and_channel(call, daemon):
    assert consume(call) == {}
    assert list(daemon.broker.topics["orders"].channels) == ["archive"]


def test_a_requeued_message_comes_again_after_its_delay(call, daemon, archive):
    publish(call, b"a", b"b")
    messages = consume(call)
    assert answer(call, "requeue", messages[b"a"], delay=5000) == {"requeued": 1, "not_found": []}
    assert answer(call, "requeue", messages[b"b"]) == {"requeued": 1, "not_found": []}
    assert list(consume(call)) == [b"b"]
    daemon.broker.schedule.run(daemon.now() + 6)
    assert list(consume(call)) == [b"a"]


def test_a_message_times_out_later_if_it_is_touched(call, daemon, archive):
    publish(call, b"a", b"b")
    messages = consume(call)
    began = daemon.now()
    daemon.monotonic = began + 40
    assert answer(call, "touch", messages[b"a"]) == {"touched": 1, "not_found": []}
    daemon.monotonic = began + 61
    daemon.broker.schedule.run(daemon.now())
    assert list(consume(call)) == [b"b"]
    assert answer(call, "touch", messages[b"a"], UNKNOWN) == {"touched": 1, "not_found": [UNKNOWN]}


def test_a_request_waits_for_a_message(call, daemon, archive):
    daemon.while_waiting = lambda: publish(call, b"a")
    assert list(consume(call, "wait=5s")) == [b"a"]
    assert daemon.waited == [5.0]


def test_messages_that_no_request_waits_for_go_to_other_consumers(call, daemon, archive, drain):
    assert consume(call) == {}
    channel = daemon.broker.topics["orders"].channels["archive"]
    channel.add_consumer(drain)
    assert channel.take(drain, 10, daemon.now(), 60.0) == ()
    publish(call, b"a", b"b")
    assert len(channel.take(drain, 10, daemon.now(), 60.0)) == 2


def test_stats_show_the_consumer_until_it_is_idle(call, daemon, archive):
    publish(call, b"a")
    messages = consume(call)
    stats = json.loads(call.get("/stats?format=json").body)
    (client,) = stats["topics"][0]["channels"][0]["clients"]
    assert (client["client_id"], client["version"], client["in_flight_count"]) == ("http", "HTTP", 1)
    channel = daemon.broker.topics["orders"].channels["archive"]
    began = daemon.now()
    daemon.monotonic = began + 31
    daemon.broker.schedule.run(daemon.now())
    assert len(channel.consumers) == 1
    answer(call, "finish", messages[b"a"])
    for seconds in (60, 62):
        daemon.monotonic = began + seconds
        daemon.broker.schedule.run(daemon.now())
    assert not channel.consumers
    assert consume(call) == {}
    assert len(channel.consumers) == 1


def test_a_deleted_channel_ends_the_wait(call, daemon, archive):
    daemon.while_waiting = lambda: call.post(f"/channel/delete?{HERE}")
    assert consume(call, "wait=5s") == {}
    assert code(call.post(f"/message/finish?{HERE}", b"0" * 16)) == refused(404, "CHANNEL_NOT_FOUND")


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("", "MISSING_ARG_TOPIC"),
        ("topic=orders", "MISSING_ARG_CHANNEL"),
        ("channel=archive", "MISSING_ARG_TOPIC"),
        ("topic=a!&channel=archive", "INVALID_ARG_TOPIC"),
        ("topic=orders&channel=b!", "INVALID_ARG_CHANNEL"),
        *((f"{HERE}&max={value}", "INVALID_ARG_MAX") for value in ("0", "-1", "257", "x", "", "\u0661")),
        *((f"{HERE}&wait={value}", "INVALID_ARG_WAIT") for value in ("61s", "-1s", "5", "soon", "")),
    ],
)
def test_invalid_requests_for_messages(call, daemon, query, error):
    assert code(call.get(f"/channel/consume?{query}")) == refused(400, error)
    assert not daemon.broker.topics


@pytest.mark.parametrize("what", ["finish", "requeue", "touch"])
def test_invalid_answers(call, archive, what):
    assert code(call.post(f"/message/{what}?{HERE}")) == refused(400, "MISSING_ARG_ID")
    assert code(call.post(f"/message/{what}?{HERE}", b"0")) == refused(400, "INVALID_ARG_ID")
    for query, error in (
        ("channel=archive", (400, "MISSING_ARG_TOPIC")),
        ("topic=orders", (400, "MISSING_ARG_CHANNEL")),
        ("topic=other&channel=archive", (404, "TOPIC_NOT_FOUND")),
        ("topic=orders&channel=other", (404, "CHANNEL_NOT_FOUND")),
    ):
        assert code(call.post(f"/message/{what}?{query}", b"0" * 16)) == refused(*error)
    if what == "requeue":
        for delay in ("x", "-1", str(3600 * 1000 + 1)):
            assert code(call.post(f"/message/requeue?{HERE}&delay={delay}", b"0" * 16)) == refused(
                400, "INVALID_ARG_DELAY"
            )


def test_it_counts_as_one_consumer(drain):
    daemon = Daemon(broker=Broker(QueueLimits(max_channel_consumers=1)))
    call = Caller(daemon)
    assert consume(call) == consume(call) == {}
    other = daemon.broker.topics["orders"].channel("other")
    other.add_consumer(drain)
    answer = call.get("/channel/consume?topic=orders&channel=other")
    assert code(answer) == refused(503, "TOO_MANY_CHANNEL_CONSUMERS")
