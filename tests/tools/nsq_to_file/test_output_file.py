"""One file: what is synced is in it, and it opens, whatever became of its process."""

import gzip
import os
import subprocess
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsq_compat.tools.nsq_to_file.output_file import (
    OutputFile,
    cut_unfinished_member,
    lock,
    make_folder,
    repair,
)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a" / "b" / "file")


def contents(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def test_written_data_can_be_read_at_once(path):
    file = OutputFile(path, exclusive=True)
    file.write(b"one\n")
    assert contents(path) == b"one\n"
    assert file.size == 4
    file.close()


def test_a_compressed_file_can_be_opened_after_every_sync_and_has_no_partial_member_before(path):
    file = OutputFile(path, exclusive=True, gzip_level=6)
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
    OutputFile(path, exclusive=True, gzip_level=9).close()
    assert contents(path)
    assert gzip.decompress(contents(path)) == b""


def test_an_exclusive_file_must_not_exist(path):
    OutputFile(path, exclusive=True).close()
    with pytest.raises(FileExistsError):
        OutputFile(path, exclusive=True)


def test_other_files_are_appended_to_and_their_size_counts(path):
    for _ in range(2):
        file = OutputFile(path, exclusive=False)
        file.write(b"line\n")
        file.close()
    assert contents(path) == b"line\nline\n"
    assert file.size == 10


def test_lines_that_follow_half_a_line_of_a_process_that_died_meanwhile_are_written_again(path):
    file = OutputFile(path, exclusive=False, shared=True)
    file.write(b"whole\n")
    other = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(other, b"hal")  # and no more: it is killed
    os.close(other)
    file.write(b"one\ntwo\n")
    file.write(b"three\n")
    file.close()
    assert contents(path).splitlines() == [b"whole", b"halone", b"two", b"one", b"two", b"three"]


def test_half_a_line_of_a_dead_process_is_ended(path):
    file = OutputFile(path, exclusive=False)
    file.write(b"whole\nhal")
    file.close()
    file = OutputFile(path, exclusive=False)
    file.write(b"next\n")
    file.close()
    assert contents(path).split(b"\n") == [b"whole", b"hal", b"next", b""]


def test_a_file_that_another_process_writes_to_is_only_shared_on_request(path):
    first = OutputFile(path, exclusive=False)
    first.write(b"by one\n")
    with pytest.raises(FileExistsError, match="in use"):
        OutputFile(path, exclusive=False)
    second = OutputFile(path, exclusive=False, shared=True)
    second.write(b"by two\n")
    second.close()
    first.close()
    assert contents(path) == b"by one\nby two\n"


def test_a_new_file_is_locked_although_another_process_looks_at_it(path, monkeypatch):
    opened = os.open

    def open_watched(name, *arguments):
        fd = opened(name, *arguments)
        if name == path:
            lock(other := opened(name, os.O_RDWR))  # the other process looks whether its process is dead
            threading.Timer(0.1, os.close, [other]).start()
        return fd

    monkeypatch.setattr(os, "open", open_watched)
    file = OutputFile(path, exclusive=True, shared=True, gzip_level=6)
    monkeypatch.undo()
    assert not repair(path)
    file.close()


def test_a_file_is_unlocked_when_its_process_dies(path):
    program = f"""
import os, signal
from nsq_compat.tools.nsq_to_file.output_file import OutputFile
file = OutputFile({path!r}, exclusive=False)
file.write(b"x")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], check=False, timeout=30)
    assert contents(path) == b"x"
    OutputFile(path, exclusive=False).close()


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


def test_a_file_that_is_being_written_is_not_repaired(tmp_path):
    path = str(tmp_path / "x.gz")
    file = OutputFile(path, exclusive=True, gzip_level=6)
    assert not repair(path)
    file.close()
    assert repair(path)
