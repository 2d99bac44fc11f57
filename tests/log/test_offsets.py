"""Offsets: every message of a log has one, and is found by it, by its time and by its id."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, cast

import pytest
from google_crc32c import value as crc32c

from nsq_compat.log import group_reader, reading
from nsq_compat.log.files import Files
from nsq_compat.log.group_reader import skip_control_records
from nsq_compat.log.offsets import (
    OffsetReader,
    Retention,
    id_at,
    later_than_offset,
    number_at,
    offset_at,
    offset_of_number,
    offsets_of,
    oldest,
    published_since,
    retained_from,
)
from nsq_compat.log.segment import FIRST_GROUP, HEADER_SIZE, GroupHeader, decode_header, encode_group
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol.message import FrameFactory, make_frames, message_id
from nsq_compat.protocol.storage_schema import CHANNEL_CREATED, DEFERRED, GROUP_MAGIC, MAGIC_PREFIX, MESSAGES, REQUEUED
from tests.faults.disk import SimulatedDisk
from tests.log.test_migration import as_version_2
from tests.log.test_topic_log import FOLDER, NOW_NS
from tests.log.test_topic_log import in_steps as steps_of

TICK = 1 << 20


class History:
    """A log with messages of all kinds; `frames` has each message at its offset."""

    def __init__(self, seed: int = 1, count: int = 300, segment_size: int = 30_000) -> None:
        self.disk = SimulatedDisk()
        self.segment_size = segment_size
        self.frames: list[bytes] = []
        self.times: list[int] = []
        self.seqs: dict[int, int] = {}
        self.seq = 0
        self.now_ns = NOW_NS
        self._factory = FrameFactory(1)
        self._random = Random(seed)
        self.log = self.open()
        for _ in range(count):
            self.publish()

    def open(self) -> TopicLog:
        self.log = TopicLog(cast("Files", self.disk), FOLDER, segment_size=self.segment_size)
        return self.log

    def publish(self) -> None:
        random = self._random
        self.now_ns += random.choice([0, 1000, TICK // 2, 3 * TICK])
        bodies = [random.randbytes(random.choice([0, 10, 200, 5000])) for _ in range(random.choice([1, 1, 1, 2, 30]))]
        frames = self._factory.make(bodies, self.now_ns)[0]
        if random.random() < 0.3:
            self.log.append(frames, self.seq, self.now_ns + 10**9, DEFERRED)
        else:
            self.log.append(frames, self.seq)
            self.seqs.update(enumerate(range(self.seq, self.seq + len(frames)), len(self.frames)))
            self.seq += len(frames)
        if random.random() < 0.1:
            self.log.append([b"archive"], self.seq, kind=CHANNEL_CREATED)
        self.frames += frames
        self.times += [self.now_ns] * len(frames)


@pytest.fixture(params=[1, 2, 3])
def history(request) -> History:
    return History(request.param)


def everything(log: TopicLog, offset: int = 0, max_bytes: int = 1 << 16) -> dict[int, bytes]:
    reader = OffsetReader(log, offset)
    found: dict[int, bytes] = {}
    while groups := reader.read(max_bytes):
        for group in groups:
            found.update(enumerate(group.frames, group.offset))
    return found


def as_written(log: TopicLog, offset: int, max_bytes: int) -> tuple[dict[int, int], bytes]:
    """The parts that `read_frames` returns, and their bytes."""
    reader = OffsetReader(log, offset)
    parts: dict[int, int] = {}
    joined = b""
    while frames := reader.read_frames(max_bytes):
        parts[frames.offset] = frames.next_offset
        joined += b"".join(frames.pieces)
    return parts, joined


@pytest.mark.parametrize("reopened", [False, True])
def test_every_message_is_read_from_any_offset(history, reopened):
    log = history.open() if reopened else history.log
    assert len(log.segments) > 5
    assert log.next_seq + log.deferred_count == len(history.frames)
    for offset in (0, 1, 2, 77, 500, len(history.frames) - 1, len(history.frames)):
        assert everything(log, offset) == dict(list(enumerate(history.frames))[offset:])
        for max_bytes in (100, 1 << 16):
            parts, joined = as_written(log, offset, max_bytes)
            assert joined == b"".join(history.frames[offset:])
            assert all(end in parts or end == len(history.frames) for end in parts.values())


def test_a_reader_at_the_end_goes_on_when_more_is_published(history):
    reader, parts = OffsetReader(history.log, len(history.frames)), OffsetReader(history.log, len(history.frames))
    for _ in range(60):
        before = len(history.frames)
        assert reader.read() == []
        assert parts.read_frames(1 << 16) is None
        history.publish()
        assert [frame for group in reader.read() for frame in group.frames] == history.frames[before:]
        frames = parts.read_frames(1 << 16)
        assert frames is not None
        assert (frames.offset, frames.next_offset) == (before, len(history.frames))


def test_the_first_message_at_or_after_a_time_is_found(history):
    end = len(history.frames)
    for log in (history.log, history.open()):
        for time_ns in {each + delta for each in history.times for delta in (-1, 0, 1, TICK)}:
            expected = next((offset for offset, each in enumerate(history.times) if each >= time_ns), end)
            assert offset_at(log, published_since(time_ns), end) == expected


def test_a_clock_that_is_set_back_does_not_hide_messages():
    history = History()
    set_back = len(history.frames)
    latest = history.now_ns
    history.now_ns -= 3600 * 10**9
    for _ in range(50):
        history.publish()
    found = offset_at(history.log, published_since(latest + 1), len(history.frames))
    assert found >= set_back - 1
    assert offset_at(history.log, published_since(NOW_NS), 0) == 0


def test_offsets_are_found_by_id_and_numbers_by_offset(history):
    end = len(history.frames)
    log = history.open()
    wanted = Random(4).sample(range(end), 60)
    assert offsets_of(log, [message_id(history.frames[each]) for each in wanted]) == {
        message_id(history.frames[each]): each for each in wanted
    }
    assert offsets_of(log, [b"0" * 16, b"f" * 16]) == {}
    for offset in wanted:
        expected = next((seq for each, seq in sorted(history.seqs.items()) if each >= offset), log.next_seq)
        assert number_at(log, offset, log.next_seq) == expected
    for offset, seq in list(history.seqs.items())[::7]:
        assert offset_of_number(log, seq, end) == offset
    assert offset_of_number(log, log.next_seq, end) == end


def test_the_search_behind_many_deferred_messages_is_done_in_steps():
    log, factory, count = History(count=0, segment_size=1 << 24).log, FrameFactory(7), 20_000
    log.append(factory.make([b"first"], NOW_NS)[0], 0)
    for _ in range(count):
        log.append(factory.make([b"later"], NOW_NS)[0], 1, NOW_NS + 10**12, DEFERRED)
    log.append(factory.make([b"last"], NOW_NS)[0], 1)
    log.in_steps = True
    steps = 0
    found = None
    while found is None:
        try:
            found = number_at(log, 1, log.next_seq)
        except BlockingIOError:
            steps += 1
            assert number_at(log, 0, log.next_seq) == 0  # others do not have it begin again
    assert found == 1
    assert 1 < steps < 40
    assert not log.searches
    for number in range(64):
        with pytest.raises(BlockingIOError):
            number_at(log, number + 2, log.next_seq)
    assert number_at(log, 100, log.next_seq) == 1
    assert len(log.searches) == 64


RECORDS = 30_000


@pytest.mark.interpreted
@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("files", ["m r m", "mrm", "mr", "rm", "m mrm rm", "mr r"])
def test_many_control_records_are_passed_over_in_steps_and_once(monkeypatch, files, reopened):
    """`m` is a message, `r` the records of a consumer that requeues messages again and again."""
    log, factory, frames = History(count=0, segment_size=1 << 24).log, FrameFactory(7), list[bytes]()
    for file in files.split():
        if log.segments:
            log._begin_segment()
        for each in file:
            if each == "m":
                frames += factory.make([b"x"], NOW_NS + len(frames) * 10**9)[0]
                log.append(frames[-1:], len(frames) - 1)
            else:
                for _ in range(RECORDS):
                    log.append([b"\1c" + bytes(26)], len(frames), kind=REQUEUED)
    if reopened:
        log.close()
        log = TopicLog(log._files, FOLDER)
    log.in_steps = True
    ids, end = list(map(message_id, frames)), len(frames)
    within = b"%016x" % (int(ids[0], 16) + 1)  # of no message
    searches: dict[str, Callable[[], object]] = {
        "oldest": lambda: oldest(log) is not None,
        "id": lambda: (id_at(log, end - 1), id_at(log, end)) == (ids[-1], b""),
        "offset": lambda: offsets_of(log, ids) == dict(zip(ids, range(end), strict=True)),
        "unknown id": lambda: offsets_of(log, [within, b"f" * 16]) == {},
        "time": lambda: offset_at(log, published_since(NOW_NS + 10**9), end) == min(1, end),
        "number": lambda: [number_at(log, each, end) for each in range(end)] == list(range(end)),
        "offset of number": lambda: offset_of_number(log, end - 1, end) == end - 1,
        "fetch": lambda: log.fetch(ids) == dict(zip(ids, frames, strict=True)),
        "unknown fetch": lambda: log.fetch([within, b"f" * 16]) == {},
        "numbered": lambda: log.numbered([*ids, within, b"f" * 16]) == dict(enumerate(frames)),
        "locate": lambda: log.locate(ids).keys() == set(ids),
        "latest": lambda: not files.endswith("m") or log.latest(1)[-1].frames == frames[-1:],
        "retained": lambda: retained_from(log, Retention(0, None), NOW_NS) == len(files.split()),
    }
    examined = 0

    def counting(decode: Callable[..., Any]) -> Callable[..., Any]:
        def decode_and_count(*args: Any) -> Any:
            nonlocal examined
            examined += 1
            return decode(*args)

        return decode_and_count

    for module, name in [
        (group_reader, "decode_header"), (group_reader, "unpack_header"), (reading, "unpack_header"),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, counting(getattr(module, name)))
    all_steps = 0
    for is_again in (False, True):
        for name, search in searches.items():
            steps, found = 0, None
            while found is None:
                examined = 0
                try:
                    found = search()
                except BlockingIOError:
                    steps += 1
                assert examined < RECORDS // 2, f"{name}: one step examines more"
            assert found, name
            assert not (is_again and steps), f"{name} is not remembered"
            all_steps += steps
    assert all_steps >= 4, "otherwise the test would prove nothing"


@pytest.mark.interpreted
@pytest.mark.parametrize("name", ["c", "channel", "c" * 30])
def test_readers_that_begin_anywhere_in_many_control_records_come_to_their_end(name):
    """Each passes some of them, in steps that end within what another one has passed."""
    log = History(count=0, segment_size=1 << 24).log
    places = [FIRST_GROUP]
    for _ in range(RECORDS):
        log.append([name.encode()], 0, kind=CHANNEL_CREATED)
        places.append(log.segments[0].end)
    segment, random = log.segments[0], Random(4)
    for begin in [places[12_000], places[1], *random.sample(places, 40), FIRST_GROUP]:
        reached, steps = 0, 0
        while not reached:
            try:
                reached = skip_control_records(segment, begin, in_steps=True)
            except BlockingIOError:
                steps += 1
            assert steps < 20, "it goes on without an end"
        assert reached == segment.end


def test_released_segments_are_not_part_of_it(history):
    log, end = history.log, len(history.frames)
    log.release(history.seq // 2, list, sync=log.sync)
    first = oldest(log)
    assert first is not None
    assert 0 < first.offset < end
    assert everything(log) == dict(list(enumerate(history.frames))[first.offset :])
    assert offset_at(log, later_than_offset(-1), end) == first.offset
    assert offset_at(log, published_since(0), end) == first.offset


def test_damage_is_a_gap_that_is_counted_and_nothing_else_is_lost(history):
    random = Random(9)
    segment = history.log.segments[2]
    content = bytearray(history.disk.content(segment.path))
    place = random.randrange(len(content) // 3, len(content) // 2)
    content[place : place + 50] = b"\xa5" * 50
    history.log.close()
    history.disk.put(segment.path, bytes(content))
    log = history.open()
    found = everything(log)
    lost = set(range(len(history.frames))) - set(found)
    assert lost
    assert all(history.frames[offset] == frame for offset, frame in found.items())
    assert log.damage.records == len({each for each in lost if each in history.seqs})
    parts, joined = as_written(history.open(), 0, 1 << 14)
    assert joined == b"".join(found.values())
    covered = {offset for begin, end in parts.items() for offset in range(begin, end)}
    assert covered == set(found)


def test_messages_behind_the_end_of_a_file_that_was_cut_off_are_a_gap_that_is_logged_once(history, caplog):
    cut = history.log.segments[1]
    content = history.disk.content(cut.path)
    history.log.close()
    history.disk.put(cut.path, content[: len(content) // 2])
    log = history.open()
    for _ in range(2):
        lost = set(range(len(history.frames))) - set(everything(log))
    (warned,) = (message for message in caplog.messages if "no messages from offset" in message)
    assert warned.startswith(f"LOG({cut.path}): ")
    begin, end = map(int, warned.split("offset ")[1].split(",")[0].split(" to "))
    assert lost == set(range(begin, end + 1))
    assert not log.damage.records  # they may have been published at level memory


def test_messages_in_a_file_that_is_missing_are_counted_once(history, caplog):
    before, missing, _ = history.log.segments[2:5]
    history.log.close()
    history.disk.unlink(missing.path)
    log = history.open()
    for _ in range(2):
        lost = set(range(len(history.frames))) - set(everything(log))
    assert lost
    assert log.damage.records == len(lost)
    assert [record.message.split(":")[0] for record in caplog.records if record.levelname == "ERROR"] == [
        f"LOG({before.path})"
    ]
    assert "the next file is missing" in caplog.text


def test_messages_in_a_missing_file_that_a_channel_still_had_to_read_are_not_counted_twice(history):
    _, missing, _ = history.log.segments[2:5]
    history.log.close()
    history.disk.unlink(missing.path)
    log = history.open()
    reader = log.reader(0)
    while reader.read(1 << 16):
        pass
    counted = log.damage.records
    lost = set(range(len(history.frames))) - set(everything(log))
    deferred = lost - history.seqs.keys()
    assert log.damage.records == counted + len(deferred) == len(lost)


def test_nothing_is_remembered_for_a_log_that_is_searched(history):
    log = history.open()
    offset_at(log, published_since(history.times[len(history.times) // 2]), 0)
    assert not any(segment.index for segment in log.segments)


def test_an_empty_log_has_no_messages():
    log = History(count=0).log
    assert oldest(log) is None
    assert OffsetReader(log, 0).read() == []
    assert OffsetReader(log, 0).read_frames(100) is None
    assert offset_at(log, published_since(0), 7) == 7


@pytest.mark.parametrize("count", [0, 1, 5, 40])
def test_offsets_go_on_after_a_restart(count):
    history = History(count=count)
    for _ in range(5):
        history.open()
        assert history.log.next_seq + history.log.deferred_count == len(history.frames)
        history.publish()
    assert everything(history.log) == dict(enumerate(history.frames))


class ReadCountingDisk(SimulatedDisk):
    read = 0

    def pread(self, fd, size, offset):
        self.read += size
        return super().pread(fd, size, offset)


@pytest.mark.parametrize("deferred", [False, True])
def test_the_first_searches_after_a_restart_read_little(deferred):
    disk = ReadCountingDisk()
    factory, log = FrameFactory(1), TopicLog(cast("Files", disk), FOLDER)
    for number in range(5000):
        frames = factory.make([bytes(2000)], NOW_NS + number * TICK)[0]
        log.append(frames, 0 if deferred else number, NOW_NS if deferred else 0, DEFERRED if deferred else MESSAGES)
    log.close()
    searches: dict[str, Callable[[TopicLog], object]] = {
        "time": lambda log: offset_at(log, published_since(NOW_NS + 1234 * TICK), 0) == 1234,
        "offset": lambda log: OffsetReader(log, 1234).read(1)[0].offset == 1234,
        "number": lambda log: offset_of_number(log, 1234, 5000) in (1234, 5000),
        "cursor": lambda log: log.reader(1234).read(1) or deferred,
        "last": lambda log: log.latest(1)[-1].offset == 4999,
    }
    for name, search in searches.items():
        log = TopicLog(cast("Files", disk), FOLDER)
        disk.read = 0
        assert search(log)
        assert disk.read < 1 << 20, name


# --- Large groups -----------------------------------------------------------------------------------------------------


class LargeGroup:
    """A log of one segment in which one group has most messages; `frames` has each at its offset."""

    def __init__(self, bodies: Sequence[bytes], after: int, reopened: bool) -> None:
        self.disk = ReadCountingDisk()
        factory = FrameFactory(1)
        log = self._open()
        log.append(factory.make([b"deferred"] * 7, NOW_NS)[0], 0, NOW_NS, DEFERRED)
        log.append(factory.make([b"before"] * 3, NOW_NS + TICK)[0], 0)
        half = len(bodies) // 2
        large = [
            *factory.make(bodies[:half], NOW_NS + 200 * TICK)[0],
            *factory.make(bodies[half:], NOW_NS + 300 * TICK)[0],
        ]
        log.append(large, 3)
        for number in range(after):
            log.append(factory.make([b"after"], NOW_NS + 400 * TICK)[0], 3 + len(large) + number)
        log.close()
        self.path = log.segments[0].path
        self.log = self._open() if reopened else log
        self.frames = everything(log)
        self.large = range(10, 10 + len(large))

    def _open(self) -> TopicLog:
        log = TopicLog(cast("Files", self.disk), FOLDER, segment_size=1 << 26)
        log.in_steps = True
        return log

    def searches(self, offset: int) -> Mapping[str, Callable[[], Any]]:
        """Ways to find a message of the large group, or one after it; each returns its offset."""
        log, end = self.log, len(self.frames)
        wanted = message_id(self.frames[offset])
        return {
            "offset": lambda: OffsetReader(log, offset).read(1)[0].offset,
            "ids": lambda: offsets_of(log, [b"0" * 16, wanted, b"f" * 16])[wanted],
            "place": lambda: offset * (id_at(log, offset) == wanted),
            "number": lambda: number_at(log, offset, end) + 7,
            "numbered": lambda: offset_of_number(log, offset - 7, end),
        }


SMALL, LARGE = [b"%d" % each for each in range(45_000)], [b"%d" % each * 10_000 for each in range(100)]


@pytest.mark.parametrize("after", [0, 1, 150])
@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("bodies", [SMALL, LARGE], ids=["small", "large"])
def test_a_message_of_a_large_group_is_found_in_steps_and_then_with_little_reading(bodies, reopened, after):
    group = LargeGroup(bodies, after, reopened)
    assert len(group.frames) == 10 + len(bodies) + after
    last = group.large[-1]
    offsets = [last, 10, 11, *Random(1).sample(group.large, 20), last - 1, len(group.frames) - 1]
    for name in group.searches(10):
        group.log.segments[0].searches.parts.clear()
        reached, steps = steps_of(group.searches(last)[name])
        assert (reached, steps > 0) == (last, True), name
        for offset in offsets:
            group.disk.read = 0
            assert steps_of(group.searches(offset)[name]) == (offset, 0), (name, offset)
            assert group.disk.read < 2_000_000, (name, offset)
    assert everything(group.log, 5_000) == {each: group.frames[each] for each in group.frames if each >= 5_000}
    assert group.log.damage.records == 0


@pytest.mark.parametrize("bodies", [SMALL, LARGE], ids=["small", "large"])
def test_a_reader_that_goes_on_reads_a_large_group_once(bodies):
    group = LargeGroup(bodies, 1, reopened=False)
    group.disk.read = 0
    assert everything(group.log) == group.frames
    assert group.disk.read < 1.2 * group.log.segments[0].end
    assert not group.log.segments[0].searches.parts


@pytest.mark.parametrize("reopened", [False, True])
def test_a_time_within_a_large_group_is_found(reopened):
    group = LargeGroup(SMALL, 1, reopened)
    for since, expected in ((200, 10), (300, 10 + len(SMALL) // 2), (400, len(group.frames) - 1)):
        for _ in range(2):
            found, _ = steps_of(lambda: offset_at(group.log, published_since(NOW_NS + since * TICK), 0))  # noqa: B023
            assert found == expected


@pytest.mark.parametrize("after", [0, 1, 150])
@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("count", [1, 100])
def test_the_last_messages_of_a_large_group_are_found_in_steps_and_the_others_are_not_read(count, reopened, after):
    group = LargeGroup(SMALL, after, reopened)
    found, steps = steps_of(lambda: group.log.latest(count))
    assert steps > 0
    for _ in range(2):
        frames = [frame for each in found for frame in each.frames]
        assert frames[-count:] == list(group.frames.values())[-count:]
        assert len(frames) < 20_000
        group.disk.read = 0
        found, steps = steps_of(lambda: group.log.latest(count))
        assert steps == 0
        assert group.disk.read < 4_000_000


def test_a_damaged_message_of_a_large_group_hides_no_other_from_a_search():
    group = LargeGroup(SMALL, 1, reopened=False)
    lost = 40_000
    content = bytearray(group.disk.content(group.path))
    place = content.find(group.frames[lost])
    content[place + 20] ^= 255
    group.disk.put(group.path, bytes(content))
    group.log = reopened_after_checkpoint(group)
    for offset in (10, lost - 1, lost + 1, group.large[-1]):
        for name, search in group.searches(offset).items():
            for _ in range(2):
                assert steps_of(search)[0] == offset, (name, offset)
    assert steps_of(lambda: offsets_of(group.log, [message_id(group.frames[lost])]))[0] == {}
    assert group.log.damage.records == 1


def damaged(group: LargeGroup, places: Iterable[int], content_of: Callable[[int], bytes]) -> TopicLog:
    """The log after damage at these places in the file."""
    content = bytearray(group.disk.content(group.path))
    for place in places:
        with_damage = content_of(place)
        content[place : place + len(with_damage)] = with_damage
    group.disk.put(group.path, bytes(content))
    return reopened_after_checkpoint(group)


def reopened_after_checkpoint(group: LargeGroup) -> TopicLog:
    log = group._open()
    log.segments[0].acknowledged = log.segments[0].end
    return log


def read_as_a_whole(log: TopicLog) -> dict[int, bytes]:
    """The messages that are found when each group is read and searched at once."""
    reader = group_reader.GroupReader(log.segments[0], log.damage, counts_all=False)
    return {
        offset: frame
        for groups in iter(lambda: reader.read_messages(), [])
        for group in groups
        for offset, frame in enumerate(group.frames, group.offset)
    }


@pytest.mark.parametrize("bodies", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("seed", range(6))
def test_past_damage_a_large_group_has_the_same_messages_in_parts_as_in_one_piece(bodies, seed):
    random = Random(seed)
    group = LargeGroup(bodies, 1, reopened=False)
    places = random.sample(range(4096, group.log.segments[0].end - 600_000), random.choice([1, 3, 90]))
    size = random.choice([1, 100, 512, 20_000, 500_000] if len(places) < 4 else [1, 512])
    log = damaged(group, places, lambda place: random.randbytes(size))
    expected, lost = read_as_a_whole(log), log.damage.records
    assert 0 < lost == len(group.frames) - len(expected)
    log = reopened_after_checkpoint(group)
    for _ in range(2):
        found: dict[int, bytes] = {}
        reader = OffsetReader(log, 0)
        while groups := patiently(reader.read):
            for each in groups:
                assert not found.keys() & set(range(each.offset, each.offset + len(each.frames))), "twice"
                found.update(enumerate(each.frames, each.offset))
        assert found == expected
        assert log.damage.records == lost
    assert patiently(lambda: {each for each in group.frames if each % 3_000 == 0 and id_at(log, each)}) == {
        each for each in expected if each % 3_000 == 0
    }


@pytest.mark.parametrize("size", [512, 1_300_000])
def test_damage_in_a_large_group_is_passed_over_in_steps_and_once(size):
    group = LargeGroup(SMALL, 1, reopened=False)
    log = group.log = damaged(group, [500_000], lambda place: Random(3).randbytes(size))
    last_sound = min(set(group.frames) - set(read_as_a_whole(reopened_after_checkpoint(group)))) - 1
    reader = OffsetReader(log, last_sound)
    offset, steps = steps_of(lambda: reader.read(1)[0].offset)
    assert offset == last_sound
    assert steps == (0 if size == 512 else 1)  # the search for a part behind it passes over the damage
    following, steps = steps_of(lambda: reader.read(1)[0].offset)
    assert steps == 0
    for name, search in group.searches(group.large[-1]).items():
        log.segments[0].searches.parts.clear()
        assert steps_of(search)[0] == group.large[-1], name
        group.disk.read = 0
        assert steps_of(search) == (group.large[-1], 0), name
        assert group.disk.read < 2_000_000, name
    group.disk.read = 0
    again = OffsetReader(log, last_sound + 1)
    assert steps_of(lambda: again.read(1)[0].offset) == (following, 0)
    assert group.disk.read < 2_000_000


def test_of_a_damaged_large_group_after_the_last_checkpoint_parts_are_read_once_it_is_known_to_be_whole():
    group = LargeGroup(SMALL, 1, reopened=False)
    damaged(group, [500_000], lambda place: Random(3).randbytes(512))
    log = group.log = group._open()
    expected = read_as_a_whole(log)  # as recovery does
    assert everything(log) == expected
    for name, search in group.searches(group.large[-1]).items():
        assert steps_of(search)[0] == group.large[-1], name
        group.disk.read = 0
        assert steps_of(search) == (group.large[-1], 0), name
        assert group.disk.read < 2_000_000, name
    assert log.damage.records == len(group.frames) - len(expected)


@pytest.mark.interpreted
def test_a_large_group_that_was_not_written_completely_is_searched_once(monkeypatch):
    group = LargeGroup(SMALL, 0, reopened=False)
    damaged(group, [512_000], lambda place: bytes(4096))
    log = group._open()
    assert everything(log).keys() == set(range(10))
    monkeypatch.setattr(group_reader, "salvage", None)
    assert everything(log).keys() == set(range(10))


@pytest.mark.parametrize("also_a_frame", [False, True])
def test_a_large_group_with_a_damaged_header_is_read_in_parts(also_a_frame):
    group = LargeGroup(SMALL, 1, reopened=False)
    [header] = (each for each in headers_of(group.log) if each.record_count == len(SMALL))
    places = [header.offset + 10, *([500_000] if also_a_frame else [])]
    log = group.log = damaged(group, places, lambda place: b"\xa5" * 30)
    expected = read_as_a_whole(log)
    lost = len(group.frames) - len(expected)
    assert lost in ((1, 2) if also_a_frame else (0,))
    assert everything(log) == expected
    assert log.damage.records == lost
    for name in ("offset", "place", "number"):
        search = group.searches(group.large[-1])[name]
        assert steps_of(search)[0] == group.large[-1], name
        group.disk.read = 0
        assert steps_of(search) == (group.large[-1], 0), name
        assert group.disk.read < 3_000_000, name


def headers_of(log: TopicLog) -> Iterator[GroupHeader]:
    segment, offset = log.segments[0], FIRST_GROUP
    while header := decode_header(segment.pread(HEADER_SIZE, offset), 0, offset, segment.salt):
        yield header
        offset = header.end


def test_a_message_that_matches_the_checksum_of_another_one_by_chance_is_not_taken_for_that():
    group = LargeGroup(SMALL, 1, reopened=False)
    [header] = (each for each in headers_of(group.log) if each.record_count == len(SMALL))
    checksum = crc32c(group.frames[10 + 100]).to_bytes(4, "big")

    def with_damage(place: int) -> bytes:
        return b"\xa5" * 4 if place == header.payload_begin + 400 else checksum

    log = damaged(group, [header.payload_begin + 400, header.payload_begin + 4 * 5100], with_damage)
    expected = {each: frame for each, frame in group.frames.items() if each not in (110, 5110)}
    assert everything(log) == expected
    assert read_as_a_whole(reopened_after_checkpoint(group)) == expected


def test_messages_that_look_like_messages_do_not_make_a_search_in_a_damaged_group_long():
    looks_like_one = (4_000).to_bytes(4, "big") + b"\0\0\0\2"
    group = LargeGroup([*SMALL[:25_000], *[looks_like_one * 1_000] * 100, *SMALL[25_000:]], 1, reopened=False)
    place = group.disk.content(group.path).find(group.frames[25_011])
    log = damaged(group, [place], lambda place: b"\xff" * 40)
    reader = OffsetReader(log, 25_011)
    group.disk.read = 0
    assert steps_of(lambda: reader.read(1)[0].offset)[0] > 25_011
    assert group.disk.read < 10_000_000
    assert len(everything(log)) >= len(SMALL)


def test_with_damaged_checksums_the_other_messages_of_a_large_group_are_found():
    group = LargeGroup(SMALL, 1, reopened=False)
    checksums = len(SMALL) * 4
    place = group.disk.content(group.path).find(group.frames[10]) - checksums
    log = damaged(group, [place + 1000, place + checksums - 400], lambda place: bytes(400))
    assert everything(log).keys() == read_as_a_whole(reopened_after_checkpoint(group)).keys()
    assert len(everything(log)) == len(group.frames) - 200


@pytest.mark.parametrize("bodies", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("reopened", [False, True])
def test_messages_of_a_large_group_are_fetched_and_located_with_little_reading(bodies, reopened):
    group = LargeGroup(bodies, 150, reopened)
    ids = {message_id(frame): frame for frame in group.frames.values()}
    at_the_end = [*ids][-200:-100]
    scattered = sorted([*Random(2).sample([*ids], 14), [*ids][-1]])
    for wanted in (at_the_end, scattered):
        expected = {each: ids[each] for each in wanted}
        for _ in range(2):
            group.disk.read = 0
            assert steps_of(lambda: group.log.fetch(wanted))[0] == expected  # noqa: B023
        assert group.disk.read < (3_000_000 if wanted is at_the_end else 10_000_000)
        group.disk.read = 0
        locations = patiently(lambda: group.log.locate(wanted))  # noqa: B023
        assert locations
        assert group.disk.read < 10_000_000
        group.disk.read = 0
        assert group.log.fetch(locations, locations) == {each: ids[each] for each in locations}
        assert group.disk.read < 4_000_000
        numbers = {frame: seq for seq, frame in patiently(lambda: group.log.numbered(wanted)).items()}  # noqa: B023
        assert numbers == {
            frame: offset - 7 for offset, frame in group.frames.items() if offset >= 7 and frame in expected.values()
        }
    assert group.log.damage.records == 0


def test_the_sound_messages_around_damage_in_a_large_group_are_fetched():
    group = LargeGroup(SMALL, 1, reopened=False)
    log = damaged(group, [500_000, 900_000], lambda place: Random(3).randbytes(512))
    sound = read_as_a_whole(reopened_after_checkpoint(group))
    lost = sorted(set(group.frames) - set(sound))
    wanted = [message_id(group.frames[each]) for each in (lost[0] - 1, *lost, lost[-1] + 1, lost[-1] + 8_000)]
    for _ in range(2):
        found, _ = steps_of(lambda: log.fetch(wanted))
        assert found == {message_id(frame): frame for frame in sound.values() if message_id(frame) in wanted}
    group.disk.read = 0
    assert steps_of(lambda: log.fetch(wanted[-1:]))[1] == 0
    assert group.disk.read < 2_000_000


def test_the_parts_of_a_large_group_are_forgotten_with_the_index():
    group = LargeGroup(SMALL, 1, reopened=True)
    [segment] = group.log.segments
    steps_of(group.searches(group.large[-1])["offset"])
    assert sum(map(len, segment.searches.parts.values())) > 5
    segment.forget_index()
    assert segment.searches.parts
    segment.forget_index()
    assert not segment.searches.parts


# --- Messages that look like headers ----------------------------------------------------------------------------------


def without_salts(history: History) -> TopicLog:
    """The log as the version before wrote it."""
    history.log.close()
    for name in history.disk.listdir(FOLDER):
        path = f"{FOLDER}/{name}"
        history.disk.put(path, as_version_2(history.disk.content(path)))
    return history.open()


def history_with(body_at: Callable[[int], bytes]) -> History:
    """One message with the body that `body_at` makes for its position, among others."""
    history = History(count=0, segment_size=1 << 22)
    factory = FrameFactory(2)
    for number in range(20):
        history.now_ns += 10**9
        body = body_at(history.log.segments[-1].end) if number == 10 else b"%d " % number + b"x" * 100_000
        frames = factory.make([body], history.now_ns)[0]
        history.log.append(frames, number)
        history.frames += frames
    return history


def forged(victim: int, frame: bytes) -> Callable[[int], bytes]:
    """A body that consists of groups as they would be at its position, with another message of the number `victim`."""

    def body_at(position: int) -> bytes:
        begin = position + len(encode_group(MESSAGES, 0, 0, make_frames([b"f" * 16], NOW_NS, [b""]), 0, 0))
        made = b""
        while len(made) < 900_000:
            made += encode_group(MESSAGES, victim, 0, [frame], begin + len(made), 0)
        return made

    return body_at


@pytest.mark.parametrize("in_steps", [False, True])
@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("salts", [True, False])
@pytest.mark.parametrize("victim", [5, 9, 12])
def test_a_message_that_contains_groups_does_not_replace_others(victim, salts, reopened, in_steps):
    history = history_with(forged(victim, make_frames([b"f" * 16], NOW_NS, [b"forged"])[0]))
    if not salts:
        without_salts(history)
    expected = dict(enumerate(history.frames))
    for offset in range(20):
        log = history.open() if reopened else history.log
        log.in_steps = in_steps
        reader = OffsetReader(log, offset)
        assert patiently(partial(reader.read, 1))[0].frames[0] == expected[offset]
        log = history.open() if reopened else history.log
        log.in_steps = in_steps
        numbers = log.reader(offset)
        assert patiently(partial(numbers.read, 1))[0].frames[0] == expected[offset]


@pytest.mark.parametrize(("offset", "salts"), [(1 << 61, False), ((1 << 63) - 2, False), (1 << 60, True)])
def test_a_message_that_contains_groups_does_not_use_up_the_offsets(offset, salts):
    frame = make_frames([b"f" * 16], NOW_NS, [b"forged"])[0]
    history = History(count=0, segment_size=1 << 22)
    factory = FrameFactory(2)
    for number in range(11):
        body = forged(offset, frame)(history.log.segments[-1].end) if number == 10 else b"x" * 1000
        history.log.append(factory.make([body], history.now_ns)[0], number)
    assert (history.open() if salts else without_salts(history)).deferred_count == 0


def patiently(read: Callable[[], Any]) -> Any:
    """What is read, in as many steps as it needs."""
    while True:
        with suppress(BlockingIOError):
            return read()


@pytest.mark.interpreted
@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("beginning", [GROUP_MAGIC, MAGIC_PREFIX])
def test_messages_that_look_like_headers_are_not_searched_for_one(monkeypatch, beginning, reopened):
    history = history_with(lambda position: beginning * 200_000)
    log = history.open() if reopened else history.log
    examined = 0

    def decode(data: bytes, at: int, offset: int, salt: int) -> GroupHeader | None:
        nonlocal examined
        examined += 1
        return decode_header(data, at, offset, salt)

    monkeypatch.setattr(group_reader, "decode_header", decode)
    assert offsets_of(log, map(message_id, history.frames)) == {
        message_id(frame): offset for offset, frame in enumerate(history.frames)
    }
    assert everything(log, 17) == dict(list(enumerate(history.frames))[17:])
    assert offset_at(log, published_since(history.now_ns - 5 * 10**9), 20) == 14
    assert offset_of_number(log, 12, 20) == 12
    assert log.latest(1)[-1].frames == history.frames[-1:]
    assert examined < (20_000 if reopened else 1000)
