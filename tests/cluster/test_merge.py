from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.cluster.merge import channel_over_nodes, topic_over_nodes, topics_over_nodes
from nsq_compat.cluster.statistics import ChannelStats, ClientStats, TopicStats


def topic(node, depth, **channels):
    parts = [
        ChannelStats(channel_name=name, topic_name="t", node=node, depth=depth) for name, depth in channels.items()
    ]
    return TopicStats(topic_name="t", node=node, hostname=node, depth=depth, channels=parts)


def test_counts_are_added_and_the_parts_stay():
    total = topic_over_nodes("t", [topic("b", 1, x=10), topic("a", 2, x=20, y=5)])
    assert (total.node, total.depth) == ("*", 3)
    assert [(part.node, part.depth) for part in total.nodes] == [("a", 2), ("b", 1)]
    assert {channel.channel_name: channel.depth for channel in total.channels} == {"x": 30, "y": 5}
    assert [[channel.depth for channel in part.channels] for part in total.nodes] == [[20, 5], [10]]
    assert [part.node for part in total.channels[0].nodes] == ["a", "b"]


@given(st.lists(st.tuples(st.integers(0, 1000), st.booleans()), max_size=8))
def test_a_sum_is_the_sum_of_its_parts(nodes):
    parts = [TopicStats(topic_name="t", depth=depth, message_count=depth, paused=paused) for depth, paused in nodes]
    total = topic_over_nodes("t", parts)
    assert total.depth == total.message_count == sum(depth for depth, _ in nodes)
    assert total.paused == any(paused for _, paused in nodes)


def test_topics_are_told_apart_and_sorted():
    parts = [TopicStats(topic_name=name, depth=depth) for name, depth in (("b", 1), ("a", 2), ("b", 3))]
    assert [(each.topic_name, each.depth) for each in topics_over_nodes(parts)] == [("a", 2), ("b", 4)]


def test_clients_nearby_come_first():
    def client(node, zone, region):
        place = {"topology_zone": zone, "topology_region": region}
        return ClientStats(node=node, node_topology_zone="z", node_topology_region="r", **place)

    far, region, zone = client("a", "z", "q"), client("a", "y", "r"), client("a", "z", "r")
    other = client("b", "z", "r")
    total = channel_over_nodes(
        "c", [ChannelStats(node="b", clients=[other]), ChannelStats(node="a", clients=[far, region, zone])]
    )
    assert total.clients == [zone, region, far, other]


def test_clients_nobody_asked_for_are_none():
    assert channel_over_nodes("c", [ChannelStats(clients=None)]).clients is None
