"""The wait queue with localities. The one without is tested in test_channel.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.queue.broker import snapshot
from nsq_compat.queue.wait_queue import Locality

ZONE, REGION, GLOBAL = Locality


@pytest.fixture
def daemon(start):
    """A daemon that serves the nearest first."""
    return start(topology_aware=True)


@pytest.fixture
def line(daemon):
    """Consumers that wait, in this order: one from elsewhere, one of the region, one of the zone."""
    return waiting(daemon, GLOBAL, REGION, ZONE)


def waiting(daemon, *localities):
    consumers = [daemon.consumer(locality=locality) for locality in localities]
    for consumer in consumers:
        assert consumer.takes() == []
    return consumers


def awake(*consumers):
    return [consumer.awake for consumer in consumers]


def test_only_the_nearest_consumer_is_woken(daemon, line):
    daemon.publishes(b"a", b"b", b"c")
    assert awake(*line) == [False, False, True]
    assert line[2] not in daemon.channel()._wait_queue.waiting
    assert line[2].takes() == [b"a", b"b", b"c"]
    assert awake(*line) == [False, False, False]


def test_messages_that_the_nearest_does_not_take_go_to_the_next(daemon, line):
    elsewhere, region, zone = line
    daemon.publishes(b"a")
    zone.stands_back()
    assert awake(elsewhere, region) == [False, True]
    region.leaves()
    assert elsewhere.takes() == [b"a"]


def test_only_waiting_consumers_are_preferred(daemon):
    elsewhere = daemon.consumer(locality=GLOBAL)
    daemon.consumer(locality=ZONE)
    daemon.publishes(b"a")
    assert elsewhere.takes() == [b"a"]


def test_a_farther_consumer_gets_nothing_while_a_nearer_one_is_awake(daemon, line):
    elsewhere, _, zone = line
    daemon.publishes(b"a", b"b")
    assert elsewhere.takes() == []
    assert zone.takes(room=1) == [b"a"]
    assert elsewhere.takes() == []  # the one of the region is to come now
    assert line[1].takes(room=0) == []


def test_a_consumer_with_room_left_counts_as_awake(daemon):
    near, far = waiting(daemon, ZONE, GLOBAL)
    daemon.publishes(*[b"%d" % number for number in range(300)])
    assert len(near.takes(room=1000)) == 256
    assert not far.awake
    assert far.takes() == []
    assert len(near.takes(room=1000)) == 44
    assert not far.awake


def test_an_awake_consumer_that_stands_back_passes_its_turn_on(daemon):
    near, far = waiting(daemon, ZONE, GLOBAL)
    daemon.publishes(*[b"%d" % number for number in range(300)])
    near.takes(room=1000)
    near.stands_back()
    assert far.awake
    assert len(far.takes(room=1000)) == 44


def test_a_nearer_one_that_comes_by_need_not_share_with_those_farther_away(daemon):
    (far,) = waiting(daemon, GLOBAL)
    daemon.publishes(b"a")
    assert far.awake
    near = daemon.consumer(locality=ZONE)
    assert near.takes() == [b"a"]
    assert far.takes() == []
    daemon.publishes(b"b")
    assert awake(near, far) == [True, False]


def test_what_comes_back_goes_to_the_nearest_first_as_well(daemon):
    near, far = waiting(daemon, ZONE, GLOBAL)
    daemon.publishes(b"a")
    near.takes()
    assert near.takes() == []
    near.requeues(b"a", delay=1.0)
    daemon.waits(1)
    assert awake(near, far) == [True, False]
    assert near.takes() == [b"a"]


def test_during_a_pause_no_consumer_gets_anything_and_afterwards_the_nearest(daemon, line):
    daemon.publishes(b"a")
    daemon.channel().pause()
    assert line[2].takes() == []
    assert line[0].takes() == []
    daemon.channel().unpause()
    assert awake(*line) == [False, False, True]


def test_deliveries_are_counted_by_locality(daemon, line):
    elsewhere, region, zone = line
    daemon.publishes(b"a", b"b", b"c", b"d", b"e", b"f")
    zone.takes(room=3)
    region.takes(room=2)
    elsewhere.takes(room=1)
    zone.requeues(b"a")
    assert zone.takes() == [b"a"]
    (topic,) = snapshot(daemon.broker, daemon.now)
    (channel,) = topic.channels
    assert (channel.zone_local_msg_count, channel.region_local_msg_count, channel.global_msg_count) == (4, 2, 1)


def test_without_topology_awareness_all_deliveries_are_global(start):
    daemon = start()
    consumers = waiting(daemon, GLOBAL, ZONE)
    daemon.publishes(b"a")
    assert awake(*consumers) == [True, False]
    consumers[0].takes()
    assert daemon.channel().delivered == (0, 0, 1)


@given(st.integers(1, 5), st.integers(0, 5), st.integers(1, 60))
def test_equally_near_consumers_share_equally_and_in_turn(start, near_count, far_count, messages):
    daemon = start(topology_aware=True)
    far = waiting(daemon, *[GLOBAL] * far_count)
    near = waiting(daemon, *[REGION] * near_count)
    shares = dict.fromkeys(near, 0)
    for number in range(messages):
        daemon.publishes(b"one %d" % number)
        (woken,) = [consumer for consumer in near if consumer.awake]
        shares[woken] += len(woken.takes())
    assert max(shares.values()) - min(shares.values()) <= 1
    daemon.publishes(*[b"%d" % number for number in range(messages)])
    at_once = [len(consumer.takes()) for consumer in near if consumer.awake]
    assert sum(at_once) == messages
    assert max(at_once) - min(at_once) <= 1
    assert not any(awake(*far))


@given(st.lists(st.tuples(st.sampled_from(Locality), st.integers(1, 3)), min_size=1, max_size=6), st.integers(1, 25))
def test_farther_consumers_get_exactly_what_the_nearer_have_no_room_for(start, consumers, messages):
    daemon = start(topology_aware=True)
    rooms = dict(zip(waiting(daemon, *[locality for locality, _ in consumers]), consumers, strict=True))
    daemon.publishes(*[b"%d" % number for number in range(messages)])
    got = dict.fromkeys(Locality, 0)
    left = {consumer: room for consumer, (_, room) in rooms.items()}
    while woken := [consumer for consumer in rooms if consumer.awake]:
        for consumer in woken:
            if not left[consumer]:
                consumer.stands_back()
                continue
            taken = len(consumer.takes(left[consumer]))
            left[consumer] -= taken
            got[rooms[consumer][0]] += taken
            consumer.awake = consumer.awake or (taken > 0 and left[consumer] > 0 and daemon.channel().depth > 0)
    remaining = messages
    for locality in Locality:
        room = sum(each for where, each in consumers if where is locality)
        assert got[locality] == min(room, remaining)
        remaining -= got[locality]
