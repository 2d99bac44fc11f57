"""A standby's copy: what it refuses, and that changes of the files arrive. ``faults.test_model`` has histories."""

import errno
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import cast

import google_crc32c
import greenlet
import pytest

from nsq_compat.log.files import Files, OsFiles, read_file
from nsq_compat.log.identity import FileEnd
from nsq_compat.log.metadata import TopicMetadata, load_metadata, save_metadata
from nsq_compat.log.mirror_copy import CHUNK, MirrorCopy, catch_up
from nsq_compat.log.mirrored_files import Changes, MirroredFiles, unit_of
from nsq_compat.log.recovery import StoredTopic
from nsq_compat.log.segment import encode_segment_header, salted
from nsq_compat.protocol import message, mirror
from nsq_compat.protocol.mirror import Change
from tests.broker import DataPath
from tests.faults.disk import SimulatedDisk

SEGMENT = "nsq_compat/t.topic/log.00000000000000000001"
CHECKPOINT = "nsq_compat/t.topic/checkpoint"


def one_by_one(works: Sequence[Callable[[], None]]) -> None:
    for work in works:
        work()


class Pair:
    """A data path and its copy, on disk."""

    def __init__(self, folder):
        self.paths = [folder / "primary", folder / "standby"]
        for path in self.paths:
            (path / "nsq_compat").mkdir(parents=True)
        self.changes = Changes()
        self.files = MirroredFiles(cast(Files, OsFiles()), str(self.paths[0]), self.changes)
        self.copy = MirrorCopy(OsFiles(), str(self.paths[1]), syncs=True)
        self.commands: list[bytes] = []

    def write(self, path: str, data: bytes, offset: int = 0) -> None:
        fd = self.files.open(str(self.paths[0] / path), os.O_RDWR | os.O_CREAT)
        assert self.files.pwrite(fd, data, offset) == len(data)
        self.files.close(fd)

    def write_logs(self, content: bytes) -> None:
        for number in (1, 2, 3):
            self.write(f"nsq_compat/t.topic/log.{number:020}", b"%d " % number + content)

    def create_again(self, content: bytes) -> None:
        """Delete the topic as nsqd does, and create it with files of the same names."""
        folder = str(self.paths[0] / "nsq_compat/t.topic")
        self.files.rename(folder, f"{folder}.deleted-1")
        self.files.mkdir(folder)
        self.write_logs(content)
        shutil.rmtree(f"{folder}.deleted-1")

    def catch_up(self, between=lambda: None) -> None:
        steps = catch_up(self.files, str(self.paths[0]), self.changes)
        step = next(steps)
        while True:
            answer = b""
            if isinstance(step, list):
                self.commands.append(b"changes")
                self.copy.apply(step)
            else:
                line = step.partition(b"\n")[0]
                self.commands.append(line)
                if line == b"MIRROR files":
                    answer = json.dumps(self.copy.units()).encode()
                else:
                    answer = json.dumps(self.copy.sums(line.removeprefix(b"MIRROR sums ").decode())).encode()
            between()
            try:
                step = steps.send(answer)
            except StopIteration:
                break
        self.send()

    def send(self) -> None:
        while changes := self.changes.take(100):
            self.copy.apply(changes)

    @staticmethod
    def tree(path):
        return {str(each.relative_to(path)): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}

    def assert_equal(self) -> None:
        assert self.tree(self.paths[1]) == self.tree(self.paths[0])


@pytest.fixture
def pair(tmp_path):
    pair = Pair(tmp_path)
    pair.files.mkdir(str(pair.paths[0] / "nsq_compat/t.topic"))
    yield pair
    pair.copy.close()


def test_every_kind_of_change_arrives(pair):
    pair.catch_up()
    root = pair.paths[0]
    pair.write(SEGMENT, b"abc")
    fd = pair.files.open(str(root / SEGMENT), os.O_RDWR)
    pair.files.fallocate(fd, 3, 100)
    pair.files.pwrite(fd, bytes(50), 50)
    pair.files.pwrite(fd, b"def", 3)
    pair.files.ftruncate(fd, 6)
    pair.files.close(fd)
    pair.write(CHECKPOINT + ".tmp", b"state")
    pair.files.rename(str(root / (CHECKPOINT + ".tmp")), str(root / CHECKPOINT))
    pair.write("nsqd.dat", b"{}")
    pair.files.mkdir(str(root / "nsq_compat/u.topic"))
    pair.write("nsq_compat/u.topic/log.00000000000000000001", b"u")
    pair.send()
    pair.assert_equal()
    pair.files.rename(str(root / "nsq_compat/u.topic"), str(root / "nsq_compat/u.deleted-1"))
    pair.files.unlink(str(root / SEGMENT))
    pair.send()
    assert pair.tree(pair.paths[1]).keys() == {CHECKPOINT, "nsqd.dat"}


def test_an_empty_topic_is_copied(pair):
    pair.catch_up()
    assert (pair.paths[1] / "nsq_compat/t.topic").is_dir()


def test_only_chunks_that_differ_are_sent(pair):
    random = Random(1)
    content = bytearray(random.randbytes(5 * CHUNK + 7))
    pair.write(SEGMENT, bytes(content))
    pair.catch_up()
    pair.assert_equal()
    pair.changes.forget()
    content[3 * CHUNK] ^= 1
    pair.write(SEGMENT, bytes(content))
    pair.commands.clear()
    pair.catch_up()
    pair.assert_equal()
    assert pair.commands.count(b"changes") == 2  # the chunk, and the size


def test_a_sealed_file_is_compared_once(pair):
    for number in (1, 2, 3):
        pair.write(f"nsq_compat/t.topic/log.{number:020}", b"%d" % number)
    pair.catch_up()
    pair.changes.forget()
    pair.commands.clear()
    pair.catch_up()
    sums = [each for each in pair.commands if each.startswith(b"MIRROR sums")]
    assert [each[-1:] for each in sums] == [b"1", b"3"]  # the first tells whether it is the same topic
    pair.assert_equal()


def test_a_topic_that_was_created_again_replaces_the_copy(pair):
    pair.write(SEGMENT, b"a" * CHUNK)
    pair.write("nsq_compat/t.topic/kept.00000000000000000001", b"old")
    pair.catch_up()
    pair.changes.forget()
    for path in list(pair.tree(pair.paths[0])):
        pair.files.unlink(str(pair.paths[0] / path))
    pair.write(SEGMENT, b"b" * CHUNK)
    pair.catch_up()
    pair.assert_equal()


def test_a_topic_that_was_created_again_with_files_of_the_same_size_replaces_the_copy(pair):
    pair.write_logs(b"old")
    pair.catch_up()
    pair.changes.forget()
    pair.create_again(b"new")
    pair.catch_up()
    pair.assert_equal()


def test_topics_that_have_become_smaller_are_copied_first(pair):
    sizes = {"grown": (1, 3000), "gone": (2000, None), "same": (9000, 9000), "smaller": (5000, 10), "zero": (4000, 10)}
    for number in (0, 1):
        for topic, each in sizes.items():
            folder = pair.paths[1 - number] / f"nsq_compat/{topic}.topic"
            if (size := each[number]) is not None:
                folder.mkdir()
                (folder / f"log.{number + 1:020}").write_bytes(bytes(size))
    first: dict[str, None] = {}
    steps = catch_up(pair.files, str(pair.paths[0]), pair.changes)
    step = next(steps)
    with suppress(StopIteration):
        while True:
            answer = b"[]"
            if isinstance(step, list):
                first |= dict.fromkeys(change.path.split("/")[1] for change in step)
            elif step.startswith(b"MIRROR files"):
                answer = json.dumps(pair.copy.units()).encode()
            step = steps.send(answer)
    names = [name.removesuffix(".topic") for name in first]
    assert names[:3] == ["smaller", "zero", "gone"]
    assert names[-1] == "grown"


def test_a_topic_is_created_again_while_it_is_copied(pair):
    pair.write_logs(b"old")
    at = iter(range(100))

    def between() -> None:
        if next(at) == 4:
            pair.create_again(b"new")

    pair.catch_up(between)
    assert next(at) > 5
    pair.assert_equal()


def test_what_changes_while_it_is_copied_arrives(pair):
    random = Random(2)
    pair.write(SEGMENT, random.randbytes(3 * CHUNK))
    names = iter(range(100))

    def change() -> None:
        number = next(names)
        pair.write(SEGMENT, random.randbytes(10), random.randrange(3 * CHUNK))
        pair.write(CHECKPOINT + ".tmp", b"%d" % number)
        pair.files.rename(str(pair.paths[0] / (CHECKPOINT + ".tmp")), str(pair.paths[0] / CHECKPOINT))
        pair.files.mkdir(str(pair.paths[0] / f"nsq_compat/new{number}.topic"))
        pair.write(f"nsq_compat/new{number}.topic/log.00000000000000000001", b"new")

    done = 0

    def between() -> None:
        nonlocal done
        done += 1
        if done < 12:
            change()

    pair.catch_up(between=between)
    pair.assert_equal()


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/etc/passwd",
            "../nsqd.dat",
            "nsq_compat/reserve",
            "nsq_compat/identity",
            "nsq_compat/mirrors/x/mirror.json",
        ),
        *("nsq_compat/t.topic/..", "nsq_compat/t.topic/.", "nsq_compat/t.topic/a/b", "nsq_compat/../x.topic/a", ""),
        *("nsq_compat/t.topic/a\0b", "nsqd.dat.bad-1", "nsq_compat/t.deleted-1/log.00000000000000000001"),
    ],
)
def test_no_other_file_is_touched(pair, path):
    assert unit_of(path) is None
    for kind in range(mirror.WRITE, mirror.REMOVE_FOLDER + 1):
        with pytest.raises(ValueError, match="not a file that is mirrored"):
            pair.copy.apply([Change(kind, path, 0, b"x")])
    with pytest.raises(ValueError, match="not a file that is mirrored"):
        pair.copy.apply([Change(mirror.RENAME, SEGMENT, 0, path.encode())])
    with pytest.raises(ValueError, match="not a file that is mirrored"):
        pair.copy.sums(path)


@pytest.mark.parametrize(
    "unit", ["../../elsewhere", "../elsewhere.topic", "..", "", "t.topic/a", "identity", "mirrors"]
)
def test_a_standby_does_not_get_files_that_are_not_mirrored(pair, tmp_path, unit):
    for name in ("elsewhere", "primary/elsewhere.topic"):
        (tmp_path / name).mkdir()
        for number in (1, 2, 3):
            (tmp_path / name / f"log.{number}").write_bytes(b"secret")
    steps = catch_up(pair.files, str(pair.paths[0]), pair.changes)
    assert next(steps) == mirror.command("files")
    with pytest.raises(ValueError, match="which is not mirrored"):
        steps.send(json.dumps({"t.topic": {}, unit: {}}).encode())
    assert not pair.changes.take(100)


def test_an_unknown_kind_of_change_is_refused(pair):
    with pytest.raises(ValueError, match="unknown kind 99"):
        pair.copy.apply([Change(99, SEGMENT)])


def test_many_files_are_open_at_most(pair):
    paths = [f"nsq_compat/t.topic/log.{number:020}" for number in range(200)]
    before = len(os.listdir("/proc/self/fd"))
    pair.copy.apply([Change(mirror.MAKE_FOLDER, "nsq_compat/t.topic")])
    pair.copy.apply([Change(mirror.WRITE, path, 0, b"x") for path in paths])
    assert len(os.listdir("/proc/self/fd")) - before <= 64
    pair.copy.sync(one_by_one)
    assert read_file(cast(Files, OsFiles()), str(pair.paths[1] / paths[0])) == b"x"


class CountedFiles(OsFiles):
    """Counts the syncs by path. The first sync of `fails` fails."""

    def __init__(self, fails: str) -> None:
        self.synced: Counter[str] = Counter()
        self.fails = fails
        self._paths: dict[int, str] = {}

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:  # type: ignore[override]
        fd = super().open(path, flags, mode)
        self._paths[fd] = path
        return fd

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self.synced[self._paths[fd]] += 1
        if self._paths[fd] == self.fails and self.synced[self.fails] == 1:
            raise OSError(errno.EIO, "Input/output error")


@pytest.mark.interpreted
def test_what_could_not_be_synced_is_synced_again(pair):
    paths = [f"nsq_compat/t.topic/log.{number:020}" for number in range(10)]
    synced = {str(pair.paths[1] / path) for path in paths}
    files = CountedFiles(fails=min(synced))
    copy = MirrorCopy(cast(Files, files), str(pair.paths[1]), syncs=True)
    copy.apply([Change(mirror.MAKE_FOLDER, "nsq_compat/t.topic")])
    copy.apply([Change(mirror.WRITE, path, 0, b"x") for path in paths])
    with pytest.raises(OSError, match="Input/output error"):
        copy.sync(one_by_one)
    copy.sync(one_by_one)
    assert set(files.synced) == synced
    before = files.synced.copy()
    copy.sync(one_by_one)
    assert files.synced == before
    assert files.synced[files.fails] == 2
    copy.close()


@pytest.mark.parametrize("renamed", [False, True])
def test_what_a_sync_that_failed_has_not_written_is_written_again(renamed):
    disk = SimulatedDisk()
    disk.mkdir("/nsq_compat")
    disk.fsync_folder("/")
    copy = MirrorCopy(disk, "/", syncs=True)
    content = bytes(range(1, 256)) * 5000
    copy.apply([Change(mirror.MAKE_FOLDER, "nsq_compat/t.topic"), Change(mirror.WRITE, SEGMENT, 0, content)])
    disk.failing_syncs = 1
    with pytest.raises(OSError, match="broken"):
        copy.sync(one_by_one)
    path = SEGMENT
    if renamed:
        path = CHECKPOINT
        copy.apply([Change(mirror.RENAME, SEGMENT, data=path.encode())])
    copy.sync(one_by_one)
    copy.close()
    assert disk.power_cut(Random(1)).content(f"/{path}") == content


@pytest.mark.parametrize("kind", [mirror.WRITE, mirror.ZEROS, mirror.TRUNCATE, mirror.REMOVE, mirror.RENAME])
def test_a_file_does_not_take_the_place_of_a_folder_or_a_folder_that_of_a_file(pair, kind):
    for change in (Change(kind, "nsq_compat/x.topic"), Change(mirror.MAKE_FOLDER, SEGMENT)):
        with pytest.raises(ValueError, match="not a file that is mirrored"):
            pair.copy.apply([change])


def test_what_a_thread_writes_to_a_topic_that_is_deleted_meanwhile_is_not_sent(pair):
    pair.catch_up()
    folder = str(pair.paths[0] / "nsq_compat/t.topic")
    fd = pair.files.open(f"{folder}/checkpoint.tmp", os.O_RDWR | os.O_CREAT)
    pair.files.rename(folder, f"{folder}.deleted-1")
    pair.files.pwrite(fd, b"late", 0)
    pair.files.close(fd)
    pair.send()
    assert not (pair.paths[1] / "nsq_compat/t.topic").exists()


def test_a_write_of_many_bytes_is_several_changes(pair):
    pair.catch_up()
    content = Random(2).randbytes(3 * CHUNK + 5)
    pair.write(SEGMENT, content, 7)
    changes = pair.changes.take(1 << 30)
    assert max(len(change.data) for change in changes) == CHUNK
    pair.copy.apply(changes)
    pair.assert_equal()


# --- nsqd.dat, which a thread replaces --------------------------------------------------------------------------------


class InterruptedFiles(OsFiles):
    """Switches to the parent greenlet before and after each operation, as a thread may be interrupted there."""

    def __init__(self) -> None:
        for name in ("open", "pwrite", "fsync", "rename", "close"):
            setattr(self, name, partial(self._interrupted, getattr(self, name)))

    def _interrupted(self, operation, *arguments):
        self._switch()
        result = operation(*arguments)
        self._switch()
        return result

    def _switch(self) -> None:
        current = greenlet.getcurrent()
        if current.parent is not None:
            current.parent.switch()


@pytest.mark.parametrize("seed", range(100))
def test_the_copy_has_the_topics_of_a_save_that_goes_on_while_it_catches_up(pair, seed):
    random = Random(seed)
    path = str(pair.paths[0])
    save_metadata(pair.files, path, [TopicMetadata("old")])
    if random.random() < 0.5:
        pair.catch_up()
        pair.changes.forget()
    files = MirroredFiles(cast(Files, InterruptedFiles()), path, pair.changes)
    saving = greenlet.greenlet(lambda: save_metadata(files, path, [TopicMetadata("new")]))

    def save_some(steps: int) -> None:
        for _ in range(steps):
            if not saving.dead:
                saving.switch()

    save_some(random.randrange(14))
    pair.catch_up(lambda: save_some(random.randrange(4)))
    while not saving.dead:
        save_some(1)
    pair.send()
    assert load_metadata(cast(Files, OsFiles()), path) == (TopicMetadata("new"),)
    assert load_metadata(cast(Files, OsFiles()), str(pair.paths[1])) == (TopicMetadata("new"),)


# --- A primary that is lost while it catches up -----------------------------------------------------------------------


class LosablePrimary(DataPath):
    """A topic with small segments, of which `unfinished` are the bodies that a channel still needs."""

    segment_size = 400

    def __init__(self, pair: Pair, folder) -> None:
        super().__init__(pair.files, str(pair.paths[0]))
        self.pair = pair
        self.folder_for_copies = folder
        self.daemon = self.start()
        self.consumer = self.daemon.consumer("c", "t")
        self.names = iter(range(1000))
        self.unfinished: set[bytes] = set()

    def publish(self, count: int) -> None:
        for _ in range(count):
            body = b"%03d" % next(self.names) + bytes(20)
            self.daemon.publishes(body, topic="t")
            self.unfinished.add(body)

    def finish_all_but(self, *kept: bytes) -> None:
        taken = self.consumer.takes_all()
        finished = [each for each in taken if each[:3] not in kept]
        assert self.consumer.finishes(*finished) == []
        self.unfinished -= set(finished)

    def end_run(self) -> None:
        """Finish everything, and start again."""
        assert self.consumer.finishes(*self.unfinished) == []
        self.unfinished.clear()
        for _ in range(20):  # kept messages are only looked at every few times
            self.checkpoint(self.daemon, "t")
        self.daemon = self.restart(self.daemon)
        self.consumer = self.daemon.consumer("c", "t")

    def kept_files(self) -> list[str]:
        folder = self.pair.paths[0] / "nsq_compat/t.topic"
        return [f"{each.name} {each.stat().st_size}" for each in sorted(folder.glob("kept.*"))]

    def check_copy(self, mirrored: set[bytes]) -> None:
        """If the primary were lost now, the standby would report no loss, and would deliver what was mirrored."""
        copy = self.folder_for_copies / f"copy{next(self.names)}"
        shutil.copytree(self.pair.paths[1] / "nsq_compat/t.topic", copy)
        with StoredTopic(cast(Files, OsFiles()), str(copy)) as stored:
            bodies = {message.body(frame) for _, frames in stored.backlogs() for frame in frames}
            assert stored.log.damage.records == 0
            assert stored.checkpoint_error == ""
        assert self.unfinished & mirrored <= bodies
        shutil.rmtree(copy)


class CountingFiles(OsFiles):
    reads = 0

    def pread(self, fd, size, offset):
        CountingFiles.reads += 1
        return os.pread(fd, size, offset)


@pytest.mark.parametrize("end", [100, CHUNK, 9 * CHUNK + 5])
def test_the_end_of_a_log_file_is_found_before_what_is_reserved_however_large_that_is(tmp_path, end):
    CountingFiles.reads = 0
    copy = MirrorCopy(cast("Files", CountingFiles()), str(tmp_path), syncs=False)
    (tmp_path / "nsq_compat/t.topic").mkdir(parents=True)
    for size in (end, end + 3, end + CHUNK, 1 << 40):
        with open(tmp_path / SEGMENT, "wb") as file:
            file.write(encode_segment_header(1, salted(7)))
            file.seek(end - 1)
            file.write(b"x")
            file.truncate(size)
        CountingFiles.reads = 0
        assert copy.ends() == {"t": FileEnd(1, end, 7)}
        assert CountingFiles.reads < 10
    (tmp_path / SEGMENT.replace("1", "2")).write_bytes(encode_segment_header(1, salted(7)) + bytes(99))
    assert copy.ends() == {"t": FileEnd(1, end, 7)}, "a file without groups"


@pytest.mark.parametrize("size", [1, CHUNK, 9 * CHUNK + 5])
def test_the_sums_of_a_sparse_file_are_those_of_its_bytes(tmp_path, size):
    CountingFiles.reads = 0
    copy = MirrorCopy(cast("Files", CountingFiles()), str(tmp_path), syncs=False)
    (tmp_path / "nsq_compat/t.topic").mkdir(parents=True)
    with open(tmp_path / SEGMENT, "wb") as file:
        file.truncate(size)
        file.seek(3 * CHUNK + 7)
        file.write(b"x")
        file.truncate(size)
    data = (tmp_path / SEGMENT).read_bytes()
    assert copy.sums(SEGMENT) == [google_crc32c.value(data[at : at + CHUNK]) for at in range(0, size, CHUNK)]
    os.truncate(tmp_path / SEGMENT, 1 << 36)
    CountingFiles.reads = 0
    assert len(copy.sums(SEGMENT)) == (1 << 36) // CHUNK
    assert CountingFiles.reads < 20


@pytest.fixture
def losable(tmp_path):
    pair = Pair(tmp_path)
    primary = LosablePrimary(pair, tmp_path)
    yield primary
    primary.close()
    pair.copy.close()


def test_a_copy_is_usable_while_it_follows_segments_that_are_released(losable):
    losable.publish(30)
    losable.checkpoint(losable.daemon, "t")
    losable.pair.catch_up()
    losable.check_copy(losable.unfinished)
    mirrored = losable.unfinished.copy()
    losable.finish_all_but(*KEPT)
    losable.publish(5)
    losable.checkpoint(losable.daemon, "t")
    assert losable.daemon.topic("t").store.log.released_count, "otherwise the test would prove nothing"
    while changes := losable.pair.changes.take(1):
        losable.pair.copy.apply(changes)
        losable.check_copy(mirrored)
    losable.check_copy(losable.unfinished)
    losable.pair.assert_equal()


KEPT = (b"000", b"001", b"002", b"004", b"017")  # the first three are a whole segment


def test_a_copy_is_usable_while_it_catches_up_with_segments_that_were_released(losable):
    losable.publish(30)
    losable.checkpoint(losable.daemon, "t")
    losable.pair.catch_up()
    mirrored = losable.unfinished.copy()
    losable.pair.changes.forget()
    losable.finish_all_but(*KEPT)
    losable.publish(30)
    losable.checkpoint(losable.daemon, "t")
    files = sorted((losable.pair.paths[0] / "nsq_compat/t.topic").iterdir())
    assert files[1].name.startswith("kept."), "otherwise the test would prove nothing"
    assert [each.stat().st_size > 100 for each in files[2:6]] == [True, False, False, False]
    losable.pair.catch_up(between=lambda: losable.check_copy(mirrored))
    losable.check_copy(losable.unfinished)
    losable.pair.assert_equal()


@pytest.mark.parametrize("release_at", range(1, 16))
def test_a_copy_is_usable_while_segments_are_released_that_it_catches_up_with(losable, release_at):
    losable.publish(15)
    losable.checkpoint(losable.daemon, "t")
    losable.pair.catch_up()
    mirrored = losable.unfinished.copy()
    losable.pair.changes.forget()
    losable.publish(15)
    losable.checkpoint(losable.daemon, "t")
    steps = iter(range(1000))

    def between() -> None:
        if next(steps) == release_at:
            losable.finish_all_but(*KEPT)
            losable.publish(3)
            losable.checkpoint(losable.daemon, "t")
        losable.check_copy(mirrored)

    losable.pair.catch_up(between)
    assert next(steps) > release_at, "otherwise the test would prove nothing"
    losable.check_copy(losable.unfinished)
    losable.pair.assert_equal()


def test_a_copy_is_usable_while_it_catches_up_with_a_log_that_has_none_of_its_files_any_more(losable):
    losable.publish(30)
    losable.checkpoint(losable.daemon, "t")
    losable.pair.catch_up()
    mirrored = losable.unfinished.copy()
    losable.pair.changes.forget()
    losable.publish(30)
    losable.finish_all_but(b"004", b"017", b"050")
    losable.checkpoint(losable.daemon, "t")
    logs = [{each.name for each in path.glob("nsq_compat/t.topic/log.*")} for path in losable.pair.paths]
    assert not logs[0] & logs[1], "otherwise the test would prove nothing"
    losable.pair.catch_up(between=lambda: losable.check_copy(mirrored))
    losable.check_copy(losable.unfinished)
    losable.pair.assert_equal()


def test_a_copy_is_usable_while_kept_messages_are_replaced_by_those_of_a_later_run(losable):
    losable.publish(30)
    losable.finish_all_but(*KEPT)
    losable.checkpoint(losable.daemon, "t")
    losable.pair.catch_up()
    losable.pair.changes.forget()
    assert losable.kept_files(), "otherwise the test would prove nothing"
    losable.end_run()
    before = losable.kept_files()
    losable.publish(30)
    losable.finish_all_but(b"031", b"047")
    losable.checkpoint(losable.daemon, "t")
    assert losable.kept_files() != before, "otherwise the test would prove nothing"
    losable.pair.catch_up(between=lambda: losable.check_copy(set()))
    losable.check_copy(losable.unfinished)
    losable.pair.assert_equal()
