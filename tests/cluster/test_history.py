import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.cluster import history as history_module
from nsq_compat.cluster.cluster import Snapshot
from nsq_compat.cluster.history import CLUSTER, History, Point, Ring, node_key
from nsq_compat.cluster.stats import ChannelStats, NodeStats, TopicStats

START = 1_000_000.0
TOPIC, CHANNEL = ("t", ""), ("t", "c")


def snapshot(at, count=0, depth=0, name="t"):
    channel = ChannelStats(channel_name="c", topic_name=name, depth=depth, message_count=count)
    topic = TopicStats(topic_name=name, message_count=count, nodes=[TopicStats()], channels=[channel])
    return Snapshot(taken_at=START + at, topics=(topic,))


def fed(*snapshots):
    history = History()
    for each in snapshots:
        history.add(each)
    return history


def test_a_rate_needs_two_samples():
    assert fed(snapshot(0, 100)).rate(TOPIC) is None
    assert fed(snapshot(0, 100), snapshot(10, 250)).rate(TOPIC) == 15.0
    assert fed(snapshot(0, 100), snapshot(10, 250)).rate(CHANNEL) == 15.0
    assert fed().rate(TOPIC) is None


def test_a_decreasing_counter_has_no_rate():
    history = fed(snapshot(0, 100), snapshot(10, 3))
    assert history.rate(TOPIC) is None
    history.add(snapshot(20, 13))
    assert history.rate(TOPIC) == 1.0


def test_a_node_missing_in_a_sample_is_a_gap_not_a_peak():
    stats = NodeStats(health="OK", start_time=0, topics=[])

    def of(at, **counts):
        parts = [TopicStats(topic_name="t", node=node, message_count=count) for node, count in counts.items()]
        total = sum(counts.values())
        topic = TopicStats(topic_name="t", message_count=total, nodes=parts)
        return Snapshot(taken_at=START + at, topics=(topic,), node_stats=dict.fromkeys(counts, stats))

    history = fed(of(0, a=100, b=900_000), of(10, a=200))
    for look, known in ((of(20, a=300), 10.0), (of(30, a=400, b=900_100), None), (of(40, a=500, b=900_200), 20.0)):
        history.add(look)
        assert (history.rate(TOPIC), history.rate(CLUSTER)) == (known, known)


def test_the_cluster_is_the_sum_of_its_topics():
    history = fed(snapshot(0, count=100, depth=5), snapshot(10, count=200, depth=7))
    assert history.rate(CLUSTER) == 10.0
    assert [point.depth for point in history.points(CLUSTER, START + 10)] == [5, 7]


def test_a_shrinking_backlog_has_a_time_to_empty():
    shrinking = fed(*(snapshot(10 * step, depth=1000 - 100 * step) for step in range(5)))
    assert shrinking.growth(CHANNEL) == -10.0
    assert shrinking.seconds_to_empty(CHANNEL, 600) == 60.0
    growing = fed(*(snapshot(10 * step, depth=100 * step) for step in range(5)))
    assert growing.growth(CHANNEL) == 10.0
    assert growing.seconds_to_empty(CHANNEL, 400) is None


def test_an_hour_is_kept_in_fine_steps_and_a_day_in_coarse_ones():
    history = fed(*(snapshot(30 * step, depth=step) for step in range(24 * 120 + 50)))
    now = history.latest.taken_at if history.latest else 0.0
    hour, day = history.points(CHANNEL, now), history.points(CHANNEL, now, day=True)
    assert 118 <= len(hour) <= 120
    assert 287 <= len(day) <= 288
    assert hour[-1].depth == day[-1].depth


def test_a_series_without_samples_for_a_day_is_deleted():
    history = fed(snapshot(0, name="old"), snapshot(90_000, name="new"))
    assert history.points(("old", ""), START + 90_000) == []
    assert ("old", "") not in history._series


def test_the_number_of_series_is_limited(monkeypatch):
    monkeypatch.setattr(history_module, "MAX_SERIES", 3)
    history = fed(*(snapshot(number, name=f"t{number}") for number in range(10)))
    assert len(history._series) == 3


@given(st.lists(st.floats(0, 10_000), max_size=50), st.integers(1, 20), st.integers(1, 50))
def test_a_ring_has_the_last_point_of_each_step(moments, step, length):
    ring, expected = Ring(step, length), {}
    now = 0.0
    for moment in sorted(moments):
        ring.put(Point(moment, moment, 0.0))
        expected[int(moment) // step] = moment
        now = moment
    recent = {slot: at for slot, at in expected.items() if slot > int(now) // step - length}
    assert [point.at for point in ring.points(now)] == [slot * step for slot in sorted(recent)]
    assert [point.depth for point in ring.points(now)] == pytest.approx([recent[slot] for slot in sorted(recent)])


def test_a_sample_in_which_nothing_answered_is_a_gap_not_a_zero():
    stats = {"n:1": NodeStats(topics=[TopicStats(topic_name="t", depth=5, message_count=9)])}
    topic = TopicStats(topic_name="t", depth=5, message_count=9, nodes=[TopicStats(node="n:1")])
    known = [Snapshot(taken_at=START + at, topics=(topic,), node_stats=stats) for at in (0, 10, 30, 40)]
    lost = Snapshot(taken_at=START + 20, unreachable=("n:1",), silent_lookupds=("l:1",), all_lookupds_silent=True)
    history = fed(*known[:2], lost)
    assert history.rate(CLUSTER) is None
    history = fed(*known[:2], lost, *known[2:])
    for key in (CLUSTER, node_key("n:1")):
        depths = [point.depth for point in history.points(key, START + 40)]
        assert depths[:2] + depths[3:] == [5, 5, 5, 5]
        assert math.isnan(depths[2])
        assert history.growth(key) == 0.0
        assert history.rate(key) == 0.0
    assert fed(lost).points(CLUSTER, START + 20) == []
