"""Recovery: the state of a topic from its checkpoint and the log after it, log by log."""

import os
from random import Random

import pytest

from nsq_compat.log.checkpoint import CHECKPOINT, ENTRY, ChannelState, TopicState, immediate_entries, pack_key
from nsq_compat.log.files import OsFiles
from nsq_compat.log.recovery import StoredTopic, recover
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol import message
from nsq_compat.protocol.message import make_frames, message_id
from nsq_compat.protocol.storage_schema import (
    CHANNEL_CREATED,
    CHANNEL_DELETED,
    CHANNEL_EMPTIED,
    CHECKPOINT_MAGIC,
    DEFERRED,
    REQUEUED,
    TOPIC_AWAITS_CHANNELS,
    TOPIC_EMPTIED,
    TOPIC_KNOWS_CHANNELS,
    TOPIC_PAUSED,
    TOPIC_UNPAUSED,
)

SECOND = 1_000_000_000


class Past:
    """Writes a log as a topic would, and remembers where a checkpoint was taken."""

    def __init__(self, folder):
        self.folder = folder
        self.log = TopicLog(OsFiles(), folder, segment_size=500)
        self.seq = 0
        self.serial = 0

    def published(self, count=1, size=0):
        self.log.append(self.frames(count, size), self.seq)
        self.seq += count

    def deferred(self, due):
        frames = self.frames(1)
        self.log.append(frames, self.seq, due * SECOND, DEFERRED)
        return message_id(frames[0])

    def noted(self, kind, name="", seq=None):
        self.log.append([name.encode()], self.seq if seq is None else seq, kind=kind)

    def frames(self, count, size=0):
        ids = [b"%016x" % (self.serial + number) for number in range(count)]
        self.serial += count
        return make_frames(ids, 0, [b"x" * size] * count)

    def checkpoint(self, clock_offset=0.0, paused=False, awaits_channels=False, **states):
        end = self.log.end._replace(seq=self.seq)
        return TopicState(end, clock_offset, b"0" * 16, states, states.pop("held", None), paused, awaits_channels)

    def recovered(self, last=None):
        log = TopicLog(OsFiles(), self.folder, segment_size=500, start=last.end if last else None)
        try:
            return recover(last, log)
        finally:
            log.close()


@pytest.fixture
def past(tmp_path):
    past = Past(str(tmp_path / "t.topic"))
    yield past
    past.log.close()


def unfinished(state):
    """Ids and due times."""
    return [(message_id, due) for due, _, message_id, _ in map(ENTRY.unpack_from, sorted(state.entries))]


# --- Without a checkpoint, from a whole log ---------------------------------------------------------------------------


def test_an_empty_log_is_a_topic_without_messages(past):
    topic = past.recovered()
    assert (topic.end.seq, topic.channels, topic.held, topic.paused) == (0, {}, ChannelState(0), False)


def test_a_topic_without_a_channel_holds_everything(past):
    past.published(3)
    due = past.deferred(50)
    topic = past.recovered()
    assert (topic.end.seq, topic.held.position, topic.last_id) == (3, 0, due)
    assert unfinished(topic.held) == [(due, 50.0)]


def test_the_first_channel_receives_held_messages_and_a_later_one_begins_where_it_was_created(past):
    past.published(2)
    due = past.deferred(50)
    past.noted(CHANNEL_CREATED, "first", 0)
    past.published(1)
    past.noted(CHANNEL_CREATED, "later")
    past.published(1)
    topic = past.recovered()
    assert (topic.channels["first"].position, topic.channels["later"].position, topic.end.seq) == (0, 3, 4)
    assert unfinished(topic.channels["first"]) == [(due, 50.0)]
    assert (topic.channels["later"].entries, topic.held) == ([], None)


def test_deferred_messages_belong_to_the_channels_of_that_time(past):
    past.noted(CHANNEL_CREATED, "first")
    early = past.deferred(50)
    past.noted(CHANNEL_CREATED, "later")
    late = past.deferred(10)
    topic = past.recovered()
    assert unfinished(topic.channels["first"]) == [(late, 10.0), (early, 50.0)]
    assert unfinished(topic.channels["later"]) == [(late, 10.0)]


def test_a_recreated_channel_has_no_earlier_messages(past):
    past.noted(CHANNEL_CREATED, "a")
    past.noted(CHANNEL_CREATED, "b")
    past.published(2)
    past.deferred(9)
    past.noted(CHANNEL_DELETED, "a")
    past.published(3)
    past.noted(CHANNEL_CREATED, "a")
    topic = past.recovered()
    assert (topic.channels["a"], topic.channels["b"].position, topic.gone) == (ChannelState(5), 0, set())


def test_a_deleted_channel_is_among_the_deleted_ones(past):
    past.noted(CHANNEL_CREATED, "a")
    past.noted(CHANNEL_DELETED, "a")
    assert past.recovered().gone == {"a"}


def test_after_the_last_channel_is_deleted_the_topic_holds_messages(past):
    past.noted(CHANNEL_CREATED, "a")
    past.published(2)
    past.noted(CHANNEL_DELETED, "a")
    past.published(1)
    topic = past.recovered()
    assert (topic.held, topic.channels, topic.end.seq) == (ChannelState(2), {}, 3)


def test_messages_for_an_ephemeral_channel_are_not_held_but_later_ones_are(past):
    past.published(2)
    past.noted(CHANNEL_CREATED, "tail#ephemeral", 0)
    past.published(2)
    topic = past.recovered()
    assert (topic.held, topic.channels, topic.end.seq) == (None, {}, 4)
    past.noted(CHANNEL_DELETED, "tail#ephemeral")
    past.published(1)
    assert past.recovered().held == ChannelState(4)


def test_emptying_is_replayed(past):
    past.published(2)
    past.deferred(9)
    past.noted(TOPIC_EMPTIED)
    past.noted(CHANNEL_CREATED, "a", 2)
    past.published(2)
    past.deferred(9)
    past.noted(CHANNEL_EMPTIED, "a")
    past.noted(CHANNEL_EMPTIED, "unknown")
    past.published(1)
    topic = past.recovered()
    assert (topic.channels, topic.end.seq) == ({"a": ChannelState(4)}, 5)


def test_a_pause_is_replayed(past):
    past.noted(CHANNEL_CREATED, "a")
    past.published(2)
    past.noted(TOPIC_PAUSED)
    past.published(3)
    held = past.deferred(9)
    past.noted(CHANNEL_CREATED, "made-meanwhile", 2)
    topic = past.recovered()
    assert (topic.paused, topic.held.position, unfinished(topic.held)) == (True, 2, [(held, 9.0)])
    assert {name: state.position for name, state in topic.channels.items()} == {"a": 0, "made-meanwhile": 2}
    past.noted(TOPIC_UNPAUSED)
    topic = past.recovered()
    assert (topic.paused, topic.held) == (False, None)
    assert [unfinished(state) for state in topic.channels.values()] == [[(held, 9.0)], [(held, 9.0)]]


def test_messages_dropped_during_a_pause_are_skipped(past):
    past.noted(CHANNEL_CREATED, "behind")
    past.published(2)
    past.noted(TOPIC_PAUSED)
    past.noted(CHANNEL_CREATED, "new")
    past.published(3)
    past.noted(TOPIC_EMPTIED)
    past.noted(TOPIC_UNPAUSED)
    topic = past.recovered()
    assert topic.channels == {"behind": ChannelState(0, [], [(2, 5)]), "new": ChannelState(5)}


def test_a_pause_without_a_channel_stays(past):
    past.published(1)
    past.noted(TOPIC_PAUSED)
    past.noted(CHANNEL_CREATED, "a", 0)
    topic = past.recovered()
    assert (topic.paused, topic.held, topic.channels) == (True, ChannelState(0), {"a": ChannelState(0)})


# --- Behind a checkpoint ----------------------------------------------------------------------------------------------


def test_messages_logged_after_a_checkpoint_are_added_to_it(past):
    past.published(5)
    last = past.checkpoint(a=ChannelState(3, immediate_entries([(b"%016x" % 1, 4)])), b=ChannelState(5))
    past.published(2)
    due = past.deferred(9)
    topic = past.recovered(last)
    assert (topic.end.seq, topic.held) == (7, None)
    assert (topic.channels["a"].position, unfinished(topic.channels["a"])) == (3, [(b"%016x" % 1, 0.0), (due, 9.0)])
    assert (topic.channels["b"].position, unfinished(topic.channels["b"])) == (5, [(due, 9.0)])


def test_a_channel_in_the_checkpoint_is_not_created_again(past):
    last = past.checkpoint(a=ChannelState(0))
    past.published(1)
    past.noted(CHANNEL_CREATED, "a")
    assert past.recovered(last).channels == {"a": ChannelState(0)}


def test_messages_that_were_never_logged_have_numbers_too(past):
    past.published(1)
    past.seq = 8
    last = past.checkpoint(a=ChannelState(8))
    assert past.recovered(last).end.seq == 8
    past.seq = 11
    past.noted(CHANNEL_CREATED, "b")
    assert past.recovered(last).end.seq == 11


def test_a_topic_that_holds_messages_has_a_state_in_the_checkpoint(past):
    past.published(2)
    topic = past.recovered(past.checkpoint(held=ChannelState(1)))
    assert (topic.held, topic.paused, topic.channels) == (ChannelState(1), False, {})
    topic = past.recovered(past.checkpoint(held=ChannelState(1), paused=True))
    assert (topic.held, topic.paused) == (ChannelState(1), True)


def test_a_topic_that_awaited_its_channels_awaits_them_again(past):
    past.noted(TOPIC_AWAITS_CHANNELS)
    past.noted(CHANNEL_CREATED, "own")
    past.published(2)
    held = past.deferred(9)
    topic = past.recovered()
    assert (topic.awaits_channels, topic.paused, topic.held.position) == (True, False, 0)
    past.noted(CHANNEL_CREATED, "learned", 0)
    past.noted(TOPIC_KNOWS_CHANNELS)
    topic = past.recovered()
    assert (topic.awaits_channels, topic.held) == (False, None)
    for name in ("own", "learned"):
        assert (topic.channels[name].position, unfinished(topic.channels[name])) == (0, [(held, 9.0)])


@pytest.mark.parametrize("first", [TOPIC_KNOWS_CHANNELS, TOPIC_UNPAUSED])
def test_a_paused_topic_that_awaits_its_channels_holds_messages_until_both_end(past, first):
    past.noted(CHANNEL_CREATED, "a")
    past.noted(TOPIC_PAUSED)
    past.noted(TOPIC_AWAITS_CHANNELS)
    past.published(1)
    past.noted(first)
    topic = past.recovered()
    assert topic.held == ChannelState(0)
    assert (topic.paused, topic.awaits_channels) == (first == TOPIC_KNOWS_CHANNELS, first == TOPIC_UNPAUSED)
    past.noted(TOPIC_UNPAUSED if first == TOPIC_KNOWS_CHANNELS else TOPIC_KNOWS_CHANNELS)
    assert past.recovered().held is None


def test_a_checkpoint_records_that_a_topic_awaits_its_channels(past):
    topic = past.recovered(past.checkpoint(awaits_channels=True, held=ChannelState(0), a=ChannelState(0)))
    assert (topic.awaits_channels, topic.paused) == (True, False)


def test_a_topic_with_channels_that_holds_messages_is_paused(past):
    topic = past.recovered(past.checkpoint(held=ChannelState(0), a=ChannelState(0)))
    assert topic.paused


def test_due_times_use_the_clock_of_the_checkpoint(past):
    last = past.checkpoint(clock_offset=1000.0, a=ChannelState(0))
    due = past.deferred(1050)
    topic = past.recovered(last)
    assert (topic.clock_offset, unfinished(topic.channels["a"])) == (1000.0, [(due, 50.0)])


def test_a_clock_set_back_before_boot_makes_nothing_due(past):
    past.log.keep(make_frames([b"%016x" % 900, b"%016x" % 901], 0, [b"", b""]))
    before = ENTRY.pack(70.0, 1, b"%016x" % 900, 3)
    at_once = immediate_entries([(b"%016x" % 901, 1)])
    last = past.checkpoint(clock_offset=1000.0, a=ChannelState(0, [before, *at_once]))
    due = past.deferred(950)
    topic = past.recovered(last)
    seconds = [(message_id, due + topic.clock_offset) for message_id, due in unfinished(topic.channels["a"])]
    assert seconds == [(b"%016x" % 901, 0.0), (due, 950.0), (b"%016x" % 900, 1070.0)]


def test_a_damaged_last_message_keeps_its_number(past):
    past.published(1)
    last = past.checkpoint(a=ChannelState(0))
    past.published(2, size=10)
    path = past.log.segments[-1].path
    past.log.close()
    with open(path, "r+b") as file:
        file.seek(-50, 2)
        file.write(b"\xff")
    assert past.recovered(last).end.seq == 3


# --- Without a checkpoint, from what is left of a log -----------------------------------------------------------------


def test_from_an_incomplete_log_every_channel_gets_every_message(past):
    past.noted(CHANNEL_CREATED, "a")
    for _ in range(20):
        past.published(1, size=100)
    kept = past.frames(1)
    past.log.keep(kept)
    past.log.release(15, lambda: [message_id(kept[0])])
    past.noted(CHANNEL_CREATED, "b")
    past.noted(CHANNEL_CREATED, "c")
    past.noted(CHANNEL_DELETED, "c")
    due = past.deferred(9)
    oldest = past.log.oldest
    assert oldest > 0
    topic = past.recovered()
    everything = [(message_id(kept[0]), 0.0), (due, 9.0)]
    assert (topic.channels["b"].position, unfinished(topic.channels["b"])) == (oldest, everything)
    assert (topic.everything.position, unfinished(topic.everything)) == (oldest, everything)
    assert (topic.channels.keys(), topic.gone, topic.held) == ({"b"}, {"c"}, None)


def test_a_log_released_in_its_middle_is_incomplete(past):
    frames = past.frames(4, size=100)
    past.log.append(frames, 0)  # a file of its own, and nothing of it is finished
    past.seq = 4
    past.noted(CHANNEL_CREATED, "a")
    for _ in range(8):
        past.published(1, size=100)
    past.log.release(past.seq, lambda: map(message_id, frames))
    past.noted(TOPIC_EMPTIED)
    topic = past.recovered()
    assert past.log.oldest == 0
    assert (topic.held.position, topic.everything.position, topic.end.seq) == (0, 0, 12)


def test_a_message_that_is_retained_and_logged_is_delivered_once(past):
    frames = past.frames(3)
    past.log.append(frames, 0)
    past.log.keep(frames[:2])
    topic = past.recovered()
    assert (topic.held.position, topic.held.entries, topic.end.seq) == (0, [], 3)


def test_a_retained_message_keeps_its_attempts(past):
    (frame,) = past.frames(1)
    past.log.keep([frame[:16] + b"\0\7" + frame[18:]])
    topic = past.recovered()
    assert [entry[3] for entry in map(ENTRY.unpack_from, topic.held.entries)] == [7]
    assert topic.last_id == message_id(frame)


# --- Without a daemon -------------------------------------------------------------------------------------------------


def stored(folder):
    with StoredTopic(OsFiles(), folder) as topic:
        found = {name: [*map(number_and_attempts, frames)] for name, frames in topic.backlogs()}
        assert topic.depths() == {name: len(frames) for name, frames in found.items()}
        assert not topic.log.damage.records
        return found


def number_and_attempts(frame):
    return int(message_id(frame), 16), message.attempts(frame)


def save(past, **states):
    with open(os.path.join(past.folder, "checkpoint"), "wb") as file:
        file.write(past.checkpoint(**states).encode())


def test_without_a_channel_all_messages_are_held_by_the_topic(past):
    past.published(2)
    assert stored(past.folder) == {None: [(0, 1), (1, 1)]}


def test_a_channel_gets_its_unfinished_messages_and_later_ones(past):
    past.published(6)
    save(past, c=ChannelState(4, immediate_entries([(b"%016x" % 1, 3)])), d=ChannelState(6))
    assert stored(past.folder) == {"c": [(1, 3), (4, 1), (5, 1)], "d": []}
    past.noted(CHANNEL_CREATED, "e")
    past.published(1)
    past.deferred(9)
    assert stored(past.folder) == {
        "c": [(1, 3), (7, 1), (4, 1), (5, 1), (6, 1)],
        "d": [(7, 1), (6, 1)],
        "e": [(7, 1), (6, 1)],
    }


def test_a_paused_topic_holds_later_messages_back(past):
    past.published(3)
    save(past, c=ChannelState(1), held=ChannelState(2))
    assert stored(past.folder) == {None: [(2, 1)], "c": [(1, 1)]}


def test_a_damaged_checkpoint_is_reported_and_every_message_is_delivered(past):
    past.published(1)
    with open(os.path.join(past.folder, "checkpoint"), "wb") as file:
        file.write(b"garbage")
    assert stored(past.folder) == {None: [(0, 1)]}
    with StoredTopic(OsFiles(), past.folder) as topic:
        assert topic.checkpoint_error


def test_reading_all_undelivered_messages_counts_damaged_ones(past):
    past.published(1)
    save(past, c=ChannelState(0, immediate_entries([(b"%016x" % 99, 1)])))
    with StoredTopic(OsFiles(), past.folder) as topic:
        topic.read_needed()
        assert topic.log.damage.records == 1


def test_deferred_messages_are_taken_over_in_the_order_of_their_ids(past):
    for _ in range(20):
        past.published(1)
    dues = Random(1).sample(range(10**6), 20)
    entries = [pack_key(float(due), 0, b"%016x" % each, 1) for each, due in enumerate(dues)]
    save(past, c=ChannelState(20, sorted(entries)))
    with StoredTopic(OsFiles(), past.folder) as topic:
        ((_, messages),) = ((name, list(found)) for name, found in topic.unfinished(0) if name == "c")
    assert [message_id(frame) for _, frame in messages] == [b"%016x" % each for each in range(20)]
    assert sorted(due for due, _ in messages) != [due for due, _ in messages]


def test_a_missing_segment_is_damage(past):
    past.published(7)
    save(past, c=ChannelState(0))
    os.unlink(past.log.segments[-1].path)
    with StoredTopic(OsFiles(), past.folder) as topic:
        topic.read_needed()
        assert list(dict(topic.backlogs())["c"]) == []
        assert topic.log.damage.records == 7


# --- Sparse files, which a forged copy of a primary may have at no cost on the disk -----------------------------------


class CountingFiles(OsFiles):
    """Counts the bytes that are read."""

    def __init__(self):
        self.bytes_read = 0

    def pread(self, fd, size, offset):
        data = os.pread(fd, size, offset)
        self.bytes_read += len(data)
        return data


@pytest.mark.parametrize("is_in_between", [True, False])
def test_the_holes_of_a_log_are_not_read(tmp_path, is_in_between):
    past = Past(str(tmp_path))
    past.published(3)
    path = past.log.segments[-1].path
    past.log.close()
    os.truncate(path, 1 << 36)
    if is_in_between:
        with open(path, "r+b") as file:
            file.seek(1 << 35)
            file.write(b"x")
    files = CountingFiles()
    with StoredTopic(files, str(tmp_path)) as stored:
        assert stored.log.end.seq == 3
        assert [name for name, _ in stored.backlogs()] == [None]
    assert files.bytes_read < 1 << 24


@pytest.mark.parametrize("is_in_between", [True, False])
def test_the_holes_of_a_log_without_a_header_are_not_read(tmp_path, is_in_between):
    path = tmp_path / f"log.{1:020d}"
    path.write_bytes(b"")
    os.truncate(path, 1 << 34)
    if is_in_between:
        with open(path, "r+b") as file:
            file.seek(1 << 33)
            file.write(b"x")
    files = CountingFiles()
    with StoredTopic(files, str(tmp_path)) as stored:
        stored.read_needed()
    assert files.bytes_read < 1 << 24


def test_a_checkpoint_of_almost_only_zeros_is_damaged_and_not_read_to_its_end(tmp_path):
    Past(str(tmp_path)).log.close()
    for begin in (b"", CHECKPOINT_MAGIC):
        (tmp_path / CHECKPOINT).write_bytes(begin)
        os.truncate(tmp_path / CHECKPOINT, 1 << 36)
        files = CountingFiles()
        with StoredTopic(files, str(tmp_path)) as stored:
            assert stored.checkpoint_error
        assert files.bytes_read < 1 << 27


@pytest.mark.parametrize("name", [b"a\nUNREGISTER t c", b"a b", b"", b"\xff", b"x" * 65])
@pytest.mark.parametrize("kind", [CHANNEL_CREATED, REQUEUED])
def test_invalid_names_of_channels_are_passed_over_and_counted(past, name, kind):
    """They would reach nsqlookupd, statsd and logs."""
    past.published(2)
    past.log.append([bytes([len(name)]) + name if kind == REQUEUED else name], past.seq, kind=kind)
    past.noted(CHANNEL_CREATED, "a")
    log = TopicLog(OsFiles(), past.folder, segment_size=500)
    assert list(recover(None, log).channels) == ["a"]
    assert log.damage.records == 1
    log.close()
