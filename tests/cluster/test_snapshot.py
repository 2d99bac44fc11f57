import pytest

from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.snapshot import take_snapshot


@pytest.fixture
def two(make_daemon):
    daemons = (make_daemon(), make_daemon())
    for daemon in daemons:
        daemon.says("info", daemon.info())
        daemon.says("stats", {"health": "OK", "topics": [{"topic_name": "t", "depth": 2}]})
    return daemons


def test_a_snapshot_has_all_topics_once(client, two):
    snapshot = take_snapshot(Cluster(client, nsqds=[two[0].address, two[1].address]), 5.0)
    assert snapshot.taken_at == 5.0
    assert [(topic.topic_name, topic.depth) for topic in snapshot.topics] == [("t", 4)]
    assert set(snapshot.node_stats) == {two[0].address, two[1].address}
    assert snapshot.unreachable == ()
    assert snapshot.errors == ()


def test_an_announced_node_that_does_not_answer_is_unreachable(client, two, make_daemon, no_listener):
    lookupd = make_daemon()
    port = int(no_listener.rpartition(":")[2])
    lookupd.says("nodes", {"producers": [two[0].info(), two[1].info(http_port=port)]})
    lookupd.says("topics", {"topics": ["t", "only announced"]})
    snapshot = take_snapshot(Cluster(client, [lookupd.address]), 5.0)
    assert snapshot.unreachable == (no_listener,)
    assert [topic.topic_name for topic in snapshot.topics] == ["only announced", "t"]
    assert len(snapshot.errors) == 1


def test_a_node_of_a_fixed_list_that_does_not_answer_is_unreachable(client, two, no_listener):
    snapshot = take_snapshot(Cluster(client, nsqds=[two[0].address, no_listener]), 5.0)
    assert snapshot.unreachable == (no_listener,)
    assert set(snapshot.node_stats) == {two[0].address}


def test_a_cluster_that_does_not_answer_is_a_snapshot_with_errors(client, no_listener):
    snapshot = take_snapshot(Cluster(client, [no_listener]), 5.0)
    assert snapshot.topics == ()
    assert "failed to query any nsqlookupd" in snapshot.errors[0]


def test_nodes_are_not_unreachable_because_no_nsqlookupd_lists_its_topics(client, two, make_daemon):
    lookupd = make_daemon()
    lookupd.says("nodes", {"producers": [two[0].info(), two[1].info()]})
    snapshot = take_snapshot(Cluster(client, [lookupd.address]), 5.0)
    assert snapshot.unreachable == ()
    assert [(topic.topic_name, topic.depth) for topic in snapshot.topics] == [("t", 4)]
    assert [error for error in snapshot.errors if "failed to query any nsqlookupd" in error]


def test_a_cluster_without_nodes_has_no_errors(client, daemon):
    daemon.says("nodes", {"producers": []}).says("topics", {"topics": []})
    assert take_snapshot(Cluster(client, [daemon.address]), 5.0).errors == ()
