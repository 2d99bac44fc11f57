"""The spool: sealed partitions never change, and only committed messages are deleted."""

import os
import threading
import time

import pytest

from nsq_compat.protocol.frames import Message
from pyspark_nsq.rows import Origin
from pyspark_nsq.spool import Partition, Piece, Spool
from pyspark_nsq.spool_file import Abandoned, SpoolError, SpoolFile
from tests.spark import frames

ORIGIN = Origin("t", "c", "n:1")


def batch_of(*bodies: bytes):
    return frames.batch_of(ORIGIN, *(Message(1, 1, body.rjust(16, b"0"), body) for body in bodies))


def spooled(partition: Partition, *bodies: bytes) -> SpoolFile:
    """Spool each body as a chunk of one attempt."""
    partition.create()
    file = partition.new_file()
    for body in bodies:
        file.append(batch_of(body))
    return file


def rows_of(partition: Partition) -> list[bytes]:
    pieces = partition.sealed()
    assert pieces is not None
    return frames.bodies_of(partition, pieces)


def orphaned(spool: Spool) -> list[bytes]:
    return [body for each in spool.orphans() for batch in spool.read_orphan(each) for body in batch["body"].to_pylist()]


def test_a_missing_folder_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(SpoolError, match="there is no folder .*Create or mount it"):
        Spool(tmp_path / "nowhere", "s").create()


def test_a_missing_stream_folder_is_not_created_again(tmp_path):
    with pytest.raises(SpoolError, match="failOnDataLoss=false"):
        Spool(tmp_path, "s").require()


def test_a_sealed_partition_does_not_change(spool):
    partition = spool.partition(1, 0)
    file = spooled(partition, b"one")
    assert partition.sealed() is None
    partition.seal(partition.pieces())
    file.append(batch_of(b"two"))
    file.close()
    assert rows_of(partition) == [b"one"]


def test_of_concurrent_seals_one_wins_and_all_return_its_content(spool):
    partition = spool.partition(1, 0)
    spooled(partition, b"one", b"two").close()
    (whole,) = partition.pieces()
    start = threading.Barrier(8)
    fields_of: list[list[Piece]] = []

    def seal(rows: int) -> None:
        start.wait()
        fields_of.append(partition.seal([Piece(whole.file, whole.size, rows)]))

    threads = [threading.Thread(target=seal, args=(rows,)) for rows in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fields_of == [partition.sealed()] * 8


def test_cleaning_deletes_committed_batches_only(spool):
    for seq in (1, 2, 3):
        partition = spool.partition(seq, 0)
        spooled(partition, b"%d" % seq).close()
        partition.seal(partition.pieces())
    spool.clean(2)
    assert spool.batches() == [3]
    assert spool.cleaned == 2
    assert rows_of(spool.partition(3, 0)) == [b"3"]
    assert orphaned(spool) == []


def test_messages_spooled_after_the_seal_become_orphans_and_suspects(spool):
    partition = spool.partition(1, 0)
    file = spooled(partition, b"one")
    partition.seal(partition.pieces())
    file.append(batch_of(b"two"))
    file.close()
    spooled(partition, b"three").close()
    spool.clean(1)
    assert sorted(orphaned(spool)) == [b"three", b"two"]
    suspects = {"three".rjust(16, "0"), "two".rjust(16, "0")}
    assert spool.suspected(ORIGIN) == suspects
    for part, orphan in enumerate(spool.orphans()):
        spool.seal_orphan(spool.partition(2, part), orphan)
    spool.clean(2)
    assert spool.orphans() == []
    assert spool.suspected(ORIGIN) == suspects


def test_an_orphan_belongs_to_one_batch_and_is_deleted_with_it(spool):
    spooled(spool.partition(1, 0), b"one").close()  # never sealed
    spool.clean(1)
    (orphan,) = spool.orphans()
    partition = spool.partition(2, 0)
    spool.seal_orphan(partition, orphan)
    assert rows_of(partition) == [b"one"]
    assert spool.orphans() == []
    spool.clean(2)
    assert not list((spool.folder / "orphans").iterdir())


def test_an_attempt_whose_file_became_an_orphan_finishes_no_more_messages(spool):
    partition = spool.partition(1, 0)
    file = spooled(partition, b"one")
    partition.seal([])
    spool.clean(1)
    (orphan,) = spool.orphans()
    with pytest.raises(Abandoned):
        file.append(batch_of(b"two"))
    file.close()
    # What it had spooled by then is an orphan again when the batch of the first one is deleted.
    spool.seal_orphan(spool.partition(2, 0), orphan)
    assert rows_of(spool.partition(2, 0)) == [b"one"]
    spool.clean(2)
    assert orphaned(spool) == [b"two"]


def test_an_orphan_that_a_crash_cut_off_is_deleted_with_its_batch(spool):
    partition = spool.partition(1, 0)
    file = spooled(partition, b"one", b"two")
    file.close()
    file.path.write_bytes(file.path.read_bytes()[:-1])
    spool.clean(1)
    (orphan,) = spool.orphans()
    spool.seal_orphan(spool.partition(2, 0), orphan)
    assert rows_of(spool.partition(2, 0)) == [b"one"]
    spool.clean(2)
    assert spool.orphans() == []


def test_cleaning_reads_no_message(spool, monkeypatch):
    for part in range(2):
        partition = spool.partition(1, part)
        spooled(partition, b"one", b"two").close()
        partition.seal([] if part else partition.pieces())

    def refuse(*_: object) -> None:
        pytest.fail("a file was read")

    monkeypatch.setattr("pyspark_nsq.spool.chunks", refuse)
    spool.clean(1)
    assert [each.start for each in spool.orphans()] == [0]


def test_young_batches_are_not_deleted(spool):
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


def test_messages_spooled_before_a_start_of_nsqd_are_suspects(spool):
    for seq, written in ((1, 1_000.0), (2, 3_000.0)):
        file = spooled(spool.partition(seq, 0), b"%d" % seq)
        file.close()
        os.utime(file.path, (written, written))
    spool.suspect_all_before_restart(Origin("t", "c", "another:1"), 2_000)
    assert spool.suspects.of(ORIGIN) == set()
    spool.suspect_all_before_restart(ORIGIN, 2_000)
    assert spool.suspects.of(ORIGIN) == {"1".rjust(16, "0")}


def test_messages_spooled_after_a_recorded_start_are_not_suspects(spool):
    started = int(time.time())
    spool.suspect_all_before_restart(ORIGIN, started)
    spooled(spool.partition(1, 0), b"one").close()
    spool.suspect_all_before_restart(ORIGIN, started)
    assert spool.suspects.of(ORIGIN) == set()
    spool.suspect_all_before_restart(ORIGIN, started + 1)
    assert spool.suspects.of(ORIGIN) == {"one".rjust(16, "0")}


def test_interrupted_cleaning_is_repeated(spool):
    partition = spool.partition(1, 0)
    spooled(partition, b"one").close()
    partition.clean()
    spool.clean(1)
    spool.clean(1)
    assert orphaned(spool) == [b"one"]


def test_a_truncated_sealed_file_is_reported_as_damaged(spool):
    partition = spool.partition(1, 0)
    file = spooled(partition, b"one", b"two")
    file.close()
    sealed = partition.seal(partition.pieces())
    file.path.write_bytes(file.path.read_bytes()[:-1])
    with pytest.raises(SpoolError, match="is damaged: 1 rows of 2"):
        list(partition.read(sealed))


def test_suspects_belong_to_an_origin_and_expire(spool):
    spool.suspects.add(ORIGIN, ["a"])
    spool.suspects.add(ORIGIN, ["b"])
    assert spool.suspects.of(ORIGIN) == {"a", "b"}
    assert spool.suspects.of(Origin("t", "c", "other:1")) == set()
    spool.suspects.forget(3600)
    assert spool.suspects.of(ORIGIN) == {"a", "b"}
    spool.suspects.forget(-1)
    assert spool.suspects.of(ORIGIN) == set()
