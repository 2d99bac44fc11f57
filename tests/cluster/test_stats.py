import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.reading import InvalidAnswer
from nsq_compat.cluster.stats import (
    ChannelStats,
    ClientStats,
    Latency,
    TopicStats,
    merged_latency,
    read_latency,
    read_node_stats,
    sum_channel,
    sum_topic,
    sum_topics,
)

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


# --- Sums over nodes --------------------------------------------------------------------------------------------------


def topic(node, depth, **channels):
    parts = [
        ChannelStats(channel_name=name, topic_name="t", node=node, depth=depth) for name, depth in channels.items()
    ]
    return TopicStats(topic_name="t", node=node, hostname=node, depth=depth, channels=parts)


def test_counts_are_added_and_the_parts_are_kept():
    total = sum_topic("t", [topic("b", 1, x=10), topic("a", 2, x=20, y=5)])
    assert (total.node, total.depth) == ("*", 3)
    assert [(part.node, part.depth) for part in total.nodes] == [("a", 2), ("b", 1)]
    assert {channel.channel_name: channel.depth for channel in total.channels} == {"x": 30, "y": 5}
    assert [[channel.depth for channel in part.channels] for part in total.nodes] == [[20, 5], [10]]
    assert [part.node for part in total.channels[0].nodes] == ["a", "b"]


@given(st.lists(st.tuples(st.integers(0, 1000), st.booleans()), max_size=8))
def test_sums_equal_the_sums_of_the_parts(nodes):
    parts = [TopicStats(topic_name="t", depth=depth, message_count=depth, paused=paused) for depth, paused in nodes]
    total = sum_topic("t", parts)
    assert total.depth == total.message_count == sum(depth for depth, _ in nodes)
    assert total.paused == any(paused for _, paused in nodes)


def test_topics_are_grouped_by_name_and_sorted():
    parts = [TopicStats(topic_name=name, depth=depth) for name, depth in (("b", 1), ("a", 2), ("b", 3))]
    assert [(each.topic_name, each.depth) for each in sum_topics(parts)] == [("a", 2), ("b", 4)]


def test_clients_of_the_nodes_zone_and_region_come_first():
    def client(node, zone, region):
        place = {"topology_zone": zone, "topology_region": region}
        return ClientStats(node=node, node_topology_zone="z", node_topology_region="r", **place)

    far, region, zone = client("a", "z", "q"), client("a", "y", "r"), client("a", "z", "r")
    other = client("b", "z", "r")
    total = sum_channel(
        "c", [ChannelStats(node="b", clients=[other]), ChannelStats(node="a", clients=[far, region, zone])]
    )
    assert total.clients == [zone, region, far, other]


def test_clients_that_were_not_requested_are_none():
    assert sum_channel("c", [ChannelStats(clients=None)]).clients is None


def test_percentiles_and_settings_of_a_channel_are_limited():
    percentiles = [{"quantile": 0.5, "value": number} for number in range(100_000)]
    policy = {f"setting{number}": number for number in range(100_000)}
    latency = {"count": 1, "percentiles": percentiles}
    (topic,) = read(channels=[{"e2e_processing_latency": latency, "policy": policy}]).topics
    (channel,) = topic.channels
    assert channel.latency.percentiles is not None
    assert (len(channel.latency.percentiles), len(channel.policy)) == (32, 50)


def test_copies_of_a_standby_are_limited():
    mirroring = {"accepts": True, "primaries": [{"identity": "a"}] * 10_000}
    assert len(read_node_stats(NODE, {"nsq_compat": {"mirroring": mirroring}}).mirroring.primaries) == 100


def test_thousands_of_topics_are_read_and_added_up_in_turns(monkeypatch):
    """A pause of 0 would not do: gevent runs up to 50 such turns before it serves sockets."""
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    stats = read_node_stats(NODE, {"topics": [{"topic_name": f"t{number}"} for number in range(1000)]})
    assert (len(pauses), min(pauses) > 0) == (20, True)
    pauses.clear()
    assert len(sum_topics(stats.topics)) == 1000
    assert (len(pauses), min(pauses) > 0) == (20, True)


def test_reading_ends_when_nothing_waits_for_it_any_more():
    """A page that has given up must leave no work behind: its visitor can ask again and again."""
    checks: list[int] = []

    def check() -> None:
        checks.append(1)
        if len(checks) == 3:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        read_node_stats(NODE, {"topics": [{"topic_name": f"t{number}"} for number in range(1000)]}, check)
    assert len(checks) == 3


def test_threads_continue_one_after_the_other_where_they_pause(monkeypatch):
    pausing: list[int] = []
    most: list[int] = []

    def pause(seconds: float) -> None:
        pausing.append(1)
        most.append(len(pausing))
        threading.Event().wait(0.001)
        pausing.pop()

    monkeypatch.setattr("time.sleep", pause)
    answer = {"topics": [{"topic_name": f"t{number}"} for number in range(200)]}
    readers = [threading.Thread(target=read_node_stats, args=(NODE, answer)) for _ in range(5)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert (len(most), max(most)) == (20, 1)
