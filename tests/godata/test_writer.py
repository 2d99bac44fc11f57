"""Writing Go's queues: the rule for beginning a file, and what is left when writing fails."""

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.godata.format import GoMessage, Positions, encode_record
from nsq_compat.godata.reader import QueueReport, read_queue
from nsq_compat.godata.writer import write_queue
from nsq_compat.log.files import OsFiles


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


def test_many_megabytes_are_written_in_pieces(tmp_path):
    bodies = [os.urandom(700_000) for _ in range(5)]
    write_queue(OsFiles(), str(tmp_path), "t", map(stored, bodies), 100 << 20)
    assert [each.body for each in read_queue(OsFiles(), str(tmp_path), "t")] == bodies


def test_a_queue_that_exists_is_refused(tmp_path):
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


def test_wherever_writing_fails_nothing_is_left(tmp_path):
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
