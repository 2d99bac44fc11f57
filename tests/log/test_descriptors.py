import errno
import os
import resource
from contextlib import suppress
from typing import cast

import pytest

from nsq_compat.log.descriptors import CLOSED, Descriptors, File
from nsq_compat.log.files import Files, OsFiles
from tests.faults.disk import SimulatedDisk


class SmallSystem(SimulatedDisk):
    """A process that may have so many descriptors open."""

    def __init__(self, limit):
        super().__init__()
        self.limit = limit

    def open(self, path, flags, mode=0o600):
        if len(self.open_files) >= self.limit:
            raise OSError(errno.EMFILE, "too many open files")
        return super().open(path, flags, mode)


def start(limit=3, reserve=0, system=1000):
    disk = SmallSystem(system)
    for number in range(9):
        disk.put(f"/{number}", b"%d" % number)
    descriptors = Descriptors(cast("Files", disk), limit, reserve)
    return disk, descriptors, [File(f"/{number}") for number in range(9)]


def test_a_file_is_opened_on_first_use_and_stays_open():
    disk, descriptors, files = start()
    fd = descriptors.use(files[4])
    assert disk.pread(fd, 9, 0) == b"4"
    assert descriptors.use(files[4]) == fd
    assert list(disk.open_files) == [fd]


def test_the_least_recently_used_file_is_closed_for_another():
    _, descriptors, files = start(limit=3)
    for number in (0, 1, 2, 0, 3):
        descriptors.use(files[number])
    assert [file.fd == CLOSED for file in files[:4]] == [False, True, False, False]
    assert descriptors.use(files[1]) != CLOSED


def test_a_pinned_file_stays_open_until_it_is_unpinned():
    disk, descriptors, files = start(limit=2)
    fd = descriptors.pin(files[0])
    for file in files[1:]:
        descriptors.use(file)
    assert disk.pread(fd, 9, 0) == b"0"
    descriptors.close(files[0])
    assert disk.pread(fd, 9, 0) == b"0"
    descriptors.unpin(files[0])
    assert fd not in disk.open_files


def test_pinned_files_may_exceed_the_limit():
    _, descriptors, files = start(limit=2)
    assert len({descriptors.pin(file) for file in files}) == len(files)


def test_a_file_closed_while_pinned_can_be_used_again():
    disk, descriptors, files = start()
    descriptors.pin(files[0])
    descriptors.close(files[0])
    assert disk.pread(descriptors.use(files[0]), 9, 0) == b"0"
    descriptors.unpin(files[0])
    descriptors.close(files[0])
    assert not disk.open_files


def test_creating_an_existing_file_fails():
    disk, descriptors, files = start()
    with pytest.raises(FileExistsError):
        descriptors.create(files[0])
    disk.pwrite(descriptors.create(File("/new")), b"n", 0)
    assert disk.content("/new") == b"n"


def test_the_reserve_is_used_when_descriptors_run_out_and_filled_again_later():
    disk, descriptors, files = start(limit=8, reserve=2, system=6)
    others = [disk.open("/8", 0) for _ in range(4)]
    assert len(descriptors._reserve) == 2
    descriptors.use(files[0])
    descriptors.use(files[1])
    assert len(descriptors._reserve) == 0
    descriptors.use(files[2])
    assert files[0].fd == CLOSED, "the reserve is used up, so others of our own are closed"
    for fd in others:
        disk.close(fd)
    descriptors.use(files[3])
    assert len(descriptors._reserve) == 2


def test_an_operation_that_needs_a_descriptor_gets_one_or_raises():
    disk, descriptors, files = start(reserve=1, system=2)
    descriptors.use(files[0])

    def needs_two():
        fds = []
        try:
            fds.append(disk.open("/1", 0))
            fds.append(disk.open("/2", 0))
        finally:
            for fd in fds:
                disk.close(fd)
        return "done"

    assert descriptors.with_room(needs_two) == "done"
    disk.limit = 0
    with pytest.raises(OSError, match="too many"):
        descriptors.with_room(needs_two)


def test_other_errors_are_not_retried():
    _, descriptors, _ = start(reserve=2)
    with pytest.raises(FileNotFoundError):
        descriptors.use(File("/missing"))
    assert len(descriptors._reserve) == 2


def test_closing_all_leaves_nothing_open():
    disk, descriptors, files = start(reserve=2)
    for file in files:
        descriptors.use(file)
    descriptors.close_all()
    assert not disk.open_files
    assert descriptors.use(files[0]) != CLOSED


def test_logs_work_at_the_descriptor_limit_of_the_process(tmp_path):
    (tmp_path / "f").write_bytes(b"x")
    descriptors = Descriptors(OsFiles(), reserve=4)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(highest + 50, soft), hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        assert os.pread(descriptors.use(File(str(tmp_path / "f"))), 1, 0) == b"x"
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        descriptors.close_all()
