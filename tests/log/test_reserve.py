import errno
import os
from typing import cast

import pytest

from nsq_compat.log.files import Files, OsFiles
from nsq_compat.log.storage import Reserve
from tests.faults.disk import FaultyFiles

SIZE = 100_000


def blocks(path) -> int:
    return os.stat(path).st_blocks


def test_the_reserve_takes_space_until_it_is_given_up(tmp_path):
    path = tmp_path / "reserve"
    reserve = Reserve(OsFiles(), str(path), SIZE)
    reserve.take()
    assert (reserve.held, reserve.given_up) == (True, False)
    assert blocks(path) * 512 >= SIZE
    reserve.give_up()
    assert (reserve.held, reserve.given_up) == (False, True)
    assert blocks(path) == 0
    reserve.take()
    assert (reserve.held, reserve.given_up) == (True, False)
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_reserve_exists_after_a_restart_although_the_disk_is_full(tmp_path):
    path = str(tmp_path / "reserve")
    Reserve(OsFiles(), path, SIZE).take()
    again = Reserve(OsFiles(), path, SIZE)
    again.take()
    assert again.held
    assert blocks(path) * 512 < 2 * SIZE


def test_without_space_there_is_no_reserve_and_no_file_is_left(tmp_path):
    path = tmp_path / "reserve"
    reserve = Reserve(cast("Files", FaultyFiles(OsFiles(), 2, errno.ENOSPC, 1)), str(path), SIZE)
    with pytest.raises(OSError, match="fallocate"):
        reserve.take()
    assert not reserve.held
    assert path.stat().st_size == 0
    reserve.take()
    assert reserve.held
