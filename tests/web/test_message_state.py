"""/topic/message: one message, and where it is in each channel."""

import base64
import json
from typing import Any

import pytest

from nsq_compat.log.data_path import make_our_folder
from nsq_compat.log.files import OsFiles
from nsq_compat.log.storage import Durability, Storage
from nsq_compat.policy.access import CONSUME
from nsq_compat.protocol.headers import encode
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import ClientStats, QueueLimits
from tests.web.conftest import ID_RULE, SECOND, Caller, Drain, code, refused


@pytest.fixture(params=[Durability.OS, Durability.MEMORY], ids=["os", "memory"])
def daemon(daemon, tmp_path, request):
    """A daemon with a data path."""
    make_our_folder(OsFiles(), str(tmp_path))
    daemon.broker = Broker(
        QueueLimits(), Storage(OsFiles(), str(tmp_path), durability=request.param, segment_size=2000)
    )
    return daemon


@pytest.fixture
def topic(daemon):
    """A topic with a log, and a message in each of the channels a and b."""
    topic: Topic = daemon.broker.topic("t")
    for name in "ab":
        topic.channel(name)
    topic.publish([b"one"], 50.0, daemon.wall_ns)
    yield topic
    assert topic.store is not None
    topic.store.log.close()


class Client(Drain):
    def stats(self) -> ClientStats:
        return ClientStats(
            client_id="c", hostname="h", version="V2", remote_address="10.0.0.1:5000", state=3, connect_ts=0,
            user_agent="agent",
        )  # fmt: skip


def last_id(call: Caller) -> str:
    (message,) = json.loads(call.get("/topic/recent?topic=t&limit=1").body)["messages"]
    found: str = message["id"]
    return found


def shown(call: Caller, message_id: str = "") -> Any:
    response = call.get(f"/topic/message?topic=t&id={message_id or last_id(call)}")
    assert response.status == 200, response
    return json.loads(response.body)


def test_a_message_is_shown_with_its_place_in_the_log(call, daemon, topic):
    topic.publish_with_headers([encode([("traceparent", "00-1-2-01")]) + b"two"], 50.0, daemon.wall_ns)
    found = shown(call)["message"]
    assert base64.b64decode(found["body"]) == b"two"
    assert (found["offset"], found["segment"], found["headers"]) == (1, 1, {"traceparent": "00-1-2-01"})
    assert found["timestamp"] == daemon.wall_ns


def test_each_channel_has_its_own_state(call, daemon, topic):
    client = Client()
    channel = topic.channels["a"]
    channel.add_consumer(client)
    channel.take(client, 1, 50.0, 60.0)
    daemon.monotonic += 2
    now = daemon.wall_ns
    in_flight, waiting = shown(call)["channels"]
    assert in_flight == {
        "channel_name": "a",
        "state": "in_flight",
        "attempts": 1,
        "since": now - 2 * SECOND,
        "deadline": now + 58 * SECOND,
        "client": {"client_id": "c", "hostname": "h", "remote_address": "10.0.0.1:5000", "user_agent": "agent"},
    }
    assert waiting == {"channel_name": "b", "state": "waiting", "attempts": 1}
    channel.finish(client, list(client.in_flight.frames))
    assert shown(call)["channels"][0] == {"channel_name": "a", "state": "gone"}


def test_a_message_that_came_back_has_the_client_and_the_reason(call, daemon, topic):
    client = Client()
    channel = topic.channels["a"]
    channel.add_consumer(client)
    channel.take(client, 1, 50.0, 60.0)
    (message_id,) = client.in_flight.frames
    channel.requeue(client, message_id, daemon.monotonic, 0.0)
    daemon.monotonic += 2
    had_it = {"client_id": "c", "remote_address": "1.2.3.4:5"}
    back, other = shown(call)["channels"]
    assert (back["state"], back["attempts"]) == ("waiting", 2)
    assert back["returned"] == {"reason": "requeued", "at": daemon.wall_ns - 2 * SECOND, "client": had_it}
    assert "returned" not in other
    channel.take(client, 1, 52.0, 60.0)
    channel.remove_consumer(client)
    assert shown(call)["channels"][0]["returned"] == {"reason": "disconnected", "client": had_it}


def test_a_deferred_message_has_the_time_when_it_is_due(call, daemon, topic):
    topic.publish([b"later"], 50.0, daemon.wall_ns, 7.5)
    found = shown(call)
    due = daemon.wall_ns + 7_500_000_000
    assert found["message"] is None or found["message"]["due"] == due  # at level `memory` it is not in the log
    assert found["channels"][0] == {"channel_name": "a", "state": "deferred", "attempts": 1, "due": due}


def test_a_message_that_the_topic_holds_is_held_in_its_channels(call, daemon, topic):
    first = last_id(call)
    topic.pause()
    topic.publish([b"two"], 50.0, daemon.wall_ns)
    found = shown(call)
    assert found["held"]
    assert [each["state"] for each in found["channels"]] == ["held", "held"]
    assert [each["state"] for each in shown(call, first)["channels"]] == ["waiting", "waiting"]


def test_a_message_of_an_emptied_topic_is_shown_as_long_as_a_channel_has_it(call, topic):
    message_id = last_id(call)
    topic.empty()
    found = shown(call, message_id)
    assert [each["state"] for each in found["channels"]] == ["waiting", "waiting"]
    topic.empty_channel("a")
    topic.empty_channel("b")
    gone = call.get(f"/topic/message?topic=t&id={message_id}")
    assert code(gone) == refused(404, "MESSAGE_NOT_FOUND")


def test_an_ephemeral_topic_has_states_without_a_message(call, daemon):
    topic = daemon.broker.topic("t#ephemeral")
    topic.channel("c")
    topic.publish([b"one"], 50.0, daemon.wall_ns)
    (recent,) = json.loads(call.get("/topic/recent?topic=t%23ephemeral").body)["messages"]
    found = json.loads(call.get(f"/topic/message?topic=t%23ephemeral&id={recent['id']}").body)
    assert found == {
        "message": None,
        "held": False,
        "channels": [{"channel_name": "c", "state": "waiting", "attempts": 1}],
    }


@pytest.mark.parametrize(
    ("query", "refusal"),
    [
        ("topic=other&id=0123456789abcdef", (404, "TOPIC_NOT_FOUND")),
        ("id=0123456789abcdef", (400, "MISSING_ARG_TOPIC")),
        ("topic=t", (400, "MISSING_ARG_ID", ID_RULE)),
        ("topic=t&id=x", (400, "INVALID_ARG_ID", ID_RULE)),
        (
            "topic=t&id=0123456789abcdef&id=0123456789abcdea",
            (400, "INVALID_ARG_ID", "id is the id of one message, not of several"),
        ),
        ("topic=t&id=0123456789abcdef", (404, "MESSAGE_NOT_FOUND")),
    ],
)
def test_wrong_requests_are_refused(call, topic, query, refusal):
    assert code(call.get(f"/topic/message?{query}")) == refused(*refusal)


def test_it_needs_the_permission_to_consume_and_is_closed_with_auth_servers(daemon, call):
    assert call.api.routes["/topic/message"]["GET"].permission == CONSUME
    daemon.options.peeking_over_http = False
    assert code(Caller(daemon).get("/topic/message?topic=t&id=0123456789abcdef")) == refused(404, "NOT_FOUND")
