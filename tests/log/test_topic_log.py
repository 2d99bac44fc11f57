import errno
import itertools
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsq_compat.log import group_reader
from nsq_compat.log.descriptors import Descriptors
from nsq_compat.log.files import Files, OsFiles
from nsq_compat.log.reading import sorted_ids
from nsq_compat.log.segment import FIRST_GROUP, Group
from nsq_compat.log.topic_log import LogEnd, TopicLog
from nsq_compat.protocol.message import make_frames, message_id
from nsq_compat.protocol.storage_schema import CHANNEL_CREATED, DEFERRED, MESSAGES, REQUEUED, TOPIC_EMPTIED
from tests.faults.disk import SimulatedDisk

FOLDER = "/orders.topic"
NOW_NS = 1_700_000_000_000_000_000


class Writer:
    """Publishes with growing ids, run after run."""

    def __init__(self, files: Files | None = None, folder: str = FOLDER, segment_size: int = 1000) -> None:
        self.files = files or cast("Files", SimulatedDisk())
        self.folder = folder
        self.segment_size = segment_size
        self.next_id = 1
        self.log = self.open()

    def open(self, start: LogEnd | None = None) -> TopicLog:
        """The next run, without a clean end of the last one."""
        self.log = TopicLog(self.files, self.folder, segment_size=self.segment_size, start=start)
        return self.log

    def publish(self, count: int = 1, due_ns: int = 0, size: int = 50, filler: bytes = b"\0") -> tuple[bytes, ...]:
        ids = [b"%016x" % each for each in range(self.next_id, self.next_id + count)]
        self.next_id += count
        frames = make_frames(ids, NOW_NS, [filler * size] * count)
        if due_ns:
            self.log.append(frames, self.log.end.seq, due_ns, DEFERRED)
        else:
            self.log.append(frames, self.log.end.seq)
        return frames

    def paths(self, kind: str = "log") -> list[str]:
        return sorted(name for name in self.files.listdir(self.folder) if name.startswith(kind))


@pytest.fixture
def writer() -> Writer:
    return Writer()


def numbers_read(log: TopicLog, seq: int = 0, max_bytes: int = 1 << 18) -> dict[int, bytes]:
    reader = log.reader(seq)
    found: dict[int, bytes] = {}
    while groups := reader.read(max_bytes):
        for group in groups:
            found.update(enumerate(group.frames, group.first_seq))
    return found


# --- Writing and reading ----------------------------------------------------------------------------------------------


def test_what_is_appended_is_read_from_any_number_on(writer):
    frames = [frame for count in (1, 1, 5, 30, 1, 2) for frame in writer.publish(count)]
    assert len(writer.paths()) > 2
    for seq in range(len(frames) + 1):
        assert numbers_read(writer.log, seq, 300) == dict(enumerate(frames[seq:], seq))


def test_a_reader_at_the_end_goes_on_when_more_is_appended(writer):
    reader = writer.log.reader(0)
    assert reader.read() == []
    for _ in range(30):
        frames = writer.publish(3)
        assert [tuple(group.frames) for group in reader.read()] == [frames]
        assert reader.read() == []


def test_publishes_that_follow_one_another_are_read_as_one_group(writer):
    frames = [frame for _ in range(3) for frame in writer.publish()]
    assert writer.log.reader(0).read() == [Group(MESSAGES, 0, 0, frames)]


def test_numbers_may_be_left_out_and_do_not_go_back(writer):
    first = writer.publish()
    frames = make_frames([b"%016x" % 99], NOW_NS, [b""])
    writer.log.append(frames, 10)
    assert numbers_read(writer.log) == {0: first[0], 10: frames[0]}
    assert numbers_read(writer.log, 5) == {10: frames[0]}
    with pytest.raises(ValueError, match="10 again"):
        writer.log.append(frames, 10)


def test_a_reader_sees_neither_deferred_nor_control_groups(writer):
    writer.publish(2, due_ns=NOW_NS)
    writer.log.append([b"archive"], 0, kind=CHANNEL_CREATED)
    (frame,) = writer.publish()
    assert numbers_read(writer.log) == {0: frame}


def test_the_last_messages_are_found_from_the_end_of_the_log(writer):
    frames = [frame for number in range(60) for frame in writer.publish(3, due_ns=NOW_NS if number % 3 == 0 else 0)]
    assert len(writer.paths()) > 10
    writer.log.append([b"archive"], 0, kind=CHANNEL_CREATED)
    groups = writer.log.latest(9)
    assert [frame for group in groups for frame in group.frames][-9:] == frames[-9:]
    assert {group.kind for group in groups} == {MESSAGES, DEFERRED}
    assert len(groups) < 30
    assert [frame for group in writer.open().latest(4) for frame in group.frames][-4:] == frames[-4:]
    for _ in range(9):
        writer.open().append([b"archive"], writer.log.end.seq, kind=CHANNEL_CREATED)
    assert [frame for group in writer.log.latest(4) for frame in group.frames][-4:] == frames[-4:]


def test_the_last_messages_of_a_long_log_are_found_without_reading_it():
    writer = Writer(segment_size=64 << 20)
    assert writer.log.latest(10) == []
    for _ in range(50):
        writer.publish(200, size=500)
    big = writer.publish(4, size=1 << 20)
    small = [frame for _ in range(3) for frame in writer.publish()]
    assert [frame for group in writer.log.latest(3) for frame in group.frames] == [*big[1:], *small]
    assert sum(len(group.frames) for group in writer.log.latest(100)) < 10_000
    assert writer.log.damage.records == 0


def test_deferred_messages_and_control_records_are_not_among_the_bytes_of_waiting_messages():
    writer = Writer(segment_size=1 << 24)
    writer.publish(100, size=100)
    waiting = writer.log.bytes_behind(0)
    assert 10_000 < waiting < 20_000
    for _ in range(50):
        writer.publish(due_ns=NOW_NS, size=10_000)
        writer.log.append([b"archive" * 1000], writer.log.next_seq, kind=CHANNEL_CREATED)
    assert writer.log.bytes_behind(0) == waiting
    writer.publish(100, size=100)
    assert 1.9 * waiting < writer.log.bytes_behind(0) < 2.1 * waiting
    log = writer.open()  # not known before a message is looked up
    assert log.bytes_behind(0) > 500_000
    assert log.fetch([b"%016x" % 1])
    assert 1.9 * waiting < log.bytes_behind(0) < 2.1 * waiting
    log.release(log.next_seq, list)
    assert log.bytes_behind(0) >= 0


def test_an_empty_publish_is_none(writer):
    writer.log.append([], 0)
    assert writer.log.end == LogEnd(0, 0, 0)


def test_a_publish_larger_than_a_segment_or_a_block_is_read_in_parts():
    writer = Writer(segment_size=100_000)
    for count in (1, 3000, 1):
        writer.publish(count, size=200)
    assert list(numbers_read(writer.log)) == list(range(3002))
    for _ in range(2):
        parts = [len(group.frames) for groups in iter(writer.log.reader(500).read, []) for group in groups]
        assert sum(parts) == 2502
        assert max(parts) * 200 < group_reader.BLOCK_SIZE
        writer.open()  # an earlier run wrote it


def test_of_a_large_publish_that_may_not_have_been_written_completely_nothing_is_read():
    writer = Writer(segment_size=1_000_000)
    writer.publish(1)
    frames = writer.publish(3000, size=200, filler=b"x")
    writer.publish(1)
    disk = cast("SimulatedDisk", writer.files)
    (path,) = (f"{FOLDER}/{name}" for name in writer.paths())
    at = disk.content(path).find(frames[1500]) // 512 * 512
    disk.pwrite(disk.open(path, os.O_RDWR), bytes(2048), at)
    writer.open()
    assert list(numbers_read(writer.log)) == [0, 3001]
    assert writer.log.damage.records == 3000


@pytest.mark.parametrize("number", [0, 1500, 2999])
def test_of_a_large_publish_only_the_damaged_message_is_lost(number):
    writer = Writer(segment_size=1_000_000)
    frames = writer.publish(3000, size=200)
    writer.publish(1)
    disk = cast("SimulatedDisk", writer.files)
    (path,) = (f"{FOLDER}/{name}" for name in writer.paths())
    disk.pwrite(disk.open(path, os.O_RDWR), b"damage", disk.content(path).find(frames[number]) + 100)
    assert list(numbers_read(writer.log)) == [each for each in range(3001) if each != number]
    assert writer.log.damage.records == 1


def test_of_a_large_publish_that_was_acknowledged_only_the_messages_in_zeroed_sectors_are_lost():
    writer = Writer(segment_size=1_000_000)
    frames = writer.publish(3000, size=200, filler=b"x")
    disk = cast("SimulatedDisk", writer.files)
    (path,) = (f"{FOLDER}/{name}" for name in writer.paths())
    at = disk.content(path).find(frames[1500]) // 512 * 512
    disk.pwrite(disk.open(path, os.O_RDWR), bytes(2048), at)
    found = numbers_read(writer.log)
    assert 3000 - 12 < len(found) < 3000
    assert writer.log.damage.records == 3000 - len(found)


@pytest.fixture
def wide_writer() -> Writer:
    """A log with large messages: alone, in a publish larger than a block, after small ones, and in another segment."""
    writer = Writer(segment_size=2_000_000)
    for count, size in ((1, 50), (1, 70_000), (25, 40_000), (1, 90_000), (1, 300_000), (3, 50), (2, 40_000)):
        writer.publish(count, size=size, filler=b"x")
    writer.publish(2, due_ns=NOW_NS, size=60_000, filler=b"x")
    writer.publish(40, size=33_000, filler=b"x")
    assert len(writer.paths()) == 2
    return writer


def test_large_messages_are_read_from_any_number_on(wide_writer):
    frames = numbers_read(wide_writer.log, max_bytes=1 << 30)
    assert list(frames) == list(range(74))
    for seq in range(75):
        assert numbers_read(wide_writer.log, seq) == {each: frame for each, frame in frames.items() if each >= seq}
    assert wide_writer.log.damage.records == 0


def test_no_more_large_messages_are_read_at_once_than_asked_for(wide_writer):
    reader = wide_writer.log.reader(2)
    counts = [len(group.frames) for _ in range(8) for group in reader.read(1 << 18)]
    assert counts[:6] == [6, 6, 6, 6, 2, 1]  # 25 of 40,000 bytes, 90,000, and 300,000 bytes


@pytest.mark.parametrize("number", [1, 2, 9, 26, 27, 40, 73])
def test_of_large_messages_only_the_damaged_one_is_lost(wide_writer, number):
    frames = numbers_read(wide_writer.log)
    disk = wide_writer.files
    for path in (f"{FOLDER}/{name}" for name in wide_writer.paths()):
        if (at := disk.content(path).find(frames[number])) >= 0:
            disk.pwrite(disk.open(path, os.O_RDWR), b"damage", at + 1000)
    found = numbers_read(wide_writer.log)
    assert found == {each: frame for each, frame in frames.items() if each != number}
    assert wide_writer.log.damage.records == 1


def test_large_messages_survive_failed_reads(wide_writer):
    frames = numbers_read(wide_writer.log)
    disk, failures = wide_writer.files, Random(1)
    read = disk.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        if failures.random() < 0.3:
            raise OSError(errno.EIO, "cannot read")
        return cast("bytes", read(fd, size, offset))

    disk.pread = pread
    for seq in (0, 5):
        reader = wide_writer.log.reader(seq)
        found: list[tuple[int, bytes]] = []
        while reader.seq < 74:
            with suppress(OSError):
                for group in reader.read():
                    found += enumerate(group.frames, group.first_seq)
        assert found == list(frames.items())[seq:]
    assert wide_writer.log.damage.records == 0


# --- The next run -----------------------------------------------------------------------------------------------------


def test_every_kind_of_group_is_recovered_in_order(writer):
    expected = [
        Group(MESSAGES, 0, 0, list(writer.publish(3))),
        Group(DEFERRED, 0, NOW_NS + 5, list(writer.publish(2, due_ns=NOW_NS + 5))),
    ]
    writer.log.append([b"archive"], 3, kind=CHANNEL_CREATED)
    writer.log.append([b""], 3, kind=TOPIC_EMPTIED)
    expected[1] = expected[1]._replace(first_seq=3)
    expected += [Group(CHANNEL_CREATED, 3, 2, [b"archive"]), Group(TOPIC_EMPTIED, 3, 2, [b""])]
    expected.append(Group(MESSAGES, 3, 2, list(writer.publish(20))))
    assert [group._replace(place=0) for group in writer.open().recovered()] == expected
    assert writer.log.end.seq == 23


def test_a_control_group_that_is_larger_than_a_block_is_read_whole(writer):
    writer.segment_size = 1 << 20
    writer.open()
    frame = b"\7archive" + bytes(300_000)
    writer.log.append([frame], 0, kind=REQUEUED)
    assert [group.frames for group in writer.open().recovered()] == [[frame]]


def test_recovery_begins_where_the_last_checkpoint_ended(writer):
    ends = [writer.log.end]
    groups = []
    for _ in range(15):
        groups.append(list(writer.publish(2)))
        ends.append(writer.log.end)
    for number, end in enumerate(ends):
        assert [group.frames for group in writer.open(end).recovered()] == groups[number:]
        assert writer.log.end.seq == 30
        assert numbers_read(writer.log, 7) == dict(list(enumerate(itertools.chain(*groups)))[7:])


def test_numbers_go_on_after_a_checkpoint_though_nothing_was_logged(writer):
    assert writer.open(LogEnd(0, 0, 12)).end.seq == 12
    writer.publish()
    assert writer.open(writer.log.end).end.seq == 13


def test_a_run_begins_a_file_of_its_own_and_only_when_it_writes(writer):
    writer.publish()
    writer.open()
    writer.open()
    assert len(writer.paths()) == 1
    writer.publish()
    assert len(writer.paths()) == 2
    assert list(numbers_read(writer.log)) == [0, 1]


def test_what_was_reserved_is_given_back_at_the_end_and_after_a_crash():
    writer = Writer(segment_size=1 << 20)
    writer.publish(10)
    path = f"{FOLDER}/{writer.paths()[0]}"
    assert writer.files.size(path) == 1 << 16
    writer.open()
    assert writer.files.size(path) == writer.log.end.offset == writer.log.disk_bytes
    writer.publish()
    writer.log.close()
    assert sum(writer.files.size(f"{FOLDER}/{name}") for name in writer.paths()) == writer.log.disk_bytes


def test_a_failed_write_that_could_not_be_undone_is_skipped(writer):
    writer.publish()
    disk = cast("SimulatedDisk", writer.files)
    path = f"{FOLDER}/{writer.paths()[0]}"
    end = writer.log.end.offset
    writer.publish()
    leftover = disk.content(path)
    disk.put(path, leftover[:end])
    writer.open()
    (acknowledged,) = writer.publish()
    disk.put(path, leftover)
    assert numbers_read(writer.open())[1] == acknowledged
    assert [group.first_seq for group in writer.log.recovered()] == [0, 1]


# --- By id ------------------------------------------------------------------------------------------------------------


def test_messages_are_fetched_by_their_ids_wherever_they_are(writer):
    frames = [frame for count in (1, 30, 2, 2) for frame in writer.publish(count)]
    frames += writer.publish(3, due_ns=NOW_NS)
    writer.log.append([b"archive"], 0, kind=CHANNEL_CREATED)
    writer.open()
    frames += writer.publish(2)
    kept = make_frames([b"f" * 16], NOW_NS, [b"kept"])
    writer.log.keep(kept)
    wanted = {message_id(frame): frame for frame in [*frames, *kept]}
    assert writer.log.fetch(wanted) == wanted
    assert writer.log.fetch(list(wanted)[3:5]) == dict(list(wanted.items())[3:5])
    assert writer.log.fetch([]) == {}
    assert writer.open().fetch(wanted) == wanted


def test_a_message_that_is_nowhere_is_left_out_and_counted(writer):
    writer.publish()
    assert writer.log.fetch([b"%016x" % 77]) == {}
    assert writer.log.damage.records == 1


def in_steps(read):
    """What `read` returns in the end, and how many steps it took before that."""
    steps = 0
    while True:
        try:
            return read(), steps
        except BlockingIOError:
            steps += 1


@pytest.fixture
def large_writer() -> Writer:
    """A log with several steps of indexing in its first segment, which an earlier run wrote."""
    writer = Writer(segment_size=1 << 20)
    for number in range(1500):
        writer.publish(due_ns=NOW_NS if number % 3 else 0)
    writer.open()
    return writer


def test_the_index_of_an_earlier_runs_segment_is_built_in_steps(large_writer):
    log = large_writer.log
    expected = log.fetch([b"%016x" % 1, b"%016x" % 1500])
    assert len(expected) == 2
    log = large_writer.open()
    log.in_steps = True
    found, steps = in_steps(lambda: log.fetch(list(expected)))
    assert (found, steps) == (expected, 2)
    assert in_steps(lambda: log.fetch(list(expected))) == (expected, 0)
    assert log.segments[0].index.count == 1500
    assert log.damage.records == 0


def test_a_number_is_sought_in_steps_behind_thousands_of_deferred_messages():
    writer = Writer(segment_size=8 << 20)
    writer.publish()
    for _ in range(3000):
        writer.publish(due_ns=NOW_NS)
    writer.publish()
    log = writer.open()
    [segment] = log.segments
    with pytest.raises(BlockingIOError):
        group_reader.seek_number(segment, 1, log.damage, in_steps=True)
    (offset, first), _ = in_steps(lambda: group_reader.seek_number(segment, 1, log.damage, in_steps=True))
    assert first <= 1
    assert segment.index is not None
    assert offset <= segment.end
    assert sorted(numbers_read(log)) == [0, 1]


def test_indexes_of_old_segments_are_not_kept_in_memory():
    writer = Writer(segment_size=1000)
    while len(writer.log.segments) < 20:
        writer.publish()
    log = writer.log
    frames = numbers_read(log)
    old = log.segments[:-8]
    log.begin_checkpoint()
    assert not any(segment.index for segment in old)
    assert all(segment.index for segment in log.segments[-8:])
    wanted = message_id(frames[0])
    assert log.fetch([wanted]) == {wanted: frames[0]}
    log.begin_checkpoint()
    assert old[0].index, "it was used since the last checkpoint"
    assert numbers_read(log, 1) == {seq: frame for seq, frame in frames.items() if seq}
    log.begin_checkpoint()
    assert not any(segment.index for segment in old)
    assert log.fetch([wanted]) == {wanted: frames[0]}
    assert log.damage.records == 0


def test_messages_of_an_earlier_run_are_found_by_number(large_writer):
    log = large_writer.open()
    frames = numbers_read(log)
    assert len(frames) == 500
    for seq in range(0, 500, 7):
        group = log.reader(seq).read(1)[0]
        assert (group.first_seq, group.frames[0]) == (seq, frames[seq])


def test_an_index_is_right_although_reads_failed_while_it_was_built(large_writer):
    expected = large_writer.log.fetch([b"%016x" % 1, b"%016x" % 1500])
    log = large_writer.open()
    log.in_steps = True
    disk = large_writer.files
    read, failures = disk.pread, Random(1)

    def pread(fd: int, size: int, offset: int) -> bytes:
        if failures.random() < 0.7:
            raise OSError(errno.EIO, "cannot read")
        return cast("bytes", read(fd, size, offset))

    disk.pread = pread
    for _ in range(1000):
        with suppress(OSError):
            found = log.fetch(list(expected))
            break
    assert found == expected
    assert log.segments[0].index.count == 1500
    assert log.damage.records == 0


def test_a_reader_in_steps_finds_every_message(large_writer):
    expected = numbers_read(large_writer.log, 100)
    assert len(expected) == 400
    log = large_writer.open()
    log.in_steps = True
    reader = log.reader(100)
    found: dict[int, bytes] = {}
    while True:
        groups, steps = in_steps(lambda: reader.read(150))
        if not groups:
            break
        found.update((group.first_seq + at, frame) for group in groups for at, frame in enumerate(group.frames))
        assert steps > 0, "a block of deferred messages is between any two others"
    assert found == expected


@pytest.mark.interpreted
def test_a_long_search_past_damage_is_made_in_steps(large_writer, monkeypatch):
    """The reader, and the fetches that need the index, take turns; each goes on where the other one stopped."""
    log = large_writer.open()
    path = f"{FOLDER}/{large_writer.paths()[0]}"
    content = bytearray(large_writer.files.content(path))
    begin, end = len(content) // 4, len(content) // 2
    content[begin:end] = b"x" * (end - begin)  # the holes of a file are skipped
    large_writer.files.put(path, bytes(content))
    undisturbed = large_writer.open()
    expected = {group.first_seq: group.frames for group in undisturbed.recovered() if group.kind == MESSAGES}
    lost = undisturbed.damage.records
    assert lost > 100
    monkeypatch.setattr(group_reader, "_SEARCHED_BYTES", (end - begin) // 8)
    monkeypatch.setattr(group_reader, "BLOCK_SIZE", 512)
    log = large_writer.open()
    log.in_steps = True
    reader, steps, indexed = log.reader(0), 0, False
    found: dict[int, Sequence[bytes]] = {}
    while True:
        try:
            if not indexed:
                log.fetch([b"%016x" % 1500])
                indexed = True
        except BlockingIOError:
            steps += 1
        try:
            if not (groups := reader.read()):
                break
            found |= {group.first_seq: group.frames for group in groups}
        except BlockingIOError:
            steps += 1
    assert indexed
    assert steps >= 7, "the search that they share takes at least seven steps"
    assert [frame for seq in sorted(found) for frame in found[seq]] == [
        frame for seq in sorted(expected) for frame in expected[seq]
    ]
    assert len(log.segments[0].searches.reached) <= 2


@pytest.mark.interpreted
def test_a_fetch_with_several_long_searches_past_damage_makes_each_once(large_writer, monkeypatch):
    """Each step begins the whole fetch again, but not the searches."""
    path = f"{FOLDER}/{large_writer.paths()[0]}"
    content = bytearray(large_writer.files.content(path))
    part = len(content) // 16
    for begin in range(part, len(content) - part, 3 * part):
        content[begin : begin + 2 * part] = b"x" * (2 * part)
    large_writer.files.put(path, bytes(content))
    ids = [b"%016x" % number for number in range(0, 3000, 3)]
    expected = large_writer.open().fetch(ids)
    assert 100 < len(expected) < len(ids) - 100
    monkeypatch.setattr(group_reader, "_SEARCHED_BYTES", part // 4)
    monkeypatch.setattr(group_reader, "BLOCK_SIZE", 512)
    log = large_writer.open()
    log.in_steps = True
    found, steps = None, 0
    while found is None:
        try:
            found = log.fetch(ids)
        except BlockingIOError:
            steps += 1
            assert steps < 200, "it does not end"
    assert found == expected
    assert steps > 20


# --- Release ----------------------------------------------------------------------------------------------------------


def test_files_below_a_number_are_deleted(writer):
    for _ in range(40):
        writer.publish()
    before = len(writer.paths())
    writer.log.release(20, lambda: ())
    assert len(writer.paths()) < before
    assert list(numbers_read(writer.log, 20)) == list(range(20, 40))
    assert 0 < writer.log.oldest <= 20
    writer.log.release(40, lambda: ())
    assert len(writer.paths()) == 1, "the last one is being written"


def test_others_run_between_two_deletions_and_may_close_the_log(writer):
    for _ in range(40):
        writer.publish()
    left = []

    def pause() -> None:
        left.append(len(writer.paths()))
        if len(left) == 4:
            writer.log.close()

    writer.log.release(40, lambda: (), pause=pause)
    sizes = [writer.files.size(f"{FOLDER}/{path}") for path in writer.paths()]
    assert len(left) == 4, "after the log was closed nothing is deleted"
    assert sizes.count(FIRST_GROUP) == 4, "the released ones are only a header"
    assert len(sizes) == left[0]


def test_unfinished_messages_survive_their_file_in_this_run_and_the_next(writer):
    frames = {message_id(frame): frame for _ in range(40) for frame in writer.publish()}
    deferred = {message_id(frame): frame for frame in writer.publish(2, due_ns=NOW_NS)}
    for _ in range(20):
        writer.publish()
    unfinished = dict([*list(frames.items())[::11], *deferred.items()])
    writer.log.release(60, lambda: unfinished)
    assert len(writer.paths()) < 4
    assert writer.log.fetch(unfinished) == unfinished
    assert writer.open(writer.log.end).fetch(unfinished) == unfinished
    assert writer.log.damage.records == 0


def test_a_release_pauses_while_it_reads_a_file_of_an_earlier_run(large_writer):
    frames = [large_writer.publish(1000, size=500)[0] for _ in range(3)]
    unfinished = [b"%016x" % 7, b"%016x" % 1400]
    pauses = []
    log = large_writer.log
    log.release(log.segments[-1].first_seq, lambda: unfinished, pause=lambda: pauses.append(1))
    assert log.segments[0].number > 1
    assert len(pauses) >= 4, "two in the index, and one behind each part of the file"
    assert log.fetch(unfinished).keys() == set(unfinished)
    assert log.fetch([message_id(frames[-1])])
    assert log.damage.records == 0


def test_a_release_ends_when_the_log_is_closed_in_a_pause(large_writer, caplog):
    large_writer.publish(1000, size=500)
    large_writer.publish(1000, size=500)
    log = large_writer.log
    before = large_writer.paths()
    log.release(log.end.seq, lambda: [b"%016x" % 7], pause=log.close)
    assert large_writer.paths() == before
    assert not caplog.records


def test_a_file_full_of_unfinished_messages_stays_and_others_around_it_go(writer):
    frames = [message_id(frame) for _ in range(40) for frame in writer.publish()]
    files = len(writer.paths())
    writer.log.release(40, lambda: frames[:3])
    assert len(writer.paths("kept")) <= 1
    assert list(numbers_read(writer.log, writer.log.end.seq)) == []
    writer.open()
    assert set(writer.log.fetch(frames[:3])) == set(frames[:3])
    list(writer.log.recovered())
    assert writer.log.damage.records == 0, "what was released is not lost"
    assert writer.log.disk_bytes < files * 300


def test_nothing_is_deleted_when_its_copy_may_not_be_durable(writer):
    frames = {message_id(frame): frame for _ in range(40) for frame in writer.publish()}
    unfinished = dict(list(frames.items())[::11])
    before = writer.paths()

    def fails():
        raise OSError("no sync")

    writer.log.release(40, lambda: unfinished, sync=fails)
    assert writer.paths() == before
    assert writer.log.fetch(frames) == frames


def test_what_is_written_while_the_copies_are_synced_stays(writer):
    frames = {message_id(frame): frame for _ in range(40) for frame in writer.publish()}
    unfinished = dict(list(frames.items())[::11])

    def syncs():
        later = writer.publish(3)
        writer.log.keep(later)
        unfinished.update((message_id(frame), frame) for frame in later)
        writer.log.sync()

    for _ in range(20):
        writer.log.release(writer.log.end.seq, unfinished.copy, sync=syncs)
        for _ in range(5):
            writer.publish()
        assert writer.log.fetch(unfinished) == unfinished
    assert writer.log.damage.records == 0


def test_of_many_files_some_are_copied_and_gone_before_the_next_are_copied(writer):
    frames = [message_id(frame) for _ in range(400) for frame in writer.publish()]
    unfinished = frames[::11]
    files = len(writer.paths())
    left: list[int] = []

    def syncs():
        left.append(len(writer.paths()) + len(writer.paths("kept")))
        writer.log.sync()

    writer.log.release(400, lambda: unfinished, sync=syncs)
    assert len(left) > 3
    assert max(left) < 1.5 * files
    assert left[-1] < files / 2


def test_a_log_that_ends_while_the_copies_are_synced_leaves_the_next_of_its_name_alone(writer):
    frames = [message_id(frame) for _ in range(40) for frame in writer.publish()]
    old = writer.log
    others: list[bytes] = []

    def syncs():
        old.delete()
        writer.open()
        others.extend(frame for _ in range(40) for frame in writer.publish())

    old.release(40, lambda: frames[::11], sync=syncs)
    assert list(numbers_read(writer.log).values()) == others


def test_nothing_from_the_checkpoints_file_on_is_released(writer):
    for _ in range(10):
        writer.publish()
    checkpoint = writer.log.end
    deferred = [message_id(frame) for _ in range(20) for frame in writer.publish(1, due_ns=NOW_NS)]
    writer.log.release(10, lambda: deferred, checkpoint)
    recovered = [message_id(frame) for group in writer.open(checkpoint).recovered() for frame in group.frames]
    assert recovered == deferred


def test_unfinished_is_only_asked_for_when_there_is_something_to_gain(writer):
    asked = []

    def unfinished():
        asked.append(1)
        return ()

    writer.publish()
    for _ in range(100):
        writer.log.release(1, unfinished)
    assert not asked


def test_a_reader_survives_the_release_of_what_it_has_read(writer):
    for _ in range(20):
        writer.publish()
    reader = writer.log.reader(0)
    reader.read(300)
    seq = reader.seq
    writer.log.release(seq, lambda: ())
    found = []
    while groups := reader.read(300):
        found += [number for group in groups for number in range(group.first_seq, group.first_seq + len(group.frames))]
    assert found == list(range(seq, 20))


# --- Files ------------------------------------------------------------------------------------------------------------


def test_a_deleted_log_is_gone(tmp_path):
    writer = Writer(OsFiles(), str(tmp_path / "orders.topic"))
    writer.publish(30)
    writer.log.delete()
    assert os.listdir(tmp_path) == []


def test_a_log_that_was_deleted_durably_does_not_come_back():
    for seed in range(20):
        writer = Writer()
        writer.publish()
        writer.log.sync()
        writer.log.delete(durably=True)
        assert cast("SimulatedDisk", writer.files).power_cut(Random(seed)).listdir("/") in ([], ["orders.deleted-1"])


def test_the_files_are_private_and_other_files_are_left_alone(tmp_path):
    folder = tmp_path / "orders.topic"
    writer = Writer(OsFiles(), str(folder))
    writer.publish(3)
    (folder / "checkpoint").write_bytes(b"mine")
    (folder / "log.7").write_bytes(b"not ours")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "log.00000000000000000001").stat().st_mode & 0o777 == 0o600
    writer.log.close()
    writer.open()
    assert list(numbers_read(writer.log)) == [0, 1, 2]
    assert writer.log.damage.records == 0
    writer.log.close()


def test_many_logs_share_few_descriptors():
    disk = SimulatedDisk()
    descriptors = Descriptors(cast("Files", disk), limit=4, reserve=2)
    logs = [TopicLog(cast("Files", disk), f"/{n}.topic", descriptors=descriptors) for n in range(20)]
    frames = make_frames([b"%016x" % 1], NOW_NS, [b"x"])
    for seq in range(3):
        for log in logs:
            log.append(frames, seq)
            assert len(disk.open_files) <= 6
    assert all(len(numbers_read(log)) == 3 for log in logs)
    for log in logs:
        log.sync()
        log.close()
    assert len(disk.open_files) == 2, "the reserve is not one log's to close"


def test_a_closed_log_of_its_own_leaves_no_descriptor_open(writer):
    for _ in range(20):
        writer.publish()
    writer.log.sync()
    writer.publish()
    writer.log.close()
    assert not cast("SimulatedDisk", writer.files).open_files


class WritingDisk(SimulatedDisk):
    """Notes what is written where."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[int, int]] = []  # offset, size

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self.writes.append((offset, len(data)))
        return super().pwrite(fd, data, offset)


def test_what_an_append_would_do_first_is_done_later():
    disk = WritingDisk()
    asked: list[Callable[[], None]] = []
    log = TopicLog(cast("Files", disk), FOLDER, later=asked.append)
    frames = make_frames([b"%016x" % 1], NOW_NS, [bytes(1000)])
    for seq in range(1000):
        before = len(disk.writes)
        log.append(frames, seq)
        assert seq < 300 or len(disk.writes) == before + 1, "nothing is done ahead before there is much"
        while asked:
            asked.pop()()
    assert sum(size > 2000 for _, size in disk.writes) > 5, "zeros were written"
    log.append(make_frames([b"%016x" % 2], NOW_NS, [bytes(100_000)]), 1000)
    assert not asked, "a big group is written as quickly as zeros before it"
    while not asked:
        log.append(frames, log.end.seq)
    log.close()
    written = len(disk.writes)
    asked.pop()()
    assert len(disk.writes) == written
    assert not disk.open_files, "a file that was closed stays closed"


# --- Sorting ids ------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 30_000), max_size=50), st.sampled_from((1, 7, 4096)))
def test_ids_are_sorted_without_duplicates(numbers, repeats):
    ids = [b"%016x" % number for number in numbers] * repeats
    assert sorted_ids(iter(ids), lambda: None) == sorted(set(ids))


def test_sorting_many_ids_pauses_every_few_thousand():
    pauses: list[int] = []
    ids = [b"%016x" % (number * 7919 % 100_000) for number in range(100_000)]
    assert sorted_ids(ids, lambda: pauses.append(1)) == sorted(ids)
    assert len(pauses) > 40


def test_no_step_of_sorting_is_most_of_the_work():
    """Compiled, a generator expression is a list: merging 200,000 ids was one piece then."""
    ids = [b"%016x" % (number * 7919 % 200_000) for number in range(200_000)]
    moments = [time.thread_time()]
    sorted_ids(iter(ids), lambda: moments.append(time.thread_time()))
    moments.append(time.thread_time())
    assert max(end - begin for begin, end in itertools.pairwise(moments)) < (moments[-1] - moments[0]) / 4


def test_a_few_ids_are_sorted_without_a_pause():
    def pause() -> None:
        raise AssertionError("nothing to wait for")

    assert sorted_ids([b"2", b"1", b"2"], pause) == [b"1", b"2"]


# --- Everything at once -----------------------------------------------------------------------------------------------

steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 12)),
        st.tuples(st.just("defer"), st.integers(1, 4)),
        st.tuples(st.just("keep"), st.integers(1, 4)),
        st.tuples(st.just("crash"), st.just(0)),
        st.tuples(st.just("checkpoint and release"), st.integers(0, 100)),
    ),
    max_size=40,
)


@settings(max_examples=100)
@given(steps)
def test_whatever_happens_in_whatever_order_nothing_unfinished_is_lost(steps):
    writer = Writer(segment_size=600)
    start: LogEnd | None = None
    numbered: dict[int, bytes] = {}
    others: dict[bytes, bytes] = {}
    released = 0
    for step, amount in steps:
        seq = writer.log.end.seq
        if step == "publish":
            numbered.update(enumerate(writer.publish(amount), seq))
        elif step == "defer":
            others.update({message_id(frame): frame for frame in writer.publish(amount, due_ns=NOW_NS)})
        elif step == "keep":
            kept = make_frames([b"%016x" % (writer.next_id + n) for n in range(amount)], NOW_NS, [b"k"] * amount)
            writer.next_id += amount
            writer.log.keep(kept)
            others.update({message_id(frame): frame for frame in kept})
        elif step == "crash":
            writer.open(start)
        else:
            start = writer.log.end
            released = max(released, seq * amount // 100)
            others = dict(list(others.items())[amount % 3 :])
            writer.log.release(released, others.copy, start)
        assert {number: frame for number, frame in numbered.items() if number >= released} == numbers_read(
            writer.log, released
        )
        assert writer.log.fetch(others) == others
        assert writer.log.damage.records == 0


def test_a_file_with_a_number_that_no_checkpoint_can_hold_is_none_of_the_log(writer):
    writer.publish()
    writer.files.close(writer.files.open(f"{FOLDER}/log.{1 << 63:020}", os.O_WRONLY | os.O_CREAT))
    writer.open()
    assert [segment.number for segment in writer.log.segments] == [1]
    writer.publish()
    assert writer.log.end.segment < 1 << 63
