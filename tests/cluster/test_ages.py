import base64

import pytest

from nsq_compat.cluster.ages import MOST_CHANNELS, oldest_messages
from nsq_compat.cluster.snapshot import Snapshot
from nsq_compat.cluster.statistics import ChannelStats, TopicStats


def snapshot(*channels):
    return Snapshot(taken_at=100.0, topics=(TopicStats(topic_name="t", channels=list(channels)),))


def channel(name, *nodes, depth=5, consumers=0):
    parts = [ChannelStats(channel_name=name, topic_name="t", node=node, depth=depth) for node in nodes]
    return ChannelStats(channel_name=name, topic_name="t", depth=depth, client_count=consumers, nodes=parts)


@pytest.fixture
def published(make_daemon):
    """A daemon whose next message was published at this second."""

    def at(second):
        message = {"id": "i", "timestamp": second * 10**9, "size": 1, "body": base64.b64encode(b"x").decode()}
        return make_daemon().says("channel/peek", {"messages": [message]})

    return at


def test_the_oldest_of_all_nodes_counts(client, published, nobody):
    channels = [channel("c", published(50).address, published(20).address, nobody)]
    assert oldest_messages(client, snapshot(*channels)) == {("t", "c"): 20.0}


def test_what_cannot_be_told_is_left_out(client, daemon):
    assert oldest_messages(client, snapshot(channel("c", daemon.address), channel("empty", depth=0))) == {}


def test_only_the_worst_are_asked_about(client, published):
    node = published(50)
    many = [channel(f"c{number}", node.address, consumers=1) for number in range(30)]
    found = oldest_messages(client, snapshot(*many, channel("unread", node.address, depth=1)))
    assert len(found) == MOST_CHANNELS
    assert ("t", "unread") in found
