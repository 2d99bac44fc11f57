"""Queries of daemons with valid answers, invalid answers, or none; actions, as the requests that daemons receive."""

import itertools
import time

import pytest

from nsq_compat.cluster.cluster import Cluster, take_snapshot
from nsq_compat.cluster.http_client import AllFailed
from nsq_compat.cluster.nodes import read_node
from tests.cluster.daemon import reply


@pytest.fixture
def two(make_daemon):
    return make_daemon(), make_daemon()


@pytest.fixture
def through_lookupds(client, two):
    return Cluster(client, lookupds=[daemon.address for daemon in two])


@pytest.fixture
def of_nsqds(client, two):
    return Cluster(client, nsqds=[daemon.address for daemon in two])


def producer(port, **fields):
    return {"broadcast_address": "n", "hostname": "h", "tcp_port": port, "http_port": port + 1, **fields}


def test_topics_are_those_of_all_nsqlookupds(through_lookupds, two):
    two[0].says("topics", {"topics": ["b", "a"]})
    two[1].says("topics", {"topics": ["c", "a"]})
    assert through_lookupds.topics().value == ["a", "b", "c"]


def test_topics_are_those_of_all_nsqds(of_nsqds, two):
    two[0].says("stats", {"topics": [{"topic_name": "b"}]})
    two[1].says("stats", {"topics": None})
    assert of_nsqds.topics().value == ["b"]


def test_a_daemon_that_does_not_answer_is_an_error_of_the_answer(through_lookupds, two):
    two[0].says("topics", {"topics": ["a"]})
    two[1].says("topics", {"topics": "a"})
    answer = through_lookupds.topics()
    assert answer.value == ["a"]
    assert answer.errors == ("invalid answer: not an array",)


def test_no_answer_at_all_raises(through_lookupds):
    with pytest.raises(AllFailed, match="failed to query any nsqlookupd: got response 404"):
        through_lookupds.topics()


def test_a_node_of_two_nsqlookupds_is_one_node(through_lookupds, two):
    two[0].says(
        "nodes", {"producers": [producer(1, remote_address="r:1", version="1.3.0"), producer(5, version="1.2.0")]}
    )
    two[1].says("nodes", {"producers": [producer(1, version="1.3.0")]})
    nodes = through_lookupds.nodes().value
    assert [node.tcp_address for node in nodes] == ["n:1", "n:5"]
    assert nodes[0].remote_addresses == [f"{two[0].address}/r:1", f"{two[1].address}/N/A"]
    assert nodes[1].out_of_date


def test_invalid_registrations_are_named_with_the_nodes_and_logged_once(through_lookupds, two, caplog):
    bad = producer(1, broadcast_address="a b", remote_address="10.0.0.9:5000")
    two[0].says("nodes", {"producers": [bad, producer(3)]}).says("lookup", {"producers": [bad, producer(3)]})
    two[1].says("nodes", {"producers": [producer(5)]}).says("lookup", {"producers": []})
    why = 'nsqd (hostname "h", remote_address "10.0.0.9:5000"): invalid broadcast address "a b"'
    text = f"nsqlookupd {two[0].address}: skipped {why}"
    for _ in range(3):
        assert through_lookupds.nodes().skipped == (text,)
        assert through_lookupds.producers("t").skipped == (text,)
    assert [node.tcp_address for node in through_lookupds.nodes().value] == ["n:3", "n:5"]
    assert [node.tcp_address for node in through_lookupds.producers("t").value] == ["n:3"]
    assert caplog.messages == [text]
    # A registration that disappears and appears again is logged again.
    two[0].says("nodes", {"producers": []})
    assert through_lookupds.nodes().skipped == ()
    two[0].says("nodes", {"producers": [bad]})
    through_lookupds.nodes()
    assert caplog.messages == [text, text]


def test_only_a_few_of_many_invalid_registrations_are_named(through_lookupds, two, caplog):
    two[0].says("nodes", {"producers": [producer(0, hostname=f"h{number}") for number in range(5000)]})
    two[1].says("nodes", {"producers": []})
    skipped = through_lookupds.nodes().skipped
    assert len(skipped) == len(caplog.messages) == 6
    assert skipped[-1].endswith("skipped 4995 more invalid registrations")


def test_nsqds_describe_themselves(of_nsqds, two):
    for daemon in two:
        daemon.says("info", daemon.info())
        daemon.says("stats", {"topics": [{"topic_name": "t"}]})
    nodes = of_nsqds.nodes().value
    assert [(node.http_address, node.topics) for node in nodes] == [(daemon.address, {"t": False}) for daemon in two]


def test_the_producers_of_a_topic_are_the_nsqds_that_have_it(of_nsqds, two):
    for daemon, topics in zip(two, (["t"], ["u"]), strict=True):
        daemon.says("info", daemon.info())
        daemon.says("stats", {"topics": [{"topic_name": name} for name in topics]})
    assert [node.http_address for node in of_nsqds.producers("t").value] == [two[0].address]


def test_producers_are_listed_once(through_lookupds, two):
    for daemon in two:
        daemon.says("lookup", {"producers": [producer(1), producer(3)]})
    assert sorted(node.http_address for node in through_lookupds.producers("t").value) == ["n:2", "n:4"]
    assert two[0].heard == ["GET lookup?topic=t"]


def test_an_nsqd_without_an_address_has_that_of_the_request(of_nsqds, two):
    for daemon in two:
        daemon.says("info", {"version": "0.3.0"})
        daemon.says("stats", {"topics": []})
    node = of_nsqds.nodes().value[0]
    assert node.http_address == two[0].address
    assert node.hostname == "127.0.0.1"


@pytest.mark.parametrize(
    ("announced", "problem"),
    [
        ({"broadcast_address": "a b"}, 'invalid broadcast address "a b"'),
        ({"broadcast_address": "user:pw@host"}, 'invalid broadcast address "user:pw@host"'),
        ({"broadcast_address": "h", "http_port": 99999}, 'invalid HTTP port "99999"'),
    ],
)
def test_an_nsqd_that_announces_no_address_is_named_once_and_asked_where_it_is(
    of_nsqds, two, announced, problem, caplog
):
    for daemon in two:
        daemon.says("info", {"version": "1.3.0", "http_port": 4151, **announced})
        daemon.says("stats", {"topics": []})
    for _ in range(2):
        assert sorted(node.http_address for node in of_nsqds.nodes().value) == sorted(each.address for each in two)
    assert sorted(record.getMessage() for record in caplog.records) == sorted(
        f"nsqd {each.address} announces an {problem}; the address in --nsqd-http-address is used" for each in two
    )


def test_stats_are_requested_for_the_topic_and_channel_only(of_nsqds, two):
    two[0].says("stats", {"health": "OK", "topics": [{"topic_name": "t"}, {"topic_name": "not asked for"}]})
    answer = of_nsqds.stats([read_node(two[0].info())], "t", "c")
    assert [topic.topic_name for topic in answer.value[0][1].topics] == ["t"]
    assert two[0].heard == ["GET stats?format=json&include_mem=false&topic=t&channel=c&include_clients=false"]


def test_channels_are_those_of_nsqlookupds(through_lookupds, of_nsqds, two):
    for daemon in two:
        daemon.says("channels", {"channels": ["c"]})
    assert through_lookupds.channels("t").value == ["c"]
    assert of_nsqds.channels("t").value == []


# --- Actions ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def nsqd(make_daemon):
    daemon = make_daemon()
    return daemon.says("info", daemon.info()).says("stats", {"topics": [{"topic_name": "t"}]})


@pytest.fixture
def lookupd(make_daemon, nsqd):
    return make_daemon().says("lookup", {"producers": [nsqd.info()]})


@pytest.fixture
def cluster(client, lookupd):
    return Cluster(client, lookupds=[lookupd.address])


@pytest.mark.parametrize("action", ["pause", "unpause", "empty"])
def test_a_change_reaches_the_nodes_that_have_the_topic(cluster, nsqd, lookupd, action):
    assert cluster.change(action, "t") == ()
    assert cluster.change(action, "t", "c#ephemeral") == ()
    assert nsqd.orders == [f"topic/{action}?topic=t", f"channel/{action}?topic=t&channel=c%23ephemeral"]
    assert lookupd.orders == []


def test_a_change_may_be_for_one_node(cluster, nsqd, lookupd):
    assert cluster.change("pause", "t", node=nsqd.address) == ()
    assert nsqd.orders == ["topic/pause?topic=t"]
    assert lookupd.heard == []


def test_a_deletion_goes_to_nsqlookupds_first(cluster, nsqd, lookupd):
    assert cluster.delete("t", "c") == ()
    assert lookupd.orders == nsqd.orders == ["channel/delete?topic=t&channel=c"]


def test_a_topic_is_created_in_nsqlookupds_and_a_channel_on_nodes_too(cluster, nsqd, lookupd):
    assert cluster.create("t") == ()
    assert nsqd.orders == []
    assert cluster.create("t", "c") == ()
    assert lookupd.orders == ["topic/create?topic=t", "topic/create?topic=t", "channel/create?topic=t&channel=c"]
    assert nsqd.orders == ["channel/create?topic=t&channel=c"]


def test_without_nsqlookupds_only_nodes_are_called(client, nsqd):
    cluster = Cluster(client, nsqds=[nsqd.address])
    assert cluster.create("t") == ()
    assert nsqd.orders == []
    with pytest.raises(AllFailed, match="failed to query any nsqlookupd: $"):
        cluster.create("t", "c")
    assert cluster.create("t", "c", nsqd.address) == ()
    assert nsqd.orders == ["topic/create?topic=t", "channel/create?topic=t&channel=c"]


def test_a_tombstone_is_set_and_the_topic_is_deleted_on_the_node(cluster, nsqd, lookupd):
    assert cluster.tombstone("t", nsqd.address) == ()
    port = nsqd.address.rpartition(":")[2]
    assert lookupd.orders == [f"topic/tombstone?topic=t&node=127.0.0.1%3A{port}"]
    assert nsqd.orders == ["topic/delete?topic=t"]


def test_a_tombstone_for_a_node_that_is_gone_is_an_error(cluster, no_listener):
    with pytest.raises(AllFailed, match="failed to query any nsqd: "):
        cluster.tombstone("t", no_listener)


def test_a_failed_node_is_named(cluster, nsqd):
    nsqd.says("channel/pause", {"message": "CHANNEL_NOT_FOUND"}, 404)
    (error,) = cluster.change("pause", "t", "c")
    assert "CHANNEL_NOT_FOUND" in error


@pytest.mark.parametrize(
    "act", [lambda cluster: cluster.delete("t", "c"), lambda cluster: cluster.change("empty", "t", "c")]
)
def test_daemons_without_the_topic_or_channel_are_no_errors_of_an_action_on_all(
    client, make_daemon, nsqd, lookupd, act
):
    other_lookupd, other_nsqd = make_daemon(), make_daemon()
    lookupd.says("lookup", {"producers": [nsqd.info(), other_nsqd.info()]})
    other_lookupd.says("lookup", {"message": "TOPIC_NOT_FOUND"}, 404)
    for daemon, action in itertools.product((other_lookupd, other_nsqd), ("delete", "empty")):
        daemon.says(f"channel/{action}", {"message": "CHANNEL_NOT_FOUND"}, 404)
    cluster = Cluster(client, lookupds=[lookupd.address, other_lookupd.address])
    assert act(cluster) == ()
    assert len(nsqd.orders) == len(other_nsqd.orders) == 1
    other_nsqd.says("channel/delete", {"message": "EXITING"}, 503).says("channel/empty", {"message": "EXITING"}, 503)
    (error,) = act(cluster)
    assert "EXITING" in error


def test_a_message_goes_to_one_node(cluster, nsqd):
    assert cluster.publish(nsqd.address, "t", b"hello") == ()
    assert cluster.publish(nsqd.address, "t", b"later", 500) == ()
    assert nsqd.orders == ["pub?topic=t hello", "pub?topic=t&defer=500 later"]


@pytest.fixture
def two_nsqds(make_daemon):
    daemons = (make_daemon(), make_daemon())
    for daemon in daemons:
        daemon.says("info", daemon.info())
        daemon.says("stats", {"health": "OK", "topics": [{"topic_name": "t", "depth": 2}]})
    return daemons


def test_a_snapshot_has_all_topics_once(client, two_nsqds):
    snapshot = take_snapshot(Cluster(client, nsqds=[two_nsqds[0].address, two_nsqds[1].address]), 5.0)
    assert snapshot.taken_at == 5.0
    assert [(topic.topic_name, topic.depth) for topic in snapshot.topics] == [("t", 4)]
    assert set(snapshot.node_stats) == {two_nsqds[0].address, two_nsqds[1].address}
    assert snapshot.unreachable == ()
    assert snapshot.errors == ()


def test_an_announced_node_that_does_not_answer_is_unreachable(client, two_nsqds, make_daemon, no_listener):
    lookupd = make_daemon()
    port = int(no_listener.rpartition(":")[2])
    lookupd.says("nodes", {"producers": [two_nsqds[0].info(), two_nsqds[1].info(http_port=port)]})
    lookupd.says("topics", {"topics": ["t", "only announced"]})
    snapshot = take_snapshot(Cluster(client, [lookupd.address]), 5.0)
    assert snapshot.unreachable == (no_listener,)
    assert [topic.topic_name for topic in snapshot.topics] == ["only announced", "t"]
    assert len(snapshot.errors) == 1


def test_a_node_of_a_fixed_list_that_does_not_answer_is_unreachable(client, two_nsqds, no_listener):
    snapshot = take_snapshot(Cluster(client, nsqds=[two_nsqds[0].address, no_listener]), 5.0)
    assert snapshot.unreachable == (no_listener,)
    assert set(snapshot.node_stats) == {two_nsqds[0].address}


def test_a_cluster_that_does_not_answer_is_a_snapshot_with_errors(client, no_listener):
    snapshot = take_snapshot(Cluster(client, [no_listener]), 5.0)
    assert snapshot.topics == ()
    assert "failed to query any nsqlookupd" in snapshot.errors[0]


def test_nodes_are_not_unreachable_because_no_nsqlookupd_lists_its_topics(client, two_nsqds, make_daemon):
    lookupd = make_daemon()
    lookupd.says("nodes", {"producers": [two_nsqds[0].info(), two_nsqds[1].info()]})
    snapshot = take_snapshot(Cluster(client, [lookupd.address]), 5.0)
    assert snapshot.unreachable == ()
    assert [(topic.topic_name, topic.depth) for topic in snapshot.topics] == [("t", 4)]
    assert [error for error in snapshot.errors if "failed to query any nsqlookupd" in error]


def test_a_cluster_without_nodes_has_no_errors(client, daemon):
    daemon.says("nodes", {"producers": []}).says("topics", {"topics": []})
    assert take_snapshot(Cluster(client, [daemon.address]), 5.0).errors == ()


def test_nodes_that_only_silent_nsqlookupds_listed_are_remembered(through_lookupds, two):
    listed = [producer(1, remote_address="r:1", topics=["t"]), producer(5, topics=["u"])]
    two[0].says("nodes", {"producers": listed})
    two[1].says("nodes", {"producers": listed[1:]})
    assert [node.is_remembered for node in through_lookupds.nodes(remembered=True).value] == [False, False]
    two[0].says("nodes", b"", 500).says("lookup", b"", 500)
    two[1].says("lookup", {"message": "TOPIC_NOT_FOUND"}, 404)
    assert [node.tcp_address for node in through_lookupds.nodes().value] == ["n:5"]
    found = through_lookupds.nodes(remembered=True).value
    assert [(node.tcp_address, node.is_remembered) for node in found] == [("n:1", True), ("n:5", False)]
    assert [node.tcp_address for node in through_lookupds.producers("t", remembered=True).value] == ["n:1"]
    # The node of which an nsqlookupd that answers knows nothing any more is not remembered.
    two[1].says("nodes", {"producers": []})
    assert [node.tcp_address for node in through_lookupds.nodes(remembered=True).value] == ["n:1"]
    with pytest.raises(AllFailed):
        through_lookupds.producers("u", remembered=True)


def test_without_any_nsqlookupd_all_nodes_are_remembered_until_one_answers(through_lookupds, two):
    with pytest.raises(AllFailed):
        through_lookupds.nodes(remembered=True)
    for lookupd in two:
        lookupd.says("nodes", {"producers": [producer(1)]})
    through_lookupds.within(20).nodes()
    for lookupd in two:
        lookupd.says("nodes", b"", 500)
    for _ in range(2):
        answer = through_lookupds.nodes(remembered=True)
        assert [node.tcp_address for node in answer.value] == ["n:1"]
        assert answer.unreachable == tuple(lookupd.address for lookupd in two)
    with pytest.raises(AllFailed):
        through_lookupds.nodes()
    two[1].says("nodes", {"producers": []})
    assert through_lookupds.nodes(remembered=True).value == []


def test_a_snapshot_without_nsqlookupds_has_the_figures_of_the_remembered_nodes(client, make_daemon):
    lookupd, nsqd = make_daemon(), make_daemon()
    nsqd.says("stats", {"topics": [{"topic_name": "t", "depth": 3}]})
    cluster = Cluster(client, lookupds=[lookupd.address])
    assert not take_snapshot(cluster, 0.0).is_known
    lookupd.says("nodes", {"producers": []}).says("topics", {"topics": []})
    assert take_snapshot(cluster, 1.0).is_known
    lookupd.says("nodes", {"producers": [nsqd.info()]})
    take_snapshot(cluster, 2.0)
    lookupd.says("nodes", b"", 500).says("topics", b"", 500)
    snapshot = take_snapshot(cluster, 3.0)
    assert snapshot.is_known
    assert snapshot.all_lookupds_silent
    assert [topic.waiting for topic in snapshot.topics] == [3]
    nsqd.says("stats", b"", 500)
    snapshot = take_snapshot(cluster, 4.0)
    assert not snapshot.is_known
    assert snapshot.unreachable == (nsqd.address,)


def test_the_time_of_an_answer_is_that_of_the_daemon(of_nsqds, two):
    two[0].says("ping", b"OK")

    def answer_late(handler):
        time.sleep(0.3)
        reply(b"OK")(handler)

    two[1].does("ping", answer_late)
    times = of_nsqds.answer_times([daemon.address for daemon in two])
    assert times[two[1].address] >= 0.3
    assert two[0].address in times
    two[1].does("ping", lambda handler: handler.connection.close())
    assert [*of_nsqds.answer_times([daemon.address for daemon in two])] == [two[0].address]


def test_a_snapshot_times_a_node_before_it_asks_anything_else(of_nsqds, two):
    two[0].says("ping", b"OK").says("info", two[0].info()).says("stats", {"topics": []})
    snapshot = take_snapshot(of_nsqds, 0.0, timed=[two[0].address])
    assert two[0].heard[0] == "GET ping"
    assert [*snapshot.answer_times] == [two[0].address]
    assert take_snapshot(of_nsqds, 0.0).answer_times == {}
