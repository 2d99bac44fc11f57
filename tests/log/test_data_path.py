"""The layout of a data path, its lock, and the errors for unusable ones."""

import os
import subprocess
import sys

import pytest

from nsq_compat.log.data_path import (
    DataPathError,
    DataPathLock,
    leftover_name,
    make_our_folder,
    remove_folder,
    remove_leftovers,
    resolved,
    topic_folder,
    topics_in,
)
from nsq_compat.log.files import OsFiles


def test_a_data_path_is_locked_by_one_daemon_at_a_time(tmp_path):
    with DataPathLock(str(tmp_path)):
        with pytest.raises(DataPathError) as caught:
            DataPathLock(str(tmp_path))
        assert str(caught.value) == (
            f"failed to lock data-path: cannot flock directory {tmp_path} - resource temporarily unavailable "
            "(possibly in use by another instance of nsqd)"
        )
    DataPathLock(str(tmp_path)).release()


def test_it_is_locked_for_other_processes_and_nothing_is_written(tmp_path):
    program = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-c", program, str(tmp_path)]
    with DataPathLock(str(tmp_path)):
        assert b"BlockingIOError" in subprocess.run(command, capture_output=True, check=False).stderr
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert os.listdir(tmp_path) == []


def test_releasing_twice_is_fine(tmp_path):
    lock = DataPathLock(str(tmp_path))
    lock.release()
    lock.release()


def test_a_missing_folder_is_not_created(tmp_path):
    with pytest.raises(DataPathError) as caught:
        DataPathLock(f"{tmp_path}/no")
    assert str(caught.value) == f"failed to lock data-path: open {tmp_path}/no: no such file or directory"


def test_a_file_is_not_a_data_path(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataPathError, match="open .*/file: not a directory$"):
        DataPathLock(f"{tmp_path}/file")


def test_the_current_folder_is_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolved("") == str(tmp_path)
    assert resolved("x") == "x"


def test_our_folder_is_accessible_by_its_owner_only_and_created_once(tmp_path):
    make_our_folder(OsFiles(), str(tmp_path))
    make_our_folder(OsFiles(), str(tmp_path))
    assert os.stat(tmp_path / "nsq_compat").st_mode & 0o777 == 0o700


def test_a_file_in_place_of_our_folder_is_reported(tmp_path):
    (tmp_path / "nsq_compat").touch()
    with pytest.raises(DataPathError, match="cannot write to data-path: .*/nsq_compat is not a directory"):
        make_our_folder(OsFiles(), str(tmp_path))


@pytest.mark.parametrize(
    ("error", "text"),
    [(PermissionError(13, ""), "permission denied"), (OSError(30, ""), "read-only file system")],
)
def test_a_read_only_data_path_is_reported(tmp_path, error, text):
    class Refusing(OsFiles):
        @staticmethod
        def mkdir(path, mode=0o700):
            raise error

    with pytest.raises(DataPathError) as caught:
        make_our_folder(Refusing(), str(tmp_path))
    assert str(caught.value) == f"cannot write to data-path: mkdir {tmp_path}/nsq_compat: {text}"


def test_topics_are_found_by_their_folders(tmp_path):
    assert topics_in(OsFiles(), str(tmp_path)) == []
    for topic in ("b", "a.topic"):
        os.makedirs(topic_folder(str(tmp_path), topic))
    os.makedirs(tmp_path / "nsq_compat" / "imported")
    assert topics_in(OsFiles(), str(tmp_path)) == ["a.topic", "b"]


def test_removing_a_folder_removes_its_files(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").touch()
    remove_folder(OsFiles(), str(folder))
    remove_folder(OsFiles(), str(folder))
    assert not folder.exists()


def test_a_leftover_has_a_name_that_is_not_taken():
    assert leftover_name("/data/orders.topic", ["orders.topic", "orders.deleted-1"]) == "/data/orders.deleted-2"


def test_only_the_remains_of_deleted_topics_are_removed(tmp_path):
    for folder in (leftover_name(str(tmp_path / "orders.topic"), []), str(tmp_path / "returns.topic")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "log.1").write_bytes(b"")
    (tmp_path / "reserve").write_bytes(b"")
    remove_leftovers(OsFiles(), str(tmp_path))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["reserve", "returns.topic"]
