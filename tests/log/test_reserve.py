"""Space that is reserved for what must be written although the disk is full."""

import errno
import os
from typing import cast

import pytest

from nsq_compat.log.files import Files, OsFiles
from nsq_compat.log.reserve import Reserve
from tests.faults.disk import FaultyFiles

RESERVED = 100_000


def blocks(path) -> int:
    return os.stat(path).st_blocks


def test_the_reserve_takes_space_until_it_is_given_up(tmp_path):
    path = tmp_path / "reserve"
    reserve = Reserve(OsFiles(), str(path), RESERVED)
    reserve.take()
    assert (reserve.held, reserve.given_up) == (True, False)
    assert blocks(path) * 512 >= RESERVED
    reserve.give_up()
    assert (reserve.held, reserve.given_up) == (False, True)
    assert blocks(path) == 0
    reserve.take()
    assert (reserve.held, reserve.given_up) == (True, False)
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_reserve_exists_after_a_restart_although_the_disk_is_full(tmp_path):
    path = str(tmp_path / "reserve")
    Reserve(OsFiles(), path, RESERVED).take()
    again = Reserve(OsFiles(), path, RESERVED)
    again.take()
    assert again.held
    assert blocks(path) * 512 < 2 * RESERVED


def test_without_space_there_is_no_reserve_and_no_file_is_left(tmp_path):
    path = tmp_path / "reserve"
    reserve = Reserve(cast("Files", FaultyFiles(OsFiles(), 2, errno.ENOSPC, 1)), str(path), RESERVED)
    with pytest.raises(OSError, match="fallocate"):
        reserve.take()
    assert (reserve.held, reserve.given_up) == (False, True)
    assert path.stat().st_size == 0
    reserve.take()
    assert (reserve.held, reserve.given_up) == (True, False)
