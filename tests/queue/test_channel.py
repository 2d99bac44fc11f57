import errno
import logging
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.log.checkpoint import ENTRY, ChannelState, immediate_entries
from nsq_compat.protocol import message
from nsq_compat.queue.channel import MAX_BATCH, MAX_BATCH_BYTES, Channel, NotInFlight, TooManyConsumers
from nsq_compat.queue.schedule import NEVER
from nsq_compat.queue.values import Exiting
from tests.broker import Consumer

# --- A message and its consumer ---------------------------------------------------------------------------------------


def test_a_consumer_gets_messages_in_the_order_they_were_published(daemon):
    consumer = daemon.consumer()
    daemon.publishes(b"a", b"b")
    daemon.publishes(b"c")
    assert consumer.takes() == [b"a", b"b", b"c"]


def test_a_requeued_message_comes_back_at_the_end_with_one_more_attempt(daemon, channel):
    consumer = daemon.consumer()
    daemon.publishes(b"a", b"b")
    consumer.takes(room=1)
    assert consumer.attempts(b"a") == 1
    consumer.requeues(b"a")
    assert consumer.takes() == [b"b", b"a"]
    assert (consumer.attempts(b"a"), consumer.attempts(b"b")) == (2, 1)
    assert channel.requeue_count == 1


def test_a_message_requeued_with_a_delay_comes_back_after_it(daemon, channel):
    consumer = daemon.consumer()
    daemon.publishes(b"a")
    consumer.takes()
    consumer.requeues(b"a", delay=5.0)
    assert (channel.depth, channel.in_flight_count, channel.deferred_count) == (0, 0, 1)
    daemon.waits(4.9)
    assert consumer.takes() == []
    daemon.waits(0.1)
    assert consumer.takes() == [b"a"]
    assert consumer.attempts(b"a") == 2


def test_a_message_that_is_not_answered_in_time_comes_back(daemon, channel):
    consumer = daemon.consumer(timeout=60.0)
    daemon.publishes(b"a")
    consumer.takes()
    daemon.waits(59.9)
    assert channel.in_flight_count == 1
    daemon.waits(0.1)
    assert (channel.depth, channel.in_flight_count, channel.timeout_count) == (1, 0, 1)
    assert consumer.takes() == [b"a"]
    assert consumer.attempts(b"a") == 2


def test_many_timeouts_at_once_are_handled_a_part_at_a_time(daemon, channel):
    bodies = [b"%d" % number for number in range(5000)]
    daemon.publishes(*bodies)
    consumers = [daemon.consumer(timeout=60.0), daemon.consumer(timeout=60.0)]
    taken = 0
    while taken < 5000:
        taken += sum(len(consumer.takes(256)) for consumer in consumers)
    daemon.now += 60.0
    counts = []
    while channel.on_alarm(daemon.now) <= daemon.now:
        counts.append(channel.timeout_count)
    counts.append(channel.timeout_count)
    handled = [after - before for before, after in zip([0, *counts], counts, strict=False)]
    assert len(handled) >= 4
    assert max(handled) < 1024 + 256
    assert (channel.timeout_count, channel.in_flight_count, channel.depth) == (5000, 0, 5000)


def test_touching_gives_more_time_but_not_for_ever(start):
    daemon = start(max_msg_timeout=100.0)
    consumer = daemon.consumer(timeout=60.0)
    daemon.publishes(b"a")
    consumer.takes()
    daemon.waits(50)
    consumer.touches(b"a")  # until 100, not 110
    daemon.waits(49.9)
    assert daemon.channel().in_flight_count == 1
    daemon.waits(0.1)
    assert daemon.channel().in_flight_count == 0


def test_touching_may_also_shorten_what_the_configuration_made_too_long(start):
    daemon = start(max_msg_timeout=30.0)
    consumer = daemon.consumer(timeout=60.0)
    daemon.publishes(b"a")
    consumer.takes()
    consumer.touches(b"a")
    assert daemon.channel().alarm == daemon.now + 30.0
    daemon.waits(30)
    assert daemon.channel().depth == 1


def test_a_late_answer_for_a_message_that_came_again_to_the_same_consumer_counts(daemon, channel):
    consumer = daemon.consumer()
    daemon.publishes(b"a")
    consumer.takes()
    daemon.waits(60)
    assert consumer.takes() == [b"a"]
    assert consumer.finishes(b"a") == []
    assert channel.in_flight_count == 0


# --- Attempts ---------------------------------------------------------------------------------------------------------


def test_channels_share_the_published_frame_and_a_redelivery_is_a_frame_of_its_own(daemon):
    archive, metrics = daemon.consumer("archive"), daemon.consumer("metrics")
    daemon.publishes(b"a")
    archive.takes()
    published = archive.frames[b"a"]
    archive.requeues(b"a")
    archive.takes()
    metrics.takes()
    assert archive.attempts(b"a") == 2
    assert metrics.frames[b"a"] is published
    assert message.attempts(published) == 1
    assert message.timestamp_ns(archive.frames[b"a"]) == message.timestamp_ns(published)
    assert archive.id_of(b"a") == metrics.id_of(b"a")


@given(endings=st.lists(st.sampled_from(["requeue", "defer", "time out", "leave"]), max_size=12))
def test_the_attempts_count_every_delivery_however_it_ended(start, endings):
    daemon = start()
    channel = daemon.channel()
    daemon.publishes(b"a")
    for number, ending in enumerate([*endings, "finish"], 1):
        consumer = daemon.consumer()
        assert consumer.takes() == [b"a"]
        assert consumer.attempts(b"a") == number
        if ending in ("requeue", "defer"):
            consumer.requeues(b"a", delay=5.0 if ending == "defer" else 0.0)
        elif ending == "finish":
            assert consumer.finishes(b"a") == []
        if ending != "time out":
            consumer.leaves()
        daemon.waits(60)
        consumer.leaves()
    assert (channel.depth, channel.deferred_count, channel.in_flight_count) == (0, 0, 0)


# --- Which consumer may answer ----------------------------------------------------------------------------------------


def refused(answer, *args, **kwargs):
    with pytest.raises(NotInFlight) as reason:
        answer(*args, **kwargs)
    return str(reason.value)


def test_a_message_that_is_not_in_flight_cannot_be_answered(daemon, channel):
    consumer = daemon.consumer()
    daemon.publishes(b"a")
    consumer.takes()
    daemon.waits(60)
    assert refused(consumer.requeues, b"a") == "ID not in flight"
    assert refused(consumer.touches, b"a") == "ID not in flight"
    assert consumer.finishes(b"a") == [b"a"]
    assert channel.reason_not_in_flight(consumer.id_of(b"a")) == "ID not in flight"
    assert (channel.depth, channel.requeue_count) == (1, 0)


def test_a_message_in_flight_elsewhere_cannot_be_answered(daemon, channel):
    owner, thief = daemon.consumer(), daemon.consumer()
    daemon.publishes(b"a")
    owner.takes()
    thief.frames = owner.frames
    assert refused(thief.requeues, b"a") == "client does not own message"
    assert refused(thief.touches, b"a") == "client does not own message"
    assert thief.finishes(b"a") == [b"a"]
    assert channel.reason_not_in_flight(owner.id_of(b"a")) == "client does not own message"
    assert channel.in_flight_of([owner.id_of(b"a"), b"0" * 16]) == {owner.id_of(b"a")}
    assert owner.finishes(b"a") == []
    assert channel.in_flight_of([owner.id_of(b"a")]) == set()


def test_a_message_that_timed_out_and_went_to_another_belongs_to_the_other(daemon):
    before, after = daemon.consumer(), daemon.consumer()
    daemon.publishes(b"a")
    before.takes(room=1)
    daemon.waits(60)
    after.takes()
    assert refused(before.requeues, b"a") == "client does not own message"


def test_one_channel_does_not_answer_for_another(daemon):
    archive, metrics = daemon.consumer("archive"), daemon.consumer("metrics")
    daemon.publishes(b"a")
    archive.takes()
    metrics.frames = archive.frames
    assert refused(metrics.requeues, b"a") == "ID not in flight"
    assert archive.finishes(b"a") == []


# --- Fair waking ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 200], ids=["one by one", "together"])
def test_two_hundred_messages_are_shared_out_evenly(daemon, size):
    consumers = daemon.waiting_consumers(3)
    for _ in range(0, 200, size):
        daemon.publishes(*[b"x"] * size)
    assert [len(consumer.takes()) for consumer in consumers] == [67, 67, 66]


def test_messages_published_one_at_a_time_go_to_consumers_in_turn(daemon):
    consumers = daemon.waiting_consumers(3)
    served = []
    for number in range(7):
        daemon.publishes(b"%d" % number)
        (awake,) = [consumer for consumer in consumers if consumer.awake]
        assert awake.takes() == [b"%d" % number]
        served.append(consumers.index(awake))
    assert served == [0, 1, 2, 0, 1, 2, 0]


def test_no_more_consumers_are_woken_than_there_are_messages(daemon):
    consumers = daemon.waiting_consumers(5)
    daemon.publishes(b"a", b"b", b"c")
    assert [consumer.awake for consumer in consumers] == [True, True, True, False, False]
    for consumer in consumers[:3]:
        assert len(consumer.takes()) == 1
    assert [consumer.wakes for consumer in consumers] == [1, 1, 1, 0, 0]


def test_a_consumer_that_asks_without_being_woken_keeps_its_place_in_the_queue(daemon):
    first, second = daemon.waiting_consumers(2)
    assert first.takes() == []
    daemon.publishes(b"a")
    assert (first.awake, second.awake) == (True, False)


def test_a_woken_consumer_is_served_before_one_that_was_not(daemon):
    woken, passing = daemon.waiting_consumers(2)
    daemon.publishes(b"a")
    assert passing.takes() == []
    assert woken.takes() == [b"a"]
    daemon.publishes(b"b")
    assert (woken.awake, passing.awake) == (False, True)


def test_a_consumer_that_was_not_woken_gets_what_an_even_share_leaves(daemon):
    woken, passing = daemon.consumer(), daemon.consumer()
    assert woken.takes() == []
    daemon.publishes(b"a", b"b", b"c")
    assert passing.takes() == [b"a"]
    assert woken.takes() == [b"b", b"c"]


def test_a_consumer_with_little_room_leaves_the_rest_of_its_share_to_others(daemon):
    small, big = daemon.waiting_consumers(2)
    daemon.publishes(b"a", b"b", b"c", b"d", b"e")
    assert small.takes(room=1) == [b"a"]
    assert big.takes() == [b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("gives_up", [Consumer.stands_back, Consumer.leaves])
def test_a_woken_consumer_that_takes_nothing_passes_its_turn_on(daemon, gives_up):
    woken, passing = daemon.waiting_consumers(2)
    daemon.publishes(b"a")
    assert not passing.awake
    assert passing.takes() == []
    gives_up(woken)
    assert passing.awake
    assert passing.takes() == [b"a"]


def test_a_consumer_that_stands_back_is_not_woken(daemon):
    resting, waiting = daemon.waiting_consumers(2)
    resting.stands_back()
    daemon.publishes(b"a", b"b")
    assert (resting.awake, waiting.awake) == (False, True)


def test_a_consumer_that_was_satisfied_is_not_woken(daemon):
    (consumer,) = daemon.waiting_consumers(1)
    daemon.publishes(b"a")
    assert consumer.takes(room=1) == [b"a"]
    daemon.publishes(b"b")
    assert not consumer.awake


def test_one_batch_is_neither_too_many_messages_nor_too_many_bytes(daemon):
    consumer = daemon.consumer()
    daemon.publishes(*[b"x"] * (MAX_BATCH + 1))
    assert len(consumer.takes(room=2500)) == MAX_BATCH
    assert len(consumer.takes(room=2500)) == 1
    daemon.publishes(*[b"x" * (MAX_BATCH_BYTES // 2)] * 3)
    assert [len(consumer.takes(room=2500)) for _ in range(4)] == [1, 1, 1, 0]


def test_a_consumer_with_timed_out_messages_is_woken_because_it_has_room_again(daemon):
    consumer = daemon.consumer()
    daemon.publishes(b"a")
    consumer.takes(room=1)
    daemon.waits(60)
    assert consumer.awake
    assert consumer.takes(room=1) == [b"a"]


@given(
    rooms=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    batches=st.lists(st.integers(1, 60), min_size=1, max_size=6),
)
def test_all_messages_are_taken_with_at_most_as_many_wakes_and_no_consumer_starves(start, rooms, batches):
    daemon = start()
    free = dict(zip(daemon.waiting_consumers(len(rooms)), rooms, strict=True))
    published = taken = 0
    for size in batches:
        wakes = sum(consumer.wakes for consumer in free)
        daemon.publishes(*[b"%d" % number for number in range(published, published + size)])
        published += size
        assert sum(consumer.wakes for consumer in free) - wakes <= size
        while awake := [consumer for consumer in free if consumer.awake]:
            for consumer in awake:
                while free[consumer] and (some := len(consumer.takes(free[consumer]))):
                    free[consumer] -= some
                    taken += some
                if not free[consumer]:
                    consumer.stands_back()
        assert daemon.channel().depth == max(0, published - sum(rooms))
        assert taken + daemon.channel().depth == published


@given(consumers=st.integers(1, 10), messages=st.integers(1, 200))
def test_shares_of_waiting_consumers_differ_by_one_at_most(start, consumers, messages):
    daemon = start()
    waiting = daemon.waiting_consumers(consumers)
    daemon.publishes(*[b"%d" % number for number in range(messages)])
    taken = [len(each.takes(1000)) for each in waiting if each.awake]
    assert len(taken) == min(consumers, messages)
    assert sum(taken) == messages
    assert max(taken) - min(taken) <= 1
    assert all(before >= after for before, after in pairwise(taken))


# --- Deferred messages ------------------------------------------------------------------------------------------------


def test_a_deferred_message_comes_when_it_is_due_and_wakes_a_waiting_consumer(daemon, channel):
    (consumer,) = daemon.waiting_consumers(1)
    daemon.publishes(b"a", defer=5.0)
    assert (channel.depth, channel.deferred_count, channel.message_count) == (0, 1, 1)
    daemon.waits(4.9)
    assert not consumer.awake
    daemon.waits(0.1)
    assert consumer.awake
    assert consumer.takes() == [b"a"]
    assert consumer.attempts(b"a") == 1


def test_the_alarm_is_set_to_the_earliest_deadline(daemon, channel):
    assert channel.alarm == NEVER
    daemon.publishes(b"late", defer=500.0)
    assert channel.alarm == daemon.now + 500.0
    consumer = daemon.consumer(timeout=60.0)
    daemon.publishes(b"a")
    consumer.takes()
    assert channel.alarm == daemon.now + 60.0
    daemon.publishes(b"soon", defer=5.0)
    assert channel.alarm == daemon.now + 5.0
    daemon.waits(5)
    assert channel.alarm == daemon.now + 55.0


# --- Consumers come and go --------------------------------------------------------------------------------------------


def test_messages_of_a_consumer_that_left_come_back_when_they_time_out_and_no_sooner(daemon, channel):
    leaving = daemon.consumer(timeout=60.0)
    daemon.publishes(b"a")
    leaving.takes()
    leaving.leaves()
    staying = daemon.consumer()
    assert (channel.in_flight_count, staying.takes()) == (1, [])
    daemon.waits(59.9)
    assert not staying.awake
    daemon.waits(0.1)
    assert staying.takes() == [b"a"]
    assert staying.attempts(b"a") == 2
    assert (channel.timeout_count, leaving.wakes) == (1, 0)


def test_leaving_twice_is_leaving_once(daemon, channel):
    leaving = daemon.consumer()
    daemon.publishes(b"a")
    leaving.takes()
    leaving.leaves()
    leaving.leaves()
    assert channel.in_flight_count == 1
    daemon.waits(60)
    assert channel.depth == 1


def test_a_channel_has_no_more_consumers_than_allowed(start):
    daemon = start(max_channel_consumers=2)
    first = daemon.consumer()
    daemon.consumer()
    with pytest.raises(TooManyConsumers, match="^consumers for orders:archive exceeds limit of 2$"):
        daemon.consumer()
    first.leaves()
    daemon.consumer()


def test_the_last_consumer_to_leave_ends_an_ephemeral_channel(daemon):
    first, second = (daemon.consumer("tail#ephemeral") for _ in range(2))
    first.leaves()
    assert "tail#ephemeral" in daemon.topic().channels
    second.leaves()
    assert daemon.topic().channels == {}


def test_an_ephemeral_channel_that_never_had_a_consumer_stays(daemon):
    channel = daemon.channel("tail#ephemeral")
    channel.pause()
    daemon.waits(3600)
    assert daemon.topic().channels == {"tail#ephemeral": channel}


def test_any_other_channel_outlives_its_consumers(daemon, channel):
    daemon.consumer().leaves()
    assert daemon.topic().channels == {"archive": channel}


# --- Bounds -----------------------------------------------------------------------------------------------------------


def test_messages_that_do_not_fit_are_dropped_and_counted_the_newest_first(start, caplog):
    daemon = start(mem_queue_size=3)
    channel = daemon.channel()
    consumer = daemon.consumer()
    with caplog.at_level(logging.WARNING):
        daemon.publishes(b"a", b"b")
        daemon.publishes(b"c", b"d", b"e")
        daemon.publishes(b"f")
    assert consumer.takes() == [b"a", b"b", b"c"]
    assert (channel.message_count, channel.dropped_count) == (6, 3)
    assert [record.message for record in caplog.records] == [
        "CHANNEL(archive): more than 3 messages wait, dropping further ones (see dropped_count in /stats)"
    ]


def fails_all(consumer, times=1, delay=0.0):
    """Take and requeue every message that comes, so many times."""
    count = 0
    for _ in range(times):
        for body in consumer.takes():
            consumer.requeues(body, delay)
            count += 1
    return count


def test_returned_messages_that_memory_has_no_room_for_are_read_from_the_log(data_path):
    daemon = data_path.start(mem_queue_size=300)
    channel = daemon.channel()
    consumer = daemon.consumer()
    bodies = [b"%d" % number for number in range(1000)]
    daemon.publishes(*bodies)
    taken = []
    while some := consumer.takes():
        taken += some
    for body in bodies:
        consumer.requeues(body)
    assert channel.backlog.returned.length == 300
    assert (channel.depth, channel.deferred_count, channel.dropped_count) == (300, 700, 0)
    again = consumer.takes_all()
    while channel.deferred_count:
        daemon.waits(0.01)
        assert channel.backlog.returned.length <= 300
        again += consumer.takes_all()
    assert sorted(again) == sorted(bodies)
    assert {consumer.attempts(body) for body in bodies} == {2}


@pytest.mark.parametrize("memory", [0, 300])
def test_messages_that_are_requeued_again_and_again_do_not_keep_others_from_delivery(data_path, memory):
    daemon = data_path.start(mem_queue_size=memory)
    consumer = daemon.consumer()
    bodies = [b"%d" % number for number in range(1000)]
    daemon.publishes(*bodies)
    for body in consumer.takes_all():
        consumer.requeues(body)
    poison, seen = set(bodies[:250]), set()
    for _ in range(4000):
        for body in consumer.takes(room=1):
            seen.add(body)
            if body in poison:
                consumer.requeues(body)
            else:
                consumer.finishes(body)
        daemon.waits(0.001)
    assert seen == set(bodies)
    assert daemon.channel().depth + daemon.channel().deferred_count == 250


def test_messages_that_time_out_together_do_not_exceed_memory(data_path):
    daemon = data_path.start(mem_queue_size=300)
    consumer = daemon.consumer(timeout=60.0)
    bodies = [b"%d" % number for number in range(1000)]
    daemon.publishes(*bodies)
    assert len(consumer.takes_all()) == 1000
    daemon.waits(60)
    assert daemon.channel().backlog.returned.length == 300
    again: list[bytes] = []
    while len(again) < 1000:
        again += consumer.takes_all()
        daemon.waits(0.01)
    assert sorted(again) == sorted(bodies)


@pytest.mark.parametrize("delay", [0.0, 5.0])
def test_without_a_log_returned_messages_that_do_not_fit_are_dropped_and_counted(start, delay):
    daemon = start(mem_queue_size=300)
    channel = daemon.channel("tail#ephemeral")
    consumer = daemon.consumer("tail#ephemeral")
    for number in range(10):
        bodies = [b"%d" % (100 * number + each) for each in range(100)]
        daemon.publishes(*bodies)
        assert fails_all(consumer, times=5, delay=delay) >= 100
    kept = channel.depth + channel.deferred_count + channel.in_flight_count
    assert kept <= 600
    assert channel.dropped_count == 1000 - kept


def test_one_full_channel_costs_another_nothing(start):
    daemon = start(mem_queue_size=2)
    daemon.channel("full")
    consumer = daemon.consumer("drained")
    for body in (b"a", b"b", b"c"):
        daemon.publishes(body)
        assert consumer.takes() == [body]
    assert (daemon.channel("full").dropped_count, daemon.channel("drained").dropped_count) == (1, 0)


def test_returned_messages_are_never_dropped(start):
    daemon = start(mem_queue_size=2)
    channel, consumer = daemon.channel(), daemon.consumer()
    daemon.publishes(b"a", b"b")
    consumer.takes()
    daemon.publishes(b"c", b"d")
    consumer.requeues(b"a")
    daemon.waits(60)
    assert (channel.depth, channel.dropped_count) == (4, 0)
    daemon.publishes(b"e")
    assert channel.dropped_count == 1
    assert sorted(consumer.takes()) == [b"a", b"b", b"c", b"d"]


# --- More than memory holds -------------------------------------------------------------------------------------------


def test_messages_that_are_not_in_memory_come_from_the_log(logging_daemon):
    consumer = logging_daemon.consumer()
    logging_daemon.publishes(b"a", b"b", b"c")
    logging_daemon.publishes(b"d")
    assert logging_daemon.channel().backlog.cursor.behind
    assert logging_daemon.channel().backlog.backend_depth == 2
    assert consumer.takes() == [b"a", b"b", b"c", b"d"]
    assert logging_daemon.channel().dropped_count == 0


def test_a_log_that_cannot_be_read_is_tried_again_and_costs_neither_messages_nor_consumers(logging_daemon, disk):
    channel = logging_daemon.channel()
    first, second = logging_daemon.consumer(), logging_daemon.consumer()
    assert first.takes() == second.takes() == []
    logging_daemon.publishes(b"a", b"b", b"c", b"d")
    disk.unreadable = True
    assert first.takes() == second.takes() == []
    assert (channel.depth, channel.in_flight_count) == (4, 0)
    disk.unreadable = False
    assert not first.awake
    logging_daemon.waits(0.1)
    assert first.awake
    assert second.awake
    assert first.takes() == [b"a", b"b"]
    assert second.takes() == [b"c", b"d"]


def test_reads_of_a_log_that_fail_are_repeated_less_and_less_often_and_nothing_is_skipped(logging_daemon, disk, caplog):
    caplog.set_level("INFO")
    channel = logging_daemon.channel()
    consumer = logging_daemon.consumer()
    logging_daemon.publishes(b"a", b"b", b"c")
    disk.unreadable, disk.errno = True, errno.EIO
    attempts = []
    for _ in range(200):
        before = logging_daemon.topic().store.log._descriptors.read_faults.count
        assert consumer.takes() == consumer.takes() == []
        logging_daemon.publishes(b"d")
        if logging_daemon.topic().store.log._descriptors.read_faults.count > before:
            attempts.append(logging_daemon.now)
        logging_daemon.waits(0.05)
    pauses = [round(after - before, 1) for before, after in pairwise(attempts)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.2]
    assert (channel.depth, channel.in_flight_count) == (203, 0)
    assert [record.levelname for record in caplog.records if "read" in record.message] == ["ERROR", "WARNING"]
    disk.unreadable = False
    logging_daemon.waits(3.2)
    assert consumer.awake
    assert consumer.takes(3) == [b"a", b"b", b"c"]
    assert caplog.records[-1].message == "LOG: everything can be read again"
    assert logging_daemon.topic().store.log.damage.records == 0


def test_deferred_messages_that_cannot_be_read_are_tried_again_and_hold_up_nothing_else(logging_daemon, disk):
    consumer = logging_daemon.consumer()
    logging_daemon.publishes(b"1", b"2", b"3", defer=1)
    disk.unreadable, disk.errno = True, errno.EIO
    logging_daemon.waits(1)
    logging_daemon.publishes(b"now")
    assert consumer.takes() == [b"now"]
    assert logging_daemon.channel().deferred_count == 3
    disk.unreadable = False
    logging_daemon.waits(0.1)
    assert consumer.takes() == [b"1", b"2", b"3"]


def test_returned_messages_are_not_lost_if_the_log_cannot_be_read_behind_them(logging_daemon, disk):
    consumer = logging_daemon.consumer()
    logging_daemon.publishes(b"first", b"second")
    consumer.takes()
    consumer.requeues(b"first")
    logging_daemon.publishes(b"a", b"b", b"c")
    consumer.requeues(b"second")
    disk.unreadable = True
    assert consumer.takes() == [b"first"]
    disk.unreadable = False
    assert consumer.takes() + consumer.takes() == [b"a", b"b", b"second", b"c"]
    assert (consumer.attempts(b"first"), consumer.attempts(b"second")) == (2, 2)


def test_a_consumer_that_gets_nothing_because_of_damage_is_woken_again(logging_daemon):
    """More than one block of messages was unfinished when the daemon ended, and the first block cannot be found."""
    channel = logging_daemon.channel()
    logging_daemon.publishes(b"a")
    (kept,) = [frame for group in logging_daemon.topic().store.log.reader(0).read() for frame in group.frames]
    lost = [(b"%016x" % number, 2) for number in range(300)]
    consumer = logging_daemon.consumer()
    channel.empty()
    unfinished = immediate_entries([*lost, (message.message_id(kept), 2)])
    channel.restore(ChannelState(1, unfinished), 1, shift=0.0)
    taken: list[bytes] = []
    consumer.awake = True
    while consumer.awake:
        taken += consumer.takes()
        logging_daemon.waits(0)
    assert taken == [b"a"]
    assert channel.depth == 0


def test_a_long_read_after_a_restart_is_done_in_steps_and_is_no_error(data_path, caplog):
    caplog.set_level("WARNING")
    before = data_path.start()
    before.channel()
    bodies = [b"%d" % number for number in range(1200)]
    for body in bodies:
        before.publishes(body)
    first = before.consumer()
    assert first.takes(1) == bodies[:1]
    data_path.stop(before)
    daemon = data_path.start()
    first, second = daemon.consumer(), daemon.consumer()
    assert (first.takes(), second.takes()) == ([], [])
    assert (first.awake, second.awake) == (False, False), "the next step comes with the next alarm"
    taken: list[bytes] = []
    steps = 0
    while len(taken) < len(bodies):
        daemon.waits(0)
        assert first.awake or second.awake or taken
        steps += not taken
        taken += first.takes(2500) + second.takes(2500)
    assert taken == bodies
    assert steps > 1
    assert not caplog.records
    assert daemon.topic().store.log.damage.records == 0


def test_messages_behind_many_deferred_ones_are_found_in_steps_and_none_is_skipped(data_path, caplog):
    caplog.set_level("WARNING")
    daemon = data_path.start(mem_queue_size=0)
    channel = daemon.channel()
    daemon.publishes(b"first")
    for _ in range(40):
        daemon.publishes(bytes(20_000), defer=3600)
    daemon.publishes(b"last")
    consumer = daemon.consumer()
    assert consumer.takes(1) == [b"first"]
    assert consumer.takes() == []
    assert (channel.depth, consumer.awake) == (1, False)
    while not (taken := consumer.takes()):
        daemon.waits(0)
        assert consumer.awake
    assert taken == [b"last"]
    assert (channel.depth, channel.deferred_count) == (0, 40)
    assert not caplog.records


def test_deferred_messages_of_an_earlier_run_are_searched_for_in_steps(data_path, caplog):
    caplog.set_level("WARNING")
    before = data_path.start()
    before.channel()
    consumer = before.consumer()
    for number in range(1200):
        before.publishes(b"%d" % number)
    while len(consumer.in_flight) < 10:
        consumer.takes(10 - len(consumer.in_flight))
    for number in range(10):
        consumer.requeues(b"%d" % number, delay=5)
    data_path.kill(before)
    daemon = data_path.start()
    consumer = daemon.consumer()
    assert daemon.channel().deferred_count == 10
    caplog.clear()
    daemon.waits(5)
    released: list[bytes] = []
    while len(released) < 1200:
        released += consumer.takes()
        daemon.waits(0)
    assert sorted(released, key=int) == [b"%d" % number for number in range(1200)]
    assert not caplog.records


# --- Control ----------------------------------------------------------------------------------------------------------


def test_a_paused_channel_delivers_nothing_but_goes_on_filling(daemon, channel):
    (consumer,) = daemon.waiting_consumers(1)
    channel.pause()
    daemon.publishes(b"a")
    assert not consumer.awake
    assert consumer.takes() == []
    assert channel.depth == 1
    channel.unpause()
    assert consumer.awake
    assert consumer.takes() == [b"a"]


def test_in_a_paused_channel_timeouts_and_deferred_messages_go_on(daemon, channel):
    consumer = daemon.consumer()
    daemon.publishes(b"a")
    consumer.takes()
    daemon.publishes(b"b", defer=10.0)
    channel.pause()
    daemon.waits(60)
    assert (channel.depth, channel.in_flight_count, channel.deferred_count) == (2, 0, 0)


def test_a_consumer_woken_before_the_pause_passes_nothing_on_during_it(daemon, channel):
    woken, waiting = daemon.waiting_consumers(2)
    daemon.publishes(b"a")
    channel.pause()
    woken.stands_back()
    assert not waiting.awake
    channel.unpause()
    assert waiting.awake


@pytest.fixture
def full_channel(daemon, channel):
    """A channel with a message that waits, a deferred one, and two in flight, one of them at a consumer that left."""
    consumer, gone = daemon.consumer(), daemon.consumer()
    daemon.publishes(b"a", b"b", b"c")
    consumer.takes(room=1)
    gone.takes(room=1)
    gone.leaves()
    daemon.publishes(b"d", defer=5.0)
    assert (channel.depth, channel.in_flight_count, channel.deferred_count) == (1, 2, 1)
    return channel, consumer


def test_emptying_drops_waiting_deferred_and_in_flight_messages(daemon, full_channel):
    channel, consumer = full_channel
    channel.empty()
    assert (channel.depth, channel.in_flight_count, channel.deferred_count) == (0, 0, 0)
    assert consumer.awake  # it has room again
    assert consumer.finishes(b"a") == [b"a"]
    daemon.waits(3600)
    assert channel.depth == 0
    daemon.publishes(b"e")
    assert consumer.takes() == [b"e"]


@pytest.mark.parametrize(("end", "left"), [(Channel.delete, (0, 0, 0)), (Channel.close, (1, 2, 1))])
def test_a_channel_that_ends_closes_its_consumers_and_has_its_messages_only_for_a_checkpoint(full_channel, end, left):
    channel, consumer = full_channel
    end(channel)
    assert consumer.closed
    assert (channel.depth, channel.in_flight_count, channel.deferred_count) == left
    assert channel.alarm == NEVER
    with pytest.raises(Exiting):
        channel.add_consumer(consumer)


# --- What must survive ------------------------------------------------------------------------------------------------


def test_no_more_deferred_messages_are_released_at_once_than_memory_has_room_for(logging_daemon):
    consumer = logging_daemon.consumer()
    bodies = [b"%03d" % number for number in range(MAX_BATCH + 10)]
    logging_daemon.publishes(*bodies, defer=5.0)
    logging_daemon.waits(5)
    channel = logging_daemon.channel()
    assert (channel.depth, channel.deferred_count) == (MAX_BATCH, 10)
    assert consumer.takes(1000) == bodies[:MAX_BATCH]
    logging_daemon.waits(0.1)
    assert consumer.takes(1000) == bodies[MAX_BATCH:]


def test_more_deferred_messages_come_as_soon_as_there_is_room_for_them(logging_daemon):
    consumer = logging_daemon.consumer()
    bodies = [b"%03d" % number for number in range(3 * MAX_BATCH)]
    logging_daemon.publishes(*bodies, defer=5.0)
    logging_daemon.waits(5)
    for begin in range(0, len(bodies), MAX_BATCH):
        assert consumer.takes(1000) == bodies[begin : begin + MAX_BATCH]
        logging_daemon.waits(0)


def test_deferred_messages_of_two_channels_are_released_in_turn(start):
    daemon = start(mem_queue_size=10_000)
    channels = [daemon.channel(name) for name in ("archive", "metrics")]
    daemon.publishes(*[b"%04d" % number for number in range(2000)], defer=5.0)
    turns = iter(range(4))
    daemon.broker.schedule.run(daemon.now + 5, lambda: next(turns, None) is None)
    assert all(0 < channel.depth < 2000 for channel in channels)


def test_a_state_names_messages_that_were_taken_and_not_finished(logging_daemon):
    consumer, gone = logging_daemon.consumer(), logging_daemon.consumer()
    logging_daemon.publishes(*[b"%d" % number for number in range(7)])
    gone.takes(1)
    gone.leaves()
    taken = [body for _ in range(4) for body in consumer.takes(1)]
    consumer.finishes(taken[0])
    consumer.requeues(taken[1])
    consumer.requeues(taken[2], delay=9.0)
    place = logging_daemon.channel().state()
    assert place.position == 5
    assert place.immediate() == [
        (gone.id_of(b"0"), 2),
        (consumer.id_of(taken[1]), 2),
        (consumer.id_of(taken[3]), 2),
    ]
    assert [(number, due) for due, _, number, _ in map(ENTRY.unpack_from, place.take_deferred())] == [
        (consumer.id_of(taken[2]), logging_daemon.now + 9.0)
    ]


def test_a_state_creates_its_entries_a_step_at_a_time(logging_daemon):
    consumer = logging_daemon.consumer()
    logging_daemon.publishes(*[b"%d" % number for number in range(10_000)])
    while consumer.takes(2500):
        pass
    place = logging_daemon.channel().state()
    counts = [len(place.entries)]
    while place.add_entries():
        counts.append(len(place.entries))
    assert counts == [0, 4096, 8192, 10_000]


def test_a_state_does_not_change_while_the_channel_goes_on(logging_daemon):
    consumer = logging_daemon.consumer()
    logging_daemon.publishes(b"finished", b"requeued", b"put off", b"waits")
    for _ in range(4):
        consumer.takes(1)
    consumer.requeues(b"waits")
    place = logging_daemon.channel().state()
    consumer.finishes(b"finished")
    consumer.requeues(b"requeued")
    consumer.requeues(b"put off", delay=9.0)
    consumer.takes()
    assert place.position == 4
    assert place.immediate() == [(consumer.id_of(body), 2) for body in (b"finished", b"requeued", b"put off", b"waits")]
    assert place.take_deferred() == []


def test_a_restored_channel_wakes_waiting_consumers(logging_daemon):
    consumer = logging_daemon.consumer()
    logging_daemon.publishes(b"a")
    consumer.takes()
    place = logging_daemon.channel().state()
    other = logging_daemon.topic("orders").channel("other")
    waiting = logging_daemon.consumer("other")
    assert waiting.takes() == []
    other.restore(place, 1, 0.0)
    assert waiting.awake
    assert waiting.takes() == [b"a"]
    assert waiting.attempts(b"a") == 2
