import pytest

from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.reading import InvalidAnswer
from nsq_compat.cluster.stats import Latency, merged_latency, read_latency, read_node_stats

NODE = Node(broadcast_address="n1", hostname="h1", tcp_port=1, http_port=2, version="1.3.0", topology_zone="z")


def read(**topic):
    return read_node_stats(NODE, {"health": "OK", "start_time": 5, "topics": [{"topic_name": "t", **topic}]})


def test_stats_have_the_node_they_come_from():
    stats = read(channels=[{"channel_name": "c", "clients": [{"client_id": "x"}]}])
    assert (stats.health, stats.start_time) == ("OK", 5)
    (topic,) = stats.topics
    (channel,) = topic.channels
    (client,) = channel.clients
    assert (topic.node, topic.hostname) == ("n1:2", "h1")
    assert (channel.node, channel.hostname, channel.topic_name) == ("n1:2", "h1", "t")
    assert (client.node, client.node_topology_zone) == ("n1:2", "z")


def test_derived_counts_are_computed():
    (topic,) = read(depth=10, backend_depth=4, zone_local_msg_count=1, global_msg_count=2).topics
    assert topic.memory_depth == 6
    assert topic.delivery_msg_count == 3


def test_clients_are_none_unless_requested():
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
def test_a_wrong_type_invalidates_the_answer(topic):
    with pytest.raises(InvalidAnswer):
        read(**topic)


def test_topics_may_be_null_or_empty():
    assert read_node_stats(NODE, {"topics": None}).topics == read_node_stats(NODE, {"topics": []}).topics == []


def measured(count, **values):
    pairs = [{"quantile": float(name.replace("p", "0.")), "value": value} for name, value in values.items()]
    return read_latency({"count": count, "percentiles": pairs})


def only(latency):
    (percentile,) = latency.percentiles
    return percentile


def test_the_latency_of_one_node_is_average_min_and_max():
    percentile = only(measured(7, p99=5.0))
    assert (percentile.quantile, percentile.average, percentile.min, percentile.max, percentile.count) == (
        *(0.99, 5.0, 5.0, 5.0, 7),
    )


def test_the_average_over_nodes_is_weighted_by_messages():
    percentile = only(merged_latency([measured(1, p99=10.0), measured(3, p99=30.0)]))
    assert (percentile.average, percentile.min, percentile.max, percentile.count) == (25.0, 10.0, 30.0, 4)


def test_a_node_without_messages_is_not_the_minimum():
    percentile = only(merged_latency([measured(0, p99=0.0), measured(2, p99=30.0)]))
    assert (percentile.average, percentile.min) == (30.0, 30.0)


def test_latency_without_measurements_is_zero():
    percentile = only(merged_latency([measured(0, p99=0.0)]))
    assert (percentile.average, percentile.min, percentile.max, percentile.count) == (0.0, 0.0, 0.0, 0)


def test_quantiles_keep_nsqds_order():
    latency = merged_latency([measured(1, p99=1.0, p95=1.0), measured(1, p50=1.0, p99=1.0)])
    assert [percentile.quantile for percentile in latency.percentiles or ()] == [0.99, 0.95, 0.5]


def test_latency_that_nsqd_does_not_measure_is_none():
    assert read_latency({"count": 0, "percentiles": None}) == Latency()
    assert read_latency(None) == Latency()
    assert merged_latency([Latency(), Latency(3)]) == Latency(3)
