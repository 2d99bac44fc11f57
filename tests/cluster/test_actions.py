"""Orders to a cluster, seen from the daemons that hear them."""

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
def steering(client, lookupd):
    return Actions(Cluster(client, Addresses(nsqlookupd_http_addresses=(lookupd.address,))))


@pytest.fixture
def steering_nsqds(client, nsqd):
    return Actions(Cluster(client, Addresses(nsqd_http_addresses=(nsqd.address,))))


@pytest.mark.parametrize("action", ["pause", "unpause", "empty"])
def test_a_change_reaches_the_nodes_that_have_the_topic(steering, nsqd, lookupd, action):
    assert steering.change(action, "t") == ()
    assert steering.change(action, "t", "c#ephemeral") == ()
    assert nsqd.orders == [f"topic/{action}?topic=t", f"channel/{action}?topic=t&channel=c%23ephemeral"]
    assert lookupd.orders == []


def test_a_change_may_be_for_one_node(steering, nsqd, lookupd):
    assert steering.change("pause", "t", node=nsqd.address) == ()
    assert nsqd.orders == ["topic/pause?topic=t"]
    assert lookupd.heard == []


def test_deleting_takes_the_announcement_first(steering, nsqd, lookupd):
    assert steering.delete("t", "c") == ()
    assert lookupd.orders == nsqd.orders == ["channel/delete?topic=t&channel=c"]


def test_a_new_topic_is_announced_and_a_new_channel_made(steering, nsqd, lookupd):
    assert steering.create("t") == ()
    assert nsqd.orders == []
    assert steering.create("t", "c") == ()
    assert lookupd.orders == ["topic/create?topic=t", "topic/create?topic=t", "channel/create?topic=t&channel=c"]
    assert nsqd.orders == ["channel/create?topic=t&channel=c"]


def test_without_nsqlookupds_nothing_is_announced(steering_nsqds, nsqd):
    assert steering_nsqds.create("t") == ()
    assert nsqd.orders == []
    with pytest.raises(AllFailed, match="failed to query any nsqlookupd: $"):
        steering_nsqds.create("t", "c")
    assert steering_nsqds.create_on([nsqd.address], "t", "c") == ()
    assert nsqd.orders == ["topic/create?topic=t", "channel/create?topic=t&channel=c"]


def test_a_tombstone_is_set_and_the_topic_deleted_there(steering, nsqd, lookupd):
    assert steering.tombstone("t", nsqd.address) == ()
    port = nsqd.address.rpartition(":")[2]
    assert lookupd.orders == [f"topic/tombstone?topic=t&node=127.0.0.1%3A{port}"]
    assert nsqd.orders == ["topic/delete?topic=t"]


def test_a_tombstone_for_a_node_that_is_gone_is_an_error(steering, nobody):
    with pytest.raises(AllFailed, match="failed to query any nsqd: "):
        steering.tombstone("t", nobody)


def test_who_did_not_do_it_is_named(steering, nsqd):
    nsqd.says("channel/pause", {"message": "CHANNEL_NOT_FOUND"}, 404)
    (error,) = steering.change("pause", "t", "c")
    assert "CHANNEL_NOT_FOUND" in error


def test_a_message_goes_to_one_node(steering, nsqd):
    assert steering.publish(nsqd.address, "t", b"hello") == ()
    assert steering.publish(nsqd.address, "t", b"later", 500) == ()
    assert nsqd.orders == ["pub?topic=t hello", "pub?topic=t&defer=500 later"]
