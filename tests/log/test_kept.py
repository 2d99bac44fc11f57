from collections import Counter
from typing import Any, cast

import pytest

from nsq_compat.log import kept
from nsq_compat.log.descriptors import Descriptors
from nsq_compat.log.files import Files, OsFiles
from nsq_compat.log.kept import Kept
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol.message import make_frames, message_id
from tests.faults.disk import SimulatedDisk

NOW_NS = 1_700_000_000_000_000_000


def frames_of(*numbers: int, size: int = 100) -> tuple[bytes, ...]:
    return make_frames([b"%016x" % each for each in numbers], NOW_NS, [bytes(size)] * len(numbers))


def ids_of(*numbers: int) -> list[bytes]:
    return [b"%016x" % each for each in numbers]


class Keeper:
    """Kept files in a folder, one run after the other."""

    def __init__(self):
        self.disk = SimulatedDisk()
        self.start()

    def start(self):
        self.kept = Kept(Descriptors(cast("Files", self.disk), reserve=0), lambda number: f"/kept.{number}", 20_000)
        for name in sorted(self.disk.listdir("/"), key=lambda name: int(name[5:])):
            self.kept.add_file(int(name[5:]), self.disk.size(f"/{name}"))

    def numbers(self, *numbers: int) -> list[int]:
        """Which of these are found."""
        found = self.kept.fetch(ids_of(*numbers))
        assert all(message_id(frame) == each for each, frame in found.items())
        return sorted(int(each, 16) for each in found)

    def release(self, *unfinished: int) -> None:
        ids = ids_of(*sorted(unfinished))
        for file in self.kept.mostly_dead(ids):
            assert self.kept.copy(file, ids)
            self.kept.remove(file)


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


def test_retained_messages_are_found_by_id_in_this_run_and_the_next(keeper):
    keeper.kept.add(frames_of(5, 3, 900, 4))
    keeper.kept.add(frames_of(2, 1000))
    for _ in range(2):
        assert keeper.numbers(1, 2, 3, 4, 5, 6, 900, 1000) == [2, 3, 4, 5, 900, 1000]
        keeper.start()


@pytest.mark.interpreted
def test_kept_messages_are_read_at_their_locations_until_their_file_is_deleted(tmp_path):
    log = TopicLog(OsFiles(), str(tmp_path / "log"))
    first, second = frames_of(*range(0, 1000, 2)), frames_of(*range(1, 1000, 2))
    locations = log.keep(first) | log.keep(second)
    assert log.keep([]) == {}
    wanted = {each: locations[each] for each in ids_of(0, 499, 998)}
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Kept, "fetch", None)  # by id
            assert list(log.fetch(wanted, wanted).values()) == [first[0], second[249], first[499]]
        log.close()
        log = TopicLog(OsFiles(), str(tmp_path / "log"))
    (file,) = log.kept.files
    log.kept.add(frames_of(2000))
    assert log.kept.copy(file, ids_of(499))
    log.kept.remove(file)
    assert log.fetch(ids_of(499), wanted) == {ids_of(499)[0]: second[249]}
    log.close()


def test_a_file_has_a_bounded_size_and_each_run_begins_a_new_one(keeper):
    keeper.kept.add(frames_of(*range(2000)))
    before = len(keeper.kept.files)
    assert before > 2
    assert keeper.numbers(0, 999, 1999) == [0, 999, 1999]
    keeper.start()
    keeper.kept.add(frames_of(5000))
    assert len(keeper.kept.files) == before + 1
    assert keeper.numbers(0, 1999, 5000) == [0, 1999, 5000]


def test_files_without_unfinished_messages_are_deleted(keeper):
    keeper.kept.add(frames_of(1, 2, 3))
    keeper.start()
    keeper.kept.add(frames_of(4, 5, 6))
    keeper.release(5, 6)
    assert keeper.disk.listdir("/") == ["kept.2"]
    keeper.release()
    assert keeper.disk.listdir("/") == ["kept.2"], "its number is not used again"
    assert keeper.kept.files == []
    keeper.kept.add(frames_of(7))
    assert keeper.numbers(7) == [7]


def test_a_number_is_not_used_again_by_a_later_run(keeper):
    keeper.kept.add(frames_of(1))
    keeper.release()
    for number in (2, 3):
        keeper.start()
        assert keeper.numbers(1) == []
        keeper.kept.add(frames_of(number))
        assert [each.number for each in keeper.kept.files] == [number]
        keeper.release()
        assert keeper.disk.listdir("/") == [f"kept.{number}"]


def test_what_is_added_while_a_checkpoint_is_written_stays_in_whatever_files_it_is(keeper):
    keeper.kept.begin_checkpoint()
    keeper.kept.add(frames_of(*range(2000)), protects=True)
    assert len(keeper.kept.files) > 2
    keeper.release()  # as that checkpoint says
    assert keeper.numbers(*range(2000)) == list(range(2000))
    keeper.kept.begin_checkpoint()
    keeper.release()
    assert keeper.kept.files == []


def test_mostly_dead_files_are_copied_before_they_are_deleted(keeper):
    keeper.kept.add(frames_of(*range(1000)))
    size = sum(keeper.disk.size(f"/{name}") for name in keeper.disk.listdir("/"))
    alive = [10, 500, 501, 999]
    keeper.release(*alive)
    assert sum(keeper.disk.size(f"/{name}") for name in keeper.disk.listdir("/")) < size
    for _ in range(2):
        assert keeper.numbers(*range(1000)) == alive or set(alive) <= set(keeper.numbers(*alive))
        keeper.start()


def test_mostly_alive_files_stay(keeper):
    keeper.kept.add(frames_of(*range(100)))
    files = keeper.disk.listdir("/")
    keeper.release(*range(60))
    assert keeper.disk.listdir("/") == files
    assert keeper.numbers(*range(60)) == list(range(60))


def test_a_file_that_is_to_be_deleted_is_not_written_to(keeper):
    keeper.kept.add(frames_of(*range(100)))
    (file,) = keeper.kept.mostly_dead(ids_of(50))
    keeper.kept.add(frames_of(101))
    assert keeper.kept.copy(file, ids_of(50))
    keeper.kept.remove(file)
    assert keeper.numbers(50, 101) == [50, 101]
    assert "kept.1" not in keeper.disk.listdir("/")


def test_damage_affects_only_its_message_and_the_file_is_not_deleted(keeper):
    keeper.kept.add(frames_of(*range(1000), size=300))
    keeper.start()
    content = bytearray(keeper.disk.content("/kept.1"))
    content[content.index(b"%016x" % 20)] ^= 1
    keeper.disk.put("/kept.1", bytes(content))
    found = keeper.numbers(*range(19, 22))
    assert found == [19, 21]
    file = next(each for each in keeper.kept.mostly_dead(ids_of(19, 20)) if each.number == 1)
    assert not keeper.kept.copy(file, ids_of(19, 20))
    assert file not in keeper.kept.mostly_dead(ids_of(19, 20)), "it stays as long as something in it is needed"
    assert file in keeper.kept.mostly_dead([])


def test_large_messages_are_retained(keeper):
    keeper.kept.add(frames_of(1, 2, 3, size=300_000))
    keeper.start()
    assert keeper.numbers(1, 2, 3) == [1, 2, 3]


@pytest.mark.interpreted
def test_a_message_that_was_kept_for_many_channels_is_read_once(keeper, monkeypatch):
    for _ in range(10):
        keeper.kept.add(frames_of(1, 2))
    read, read_group = Counter[str](), kept._read_group

    def count(*given: Any) -> Any:
        read["groups"] += 1
        return read_group(*given)

    monkeypatch.setattr(kept, "_read_group", count)
    assert sorted(keeper.kept.fetch(ids_of(1, 2))) == ids_of(1, 2)
    assert read["groups"] == 1


@pytest.mark.interpreted
def test_files_of_an_earlier_run_are_read_in_steps(keeper, monkeypatch):
    monkeypatch.setattr(kept, "_READ_AT_ONCE", 1000)
    for number in range(40):
        keeper.kept.add(frames_of(number, size=200))
    keeper.start()
    steps = 0
    while True:
        try:
            found = keeper.kept.fetch(ids_of(3, 39), in_steps=True)
            break
        except BlockingIOError:
            steps += 1
    assert sorted(found) == ids_of(3, 39)
    assert steps > 5
    keeper.start()
    pauses = []
    keeper.kept.read_ranges(lambda: pauses.append(1))
    assert len(pauses) == steps
    assert sorted(keeper.kept.fetch(ids_of(3, 39), in_steps=True)) == ids_of(3, 39)
