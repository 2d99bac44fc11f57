from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.queue.wait_queue import TICK_SECONDS, Locality

SLOW = {"max_rate": 10, "burst": 2}


def many(count):
    return [b"%d" % number for number in range(count)]


def test_after_a_burst_messages_come_at_their_rate(daemon):
    daemon.follows(SLOW)
    consumer = daemon.consumer()
    daemon.publishes(*many(10))
    assert len(consumer.takes()) == 2
    assert consumer.takes() == []
    daemon.waits(0.05)
    assert not consumer.awake
    daemon.waits(0.06)
    assert consumer.awake
    assert len(consumer.takes()) == 1
    assert consumer.takes() == []


def test_a_consumer_is_woken_when_there_is_a_token_and_not_before(daemon):
    daemon.follows(SLOW)
    consumer = daemon.consumer()
    daemon.publishes(*many(100))
    consumer.takes()
    consumer.takes()
    before = consumer.wakes
    for _ in range(10):
        daemon.publishes(b"more")
    assert consumer.wakes == before
    for _ in range(100):
        daemon.waits(0.01)
        if consumer.awake:
            consumer.takes()
            consumer.takes()
    assert 9 <= consumer.wakes - before <= 11


def test_tokens_go_round_among_the_consumers(daemon):
    daemon.follows({"max_rate": 10, "burst": 1})
    consumers = daemon.waiting_consumers(3)
    daemon.publishes(*many(100))
    taken = [0, 0, 0]
    for _ in range(30):
        for number, consumer in enumerate(consumers):
            if consumer.awake:
                taken[number] += len(consumer.takes())
                taken[number] += len(consumer.takes())
        daemon.waits(0.1)
    assert taken == [10, 10, 10]


def test_a_pause_fills_the_bucket_and_no_more(daemon):
    daemon.follows(SLOW)
    consumer = daemon.consumer()
    daemon.publishes(*many(10))
    consumer.takes()
    daemon.waits(1000)
    assert len(consumer.takes()) == 2


def test_a_full_bucket_needs_no_alarm(daemon):
    daemon.follows(SLOW)
    consumer = daemon.consumer()
    daemon.publishes(b"a")
    consumer.takes()
    consumer.finishes(b"a")
    daemon.waits(1)
    daemon.waits(100)  # the message's own
    assert daemon.broker.schedule.run(daemon.now) == float("inf")


def test_a_high_rate_comes_in_batches(daemon):
    daemon.follows({"max_rate": 10_000, "burst": 1})
    consumer = daemon.consumer()
    daemon.publishes(*many(1000))
    consumer.takes()
    consumer.takes()
    daemon.waits(TICK_SECONDS / 2)
    assert not consumer.awake
    daemon.waits(TICK_SECONDS)
    assert consumer.awake


def test_the_end_of_the_policy_frees_all_consumers(daemon):
    daemon.follows(SLOW)
    consumer = daemon.consumer()
    daemon.publishes(*many(10))
    consumer.takes()
    consumer.takes()
    daemon.follows()
    assert consumer.awake
    assert len(consumer.takes()) == 8


def test_another_rate_holds_from_now_on_and_the_same_one_changes_nothing(daemon):
    daemon.follows(SLOW)
    consumer = daemon.consumer()
    daemon.publishes(*many(100))
    consumer.takes()
    daemon.follows(SLOW)
    assert consumer.takes() == []
    daemon.follows({"max_rate": 10, "burst": 5})
    assert len(consumer.takes()) == 5


def test_a_paused_channel_wakes_no_consumer(daemon):
    daemon.follows(SLOW)
    consumer = daemon.consumer()
    daemon.publishes(*many(10))
    consumer.takes()
    consumer.takes()
    daemon.channel().pause()
    daemon.waits(1)
    assert not consumer.awake
    daemon.channel().unpause()
    assert consumer.awake


def test_the_nearest_are_first_with_a_rate_as_well(start):
    daemon = start(topology_aware=True)
    daemon.follows({"max_rate": 10, "burst": 1})
    far, near = daemon.consumer(locality=Locality.GLOBAL), daemon.consumer(locality=Locality.ZONE_LOCAL)
    assert far.takes() == near.takes() == []
    daemon.publishes(*many(3))
    for body in many(3):
        assert near.awake
        assert not far.awake
        assert near.takes() == [body]
        assert near.takes() == []
        daemon.waits(0.1)
    assert daemon.channel().delivered == [3, 0, 0]


def test_everything_that_was_delivered_counts_as_before(daemon):
    daemon.follows(SLOW)
    consumer = daemon.consumer()
    daemon.publishes(*many(3))
    consumer.takes()
    assert daemon.channel().delivered == (0, 0, 2)


# --- Messages in flight -----------------------------------------------------------------------------------------------


def test_no_more_than_max_in_flight_at_all_consumers_together(daemon):
    daemon.follows({"max_in_flight": 3})
    one, other = daemon.waiting_consumers(2)
    daemon.publishes(*many(10))
    assert len(one.takes(2)) + len(other.takes(2)) == 3
    assert one.takes() == other.takes() == []
    daemon.publishes(b"more")
    assert not one.awake
    assert not other.awake


def test_an_answer_makes_room_for_the_next_message(daemon):
    daemon.follows({"max_in_flight": 2})
    consumer = daemon.consumer()
    daemon.publishes(*many(4))
    assert consumer.takes() == [b"0", b"1"]
    assert consumer.takes() == []
    consumer.finishes(b"0")
    daemon.waits(0)
    assert consumer.awake
    assert consumer.takes() == [b"2"]
    assert consumer.takes() == []
    consumer.requeues(b"1", 100)
    daemon.waits(0)
    assert consumer.awake
    assert consumer.takes() == [b"3"]


def test_a_timeout_makes_room_for_the_next_message(daemon):
    daemon.follows({"max_in_flight": 1})
    one, other = daemon.waiting_consumers(2)
    daemon.publishes(*many(2))
    assert one.takes() == [b"0"]
    assert other.takes() == []
    daemon.waits(1000)
    assert one.awake or other.awake
    assert len(one.takes() + other.takes()) == 1


def test_a_rate_holds_beside_max_in_flight(daemon):
    daemon.follows({"max_rate": 10, "burst": 2, "max_in_flight": 3})
    consumer = daemon.consumer()
    daemon.publishes(*many(10))
    assert len(consumer.takes()) == 2
    daemon.waits(1)
    assert len(consumer.takes()) == 1
    assert consumer.takes() == []


# --- One consumer -----------------------------------------------------------------------------------------------------


def test_an_exclusive_channel_has_one_active_consumer(daemon):
    daemon.follows({"exclusive": True})
    first, second, third = daemon.waiting_consumers(3)
    for number in range(5):
        daemon.publishes(b"%d" % number)
        assert first.awake
        assert not second.awake
        assert second.takes() == third.takes() == []
        assert first.takes() == [b"%d" % number]
        assert first.takes() == []


def test_the_next_consumer_follows_when_the_first_one_leaves(daemon):
    daemon.follows({"exclusive": True})
    first, second, third = daemon.waiting_consumers(3)
    daemon.publishes(*many(4))
    assert first.takes(1) == [b"0"]
    first.leaves()
    assert second.awake
    assert not third.awake
    assert third.takes() == []
    assert second.takes() == [b"1", b"2", b"3"]


def test_a_consumer_that_takes_nothing_stays_the_active_one(daemon):
    daemon.follows({"exclusive": True})
    first, second = daemon.waiting_consumers(2)
    daemon.channel().leave_wait_queue(first)  # RDY 0
    daemon.publishes(b"m")
    assert not second.awake
    assert second.takes() == []
    assert first.takes() == [b"m"]


def test_a_channel_becomes_exclusive_while_others_are_awake(daemon):
    first, second = daemon.waiting_consumers(2)
    daemon.publishes(*many(2))
    assert first.awake
    assert second.awake
    daemon.follows({"exclusive": True})
    assert second.takes() == []
    assert first.takes() == [b"0", b"1"]
    daemon.follows()
    daemon.publishes(*many(2))
    assert len(second.takes()) + len(first.takes()) == 2


def test_one_consumer_is_active_with_zones_as_well(start):
    daemon = start(topology_aware=True)
    daemon.follows({"exclusive": True})
    far, near = daemon.consumer(locality=Locality.GLOBAL), daemon.consumer(locality=Locality.ZONE_LOCAL)
    assert far.takes() == near.takes() == []
    daemon.publishes(*many(3))
    assert far.awake
    assert not near.awake
    assert far.takes(2) == [b"0", b"1"]
    assert not near.awake
    far.leaves()
    assert near.awake
    assert near.takes() == [b"2"]


@given(
    limit=st.integers(1, 5),
    steps=st.lists(st.tuples(st.sampled_from(["take", "finish", "requeue", "time"]), st.integers(0, 2)), max_size=60),
)
def test_never_more_in_flight_than_allowed_and_nothing_waits_in_vain(start, limit, steps):
    daemon = start()
    daemon.follows({"max_in_flight": limit})
    consumers = daemon.waiting_consumers(3)
    daemon.publishes(*many(20))
    held = [set[bytes](), set[bytes](), set[bytes]()]
    for what, number in steps:
        consumer, mine = consumers[number], held[number]
        if what == "take":
            mine.update(consumer.takes(4))
        elif what == "time":
            daemon.waits(0.01)
        elif mine:
            body = mine.pop()
            consumer.finishes(body) if what == "finish" else consumer.requeues(body, 0)
        assert daemon.channel().in_flight_count <= limit
    for consumer in consumers:
        consumer.takes(0)  # and waits
    while daemon.channel().depth:
        for consumer, mine in zip(consumers, held, strict=True):
            consumer.finishes(*mine)
            mine.clear()
        daemon.waits(0)
        before = daemon.channel().depth
        for consumer, mine in zip(consumers, held, strict=True):
            if consumer.awake:
                mine.update(consumer.takes())
                mine.update(consumer.takes())
        assert daemon.channel().depth < before


@given(
    rate=st.floats(0.5, 500),
    burst=st.integers(1, 20),
    steps=st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(0, 30)), max_size=30),
)
def test_never_more_than_the_rate_and_the_burst_allow(start, rate, burst, steps):
    daemon = start()
    daemon.follows({"max_rate": rate, "burst": burst})
    consumer = daemon.consumer()
    daemon.publishes(*many(2000))
    began, taken = daemon.now, 0
    for seconds, room in steps:
        daemon.waits(seconds)
        taken += len(consumer.takes(room)) if room else 0
        assert taken <= burst + rate * (daemon.now - began) + 1e-6
