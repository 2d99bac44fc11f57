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
