import pytest

from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.reading import InvalidAnswer
from nsq_compat.cluster.stats import Latency, merged_latency, read_latency, read_node_stats

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
    with pytest.raises(InvalidAnswer):
        read(**topic)


def test_no_topics_may_be_said_in_two_ways():
    assert read_node_stats(NODE, {"topics": None}).topics == read_node_stats(NODE, {"topics": []}).topics == []


def measured(count, **values):
    pairs = [{"quantile": float(name.replace("p", "0.")), "value": value} for name, value in values.items()]
    return read_latency({"count": count, "percentiles": pairs})


def only(latency):
    (percentile,) = latency.percentiles
    return percentile


def test_one_node_is_its_own_average_and_extremes():
    percentile = only(measured(7, p99=5.0))
    assert (percentile.quantile, percentile.average, percentile.min, percentile.max, percentile.count) == (
        *(0.99, 5.0, 5.0, 5.0, 7),
    )


def test_over_nodes_the_average_is_weighted_by_messages():
    percentile = only(merged_latency([measured(1, p99=10.0), measured(3, p99=30.0)]))
    assert (percentile.average, percentile.min, percentile.max, percentile.count) == (25.0, 10.0, 30.0, 4)


def test_a_node_without_messages_does_not_count_as_the_fastest():
    percentile = only(merged_latency([measured(0, p99=0.0), measured(2, p99=30.0)]))
    assert (percentile.average, percentile.min) == (30.0, 30.0)


def test_nothing_measured_anywhere_is_zero():
    percentile = only(merged_latency([measured(0, p99=0.0)]))
    assert (percentile.average, percentile.min, percentile.max, percentile.count) == (0.0, 0.0, 0.0, 0)


def test_quantiles_keep_the_order_nsqd_gave_them():
    latency = merged_latency([measured(1, p99=1.0, p95=1.0), measured(1, p50=1.0, p99=1.0)])
    assert [percentile.quantile for percentile in latency.percentiles or ()] == [0.99, 0.95, 0.5]


def test_not_asked_for_is_none():
    assert read_latency({"count": 0, "percentiles": None}) == Latency()
    assert read_latency(None) == Latency()
    assert merged_latency([Latency(), Latency(3)]) == Latency(3)
