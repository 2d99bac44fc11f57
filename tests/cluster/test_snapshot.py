import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.snapshot import channel_over_nodes, take_snapshot, topic_over_nodes, topics_over_nodes
from nsq_compat.cluster.stats import ChannelStats, ClientStats, TopicStats
from tests.cluster.daemon import Addresses


@pytest.fixture
def two(make_daemon):
    daemons = (make_daemon(), make_daemon())
    for daemon in daemons:
        daemon.says("info", daemon.info())
        daemon.says("stats", {"health": "OK", "topics": [{"topic_name": "t", "depth": 2}]})
    return daemons


def test_a_snapshot_has_all_topics_once(client, two):
    snapshot = take_snapshot(Cluster(client, Addresses(nsqd_http_addresses=(two[0].address, two[1].address))), 5.0)
    assert snapshot.taken_at == 5.0
    assert [(topic.topic_name, topic.depth) for topic in snapshot.topics] == [("t", 4)]
    assert set(snapshot.answers) == {two[0].address, two[1].address}
    assert snapshot.unreachable() == []
    assert snapshot.errors == ()


def test_an_announced_node_that_does_not_answer_is_unreachable(client, two, make_daemon, no_listener):
    lookupd = make_daemon()
    port = int(no_listener.rpartition(":")[2])
    lookupd.says("nodes", {"producers": [two[0].info(), two[1].info(http_port=port)]})
    lookupd.says("topics", {"topics": ["t", "only announced"]})
    snapshot = take_snapshot(Cluster(client, Addresses(nsqlookupd_http_addresses=(lookupd.address,))), 5.0)
    assert snapshot.unreachable() == [no_listener]
    assert [topic.topic_name for topic in snapshot.topics] == ["only announced", "t"]
    assert len(snapshot.errors) == 1


def test_a_node_of_a_fixed_list_that_does_not_answer_is_unreachable(client, two, no_listener):
    addresses = Addresses(nsqd_http_addresses=(two[0].address, no_listener))
    snapshot = take_snapshot(Cluster(client, addresses), 5.0)
    assert snapshot.unreachable() == [no_listener]
    assert set(snapshot.answers) == {two[0].address}


def test_a_cluster_that_does_not_answer_is_a_snapshot_with_errors(client, no_listener):
    snapshot = take_snapshot(Cluster(client, Addresses(nsqlookupd_http_addresses=(no_listener,))), 5.0)
    assert snapshot.topics == ()
    assert "failed to query any nsqlookupd" in snapshot.errors[0]


def test_nodes_are_not_unreachable_because_no_nsqlookupd_lists_its_topics(client, two, make_daemon):
    lookupd = make_daemon()
    lookupd.says("nodes", {"producers": [two[0].info(), two[1].info()]})
    snapshot = take_snapshot(Cluster(client, Addresses(nsqlookupd_http_addresses=(lookupd.address,))), 5.0)
    assert snapshot.unreachable() == []
    assert [(topic.topic_name, topic.depth) for topic in snapshot.topics] == [("t", 4)]
    assert [error for error in snapshot.errors if "failed to query any nsqlookupd" in error]


def test_a_cluster_without_nodes_has_no_errors(client, daemon):
    daemon.says("nodes", {"producers": []}).says("topics", {"topics": []})
    assert take_snapshot(Cluster(client, Addresses(nsqlookupd_http_addresses=(daemon.address,))), 5.0).errors == ()


def topic(node, depth, **channels):
    parts = [
        ChannelStats(channel_name=name, topic_name="t", node=node, depth=depth) for name, depth in channels.items()
    ]
    return TopicStats(topic_name="t", node=node, hostname=node, depth=depth, channels=parts)


def test_counts_are_added_and_the_parts_are_kept():
    total = topic_over_nodes("t", [topic("b", 1, x=10), topic("a", 2, x=20, y=5)])
    assert (total.node, total.depth) == ("*", 3)
    assert [(part.node, part.depth) for part in total.nodes] == [("a", 2), ("b", 1)]
    assert {channel.channel_name: channel.depth for channel in total.channels} == {"x": 30, "y": 5}
    assert [[channel.depth for channel in part.channels] for part in total.nodes] == [[20, 5], [10]]
    assert [part.node for part in total.channels[0].nodes] == ["a", "b"]


@given(st.lists(st.tuples(st.integers(0, 1000), st.booleans()), max_size=8))
def test_sums_equal_the_sums_of_the_parts(nodes):
    parts = [TopicStats(topic_name="t", depth=depth, message_count=depth, paused=paused) for depth, paused in nodes]
    total = topic_over_nodes("t", parts)
    assert total.depth == total.message_count == sum(depth for depth, _ in nodes)
    assert total.paused == any(paused for _, paused in nodes)


def test_topics_are_grouped_by_name_and_sorted():
    parts = [TopicStats(topic_name=name, depth=depth) for name, depth in (("b", 1), ("a", 2), ("b", 3))]
    assert [(each.topic_name, each.depth) for each in topics_over_nodes(parts)] == [("a", 2), ("b", 4)]


def test_clients_of_the_nodes_zone_and_region_come_first():
    def client(node, zone, region):
        place = {"topology_zone": zone, "topology_region": region}
        return ClientStats(node=node, node_topology_zone="z", node_topology_region="r", **place)

    far, region, zone = client("a", "z", "q"), client("a", "y", "r"), client("a", "z", "r")
    other = client("b", "z", "r")
    total = channel_over_nodes(
        "c", [ChannelStats(node="b", clients=[other]), ChannelStats(node="a", clients=[far, region, zone])]
    )
    assert total.clients == [zone, region, far, other]


def test_clients_that_were_not_requested_are_none():
    assert channel_over_nodes("c", [ChannelStats(clients=None)]).clients is None
