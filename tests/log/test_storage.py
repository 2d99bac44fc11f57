"""What survives which end, at which level: a data path, and one daemon after the other on it."""

import errno
import os
import shutil
from contextlib import contextmanager

import pytest

from nsq_compat.log.checkpoint import (
    CHECKPOINT,
    BadCheckpoint,
    ChannelState,
    TopicState,
    decode,
    immediate_entries,
    read_checkpoint,
)
from nsq_compat.log.data_path import our_folder
from nsq_compat.log.files import replace_file
from nsq_compat.log.segment import FIRST_GROUP
from nsq_compat.log.storage import Durability, Storage
from nsq_compat.log.topic_log import LogEnd, TopicLog
from nsq_compat.protocol.message import body, make_frames, message_id
from tests.broker import SlowDisk, with_consumer

LOGGED = [Durability.OS, Durability.FSYNC]


def recent(daemon, count):
    return [body(frame) for frame, _ in daemon.topic().recent(count, daemon.now, daemon.now_ns)]


@contextmanager
def full(disk):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "no room")

    disk.write = refuse
    yield
    disk.write = os.pwrite


# --- Levels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", LOGGED)
def test_what_was_published_is_there_after_a_kill(data_path, durability):
    daemon = data_path.start(durability)
    daemon.channel()
    daemon.publishes(b"a")
    daemon.publishes(b"b", b"c")
    assert data_path.restart(daemon, durability).consumer().takes_all() == [b"a", b"b", b"c"]


def test_what_was_published_last_can_be_looked_at_however_far_it_has_got(data_path):
    daemon = data_path.start()
    assert recent(daemon, 3) == []
    consumer = daemon.consumer()
    daemon.publishes(b"a", b"b")
    daemon.publishes(b"c")
    assert consumer.takes_all() == [b"a", b"b", b"c"]
    daemon.publishes(b"d")
    assert (recent(daemon, 3), recent(daemon, 100)) == ([b"b", b"c", b"d"], [b"a", b"b", b"c", b"d"])
    assert recent(data_path.restart(daemon), 3) == [b"b", b"c", b"d"]


def test_at_level_memory_messages_that_all_channels_have_taken_are_never_written(data_path):
    daemon, consumer = with_consumer(data_path.start(Durability.MEMORY))
    before = daemon.topic().store.log.disk_bytes
    for number in range(20):
        daemon.publishes(b"%d" % number)
        consumer.finishes(*consumer.takes())
    daemon.publishes(b"a", b"b")
    assert daemon.topic().store.log.disk_bytes == before, "nor while memory holds them"
    assert data_path.restart(daemon).consumer().takes_all() == []


def test_at_level_memory_the_oldest_messages_are_spilled(data_path):
    daemon = data_path.start(Durability.MEMORY)
    daemon.channel()
    for each in (b"a", b"b", b"c"):
        daemon.publishes(each)
    assert data_path.restart(daemon).consumer().takes_all() == [b"a", b"b"]


def test_at_level_memory_no_deferred_message_waits_until_all_others_are_spilled(data_path):
    daemon = data_path.start(Durability.MEMORY, mem_queue_size=2000)
    daemon.channel()
    for _ in range(2000):
        daemon.publishes(bytes(200))
    log = daemon.topic().store.log
    written = []
    for _ in range(2001):
        before = log.disk_bytes
        daemon.publishes(b"deferred", defer=70.0)
        written.append(log.disk_bytes - before)
    assert sum(written) > 400_000, "they were spilled"
    assert max(written) < 40_000
    assert written.index(max(written)) > 1700, "not before there is little room left"


def test_at_level_memory_messages_of_a_quiet_topic_are_dropped_with_the_next_checkpoint(data_path):
    daemon, consumer = with_consumer(data_path.start(Durability.MEMORY, mem_queue_size=100))
    daemon.publishes(b"a")
    consumer.finishes(*consumer.takes())
    assert [each.frames for each in daemon.topic().store.log.latest(10)] != []
    data_path.checkpoint(daemon)
    assert daemon.topic().store.log.latest(10) == []


@pytest.mark.parametrize("durability", list(Durability))
def test_a_clean_stop_keeps_everything_at_every_level(data_path, durability):
    daemon, consumer = with_consumer(data_path.start(durability))
    daemon.publishes(b"in flight", b"requeued")
    consumer.takes()
    consumer.requeues(b"requeued")
    daemon.publishes(b"put off")
    consumer.takes(1)
    consumer.takes(1)
    consumer.requeues(b"put off", delay=50.0)
    daemon.publishes(b"a", b"b", b"c", b"d")
    daemon.publishes(b"deferred", defer=70.0)
    daemon.publishes(b"other topic", topic="returns")
    data_path.stop(daemon)
    daemon, consumer = with_consumer(data_path.start(durability))
    assert sorted(consumer.takes_all()) == [b"a", b"b", b"c", b"d", b"in flight", b"requeued"]
    assert [consumer.attempts(each) for each in (b"a", b"in flight", b"requeued")] == [1, 2, 3]
    daemon.waits(49.9)
    assert b"put off" not in consumer.takes_all()
    daemon.waits(0.2)
    assert b"put off" in consumer.takes_all()
    assert consumer.attempts(b"put off") == 2
    daemon.waits(25)
    assert b"deferred" in consumer.takes_all()
    assert daemon.consumer(topic="returns").takes_all() == [b"other topic"]
    assert daemon.topic().store.log.damage.records == 0


def test_what_is_finished_after_a_checkpoint_comes_again_after_a_kill_and_nothing_else(data_path):
    daemon, consumer = with_consumer(data_path.start())
    daemon.publishes(b"before", b"in flight", b"after")
    consumer.takes()
    consumer.finishes(b"before")
    data_path.checkpoint(daemon)
    consumer.finishes(b"after")
    consumer = data_path.restart(daemon).consumer()
    assert consumer.takes_all() == [b"in flight", b"after"]
    assert (consumer.attempts(b"in flight"), consumer.attempts(b"after")) == (2, 2)


def test_all_of_a_batch_is_there_or_nothing_of_it(data_path):
    daemon = data_path.start()
    daemon.publishes(b"a")
    size = daemon.topic().store.log.end.offset
    daemon.publishes(b"b", b"c", b"d")
    full = daemon.topic().store.log.end.offset
    daemon.topic().store.log.close()
    path = os.path.join(data_path.folder(), "log.00000000000000000001")
    for cut in range(size, full, 7):
        os.truncate(path, cut)
        daemon = data_path.start()
        assert daemon.consumer().takes_all() == [b"a"]
        daemon.broker.topics["orders"].store.log.close()
        os.truncate(path, cut)


def test_a_publish_that_is_refused_changes_nothing(data_path, disk):
    daemon, consumer = with_consumer(data_path.start())
    daemon.publishes(b"a")

    with full(disk):
        with pytest.raises(OSError, match="no room"):
            daemon.publishes(b"b")
        with pytest.raises(OSError, match="no room"):
            daemon.channel("new")
    assert (daemon.topic().message_count, list(daemon.topic().channels)) == (1, ["archive"])
    daemon.publishes(b"c")
    assert consumer.takes_all() == [b"a", b"c"]
    assert data_path.restart(daemon).consumer().takes_all() == [b"a", b"c"]


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_sync_of_a_topic_that_was_deleted_meanwhile_says_nothing_about_the_disk(tmp_path, is_deleted):
    disk = SlowDisk(tmp_path)
    outcomes: list[OSError | None] = []
    store = disk.storage.create("t")
    store.commit_later(outcomes.append)
    if is_deleted:
        store.delete()
    failure = OSError(errno.ENOENT, "no such file or directory")
    disk.syncs(failure)
    assert outcomes == [failure]
    assert disk.storage.problem == (None if is_deleted else "no such file or directory")
    if not is_deleted:
        store.log.close()


# --- Channels come and go between a checkpoint and the end ------------------------------------------------------------


def test_a_channel_made_after_the_checkpoint_begins_exactly_where_it_did(data_path):
    daemon = data_path.start()
    daemon.channel("old")
    daemon.publishes(b"a")
    data_path.checkpoint(daemon)
    daemon.publishes(b"b")
    daemon.channel("new")
    daemon.publishes(b"c")
    daemon = data_path.restart(daemon)
    assert daemon.consumer("new").takes_all() == [b"c"]
    assert daemon.consumer("old").takes_all() == [b"a", b"b", b"c"]


def test_a_channel_deleted_and_made_again_after_the_checkpoint_has_only_what_came_then(data_path):
    daemon = data_path.start()
    consumer = daemon.consumer("again")
    daemon.channel("other")
    daemon.publishes(b"a", b"b")
    consumer.takes(1)
    daemon.publishes(b"deferred", defer=5.0)
    data_path.checkpoint(daemon)
    daemon.publishes(b"c")
    daemon.topic().delete_channel("again")
    daemon.publishes(b"d")
    daemon.channel("again")
    daemon.publishes(b"e")
    daemon = data_path.restart(daemon)
    daemon.waits(5)
    assert daemon.consumer("again").takes_all() == [b"e"]
    assert daemon.consumer("other").takes_all() == [b"a", b"b", b"deferred", b"c", b"d", b"e"]


def test_a_deleted_channel_does_not_come_back_because_an_old_list_names_it(data_path):
    daemon = data_path.start()
    daemon.channel("kept")
    daemon.channel("gone")
    daemon.topic().delete_channel("gone")
    assert list(data_path.restart(daemon, named=["kept", "gone"]).topic().channels) == ["kept"]


def test_a_channel_only_the_list_names_begins_here_and_is_remembered(data_path):
    daemon = data_path.start()
    daemon.channel("known")
    daemon.publishes(b"a")
    data_path.checkpoint(daemon)
    daemon = data_path.restart(daemon, named=["named"])
    daemon.publishes(b"b")
    daemon = data_path.restart(daemon)
    assert daemon.consumer("named").takes_all() == [b"b"]
    assert daemon.consumer("known").takes_all() == [b"a", b"b"]


def test_a_deleted_topic_is_gone_and_one_of_its_name_begins_anew(data_path):
    daemon, consumer = with_consumer(data_path.start())
    daemon.publishes(*[b"%d" % number for number in range(9)])
    consumer.takes(1)
    daemon.broker.delete_topic("orders")
    assert consumer.takes() == []
    daemon.publishes(b"new")
    daemon = data_path.restart(daemon)
    assert daemon.consumer().takes_all() == [b"new"]
    assert os.listdir(os.path.dirname(data_path.folder())) == ["orders.topic"]


def test_a_topic_with_a_folder_that_could_not_be_removed_takes_messages_again(data_path, disk, monkeypatch):
    daemon = data_path.start()
    daemon.channel()
    daemon.publishes(b"a", b"b")

    def refuse(*_):
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patched:
        patched.setattr(disk, "rename", refuse, raising=False)
        daemon.broker.delete_topic("orders")
        with pytest.raises(OSError, match="not empty"):
            daemon.topic()
    daemon.publishes(b"c")
    assert data_path.restart(daemon).consumer().takes_all() == [b"c"]


# --- The first channel ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", list(Durability))
def test_the_first_channel_gets_a_backlog_longer_than_memory_across_restarts(data_path, durability):
    data_path.segment_size = 2000
    daemon = data_path.start(durability)
    bodies = [b"%d" % number for number in range(200)]
    for each in bodies[:100]:
        daemon.publishes(each)
    daemon.publishes(b"deferred", defer=5.0)
    data_path.checkpoint(daemon)
    data_path.stop(daemon)
    daemon = data_path.start(durability)
    assert daemon.topic().depth == 101
    for each in bodies[100:]:
        daemon.publishes(each)
    consumer = daemon.consumer()
    assert consumer.takes_all() == bodies
    daemon.waits(5)
    assert consumer.takes_all() == [b"deferred"]


def test_an_ephemeral_first_channel_takes_what_waited_with_it_into_its_end(data_path):
    daemon = data_path.start()
    daemon.publishes(b"a")
    tail = daemon.consumer("tail#ephemeral")
    assert tail.takes_all() == [b"a"]
    daemon.publishes(b"b")
    daemon = data_path.restart(daemon)
    assert (daemon.topic().depth, list(daemon.topic().channels)) == (0, [])
    daemon.publishes(b"c")
    assert data_path.restart(daemon).consumer().takes_all() == [b"c"]


def test_after_the_last_ephemeral_channel_the_topic_holds_again(data_path):
    daemon = data_path.start()
    tail = daemon.consumer("tail#ephemeral")
    data_path.checkpoint(daemon)
    daemon.publishes(b"seen")
    tail.leaves()
    daemon.publishes(b"a")
    daemon = data_path.restart(daemon)
    assert (daemon.topic().depth, daemon.consumer().takes_all()) == (1, [b"a"])


def test_a_lasting_channel_beside_an_ephemeral_one_begins_where_it_was_made(data_path):
    daemon = data_path.start()
    daemon.consumer("tail#ephemeral")
    daemon.publishes(b"a")
    daemon.channel("late")
    daemon.publishes(b"b")
    assert data_path.restart(daemon).consumer("late").takes_all() == [b"b"]


# --- Pauses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("reads_during_pause", [False, True])
def test_a_channel_reads_no_further_than_the_pause_and_then_what_was_published_meanwhile(
    data_path, durability, reads_during_pause
):
    daemon, consumer = with_consumer(data_path.start(durability))
    daemon.publishes(b"a", b"b", b"c")  # more than memory holds
    daemon.topic().pause()
    daemon.publishes(b"d", b"e", b"f")
    before = consumer.takes_all() if reads_during_pause else []
    assert before == [b"a", b"b", b"c"][: len(before)]
    assert (daemon.channel().depth, daemon.topic().depth) == (3 - len(before), 3)
    daemon.topic().unpause()
    daemon.publishes(b"g")
    assert daemon.channel().depth == 7 - len(before)
    assert before + consumer.takes_all() == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("killed", [False, True])
def test_what_a_paused_topic_held_and_dropped_stays_away_from_channels_that_are_behind(data_path, durability, killed):
    daemon = data_path.start(durability)
    daemon.consumer()
    daemon.publishes(b"a", b"b", b"c")
    data_path.checkpoint(daemon)
    daemon.topic().pause()
    daemon.publishes(b"x", b"y", b"z")
    daemon.topic().empty()
    daemon.publishes(b"d")
    if durability is Durability.MEMORY or not killed:
        data_path.stop(daemon)
    else:
        data_path.kill(daemon)
    daemon = data_path.start(durability)
    assert (daemon.topic().paused, daemon.topic().depth) == (True, 1)
    daemon.topic().unpause()
    daemon.publishes(b"e")
    assert sorted(daemon.consumer().takes_all()) == [b"a", b"b", b"c", b"d", b"e"]
    assert daemon.topic().store.log.damage.records == 0


def test_a_topic_paused_without_a_channel_is_paused_after_a_kill(data_path):
    daemon = data_path.start()
    daemon.topic().pause()
    data_path.checkpoint(daemon)
    daemon.channel()
    daemon.publishes(b"a")
    daemon = data_path.restart(daemon)
    assert (daemon.topic().paused, daemon.topic().depth, daemon.channel().depth) == (True, 1, 0)


# --- Time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_deferred_message_keeps_its_wall_clock_time_whatever_the_monotonic_clock_does(data_path, checkpointed):
    daemon = data_path.start()
    daemon.channel()
    daemon.publishes(b"a", defer=100.0)
    if checkpointed:
        data_path.checkpoint(daemon)
    data_path.kill(daemon)
    data_path.clock += data_path.now + 40 - 3  # another boot, 40 seconds later
    data_path.now = 3.0
    daemon, consumer = with_consumer(data_path.start())
    daemon.waits(59.9)
    assert consumer.takes_all() == []
    daemon.waits(0.2)
    assert consumer.takes_all() == [b"a"]


def test_what_became_due_meanwhile_comes_at_once(data_path):
    daemon = data_path.start()
    daemon.channel()
    daemon.publishes(b"a", defer=100.0)
    data_path.kill(daemon)
    data_path.clock += 3600.0
    assert data_path.start().consumer().takes_all() == [b"a"]


def test_a_clock_set_back_behind_the_start_of_the_machine_makes_nothing_come_early(data_path):
    data_path.now = 10.0
    daemon = data_path.start()
    daemon.channel()
    data_path.checkpoint(daemon)
    daemon.clock -= 3600
    daemon.publishes(b"a", defer=100.0)
    data_path.kill(daemon)
    data_path.clock -= 3600
    daemon, consumer = with_consumer(data_path.start())
    daemon.waits(99)
    assert consumer.takes_all() == []
    daemon.waits(2)
    assert consumer.takes_all() == [b"a"]


@pytest.mark.parametrize("checkpointed", [False, True])
def test_ids_grow_across_restarts_even_if_the_clock_was_set_back(data_path, checkpointed):
    numbers = []
    for round_number in range(3):
        daemon, consumer = with_consumer(data_path.start())
        first, second, deferred = [b"%d.%d" % (round_number, number) for number in range(3)]
        daemon.publishes(first, second)
        daemon.publishes(deferred, defer=0.5)
        daemon.waits(1)
        consumer.takes_all()
        numbers.append([consumer.id_of(each) for each in (first, second, deferred)])
        if checkpointed:
            data_path.checkpoint(daemon)
        data_path.kill(daemon)
        data_path.clock -= 7200.0
    flat = [number for some in numbers for number in some]
    assert flat == sorted(set(flat))


# --- More deferred than memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", list(Durability))
def test_more_deferred_messages_than_memory_holds_all_come(data_path, durability):
    daemon, consumer = with_consumer(data_path.start(durability))
    bodies = [b"%02d" % number for number in range(20)]
    for each in bodies:
        daemon.publishes(each, defer=5.0)
    assert len(list(daemon.channel().backlog.deferred.frames())) <= 2
    daemon.waits(5)
    assert consumer.takes_all() == bodies


@pytest.mark.interpreted
@pytest.mark.parametrize("durability", list(Durability))
def test_more_messages_put_off_than_memory_holds_all_come_even_after_others_were_deleted(
    data_path, durability, monkeypatch
):
    """At level memory they were never logged: they have to be written when memory has no room for them."""
    monkeypatch.setattr("nsq_compat.queue.deferred._LOCATED_AT_ONCE", 1)
    data_path.segment_size = 500
    daemon, consumer = with_consumer(data_path.start(durability))
    bodies = [b"%02d" % number for number in range(20)]
    for each in bodies:
        before = daemon.topic().checkpoint(daemon.now, daemon.now_ns)
        daemon.publishes(each)
        consumer.takes(1)
        consumer.requeues(each, delay=5.0)
        daemon.topic().release(before, daemon.now_ns)
    assert len(list(daemon.channel().backlog.deferred.frames())) <= 2
    daemon.waits(5)
    assert consumer.takes_all() == bodies
    assert {consumer.attempts(each) for each in bodies} == {2}


@pytest.mark.interpreted
def test_what_cannot_be_written_down_stays_in_memory(data_path, disk, monkeypatch):
    monkeypatch.setattr("nsq_compat.queue.deferred._LOCATED_AT_ONCE", 1)
    daemon, consumer = with_consumer(data_path.start(Durability.MEMORY))
    with full(disk):
        for number in range(4):
            daemon.publishes(b"%d" % number)
            (each,) = consumer.takes(1)
            consumer.requeues(each, delay=5.0)
    assert len(list(daemon.channel().backlog.deferred.frames())) == 4
    daemon.waits(5)
    assert consumer.takes_all() == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("durability", list(Durability))
def test_what_a_pause_held_deferred_reaches_a_channel_that_has_no_memory_left(data_path, durability):
    daemon, consumer = with_consumer(data_path.start(durability))
    daemon.publishes(b"a", b"b", defer=5.0)
    daemon.topic().pause()
    daemon.publishes(b"c", b"d", defer=5.0)
    daemon.topic().unpause()
    daemon.waits(5)
    assert consumer.takes_all() == [b"a", b"b", b"c", b"d"]


# --- Checkpoints ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_that_was_not_adopted_is_none(data_path):
    daemon, consumer = with_consumer(data_path.start())
    daemon.publishes(b"a", b"b")
    consumer.takes(1)
    data_path.checkpoint(daemon)
    consumer.finishes(b"a")
    store = daemon.topic().store
    content = daemon.topic().checkpoint(daemon.now, daemon.now_ns).encode()
    store.write_checkpoint(content[: len(content) // 2])
    assert data_path.restart(daemon).consumer().takes_all() == [b"a", b"b"]


@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_without_its_checkpoint_a_topic_gives_everything_again_and_loses_nothing(data_path, content, caplog):
    data_path.segment_size = 1000
    daemon = data_path.start()
    archive, slow = daemon.consumer("archive"), daemon.consumer("slow")
    daemon.publishes(b"old", b"very old", defer=500.0)
    for number in range(60):
        daemon.publishes(b"%d" % number)
        for consumer in (archive, slow):
            consumer.finishes(*consumer.takes())
        data_path.checkpoint(daemon)
    daemon.channel("late")
    daemon.publishes(b"last")
    names = os.listdir(data_path.folder())
    assert any(name.startswith("kept") for name in names)
    assert "log.00000000000000000001" not in names
    data_path.checkpoint(daemon)
    data_path.kill(daemon)
    path = os.path.join(data_path.folder(), CHECKPOINT)
    if content is None:
        os.unlink(path)
    else:
        with open(path, "wb") as file:
            file.write(content)
    daemon = data_path.start(named=["archive", "slow", "late"])
    for name in ("archive", "slow", "late"):
        found = daemon.consumer(name).takes_all()
        assert {b"old", b"very old", b"last"} <= set(found)
        assert len(found) == len(set(found))
    assert ("is damaged" in caplog.text) == (content is not None)
    daemon.publishes(b"goes on")
    assert daemon.channel("archive").depth == 1


def test_a_checkpoint_newer_than_the_log_loses_only_what_the_log_lost(data_path):
    daemon, consumer = with_consumer(data_path.start())
    daemon.publishes(b"a")
    size = daemon.topic().store.log.end.offset
    daemon.publishes(b"b")
    consumer.takes(1)
    data_path.checkpoint(daemon)
    daemon.topic().store.log.close()
    data_path.kill(daemon)
    os.truncate(os.path.join(data_path.folder(), "log.00000000000000000001"), size)
    daemon = data_path.start()
    daemon.publishes(b"c")
    consumer = daemon.consumer()
    assert consumer.takes_all() == [b"a", b"c"]
    assert (daemon.channel().depth, consumer.attempts(b"a")) == (0, 2)
    assert data_path.restart(daemon).consumer().takes_all() == [b"a", b"c"]


def lose_checkpoint(data_path):
    os.unlink(os.path.join(data_path.folder(), CHECKPOINT))


@pytest.mark.parametrize("defer", [0.0, 50.0], ids=["at once", "deferred"])
def test_a_log_written_at_level_memory_tells_which_channels_there_were(data_path, defer):
    daemon = data_path.start(Durability.MEMORY)
    daemon.channel("archive")
    daemon.channel("slow")
    daemon.publishes(b"a", b"b", b"c", defer=defer)
    daemon.topic().empty()
    data_path.stop(daemon)
    daemon = data_path.start()
    daemon.publishes(b"d")
    data_path.kill(daemon)
    lose_checkpoint(data_path)
    daemon = data_path.start()
    assert set(daemon.topic().channels) == {"archive", "slow"}
    daemon.waits(defer)
    for name in ("archive", "slow"):
        assert sorted(daemon.consumer(name).takes_all()) == [b"a", b"b", b"c", b"d"]


def test_a_log_written_at_level_memory_tells_of_a_pause(data_path):
    daemon = data_path.start(Durability.MEMORY)
    daemon.channel()
    daemon.topic().pause()
    daemon.topic().await_channels()
    daemon.publishes(b"a", b"b", b"c")
    daemon = data_path.restart(daemon)
    assert (daemon.topic().paused, daemon.topic().awaits_channels, daemon.topic().depth) == (True, True, 3)
    consumer = daemon.consumer()
    daemon.topic().unpause()
    assert consumer.takes_all() == []
    daemon.topic().learn_channels([])
    assert consumer.takes_all() == [b"a", b"b", b"c"]


def test_a_log_begun_beside_retained_messages_tells_which_channels_there_were(data_path):
    frames = make_frames([b"%016x" % number for number in (1, 2)], 0, [b"a", b"b"])
    log = TopicLog(data_path.files, data_path.folder())
    log.keep(frames)
    log.close()
    place = ChannelState(2, immediate_entries((message_id(frame), 1) for frame in frames))
    state = TopicState(LogEnd(0, 0, 2), 0.0, message_id(frames[1]), {"archive": place})
    replace_file(data_path.files, os.path.join(data_path.folder(), CHECKPOINT), state.encode(), sync=False)
    daemon, consumer = with_consumer(data_path.start())
    daemon.publishes(b"c")
    assert sorted(consumer.takes_all()) == [b"a", b"b", b"c"]
    consumer.finishes(b"a", b"b", b"c")
    for _ in range(20):  # it is only looked at every few times
        data_path.checkpoint(daemon)
    (kept,) = [name for name in os.listdir(data_path.folder()) if name.startswith("kept")]
    assert os.path.getsize(os.path.join(data_path.folder(), kept)) == FIRST_GROUP
    daemon.publishes(b"d")
    daemon.topic().empty()
    data_path.kill(daemon)
    lose_checkpoint(data_path)
    assert data_path.start().consumer().takes_all() == [b"c", b"d"]


def test_at_level_memory_a_publish_that_cannot_spill_is_refused_and_nothing_is_lost(data_path, disk):
    daemon, consumer = with_consumer(data_path.start(Durability.MEMORY))
    daemon.publishes(b"a")
    daemon.publishes(b"b")

    with full(disk), pytest.raises(OSError, match="no room"):
        daemon.publishes(b"c")
    assert (daemon.topic().message_count, daemon.channel().depth) == (2, 2)
    daemon.publishes(b"d")
    assert consumer.takes_all() == [b"a", b"b", b"d"]


@pytest.mark.parametrize("first", list(Durability))
@pytest.mark.parametrize("second", list(Durability))
def test_a_data_path_may_be_used_at_another_level_after_a_clean_stop(data_path, first, second):
    daemon = data_path.start(first)
    daemon.channel("slow")
    consumer = daemon.consumer()
    daemon.publishes(*[b"%d" % number for number in range(5)])
    daemon.publishes(b"later", defer=9.0)
    assert len(consumer.takes(1)) == 1
    data_path.stop(daemon)
    daemon = data_path.start(second)
    daemon.publishes(b"5")
    data_path.stop(daemon)
    daemon = data_path.start(first)
    everything = [b"%d" % number for number in range(6)]
    daemon.waits(9)
    for name in ("archive", "slow"):
        assert sorted(daemon.consumer(name).takes_all()) == [*everything, b"later"]
    assert daemon.topic().store.log.damage.records == 0


def test_old_unfinished_messages_do_not_keep_the_disk_full(data_path):
    data_path.segment_size = 2000
    daemon = data_path.start()
    consumer = daemon.consumer(timeout=1e6)
    daemon.publishes(b"for ever")
    consumer.takes()
    for _ in range(40):
        daemon.publishes(*[b"x" * 100 for _ in range(10)])
        for frame in consumer_frames(daemon, consumer):
            assert daemon.channel().finish(consumer, [message_id(frame)]) == []
        data_path.checkpoint(daemon)
    assert daemon.topic().store.log.disk_bytes < 8000
    assert data_path.restart(daemon).consumer().takes_all() == [b"for ever"]


def consumer_frames(daemon, consumer):
    frames = []
    while some := daemon.channel().take(consumer, 100, daemon.now, 1e6):
        frames += [frame for frame in some if body(frame) != b"for ever"]
    return frames


def test_what_a_checkpoint_says_is_what_was_true_when_it_was_made(data_path):
    daemon, consumer = with_consumer(data_path.start())
    daemon.publishes(b"a", b"b", b"c")
    consumer.takes(2)
    consumer.finishes(b"a")
    data_path.checkpoint(daemon)
    consumer.finishes(b"b")
    saved = read_checkpoint(data_path.files, data_path.folder())
    assert saved is not None
    place = saved.channels["archive"]
    assert (place.position, place.immediate(), place.take_deferred()) == (2, [(consumer.id_of(b"b"), 2)], [])
    with pytest.raises(BadCheckpoint):
        decode(b"")


def test_an_unpublished_topic_is_there_after_a_kill(data_path):
    daemon = data_path.start()
    daemon.topic("empty")
    assert list(data_path.restart(daemon).broker.topics) == ["empty"]


def test_nothing_ephemeral_is_on_disk(data_path):
    daemon = data_path.start()
    daemon.publishes(b"a", topic="live#ephemeral")
    daemon.channel("archive", "live#ephemeral")
    assert os.listdir(os.path.dirname(data_path.folder())) == []
    assert daemon.topic("live#ephemeral").store is None


# --- Whether the disk is well -----------------------------------------------------------------------------------------


def test_the_disk_is_ill_from_a_failed_write_to_the_next_that_succeeds(data_path, disk):
    daemon = data_path.start()
    storage = daemon.broker._storage

    with full(disk):
        with pytest.raises(OSError, match="no room"):
            daemon.publishes(b"a")
        assert storage.error == "no space left on device"
        storage.probe()
        assert storage.error is not None
    storage.probe()
    assert storage.error is None
    daemon.publishes(b"a")
    assert daemon.topic().depth == 1


def test_a_topic_that_cannot_be_created_leaves_no_file_open(data_path, disk):
    def refuse(*_):
        raise OSError(errno.EACCES, "no rename")

    daemon = data_path.start()
    daemon.publishes(b"a")
    data_path.kill(daemon)
    storage = Storage(disk, data_path.path, durability=Durability.OS, segment_size=1 << 20)
    disk.rename = refuse
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="not empty"):
        storage.create("orders")
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_topic_that_cannot_be_created_makes_the_data_path_unhealthy(data_path, disk):
    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    daemon = data_path.start()
    disk.mkdir = refuse
    with pytest.raises(OSError, match="Read-only"):
        daemon.topic("new")
    assert daemon.broker._storage.problem == "read-only file system"


# --- A folder that is gone --------------------------------------------------------------------------------------------


def lose(folder, how):
    """Take the folder away; returns a function that puts it back."""
    os.rename(folder, f"{folder}.moved")
    if how == "replaced":
        shutil.copytree(f"{folder}.moved", folder)

    def put_back():
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(f"{folder}.moved", folder)

    return put_back


@pytest.mark.parametrize("how", ["moved", "replaced"])
@pytest.mark.parametrize("durability", LOGGED)
def test_nothing_is_written_while_the_folder_is_not_at_its_path(data_path, caplog, durability, how):
    daemon = data_path.start(durability)
    storage = daemon.broker._storage
    daemon.channel()
    daemon.publishes(b"before")
    data_path.checkpoint(daemon)
    put_back = lose(our_folder(data_path.path), how)
    with pytest.raises(OSError, match="No such file|Stale"):
        storage.check_folder()
    assert "is gone: " in storage.problem
    assert [record.levelname for record in caplog.records if " is gone: " in record.getMessage()] == ["ERROR"]
    for topic in ("orders", "new"):
        with pytest.raises(OSError, match="No such file|Stale"):
            daemon.publishes(b"refused", topic=topic)
    with pytest.raises(OSError, match="No such file|Stale"):
        data_path.checkpoint(daemon)
    storage.probe()
    assert storage.problem is not None
    put_back()
    storage.check_folder()
    assert storage.problem is None
    daemon.publishes(b"after")
    daemon.publishes(b"first", topic="new")
    restarted = data_path.restart(daemon, durability)
    assert restarted.consumer().takes_all() == [b"before", b"after"]
    assert restarted.topic("new").depth == 1


def test_at_level_memory_only_writes_are_refused_while_the_folder_is_gone(data_path):
    daemon = data_path.start(Durability.MEMORY)
    daemon.channel()
    put_back = lose(our_folder(data_path.path), "moved")
    with pytest.raises(OSError, match="No such file"):
        daemon.topic("new")
    daemon.publishes(b"1")
    daemon.publishes(b"2")
    with pytest.raises(OSError, match="No such file"):
        daemon.publishes(b"beyond the memory queue")
    put_back()
    daemon.broker._storage.probe()
    daemon.publishes(b"3")
    data_path.stop(daemon)
    assert data_path.start(Durability.MEMORY).consumer().takes_all() == [b"1", b"2", b"3"]


def test_the_replaced_checkpoint_can_be_kept_open_until_a_thread_closes_it(data_path):
    daemon = data_path.start()
    store = daemon.topic().store
    daemon.publishes(b"a")
    data_path.checkpoint(daemon)
    replaced = store.open_checkpoint()
    before = os.fstat(replaced).st_ino
    daemon.publishes(b"b")
    data_path.checkpoint(daemon)
    now = store.open_checkpoint()
    assert os.fstat(now).st_ino != before
    assert os.fstat(replaced).st_nlink == 0
    os.close(replaced)
    os.close(now)
