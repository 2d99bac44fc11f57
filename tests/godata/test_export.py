"""An export switches all messages to Go at once, at whatever step the process is killed."""

import errno
import os
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.godata.export import ExportRefused, export, recover, write_queue
from nsq_compat.godata.format import GoMessage, Positions, encode_record, frame_of
from nsq_compat.godata.reader import QueueReport, read_queue
from nsq_compat.log.files import OsFiles
from nsq_compat.log.metadata import ChannelMetadata, TopicMetadata, decode_metadata, save_metadata
from tests.faults.disk import Crash, DyingFiles

TOPICS = (TopicMetadata("t", True, (ChannelMetadata("c", True),)), TopicMetadata("idle"))


def frame(body):
    return frame_of(GoMessage(1_700_000_000_000_000_000, 0, b"0123456789abcdef", body))


def backlogs():
    yield "t", None, [frame(b"1")]
    yield "t", "c", map(frame, [b"2", b"3"])
    yield "u", "d", [frame(b"4")]


def ours(folder):
    (folder / "nsq_compat" / "t.topic").mkdir(parents=True)
    (folder / "nsq_compat" / "t.topic" / "log").write_bytes(b"precious")
    save_metadata(OsFiles(), str(folder), TOPICS)


def run(files, source, target):
    return list(export(files, str(source), str(target), TOPICS, backlogs(), 1 << 20))


def gos(folder):
    return [[each.body for each in read_queue(OsFiles(), str(folder), name)] for name in ("t", "t:c", "u:d")]


def metadata_of(folder):
    return decode_metadata((folder / "nsqd.dat").read_bytes()).topics


COMPLETE = [[b"1"], [b"2", b"3"], [b"4"]]
NOTHING: list[list[bytes]] = [[], [], []]


def test_all_messages_become_gos_and_our_folder_is_kept(tmp_path):
    ours(tmp_path)
    assert run(OsFiles(), tmp_path, tmp_path) == [("t", 1), ("t:c", 2), ("u:d", 1)]
    assert gos(tmp_path) == COMPLETE
    others = sorted(name for name in os.listdir(tmp_path) if "diskqueue" not in name)
    assert others == ["nsq_compat.exported-1", "nsqd.dat"]
    assert (tmp_path / "nsq_compat.exported-1" / "t.topic" / "log").read_bytes() == b"precious"


def test_the_exported_nsqd_dat_names_every_queue(tmp_path):
    ours(tmp_path)
    run(OsFiles(), tmp_path, tmp_path)
    assert metadata_of(tmp_path) == (*TOPICS, TopicMetadata("u", False, (ChannelMetadata("d"),)))


def test_another_folder_gets_a_copy(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    ours(source)
    run(OsFiles(), source, target)
    assert gos(target) == COMPLETE
    assert sorted(os.listdir(source)) == ["nsq_compat", "nsqd.dat"]
    assert "nsq_compat" not in os.listdir(target)


def test_a_second_export_keeps_the_first(tmp_path):
    for _ in range(2):
        ours(tmp_path)
        run(OsFiles(), tmp_path, tmp_path)
        for name in os.listdir(tmp_path):
            if "diskqueue" in name:
                os.unlink(tmp_path / name)
    assert {"nsq_compat.exported-1", "nsq_compat.exported-2"} <= set(os.listdir(tmp_path))


@pytest.mark.parametrize(
    ("is_ours", "elsewhere", "present", "reason"),
    [
        (True, False, "x.diskqueue.meta.dat", "already has queue files of Go's nsqd, such as x.diskqueue.meta.dat"),
        (False, False, "other", "nothing to export"),
        (True, True, "nsqd.dat", "is already a data path"),
    ],
)
def test_an_unsuitable_target_is_refused(tmp_path, is_ours, elsewhere, present, reason):
    target = tmp_path / "target" if elsewhere else tmp_path
    target.mkdir(exist_ok=True)
    if is_ours:
        ours(tmp_path)
    (target / present).touch()
    with pytest.raises(ExportRefused, match=reason):
        run(OsFiles(), tmp_path, target)


def test_a_backlog_that_cannot_be_read_changes_nothing(tmp_path):
    ours(tmp_path)

    def broken():
        yield frame(b"1")
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        list(export(OsFiles(), str(tmp_path), str(tmp_path), TOPICS, [("t", None, broken())], 1 << 20))
    recover(OsFiles(), str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["nsq_compat", "nsqd.dat"]


def test_all_messages_are_ours_or_gos_at_whatever_step_the_process_is_killed(tmp_path):
    outcomes = []
    for number in range(1, 1000):
        folder = tmp_path / str(number)
        folder.mkdir()
        ours(folder)
        try:
            run(DyingFiles(number), folder, folder)
        except Crash:
            recover(OsFiles(), str(folder))
        else:
            break
        finally:
            is_ours = (folder / "nsq_compat").is_dir()
            outcomes.append(is_ours)
            assert gos(folder) == (NOTHING if is_ours else COMPLETE), number
            assert metadata_of(folder)[: len(TOPICS)] == TOPICS
            left = {name for name in os.listdir(folder) if "diskqueue" not in name}
            assert left == {"nsqd.dat", "nsq_compat" if is_ours else "nsq_compat.exported-1"}
            shutil.rmtree(folder)
    assert outcomes == sorted(outcomes, reverse=True)
    assert set(outcomes) == {True, False}


def test_the_process_may_be_killed_again_while_it_recovers(tmp_path):
    for number in range(1, 60, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        ours(folder)
        try:
            run(DyingFiles(number), folder, folder)
        except Crash:
            for again in range(1, 12):
                try:
                    recover(DyingFiles(again), str(folder))
                except Crash:
                    continue
        recover(OsFiles(), str(folder))
        assert gos(folder) == (NOTHING if (folder / "nsq_compat").is_dir() else COMPLETE)


def stored(body):
    return GoMessage(1_700_000_000_000_000_000, 0, b"0123456789abcdef", body)


SIZE = len(encode_record(stored(b"")))


def sizes(folder):
    return {name: os.path.getsize(folder / name) for name in sorted(os.listdir(folder))}


def test_the_files_are_those_of_go(tmp_path):
    write_queue(OsFiles(), str(tmp_path), "t:c", [stored(b"hello")], 1000)
    assert (tmp_path / "t:c.diskqueue.meta.dat").read_bytes() == b"1\n0,0\n0,35\n"
    by_hand = bytes.fromhex("0000001f17979cfe362a00000000") + b"0123456789abcdef" + b"hello"
    assert (tmp_path / "t:c.diskqueue.000000.dat").read_bytes() == by_hand
    assert {os.stat(tmp_path / name).st_mode & 0o777 for name in os.listdir(tmp_path)} == {0o600}


def test_a_file_ends_before_the_record_that_would_exceed_it(tmp_path):
    bodies = [b"a" * 10, b"b" * 10, b"c" * 10, b"d" * 500, b"e" * 10]
    positions = write_queue(OsFiles(), str(tmp_path), "t", map(stored, bodies), 2 * (SIZE + 10))
    assert positions == Positions(5, 0, 0, 3, SIZE + 10)
    assert sizes(tmp_path) == {
        "t.diskqueue.000000.dat": 2 * (SIZE + 10),
        "t.diskqueue.000001.dat": SIZE + 10,
        "t.diskqueue.000002.dat": SIZE + 500,  # a record larger than a file has one to itself
        "t.diskqueue.000003.dat": SIZE + 10,
        "t.diskqueue.meta.dat": len(positions.encode()),
    }


def test_an_empty_queue_is_only_positions(tmp_path):
    write_queue(OsFiles(), str(tmp_path), "t", [], 1000)
    assert os.listdir(tmp_path) == ["t.diskqueue.meta.dat"]
    assert (tmp_path / "t.diskqueue.meta.dat").read_bytes() == b"0\n0,0\n0,0\n"


@given(st.lists(st.binary(max_size=300), max_size=30), st.integers(1, 1000))
def test_what_is_written_is_read_again(tmp_path_factory, bodies, limit):
    folder = tmp_path_factory.mktemp("queue")
    write_queue(OsFiles(), str(folder), "t", map(stored, bodies), limit)
    report = QueueReport()
    assert [each.body for each in read_queue(OsFiles(), str(folder), "t", report)] == bodies
    assert (report.claimed_depth, report.damaged_parts, report.unsynced) == (len(bodies), 0, 0)
    largest = max((SIZE + len(body) for body in bodies), default=0)
    assert all(size <= max(limit, largest) for name, size in sizes(folder).items() if "meta" not in name)


def test_many_megabytes_are_written_in_several_writes(tmp_path):
    bodies = [os.urandom(700_000) for _ in range(5)]
    write_queue(OsFiles(), str(tmp_path), "t", map(stored, bodies), 100 << 20)
    assert [each.body for each in read_queue(OsFiles(), str(tmp_path), "t")] == bodies


def test_an_existing_queue_is_refused(tmp_path):
    (tmp_path / "t.diskqueue.000004.dat").write_bytes(b"")
    with pytest.raises(FileExistsError, match="the queue t exists already"):
        write_queue(OsFiles(), str(tmp_path), "t", [], 1000)


def test_bad_files_are_no_queue(tmp_path):
    (tmp_path / "t.diskqueue.000000.dat.bad").write_bytes(b"")
    write_queue(OsFiles(), str(tmp_path), "t", [stored(b"a")], 1000)


class Failing(OsFiles):
    """The n-th write, sync or rename fails."""

    def __init__(self, number):
        self.left = number

    def __getattribute__(self, name):
        if name in ("pwrite", "fsync", "fsync_folder", "rename"):
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().__getattribute__(name)


def test_a_failed_write_leaves_no_files(tmp_path):
    failures = 0
    for number in range(1, 100):
        try:
            write_queue(Failing(number), str(tmp_path), "t", map(stored, [b"a", b"b", b"c"]), SIZE + 1)
        except OSError:
            failures += 1
        else:
            break
        assert os.listdir(tmp_path) in ([], ["t.diskqueue.meta.dat"])
        for name in os.listdir(tmp_path):
            os.unlink(tmp_path / name)
    assert failures == 11  # three files written and synced, their names; the positions likewise, and renamed
