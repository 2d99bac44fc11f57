"""A spool file: after a crash, exactly the intact chunks are read."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nsq_compat.protocol.frames import Message
from pyspark_nsq.rows import Origin
from pyspark_nsq.spool_file import Abandoned, SpoolError, SpoolFile, chunks, encode
from tests.spark import frames

ORIGIN = Origin("t", "c", "n:1")


def batch_of(*bodies: bytes):
    return frames.batch_of(ORIGIN, *(Message(number, 1, b"%016d" % number, body) for number, body in enumerate(bodies)))


def bodies_in(path: Path, end: int | None = None) -> list[list[bytes]]:
    return [chunk.batch.column("body").to_pylist() for chunk in chunks(path, end)]


@given(st.lists(st.lists(st.binary(max_size=50), min_size=1, max_size=5), max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_appended_batches_are_read_back(tmp_path, appended):
    path = tmp_path / f"{os.urandom(8).hex()}.spool"
    file = SpoolFile(path)
    for bodies in appended:
        file.append(batch_of(*bodies))
    file.close()
    assert bodies_in(path) == appended
    assert (file.rows, file.size) == (sum(map(len, appended)), path.stat().st_size)


def test_a_file_truncated_at_any_byte_has_the_chunks_before_it(tmp_path):
    pieces = [encode(batch_of(b"one", b"two")), encode(batch_of(b"three"))]
    whole, path = b"".join(pieces), tmp_path / "cut"
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        expected = [[b"one", b"two"], [b"three"]][: (size >= len(pieces[0])) + (size >= len(whole))]
        assert bodies_in(path) == expected


def test_a_changed_byte_ends_the_file_before_its_chunk(tmp_path):
    first, second = (bytes(encode(batch_of(body))) for body in (b"one", b"two"))
    path = tmp_path / "changed"
    for place in range(len(second)):
        changed = bytearray(second)
        changed[place] ^= 0x40
        path.write_bytes(first + changed)
        assert bodies_in(path) == [[b"one"]]


def test_zeros_after_the_last_chunk_are_ignored(tmp_path):
    path = tmp_path / "zeros"
    path.write_bytes(bytes(encode(batch_of(b"one"))) + bytes(5000))
    assert bodies_in(path) == [[b"one"]]


def test_reading_up_to_an_offset_leaves_out_later_chunks(tmp_path):
    file = SpoolFile(tmp_path / "later")
    file.append(batch_of(b"one"))
    size = file.size
    file.append(batch_of(b"two"))
    file.close()
    assert bodies_in(file.path, size) == [[b"one"]]


@pytest.mark.parametrize("take_away", [Path.unlink, lambda path: path.rename(path.with_suffix(".orphan"))])
def test_a_deleted_or_moved_file_cannot_be_appended_to(tmp_path, take_away):
    file = SpoolFile(tmp_path / "gone")
    take_away(file.path)
    with pytest.raises(Abandoned):
        file.append(batch_of(b"one"))
    file.close()


def test_a_full_disk_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    file = SpoolFile(tmp_path / "full")

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pyspark_nsq.spool_file.os.fdatasync", refuse)
    with pytest.raises(SpoolError, match="spoolDir: No space left on device .*make room"):
        file.append(batch_of(b"one"))
    file.close()
