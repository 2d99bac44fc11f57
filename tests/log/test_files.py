import errno
import os
from random import Random
from typing import cast

import pytest

from nsq_compat.log.files import Files, OsFiles, read_file, replace_file, write_all
from tests.faults.disk import FaultyFiles, SimulatedDisk


def failing(method: str, files: Files) -> Files:
    """Files of which one method fails."""

    class Failing(FaultyFiles):
        def __getattr__(self, name):
            return super().__getattr__(name) if name == method else getattr(self._files, name)

    return cast("Files", Failing(files, 1, errno.EIO, 99))


def test_a_replaced_file_has_the_new_content_and_no_temporary_file_is_left(tmp_path):
    path = tmp_path / "checkpoint"
    for content in (b"old", b"new, and longer", b""):
        replace_file(OsFiles(), str(path), content, sync=True)
        assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["checkpoint"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("method", ["open", "pwrite", "fsync", "rename"])
def test_a_failed_replacement_leaves_the_old_content(tmp_path, method):
    path = tmp_path / "checkpoint"
    replace_file(OsFiles(), str(path), b"old", sync=False)
    with pytest.raises(OSError, match=method):
        replace_file(failing(method, OsFiles()), str(path), b"new", sync=True)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_a_synced_replacement_survives_a_power_cut_and_an_unsynced_one_is_old_or_new():
    for seed in range(50):
        disk = SimulatedDisk()
        files = cast("Files", disk)
        files.mkdir("/f")
        files.fsync_folder("/")
        replace_file(files, "/f/checkpoint", b"old", sync=True)
        assert disk.power_cut(Random(seed)).content("/f/checkpoint") == b"old"
        replace_file(files, "/f/checkpoint", b"new", sync=True)
        assert disk.power_cut(Random(seed)).content("/f/checkpoint") == b"new"


def test_a_file_is_read_whole(tmp_path):
    (tmp_path / "f").write_bytes(b"x" * 3_000_000)
    assert read_file(OsFiles(), str(tmp_path / "f")) == b"x" * 3_000_000
    with pytest.raises(FileNotFoundError):
        read_file(OsFiles(), str(tmp_path / "other"))


def test_a_short_write_is_continued_and_an_empty_one_is_an_error():
    disk = SimulatedDisk()
    fd = disk.open("/f", os.O_CREAT)
    write_all(cast("Files", FaultyFiles(disk, 1, "short write", 3)), fd, b"0123456789", 2)
    assert disk.content("/f") == b"\0\0" + b"0123456789"

    class Nothing(SimulatedDisk):
        def pwrite(self, fd, data, offset):
            return 0

    with pytest.raises(OSError, match="nothing"):
        write_all(Nothing(), fd, b"a", 0)


def test_space_is_reserved_as_zeros_and_folders_are_private(tmp_path):
    files = OsFiles()
    files.mkdir(str(tmp_path / "a"))
    fd = files.open(str(tmp_path / "a" / "f"), os.O_RDWR | os.O_CREAT)
    files.fallocate(fd, 0, 5000)
    assert files.pread(fd, 10_000, 0) == bytes(5000)
    assert files.size(str(tmp_path / "a" / "f")) == 5000
    files.ftruncate(fd, 3)
    files.fdatasync(fd)
    files.close(fd)
    files.fsync_folder(str(tmp_path / "a"))
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    files.unlink(str(tmp_path / "a" / "f"))
    files.rmdir(str(tmp_path / "a"))
    assert files.listdir(str(tmp_path)) == []
