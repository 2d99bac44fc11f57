"""Who may use a data path, and what is said to whom may not."""

import os
import subprocess
import sys

import pytest

from nsq_compat.log.data_path import (
    DataPathError,
    DataPathLock,
    make_our_folder,
    remove_folder,
    resolved,
    topic_folder,
    topics_in,
)
from nsq_compat.log.files import OsFiles


def test_a_data_path_is_one_daemons_at_a_time(tmp_path):
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


def test_a_missing_folder_is_not_made(tmp_path):
    with pytest.raises(DataPathError) as caught:
        DataPathLock(f"{tmp_path}/no")
    assert str(caught.value) == f"failed to lock data-path: open {tmp_path}/no: no such file or directory"


def test_a_file_is_no_data_path(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataPathError, match="open .*/file: not a directory$"):
        DataPathLock(f"{tmp_path}/file")


def test_the_current_folder_is_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolved("") == str(tmp_path)
    assert resolved("x") == "x"


def test_our_folder_is_for_its_owner_only_and_made_once(tmp_path):
    make_our_folder(OsFiles(), str(tmp_path))
    make_our_folder(OsFiles(), str(tmp_path))
    assert os.stat(tmp_path / "nsq_compat").st_mode & 0o777 == 0o700


def test_a_file_where_our_folder_should_be_is_said(tmp_path):
    (tmp_path / "nsq_compat").touch()
    with pytest.raises(DataPathError, match="cannot write to data-path: .*/nsq_compat is not a directory"):
        make_our_folder(OsFiles(), str(tmp_path))


@pytest.mark.parametrize(
    ("error", "text"),
    [(PermissionError(13, ""), "permission denied"), (OSError(30, ""), "read-only file system")],
)
def test_a_data_path_that_cannot_be_written_to_is_said(tmp_path, error, text):
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
