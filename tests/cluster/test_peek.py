import base64

import pytest

from nsq_compat.cluster.cluster import Snapshot
from nsq_compat.cluster.peek import MAX_CHANNELS, Message, oldest_messages, peek, query_message
from nsq_compat.cluster.stats import ChannelStats, TopicStats


def entry(body=b"hello", **fields):
    encoded = base64.b64encode(body).decode()
    return {"id": "i", "timestamp": 1_500_000_000, "attempts": 1, "size": len(body), "body": encoded, **fields}


def test_a_peek_has_messages_of_each_node(client, daemon, no_listener):
    daemon.says("channel/peek", {"messages": [entry()]})
    seen, gone = peek(client, [daemon.address, no_listener], 5, "t", "c")
    (message,) = seen.messages
    assert (message.timestamp, message.attempts, message.text) == (1.5, 1, "hello")
    assert daemon.heard == ["GET channel/peek?topic=t&channel=c&limit=5"]
    assert "connection refused" in gone.error
    assert gone.supported


def test_headers_are_read(client, daemon):
    daemon.says("topic/recent", {"messages": [entry(headers={"a": "b", "c": ""}), entry()]})
    (look,) = peek(client, [daemon.address], 5, "t")
    assert [each.headers for each in look.messages] == [(("a", "b"), ("c", "")), ()]


def test_recent_messages_are_read_in_the_same_way(client, daemon):
    daemon.says("topic/recent", {"messages": [entry()]})
    (look,) = peek(client, [daemon.address], 5, "t")
    assert look.messages[0].text == "hello"
    assert daemon.heard == ["GET topic/recent?topic=t&limit=5"]


def test_gos_nsqd_does_not_support_peeks(client, daemon):
    (look,) = peek(client, [daemon.address], 5, "t", "c")
    assert not look.supported


def test_our_nsqd_without_the_channel_supports_peeks(client, daemon):
    daemon.says("channel/peek", {"message": "CHANNEL_NOT_FOUND"}, 404)
    (look,) = peek(client, [daemon.address], 5, "t", "c")
    assert look.supported
    assert "CHANNEL_NOT_FOUND" in look.error


def test_an_invalid_answer_is_an_error_of_that_node(client, daemon):
    for lie in (
        {"messages": 3},
        {"messages": [{"body": "*"}]},
        {"messages": [{"id": 3}]},
        {"messages": [entry(headers={"a": 1})]},
    ):
        daemon.says("channel/peek", lie)
        (look,) = peek(client, [daemon.address], 5, "t", "c")
        assert "invalid answer" in look.error


def message(body, size=None):
    return Message(body=body, size=size or len(body))


def test_text_is_distinguished_from_binary_bodies():
    assert message(b"a\nb").text == "a\nb"
    assert message("ä".encode()).text == "ä"
    assert message(b"\x00").text is None
    assert message(b"\xff").text is None


def test_a_character_cut_at_the_end_is_left_out():
    body = "aä".encode()[:2]
    assert message(body, 100).text == "a"
    assert message(body).text is None


def test_deferred_and_in_flight_messages_have_a_deadline(client, daemon):
    daemon.says("channel/peek", {"deferred": [entry(due=2_500_000_000)], "in_flight": [entry(deadline=3_500_000_000)]})
    (look,) = peek(client, [daemon.address], 5, "t", "c")
    assert ([each.until for each in look.deferred], [each.until for each in look.in_flight]) == ([2.5], [3.5])
    daemon.says("channel/peek", {"deferred": [entry(due="soon")]})
    assert "invalid answer" in peek(client, [daemon.address], 5, "t", "c")[0].error


def snapshot(*channels):
    return Snapshot(taken_at=100.0, topics=(TopicStats(topic_name="t", channels=list(channels)),))


def channel(name, *nodes, depth=5, consumers=0):
    parts = [ChannelStats(channel_name=name, topic_name="t", node=node, depth=depth) for node in nodes]
    return ChannelStats(channel_name=name, topic_name="t", depth=depth, client_count=consumers, nodes=parts)


@pytest.fixture
def published(make_daemon):
    """A daemon with a next message published at this time."""

    def at(second):
        message = {"id": "i", "timestamp": second * 10**9, "size": 1, "body": base64.b64encode(b"x").decode()}
        return make_daemon().says("channel/peek", {"messages": [message]})

    return at


def test_the_oldest_message_of_all_nodes_is_used(client, published, no_listener):
    channels = [channel("c", published(50).address, published(20).address, no_listener)]
    assert oldest_messages(client, snapshot(*channels)) == {("t", "c"): 20.0}


def test_channels_without_an_answer_are_left_out(client, daemon):
    assert oldest_messages(client, snapshot(channel("c", daemon.address), channel("empty", depth=0))) == {}


def test_only_the_deepest_channels_are_queried(client, published):
    node = published(50)
    many = [channel(f"c{number}", node.address, consumers=1) for number in range(30)]
    found = oldest_messages(client, snapshot(*many, channel("unread", node.address, depth=1)))
    assert len(found) == MAX_CHANNELS
    assert ("t", "unread") in found


# --- One message ------------------------------------------------------------------------------------------------------


def test_where_a_message_is_is_read(client, daemon):
    consumer = {"hostname": "h", "remote_address": "10.0.0.1:5000"}
    states = [
        {"channel_name": "c", "state": "in_flight", "attempts": 2, "since": 10**9, "deadline": 2 * 10**9},
        {"channel_name": "d", "state": "deferred", "due": 3 * 10**9},
    ]
    states[0]["client"] = consumer
    daemon.says("topic/message", {"message": entry(offset=5, segment=2), "held": True, "channels": states})
    found = query_message(client, daemon.address, "t", "i")
    assert daemon.heard == ["GET topic/message?topic=t&id=i"]
    assert found.message is not None
    assert (found.message.text, found.message.offset, found.message.segment, found.held) == ("hello", 5, 2, True)
    assert [(each.since, each.until) for each in found.channels] == [(1.0, 2.0), (None, 3.0)]
    assert found.channels[0].client is not None
    assert found.channels[0].client.hostname == "h"


def test_a_message_that_only_a_channel_has_has_no_place_in_the_log(client, daemon):
    daemon.says("topic/message", {"message": None, "channels": [{"channel_name": "c", "state": "waiting"}]})
    assert query_message(client, daemon.address, "t", "i").message is None


def test_an_nsqd_that_does_not_tell_where_a_message_is_is_named(client, daemon):
    assert not query_message(client, daemon.address, "t", "i").supported
    daemon.says("topic/message", {"message": "MESSAGE_NOT_FOUND"}, 404)
    found = query_message(client, daemon.address, "t", "i")
    assert (found.supported, "does not have the message" in found.error) == (True, True)
    daemon.says("topic/message", {"channels": 5})
    assert "invalid answer" in query_message(client, daemon.address, "t", "i").error
