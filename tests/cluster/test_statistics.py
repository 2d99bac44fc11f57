import pytest

from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.reading import BadAnswer
from nsq_compat.cluster.statistics import read_node_stats

NODE = Node(broadcast_address="n1", hostname="h1", tcp_port=1, http_port=2, version="1.3.0", topology_zone="z")


def read(**topic):
    return read_node_stats(NODE, {"health": "OK", "start_time": 5, "topics": [{"topic_name": "t", **topic}]})


def test_what_was_said_is_marked_with_who_said_it():
    stats = read(channels=[{"channel_name": "c", "clients": [{"client_id": "x"}]}])
    assert (stats.health, stats.start_time) == ("OK", 5)
    (topic,) = stats.topics
    (channel,) = topic.channels
    (client,) = channel.clients
    assert (topic.node, topic.hostname) == ("n1:2", "h1")
    assert (channel.node, channel.hostname, channel.topic_name) == ("n1:2", "h1", "t")
    assert (client.node, client.node_topology_zone) == ("n1:2", "z")


def test_what_is_not_said_is_derived():
    (topic,) = read(depth=10, backend_depth=4, zone_local_msg_count=1, global_msg_count=2).topics
    assert topic.memory_depth == 6
    assert topic.delivery_msg_count == 3


def test_clients_not_asked_for_are_none_and_no_clients_are_none_of_that():
    (topic,) = read(channels=[{"clients": None}, {"clients": []}]).topics
    assert [channel.clients for channel in topic.channels] == [None, []]


@pytest.mark.parametrize(
    "topic",
    [
        {"depth": "1"},
        {"depth": 1.5},
        {"depth": True},
        {"paused": 1},
        {"topic_name": ["t"]},
        {"channels": {}},
        {"channels": [[]]},
        {"channels": [{"clients": [3]}]},
        {"e2e_processing_latency": 3},
        {"e2e_processing_latency": {"percentiles": [{"quantile": "x"}]}},
    ],
)
def test_a_lie_about_types_spoils_the_answer(topic):
    with pytest.raises(BadAnswer):
        read(**topic)


def test_no_topics_may_be_said_in_two_ways():
    assert read_node_stats(NODE, {"topics": None}).topics == read_node_stats(NODE, {"topics": []}).topics == []
