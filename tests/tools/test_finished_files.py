"""Into the output directory, never over anything, and what dead processes left."""

import errno
import gzip
import os
import shutil

import pytest

from nsq_compat.tools.file_names import FileNames, Name
from nsq_compat.tools.finished_files import make_whole, put_in_place, recover
from nsq_compat.tools.output_file import OutputFile


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


def test_a_file_goes_to_its_name(work, output):
    assert put(work, output, revision=4) == "folder/f-000004.log"
    assert (output / "folder/f-000004.log").read_bytes() == b"content"
    assert not list(work.iterdir())


def test_what_is_there_stays_and_the_next_revision_is_taken(work, output):
    assert [put(work, output) for _ in range(3)] == [f"folder/f-{number:06d}.log" for number in range(3)]


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM])
def test_where_no_links_lead_it_is_copied(work, output, monkeypatch, number):
    def no_link(source, target):
        raise OSError(number, "no link")

    monkeypatch.setattr(os, "link", no_link)
    assert [put(work, output) for _ in range(2)] == ["folder/f-000000.log", "folder/f-000001.log"]
    assert sorted(os.listdir(output / "folder")) == ["f-000000.log", "f-000001.log"]
    assert (output / "folder/f-000001.log").read_bytes() == b"content"
    assert not list(work.iterdir())


def test_a_copy_that_fails_leaves_nothing_behind(work, output, monkeypatch):
    def no_link(source, target):
        raise OSError(errno.EXDEV, "no link")

    def no_room(source, target):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "link", no_link)
    monkeypatch.setattr(shutil, "copyfileobj", no_room)
    with pytest.raises(OSError, match="full"):
        put(work, output)
    assert not list((output / "folder").iterdir())
    assert (work / "f").read_bytes() == b"content"


@pytest.fixture
def names():
    return FileNames("<TOPIC>/<HOST><REV>.<DATETIME>.log", "%Y", "vm", 1)


def recovered(work, output, names, wants=lambda topic: True) -> dict[str, bytes]:
    recover(str(work), str(output), names, wants)
    return {str(path.relative_to(output)): path.read_bytes() for path in output.rglob("*") if path.is_file()}


def leave(path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


def test_what_a_dead_process_left_is_put_in_place_and_not_over_anything(work, output, names):
    leave(work / "t/vm-000002.2020.log", b"left\n")
    output.mkdir()
    leave(output / "t/vm-000002.2020.log", b"before\n")
    assert recovered(work, output, names) == {"t/vm-000002.2020.log": b"before\n", "t/vm-000003.2020.log": b"left\n"}


def test_compressed_it_opens_again(work, output, names):
    leave(work / "t/vm-000000.2020.log.gz", gzip.compress(b"one\n") + gzip.compress(b"two\n")[:-3])
    (data,) = recovered(work, output, names).values()
    assert gzip.decompress(data) == b"one\n"


def test_what_is_damaged_is_kept_as_it_is(work, output, names):
    leave(work / "t/vm-000000.2020.log.gz", b"damaged")
    assert recovered(work, output, names) == {"t/vm-000000.2020.log.gz": b"damaged"}


def test_files_with_nothing_in_them_go(work, output, names):
    leave(work / "t/vm-000000.2020.log", b"")
    leave(work / "t/vm-000001.2020.log.gz", gzip.compress(b"never synced")[:-1])
    output.mkdir()
    assert recovered(work, output, names) == {}
    assert not list((work / "t").iterdir())


def test_a_file_of_a_process_that_lives_is_its_own(work, output, names):
    file = OutputFile.open(str(work / "t/vm-000000.2020.log"), exclusive=True)
    file.write(b"line\n")
    output.mkdir()
    assert recovered(work, output, names) == {}
    file.close()
    assert len(recovered(work, output, names)) == 1


def test_files_of_other_topics_and_other_programs_stay(work, output, names):
    leave(work / "other/vm-000000.2020.log", b"line\n")
    leave(work / "t/notes.txt", b"line\n")
    output.mkdir()
    assert recovered(work, output, names, wants=lambda topic: topic == "t") == {}


def test_one_that_cannot_be_moved_does_not_keep_the_others(work, output, names):
    leave(work / "a/vm-000000.2020.log", b"line\n")
    leave(work / "t/vm-000000.2020.log", b"line\n")
    output.mkdir()
    (output / "a").write_bytes(b"a file where a folder should be")
    assert recovered(work, output, names).keys() == {"a", "t/vm-000000.2020.log"}
    assert (work / "a/vm-000000.2020.log").exists()


def test_a_file_that_is_being_written_is_not_made_whole(tmp_path):
    path = str(tmp_path / "x.gz")
    file = OutputFile.open(path, exclusive=True, gzip_level=6)
    assert not make_whole(path)
    file.close()
    assert make_whole(path)
