"""Segments of version 1, which 0.1.0 wrote, become those of this version, whatever happens meanwhile."""

import errno
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from nsq_compat.log.files import Files
from nsq_compat.log.migration import migrate, version_1_files
from nsq_compat.log.segment import (
    FIRST_GROUP,
    HEADER_SIZE,
    GroupHeader,
    decode_header,
    decode_segment_header,
    encode_headers,
    encode_segment_header,
)
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol import storage_schema as records
from nsq_compat.protocol.message import make_frames
from nsq_compat.protocol.storage_schema import DEFERRED, SEGMENT_MAGIC_1, SEGMENT_MAGIC_2
from tests.faults.disk import Crash, DyingDisk, FaultyFiles, SimulatedDisk
from tests.log.test_last_release import extract
from tests.log.test_topic_log import FOLDER, NOW_NS, Writer


def written(*, deferred: bool = True) -> dict[str, bytes]:
    """The segments of a log with groups of all sorts, by path."""
    writer = Writer(segment_size=1500)
    for number in range(12):
        writer.publish(1 + number % 3)
        if deferred and number % 2:
            writer.publish(number, due_ns=NOW_NS + number)
            writer.log.append([b"archive"], writer.log.end.seq, kind=records.CHANNEL_EMPTIED)
    writer.publish(5)
    writer.log.close()
    disk = cast("SimulatedDisk", writer.files)
    return {path: as_version_2(disk.content(path)) for name in writer.paths() for path in [f"{FOLDER}/{name}"]}


def groups_in(data: bytes) -> Iterator[GroupHeader]:
    """The headers of the groups of a segment."""
    start = decode_segment_header(data)
    assert start is not None
    offset = FIRST_GROUP
    while offset < len(data):
        header = decode_header(data, offset, offset, start.salt)
        assert header is not None
        yield header
        offset = header.end


def with_headers(content: bytearray, header: GroupHeader) -> None:
    """Replace the header and the trailer of a group by those of a file without a salt."""
    front, trailer = encode_headers(header, 0)
    content[header.offset : header.offset + HEADER_SIZE] = front
    content[header.end - len(trailer) : header.end] = trailer


def as_version_2(data: bytes) -> bytes:
    """The same segment without a salt."""
    content = bytearray(data)
    for header in groups_in(data):
        with_headers(content, header)
    start = decode_segment_header(data)
    assert start is not None
    content[:FIRST_GROUP] = encode_segment_header(start.first_seq, SEGMENT_MAGIC_2)
    return bytes(content)


def as_version_1(segments: dict[str, bytes]) -> dict[str, bytes]:
    """The same groups with the numbers that 0.1.0 wrote."""
    old: dict[str, bytes] = {}
    count = 0
    for path, data in segments.items():
        content = bytearray(data)
        for header in groups_in(data):
            if header.kind == DEFERRED:
                numbered = header._replace(first_seq=header.first_seq - count)
                count += header.record_count
            else:
                assert header.due_ns == count
                numbered = header._replace(due_ns=0)
            with_headers(content, numbered)
        start = decode_segment_header(data)
        assert start is not None
        content[:FIRST_GROUP] = encode_segment_header(start.first_seq, SEGMENT_MAGIC_1)
        old[path] = bytes(content)
    return old


def disk_with(segments: dict[str, bytes]) -> DyingDisk:
    disk = DyingDisk()
    disk.mkdir(FOLDER)
    disk.fsync_folder("/")
    for path, data in segments.items():
        disk.put(path, data)
    return disk


def contents(disk: SimulatedDisk) -> dict[str, bytes]:
    paths = [f"{FOLDER}/{name}" for name in sorted(disk.listdir(FOLDER)) if name.startswith("log.")]
    return {path: disk.content(path) for path in paths if not path.endswith(".tmp")}


def migrated(disk: Any) -> dict[str, bytes]:
    """Open the log as nsqd does; returns the segments then."""
    TopicLog(disk, FOLDER, migrates=True).close()
    return contents(disk)


@pytest.mark.parametrize("deferred", [True, False])
def test_a_migrated_log_is_what_this_version_would_have_written(deferred):
    new = written(deferred=deferred)
    old = as_version_1(new)
    assert len(new) > 2
    assert all(old[path] != new[path] for path in new)
    disk = disk_with(old)
    assert migrated(disk) == new
    assert migrated(disk) == new, "a second start changes nothing"


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_what_0_1_0_wrote_becomes_what_this_version_writes(tmp_path: Path, end: str):
    extract(tmp_path)
    disk = DyingDisk()
    disk.mkdir(FOLDER)
    (segment,) = (tmp_path / "os" / end / "nsq_compat" / "orders.topic").glob("log.*")
    disk.put(f"{FOLDER}/{segment.name}", segment.read_bytes())
    (data,) = migrated(disk).values()
    assert as_version_1({"": data}) == {"": segment.read_bytes()}
    assert data != segment.read_bytes()


@pytest.mark.parametrize("accident", ["kill", "power cut"])
@pytest.mark.parametrize("deferred", [True, False])
def test_a_crash_at_any_moment_of_a_migration_leaves_whole_segments(accident, deferred):
    new = written(deferred=deferred)
    old = as_version_1(new)
    for calls in range(1, 1000):
        disk = disk_with(old)
        disk.left = calls
        try:
            migrated(disk)
            break
        except Crash:
            found = disk.copy() if accident == "kill" else disk.power_cut(Random(calls))
        found.left = 1 << 60
        assert all(data in (old[path], new[path]) for path, data in contents(found).items())
        assert migrated(found) == new
        assert not [name for name in found.listdir(FOLDER) if name.endswith(".tmp")]
    assert calls > 10


def test_a_failed_call_fails_the_start_and_the_next_one_migrates():
    new = written()
    old = as_version_1(new)
    failures = 0
    for call in range(1, 1000):
        disk = disk_with(old)
        files = FaultyFiles(cast("Files", disk), call, errno.ENOSPC)
        try:
            TopicLog(cast("Files", files), FOLDER, migrates=True).close()
        except OSError:
            failures += 1
        if files.calls < call:
            break
        assert migrated(disk) == new
    assert failures > 20


def test_damage_is_copied_as_it_is_and_what_can_be_read_is_numbered():
    new = written()
    old = as_version_1(new)
    random = Random(5)
    for _ in range(100):
        path = random.choice(list(new))
        place = random.randrange(FIRST_GROUP, len(new[path]) - 8)
        damaged = {
            each: data if each != path else data[:place] + b"\xa5" * 8 + data[place + 8 :] for each, data in old.items()
        }
        expected = {
            each: data if each != path else data[:place] + b"\xa5" * 8 + data[place + 8 :] for each, data in new.items()
        }
        disk, other = disk_with(damaged), disk_with(expected)
        migrated(disk)
        logs = [TopicLog(cast("Files", each), FOLDER) for each in (disk, other)]
        frames = [[(each.kind, each.frames) for each in log.recovered()] for log in logs]
        assert frames[0] == frames[1]
        assert logs[0].damage.records == logs[1].damage.records


def test_a_log_without_salts_goes_on_with_one():
    old = written()
    disk = disk_with(old)
    log = TopicLog(cast("Files", disk), FOLDER, migrates=True)
    before = [frame for group in log.recovered() for frame in group.frames]
    log.append(make_frames([b"f" * 16], NOW_NS, [b"with a salt"]), log.next_seq)
    log.close()
    assert contents(disk).items() > old.items()
    log = TopicLog(cast("Files", disk), FOLDER, migrates=True)
    assert [segment.salt > 0 for segment in log.segments] == [False] * len(old) + [True]
    after = [frame for group in log.recovered() for frame in group.frames]
    assert after[:-1] == before
    assert after[-1].endswith(b"with a salt")


def test_files_of_version_1_are_named():
    new = written()
    paths = sorted(new)
    mixed = disk_with({**as_version_1(new), paths[-1]: new[paths[-1]]})
    names = [path.rpartition("/")[2] for path in paths]
    assert version_1_files(cast("Files", mixed), FOLDER, names) == names[:-1]
    migrate(cast("Files", mixed), FOLDER, names)
    assert version_1_files(cast("Files", mixed), FOLDER, names) == []
