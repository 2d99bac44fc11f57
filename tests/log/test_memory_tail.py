"""The newest messages of a log at level `memory`: how they are read, trimmed and spilled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.log.files import OsFiles
from nsq_compat.log.memory_tail import MemoryTail
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol.message import body, make_frames

PLENTY = 1 << 30


def frames(first, count):
    numbers = range(first, first + count)
    return make_frames([b"%016x" % number for number in numbers], 0, [b"%d" % number for number in numbers])


def numbers(found):
    return [int(body(frame)) for frame in found]


def numbers_in(groups):
    return [number for group in groups for number in numbers(group.frames)]


class Writer:
    """Publishes messages that are named by their numbers, and knows which one is read first."""

    def __init__(self, log, limit):
        self.log = log
        self.end = 0
        self.needed = 0
        log.tail = MemoryTail(limit, lambda: self.needed)

    def publish(self, count):
        if not self.holds(count):
            self.log.append(frames(self.end, count), self.end)
        self.end += count

    def holds(self, count):
        while not self.log.tail.append(self.end, frames(self.end, count)):
            if self.log.spill_some():
                return self.log.tail.append(self.end, frames(self.end, count))
        return True

    def reads(self, seq, max_bytes=PLENTY):
        reader = self.log.reader(seq)
        found = []
        while groups := reader.read(max_bytes):
            found += numbers_in(groups)
        return found


@pytest.fixture
def log(disk, tmp_path):
    opened = TopicLog(disk, str(tmp_path / "t.topic"), segment_size=2000)
    yield opened
    opened.close()


def test_messages_that_fit_are_written_nowhere_and_can_be_read(log):
    writer = Writer(log, 10)
    writer.publish(2)
    writer.publish(3)
    assert log.disk_bytes == 0
    assert (writer.reads(0), writer.reads(1), writer.reads(5)) == ([0, 1, 2, 3, 4], [1, 2, 3, 4], [])
    assert writer.reads(0, max_bytes=1) == [0, 1, 2, 3, 4]


def test_a_reader_goes_on_from_the_segments_into_memory(log):
    writer = Writer(log, 3)
    for _ in range(7):
        writer.publish(1)
    assert log.disk_bytes > 0
    assert writer.reads(0) == [0, 1, 2, 3, 4, 5, 6]
    assert (numbers_in(log.latest(2))[-2:], log.bytes_behind(6) > 0) == ([5, 6], True)


def test_a_batch_larger_than_the_limit_is_written_at_once_behind_all_that_came_before(log):
    writer = Writer(log, 3)
    writer.publish(2)
    writer.publish(5)
    assert log.end.seq == 7
    assert writer.reads(0) == [0, 1, 2, 3, 4, 5, 6]


def test_a_reader_that_is_in_memory_is_not_disturbed_by_a_spill(log):
    writer = Writer(log, 10)
    writer.publish(4)
    reader = log.reader(0)
    assert numbers_in(reader.read()) == [0, 1, 2, 3]
    writer.publish(4)
    log.spill()
    writer.publish(1)
    assert numbers_in(reader.read() + reader.read()) == [4, 5, 6, 7, 8]


def test_messages_before_the_first_needed_one_are_dropped_by_whole_batches():
    needed = 0
    tail = MemoryTail(100, lambda: needed)
    for first in range(0, 12, 3):
        assert tail.append(first, frames(first, 3))
    needed = 7
    tail.trim()
    assert (tail.first_seq, tail.count, numbers(tail.read(0, PLENTY).frames)) == (6, 6, [6, 7, 8, 9, 10, 11])
    needed = 12
    tail.trim()
    assert (tail.count, tail.latest(5), tail.bytes_behind(0)) == (0, [], 0)


def test_no_room_is_made_by_dropping_messages_that_are_needed():
    needed = 0
    tail = MemoryTail(3, lambda: needed)
    assert tail.append(0, frames(0, 3))
    assert not tail.append(3, frames(3, 1))
    needed = 3
    assert tail.append(3, frames(3, 1))
    assert tail.count == 1


@given(
    steps=st.lists(st.tuples(st.sampled_from(["publish", "publish", "take", "spill"]), st.integers(1, 6)), max_size=30),
    limit=st.integers(0, 10),
)
def test_whatever_is_needed_can_be_read_in_order(tmp_path_factory, steps, limit):
    folder = tmp_path_factory.mktemp("log") / "t.topic"
    log = TopicLog(OsFiles(), str(folder), segment_size=500)
    writer = Writer(log, limit)
    for step, count in steps:
        if step == "publish":
            writer.publish(count)
        elif step == "take":
            writer.needed = min(writer.end, writer.needed + count)
        else:
            log.spill_some()
        assert writer.reads(writer.needed, max_bytes=200) == list(range(writer.needed, writer.end))
        assert log.tail is not None
        assert log.tail.count <= limit
    log.close()
    assert log.damage.records == 0
