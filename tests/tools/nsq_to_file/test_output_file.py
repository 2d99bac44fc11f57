"""One file: what is synced is in it, and it opens, whatever became of its process."""

import errno
import gzip
import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsq_compat.tools.nsq_to_file.file_names import FileNames, Name
from nsq_compat.tools.nsq_to_file.output_file import (
    InUse,
    OutputFile,
    cut_unfinished_member,
    lock,
    make_folder,
    put_in_place,
    recover,
    repair,
)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a" / "b" / "file")


def contents(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def test_written_data_can_be_read_at_once(path):
    file = OutputFile.open(path, exclusive=True)
    file.write(b"one\n")
    assert contents(path) == b"one\n"
    assert file.size == 4
    file.close()


def test_a_compressed_file_can_be_opened_after_every_sync_and_has_no_partial_member_before(path):
    file = OutputFile.open(path, exclusive=True, gzip_level=6)
    for line in (b"one\n", b"two\n"):
        before = contents(path)
        file.write(line)
        assert contents(path) == before
        file.sync()
        assert gzip.decompress(contents(path)).endswith(line)
    assert file.size == 8
    file.close()
    assert gzip.decompress(contents(path)) == b"one\ntwo\n"


def test_an_empty_compressed_file_can_be_opened(path):
    OutputFile.open(path, exclusive=True, gzip_level=9).close()
    assert contents(path)
    assert gzip.decompress(contents(path)) == b""


def test_an_exclusive_file_must_not_exist(path):
    OutputFile.open(path, exclusive=True).close()
    with pytest.raises(FileExistsError):
        OutputFile.open(path, exclusive=True)


def test_other_files_are_appended_to_and_their_size_counts(path):
    for _ in range(2):
        file = OutputFile.open(path, exclusive=False)
        file.write(b"line\n")
        file.close()
    assert contents(path) == b"line\nline\n"
    assert file.size == 10


def test_half_a_line_of_a_dead_process_is_ended(path):
    file = OutputFile.open(path, exclusive=False)
    file.write(b"whole\nhal")
    file.close()
    file = OutputFile.open(path, exclusive=False)
    file.write(b"next\n")
    file.close()
    assert contents(path).split(b"\n") == [b"whole", b"hal", b"next", b""]


def test_a_file_that_another_process_writes_to_is_only_shared_on_request(path):
    first = OutputFile.open(path, exclusive=False)
    first.write(b"not yet whole")
    with pytest.raises(InUse):
        OutputFile.open(path, exclusive=False)
    second = OutputFile.open(path, exclusive=False, shared=True)
    second.write(b", by two\n")
    second.close()
    first.close()
    assert contents(path) == b"not yet whole, by two\n"


def test_a_file_is_unlocked_when_its_process_dies(path):
    program = f"""
import os, signal
from nsq_compat.tools.nsq_to_file.output_file import OutputFile
file = OutputFile.open({path!r}, exclusive=False)
file.write(b"x")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False, timeout=30)
    assert contents(path) == b"x"
    OutputFile.open(path, exclusive=False).close()


def test_folders_are_for_the_group_and_not_for_others(path):
    make_folder(os.path.dirname(path))
    assert os.stat(os.path.dirname(path)).st_mode & 0o007 == 0


MEMBERS = st.lists(st.binary(max_size=200), max_size=4)


@given(members=MEMBERS, data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_cut_anywhere_is_truncated_to_whole_members(tmp_path, members, data):
    compressed = [gzip.compress(each) for each in members]
    everything = b"".join(compressed)
    cut = data.draw(st.integers(0, len(everything)))
    path = tmp_path / "cut.gz"
    path.write_bytes(everything[:cut])
    whole = 0
    while whole < len(members) and len(b"".join(compressed[: whole + 1])) <= cut:
        whole += 1
    with path.open("r+b") as file:
        assert cut_unfinished_member(file.fileno())
    assert path.read_bytes() == b"".join(compressed[:whole])
    assert gzip.decompress(path.read_bytes()) == b"".join(members[:whole])


def test_a_damaged_file_is_not_changed(tmp_path):
    path = tmp_path / "damaged.gz"
    path.write_bytes(gzip.compress(b"one") + b"no gzip at all" + gzip.compress(b"two"))
    before = path.read_bytes()
    with path.open("r+b") as file:
        assert not cut_unfinished_member(file.fileno())
    assert path.read_bytes() == before


def test_a_lock_belongs_to_one_process(tmp_path):
    path = tmp_path / "file"
    with path.open("w") as one, path.open("w") as another:
        assert lock(one.fileno())
        assert not lock(another.fileno())


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


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM])
def test_without_links_a_file_is_copied(work, output, monkeypatch, number):
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


def test_files_of_a_dead_process_are_put_in_place_without_overwriting(work, output, names):
    leave(work / "t/vm-000002.2020.log", b"left\n")
    output.mkdir()
    leave(output / "t/vm-000002.2020.log", b"before\n")
    assert recovered(work, output, names) == {"t/vm-000002.2020.log": b"before\n", "t/vm-000003.2020.log": b"left\n"}


def test_a_compressed_file_of_a_dead_process_can_be_opened(work, output, names):
    leave(work / "t/vm-000000.2020.log.gz", gzip.compress(b"one\n") + gzip.compress(b"two\n")[:-3])
    (data,) = recovered(work, output, names).values()
    assert gzip.decompress(data) == b"one\n"


def test_a_damaged_file_is_put_in_place_unchanged(work, output, names):
    leave(work / "t/vm-000000.2020.log.gz", b"damaged")
    assert recovered(work, output, names) == {"t/vm-000000.2020.log.gz": b"damaged"}


def test_empty_files_are_deleted(work, output, names):
    leave(work / "t/vm-000000.2020.log", b"")
    leave(work / "t/vm-000001.2020.log.gz", gzip.compress(b"never synced")[:-1])
    output.mkdir()
    assert recovered(work, output, names) == {}
    assert not list((work / "t").iterdir())


def test_a_file_of_a_live_process_stays(work, output, names):
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


def test_a_file_that_cannot_be_moved_does_not_affect_others(work, output, names):
    leave(work / "a/vm-000000.2020.log", b"line\n")
    leave(work / "t/vm-000000.2020.log", b"line\n")
    output.mkdir()
    (output / "a").write_bytes(b"a file where a folder should be")
    assert recovered(work, output, names).keys() == {"a", "t/vm-000000.2020.log"}
    assert (work / "a/vm-000000.2020.log").exists()


def test_a_file_that_is_being_written_is_not_repaired(tmp_path):
    path = str(tmp_path / "x.gz")
    file = OutputFile.open(path, exclusive=True, gzip_level=6)
    assert not repair(path)
    file.close()
    assert repair(path)
