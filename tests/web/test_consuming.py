"""/channel/consume and /message/...: all requests for a channel are one consumer, and each stream of events is one."""

import base64
import gc
import json
import weakref

import pytest

from nsq_compat.protocol.message import message_id
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.values import QueueLimits
from tests.web.conftest import ID_RULE, SECOND, Caller, Daemon, code, refused

HERE = "topic=orders&channel=archive"
UNKNOWN = "f" * 16
MAX_RULE = "max is a number of messages, from 1 to 256"
WAIT_RULE = "wait is a duration with a unit, such as 500ms or 10s, up to 60s"
DELAY_RULE = "delay is a number of milliseconds, up to 3600000"


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


@pytest.mark.interpreted
def test_a_request_that_does_not_wait_gets_messages_that_are_read_in_steps(call, daemon, archive, monkeypatch):
    publish(call, b"a")
    channel = daemon.broker.topics["orders"].channels["archive"]
    take, unfinished = channel.backlog.take, [1, 2]

    def take_in_steps(limit, max_bytes):
        if unfinished:
            raise BlockingIOError(unfinished.pop(), "more has to be read")
        return take(limit, max_bytes)

    monkeypatch.setattr(channel.backlog, "take", take_in_steps)
    daemon.while_waiting = lambda: channel.on_alarm(daemon.monotonic)
    assert list(consume(call)) == [b"a"]
    assert len(daemon.waited) == 2
    assert consume(call) == {}
    assert len(daemon.waited) == 2


@pytest.mark.interpreted
def test_an_answer_gets_no_more_messages_once_these_take_long(call, daemon, archive, monkeypatch):
    publish(call, b"a", b"b", b"c")
    backlog = daemon.broker.topics["orders"].channels["archive"].backlog
    take = backlog.take

    def take_slowly(limit, max_bytes):
        daemon.monotonic += 0.003
        return take(1, max_bytes)

    monkeypatch.setattr(backlog, "take", take_slowly)
    assert [list(consume(call)) for _ in range(2)] == [[b"a", b"b"], [b"c"]]


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
    ],
)
def test_invalid_requests_for_messages(call, daemon, query, error):
    assert code(call.get(f"/channel/consume?{query}")) == refused(400, error)
    assert not daemon.broker.topics


@pytest.mark.parametrize(
    ("argument", "error", "rule"),
    [
        *((f"max={value}", "INVALID_ARG_MAX", MAX_RULE) for value in ("0", "-1", "257", "x", "", "\u0661")),
        *((f"wait={value}", "INVALID_ARG_WAIT", WAIT_RULE) for value in ("61s", "-1s", "5", "soon", "")),
    ],
)
def test_an_argument_that_is_not_valid_is_answered_with_its_unit_and_limit(call, daemon, argument, error, rule):
    assert code(call.get(f"/channel/consume?{HERE}&{argument}")) == refused(400, error, rule)
    assert not daemon.broker.topics


@pytest.mark.parametrize("what", ["finish", "requeue", "touch"])
def test_invalid_answers(call, archive, what):
    assert code(call.post(f"/message/{what}?{HERE}")) == refused(400, "MISSING_ARG_ID", ID_RULE)
    assert code(call.post(f"/message/{what}?{HERE}", b"0")) == refused(400, "INVALID_ARG_ID", ID_RULE)
    for query, error in (
        ("channel=archive", (400, "MISSING_ARG_TOPIC")),
        ("topic=orders", (400, "MISSING_ARG_CHANNEL")),
        ("topic=other&channel=archive", (404, "TOPIC_NOT_FOUND")),
        ("topic=orders&channel=other", (404, "CHANNEL_NOT_FOUND")),
    ):
        assert code(call.post(f"/message/{what}?{query}", b"0" * 16)) == refused(*error)
    if what == "requeue":
        for delay in ("x", "-1", str(3600 * 1000 + 1)):
            answer = call.post(f"/message/requeue?{HERE}&delay={delay}", b"0" * 16)
            assert code(answer) == refused(400, "INVALID_ARG_DELAY", DELAY_RULE)


def test_it_counts_as_one_consumer(drain):
    daemon = Daemon(broker=Broker(QueueLimits(max_channel_consumers=1)))
    call = Caller(daemon)
    assert consume(call) == consume(call) == {}
    other = daemon.broker.topics["orders"].channel("other")
    other.add_consumer(drain)
    answer = call.get("/channel/consume?topic=orders&channel=other")
    assert code(answer) == refused(503, "TOO_MANY_CHANNEL_CONSUMERS")


# --- Streams of events ------------------------------------------------------------------------------------------------

EVENTS = {b"accept": b"text/event-stream"}


class Stream:
    """A client of a stream, on a connection that takes all data when the test asks for some."""

    def __init__(self, call: Caller, query: str = "max=100", topic: str = "orders", channel: str = "archive") -> None:
        target = f"/channel/consume?topic={topic}&channel={channel}&{query}"
        self.response = call("GET", target, headers={**EVENTS, b"user-agent": b"test/1"})
        assert self.response.status == 200, self.response.body
        assert self.response.stream is not None
        self.body = self.response.stream
        self.wakes = 0
        self.body.start(self._wake)

    def _wake(self) -> None:
        self.wakes += 1

    def data(self, now: float = 50.0) -> bytes:
        """All that the connection sends now."""
        data, before = b"", -1
        while before != self.wakes:
            before = self.wakes
            data += self.body.data_to_send(now)
        return data

    def takes(self) -> dict[bytes, str]:
        """Bodies and ids, in order."""
        found = {}
        for event in self.data().decode().split("\n\n")[:-1]:
            first, second = event.split("\n")
            message = json.loads(second.removeprefix("data: "))
            assert first == f"id: {message['id']}"
            found[base64.b64decode(message["body"])] = message["id"]
        return found


def clients(call: Caller) -> list[dict[str, object]]:
    stats = json.loads(call.get("/stats?format=json").body)
    return list(stats["topics"][0]["channels"][0]["clients"])


def test_messages_come_as_events_and_are_in_flight_until_they_are_finished(call, daemon, archive):
    publish(call, b"a", b"b\n\nc")
    stream = Stream(call)
    messages = stream.takes()
    assert list(messages) == [b"a", b"b\n\nc"]
    publish(call, b"d")
    assert stream.wakes == 2
    assert list(stream.takes()) == [b"d"]
    assert daemon.broker.topics["orders"].channels["archive"].in_flight_count == 3
    assert answer(call, "finish", messages[b"a"], UNKNOWN) == {"finished": 1, "not_found": [UNKNOWN]}
    assert answer(call, "finish", messages[b"a"]) == {"finished": 0, "not_found": [messages[b"a"]]}


def test_an_event_is_the_json_of_its_message(call, archive):
    publish(call, b"a")
    stream = Stream(call)
    identity, data, *rest = stream.data().decode().split("\n")
    assert json.loads(data.removeprefix("data: ")) == {
        "id": identity.removeprefix("id: "), "timestamp": 1127 * 10**9 + 687_255_628, "attempts": 1, "body": "YQ==",
    }  # fmt: skip
    assert rest == ["", ""]


def test_no_more_than_max_are_in_flight_and_every_answer_makes_room(call, archive):
    publish(call, *(b"%d" % number for number in range(5)))
    stream = Stream(call, "max=2")
    messages = stream.takes()
    assert (list(messages), stream.data()) == ([b"0", b"1"], b"")
    answer(call, "touch", messages[b"0"])
    wakes = stream.wakes
    assert (stream.data(), stream.wakes) == (b"", wakes)
    answer(call, "finish", messages[b"0"])
    assert stream.wakes == wakes + 1
    assert list(stream.takes()) == [b"2"]
    answer(call, "requeue", messages[b"1"])
    assert list(stream.takes()) in ([b"1"], [b"3"])


def test_by_default_one_message_is_in_flight_and_never_more_than_a_client_over_tcp_may_have(call, daemon, archive):
    publish(call, *(b"%d" % number for number in range(9)))
    assert len(Stream(call, "").takes()) == 1
    daemon.options.max_rdy_count = 3
    assert len(Stream(call, "max=100").takes()) == 3


def test_many_messages_come_in_portions_so_that_others_are_served_in_between(call, archive):
    publish(call, *(b"%d" % number for number in range(100)))
    stream = Stream(call)
    first = stream.body.data_to_send(50.0)
    assert (first.count(b"data: "), stream.wakes) == (8, 2)
    assert len(stream.takes()) == 92


def test_a_message_that_is_not_answered_comes_again_on_the_same_stream(call, daemon, archive):
    publish(call, b"a")
    stream = Stream(call, "max=1")
    assert list(stream.takes()) == [b"a"]
    daemon.broker.schedule.run(daemon.now() + 61)
    assert stream.wakes >= 2
    assert b'"attempts":2' in stream.data()


def test_a_comment_keeps_an_idle_stream_alive(call, archive):
    stream = Stream(call)
    began = 50.0
    assert stream.body.next_wakeup == began + 15
    assert stream.data(began + 14) == b""
    assert stream.data(began + 15) == b": keep-alive\n\n"
    publish(call, b"a")
    assert stream.data(began + 20).startswith(b"id: ")
    assert stream.body.next_wakeup == began + 35
    assert stream.data(began + 34) == b""


def test_streams_and_requests_share_the_messages_and_any_request_answers_them(call, archive):
    streams = [Stream(call, "max=2"), Stream(call, "max=2")]
    publish(call, *(b"%d" % number for number in range(6)))
    messages = streams[0].takes() | streams[1].takes() | consume(call)
    assert len(messages) == 6
    assert answer(call, "finish", *messages.values(), UNKNOWN) == {"finished": 6, "not_found": [UNKNOWN]}
    assert [each["finish_count"] for each in clients(call)] == [2, 2, 2]


def test_stats_show_each_stream_until_it_ends(call, archive):
    publish(call, b"a")
    stream = Stream(call, "max=7")
    stream.takes()
    (client,) = clients(call)
    assert (client["client_id"], client["version"], client["user_agent"]) == ("http", "SSE", "test/1")
    assert (client["ready_count"], client["in_flight_count"], client["message_count"]) == (7, 1, 1)
    stream.body.close()
    assert clients(call) == []


def test_messages_of_a_stream_that_ended_can_be_answered_until_they_time_out(call, daemon, archive):
    publish(call, b"a", b"b", b"c")
    stream = Stream(call)
    messages = stream.takes()
    began = daemon.now()
    stream.body.close()
    stream.body.close()
    daemon.broker.schedule.run(began)
    assert answer(call, "finish", messages[b"a"]) == {"finished": 1, "not_found": []}
    daemon.monotonic = began + 40
    assert answer(call, "touch", messages[b"b"]) == {"touched": 1, "not_found": []}
    daemon.monotonic = began + 61
    daemon.broker.schedule.run(daemon.now())
    assert list(consume(call)) == [b"c"]
    assert answer(call, "requeue", messages[b"b"]) == {"requeued": 1, "not_found": []}
    assert answer(call, "requeue", messages[b"b"]) == {"requeued": 0, "not_found": [messages[b"b"]]}


def test_messages_of_a_consumer_over_tcp_that_left_are_not_answered_over_http(call, daemon, archive, drain):
    channel = daemon.broker.topics["orders"].channels["archive"]
    publish(call, b"a")
    channel.add_consumer(drain)
    (frame,) = channel.take(drain, 1, daemon.now(), 60.0)
    channel.remove_consumer(drain)
    mine = message_id(frame).decode("ascii")
    for word, done in (("finish", "finished"), ("requeue", "requeued"), ("touch", "touched")):
        assert answer(call, word, mine) == {done: 0, "not_found": [mine]}
    assert channel.in_flight_count == 1


@pytest.mark.parametrize("was_woken", [True, False])
def test_a_stream_whose_client_does_not_read_leaves_messages_to_others(call, archive, daemon, drain, was_woken):
    stream = Stream(call)
    assert stream.data() == b""
    channel = daemon.broker.topics["orders"].channels["archive"]
    channel.add_consumer(drain)
    if was_woken:
        publish(call, b"a")
        stream.body.stalled()
    else:
        stream.body.stalled()
        publish(call, b"a")
    assert len(channel.take(drain, 1, daemon.now(), 60.0)) == 1
    publish(call, b"b")
    assert list(stream.takes()) == [b"b"]


def test_a_woken_stream_that_ends_leaves_the_message_to_others(call, archive, daemon, drain):
    stream = Stream(call)
    assert stream.data() == b""
    channel = daemon.broker.topics["orders"].channels["archive"]
    channel.add_consumer(drain)
    assert channel.take(drain, 10, daemon.now(), 60.0) == ()
    publish(call, b"a")
    stream.body.close()
    assert stream.data() == b""
    assert len(channel.take(drain, 10, daemon.now(), 60.0)) == 1


def test_a_deleted_channel_ends_its_streams(call, archive):
    stream = Stream(call)
    call.post(f"/channel/delete?{HERE}")
    assert (stream.body.is_over, stream.wakes, stream.data()) == (True, 2, b"")


def test_an_ephemeral_channel_is_deleted_with_its_last_stream(call, daemon, archive):
    streams = [Stream(call, channel="live%23ephemeral") for _ in range(2)]
    channels = daemon.broker.topics["orders"].channels
    for stream in streams:
        assert "live#ephemeral" in channels
        stream.body.close()
    assert list(channels) == ["archive"]


def test_streams_that_ended_are_not_kept_until_their_messages_are_answered(call, daemon, archive):
    publish(call, b"a")
    streams = [Stream(call) for _ in range(10)]
    for stream in streams:
        stream.data()
        stream.body.close()
    weak = [weakref.ref(stream.body) for stream in streams]
    del stream, streams
    gc.collect()
    assert [each() for each in weak] == [None] * 10


def test_a_stream_counts_as_a_consumer():
    daemon = Daemon(broker=Broker(QueueLimits(max_channel_consumers=1)))
    call = Caller(daemon)
    stream = Stream(call)
    refusal = refused(503, "TOO_MANY_CHANNEL_CONSUMERS")
    assert code(call("GET", f"/channel/consume?{HERE}", headers=EVENTS)) == refusal
    stream.body.close()
    Stream(call)


@pytest.mark.parametrize(
    ("accept", "streams"),
    [
        ("text/event-stream", True),
        ("application/json, TEXT/Event-Stream;q=0.5", True),
        ("*/*", False),
        ("text/event-streams", False),
        ("text/*", False),
        ("", False),
    ],
)
def test_the_header_accept_selects_the_stream(call, archive, accept, streams):
    response = call("GET", f"/channel/consume?{HERE}", headers={b"accept": accept.encode()})
    assert (response.stream is not None) == streams
    content_type = "text/event-stream" if streams else "application/json; charset=utf-8"
    assert ("Content-Type", content_type) in response.headers
    assert ("Cache-Control", "no-store") in response.headers


def test_head_takes_nothing(call, daemon, archive):
    publish(call, b"a")
    for headers in (None, EVENTS):
        response = call("HEAD", f"/channel/consume?{HERE}", headers=headers)
        assert (response.status, response.stream) == (405, None)
    channel = daemon.broker.topics["orders"].channels["archive"]
    assert (channel.depth, len(channel.consumers)) == (1, 0)


def test_the_message_timeout_is_that_of_nsqd(call, daemon, archive):
    daemon.options.msg_timeout = 5 * SECOND
    publish(call, b"a")
    stream = Stream(call, "max=1")
    assert list(stream.takes()) == [b"a"]
    daemon.broker.schedule.run(daemon.now() + 6)
    assert list(stream.takes()) == [b"a"]
