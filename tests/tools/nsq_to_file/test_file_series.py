"""The files of a topic, one after the other, at moments the tests choose."""

import gzip
import os
import time

import pytest

from nsq_compat.tools.nsq_to_file.file_names import FileNames
from nsq_compat.tools.nsq_to_file.file_series import FileSeries, Rules

HOUR_NS = 3600 * 10**9
NOON_NS = int(time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))) * 10**9


class Topic:
    """A series, and the moment it is there."""

    def __init__(self, folder, moves=False, **rules):
        self.output = folder / "output"
        self.rules = Rules(
            output_dir=str(self.output), work_dir=str(folder / "work" if moves else self.output), **rules
        )
        self.work = folder / "work" if moves else self.output
        self.now = 0.0
        self.now_ns = NOON_NS
        self.start()

    def start(self):
        names = FileNames.of(
            "<TOPIC><REV>.<DATETIME>",
            "%H",
            hostname="vm",
            pid=1,
            needs_revisions=self.rules.needs_revisions,
            gzip=self.rules.gzip_level is not None,
        )
        self.series = FileSeries("t", names, self.rules)

    def writes(self, *bodies):
        left = list(bodies)
        while left:
            if self.series.must_rotate(self.now, self.now_ns):
                self.series.open_next(self.now, self.now_ns)
            count = self.series.count_fitting(left)
            self.series.write(left[:count])
            left = left[count:]

    def files(self, folder=None) -> dict[str, bytes]:
        """Of the output directory, closed or not."""
        folder = folder or self.output
        return {name: (folder / name).read_bytes() for name in sorted(os.listdir(folder))}


@pytest.fixture
def topic(tmp_path):
    return lambda **rules: Topic(tmp_path, **rules)


def test_a_file_ends_when_the_date_in_its_name_has_passed(topic):
    t = topic()
    t.writes(b"1", b"2")
    t.now_ns += HOUR_NS - 1
    t.writes(b"3")
    t.now_ns += 1
    t.writes(b"4")
    assert t.files() == {"t.12": b"1\n2\n3\n", "t.13": b"4\n"}


def test_after_a_restart_the_same_file_is_continued(topic):
    t = topic()
    t.writes(b"1")
    t.series.close()
    t.start()
    t.writes(b"2")
    assert t.files() == {"t.12": b"1\n2\n"}


def test_a_file_ends_with_the_message_that_makes_it_too_large(topic):
    t = topic(rotate_size=5)
    t.writes(b"12", b"12", b"12", b"1234567", b"1")
    assert t.files() == {"t-000000.12": b"12\n12\n", "t-000001.12": b"12\n1234567\n", "t-000002.12": b"1\n"}


def test_after_a_restart_the_first_file_that_is_not_too_large_is_continued(topic):
    t = topic(rotate_size=5)
    t.writes(b"12", b"12", b"12")
    t.series.close()
    t.start()
    t.writes(b"3")
    assert t.files() == {"t-000000.12": b"12\n12\n", "t-000001.12": b"12\n3\n"}


def test_a_file_ends_when_it_is_old_and_none_is_appended_to(topic):
    t = topic(rotate_interval=10)
    t.writes(b"1")
    t.now = 10.0
    t.writes(b"2")
    t.now = 10.5
    t.writes(b"3")
    t.series.close()
    t.start()
    t.writes(b"4")
    assert t.files() == {"t-000000.12": b"1\n2\n", "t-000001.12": b"3\n", "t-000002.12": b"4\n"}


def test_a_new_date_restarts_the_revisions(topic):
    t = topic(rotate_interval=10)
    t.writes(b"1")
    t.now, t.now_ns = 11.0, NOON_NS + HOUR_NS
    t.writes(b"2")
    assert list(t.files()) == ["t-000000.12", "t-000000.13"]


def test_compressed_files_are_complete_when_closed_and_never_appended_to(topic):
    t = topic(gzip_level=6)
    for number in (b"1", b"2"):
        t.writes(number)
        t.series.close()
        t.start()
    assert {name: gzip.decompress(data) for name, data in t.files().items()} == {
        "t-000000.12.gz": b"1\n",
        "t-000001.12.gz": b"2\n",
    }


def test_the_size_of_compressed_files_is_that_of_their_messages(topic):
    t = topic(gzip_level=6, rotate_size=5)
    t.writes(b"12", b"12", b"12")
    t.series.close()
    assert [gzip.decompress(data) for data in t.files().values()] == [b"12\n12\n", b"12\n"]


def test_a_compressed_file_of_a_killed_process_is_repaired(topic):
    t = topic(gzip_level=6)
    t.output.mkdir()
    (t.output / "t-000000.12.gz").write_bytes(gzip.compress(b"1\n") + gzip.compress(b"2\n")[:5])
    t.writes(b"3")
    t.series.close()
    assert [gzip.decompress(data) for data in t.files().values()] == [b"1\n", b"3\n"]


def test_with_a_work_directory_the_output_directory_has_only_finished_files(topic):
    t = topic(moves=True, rotate_size=3)
    t.writes(b"12", b"12", b"3")
    assert t.files() == {"t-000000.12": b"12\n12\n"}
    assert t.files(t.work) == {"t-000001.12": b"3\n"}
    t.series.close()
    assert t.files() == {"t-000000.12": b"12\n12\n", "t-000001.12": b"3\n"}
    assert t.files(t.work) == {}


def test_after_two_closes_the_next_revision_is_opened(topic):
    t = topic(moves=True)
    for number in (b"1", b"2"):
        t.writes(number)
        t.series.close()
        t.series.close()
    assert t.files() == {"t-000000.12": b"1\n", "t-000001.12": b"2\n"}


def test_a_name_that_is_taken_in_the_output_directory_is_not_used(topic):
    t = topic(moves=True)
    t.output.mkdir()
    (t.output / "t-000000.12").write_bytes(b"before\n")
    t.writes(b"1")
    t.series.close()
    assert t.files() == {"t-000000.12": b"before\n", "t-000001.12": b"1\n"}


def test_two_processes_in_one_work_directory_have_a_file_each(topic, tmp_path):
    one, another = topic(moves=True), topic(moves=True)
    for number in (b"1", b"2"):
        one.writes(number)
        another.writes(number)
    one.series.close()
    another.series.close()
    assert one.files() == {"t-000000.12": b"1\n2\n", "t-000001.12": b"1\n2\n"}


def test_two_paths_of_one_folder_are_the_same(tmp_path):
    (tmp_path / "o").mkdir()
    rules = Rules(output_dir=str(tmp_path / "o"), work_dir=str(tmp_path / "." / "o" / ".." / "o"))
    assert not rules.moves


def test_a_file_that_was_moved_away_is_created_again(topic):
    t = topic()
    t.writes(b"1")
    os.rename(t.output / "t.12", t.output / "rotated")
    t.writes(b"2")
    t.series.close()
    t.writes(b"3")
    assert t.files() == {"rotated": b"1\n2\n", "t.12": b"3\n"}
