"""F5 for the log alone: after a failed sync, no message of that file is reported as durable."""

from collections.abc import Iterable
from random import Random
from typing import cast

import pytest

from nsq_compat.log.files import Files
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol.message import make_frames, message_id
from tests.faults.disk import SimulatedDisk

pytestmark = pytest.mark.usefixtures("zeros_ahead")

FOLDER = "/orders.topic"
NOW_NS = 1_700_000_000_000_000_000


class RetryingLog(TopicLog):
    """A log that wrongly trusts a second fdatasync of the same file."""

    def finish_sync(self, job, error):
        if error is None:
            super().finish_sync(job, None)
        else:
            for target in job.targets:
                self._descriptors.unpin(target.segment.file)
            for folder, _ in job.folders:
                self._descriptors.unpin(folder)


def frames_of(number: int) -> tuple[bytes, ...]:
    return make_frames([b"%016x" % number], NOW_NS, [b"body"])


def tell(seed: int, log_class: type[TopicLog] = TopicLog) -> int:
    """Publish with group commit, as nsqd does, also during a sync; returns the number of successful publishes."""
    random = Random(seed)
    disk = SimulatedDisk()
    log = log_class.open(cast("Files", disk), FOLDER, segment_size=500)
    durable: set[bytes] = set()
    waiting: list[bytes] = []
    number = 0

    def publish() -> None:
        nonlocal number
        frames = frames_of(number)
        log.append(frames, number)
        waiting.append(message_id(frames[0]))
        number += 1

    for _ in range(12):
        publish()
        turn, waiting = waiting, []
        job = log.begin_sync()
        if random.random() < 0.5:
            publish()
        if random.random() < 0.3:
            disk.failing_syncs = 1
        try:
            job.run()
        except OSError as error:
            log.finish_sync(job, error)
        else:
            log.finish_sync(job, None)
            durable.update(turn)
    found = TopicLog.open(cast("Files", disk.power_cut(random)), FOLDER, segment_size=500).recovered()
    assert durable <= {message_id(frame) for group in found for frame in group.frames}, "durable messages exist"
    return len(durable)


def tell_many(seeds: Iterable[int], log_class: type[TopicLog] = TopicLog) -> int:
    return sum(tell(seed, log_class) for seed in seeds)


def test_durable_messages_survive_any_failed_syncs():
    assert tell_many(range(300)) > 1000, "most syncs succeed"


@pytest.mark.interpreted
def test_a_log_that_syncs_the_same_file_again_is_detected():
    with pytest.raises(AssertionError, match="durable messages exist"):
        tell_many(range(300), RetryingLog)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def log(disk: SimulatedDisk) -> TopicLog:
    return TopicLog.open(cast("Files", disk), FOLDER, segment_size=2000)


def test_after_a_failed_sync_the_log_uses_a_new_file(log, disk):
    log.append(frames_of(0), 0)
    disk.failing_syncs = 1
    with pytest.raises(OSError, match="broken"):
        log.sync()
    before = log.end.segment
    log.append(frames_of(1), 1)
    log.sync()
    assert log.end.segment == before + 1


def test_groups_appended_during_a_failed_sync_fail_with_the_next(log, disk):
    log.append(frames_of(0), 0)
    job = log.begin_sync()
    log.append(frames_of(1), 1)
    disk.failing_syncs = 1
    with pytest.raises(OSError, match="broken") as failure:
        job.run()
    log.finish_sync(job, failure.value)
    with pytest.raises(OSError, match="earlier sync"):
        log.sync()
    log.append(frames_of(2), 2)
    log.sync()


def test_a_file_whose_sync_failed_is_still_read(log, disk):
    log.append(frames_of(0), 0)
    disk.failing_syncs = 1
    with pytest.raises(OSError, match="broken"):
        log.sync()
    assert log.reader(0).read()[0].frames == list(frames_of(0))
