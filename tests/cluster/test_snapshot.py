import pytest

from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.snapshot import take_snapshot
from tests.cluster.daemon import Addresses


@pytest.fixture
def two(make_daemon):
    daemons = (make_daemon(), make_daemon())
    for daemon in daemons:
        daemon.says("info", daemon.info())
        daemon.says("stats", {"health": "OK", "topics": [{"topic_name": "t", "depth": 2}]})
    return daemons


def test_everything_is_in_it_once(client, two):
    snapshot = take_snapshot(Cluster(client, Addresses(nsqd_http_addresses=(two[0].address, two[1].address))), 5.0)
    assert snapshot.taken_at == 5.0
    assert [(topic.topic_name, topic.depth) for topic in snapshot.topics] == [("t", 4)]
    assert set(snapshot.answers) == {two[0].address, two[1].address}
    assert snapshot.silent() == []
    assert snapshot.errors == ()


def test_a_node_that_is_announced_and_does_not_answer_is_silent(client, two, make_daemon, nobody):
    lookupd = make_daemon()
    port = int(nobody.rpartition(":")[2])
    lookupd.says("nodes", {"producers": [two[0].info(), two[1].info(http_port=port)]})
    lookupd.says("topics", {"topics": ["t", "only announced"]})
    snapshot = take_snapshot(Cluster(client, Addresses(nsqlookupd_http_addresses=(lookupd.address,))), 5.0)
    assert snapshot.silent() == [nobody]
    assert [topic.topic_name for topic in snapshot.topics] == ["only announced", "t"]
    assert len(snapshot.errors) == 1


def test_a_node_of_a_fixed_list_that_does_not_answer_is_silent_too(client, two, nobody):
    addresses = Addresses(nsqd_http_addresses=(two[0].address, nobody))
    snapshot = take_snapshot(Cluster(client, addresses), 5.0)
    assert snapshot.silent() == [nobody]
    assert set(snapshot.answers) == {two[0].address}


def test_a_cluster_that_is_gone_is_a_snapshot_with_errors(client, nobody):
    snapshot = take_snapshot(Cluster(client, Addresses(nsqlookupd_http_addresses=(nobody,))), 5.0)
    assert snapshot.topics == ()
    assert "failed to query any nsqlookupd" in snapshot.errors[0]


def test_a_cluster_without_nodes_has_nothing_wrong_with_it(client, daemon):
    daemon.says("nodes", {"producers": []}).says("topics", {"topics": []})
    assert take_snapshot(Cluster(client, Addresses(nsqlookupd_http_addresses=(daemon.address,))), 5.0).errors == ()
