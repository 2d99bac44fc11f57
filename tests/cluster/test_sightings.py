from dataclasses import replace

from nsq_compat.cluster import sightings as sightings_module
from nsq_compat.cluster.cluster import Snapshot
from nsq_compat.cluster.nodes import Node
from nsq_compat.cluster.sightings import SILENT, Sightings
from nsq_compat.cluster.stats import Build, ChannelStats, NodeStats, TopicStats

A, B = "a:1", "b:1"


def node(address):
    host, _, port = address.partition(":")
    return Node(
        broadcast_address=host, hostname=host, tcp_port=1, http_port=int(port), remote_addresses=["lookup:1/r:1"]
    )


def stats(health="OK"):
    channel = ChannelStats(topic_name="t", channel_name="c", depth=1000, in_flight_count=200, deferred_count=30)
    topics = [TopicStats(topic_name="t", depth=4, channels=[channel]), TopicStats(topic_name="u")]
    return NodeStats(health=health, topics=topics)


def at(second, *answering, silent=(), silent_lookupds=(), health="OK"):
    return Snapshot(
        taken_at=float(second),
        nodes=tuple(node(address) for address in (*answering, *silent)),
        node_stats={address: stats(health) for address in answering},
        unreachable=tuple(silent),
        silent_lookupds=silent_lookupds,
    )


def seen(*snapshots):
    sightings, previous = Sightings(), None
    for snapshot in snapshots:
        sightings.see(previous, snapshot)
        previous = snapshot
    return sightings


def texts(sightings, now):
    return [sighting.text(now) for sighting in sightings.gone()]


def test_a_node_that_vanishes_is_gone_with_what_it_had():
    sightings = seen(at(0, A, B), at(10, A))
    assert texts(sightings, 22.0) == ["gone, last seen 22 s ago, had 1,234 messages in 2 topics"]
    assert sightings.of(B).largest == (("t", 1234), ("u", 0))
    assert sightings.of(A).state == "OK"


def test_what_a_node_has_is_known_as_soon_as_it_does_not_answer():
    assert seen(at(0, A), at(10, A)).recall(A).last_state(12.0) == "last seen 2 s ago, had 1,234 messages in 2 topics"


def test_a_node_that_answers_at_last_is_not_gone_as_the_fixed_list_spelled_it():
    assert seen(replace(at(0, A), unreachable=("localhost:1",)), at(10, A, B)).gone() == []


def test_it_stays_gone_until_it_is_back_or_dismissed():
    gone = [at(0, A, B), *(at(10 * step, A) for step in range(1, 1000))]
    assert texts(seen(*gone), 86_400.0) == ["gone, last seen 24 h ago, had 1,234 messages in 2 topics"]
    assert seen(*gone, at(10_000, A, B)).gone() == []
    sightings = seen(*gone)
    assert sightings.dismiss(B)
    assert sightings.gone() == []
    assert not sightings.dismiss(B)
    assert not sightings.dismiss(A), "a node that answers cannot be dismissed"


def test_a_listed_node_that_hangs_is_silent_and_later_gone():
    sightings = seen(at(0, A, B), at(10, A, silent=[B]), at(20, A, silent=[B]))
    assert (sightings.of(B).state, sightings.of(B).since) == (SILENT, 10.0)
    assert sightings.of(B).text(30.0) == "does not answer, last seen 30 s ago, had 1,234 messages in 2 topics"
    sightings.see(at(20, A, silent=[B]), at(30, A))
    assert texts(sightings, 130.0) == ["gone, last seen 2 min ago, had 1,234 messages in 2 topics"]


def test_a_node_is_not_gone_because_its_nsqlookupd_does_not_answer():
    assert seen(at(0, A), at(10, silent_lookupds=("lookup:1",))).gone() == []
    assert len(seen(at(0, A), at(10, silent_lookupds=("other:1",))).gone()) == 1


def test_a_node_that_never_answered_says_so():
    sightings = seen(at(0, silent=[A]), at(10))
    assert texts(sightings, 40.0) == ["gone, has never answered"]


def test_a_change_of_health_has_a_time():
    sightings = seen(at(0, A), at(10, A), at(20, A, health="NOK - full"), at(30, A, health="NOK - full"))
    assert (sightings.of(A).state, sightings.of(A).since) == ("NOK - full", 20.0)


def test_the_number_of_gone_nodes_is_limited_and_the_latest_are_kept(monkeypatch):
    monkeypatch.setattr(sightings_module, "MAX_GONE", 2)
    snapshots = [at(step, f"n{step}:1") for step in range(6)]
    assert [sighting.node.hostname for sighting in seen(*snapshots).gone()] == ["n3", "n4"]
    assert seen(*snapshots).of("n0:1") is None


def lagging(second, lag=None, answer_time=None):
    build = None if lag is None else Build(event_loop_lag_seconds=lag)
    times = {} if answer_time is None else {A: answer_time}
    return replace(at(second, A), node_stats={A: replace(stats(), build=build)}, answer_times=times)


def test_a_node_of_which_the_event_loop_stands_still_is_slow_until_it_runs():
    slow = [lagging(10 * sample, lag=7.0 * sample) for sample in range(4)]
    assert seen(slow[0]).of(A).slowness == ""
    assert seen(*slow).of(A).slowness == "its event loop stands still for 67% of the time or more"
    assert seen(*slow, *(lagging(30 + 10 * sample, lag=21.0) for sample in range(4))).of(A).slowness == ""
    # A restart is not lag, nor is a single pause.
    assert seen(*slow[:3], lagging(30, lag=0.1), lagging(40, lag=0.2)).of(A).slowness == ""
    assert seen(lagging(0, lag=0.0), lagging(10, lag=2.0), lagging(20, lag=2.0)).of(A).slowness == ""


def test_another_nsqd_is_slow_if_it_answers_pings_late():
    late = [lagging(10 * sample, answer_time=0.5) for sample in range(4)]
    assert seen(*late).of(A).slowness == "it takes 0.5 s to answer a ping"
    assert seen(*(lagging(10 * sample, answer_time=0.01) for sample in range(4))).of(A).slowness == ""
    assert seen(*late, at(40, silent=[A])).of(A).slowness == "", "it does not answer at all"
