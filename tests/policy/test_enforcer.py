import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.log.storage import Durability
from nsq_compat.policy.dead_letters import REDRIVE_CHANNEL
from nsq_compat.policy.enforcer import CHECK_DELAY_SECONDS, CHECK_INTERVAL_SECONDS, CreationRate, Full, Limited


def depths(daemon):
    return {name: channel.depth for name, channel in daemon.topic().channels.items()}


def waiting(daemon, channel="archive"):
    reader = daemon.consumer(channel)
    taken = []
    while more := reader.takes():
        taken += more
    return taken


# --- Refused ----------------------------------------------------------------------------------------------------------


def test_a_full_channel_rejects_the_whole_publish(daemon):
    daemon.follows({"channel": "archive", "max_depth": 3})
    daemon.channel("other")
    channel = daemon.channel()
    daemon.publishes(b"a", b"b")
    with pytest.raises(Full, match=r"channel orders:archive is full \(max_depth\)"):
        daemon.publishes(b"c", b"d")
    daemon.publishes(b"c")
    assert depths(daemon) == {"other": 3, "archive": 3}
    assert channel.rejected_count == 2
    assert daemon.topic().message_count == 3


def test_a_full_channel_accepts_messages_again_after_deliveries(daemon):
    daemon.follows({"max_depth": 1})
    consumer = daemon.consumer()
    daemon.publishes(b"a")
    with pytest.raises(Full):
        daemon.publishes(b"b")
    consumer.takes()
    daemon.publishes(b"b")


def test_a_deferred_publish_is_rejected_too(daemon):
    daemon.follows({"max_depth": 1})
    daemon.channel()
    daemon.publishes(b"a")
    with pytest.raises(Full):
        daemon.publishes(b"b", defer=5.0)


def test_a_topic_without_channels_is_limited_by_policies_for_the_topic(daemon):
    daemon.follows({"topic": "orders", "max_depth": 2})
    daemon.publishes(b"a", b"b")
    with pytest.raises(Full, match=r"topic orders is full \(max_depth\)"):
        daemon.publishes(b"c")
    daemon.publishes(b"c", b"d", b"e", topic="clicks")
    assert daemon.topic().rejected_count == 1


def test_bytes_are_checked_soon_after_a_publish(daemon):
    daemon.follows({"max_bytes": 1000})
    consumer = daemon.consumer()
    daemon.publishes(b"x" * 2000)
    daemon.waits(CHECK_DELAY_SECONDS)
    with pytest.raises(Full, match="max_bytes"):
        daemon.publishes(b"y")
    consumer.takes()
    daemon.waits(CHECK_INTERVAL_SECONDS)
    daemon.publishes(b"y")


def test_publishes_are_rejected_while_the_oldest_message_is_too_old(daemon):
    daemon.follows({"max_age": "10s"})
    consumer = daemon.consumer()
    daemon.publishes(b"a")
    daemon.waits(9)
    daemon.publishes(b"b")
    daemon.waits(2)
    with pytest.raises(Full, match="max_age"):
        daemon.publishes(b"c")
    assert consumer.takes(1) == [b"a"]
    daemon.waits(CHECK_INTERVAL_SECONDS)
    daemon.publishes(b"c")


def test_rejected_messages_are_logged_from_time_to_time(daemon, caplog):
    daemon.follows({"max_depth": 1})
    daemon.channel()
    daemon.publishes(b"a")
    for _ in range(5):
        with pytest.raises(Full):
            daemon.publishes(b"b", b"c")
    assert caplog.text.count("is full") == 1
    assert "channel orders:archive is full (max_depth): 2 messages refused" in caplog.text


# --- Dropped ----------------------------------------------------------------------------------------------------------


def test_the_oldest_messages_are_dropped_for_new_ones(daemon, caplog):
    daemon.follows({"max_depth": 3, "when_full": "drop-oldest"})
    channel = daemon.channel()
    daemon.publishes(b"a", b"b", b"c")
    daemon.publishes(b"d", b"e")
    daemon.waits(0)
    assert channel.dropped_count == 2
    assert "channel orders:archive exceeds its limits: 2 oldest messages dropped" in caplog.text
    assert waiting(daemon) == [b"c", b"d", b"e"]


def test_messages_in_flight_are_not_dropped(daemon):
    daemon.follows({"max_depth": 1, "when_full": "drop-oldest"})
    consumer = daemon.consumer()
    daemon.publishes(b"a")
    assert consumer.takes() == [b"a"]
    daemon.publishes(b"b", b"c")
    daemon.waits(0)
    assert consumer.finishes(b"a") == []
    assert consumer.takes() == [b"c"]


def test_many_messages_are_dropped_at_once(start):
    daemon = start(mem_queue_size=100_000)
    daemon.channel()
    daemon.publishes(*[b"%d" % number for number in range(5000)])
    daemon.follows({"max_depth": 1, "when_full": "drop-oldest"})
    daemon.broker.schedule.run(daemon.now)
    assert waiting(daemon) == [b"4999"]


def test_messages_are_dropped_in_the_order_in_which_they_would_be_delivered(start):
    daemon = start(mem_queue_size=100_000)
    consumer = daemon.consumer()
    daemon.publishes(*[b"%d" % number for number in range(5000)])
    for each in consumer.takes(9):
        consumer.requeues(each)
    daemon.follows({"max_depth": 1, "when_full": "drop-oldest"})
    for _ in range(5):
        daemon.broker.schedule.run(daemon.now)
        daemon.waits(0.01)
    assert waiting(daemon) == [b"8"]


@pytest.mark.parametrize("limit", [{"max_depth": 1000}, {"max_bytes": 1_000_000}])
def test_messages_that_are_only_in_the_log_are_dropped_faster_than_they_are_published(data_path, limit):
    daemon = data_path.start(mem_queue_size=100)
    channel = daemon.channel()
    daemon.follows({**limit, "when_full": "drop-oldest"})
    for number in range(10):
        daemon.publishes(*[b"%d." % number + bytes(1000)] * 16_000)
        daemon.waits(CHECK_DELAY_SECONDS)
        assert channel.depth <= 1000
    consumer = daemon.consumer()
    kept: list[bytes] = []
    while len(kept) < 160_000 - channel.dropped_count:  # the log is read in steps
        kept += consumer.takes_all()
        daemon.waits(0.01)
    assert all(each.startswith(b"9.") for each in kept)
    assert channel.dropped_count + len(kept) == 160_000
    assert len(kept) >= 900


def test_messages_are_dropped_down_to_max_bytes(daemon):
    daemon.follows({"max_bytes": 5000, "when_full": "drop-oldest"})
    daemon.channel()
    daemon.publishes(*[b"x" * 966 for _ in range(10)])  # 1000 with their headers
    daemon.waits(CHECK_DELAY_SECONDS)
    daemon.waits(0.01)
    assert daemon.channel().depth == 5
    assert daemon.channel().dropped_count == 5


def test_messages_older_than_max_age_are_dropped(daemon):
    daemon.follows({"max_age": "10s", "when_full": "drop-oldest"})
    daemon.channel()
    daemon.publishes(b"a")
    daemon.waits(5)
    daemon.publishes(b"b")
    for _ in range(6):
        daemon.waits(1)
    assert daemon.channel().dropped_count == 1
    assert waiting(daemon) == [b"b"]


def test_an_empty_channel_is_not_checked(daemon):
    daemon.follows({"max_age": "10s", "when_full": "drop-oldest"})
    consumer = daemon.consumer()
    daemon.publishes(b"a")
    consumer.takes()
    consumer.finishes(b"a")
    daemon.waits(61)
    assert daemon.broker.schedule.run(daemon.now) == float("inf")


def test_messages_held_by_a_topic_are_dropped_too(daemon):
    daemon.follows({"max_depth": 2, "when_full": "drop-oldest"})
    daemon.publishes(b"a", b"b", b"c")
    daemon.waits(0)
    assert daemon.topic().dropped_count == 1
    daemon.channel()
    assert waiting(daemon) == [b"b", b"c"]


def test_messages_dropped_by_a_paused_topic_are_not_delivered_by_channels_that_read_the_log(data_path):
    daemon = data_path.start(mem_queue_size=1)
    daemon.follows({"topic": "orders", "max_depth": 2, "when_full": "drop-oldest"})
    daemon.channel()
    daemon.publishes(b"a", b"b")
    daemon.topic().pause()
    daemon.publishes(b"c", b"d", b"e")
    daemon.waits(0)
    daemon.topic().unpause()
    daemon.follows()
    assert waiting(daemon) == [b"a", b"b", b"d", b"e"]


def test_a_backlog_on_disk_is_limited_also_after_a_restart(data_path):
    first = data_path.start(mem_queue_size=2)
    first.channel()
    first.publishes(*[b"%d" % number for number in range(50)])
    data_path.checkpoint(first)
    first.broker.take_changed()
    first.follows({"max_depth": 10, "when_full": "drop-oldest"})
    for _ in range(5):
        first.waits(0.01)
    assert first.channel().depth == 10
    assert first.broker.take_changed() == [first.topic()]  # there is something for a checkpoint to know
    data_path.checkpoint(first)
    data_path.kill(first)
    second = data_path.start()
    assert waiting(second) == [b"%d" % number for number in range(40, 50)]


def test_bytes_in_the_log_are_estimated_from_its_size(data_path):
    daemon = data_path.start(mem_queue_size=2)
    channel = daemon.channel()
    for _ in range(100):
        daemon.publishes(b"x" * 970)
    assert 90_000 < channel.backlog.byte_count() < 115_000
    consumer = daemon.consumer()
    for _ in range(50):
        consumer.takes(1)
    assert 40_000 < channel.backlog.byte_count() < 60_000


def test_messages_known_only_by_id_are_dropped_first(data_path):
    first = data_path.start(Durability.MEMORY, mem_queue_size=100)
    first.publishes(b"a", b"b", b"c")
    data_path.stop(first)
    second = data_path.start(Durability.MEMORY, mem_queue_size=100)
    second.publishes(b"d")
    second.follows({"max_age": "1s", "when_full": "drop-oldest"})
    assert [bytes(frame[-1:]) for frame in second.topic().backlog.peek_waiting(2)] == [b"a", b"b"]
    second.follows({"max_depth": 2, "when_full": "drop-oldest"})
    for _ in range(5):
        second.waits(0.01)
    second.channel()
    assert waiting(second) == [b"c", b"d"]


def test_a_disk_that_cannot_be_read_drops_nothing(data_path, disk, caplog):
    daemon = data_path.start(mem_queue_size=1)
    daemon.channel()
    daemon.publishes(b"a", b"b", b"c")
    daemon.waits(2)
    disk.unreadable = True
    daemon.follows({"max_age": "1s", "when_full": "drop-oldest"})
    daemon.waits(0)
    assert "channel orders:archive: cannot check its limits" in caplog.text
    disk.unreadable = False
    daemon.waits(CHECK_INTERVAL_SECONDS)
    assert daemon.channel().depth == 0


def test_a_long_read_goes_on_soon_and_is_no_error(data_path, caplog):
    before = data_path.start()
    before.channel()
    for _ in range(1200):
        before.publishes(b"x")
    data_path.stop(before)
    daemon = data_path.start()
    daemon.follows({"max_depth": 1, "when_full": "drop-oldest"})
    for _ in range(10):
        daemon.waits(0.01)
    assert daemon.channel().depth == 1
    assert "cannot check its limits" not in caplog.text


# --- Where ------------------------------------------------------------------------------------------------------------


def test_limits_apply_to_new_channels_and_end_with_deleted_ones(daemon):
    daemon.follows({"channel": "small", "max_depth": 1})
    daemon.publishes(b"a", b"b")
    daemon.channel("big")
    daemon.channel("small")
    daemon.publishes(b"c")
    with pytest.raises(Full):
        daemon.publishes(b"d")
    daemon.topic().delete_channel("small")
    daemon.publishes(b"d")
    assert daemon.topic().admission is None


def test_ended_policies_leave_no_limits(daemon):
    daemon.follows({"max_depth": 1, "max_rate": 1})
    daemon.channel()
    assert daemon.topic().admission is not None
    daemon.follows()
    assert daemon.topic().admission is None
    daemon.publishes(b"a", b"b")


def test_a_daemon_that_refuses_publishes_still_refuses_them(daemon):
    daemon.channel()
    daemon.broker.refuse_publishing()
    admission = daemon.topic().admission
    daemon.follows({"max_depth": 1})
    assert daemon.topic().admission is admission


# --- With policies no message is lost: each is delivered, counted, or in the dead-letter topic ------------------------

DEAD = "orders.archive.dead"
SETTINGS = st.fixed_dictionaries(
    {
        "max_attempts": st.sampled_from([None, 1, 2]),
        "max_depth": st.sampled_from([None, 2, 8]),
        "max_rate": st.sampled_from([None, 5, 5000]),
    }
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["publish", "take", "fail"]), st.integers(1, 6)),
        st.tuples(st.sampled_from(["finish", "requeue", "defer", "send"]), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([0, 1, 30, 61])),
        st.tuples(st.just("policies"), SETTINGS),
    ),
    min_size=10,  # few steps lead nowhere
    max_size=60,
)


@given(first=SETTINGS, drops=st.booleans(), steps=STEPS)
def test_every_message_has_one_state_or_is_counted(start, first, drops, steps):
    daemon = start()
    channel, consumer = daemon.channel(), daemon.consumer(timeout=60.0)
    published = finished = refused = 0
    held: list[bytes] = []

    def apply(settings):
        full = {"max_depth": {"when_full": "drop-oldest" if drops else "reject"}}
        given = {name: value for name, value in settings.items() if value is not None}
        daemon.follows(*({"topic": "orders", name: value, **full.get(name, {})} for name, value in given.items()))

    apply(first)
    for step, argument in steps:
        if step == "publish":
            bodies = [b"%d" % (published + number) for number in range(argument)]
            try:
                daemon.publishes(*bodies)
                published += argument
            except Full:
                refused += argument
        elif step == "take":
            held += consumer.takes(argument)
        elif step == "fail":
            for body in consumer.takes(argument):
                consumer.requeues(body)
        elif step in ("finish", "requeue", "defer") and (held := still_held(consumer, held)):
            body = held.pop(0)
            if step == "finish":
                consumer.finishes(body)
                finished += 1
            else:
                consumer.requeues(body, 5.0 if step == "defer" else 0.0)
        elif step == "send":
            assert daemon.sends_dead_letters()
        elif step == "wait":
            daemon.waits(argument)
        elif step == "policies":
            apply(argument)
        here = channel.depth + channel.in_flight_count + channel.deferred_count
        assert published == here + finished + channel.dropped_count + channel.dead_letter_count
        assert refused == channel.rejected_count
        dead = daemon.broker.topics.get(DEAD)
        assert channel.dead_letter_count == (dead.channels[REDRIVE_CHANNEL].depth if dead else 0)


def still_held(consumer, bodies):
    return [body for body in dict.fromkeys(bodies) if consumer.id_of(body) in consumer.in_flight.frames]


# --- Thousands of channels --------------------------------------------------------------------------------------------


@pytest.fixture
def checked(monkeypatch):
    """The names of the channels that were checked, of each alarm."""
    checked = []
    enforce = Limited.enforce

    def noted(limited, now, now_ns):
        checked.append(limited.target.name)
        return enforce(limited, now, now_ns)

    monkeypatch.setattr(Limited, "enforce", noted)
    return checked


def test_a_new_channel_is_checked_without_all_others(daemon, checked):
    daemon.follows({"max_age": "1h", "when_full": "drop-oldest"})
    daemon.publishes(b"old")
    for number in range(20):
        daemon.channel(f"c{number}")
    daemon.waits(0)
    checked.clear()
    daemon.channel("new")
    daemon.waits(0)
    assert checked == ["new"]
    assert daemon.channel("c0").depth == 1  # the topic's
    daemon.waits(3601)
    assert daemon.channel("c0").depth == 0


def test_a_deleted_channel_is_not_checked(daemon, checked):
    daemon.follows({"channel": ".*", "max_bytes": 1})
    for name in ("a", "b"):
        daemon.channel(name)
    daemon.waits(0)
    daemon.publishes(b"m")
    daemon.channel("c")
    daemon.topic().delete_channel("c")
    checked.clear()
    daemon.waits(CHECK_DELAY_SECONDS)
    assert sorted(checked) == ["a", "b"]
    for name in ("a", "b"):
        daemon.topic().delete_channel(name)
    assert daemon.topic().admission is None


def test_the_channels_of_a_topic_are_checked_a_few_at_a_time(daemon, checked):
    daemon.follows({"max_bytes": 10, "when_full": "drop-oldest"})
    for number in range(30):
        daemon.channel(f"c{number}")
    daemon.waits(0)
    daemon.publishes(b"a" * 40, b"b")
    checked.clear()
    daemon.now += CHECK_DELAY_SECONDS
    rounds = 0
    while daemon.broker.schedule.run(daemon.now, lambda: True) <= daemon.now:
        rounds += 1
        assert len(checked) <= 8 * rounds
    assert set(depths(daemon).values()) == {1}


def test_creations_are_limited_to_a_rate_and_those_of_a_second_may_come_at_once():
    rate = CreationRate(2.0, 100.0)
    assert [rate.take(100.0) for _ in range(3)] == [True, True, False]
    assert [rate.take(100.5) for _ in range(2)] == [True, False]
    assert [rate.take(200.0) for _ in range(3)] == [True, True, False]


def test_a_slow_rate_permits_one():
    rate = CreationRate(0.5, 100.0)
    assert [rate.take(now) for now in (100.0, 101.0, 102.0)] == [True, False, True]
