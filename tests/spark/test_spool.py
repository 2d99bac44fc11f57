"""The spool: what is sealed stays what it is, what is committed is deleted, and nothing else ever is."""

import os
import threading
import time

import pytest

from nsq_compat.protocol.frames import Message
from pyspark_nsq.rows import Origin
from pyspark_nsq.spool import Partition, Piece, Spool
from pyspark_nsq.spool_file import SpoolError, SpoolFile
from tests.spark import frames

ORIGIN = Origin("t", "c", "n:1")


def batch_of(*bodies: bytes):
    return frames.batch_of(ORIGIN, *(Message(1, 1, body.rjust(16, b"0"), body) for body in bodies))


def spooled(partition: Partition, *bodies: bytes) -> SpoolFile:
    """An attempt that has spooled each body as a chunk."""
    partition.create()
    file = partition.new_file()
    for body in bodies:
        file.append(batch_of(body))
    return file


def rows_of(partition: Partition) -> list[bytes]:
    pieces = partition.sealed()
    assert pieces is not None
    return [body for batch in partition.read(pieces) for body in batch.column("body").to_pylist()]


def orphaned(spool: Spool) -> list[bytes]:
    partition = spool.partition(0, 0)
    return [body for batch in partition.read(spool.orphans()) for body in batch.column("body").to_pylist()]


def test_a_missing_folder_is_asked_for(tmp_path):
    with pytest.raises(SpoolError, match="there is no folder .*Make it, or mount it"):
        Spool(tmp_path / "nowhere", "s").create()


def test_a_stream_whose_folder_is_gone_is_not_taken_for_a_new_one(tmp_path):
    with pytest.raises(SpoolError, match="failOnDataLoss=false"):
        Spool(tmp_path, "s").require()


def test_a_sealed_partition_is_what_the_seal_names_whatever_comes_after(spool):
    partition = spool.partition(1, 0)
    file = spooled(partition, b"one")
    assert partition.sealed() is None
    partition.seal(partition.pieces())
    file.append(batch_of(b"two"))
    file.close()
    assert rows_of(partition) == [b"one"]


def test_of_many_that_seal_at_once_one_wins_and_all_say_the_same(spool):
    partition = spool.partition(1, 0)
    spooled(partition, b"one", b"two").close()
    (whole,) = partition.pieces()
    start = threading.Barrier(8)
    said: list[list[Piece]] = []

    def seal(rows: int) -> None:
        start.wait()
        said.append(partition.seal([Piece(whole.file, whole.size, rows)]))

    threads = [threading.Thread(target=seal, args=(rows,)) for rows in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [partition.sealed()] * 8


def test_cleaning_deletes_what_is_committed_and_keeps_what_is_not(spool):
    for seq in (1, 2, 3):
        partition = spool.partition(seq, 0)
        spooled(partition, b"%d" % seq).close()
        partition.seal(partition.pieces())
    spool.clean(2)
    assert spool.batches() == [3]
    assert spool.cleaned == 2
    assert rows_of(spool.partition(3, 0)) == [b"3"]
    assert orphaned(spool) == []


def test_what_was_spooled_behind_the_seal_is_set_aside_and_suspected(spool):
    partition = spool.partition(1, 0)
    file = spooled(partition, b"one")
    partition.seal(partition.pieces())
    file.append(batch_of(b"two"))
    file.close()
    spooled(partition, b"three").close()
    spool.clean(1)
    assert sorted(orphaned(spool)) == [b"three", b"two"]
    assert spool.suspects.of(ORIGIN) == {"three".rjust(16, "0"), "two".rjust(16, "0")}


def test_an_orphan_is_given_to_one_batch_and_deleted_with_it(spool):
    spooled(spool.partition(1, 0), b"one").close()  # never sealed
    spool.clean(1)
    (orphan,) = spool.orphans()
    partition = spool.partition(2, 0)
    partition.create()
    partition.seal([orphan])
    assert rows_of(partition) == [b"one"]
    assert spool.orphans() == []
    spool.clean(2)
    assert not list((spool.folder / "orphans").iterdir())


def test_batches_stay_for_some_time(spool):
    for seq in (1, 2, 3):
        partition = spool.partition(seq, 0)
        spooled(partition, b"%d" % seq).close()
        partition.seal(partition.pieces())
    old = spool.partition(1, 0).folder / "SEALED"
    os.utime(old, (0, 0))
    assert spool.clean(3, age=3600) == 1
    assert spool.batches() == [2, 3]
    assert spool.cleaned == 1
    assert spool.clean(3) == 3
    assert spool.batches() == []


def test_what_was_spooled_before_an_nsqd_was_started_may_come_again(spool):
    for seq, written in ((1, 1_000.0), (2, 3_000.0)):
        file = spooled(spool.partition(seq, 0), b"%d" % seq)
        file.close()
        os.utime(file.path, (written, written))
    spool.suspect_from_before(Origin("t", "c", "another:1"), 2_000)
    assert spool.suspects.of(ORIGIN) == set()
    spool.suspect_from_before(ORIGIN, 2_000)
    assert spool.suspects.of(ORIGIN) == {"1".rjust(16, "0")}


def test_what_is_spooled_after_a_start_was_noticed_is_not_suspected(spool):
    started = int(time.time())
    spool.suspect_from_before(ORIGIN, started)
    spooled(spool.partition(1, 0), b"one").close()
    spool.suspect_from_before(ORIGIN, started)
    assert spool.suspects.of(ORIGIN) == set()
    spool.suspect_from_before(ORIGIN, started + 1)
    assert spool.suspects.of(ORIGIN) == {"one".rjust(16, "0")}


def test_cleaning_that_was_interrupted_is_repeated(spool):
    partition = spool.partition(1, 0)
    spooled(partition, b"one").close()
    partition.clean(spool.suspects)
    spool.clean(1)
    spool.clean(1)
    assert orphaned(spool) == [b"one"]


def test_a_sealed_file_that_lost_bytes_is_said_to_be_damaged(spool):
    partition = spool.partition(1, 0)
    file = spooled(partition, b"one", b"two")
    file.close()
    sealed = partition.seal(partition.pieces())
    file.path.write_bytes(file.path.read_bytes()[:-1])
    with pytest.raises(SpoolError, match="is damaged: 1 rows of 2"):
        list(partition.read(sealed))


def test_suspects_belong_to_where_they_came_from_and_are_forgotten_in_time(spool):
    spool.suspects.add(ORIGIN, ["a"])
    spool.suspects.add(ORIGIN, ["b"])
    assert spool.suspects.of(ORIGIN) == {"a", "b"}
    assert spool.suspects.of(Origin("t", "c", "other:1")) == set()
    spool.suspects.forget(3600)
    assert spool.suspects.of(ORIGIN) == {"a", "b"}
    spool.suspects.forget(-1)
    assert spool.suspects.of(ORIGIN) == set()
