"""/topic/..., /channel/... and /config/:opt: checks in nsqd's order, with nsqd's codes; peek and recent."""

import base64
import itertools
import json

import gevent
import pytest
from gevent.event import Event

from nsq_compat.log.data_path import make_our_folder
from nsq_compat.log.files import OsFiles
from nsq_compat.log.storage import Durability, Storage
from nsq_compat.net.event_loop import yield_to_loop
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.values import QueueLimits, Refused
from nsq_compat.web import administration
from tests.web.conftest import ID_RULE, SECOND, Caller, code, refused

TOPIC_ROUTES = ["create", "delete", "empty", "pause", "unpause"]
CHANNEL_ROUTES = TOPIC_ROUTES


@pytest.fixture(autouse=True)
def known(call):
    call.post("/topic/create?topic=known")
    call.post("/channel/create?topic=known&channel=known")


# --- Clients ----------------------------------------------------------------------------------------------------------


def test_a_client_is_closed_by_its_address(call, daemon):
    assert code(call.post("/client/close?address=127.0.0.1:5000")) == (200, "")
    assert daemon.closed_clients == ["127.0.0.1:5000"]
    assert code(call.post("/client/close?address=127.0.0.1:5001")) == refused(404, "CLIENT_NOT_FOUND")
    assert code(call.post("/client/close")) == refused(400, "MISSING_ARG_ADDRESS")


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("topic=known", (400, "MISSING_ARG_CHANNEL")),
        ("channel=known", (400, "MISSING_ARG_TOPIC")),
        ("topic=other&channel=known", (404, "TOPIC_NOT_FOUND")),
        ("topic=known&channel=other", (404, "CHANNEL_NOT_FOUND")),
        ("topic=known&channel=known", (404, "CLIENT_NOT_FOUND")),
    ],
)
def test_a_consumer_is_closed_only_if_it_consumes_the_channel(call, daemon, query, answer):
    assert code(call.post(f"/client/close?{query}&address=127.0.0.1:5000")) == refused(*answer)
    assert daemon.closed_clients == []


def test_of_several_consumers_with_one_address_those_of_the_channel_are_closed(call, daemon):
    for topic in ("known", "other"):
        (client,) = consumers_of(call, topic)
    query = f"topic=known&channel=known&address={client['remote_address']}"
    assert code(call.post(f"/client/close?{query}")) == (200, "")
    known, other = (daemon.broker.topics[topic].channels["known"].consumers for topic in ("known", "other"))
    assert (len(known), len(other)) == (0, 1)
    assert daemon.closed_clients == []


def consumers_of(call, topic):
    """Those of a channel from which messages are requested."""
    assert call.get(f"/channel/consume?topic={topic}&channel=known").status == 200
    stats = json.loads(call.get(f"/stats?format=json&topic={topic}").body)
    return stats["topics"][0]["channels"][0]["clients"]


# --- Topics -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", TOPIC_ROUTES)
def test_a_topic_route_needs_a_topic_and_a_valid_query(call, route):
    assert code(call.post(f"/topic/{route}")) == refused(400, "MISSING_ARG_TOPIC")
    assert code(call.post(f"/topic/{route}?topic=%")) == refused(400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("route", "invalid", "unknown"),
    [
        ("create", (400, "INVALID_TOPIC"), None),
        ("empty", (400, "INVALID_TOPIC"), (404, "TOPIC_NOT_FOUND")),
        ("delete", (404, "TOPIC_NOT_FOUND"), (404, "TOPIC_NOT_FOUND")),
        ("pause", (404, "TOPIC_NOT_FOUND"), (404, "TOPIC_NOT_FOUND")),
        ("unpause", (404, "TOPIC_NOT_FOUND"), (404, "TOPIC_NOT_FOUND")),
    ],
)
def test_invalid_and_unknown_topics(call, route, invalid, unknown):
    assert code(call.post(f"/topic/{route}?topic=a!")) == refused(*invalid)
    assert code(call.post(f"/topic/{route}?topic=other")) == (refused(*unknown) if unknown else (200, ""))


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("", (400, "MISSING_ARG_TOPIC")),
        ("?topic=%zz", (400, "INVALID_REQUEST")),
        ("?topic=a!", (400, "INVALID_ARG_TOPIC")),
        ("?topic=other", (400, "MISSING_ARG_CHANNEL")),
        ("?topic=other&channel=b!", (400, "INVALID_ARG_CHANNEL")),
        ("?topic=other&channel=known", (404, "TOPIC_NOT_FOUND")),
    ],
)
@pytest.mark.parametrize("route", CHANNEL_ROUTES)
def test_channel_routes_check_in_nsqds_order(call, route, query, answer):
    assert code(call.post(f"/channel/{route}{query}")) == refused(*answer)


@pytest.mark.parametrize("route", ["delete", "empty", "pause", "unpause", "peek"])
def test_an_unknown_channel_is_not_found(call, route):
    method = "GET" if route == "peek" else "POST"
    answer = call(method, f"/channel/{route}?topic=known&channel=other")
    assert code(answer) == refused(404, "CHANNEL_NOT_FOUND")


@pytest.mark.parametrize("route", TOPIC_ROUTES)
def test_success_is_an_empty_response_without_a_type(call, route):
    for response in (
        call.post(f"/channel/{route}?topic=known&channel=known"),
        call.post(f"/topic/{route}?topic=known"),
    ):
        assert (response.status, response.body) == (200, b"")
        assert response.headers == (("X-Nsq-Content-Type", "nsq; version=1.0"),)


def test_topics_and_channels_can_be_created_and_deleted(call, daemon):
    call.post("/topic/create?topic=t")
    call.post("/channel/create?topic=t&channel=c")
    assert list(daemon.broker.topics["t"].channels) == ["c"]
    call.post("/channel/delete?topic=t&channel=c")
    assert not daemon.broker.topics["t"].channels
    call.post("/topic/delete?topic=t")
    assert "t" not in daemon.broker.topics


def test_pausing_is_saved_before_the_response(call, daemon):
    topic = daemon.broker.topics["known"]
    call.post("/topic/pause?topic=known")
    call.post("/channel/pause?topic=known&channel=known")
    assert (topic.paused, topic.channels["known"].paused, daemon.saves) == (True, True, 2)
    call.post("/topic/unpause?topic=known")
    call.post("/channel/unpause?topic=known&channel=known")
    assert (topic.paused, topic.channels["known"].paused, daemon.saves) == (False, False, 4)


def test_emptying_a_topic_does_not_empty_its_channels(call, daemon):
    topic = daemon.broker.topics["known"]
    call.post("/pub?topic=known", b"in the channel")
    call.post("/topic/pause?topic=known")
    call.post("/pub?topic=known", b"in the topic")
    call.post("/topic/empty?topic=known")
    assert (topic.depth, topic.channels["known"].depth) == (0, 1)
    call.post("/channel/empty?topic=known&channel=known")
    assert topic.channels["known"].depth == 0


def test_a_stopping_daemon_creates_nothing(call, daemon):
    daemon.broker.close()
    assert code(call.post("/topic/create?topic=new")) == refused(503, "EXITING")
    assert code(call.post("/channel/create?topic=known&channel=new")) == refused(503, "EXITING")


def bodies(response):
    return [base64.b64decode(message["body"]) for message in json.loads(response.body)["messages"]]


@pytest.fixture
def channel(daemon):
    topic = daemon.broker.topic("t")
    channel = topic.channel("c")
    topic.publish([b"one", b"two", b"three"], 50.0, 1_700_000_000_000_000_000)
    return channel


def test_waiting_messages_are_shown_and_stay(call, channel):
    for _ in range(2):
        response = call.get("/channel/peek?topic=t&channel=c")
        assert bodies(response) == [b"one", b"two", b"three"]
    assert channel.depth == 3
    answer = json.loads(response.body)
    assert answer["depth"] == 3
    first = answer["messages"][0]
    assert list(first) == ["id", "offset", "timestamp", "attempts", "size", "body"]
    assert (first["timestamp"], first["attempts"], first["size"]) == (1_700_000_000_000_000_000, 1, 3)


@pytest.mark.interpreted
def test_a_peek_waits_for_a_long_read(call, channel, monkeypatch):
    peek, unfinished = channel.peek, [1, 2]

    def peek_in_steps(count):
        if unfinished:
            raise BlockingIOError(unfinished.pop(), "more has to be read")
        return peek(count)

    monkeypatch.setattr(channel, "peek", peek_in_steps)
    assert bodies(call.get("/channel/peek?topic=t&channel=c")) == [b"one", b"two", b"three"]


def test_a_peek_has_at_most_limit_messages(call, channel):
    assert bodies(call.get("/channel/peek?topic=t&channel=c&limit=2")) == [b"one", b"two"]


def test_a_long_body_is_shown_partly(call, daemon):
    topic = daemon.broker.topic("t")
    topic.channel("c")
    topic.publish([b"x" * 20_000], 50.0, 1)
    (message,) = json.loads(call.get("/channel/peek?topic=t&channel=c").body)["messages"]
    assert message["size"] == 20_000
    assert len(base64.b64decode(message["body"])) == 16 * 1024


@pytest.mark.parametrize("limit", ["0", "101", "-1", "x", "", "9" * 50])
def test_an_invalid_limit_is_refused(call, channel, limit):
    response = call.get(f"/channel/peek?topic=t&channel=c&limit={limit}")
    assert (response.status, json.loads(response.body)) == (400, {"message": "INVALID_ARG_LIMIT"})


def test_with_auth_servers_there_is_no_peek(daemon, channel):
    daemon.options.peeking_over_http = False
    assert json.loads(Caller(daemon).get("/channel/peek?topic=t&channel=c").body) == {"message": "NOT_FOUND"}


def test_deferred_and_in_flight_messages_have_their_deadlines(call, daemon, channel, drain):
    topic = daemon.broker.topic("t")
    channel.add_consumer(drain)
    channel.take(drain, 1, 50.0, 60.0)
    topic.publish([b"later"], 50.0, 1, 7.5)
    answer = json.loads(call.get("/channel/peek?topic=t&channel=c").body)
    moments = {
        kind: [(base64.b64decode(each["body"]), each[key] - daemon.wall_ns) for each in answer[kind]]
        for kind, key in (("deferred", "due"), ("in_flight", "deadline"))
    }
    assert moments == {"deferred": [(b"later", 7_500_000_000)], "in_flight": [(b"one", 60_000_000_000)]}
    assert [base64.b64decode(each["body"]) for each in answer["messages"]] == [b"two", b"three"]


def test_messages_of_a_topic_without_a_log_are_shown(call, daemon, channel):
    daemon.broker.topic("t").publish([b"later"], 50.0, 1_000, 2.0)
    answer = json.loads(call.get("/topic/recent?topic=t").body)
    assert answer["message_count"] == 4
    assert [message.get("due") for message in answer["messages"]] == [None, None, None, daemon.wall_ns + 2 * SECOND]
    assert base64.b64decode(answer["messages"][0]["body"]) == b"one"


def test_recent_messages_are_shown_even_if_finished(call, daemon, drain, tmp_path):
    files = OsFiles()
    make_our_folder(files, str(tmp_path))
    storage = Storage(files, str(tmp_path), durability=Durability.OS, segment_size=1 << 20)
    daemon.broker = Broker(QueueLimits(), storage)
    topic = daemon.broker.topic("t")
    for number in range(5):
        topic.publish([f"message {number}".encode()], 50.0, 1)
    assert len(drain(topic)) == 5
    shown = Caller(daemon).get("/topic/recent?topic=t&limit=3")
    assert bodies(shown) == [b"message 2", b"message 3", b"message 4"]
    assert json.loads(shown.body)["message_count"] == 5
    assert topic.store is not None
    topic.store.log.close()
    assert json.loads(call.get("/topic/recent").body) == {"message": "MISSING_ARG_TOPIC"}


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


def test_unknown_and_other_options_cannot_be_changed(call, daemon):
    daemon.config["snappy"] = True
    assert code(call.get("/config/nope")) == refused(400, "INVALID_OPTION")
    for name in ("nope", "snappy"):
        assert code(call.put(f"/config/{name}", b"false")) == refused(400, "INVALID_OPTION")


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


def test_empty_and_large_values_are_413(call, daemon):
    assert code(call.put("/config/log_level")) == refused(413, "INVALID_VALUE")
    limit, refusal, _ = call.admission("PUT", "/config/log_level")
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


# --- Messages by their ids --------------------------------------------------------------------------------------------


def ids_in(call, state="messages", more=""):
    return [message["id"] for message in json.loads(call.get(f"/channel/peek?topic=t&channel=c{more}").body)[state]]


def acted(call, action, ids, more=""):
    response = call.post(f"/channel/{action}?topic=t&channel=c{more}", "\n".join(ids).encode())
    assert response.status == 200
    return json.loads(response.body)


def test_messages_are_finished_wherever_they_are_and_others_are_named(call, daemon, channel, drain):
    daemon.broker.topic("t").publish([b"later"], 50.0, 1, 7.5)
    channel.add_consumer(drain)
    channel.take(drain, 1, 50.0, 60.0)
    ids = [ids_in(call)[1], *ids_in(call, "deferred"), *ids_in(call, "in_flight")]
    assert acted(call, "finish", [*ids, "0" * 16]) == {"finished": 3, "not_found": ["0" * 16]}
    assert acted(call, "finish", ids) == {"finished": 0, "not_found": ids}
    assert (channel.depth, channel.deferred_count, channel.in_flight_count) == (1, 0, 0)
    assert bodies(call.get("/channel/peek?topic=t&channel=c")) == [b"two"]


@pytest.fixture
def searching(monkeypatch):
    """Set once a search for messages has begun and lets others run."""
    has_begun = Event()

    def pause(**_: str) -> None:
        has_begun.set()
        yield_to_loop()

    monkeypatch.setattr(administration, "yield_to_loop", pause)
    return has_begun


@pytest.mark.parametrize("action", ["finish", "requeue", "dead_letter"])
def test_requests_that_search_one_channel_take_turns(call, daemon, channel, monkeypatch, searching, action):
    times = itertools.count(50_000)
    monkeypatch.setattr(daemon, "now", lambda: next(times) / 1000)
    ids = [*ids_in(call), *(f"{number:016x}" for number in range(100))]
    one = gevent.spawn(acted, call, action, ids)
    assert searching.wait(20)
    daemon.while_waiting = one.join
    another = gevent.spawn(acted, call, "finish", ids)
    gevent.joinall([one, another], timeout=20)
    first, second = one.get(block=False), another.get(block=False)
    assert (len(first["not_found"]), len(second["not_found"])) == (100, 100 if action == "requeue" else 103)


def test_a_search_gives_up_if_another_one_goes_on(call, daemon, channel, searching):
    first = gevent.spawn(acted, call, "finish", ["0" * 16])
    assert searching.wait(20)
    daemon.while_waiting = lambda: None
    second = gevent.spawn(call.post, f"/channel/finish?topic=t&channel=c&id={'0' * 16}")
    for each in (first, second):
        each.join(20)
    assert code(second.get(block=False)) == refused(503, "CHANNEL_BUSY")
    assert first.get(block=False) == {"finished": 0, "not_found": ["0" * 16]}


def test_a_request_does_not_overtake_those_that_wait_for_a_search(call, daemon, channel, searching):
    ids = ids_in(call)
    late: list[gevent.Greenlet[..., object]] = []

    def until_another_one_comes() -> None:
        first.join(20)
        daemon.while_waiting = second.join
        late.append(gevent.spawn(acted, call, "finish", ids))
        gevent.sleep(0)

    first = gevent.spawn(acted, call, "finish", ["0" * 16])
    assert searching.wait(20)
    daemon.while_waiting = until_another_one_comes
    second = gevent.spawn(acted, call, "finish", ids)
    second.join(20)
    late[0].join(20)
    assert second.get(block=False) == {"finished": 3, "not_found": []}
    assert late[0].get(block=False) == {"finished": 0, "not_found": ids}


def test_ids_may_be_in_the_query(call, channel):
    one, two, _ = ids_in(call)
    response = call.post(f"/channel/finish?topic=t&channel=c&id={one}&id={two}")
    assert json.loads(response.body) == {"finished": 2, "not_found": []}


def test_messages_are_requeued_at_once_or_later(call, channel):
    one, two, _ = ids_in(call)
    assert acted(call, "requeue", [one]) == {"requeued": 1, "not_found": []}
    assert bodies(call.get("/channel/peek?topic=t&channel=c")) == [b"two", b"three", b"one"]
    assert acted(call, "requeue", [two], "&delay=5000") == {"requeued": 1, "not_found": []}
    assert (channel.depth, channel.deferred_count, channel.requeue_count) == (2, 1, 2)
    assert acted(call, "requeue", [two]) == {"requeued": 1, "not_found": []}
    assert (channel.depth, channel.deferred_count) == (3, 0)


def test_dead_letters_leave_the_channel_when_the_dead_letter_topic_has_them(call, daemon, channel):
    one, _, three = ids_in(call)
    assert acted(call, "dead_letter", [one, three, "f" * 16]) == {
        "topic": "t.c.dead",
        "dead_lettered": 2,
        "pending": [],
        "not_found": ["f" * 16],
    }
    assert (channel.depth, channel.in_flight_count, channel.dead_letter_count) == (1, 0, 2)
    shown = call.get("/channel/peek?topic=t.c.dead&channel=redrive")
    assert bodies(shown) == [b"one", b"three"]


def refuse_dead_letters(daemon):
    def refuse(count, now):
        raise Refused("topic t.c.dead is full")

    daemon.broker.topic("t.c.dead").channel("redrive")
    daemon.broker.topic("t.c.dead").admission = refuse


def test_messages_that_the_dead_letter_topic_refuses_stay_on_their_way(call, daemon, channel):
    refuse_dead_letters(daemon)
    one, *_ = ids_in(call)
    answer = acted(call, "dead_letter", [one])
    assert (answer["dead_lettered"], answer["pending"], answer["error"]) == (0, [one], "topic t.c.dead is full")
    assert (channel.depth, channel.in_flight_count) == (2, 1)
    assert acted(call, "requeue", [one]) == {"requeued": 1, "not_found": []}
    assert (channel.depth, channel.in_flight_count) == (3, 0)


def test_a_channel_has_few_messages_that_the_dead_letter_topic_refuses(call, daemon, channel):
    refuse_dead_letters(daemon)
    acted(call, "dead_letter", ids_in(call)[:1])
    daemon.broker.topic("t").publish([b"%d" % number for number in range(500)], daemon.now(), daemon.now_ns())
    for _ in range(3):
        acted(call, "dead_letter", ids_in(call, more="&limit=100"))
    response = call.post("/channel/dead_letter?topic=t&channel=c", ids_in(call)[-1].encode())
    assert code(response) == refused(503, "DEAD_LETTER_TOPIC_REFUSES: topic t.c.dead is full")
    assert (channel.depth, channel.in_flight_count) == (503 - 301, 301)


def test_a_dead_letter_topic_has_no_dead_letters(call, channel):
    one, *_ = ids_in(call)
    acted(call, "dead_letter", [one])
    (moved,) = json.loads(call.get("/channel/peek?topic=t.c.dead&channel=redrive").body)["messages"]
    response = call.post("/channel/dead_letter?topic=t.c.dead&channel=redrive", moved["id"].encode())
    assert response.status == 400
    assert "is a dead-letter topic itself" in json.loads(response.body)["message"]


def test_a_draining_daemon_moves_no_dead_letters(call, daemon, channel):
    daemon.draining = True
    response = call.post("/channel/dead_letter?topic=t&channel=c", ids_in(call)[0].encode())
    assert code(response) == refused(503, "EXITING")
    assert channel.depth == 3


def redrive(call, **query):
    fields = {"topic": "t", "channel": "c", "to": "again", "limit": 2, **query}
    return call.post("/channel/redrive?" + "&".join(f"{key}={value}" for key, value in fields.items()))


def test_a_redrive_moves_the_next_messages_to_another_topic(call, daemon, channel, drain):
    channel.pause()
    again = daemon.broker.topic("again")
    again.channel("drain")
    assert json.loads(redrive(call).body) == {"moved": 2, "depth": 1}
    assert json.loads(redrive(call).body) == {"moved": 1, "depth": 0}
    assert json.loads(redrive(call).body) == {"moved": 0, "depth": 0}
    assert channel.in_flight_count == 0
    assert drain(again) == [b"one", b"two", b"three"]


def test_a_redrive_waits_until_the_channels_of_a_topic_are_known(call, daemon):
    topic = daemon.broker.topic("new")
    topic.channel("c")
    topic.await_channels()
    topic.publish([b"one"], daemon.now(), daemon.now_ns())
    daemon.while_waiting = topic.learn_channels
    assert json.loads(redrive(call, topic="new").body) == {"moved": 1, "depth": 0}


def test_a_redrive_that_is_refused_leaves_the_messages_as_they_were(call, daemon, channel, drain):
    def refuse(count, now):
        raise Refused("topic again is full")

    daemon.broker.topic("again").admission = refuse
    assert code(redrive(call)) == refused(503, "PUB_FAILED: topic again is full")
    assert (channel.depth, channel.in_flight_count) == (3, 0)
    channel.add_consumer(drain)
    frames = channel.take(drain, 10, 50.0, 60.0)
    assert sorted((frame[34:], frame[17]) for frame in frames) == [(b"one", 1), (b"three", 1), (b"two", 1)]


@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ({"to": "t"}, "INVALID_ARG_TO"),
        ({"to": "no%20name"}, "INVALID_ARG_TO"),
        ({"limit": 257}, "INVALID_ARG_LIMIT"),
        ({"limit": 0}, "INVALID_ARG_LIMIT"),
    ],
)
def test_a_redrive_is_checked(call, channel, query, answer):
    assert code(redrive(call, **query)) == refused(400, answer)
    assert channel.depth == 3


@pytest.mark.parametrize("action", ["finish", "requeue", "dead_letter"])
@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (b"", "MISSING_ARG_ID"),
        (b"zzz", "INVALID_ARG_ID"),
        (b"0123456789abcdeF", "INVALID_ARG_ID"),
        (b"0" * 16 + b"\n" + b"1" * 17, "INVALID_ARG_ID"),
        (b"\n".join(b"%016x" % number for number in range(1001)), "INVALID_ARG_ID"),
    ],
)
def test_ids_are_checked(call, channel, action, body, answer):
    assert code(call.post(f"/channel/{action}?topic=t&channel=c", body)) == refused(400, answer, ID_RULE)
    assert code(call.post(f"/channel/{action}?topic=t&channel=other", body)) == refused(404, "CHANNEL_NOT_FOUND")


@pytest.mark.parametrize("delay", ["", "x", "-1", "3600001", "9" * 30])
def test_an_invalid_delay_is_refused(call, channel, delay):
    response = call.post(f"/channel/requeue?topic=t&channel=c&delay={delay}", ids_in(call)[0].encode())
    limit = "delay is a number of milliseconds, up to 3600000"
    assert code(response) == refused(400, "INVALID_ARG_DELAY", limit)


def test_with_auth_servers_messages_cannot_be_taken_out_over_http(daemon, channel):
    daemon.options.peeking_over_http = False
    for action in ("finish", "requeue", "dead_letter", "redrive"):
        assert code(Caller(daemon).post(f"/channel/{action}?topic=t&channel=c")) == refused(404, "NOT_FOUND")
