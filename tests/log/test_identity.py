"""What tells whether a primary has lost something that its standby has."""

import errno
import json
import os

import pytest

from nsq_compat.log.files import OsFiles
from nsq_compat.log.identity import UNKNOWN_SALT, FileEnd, FoundEnd, Identity, begin_epoch

SALT = 7
OURS = [FileEnd(3, 500, SALT), FileEnd(4, 900, SALT + 1)]


@pytest.mark.parametrize(
    ("last", "is_behind", "is_behind_after_a_power_cut"),
    [
        pytest.param(FileEnd(4, 900, SALT + 1), False, False, id="the same"),
        pytest.param(FileEnd(4, 800, SALT + 1), False, False, id="the standby has less"),
        pytest.param(FileEnd(4, 901, SALT + 1), True, True, id="more of the last file"),
        pytest.param(FileEnd(4, 901, UNKNOWN_SALT), True, True, id="more of the last file, with a damaged header"),
        pytest.param(FileEnd(3, 501, SALT), True, True, id="more of a file before"),
        pytest.param(FileEnd(4, 901, SALT), False, False, id="another file of this name, of a topic created again"),
        pytest.param(FileEnd(2, 901, SALT), False, False, id="a file that was deleted since"),
        pytest.param(FileEnd(5, 30, SALT), False, True, id="a file that is not there"),
    ],
)
def test_a_topic_is_behind_if_the_standby_has_more(last, is_behind, is_behind_after_a_power_cut):
    end = FoundEnd(40, 30, OURS)
    for may_lack_files, expected in ((False, is_behind), (True, is_behind_after_a_power_cut)):
        identity = Identity("a", ends={"t": end}, may_lack_files=may_lack_files)
        assert identity.topics_behind({"t": last}) == ({"t": end} if expected else {})


def test_a_topic_that_is_not_there_was_deleted_unless_the_machine_has_started_since():
    last = FileEnd(1, 100, SALT)
    assert Identity("a", ends={}).topics_behind({"t": last}) == {}
    assert Identity("a", ends={}, may_lack_files=True).topics_behind({"t": last}) == {"t": FoundEnd(0, 0, ())}


def test_a_full_disk_has_room_for_the_ends_of_thousands_of_topics(tmp_path):
    class Full(OsFiles):
        """Has as much room as the reserve gives up."""

        room = 0

        def pwrite(self, fd, data, offset):
            if len(data) > self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return os.pwrite(fd, data, offset)

        def ftruncate(self, fd, size):
            self.room += max(0, os.fstat(fd).st_size - size)
            os.ftruncate(fd, size)

        def fallocate(self, fd, offset, size):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "nsq_compat").mkdir()
    first = begin_epoch(OsFiles(), str(tmp_path))
    first.ends = {f"{number:036}": FoundEnd(1 << 30, 1 << 30, OURS[:1]) for number in range(10_000)}
    first.save(Full(), str(tmp_path))
    assert begin_epoch(OsFiles(), str(tmp_path)).ends == first.ends


def test_what_a_start_has_found_stays_known_and_so_does_a_start_of_the_machine(tmp_path):
    (tmp_path / "nsq_compat").mkdir()
    path = tmp_path / "nsq_compat" / "identity"
    first = begin_epoch(OsFiles(), str(tmp_path))
    assert (first.epoch, first.may_lack_files, first.ends) == (1, False, None)
    first.ends = {"t": FoundEnd(40, 30, OURS)}
    first.save(OsFiles(), str(tmp_path))
    second = begin_epoch(OsFiles(), str(tmp_path))
    assert (second.identity, second.may_lack_files, second.ends) == (first.identity, False, first.ends)
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot": "an earlier one"}))
    for _ in range(2):
        assert begin_epoch(OsFiles(), str(tmp_path)).may_lack_files


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "[]",
        "3",
        '{"unknown": 1}',
        '{"ends": []}',
        '{"ends": {"t": 1}}',
        '{"epoch": "1"}',
        '{"forgotten": []}',
        '{"boot": 3}',
        '{"may_lack_files": null}',
        '{"identity": ["x"]}',
        "[" * 100_000,
    ],
)
def test_a_damaged_file_is_refused(tmp_path, damaged):
    (tmp_path / "nsq_compat").mkdir()
    (tmp_path / "nsq_compat" / "identity").write_text(damaged)
    with pytest.raises(ValueError, match="."):
        begin_epoch(OsFiles(), str(tmp_path))
