import logging
from functools import partial

import pytest

from nsq_compat.log.storage import Durability
from nsq_compat.protocol import message
from nsq_compat.protocol.message import body
from nsq_compat.queue.schedule import NEVER
from nsq_compat.queue.topic import MAX_RECENT, MAX_RECENT_BYTES, WATCHED_SECONDS, Topic
from nsq_compat.queue.values import Exiting, QueueLimits

NOW_NS = 1_700_000_000_000_000_000

# --- From bodies to channels ------------------------------------------------------------------------------------------


def test_the_default_limits_are_those_of_nsqd():
    assert QueueLimits() == QueueLimits(
        mem_queue_size=10_000, max_msg_timeout=15 * 60.0, max_channel_consumers=0, node_id=0
    )


def test_every_channel_gets_every_message(daemon):
    archive, metrics = daemon.consumer("archive"), daemon.consumer("metrics")
    daemon.publishes(b"a", b"b")
    assert archive.takes() == metrics.takes() == [b"a", b"b"]


def test_a_message_is_stamped_when_it_is_published(daemon):
    consumer = daemon.consumer()
    daemon.topic().publish([b"a", b"b"], daemon.now, NOW_NS)
    consumer.takes()
    first, second = consumer.frames[b"a"], consumer.frames[b"b"]
    assert message.timestamp_ns(first) == message.timestamp_ns(second) == NOW_NS
    assert message.message_id(first) == b"%016x" % (((NOW_NS >> 20) - 1288834974288) << 22)
    assert int(message.message_id(second), 16) == int(message.message_id(first), 16) + 1
    assert (consumer.attempts(b"a"), consumer.attempts(b"b")) == (1, 1)


def test_more_messages_than_a_tick_has_ids_are_published_at_once(daemon):
    consumer = daemon.consumer()
    bodies = [b"%d" % number for number in range(9000)]
    daemon.topic().publish(bodies[:100], daemon.now, NOW_NS)
    daemon.topic().publish(bodies[100:], daemon.now, NOW_NS)
    assert [body for batch in iter(lambda: consumer.takes(10_000), []) for body in batch] == bodies
    ids = [message.message_id(consumer.frames[body]) for body in bodies]
    assert ids == sorted(set(ids))


def test_the_node_id_is_in_every_id(start):
    daemon = start(node_id=617)
    consumer = daemon.consumer()
    daemon.publishes(b"a")
    consumer.takes()
    assert int(consumer.id_of(b"a"), 16) >> 12 & 1023 == 617


def test_messages_and_their_bytes_are_counted(daemon):
    daemon.publishes(b"a", b"four")
    daemon.publishes(b"deferred", defer=5.0)
    assert (daemon.topic().message_count, daemon.topic().message_bytes) == (3, 13)


def test_a_deferred_message_is_deferred_in_every_channel(daemon):
    archive, metrics = daemon.consumer("archive"), daemon.consumer("metrics")
    daemon.publishes(b"a", defer=5.0)
    daemon.waits(4.9)
    assert archive.takes() == metrics.takes() == []
    daemon.waits(0.1)
    assert archive.takes() == metrics.takes() == [b"a"]


# --- Without a channel ------------------------------------------------------------------------------------------------


def test_without_a_channel_messages_wait_and_the_first_channel_gets_them_all(daemon):
    daemon.publishes(b"a")
    daemon.publishes(b"b", b"c")
    assert daemon.topic().depth == 3
    assert daemon.consumer("first").takes() == [b"a", b"b", b"c"]
    assert daemon.topic().depth == 0


def test_a_later_channel_gets_only_what_comes_after_it(daemon):
    daemon.publishes(b"a")
    daemon.channel("first")
    late = daemon.consumer("late")
    daemon.publishes(b"b")
    assert late.takes() == [b"b"]


@pytest.mark.parametrize("durability", [Durability.OS, Durability.MEMORY])
@pytest.mark.parametrize("channels", [(), ("archive", "copy")])
def test_large_deferred_messages_are_in_the_log_instead_of_memory(data_path, durability, channels):
    daemon = data_path.start(durability)
    for name in channels:
        daemon.channel(name)
    bodies = [b"%02d" % number + bytes(1 << 20) for number in range(24)]
    for each in bodies:
        daemon.publishes(each, defer=5.0)
    backlogs = [channel.backlog for channel in daemon.topic().channels.values()] or [daemon.topic().backlog]
    for backlog in backlogs:
        assert sum(map(len, backlog.deferred.frames())) <= 1 << 24
    consumer = daemon.consumer()
    daemon.waits(5.0)
    found: list[bytes] = []
    while len(found) < len(bodies):
        daemon.waits(0.1)
        found += consumer.takes_all()
    assert found == bodies


def test_a_deferred_message_keeps_its_time_while_it_waits_for_a_channel(daemon):
    daemon.publishes(b"soon", defer=5.0)
    daemon.publishes(b"late", defer=50.0)
    assert daemon.topic().depth == 2
    daemon.waits(20)
    consumer = daemon.consumer()
    channel = daemon.channel()
    assert (channel.message_count, channel.deferred_count, daemon.topic().depth) == (2, 2, 0)
    daemon.waits(0)
    assert consumer.takes() == [b"soon"]
    daemon.waits(30)
    assert consumer.takes() == [b"late"]


def test_messages_that_do_not_fit_are_dropped_and_counted_the_newest_first(start, caplog):
    daemon = start(mem_queue_size=3)
    with caplog.at_level(logging.WARNING):
        daemon.publishes(b"a")
        daemon.publishes(b"b", defer=5.0)
        daemon.publishes(b"c", b"d", b"e")
        daemon.publishes(b"f", defer=5.0)
    topic = daemon.topic()
    assert (topic.depth, topic.dropped_count, topic.message_count) == (5, 1, 6)
    assert daemon.consumer().takes() == [b"a", b"c", b"d"]
    assert [record.message for record in caplog.records] == [
        "TOPIC(orders): more than 3 messages wait, dropping further ones (see dropped_count in /stats)"
    ]


# --- Pause and empty --------------------------------------------------------------------------------------------------


def test_a_paused_topic_keeps_what_is_published_and_its_channels_go_on_with_what_they_have(daemon):
    consumer = daemon.consumer()
    daemon.publishes(b"a")
    daemon.topic().pause()
    daemon.publishes(b"b")
    assert consumer.takes() == [b"a"]
    assert (daemon.topic().depth, daemon.channel().depth) == (1, 0)
    daemon.topic().unpause()
    assert consumer.awake
    assert consumer.takes() == [b"b"]


def learn_channels(topic):
    topic.learn_channels(["late", "own"] if topic.channels else [])


HOLDS = {"paused": (Topic.pause, Topic.unpause), "awaits channels": (Topic.await_channels, learn_channels)}
HOLDING = pytest.mark.parametrize(("hold", "go_on"), HOLDS.values(), ids=HOLDS)


@HOLDING
def test_a_topic_holds_messages_and_then_gives_them_to_all_its_channels(daemon, hold, go_on):
    topic, own = daemon.topic(), daemon.consumer("own")
    hold(topic)
    daemon.publishes(b"a")
    daemon.publishes(b"later", defer=5.0)
    late = daemon.consumer("late")
    assert own.takes() == late.takes() == []
    assert topic.depth == 2
    go_on(topic)
    assert own.awake
    assert own.takes() == late.takes() == [b"a"]
    daemon.waits(5)
    assert own.takes() == late.takes() == [b"later"]
    assert own.frames[b"later"] == late.frames[b"later"]
    assert (topic.depth, topic.awaits_channels) == (0, False)


@HOLDING
def test_a_topic_without_a_channel_holds_messages_for_its_first(daemon, hold, go_on):
    daemon.publishes(b"a")
    hold(daemon.topic())
    daemon.publishes(b"b")
    go_on(daemon.topic())
    assert daemon.topic().depth == 2
    assert daemon.consumer().takes() == [b"a", b"b"]


def test_what_was_deferred_into_a_pause_longer_than_its_time_comes_right_after_it(daemon):
    consumer = daemon.consumer()
    daemon.topic().pause()
    daemon.publishes(b"a", defer=5.0)
    daemon.waits(60)
    daemon.topic().unpause()
    daemon.waits(0)
    assert consumer.takes() == [b"a"]


def test_emptying_drops_held_messages_and_nothing_else(daemon):
    consumer = daemon.consumer()
    daemon.publishes(b"a")
    daemon.topic().pause()
    daemon.publishes(b"b")
    daemon.publishes(b"c", defer=5.0)
    daemon.topic().empty()
    daemon.topic().unpause()
    daemon.waits(5)
    assert daemon.topic().depth == 0
    assert consumer.takes() == [b"a"]


# --- While it waits to know its channels ------------------------------------------------------------------------------


def test_ephemeral_channels_are_not_created_without_a_consumer(daemon):
    daemon.topic().await_channels()
    daemon.topic().learn_channels(["tail#ephemeral"])
    assert daemon.topic().channels == {}


def test_a_topic_that_was_paused_meanwhile_stays_so_when_it_knows_its_channels(daemon):
    topic, consumer = daemon.topic(), daemon.consumer()
    topic.await_channels()
    topic.pause()
    daemon.publishes(b"a")
    topic.learn_channels(["metrics"])
    assert consumer.takes() == []
    topic.unpause()
    assert consumer.takes() == daemon.consumer("metrics").takes() == [b"a"]


def test_the_last_channel_takes_nothing_along_that_the_topic_holds_for_those_to_come(daemon, channel):
    topic = daemon.topic()
    topic.await_channels()
    daemon.publishes(b"a")
    topic.delete_channel("archive")
    topic.learn_channels(["metrics"])
    assert daemon.consumer("metrics").takes() == [b"a"]


def test_a_topic_that_ends_learns_of_no_channel_any_more(daemon):
    topic = daemon.topic()
    topic.await_channels()
    daemon.publishes(b"a")
    topic.close()
    with pytest.raises(Exiting):
        topic.learn_channels([])
    assert (topic.awaits_channels, topic.depth) == (True, 1)


def test_a_topic_that_cannot_write_a_channel_down_waits_on(logging_daemon, disk):
    topic, consumer = logging_daemon.topic(), logging_daemon.consumer()
    topic.await_channels()
    logging_daemon.publishes(b"a")
    disk.full = True
    with pytest.raises(OSError, match="No space left"):
        topic.learn_channels(["metrics"])
    disk.full = False
    assert consumer.takes() == []
    topic.learn_channels(["metrics"])
    assert consumer.takes() == logging_daemon.consumer("metrics").takes() == [b"a"]


@pytest.mark.parametrize(
    ("end", "durability"), [("kill", Durability.OS), ("stop", Durability.OS), ("stop", Durability.MEMORY)]
)
def test_a_restart_goes_on_waiting(data_path, end, durability):
    before = data_path.start(durability)
    before.topic().await_channels()
    before.channel("own")
    before.publishes(b"a")
    before.publishes(b"later", defer=5.0)
    getattr(data_path, end)(before)
    after = data_path.start(durability)
    own = after.consumer("own")
    assert own.takes() == []
    after.topic().learn_channels(["archive"])
    archive = after.consumer("archive")
    assert own.takes() == archive.takes() == [b"a"]
    after.waits(5)
    assert own.takes() == archive.takes() == [b"later"]


# --- Channels come and go ---------------------------------------------------------------------------------------------


def test_a_channel_is_made_once(daemon, caplog):
    with caplog.at_level(logging.INFO):
        channel = daemon.topic().channel("archive")
        assert daemon.topic().channel("archive") is channel
    assert [record.message for record in caplog.records if "channel" in record.message] == [
        "TOPIC(orders): new channel(archive)"
    ]


def test_deleting_a_channel_ends_it_with_its_consumers_and_all_it_holds(daemon, caplog):
    consumer = daemon.consumer()
    channel = daemon.channel()
    daemon.publishes(b"a")
    with caplog.at_level(logging.INFO):
        daemon.topic().delete_channel("archive")
    assert [record.message for record in caplog.records] == ["TOPIC(orders): deleting channel archive"]
    assert consumer.closed
    assert channel.exiting
    assert channel.depth == 0
    assert daemon.topic().channels == {}
    daemon.publishes(b"b")
    assert daemon.topic().depth == 1, "the topic holds messages again"
    assert daemon.consumer().takes() == [b"b"]


def test_a_channel_is_deleted_once_however_many_ask_for_it(logging_daemon):
    logging_daemon.channel()
    logging_daemon.topic().delete_channel("archive")
    with pytest.raises(KeyError):
        logging_daemon.topic().delete_channel("archive")


def test_deleting_one_channel_costs_another_nothing(daemon):
    archive, metrics = daemon.consumer("archive"), daemon.consumer("metrics")
    daemon.publishes(b"a")
    archive.takes()
    daemon.topic().delete_channel("archive")
    assert metrics.takes() == [b"a"]


def test_nothing_is_published_into_a_topic_that_ends(daemon, channel):
    topic = daemon.topic()
    topic.close()
    with pytest.raises(Exiting, match="^exiting$"):
        topic.publish([b"a"], daemon.now, NOW_NS)
    with pytest.raises(Exiting):
        topic.channel("new")
    assert (topic.message_count, topic.depth, channel.exiting) == (0, 0, True)


# --- With a log -------------------------------------------------------------------------------------------------------


@pytest.mark.interpreted
@pytest.mark.parametrize("holding", [True, False], ids=["held", "channel"])
@pytest.mark.parametrize("durability", [Durability.OS, Durability.MEMORY])
def test_messages_in_the_log_take_bounded_memory(data_path, monkeypatch, holding, durability):
    monkeypatch.setattr("nsq_compat.queue.backlog.MAX_IN_MEMORY", 3)
    daemon = data_path.start(durability, mem_queue_size=6)
    topic = daemon.topic()
    if not holding:
        daemon.channel()
    for number in range(8):
        daemon.publishes(b"%d" % number)
    cursor = (topic if holding else daemon.channel()).backlog.cursor
    assert len(cursor) - cursor.behind == 3
    holder = topic if holding else daemon.channel()
    assert (holder.depth, holder.backlog.backend_depth) == (8, 2)
    consumer = daemon.consumer()
    assert [body for _ in range(4) for body in consumer.takes()] == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize("durability", Durability)
def test_an_ephemeral_channel_keeps_what_the_options_say(data_path, monkeypatch, durability):
    monkeypatch.setattr("nsq_compat.queue.backlog.MAX_IN_MEMORY", 3)
    daemon = data_path.start(durability, mem_queue_size=6)
    channel = daemon.topic().channel("c#ephemeral")
    for number in range(8):
        daemon.publishes(b"%d" % number)
    assert (channel.depth, channel.backlog.backend_depth, channel.dropped_count) == (6, 0, 2)


def test_held_messages_beyond_memory_are_in_the_log(logging_daemon):
    logging_daemon.publishes(b"a", b"b")
    assert logging_daemon.topic().backlog.backend_depth == 0
    logging_daemon.publishes(b"c", b"d")
    assert (logging_daemon.topic().depth, logging_daemon.topic().backlog.backend_depth) == (4, 2)
    assert logging_daemon.topic().dropped_count == 0
    consumer = logging_daemon.consumer()
    assert consumer.takes() + consumer.takes() == [b"a", b"b", b"c", b"d"]


def test_a_full_disk_refuses_a_publish_before_any_channel_gets_it(logging_daemon, disk):
    consumer = logging_daemon.consumer()
    assert consumer.takes() == []
    disk.full = True
    for defer in (0.0, 5.0):
        with pytest.raises(OSError, match="No space left"):
            logging_daemon.publishes(b"a", b"b", defer=defer)
    topic = logging_daemon.topic()
    assert (topic.message_count, logging_daemon.channel().depth, logging_daemon.channel().deferred_count) == (0, 0, 0)
    assert not consumer.awake


@pytest.mark.interpreted
def test_messages_published_while_a_channel_is_committed_reach_it(logging_daemon):
    """At level fsync a commit lets others run."""
    topic = logging_daemon.topic()
    logging_daemon.channel("before")
    storage = logging_daemon.broker._storage
    others = [
        lambda: logging_daemon.publishes(b"meanwhile"),
        lambda: logging_daemon.publishes(b"later", defer=5.0),
        lambda: topic.pause(),
        lambda: logging_daemon.publishes(b"held"),
        lambda: topic.unpause(),
        lambda: topic.channel("new"),
    ]

    def commit(topic_log, done):
        if others:
            others.pop(0)()
        done(None)

    storage.commit = commit
    topic.store.commits = topic.store.syncs = True
    made = topic.channel("new")
    assert others == []
    assert topic.channels["new"] is made
    logging_daemon.waits(5)
    for name in ("before", "new"):
        assert sorted(logging_daemon.consumer(name).takes()) == [b"held", b"later", b"meanwhile"]


def test_a_topic_emptied_during_a_pause_gives_none_of_it_to_its_channels(logging_daemon):
    consumer = logging_daemon.consumer()
    logging_daemon.publishes(b"a", b"b", b"c")
    logging_daemon.topic().pause()
    logging_daemon.publishes(b"x", b"y")
    logging_daemon.topic().empty()
    logging_daemon.publishes(b"d")
    logging_daemon.topic().unpause()
    assert logging_daemon.channel().depth == 4
    assert consumer.takes() + consumer.takes() == [b"a", b"b", b"c", b"d"]


# --- The last messages, finished or not, as long as clients ask for them ----------------------------------------------


def recent(daemon, count=10, topic="orders"):
    return [body(frame) for frame, _ in daemon.topic(topic).recent(count, daemon.now, daemon.now_ns)]


def test_a_deleted_topic_does_not_wait_in_the_schedule_to_forget_its_recent_messages(daemon):
    daemon.channel()
    daemon.publishes(b"a")
    assert recent(daemon) == [b"a"]
    topic = daemon.topic()
    daemon.broker.delete_topic("orders")
    assert topic.alarm == NEVER
    assert b"a" not in [body(frame) for frame, _ in topic.recent(10, daemon.now, daemon.now_ns)]


def deferrals(daemon):
    """By body, for how many seconds from now; 0 for those that never were."""
    published = daemon.topic().recent(MAX_RECENT, daemon.now, daemon.now_ns)
    return {body(frame): round((due_ns - daemon.now_ns) / 1e9) if due_ns else 0 for frame, due_ns in published}


@pytest.fixture(params=[Durability.MEMORY, Durability.OS, None])
def any_daemon(request, data_path, daemon):
    """One that keeps messages in memory while it has room, one that writes all down, one without a disk."""
    return daemon if request.param is None else data_path.start(request.param, mem_queue_size=1000)


def test_the_first_request_finds_messages_that_wait_anywhere(any_daemon):
    daemon = any_daemon
    consumer = daemon.consumer()
    daemon.publishes(b"in flight")
    consumer.takes()
    daemon.publishes(b"one", b"two")
    daemon.publishes(b"put off", defer=30.0)
    assert recent(daemon) == [b"in flight", b"one", b"two", b"put off"]
    assert deferrals(daemon) == {b"in flight": 0, b"one": 0, b"two": 0, b"put off": 30}


@pytest.mark.interpreted
def test_the_first_request_does_not_look_at_thousands_of_channels(daemon):
    for number in range(250):
        daemon.topic().channel(f"c{number}")
    daemon.publishes(*(b"%d" % number for number in range(100)))
    looked_at = []

    def latest(find, *args):
        looked_at.append(find)
        return find(*args)

    for channel in daemon.topic().channels.values():
        channel.backlog.latest = partial(latest, channel.backlog.latest)
    assert recent(daemon, 100) == [b"%d" % number for number in range(100)]
    assert len(looked_at) <= 200


def test_the_first_request_finds_the_last_messages_of_many(any_daemon):
    daemon = any_daemon
    daemon.channel()
    daemon.publishes(*(b"deferred %d" % number for number in range(150)), defer=60.0)
    daemon.publishes(*(b"waiting %d" % number for number in range(3)))
    wanted = [*(b"deferred %d" % number for number in range(150)), *(b"waiting %d" % number for number in range(3))]
    assert recent(daemon, MAX_RECENT) == wanted[-MAX_RECENT:]


def test_messages_in_flight_are_found(daemon):
    consumer = daemon.consumer()
    daemon.publishes(*(b"%d" % number for number in range(150)))
    consumer.takes(room=150)
    assert recent(daemon, 2) == [b"148", b"149"]


def test_messages_that_the_topic_holds_are_found(any_daemon):
    any_daemon.publishes(b"one")
    any_daemon.publishes(b"later", defer=5.0)
    assert recent(any_daemon) == [b"one", b"later"]


@pytest.mark.parametrize("topic", ["orders", "orders#ephemeral"])
def test_later_requests_show_published_messages_though_they_are_finished(any_daemon, topic):
    daemon = any_daemon
    consumer = daemon.consumer(topic=topic)
    assert recent(daemon, topic=topic) == []
    for number in range(3):
        daemon.publishes(b"%d" % number, topic=topic)
        consumer.finishes(*consumer.takes())
    daemon.publishes(b"later", topic=topic, defer=10.0)
    assert recent(daemon, topic=topic) == [b"0", b"1", b"2", b"later"]
    assert recent(daemon, 2, topic=topic) == [b"2", b"later"]


def test_requests_change_nothing_for_consumers(any_daemon):
    consumer = any_daemon.consumer()
    recent(any_daemon)
    any_daemon.publishes(b"a", b"b")
    recent(any_daemon)
    assert consumer.takes() == [b"a", b"b"]
    assert consumer.attempts(b"a") == 1


def test_a_bounded_number_of_messages_is_kept(daemon):
    consumer = daemon.consumer()
    recent(daemon)
    daemon.publishes(*(b"%d" % number for number in range(3 * MAX_RECENT)))
    daemon.publishes(b"last")
    consumer.takes()
    assert recent(daemon, MAX_RECENT) == [b"%d" % number for number in range(2 * MAX_RECENT + 1, 3 * MAX_RECENT)] + [
        b"last"
    ]


def test_a_bounded_number_of_bytes_is_kept(daemon):
    recent(daemon)
    big = bytes(MAX_RECENT_BYTES // 3)
    for _ in range(5):
        daemon.publishes(big)
    assert len(recent(daemon)) == 2
    daemon.publishes(bytes(2 * MAX_RECENT_BYTES))
    assert len(recent(daemon)) == 1


def test_messages_are_dropped_after_the_last_request(daemon):
    consumer = daemon.consumer()
    recent(daemon)
    daemon.publishes(b"a")
    consumer.finishes(*consumer.takes())
    daemon.waits(WATCHED_SECONDS - 1)
    assert recent(daemon) == [b"a"]
    daemon.waits(WATCHED_SECONDS - 1)
    daemon.waits(0.5)
    assert recent(daemon) == [b"a"]
    daemon.waits(WATCHED_SECONDS)
    assert recent(daemon) == []


def test_a_log_that_cannot_be_read_is_an_error_and_nothing_is_kept(data_path, disk):
    daemon = data_path.start()
    daemon.publishes(b"a")
    disk.unreadable = True
    with pytest.raises(OSError, match="memory"):
        recent(daemon)
    disk.unreadable = False
    assert recent(daemon) == [b"a"]
