"""A place in a stream: what is in memory, what is in the log, and what is passed over. Frames in memory."""

from collections import deque
from collections.abc import Sequence
from typing import SupportsIndex, cast
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nsq_compat.log.files import OsFiles
from nsq_compat.log.segment import Group
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol.message import body, make_frames
from nsq_compat.queue.backlog import Backlog, Cursor, FrameQueue
from nsq_compat.queue.deferred import Deferred

PLENTY = 1 << 30


class Stream:
    """Messages named by their numbers, published to the log and to cursors."""

    def __init__(self, log):
        self.log = log
        self.end = 0
        self.cursors = []

    def cursor(self, memory, position=None):
        position = self.end if position is None else position
        self.cursors.append(Cursor(self.log, memory, position))
        return self.cursors[-1]

    def publish(self, count, size=0):
        numbers = range(self.end, self.end + count)
        frames = make_frames([b"%016x" % number for number in numbers], 0, [b"%d" % n + b"." * size for n in numbers])
        self.log.append(frames, self.end)
        self.end += count
        for cursor in self.cursors:
            assert cursor.extend(frames) == 0


def taken(cursor, limit=PLENTY, max_bytes=PLENTY):
    return numbers(cursor.take(limit, max_bytes))


def numbers(frames):
    return [int(body(frame).rstrip(b".")) for frame in frames]


def all_of(cursor, limit=PLENTY):
    found = []
    while some := taken(cursor, limit):
        found += some
    return found


@pytest.fixture
def log(tmp_path):
    opened = TopicLog(OsFiles(), str(tmp_path / "t.topic"), segment_size=4000)
    yield opened
    opened.close()


@pytest.fixture
def stream(log):
    return Stream(log)


def test_messages_that_do_not_fit_are_read_from_the_log(stream):
    cursor = stream.cursor(memory=2)
    stream.publish(2)
    stream.publish(3)
    assert (len(cursor), cursor.behind) == (5, 3)
    assert all_of(cursor, 1) == [0, 1, 2, 3, 4]
    assert (len(cursor), cursor.behind) == (0, 0)


def test_many_segments_are_read_one_after_the_other(stream):
    cursor = stream.cursor(memory=0)
    for _ in range(50):
        stream.publish(3, size=100)
    assert len(stream.log.segments) > 3
    assert all_of(cursor, 7) == list(range(150))


def test_without_a_log_messages_that_do_not_fit_are_dropped_and_get_no_number(make_frames):
    cursor = Cursor(None, 2)
    assert cursor.extend(make_frames(b"0", b"1", b"2")) == 1
    assert cursor.extend(make_frames(b"3")) == 1
    assert taken(cursor) == [0, 1]
    assert (cursor.position, cursor.end) == (2, 2)
    assert cursor.extend(make_frames(b"4")) == 0
    assert taken(cursor) == [4]


def test_no_more_bytes_are_taken_than_wanted_but_for_one_message(stream):
    cursor = stream.cursor(memory=10)
    stream.publish(4, size=100)
    assert taken(cursor, PLENTY, 300) == [0, 1]
    assert taken(cursor, PLENTY, 1) == [2]


@pytest.mark.interpreted
def test_a_log_that_cannot_be_read_costs_nothing(stream, monkeypatch):
    cursor = stream.cursor(memory=0)
    stream.publish(2)

    def refuse(seq):
        raise OSError("cannot read")

    with monkeypatch.context() as patched:
        patched.setattr(stream.log, "reader", refuse)
        with pytest.raises(OSError, match="cannot read"):
            cursor.take(1, PLENTY)
    assert all_of(cursor) == [0, 1]


# --- Damage -----------------------------------------------------------------------------------------------------------


class HoledLog:
    """Gives groups with a hole between them, one at a time or all at once."""

    def __init__(self, *, read_all):
        self.groups = deque([group(0, 0, 1), group(4, 4)])
        self.seq = 5  # what has been read up to
        self.read_all = read_all

    def reader(self, seq):
        return self

    def read(self):
        if self.read_all:
            return list(self.groups)
        return [self.groups.popleft()] if self.groups else []


def group(first, *numbers):
    frames = make_frames([b"%016x" % number for number in numbers], 0, [b"%d" % number for number in numbers])
    return Group(1, first, 0, frames)


@pytest.mark.interpreted
@pytest.mark.parametrize("read_all", [False, True])
def test_damaged_messages_are_skipped_and_those_around_them_are_delivered(read_all):
    cursor = Cursor(cast(TopicLog, HoledLog(read_all=read_all)), 0)
    cursor.move(0, 5 if read_all else 7)
    assert taken(cursor) == [0, 1]
    assert cursor.position == 2, "groups behind a hole wait until the position is there"
    assert taken(cursor) == [4]
    assert len(cursor) == (0 if read_all else 2)
    assert taken(cursor) == []
    assert (len(cursor), cursor.position) == (0, cursor.end)


@pytest.mark.interpreted
def test_messages_on_both_sides_of_a_gap_are_read_at_once(stream, monkeypatch):
    cursor = stream.cursor(memory=0)
    for _ in range(10):
        stream.publish(10)
    cursor.remove_logged({b"%016x" % number for number in range(100) if number % 7 == 3 or 40 <= number < 60})
    make_reader = Mock(side_effect=stream.log.reader)
    monkeypatch.setattr(stream.log, "reader", make_reader)
    assert all_of(cursor) == [number for number in range(100) if number % 7 != 3 and not 40 <= number < 60]
    assert make_reader.call_count < 3, "only a gap that ends beyond what was read needs another one"


@pytest.mark.interpreted
def test_a_long_gap_is_not_read(stream, monkeypatch):
    cursor = stream.cursor(memory=0)
    for _ in range(10):
        stream.publish(10, size=100_000)
    cursor.move(0, stream.end, [(5, 95)])
    make_reader = Mock(side_effect=stream.log.reader)
    monkeypatch.setattr(stream.log, "reader", make_reader)
    assert all_of(cursor) == [0, 1, 2, 3, 4, 95, 96, 97, 98, 99]
    assert [call.args for call in make_reader.call_args_list] == [(0,), (95,)]


# --- A pause ----------------------------------------------------------------------------------------------------------


def test_a_cursor_that_is_behind_reads_the_messages_of_the_other_from_the_log(stream):
    channel = stream.cursor(memory=1)
    stream.publish(4)
    stream.cursors = []
    held = stream.cursor(memory=5)
    stream.publish(2)
    channel.follow(held)
    assert channel.behind == 6
    assert all_of(channel) == [0, 1, 2, 3, 4, 5]


def test_messages_in_the_log_that_a_topic_holds_are_not_read(stream):
    channel = stream.cursor(memory=0)
    stream.publish(3)
    stream.cursors = []
    stream.publish(3)
    assert taken(channel, 1) == [0]
    assert (len(channel), channel.behind) == (2, 0)
    assert all_of(channel) == [1, 2]


def test_a_cursor_that_is_behind_passes_over_dropped_messages(stream):
    channel = stream.cursor(memory=1)
    stream.publish(3)
    stream.cursors = []
    stream.publish(4)
    channel.pass_over(7)
    held = stream.cursor(memory=1)
    stream.publish(2)
    channel.follow(held)
    stream.cursors = [channel]
    stream.publish(1)
    assert (len(channel), list(channel.gaps)) == (6, [(3, 7)])
    assert all_of(channel, 2) == [0, 1, 2, 7, 8, 9]
    assert (channel.position, list(channel.gaps)) == (10, [])


def test_a_cursor_at_its_end_moves_behind_dropped_messages(stream):
    cursor = stream.cursor(memory=1)
    stream.publish(1)
    taken(cursor)
    cursor.pass_over(9)
    assert (cursor.position, cursor.end, list(cursor.gaps), len(cursor)) == (9, 9, [], 0)
    cursor.pass_over(9)
    assert list(cursor.gaps) == []


@pytest.mark.interpreted
def test_peeking_looks_at_each_gap_once(stream, monkeypatch):
    cursor = stream.cursor(memory=1)
    stream.publish(600)
    cursor.move(0, 600, [(number, number + 1) for number in range(1, 500, 2)])
    monkeypatch.setattr(Cursor, "_is_in_gap", Mock(side_effect=AssertionError("all gaps for each message")))
    expected = [*range(0, 500, 2), *range(500, 600)]
    for count in (1, 2, 100, 350):
        assert numbers(cursor.peek(count)) == expected[:count]
    assert all_of(cursor) == expected


def test_numbers_mean_nothing_to_a_cursor_without_a_log(make_frames):
    cursor = Cursor(None, 2)
    cursor.extend(make_frames(b"0"))
    cursor.pass_over(9)
    assert (len(cursor), taken(cursor)) == (1, [0])


def test_without_a_log_messages_of_the_other_that_are_not_in_memory_are_dropped(stream, make_frames):
    ephemeral = Cursor(None, 2)
    ephemeral.extend(make_frames(b"90"))
    held = stream.cursor(memory=1)
    stream.publish(1)
    stream.publish(3)
    assert ephemeral.follow(held) == 3
    assert taken(ephemeral) == [90, 0]


# --- Leaving out and coming back --------------------------------------------------------------------------------------


def test_skipping_to_the_end_drops_memory_log_and_gaps(stream):
    cursor = stream.cursor(memory=2)
    stream.publish(2)
    stream.publish(3)
    cursor.pass_over(8)
    taken(cursor, 1)
    cursor.skip_to_end()
    assert (len(cursor), cursor.behind, cursor.position, list(cursor.gaps)) == (0, 0, 8, [])
    assert taken(cursor) == []


def test_a_cursor_that_is_moved_reads_everything_from_the_log(stream):
    stream.publish(6)
    cursor = Cursor(stream.log, 10)
    cursor.move(1, 6, [(2, 4)])
    assert (len(cursor), cursor.behind) == (3, 3)
    assert all_of(cursor) == [1, 4, 5]


def test_a_position_behind_the_end_is_the_end(stream):
    cursor = Cursor(stream.log, 10)
    cursor.move(9, 4)
    assert (len(cursor), cursor.position, taken(cursor)) == (0, 4, [])


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 6)),
        st.tuples(st.just("take"), st.integers(1, 6)),
        st.tuples(st.just("hold"), st.integers(0, 6)),
        st.tuples(st.just("hold and drop"), st.integers(1, 6)),
        st.tuples(st.just("begin again"), st.just(0)),
    ),
    max_size=25,
)


@given(steps=steps, memory=st.integers(0, 5))
def test_after_any_steps_a_cursor_returns_the_messages_that_were_not_dropped_in_order(tmp_path_factory, steps, memory):
    folder = tmp_path_factory.mktemp("log") / "t.topic"
    log = TopicLog(OsFiles(), str(folder), segment_size=500)
    stream = Stream(log)
    channel = stream.cursor(memory)
    expected: list[int] = []
    for step, count in steps:
        before = stream.end
        if step == "publish":
            stream.publish(count)
            expected += range(before, stream.end)
        elif step == "take":
            some = taken(channel, count)
            assert some == expected[: len(some)]
            assert some or not expected
            del expected[: len(some)]
        elif step == "begin again":
            place = (channel.position, channel.end, list(channel.gaps))
            channel = Cursor(log, memory)
            channel.move(*place)
            stream.cursors = [channel]
        else:
            stream.cursors = []
            held = stream.cursor(memory)
            stream.publish(count)
            if step == "hold":
                channel.follow(held)
                expected += range(before, stream.end)
            else:
                held.skip_to_end()
                channel.pass_over(held.position)
            stream.cursors = [channel]
        assert len(channel) == len(expected)
        assert 0 <= channel.behind <= len(expected)
    assert all_of(channel) == expected
    assert channel.position == stream.end
    log.close()


def test_peeking_shows_the_next_messages_and_takes_none():
    cursor = Cursor(None, memory=10)
    cursor.extend((b"a", b"b"))
    assert (cursor.peek(10), cursor.peek(1), cursor.window.latest(1)) == ([b"a", b"b"], [b"a"], [b"b"])
    assert len(cursor) == 2
    assert list(cursor.take(1, 1 << 20)) == [b"a"]
    assert cursor.peek(10) == [b"b"]


def test_peeking_goes_on_in_the_log(stream):
    cursor = stream.cursor(memory=3)
    for _ in range(20):
        stream.publish(2, size=100)
    assert numbers(cursor.peek(10)) == list(range(10))
    assert (cursor.behind, numbers(cursor.window.latest(10))) == (38, [0, 1])
    assert taken(cursor, 4) == [0, 1]
    assert numbers(cursor.peek(100)) == list(range(2, 40))
    assert all_of(cursor) == list(range(2, 40))
    assert cursor.peek(10) == []


def test_peeking_stops_at_messages_that_a_paused_topic_holds(stream):
    cursor = stream.cursor(memory=1)
    stream.publish(3)
    stream.cursors = [stream.cursor(memory=1)]
    stream.publish(3)
    assert numbers(cursor.peek(10)) == [0, 1, 2]


@pytest.mark.interpreted
def test_messages_that_the_options_have_room_for_do_not_count_as_backend_depth(log, monkeypatch):
    monkeypatch.setattr("nsq_compat.queue.backlog.MAX_IN_MEMORY", 2)
    stream = Stream(log)
    cursor = stream.cursor(memory=5)
    backlog = Backlog(cursor, Deferred(), 5)
    depths = []
    for _ in range(7):
        stream.publish(1)
        depths.append((cursor.behind, backlog.backend_depth))
    assert depths == [(0, 0), (0, 0), (1, 0), (2, 0), (3, 0), (4, 1), (5, 2)]
    assert all_of(cursor) == list(range(7))
    assert backlog.backend_depth == 0


@pytest.mark.interpreted
def test_big_frames_fill_memory_sooner(log, monkeypatch):
    monkeypatch.setattr("nsq_compat.queue.backlog.MAX_BYTES_IN_MEMORY", 1000)
    stream = Stream(log)
    cursor = stream.cursor(memory=100)
    for _ in range(5):
        stream.publish(1, size=250)
    assert cursor.behind == 2
    stream.publish(1)
    assert cursor.behind == 3, "what follows a frame that is only in the log is there as well"
    assert all_of(cursor) == list(range(6))
    stream.publish(3, size=250)
    assert cursor.behind == 0
    stream.publish(1, size=900)
    assert cursor.behind == 1
    assert all_of(cursor) == [6, 7, 8, 9]
    stream.publish(1, size=2000)
    assert taken(cursor) == [10], "a frame of any size comes through"


# --- Frames in memory -------------------------------------------------------------------------------------------------


class Watched(list[bytes]):
    """A batch that notes how much of it was copied."""

    copied = 0

    def __getitem__(self, index: SupportsIndex | slice) -> list[bytes]:  # type: ignore[override]
        part = super().__getitem__(index)
        assert isinstance(part, list), "a queue takes batches apart by slices"
        self.copied += len(part)
        return part


@pytest.fixture
def queue() -> FrameQueue:
    return FrameQueue()


def test_a_batch_that_is_taken_whole_is_not_copied(queue):
    batch = [b"a", b"b"]
    queue.extend(batch)
    assert queue.take(2, PLENTY) is batch


def test_a_shared_batch_is_never_changed(queue):
    batch = [b"a", b"b", b"c"]
    queue.extend(batch)
    queue.extend([b"d"])
    queue.take(2, PLENTY)
    queue.take(2, PLENTY)
    assert batch == [b"a", b"b", b"c"]


def test_taking_a_little_of_a_big_batch_copies_a_little(queue):
    batch = Watched(b"%010d" % number for number in range(1000))
    queue.extend([b"first"])
    queue.extend(batch)
    queue.take(1, PLENTY)
    taken = [frame for _ in range(100) for frame in queue.take(8, 40)]
    assert taken == list(batch)[:400]
    assert batch.copied == 100 * 8


def first_that_fit(frames: list[bytes], limit: int, max_bytes: int) -> list[bytes]:
    """The plain meaning of `take`."""
    taken: list[bytes] = []
    for frame in frames[: max(limit, 0)]:
        if taken and sum(map(len, taken)) + len(frame) > max_bytes:
            break
        taken.append(frame)
    return taken


class FrameQueueIsAList(RuleBasedStateMachine):
    """Batches in, parts of them out: never told from one plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FrameQueue()
        self.model: list[bytes] = []
        self.serial = 0

    @rule(sizes=st.lists(st.integers(0, 20), max_size=12), kind=st.sampled_from([list, tuple]))
    def extend(self, sizes: list[int], kind: type[list[bytes]] | type[tuple[bytes, ...]]) -> None:
        batch = [b"%d:" % (self.serial + number) + b"x" * size for number, size in enumerate(sizes)]
        self.serial += len(batch)
        self.queue.extend(kind(batch))
        self.model += batch

    @rule(limit=st.integers(-1, 15), max_bytes=st.integers(0, 80))
    def take(self, limit: int, max_bytes: int) -> None:
        taken: Sequence[bytes] = self.queue.take(limit, max_bytes)
        assert list(taken) == first_that_fit(self.model, limit, max_bytes)
        del self.model[: len(taken)]

    @rule()
    def empty(self) -> None:
        self.queue.empty()
        self.model.clear()

    @invariant()
    def they_have_the_same_frames(self) -> None:
        assert self.queue.length == len(self.model)
        assert list(self.queue.frames()) == self.model

    @invariant()
    def the_latest_frames_can_be_peeked_at(self) -> None:
        for count in (0, 1, 4, 100):
            assert self.queue.latest(count) == self.model[max(0, len(self.model) - count) :]


TestFrameQueueIsAList = FrameQueueIsAList.TestCase
