"""F6 for the log by itself: whatever happens to the files, opening and reading go on, and only what is hit is lost."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsq_compat.log.checkpoint import ChannelState, TopicState, immediate_entries
from nsq_compat.log.recovery import StoredTopic
from nsq_compat.log.segment import FIRST_GROUP, HEADER_SIZE
from nsq_compat.log.topic_log import LogEnd, TopicLog
from nsq_compat.protocol.message import make_frames, message_id
from nsq_compat.protocol.storage_schema import CHANNEL_CREATED, DEFERRED, MESSAGES
from nsq_compat.tools import nsq_data
from tests.faults.disk import SimulatedDisk

FOLDER = "/orders.topic"
NOW_NS = 1_700_000_000_000_000_000


class GivesUp(TopicLog):
    """Reads up to the first damage."""

    def recovered(self):
        for group in super().recovered():
            if self.damage.records:
                return
            yield group


class Store(NamedTuple):
    """A small log: where each record lies, and which belong to one publish."""

    disk: SimulatedDisk
    records: dict[bytes, tuple[str, int, int]]  # id -> file, begin, end
    publishes: list[list[bytes]]
    end: LogEnd

    def files(self) -> Iterable[tuple[str, bytes]]:
        for name in sorted(self.disk.listdir(FOLDER)):
            yield f"{FOLDER}/{name}", self.disk.content(f"{FOLDER}/{name}")

    def with_file(self, path: str, content: bytes | None) -> SimulatedDisk:
        return with_file(self.disk, path, content)


def with_file(disk: SimulatedDisk, path: str, content: bytes | None) -> SimulatedDisk:
    """A copy of the disk on which one file has that content, or is gone."""
    damaged = disk.copy()
    if content is None:
        damaged.unlink(path)
    else:
        damaged.put(path, content)
    return damaged


def new_frames(ids: Sequence[bytes], random: Random, body_size: int) -> Sequence[bytes]:
    return make_frames(ids, NOW_NS, [random.randbytes(random.randint(1, body_size)) for _ in ids])


def build(segment_size: int, body_size: int, counts: Iterable[int]) -> Store:
    random = Random(7)
    disk = SimulatedDisk()
    log = TopicLog(disk, FOLDER, segment_size=segment_size)
    records: dict[bytes, tuple[str, int, int]] = {}
    publishes: list[list[bytes]] = []
    frames_of: dict[bytes, bytes] = {}
    for number, count in enumerate(counts):
        ids = [b"%016x" % (len(frames_of) + each) for each in range(count)]
        frames = new_frames(ids, random, body_size)
        frames_of |= zip(ids, frames, strict=True)
        if number % 4 == 3:
            log.append(frames, 0, NOW_NS, DEFERRED)
        else:
            log.append(frames, log.end.seq)
        if number % 4 == 1:
            log.append([b"archive"], log.end.seq, kind=CHANNEL_CREATED)
        publishes.append(ids)
    store = Store(disk, records, publishes, log.end)
    log.close()
    for path, content in store.files():
        for each, frame in frames_of.items():
            if (begin := content.find(frame)) >= 0:
                records[each] = (path, begin, begin + len(frame))
    assert records.keys() == frames_of.keys(), "every message is in a file"
    return store


SMALL = build(1000, 40, [1, 3, 1, 2, 5, 1, 1, 4, 1, 1])
LARGE = build(20_000, 300, [1, 60, 1, 20, 1, 1, 40, 1, 1, 30, 1, 1])


def read_all(
    disk: SimulatedDisk, log_class: type[TopicLog] = TopicLog, once: bool = True
) -> tuple[set[bytes], TopicLog]:
    """Everything there is by all ways of reading, which agree."""
    log = log_class(disk, FOLDER, segment_size=1000)
    groups = list(log.recovered())
    found = [message_id(frame) for group in groups for frame in group.frames if group.kind in (MESSAGES, DEFERRED)]
    assert len(found) == len(set(found)) or not once
    count = log.damage.records
    reader = log.reader(log.oldest)
    read: list[bytes] = []
    while some := reader.read(700):
        read += [message_id(frame) for group in some for frame in group.frames]
    assert read == [message_id(frame) for group in groups if group.kind == MESSAGES for frame in group.frames]
    assert log.damage.records == count, "damage is counted once"
    return set(found), log


def is_alive(log: TopicLog) -> None:
    """It takes a message, and has it after the next start."""
    seq = log.end.seq
    log.append(make_frames([b"f" * 16], NOW_NS, [b"new"]), seq)
    reader = log.reader(seq)
    assert [message_id(frame) for group in reader.read() for frame in group.frames] == [b"f" * 16]


def hit(store: Store, path: str, begin: int, end: int) -> set[bytes]:
    """The records that lie in a part of a file."""
    return {each for each, (file, low, high) in store.records.items() if file == path and low < end and begin < high}


def test_undamaged_everything_is_found():
    for store in (SMALL, LARGE):
        found, log = read_all(store.disk.copy())
        assert found == set(store.records) == set(log.fetch(found))
        assert log.damage.records == 0
        assert log.end.seq == store.end.seq


def flip_every_byte(log_class: type[TopicLog] = TopicLog) -> None:
    for path, content in SMALL.files():
        for offset in range(len(content)):
            damaged = bytearray(content)
            damaged[offset] ^= 1 << (offset * 5 % 8)
            found, log = read_all(SMALL.with_file(path, bytes(damaged)), log_class)
            assert found == set(log.fetch(found))
            lost = set(SMALL.records) - found
            allowed = hit(SMALL, path, offset, offset + 1) or hit(SMALL, path, offset, offset + HEADER_SIZE)
            in_checksums = len(lost) == 1 and not hit(SMALL, path, offset, offset + 1)
            assert lost <= allowed or in_checksums, (path, offset)
            assert log.damage.records >= len(lost), "what is lost is counted"
            assert log.damage.records <= 1
            is_alive(log)


def test_a_flipped_bit_costs_the_record_it_is_in_and_is_counted():
    flip_every_byte()


@pytest.mark.interpreted
def test_a_log_that_gives_up_at_the_first_damage_is_found_out():
    with pytest.raises(AssertionError):
        flip_every_byte(GivesUp)


def test_a_file_that_was_cut_has_what_was_before_the_cut():
    first, *_, last = (path for path, _ in SMALL.files())
    for path, content in SMALL.files():
        for size in range(len(content)):
            found, log = read_all(SMALL.with_file(path, content[:size]))
            lost = set(SMALL.records) - found
            behind = hit(SMALL, path, size, len(content))
            for ids in SMALL.publishes:
                if SMALL.records[ids[0]][0] == path and SMALL.records[ids[-1]][2] + HEADER_SIZE > size:
                    behind |= set(ids)  # its trailer may be cut off
            assert lost <= behind, (path, size)
            numbered = [each for n, ids in enumerate(SMALL.publishes) if n % 4 != 3 for each in ids]
            if path != last and (path != first or size >= FIRST_GROUP):  # nothing says that anything was there
                assert log.damage.records >= len(lost & set(numbered)), "what is lost is counted"
            assert found == set(log.fetch(found))
            is_alive(log)


def test_a_page_of_zeros_costs_the_publishes_that_reach_into_it():
    for path, content in LARGE.files():
        for begin in range(0, len(content), 4096):
            end = min(begin + 4096, len(content))
            found, log = read_all(LARGE.with_file(path, content[:begin] + bytes(end - begin) + content[end:]))
            lost = set(LARGE.records) - found
            hit_directly = hit(LARGE, path, begin - HEADER_SIZE, end + HEADER_SIZE)
            touched = {each for ids in LARGE.publishes if set(ids) & hit_directly for each in ids}
            assert lost <= touched, (path, begin)
            for ids in LARGE.publishes:
                assert len(set(ids) & lost) in (0, len(ids)), "all or nothing: it may never have been written"
            if lost and end < len(content):
                assert log.damage.records > 0, "what is lost is counted"
            is_alive(log)


def test_a_file_that_is_gone_costs_what_was_in_it():
    paths = [path for path, _ in SMALL.files()]
    for path in paths:
        found, log = read_all(SMALL.with_file(path, None))
        assert set(SMALL.records) - found == hit(SMALL, path, 0, 1 << 30)
        if path != paths[-1] and path != paths[0]:
            assert log.damage.records > 0, "what is lost is counted"
        is_alive(log)


# --- With a checkpoint that says what was acknowledged ----------------------------------------------------------------


class Acknowledged(NamedTuple):
    """A topic of 400 messages with a channel that has them all and one that has finished most of the first half."""

    disk: SimulatedDisk
    needed: dict[str, set[bytes]]
    by_id: dict[str, set[bytes]]
    """Of these, those that the checkpoint names."""

    def after(self, path: str, content: bytes | None) -> "Found":
        """The files as they are, but for this one; opened as the next daemon does it."""
        with StoredTopic(with_file(self.disk, path, content), FOLDER, 4000) as topic:
            at_start = topic.log.damage.records
            depths = topic.depths()
            delivered = {str(name): [message_id(frame) for frame in frames] for name, frames in topic.backlogs()}
            findings = list(topic.log.damage.findings)
            return Found(at_start, depths, delivered, topic.log.damage.records, findings, topic.state.is_current)

    def is_counted_at_the_start(self, path: str, content: bytes | None) -> "Found":
        """Check that the next start counts what is lost by that, no more, and no later."""
        where = path, None if content is None else len(content)
        found = self.after(path, content)
        lost = self.lost(found)
        assert found.counted_at_start == found.counted == lost, where
        assert all(len(found.delivered[str(name)]) == depth for name, depth in found.depths.items()), where
        assert bool(found.findings) >= bool(lost), where
        return found

    def lost(self, found: "Found") -> int:
        """A message that one channel has taken and another has not is counted by its id and by its number."""
        for name, ids in found.delivered.items():
            assert len(ids) == len(set(ids)), "nothing comes twice"
            assert set(ids) <= self.needed[name], "nothing comes that was finished"
        lost = {name: ids - set(found.delivered[name]) for name, ids in self.needed.items()}
        by_id = set().union(*(lost[name] & self.by_id[name] for name in lost))
        by_number = set().union(*(lost[name] - self.by_id[name] for name in lost))
        return len(by_id) + len(by_number)


class Found(NamedTuple):
    counted_at_start: int
    depths: dict[str | None, int]
    delivered: dict[str, list[bytes]]
    counted: int
    findings: list[str]
    checkpoint_is_current: bool


def acknowledged(everything: bool, count: int = 400, segment_size: int = 4000) -> Acknowledged:
    """Several segments, and if not `everything` is needed one that was released and a kept file."""
    random = Random(11)
    disk = SimulatedDisk()
    log = TopicLog(disk, FOLDER, segment_size=segment_size)
    immediate: list[bytes] = []
    deferred: list[bytes] = []
    next_id = 0
    while next_id < count:
        ids = [b"%016x" % (next_id + each) for each in range(random.choice([1, 1, 3, 12]))]
        next_id += len(ids)
        frames = new_frames(ids, random, 60)
        is_deferred = random.random() < 0.2
        log.append(frames, log.end.seq, NOW_NS if is_deferred else 0, DEFERRED if is_deferred else MESSAGES)
        (deferred if is_deferred else immediate).extend(ids)
    half = len(immediate) // 2
    unfinished = sorted([*immediate[:half:9], *deferred[::3]])
    states = {"half": ChannelState(half, immediate_entries([(each, 1) for each in unfinished]))}
    needed, by_id = {"half": {*immediate[half:], *unfinished}}, {"half": {*unfinished}}
    if everything:
        states["all"] = ChannelState(0, immediate_entries([(each, 1) for each in deferred]))
        needed["all"], by_id["all"] = {*immediate, *deferred}, {*deferred}
    else:
        log.release(half, lambda: unfinished, log.end)
    checkpoint = TopicState(log.end, 0.0, b"%016x" % next_id, states)
    log.close()
    disk.put(f"{FOLDER}/checkpoint", checkpoint.encode())
    return Acknowledged(disk, needed, by_id)


TOPICS = {"everything is needed": acknowledged(True), "some of it was released": acknowledged(False)}
FEW = {"everything is needed": acknowledged(True, 14, 400), "some of it was released": acknowledged(False, 32, 400)}
"""The same with few messages, so that every byte can be tried."""


def files_of(topic: Acknowledged) -> list[tuple[str, bytes]]:
    paths = [f"{FOLDER}/{name}" for name in sorted(topic.disk.listdir(FOLDER)) if name != "checkpoint"]
    return [(path, topic.disk.content(path)) for path in paths]


@pytest.fixture(params=TOPICS)
def topic(request) -> Acknowledged:
    return TOPICS[request.param]


def test_a_sound_topic_has_lost_nothing(topic):
    found = topic.is_counted_at_the_start(*files_of(topic)[0])
    assert (found.counted, found.findings) == (0, [])
    assert found.checkpoint_is_current


def test_files_that_are_missing_are_counted_at_the_start_which_asks_for_a_new_checkpoint(topic):
    assert any("kept" in path for path, _ in files_of(topic)) == (topic is not TOPICS["everything is needed"])
    counted = 0
    for path, _ in files_of(topic):
        found = topic.is_counted_at_the_start(path, None)
        counted += found.counted_at_start
        assert found.checkpoint_is_current == (not found.counted_at_start), path
    assert counted > 0


def test_a_file_behind_a_released_one_is_missed_as_well():
    topic = acknowledged(False, 60, 700)
    sizes = [len(content) for _, content in files_of(topic)]
    assert FIRST_GROUP in sizes[:-2], "a released file between others"
    for path, content in files_of(topic):
        for rest in [None, *(content[:size] for size in range(FIRST_GROUP + 1))]:
            topic.is_counted_at_the_start(path, rest)


@pytest.mark.parametrize("size", [512, 4096])
def test_parts_of_a_file_that_are_zeros_are_counted_when_they_are_read(topic, size):
    for path, content in files_of(topic):
        for begin in range(0, len(content), size):
            end = min(begin + size, len(content))
            found = topic.after(path, content[:begin] + bytes(end - begin) + content[end:])
            lost = topic.lost(found)
            assert found.counted == lost, (path, begin)
            assert bool(found.findings) >= bool(lost), (path, begin)


class OnDisk:
    """A topic's files in a real data path, which ``nsq_data check`` looks at."""

    def __init__(self, topic: Acknowledged, data_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._data_path = data_path
        self._folder = data_path / "nsq_compat" / "orders.topic"
        self._folder.mkdir(parents=True)
        for name in topic.disk.listdir(FOLDER):
            (self._folder / name).write_bytes(topic.disk.content(f"{FOLDER}/{name}"))

    def check_after(self, path: str, content: bytes | None) -> tuple[int, int, str]:
        """The exit code, how many messages are lost, and what is listed, if one file has that content or is gone."""
        file = self._folder / os.path.basename(path)
        sound = file.read_bytes()
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        code = nsq_data.run(["check", "--json", f"--data-path={self._data_path}"])
        file.write_bytes(sound)
        [topic] = json.loads(self._capsys.readouterr().out)["topics"]
        assert topic["problems"] == []
        return code, topic["damaged_records"], "\n".join(topic["damages"])


@pytest.mark.parametrize("few", FEW)
def test_whatever_byte_a_file_ends_at_nsq_data_check_counts_what_is_lost_and_says_where(few, tmp_path, capsys):
    topic = FEW[few]
    on_disk = OnDisk(topic, tmp_path, capsys)
    losses = 0
    for path, content in files_of(topic):
        assert on_disk.check_after(path, content) == (0, 0, "")
        for rest in [None, *(content[:size] for size in range(len(content)))]:
            lost = topic.is_counted_at_the_start(path, rest).counted
            losses += bool(lost)
            if rest is None or len(rest) % 4 == 0:
                code, counted, listed = on_disk.check_after(path, rest)
                assert (code, bool(listed)) == (1 if counted else 0, bool(counted)), (path, rest)
                # Finished messages of a file that is missing between others are counted, too.
                assert counted == lost or (rest is None and counted > lost > 0), (path, rest)
    assert losses > 500


@pytest.mark.parametrize("few", FEW)
def test_wherever_sixteen_bytes_are_zeros_nsq_data_check_counts_what_is_lost_and_says_where(few, tmp_path, capsys):
    topic = FEW[few]
    on_disk = OnDisk(topic, tmp_path, capsys)
    for path, content in files_of(topic):
        for begin in range(0, len(content), 7):
            damaged = (content[:begin] + bytes(16) + content[begin + 16 :])[: len(content)]
            lost = topic.lost(topic.after(path, damaged))
            code, counted, listed = on_disk.check_after(path, damaged)
            assert counted >= lost, (path, begin)  # finished messages of a damaged group are counted, too
            assert (code, bool(listed)) == (1 if counted else 0, bool(counted)), (path, begin)


@settings(max_examples=200)
@given(st.data())
def test_whatever_happened_to_several_files_every_loss_is_counted(data):
    topic = data.draw(st.sampled_from(list(TOPICS.values())))
    disk = topic.disk.copy()
    files = files_of(topic)
    for path, content in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=3, unique=True)):
        begin, end = sorted(data.draw(st.tuples(st.integers(0, len(content)), st.integers(0, len(content)))))
        fault = data.draw(st.sampled_from(["gone", "cut", "zeros", "garbage"]))
        if fault == "gone":
            disk.unlink(path)
        elif fault == "cut":
            disk.put(path, content[:begin])
        else:
            rest = bytes(end - begin) if fault == "zeros" else Random(1).randbytes(end - begin)
            disk.put(path, content[:begin] + rest + content[end:])
    path, content = f"{FOLDER}/checkpoint", topic.disk.content(f"{FOLDER}/checkpoint")
    found = topic._replace(disk=disk).after(path, content)
    assert found.counted >= topic.lost(found)


def test_a_loss_before_a_deferred_message_is_counted():
    """The first sound group has no number: the index must not take it for the one of the lost message before it."""
    disk = SimulatedDisk()
    log = TopicLog(disk, FOLDER)
    immediate, deferred, after = ([b"%016x" % number] for number in range(3))
    log.append(make_frames(immediate, NOW_NS, [b"lost"]), 0)
    begin = log.end.offset
    log.append(make_frames(deferred, NOW_NS, [b"later"]), 1, NOW_NS, DEFERRED)
    log.append(make_frames(after, NOW_NS, [b"after"]), 1)
    log.close()
    path = f"{FOLDER}/log.{1:020}"
    content = disk.content(path)
    disk.put(path, content[:FIRST_GROUP] + bytes(begin - FIRST_GROUP) + content[begin:])
    log = TopicLog(disk, FOLDER)
    assert [message_id(frame) for group in log.reader(0).read() for frame in group.frames] == after
    assert log.damage.records == 1


def test_what_cannot_be_fetched_is_counted_once():
    log = TopicLog(SMALL.disk.copy(), FOLDER, segment_size=1000)
    for _ in range(2):
        assert log.fetch([b"%016x" % 0, b"%016x" % 999]).keys() == {b"%016x" % 0}
    assert log.damage.records == 1


@settings(max_examples=200)
@given(st.data())
def test_whatever_is_in_the_files_they_are_opened_and_read(data):
    paths = [path for path, _ in SMALL.files()]
    disk = SMALL.disk.copy()
    for path in data.draw(st.lists(st.sampled_from(paths), min_size=1, max_size=3, unique=True)):
        content = disk.content(path)
        begin, end = sorted([data.draw(st.integers(0, len(content))), data.draw(st.integers(0, len(content)))])
        middle = data.draw(st.one_of(st.binary(max_size=300), st.just(content[begin:end] * 2), st.just(content[:end])))
        disk.put(path, content[:begin] + middle + content[end:])
    _, log = read_all(disk, once=False)  # a piece that is there twice may bring its messages twice
    is_alive(log)
