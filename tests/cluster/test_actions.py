"""Actions on a cluster, as the requests that daemons receive."""

import pytest

from nsq_compat.cluster.actions import Actions
from nsq_compat.cluster.cluster import AllFailed, Cluster
from tests.cluster.daemon import Addresses

DONE = b""


@pytest.fixture
def nsqd(make_daemon):
    daemon = make_daemon()
    daemon.says("info", daemon.info()).says("stats", {"topics": [{"topic_name": "t"}]})
    for action in ("create", "delete", "pause", "unpause", "empty"):
        daemon.says(f"topic/{action}", DONE).says(f"channel/{action}", DONE)
    return daemon.says("pub", b"OK")


@pytest.fixture
def lookupd(make_daemon, nsqd):
    daemon = make_daemon()
    daemon.says("lookup", {"producers": [nsqd.info()]}).says("topic/tombstone", DONE)
    for action in ("create", "delete"):
        daemon.says(f"topic/{action}", DONE).says(f"channel/{action}", DONE)
    return daemon


@pytest.fixture
def actions(client, lookupd):
    return Actions(Cluster(client, Addresses(nsqlookupd_http_addresses=(lookupd.address,))))


@pytest.fixture
def actions_on_nsqds(client, nsqd):
    return Actions(Cluster(client, Addresses(nsqd_http_addresses=(nsqd.address,))))


@pytest.mark.parametrize("action", ["pause", "unpause", "empty"])
def test_a_change_reaches_the_nodes_that_have_the_topic(actions, nsqd, lookupd, action):
    assert actions.change(action, "t") == ()
    assert actions.change(action, "t", "c#ephemeral") == ()
    assert nsqd.orders == [f"topic/{action}?topic=t", f"channel/{action}?topic=t&channel=c%23ephemeral"]
    assert lookupd.orders == []


def test_a_change_may_be_for_one_node(actions, nsqd, lookupd):
    assert actions.change("pause", "t", node=nsqd.address) == ()
    assert nsqd.orders == ["topic/pause?topic=t"]
    assert lookupd.heard == []


def test_a_deletion_goes_to_nsqlookupds_first(actions, nsqd, lookupd):
    assert actions.delete("t", "c") == ()
    assert lookupd.orders == nsqd.orders == ["channel/delete?topic=t&channel=c"]


def test_a_topic_is_created_in_nsqlookupds_and_a_channel_on_nodes_too(actions, nsqd, lookupd):
    assert actions.create("t") == ()
    assert nsqd.orders == []
    assert actions.create("t", "c") == ()
    assert lookupd.orders == ["topic/create?topic=t", "topic/create?topic=t", "channel/create?topic=t&channel=c"]
    assert nsqd.orders == ["channel/create?topic=t&channel=c"]


def test_without_nsqlookupds_only_nodes_are_called(actions_on_nsqds, nsqd):
    assert actions_on_nsqds.create("t") == ()
    assert nsqd.orders == []
    with pytest.raises(AllFailed, match="failed to query any nsqlookupd: $"):
        actions_on_nsqds.create("t", "c")
    assert actions_on_nsqds.create_on([nsqd.address], "t", "c") == ()
    assert nsqd.orders == ["topic/create?topic=t", "channel/create?topic=t&channel=c"]


def test_a_tombstone_is_set_and_the_topic_is_deleted_on_the_node(actions, nsqd, lookupd):
    assert actions.tombstone("t", nsqd.address) == ()
    port = nsqd.address.rpartition(":")[2]
    assert lookupd.orders == [f"topic/tombstone?topic=t&node=127.0.0.1%3A{port}"]
    assert nsqd.orders == ["topic/delete?topic=t"]


def test_a_tombstone_for_a_node_that_is_gone_is_an_error(actions, no_listener):
    with pytest.raises(AllFailed, match="failed to query any nsqd: "):
        actions.tombstone("t", no_listener)


def test_a_failed_node_is_named(actions, nsqd):
    nsqd.says("channel/pause", {"message": "CHANNEL_NOT_FOUND"}, 404)
    (error,) = actions.change("pause", "t", "c")
    assert "CHANNEL_NOT_FOUND" in error


def test_a_message_goes_to_one_node(actions, nsqd):
    assert actions.publish(nsqd.address, "t", b"hello") == ()
    assert actions.publish(nsqd.address, "t", b"later", 500) == ()
    assert nsqd.orders == ["pub?topic=t hello", "pub?topic=t&defer=500 later"]
