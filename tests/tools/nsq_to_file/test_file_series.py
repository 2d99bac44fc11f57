"""The files of a topic: their names, which can be read back, and one after the other at moments the tests choose."""

import errno
import gzip
import os
import shutil
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol.durations import SECOND
from nsq_compat.tools.nsq_to_file import file_series
from nsq_compat.tools.nsq_to_file.file_series import (
    BadFormat,
    FileNames,
    FileOptions,
    FileSeries,
    Name,
    datetime_text,
    put_in_place,
    recover,
)
from nsq_compat.tools.nsq_to_file.output_file import OutputFile

HOUR_NS = 3600 * 10**9
NOON_NS = int(time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))) * 10**9
NOW_NS = int(time.mktime((2026, 11, 21, 4, 5, 6, 5, 325, -1))) * 10**9


def names(
    filename_format="<TOPIC>.<HOST><REV>.<DATETIME>.log",
    dates="%Y-%m-%d_%H",
    needs_revisions=True,
    gzip=False,
    **options,
):
    options |= {"filename_format": filename_format, "datetime_format": dates, "gzip": gzip}
    return FileNames(
        FileOptions(output_dir="/o", work_dir="/w" if needs_revisions else "", **options), "vm.example.org", 77
    )


@pytest.mark.parametrize(
    ("filename_format", "options", "name"),
    [
        ("<DATETIME>/<TOPIC>/<HOST>.<PID><REV>", {}, "2026-11-21_04/t/vm.77-000003"),
        ("<TOPIC>.<HOST><REV>.<DATETIME>.log", {"needs_revisions": False}, "t.vm.2026-11-21_04.log"),
        ("<TOPIC><REV>", {"gzip": True}, "t-000003.gz"),
        ("<TOPIC><REV>.gz", {"gzip": True}, "t-000003.gz"),
        ("<HOST><REV>", {"host_identifier": "dc1-<SHORT_HOST>-<HOSTNAME>"}, "dc1-vm-vm.example.org-000003"),
        ("/a/<TOPIC><REV>", {}, "a/t-000003"),
    ],
)
def test_every_token_has_its_value(filename_format, options, name):
    made = names(filename_format, **options).name("t", NOW_NS)
    assert made.with_revision(3) == name
    assert made.is_gzip == ("gzip" in options)


def test_with_files_of_the_same_name_a_format_without_revisions_is_refused():
    with pytest.raises(BadFormat, match="missing <REV> in --filename-format when gzip, rotation, or work dir enabled"):
        names("<TOPIC>.log")


def test_a_topic_cannot_lead_out_of_the_folder():
    with pytest.raises(BadFormat, match="leads out"):
        names("<TOPIC>/x<REV>").name("..", NOW_NS)


@pytest.mark.parametrize("filename_format", ["<TOPIC>", "<DATETIME>/<TOPIC>", "<TOPIC>/"])
def test_a_file_cannot_have_the_name_of_its_folder(filename_format):
    with pytest.raises(BadFormat, match="is a directory"):
        names(filename_format, needs_revisions=False).name(".", NOW_NS)


def test_a_topic_cannot_put_a_file_where_another_has_its_folder():
    with pytest.raises(BadFormat, match="folder of its own"):
        names("<TOPIC>/<DATETIME><REV>.log").name(".", NOW_NS)
    with pytest.raises(BadFormat, match="folder of its own"):
        names("<DATETIME>/<TOPIC>/x<REV>").name(".", NOW_NS)
    assert names("./a/./<TOPIC>/x<REV>").name("t", NOW_NS).template == "a/t/x<REV>"
    assert names("<TOPIC>.log<REV>").name(".", NOW_NS).template == "..log<REV>"


@pytest.mark.parametrize(
    ("datetime_format", "text"),
    [
        ("%Y-%m-%d_%H", "2026-11-21_04"),
        ("%y%I%M%S%p", "26040506AM"),
        ("%B %b %A %a", "November Nov Saturday Sat"),
        ("100%% %j %", "100% %j %"),
        ("2006-01-02", "2006-01-02"),
        ("%%Y", "%Y"),
    ],
)
def test_dates_use_the_codes_of_nsq_and_other_text_stays(datetime_format, text):
    assert datetime_text(datetime_format, NOW_NS) == text


TOPICS = st.from_regex(r"\A[.a-zA-Z0-9_-]{1,10}(#ephemeral)?\Z").filter(lambda topic: topic not in (".", ".."))


@given(TOPICS, st.integers(0, 10**7), st.booleans())
def test_a_name_is_recognized(topic, revision, gzip):
    made = names("<TOPIC>/<PID>.<HOST><REV>.<DATETIME>.log<REV>", "%Y/%m", gzip=gzip)
    name = made.name(topic, NOW_NS)
    assert made.recognize(name.with_revision(revision)) == (topic, name, revision)


def test_a_name_of_another_process_is_recognized_with_or_without_compression():
    found = names("<TOPIC>.<HOST><REV>.<PID>.<DATETIME>").recognize("t.vm-000012.99.1999.gz")
    assert found == ("t", Name("t.vm<REV>.99.1999.gz"), 12)


@pytest.mark.parametrize("path", ["t.other-000000.x.log", "t.vm.x.log", "t.vm-000000.x.log.tmp", "vm-000000.x.log"])
def test_names_of_other_programs_are_not_recognized(path):
    assert names().recognize(path) is None


# --- One after the other --------------------------------------------------------------------------------------------


class Topic:
    """A series, and the moment it is there."""

    def __init__(self, folder, moves=False, **options):
        self.output = folder / "output"
        self.options = FileOptions(
            output_dir=str(self.output),
            work_dir=str(folder / "work") if moves else "",
            filename_format="<TOPIC><REV>.<DATETIME>",
            datetime_format="%H",
            **options,
        )
        self.work = folder / "work" if moves else self.output
        self.now = 0.0
        self.now_ns = NOON_NS
        self.start()

    def start(self):
        self.series = FileSeries("t", FileNames(self.options, "vm"), self.options)

    def writes(self, *bodies):
        left = list(bodies)
        while left:
            if self.series.must_rotate(self.now, self.now_ns):
                self.series.open_next(self.now, self.now_ns)
            del left[: self.series.write(left)]

    def files(self, folder=None) -> dict[str, bytes]:
        """Of the output directory, closed or not."""
        folder = folder or self.output
        return {name: (folder / name).read_bytes() for name in sorted(os.listdir(folder))}


@pytest.fixture
def topic(tmp_path):
    return lambda **options: Topic(tmp_path, **options)


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
    t = topic(rotate_interval=10 * SECOND)
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
    t = topic(rotate_interval=10 * SECOND)
    t.writes(b"1")
    t.now, t.now_ns = 11.0, NOON_NS + HOUR_NS
    t.writes(b"2")
    assert list(t.files()) == ["t-000000.12", "t-000000.13"]


def test_compressed_files_are_complete_when_closed_and_never_appended_to(topic):
    t = topic(gzip=True)
    for number in (b"1", b"2"):
        t.writes(number)
        t.series.close()
        t.start()
    assert {name: gzip.decompress(data) for name, data in t.files().items()} == {
        "t-000000.12.gz": b"1\n",
        "t-000001.12.gz": b"2\n",
    }


def test_the_size_of_compressed_files_is_that_of_their_messages(topic):
    t = topic(gzip=True, rotate_size=5)
    t.writes(b"12", b"12", b"12")
    t.series.close()
    assert [gzip.decompress(data) for data in t.files().values()] == [b"12\n12\n", b"12\n"]


def test_a_compressed_file_of_a_killed_process_is_repaired(topic):
    t = topic(gzip=True)
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
    options = FileOptions(output_dir=str(tmp_path / "o"), work_dir=str(tmp_path / "." / "o" / ".." / "o"))
    assert not options.moves


def test_a_file_that_was_moved_away_is_created_again(topic):
    t = topic()
    t.writes(b"1")
    os.rename(t.output / "t.12", t.output / "rotated")
    t.writes(b"2")
    t.series.close()
    t.writes(b"3")
    assert t.files() == {"rotated": b"1\n2\n", "t.12": b"3\n"}


# --- Putting files in place ------------------------------------------------------------------------------------------


@pytest.fixture
def work(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def output(tmp_path):
    return tmp_path / "output"


def put(work, output, revision=0) -> str:
    (work / "f").write_bytes(b"content")
    return os.path.relpath(put_in_place(str(work / "f"), str(output), Name("folder/f<REV>.log"), revision), output)


def test_a_file_is_moved_to_its_name(work, output):
    assert put(work, output, revision=4) == "folder/f-000004.log"
    assert (output / "folder/f-000004.log").read_bytes() == b"content"
    assert not list(work.iterdir())


def test_an_existing_file_stays_and_the_next_revision_is_used(work, output):
    assert [put(work, output) for _ in range(3)] == [f"folder/f-{number:06d}.log" for number in range(3)]


@pytest.fixture(params=[errno.EXDEV, errno.EPERM])
def without_links(request, monkeypatch):
    def no_link(source, target):
        raise OSError(request.param, "no link")

    monkeypatch.setattr(os, "link", no_link)


@pytest.mark.usefixtures("without_links")
def test_without_links_a_file_is_copied(work, output):
    assert [put(work, output) for _ in range(2)] == ["folder/f-000000.log", "folder/f-000001.log"]
    assert sorted(os.listdir(output / "folder")) == ["f-000000.log", "f-000001.log"]
    assert (output / "folder/f-000001.log").read_bytes() == b"content"
    assert not list(work.iterdir())


@pytest.mark.usefixtures("without_links")
def test_a_copy_that_fails_leaves_nothing_behind(work, output, monkeypatch):
    def no_room(source, target):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(shutil, "copyfileobj", no_room)
    with pytest.raises(OSError, match="full"):
        put(work, output)
    assert not list((output / "folder").iterdir())
    assert (work / "f").read_bytes() == b"content"


@pytest.fixture
def of_vm():
    form = "<TOPIC>/<HOST><REV>.<DATETIME>.log"
    options = FileOptions(output_dir="/o", work_dir="/w", filename_format=form, datetime_format="%Y")
    return FileNames(options, "vm")


def recovered(work, output, names, wants=lambda topic: True) -> dict[str, bytes]:
    recover(str(work), str(output), names, wants)
    return {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()}


def leave(path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize("data", [b"", b"left\n"])
def test_a_file_that_another_process_put_in_place_meanwhile_is_left_alone(work, output, of_vm, monkeypatch, data):
    leave(work / "t/vm-000000.2020.log", data)

    def lock(_) -> bool:  # when it succeeds, the other process has put the file away, and writes to a new one
        (work / "t/vm-000000.2020.log").unlink()
        leave(work / "t/vm-000000.2020.log", b"new\n")
        return True

    monkeypatch.setattr(file_series, "lock", lock)
    assert not recovered(work, output, of_vm)
    assert (work / "t/vm-000000.2020.log").read_bytes() == b"new\n"


def test_files_of_a_dead_process_are_put_in_place_without_overwriting(work, output, of_vm):
    leave(work / "t/vm-000002.2020.log", b"left\n")
    leave(output / "t/vm-000002.2020.log", b"before\n")
    assert recovered(work, output, of_vm) == {"t/vm-000002.2020.log": b"before\n", "t/vm-000003.2020.log": b"left\n"}


def test_a_compressed_file_of_a_dead_process_can_be_opened(work, output, of_vm):
    leave(work / "t/vm-000000.2020.log.gz", gzip.compress(b"one\n") + gzip.compress(b"two\n")[:-3])
    (data,) = recovered(work, output, of_vm).values()
    assert gzip.decompress(data) == b"one\n"


def test_a_damaged_file_is_put_in_place_unchanged(work, output, of_vm):
    leave(work / "t/vm-000000.2020.log.gz", b"damaged")
    assert recovered(work, output, of_vm) == {"t/vm-000000.2020.log.gz": b"damaged"}


def test_empty_files_are_deleted(work, output, of_vm):
    leave(work / "t/vm-000000.2020.log", b"")
    leave(work / "t/vm-000001.2020.log.gz", gzip.compress(b"never synced")[:-1])
    assert recovered(work, output, of_vm) == {}
    assert not list((work / "t").iterdir())


def test_a_file_of_a_live_process_stays(work, output, of_vm):
    file = OutputFile(str(work / "t/vm-000000.2020.log"), exclusive=True)
    file.write(b"line\n")
    assert recovered(work, output, of_vm) == {}
    file.close()
    assert len(recovered(work, output, of_vm)) == 1


def test_files_of_other_topics_and_other_programs_stay(work, output, of_vm):
    leave(work / "other/vm-000000.2020.log", b"line\n")
    leave(work / "t/notes.txt", b"line\n")
    assert recovered(work, output, of_vm, wants=lambda topic: topic == "t") == {}


def test_a_file_that_cannot_be_moved_does_not_affect_others(work, output, of_vm):
    leave(work / "a/vm-000000.2020.log", b"line\n")
    leave(work / "t/vm-000000.2020.log", b"line\n")
    output.mkdir()
    (output / "a").write_bytes(b"a file where a folder should be")
    assert recovered(work, output, of_vm).keys() == {"a", "t/vm-000000.2020.log"}
    assert (work / "a/vm-000000.2020.log").exists()
