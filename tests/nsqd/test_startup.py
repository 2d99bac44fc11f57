"""What a start makes of nsqd.dat and the logs when nsqd.dat is damaged."""

import errno
from collections.abc import Iterator
from typing import cast

import pytest

from nsq_compat.godata.export import write_queue
from nsq_compat.godata.format import GoMessage
from nsq_compat.log.data_path import our_folder
from nsq_compat.log.files import Files
from nsq_compat.log.metadata import (
    ChannelMetadata,
    MetadataError,
    TopicMetadata,
    decode_metadata,
    encode_metadata,
)
from nsq_compat.log.storage import Durability, Storage
from nsq_compat.nsqd.durability import Checkpoints
from nsq_compat.nsqd.startup import restore
from nsq_compat.protocol.message import MessageIds
from nsq_compat.queue.broker import snapshot
from nsq_compat.queue.values import QueueLimits
from tests.broker import NOW_NS, Daemon
from tests.faults.disk import FaultyFiles, SimulatedDisk

DATA_PATH = "/data"
NSQD_DAT = "/data/nsqd.dat"
TOPICS = (
    TopicMetadata("orders", False, (ChannelMetadata("a"), ChannelMetadata("b", True))),
    TopicMetadata("pay"),
)
WRITTEN = encode_metadata(TOPICS)
WAITING = {("orders", "a"): [b"1", b"2"], ("orders", "b"): [b"1", b"2"], ("pay", "new"): [b"3"]}
"""`new` is made after the start, and given what a topic without channels holds."""


def storage_on(disk: SimulatedDisk) -> Storage:
    files = cast("Files", disk)
    return Storage(files, DATA_PATH, durability=Durability.OS, segment_size=1 << 20)


def start(disk: SimulatedDisk) -> Daemon:
    storage = storage_on(disk)
    daemon = Daemon(QueueLimits(), storage)
    restore(daemon.broker, storage)
    return daemon


def names(daemon: Daemon) -> dict[str, set[str]]:
    return {name: set(topic.channels) for name, topic in daemon.broker.topics.items()}


def waiting(daemon: Daemon) -> dict[tuple[str, str], list[bytes]]:
    """What consumers are given, also of the channels that are paused."""
    found = {}
    for topic, channel in WAITING:
        target = daemon.channel(channel, topic)
        if target.paused:
            target.unpause()
        found[topic, channel] = daemon.consumer(channel, topic).takes()
    return found


@pytest.fixture(scope="module")
def stored() -> SimulatedDisk:
    """Two topics with logs, as they are after kill -9, and an nsqd.dat."""
    disk = SimulatedDisk()
    disk.mkdir(DATA_PATH)
    disk.mkdir(our_folder(DATA_PATH))
    daemon = start(disk)
    daemon.channel("a")
    daemon.channel("b")
    daemon.publishes(b"1", b"2")
    daemon.publishes(b"3", topic="pay")
    disk.kill()
    disk.put(NSQD_DAT, WRITTEN)
    return disk


def with_nsqd_dat(stored: SimulatedDisk, content: bytes) -> SimulatedDisk:
    disk = stored.copy()
    disk.put(NSQD_DAT, content)
    return disk


def kept_aside(disk: SimulatedDisk) -> list[str]:
    return sorted(name for name in disk.listdir(DATA_PATH) if name.startswith("nsqd.dat."))


def flips() -> Iterator[bytes]:
    for bit in range(8 * len(WRITTEN)):
        flipped = bytearray(WRITTEN)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without the warnings that the topics, after kill -9, have no checkpoints."""
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("length", [1, 9])
@pytest.mark.parametrize("fault", [errno.EIO, errno.EMFILE, errno.EACCES])
@pytest.mark.parametrize("has_checkpoints", [False, True])
def test_whichever_call_fails_the_start_works_or_is_refused_and_the_next_one_has_every_message(
    stored, caplog, has_checkpoints, fault, length
):
    disk = with_nsqd_dat(stored, WRITTEN)
    if has_checkpoints:
        daemon = start(disk)
        Checkpoints(daemon.broker, storage_on(disk), 60.0).write_last()
        disk.kill()
    refused = first = calls = 0
    while first <= calls:
        first += 1
        failing = disk.copy()
        files = FaultyFiles(cast("Files", failing), first, fault, length)
        try:
            start(cast("SimulatedDisk", files))
        except (OSError, MetadataError):
            refused += 1
        calls = files.calls
        caplog.clear()
        daemon = start(failing.kill())
        assert waiting(daemon) == WAITING, first
        assert sum(topic.damaged_records for topic in snapshot(daemon.broker, daemon.now)) == 0, first
        assert errors(caplog) == [], first
    assert refused > 5


def test_an_undamaged_file_says_which_are_paused(stored, caplog):
    disk = with_nsqd_dat(stored, WRITTEN)
    daemon = start(disk)
    assert names(daemon) == {"orders": {"a", "b"}, "pay": set()}
    assert [daemon.channel(name).paused for name in ("a", "b")] == [False, True]
    assert waiting(daemon) == WAITING
    assert kept_aside(disk) == []
    assert errors(caplog) == []


def test_with_any_bit_flipped_every_message_is_delivered(stored, caplog):
    silent = 0
    for flipped in flips():
        caplog.clear()
        disk = with_nsqd_dat(stored, flipped)
        daemon = start(disk)
        logged = errors(caplog)
        if kept_aside(disk):
            assert kept_aside(disk) == ["nsqd.dat.bad-1"]
            assert disk.content("/data/nsqd.dat.bad-1") == flipped
            [error] = logged
            assert "kept as /data/nsqd.dat.bad-1" in error, flipped
        else:
            assert logged == []
            silent += 1
            assert is_another_name_at_most(flipped), flipped
        assert waiting(daemon) == WAITING, flipped
    assert 0 < silent < 8 * len(WRITTEN) / 4


def is_another_name_at_most(flipped: bytes) -> bool:
    """Whether a flip that cannot be noticed changed nothing but the name of one topic or channel."""
    [orders, pay] = decode_metadata(flipped).topics
    [a, b] = orders.channels
    assert (orders.paused, pay.paused, pay.channels, a.paused, b.paused) == (False, False, (), False, True)
    return sum(found != written for found, written in zip(
        (orders.name, a.name, b.name, pay.name), ("orders", "a", "b", "pay"), strict=True
    )) <= 1  # fmt: skip


@pytest.mark.parametrize("end", range(len(WRITTEN)))
def test_with_any_truncation_every_message_is_delivered_and_an_error_logged(stored, caplog, end):
    disk = with_nsqd_dat(stored, WRITTEN[:end])
    daemon = start(disk)
    assert len(errors(caplog)) == 1
    assert disk.content("/data/nsqd.dat.bad-1") == WRITTEN[:end]
    assert waiting(daemon) == WAITING


def test_the_readable_part_of_a_damaged_file_is_used(stored, caplog):
    disk = with_nsqd_dat(stored, WRITTEN.replace(b'"pay"', b'"p y"'))
    daemon = start(disk)
    assert daemon.channel("b").paused
    [error] = errors(caplog)
    assert "topic 2 has the invalid name 'p y'" in error
    assert waiting(daemon) == WAITING


def test_it_is_used_again_if_the_process_ends_before_it_is_replaced(stored):
    disk = with_nsqd_dat(stored, WRITTEN.replace(b'"pay"', b'"p y"'))
    start(disk)
    daemon = start(disk.kill().copy())
    assert daemon.channel("b").paused
    assert waiting(daemon) == WAITING


def test_gos_queues_are_not_imported_with_a_damaged_one_but_without_any(stored, caplog):
    disk = with_nsqd_dat(stored, WRITTEN[:-1])
    number = MessageIds(7).take_one(NOW_NS)
    write_queue(cast("Files", disk), DATA_PATH, "go:c", [GoMessage(NOW_NS, 0, number, b"go's")], 1 << 20)
    before = sorted(disk.listdir(DATA_PATH))
    with pytest.raises(MetadataError, match="Go's queues beside it are not imported"):
        start(disk)
    assert sorted(disk.listdir(DATA_PATH)) == before
    disk.unlink(NSQD_DAT)
    daemon = start(disk)
    assert daemon.consumer("c", "go").takes() == [b"go's"]
    assert waiting(daemon) == WAITING


def test_gos_empty_queues_are_not_moved_with_a_damaged_file(stored):
    disk = with_nsqd_dat(stored, WRITTEN.replace(b'"pay"', b'"p y"'))
    write_queue(cast("Files", disk), DATA_PATH, "go:c", [], 1 << 20)
    before = sorted(disk.listdir(DATA_PATH))
    with pytest.raises(MetadataError, match="topic 2 has the invalid name 'p y'"):
        start(disk)
    assert sorted(disk.listdir(DATA_PATH)) == before
