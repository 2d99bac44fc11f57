"""F2, F3 and F5 for the log by itself.

A power cut keeps synced messages, and other publishes completely or not at all. Any one call of the system fails, or a
few in a row, and nothing acknowledged is lost. After a failed sync, no message of that file is reported as durable.
"""

import errno
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count, repeat
from random import Random
from typing import Any

import pytest

from nsq_compat.log.checkpoint import ChannelState, TopicState, entry_id, immediate_entries
from nsq_compat.log.recovery import recover
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol.message import make_frames, message_id
from nsq_compat.protocol.storage_schema import DEFERRED, MESSAGES
from nsq_compat.queue.backlog import Cursor
from tests.faults.disk import SHORT_WRITE, FaultyFiles, SimulatedDisk

pytestmark = pytest.mark.usefixtures("zeros_ahead")

NOW_NS = 1_700_000_000_000_000_000


def open_log(files: Any, segment_size: int, log_class: type[TopicLog] = TopicLog, **options: Any) -> TopicLog:
    return log_class(files, "/orders.topic", segment_size=segment_size, **options)


def frames_of(*numbers: int, sizes: Iterable[int] = (), random: Random | None = None) -> Sequence[bytes]:
    """Messages with these numbers as ids, with random bodies if there are `sizes`."""
    bodies = [random.randbytes(size) for size in sizes] if random else [b"body"] * len(numbers)
    return make_frames([b"%016x" % number for number in numbers], NOW_NS, bodies)


def ids_in(groups: Iterable[Any]) -> list[bytes]:
    return [message_id(frame) for group in groups for frame in group.frames]


class Story:
    """A log on a disk, its publishes, and what is finished."""

    def __init__(self, disk: SimulatedDisk, log_class: type[TopicLog], random: Random) -> None:
        self.disk = disk
        self.random = random
        self.publishes: list[list[bytes]] = []  # the ids of each group
        self.finished: set[bytes] = set()
        self._log_class = log_class
        self._numbers = count()

    def publish(self, log: TopicLog, sizes: Sequence[int], deferred: bool) -> list[bytes]:
        """Returns the ids. Raises ``OSError``."""
        frames = frames_of(*(next(self._numbers) for _ in sizes), sizes=sizes, random=self.random)
        self.publishes.append(list(map(message_id, frames)))
        kind = (NOW_NS, DEFERRED) if deferred else (0, MESSAGES)
        log.append(frames, log.end.seq, *kind)
        return self.publishes[-1]


# --- Power cuts -------------------------------------------------------------------------------------------------------


class NeverSyncingLog(TopicLog):
    """A log that reports a sync without doing it."""

    def sync(self) -> None:
        self.finish_sync(self.begin_sync(), None)


class PowerCuts(Story):
    """Publishes, syncs and releases at random, and records the messages that must survive."""

    def __init__(self, seed: int, log_class: type[TopicLog]) -> None:
        super().__init__(SimulatedDisk(), log_class, Random(seed))
        self.promised: set[bytes] = set()
        self.written: set[bytes] = set()
        self.log = open_log(self.disk, 3000, log_class)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = self.random.choices([self._publish, self._sync, self._release], [6, 2, 1])[0]
            step()

    def power_cut(self) -> None:
        self.disk = self.disk.power_cut(self.random)
        self.log = open_log(self.disk, 3000, self._log_class)
        self._check()

    def _publish(self) -> None:
        sizes = [self.random.choice([10, 100, 900]) for _ in range(self.random.choice([1, 1, 1, 2, 5, 20]))]
        self.written.update(self.publish(self.log, sizes, self.random.random() < 0.2))

    def _sync(self) -> None:
        self.log.sync()
        self.promised = self.written - self.finished

    def _release(self) -> None:
        """Finish most old messages and release their segments, as after a durable checkpoint."""
        self._sync()
        end = self.log.end
        seq = self.random.randint(self.log.oldest, end.seq)
        some = [each for each in self.written if self.random.random() < 0.2]
        finished = self._messages_below(seq) - set(some)
        self.finished |= finished
        self.promised -= finished
        self.log.release(seq, lambda: self.written - self.finished, end)

    def _messages_below(self, seq: int) -> set[bytes]:
        reader = self.log.reader(0)
        found: set[bytes] = set()
        while groups := reader.read():
            for group in groups:
                found |= {message_id(frame) for frame in group.frames[: max(0, seq - group.first_seq)]}
        return found

    def _check(self) -> None:
        groups = list(self.log.recovered())
        found = ids_in(groups)
        assert len(found) == len(set(found)), "a message exists once"
        kept = set(self.log.fetch(self.promised))
        assert self.promised <= set(found) | kept, "synced messages exist"
        assert set(found) <= self.written, "nothing else is"
        for ids in self.publishes:
            there = set(ids) & set(found)
            assert not there or there == set(ids), "a publish exists completely"
        seqs = [group.first_seq for group in groups if group.kind == MESSAGES]
        assert seqs == sorted(seqs)
        self.written = set(found) | kept
        self.publishes = [ids for ids in self.publishes if set(ids) <= self.written]


def cut_power(seeds: Iterable[int], log_class: type[TopicLog] = TopicLog) -> None:
    for seed in seeds:
        story = PowerCuts(seed, log_class)
        for _ in range(4):
            story.run(story.random.randint(1, 25))
            story.power_cut()


@pytest.mark.parametrize("hundred", range(3))
def test_synced_messages_survive_a_power_cut(hundred):
    cut_power(range(hundred * 100, hundred * 100 + 100))


@pytest.mark.interpreted
def test_a_log_that_does_not_sync_is_detected():
    with pytest.raises(AssertionError, match="synced messages exist"):
        cut_power(range(100), NeverSyncingLog)


# --- Calls that fail --------------------------------------------------------------------------------------------------

FAULTS: dict[str, int | str] = {
    "ENOSPC": errno.ENOSPC,
    "EIO": errno.EIO,
    "EMFILE": errno.EMFILE,
    "short write": SHORT_WRITE,
}


class Careless(TopicLog):
    """Acknowledges what it could not write."""

    def append(self, frames, first_seq, due_ns=0, kind=MESSAGES, joined=b""):
        with suppress(OSError):
            super().append(frames, first_seq, due_ns, kind, joined)


class FailingCalls(Story):
    """A day of a log on a disk that fails. After an error, the caller goes on with something else."""

    def __init__(self, log_class: type[TopicLog], first: int, fault: int | str, length: int) -> None:
        super().__init__(SimulatedDisk(), log_class, Random(1))
        self.files = FaultyFiles(self.disk, first, fault, length)
        self.acknowledged: dict[bytes, int] = {}  # id -> number, -1 for deferred ones
        with suppress(OSError):
            self._tell()

    def _tell(self) -> None:
        log = open_log(self.files, 2000, self._log_class)
        for _ in range(2):
            self._publish(log, 1, 1, 3)
            self._publish(log, 2, deferred=True)
            self._try(log.sync)
            self._publish(log, 12, 1)
            self._read_everything(log)
            self._publish(log, 30, 1, 1, 1)
            self._release(log)
            self._try(log.sync)
            self._try(lambda: log.fetch(list(self.acknowledged)))
            self._publish(log, 1, 1)
        log.close()

    def _publish(self, log: TopicLog, *counts: int, deferred: bool = False) -> None:
        for number in counts:
            seq = log.end.seq
            with suppress(OSError):
                ids = self.publish(log, [60] * number, deferred)
                self.acknowledged.update({each: -1 if deferred else seq + n for n, each in enumerate(ids)})

    def _read_everything(self, log: TopicLog) -> None:
        reader = log.reader(0)
        with suppress(OSError):
            while reader.read():
                pass

    def _release(self, log: TopicLog) -> None:
        """Of what is older than half of the messages every fifth is unfinished."""
        end = log.end
        old = [each for each, seq in self.acknowledged.items() if 0 <= seq < end.seq // 2]
        self.finished |= {each for n, each in enumerate(old) if n % 5}
        log.release(end.seq // 2, lambda: self.acknowledged.keys() - self.finished, end)

    def _try(self, call: Callable[[], object]) -> None:
        with suppress(OSError):
            call()

    def check(self) -> None:
        """A day later, on a disk that works."""
        log = open_log(self.disk.kill(), 2000)
        groups = list(log.recovered())
        in_order = ids_in(groups)
        wanted = self.acknowledged.keys() - self.finished
        found = set(in_order) | log.fetch(wanted).keys()
        assert wanted <= found, "what was acknowledged is there"
        for ids in self.publishes:
            there = set(ids) & set(in_order)
            assert there <= self.acknowledged.keys() or there == set(ids), "a publish is there as a whole"
        for group in groups:
            if group.kind == MESSAGES and message_id(group.frames[0]) in self.acknowledged:
                assert self.acknowledged[message_id(group.frames[0])] == group.first_seq, "numbers stay"
        assert log.damage.records == 0
        assert log.end.seq > max(self.acknowledged.values(), default=-1)


def call_all(fault: int | str, length: int, log_class: type[TopicLog] = TopicLog) -> int:
    first = 0
    while True:
        first += 1
        story = FailingCalls(log_class, first, fault, length)
        story.check()
        if story.files.calls < first:
            return first


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("fault", FAULTS)
def test_whichever_call_fails_nothing_acknowledged_is_lost(fault, length):
    assert call_all(FAULTS[fault], length) > 30, "there were calls to fail"


@pytest.mark.interpreted
def test_a_log_that_acknowledges_what_it_did_not_write_is_found_out():
    with pytest.raises(AssertionError, match="what was acknowledged is there"):
        call_all(errno.ENOSPC, 1, Careless)


def test_publishing_goes_on_once_the_disk_takes_data_again():
    disk = SimulatedDisk()
    files = FaultyFiles(disk, 1 << 60, errno.ENOSPC, length=1 << 60)
    log = open_log(files, 2000)
    frames = frames_of(1)
    files._failing = range(1, 1 << 60)
    for _ in range(3):
        with pytest.raises(OSError, match="fails"):
            log.append(frames, 0)
    files._failing = range(0)
    log.append(frames, 0)
    assert [group.frames for group in log.reader(0).read()] == [list(frames)]


# --- Reads, at the start and later ------------------------------------------------------------------------------------


class ShortReads(SimulatedDisk):
    """Gives at most 700 bytes at once."""

    def pread(self, fd, size, offset):
        return super().pread(fd, min(size, 700), offset)


def waiting(disk: SimulatedDisk) -> tuple[SimulatedDisk, TopicState, list[bytes]]:
    """A topic on that disk in which 200 messages wait for a channel, stopped properly."""
    log = open_log(disk, 2000)
    for number in range(200):
        log.append(frames_of(number, sizes=[60], random=Random(number)), number)
    ids = [b"%016x" % number for number in range(200)]
    last = TopicState(
        log.end, 0.0, ids[-1], {"c": ChannelState(0, immediate_entries([(each, 1) for each in ids[:20]]))}
    )
    log.close()
    return disk, last, ids


def consume(files: FaultyFiles, last: TopicState) -> tuple[list[bytes], list[bytes], int]:
    """By number and by id, what a daemon delivers that starts again, and asks again, until the system answers."""
    states = {"c": ChannelState(0, list(last.channels["c"].entries))}
    while True:
        with suppress(OSError):
            log = open_log(files, 2000, start=last.end)
            state = recover(replace(last, channels=states), log)
            break
    cursor = Cursor(log, 2)
    cursor.move(state.channels["c"].position, state.end.seq, state.channels["c"].gaps)
    taken: list[bytes] = []
    while len(cursor):
        with suppress(OSError):
            taken += map(message_id, cursor.take(7, 1 << 20))
    wanted = [entry_id(key) for key in state.channels["c"].entries]
    while True:
        with suppress(OSError):
            found = sorted(log.fetch(wanted))
            break
    log.release(state.end.seq // 2, lambda: wanted, log.end)
    return taken, found, log.damage.records


@pytest.mark.parametrize("length", [1, 9])
@pytest.mark.parametrize("fault", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EACCES])
def test_whichever_call_fails_at_the_start_or_later_everything_is_delivered_once_and_nothing_is_called_damaged(
    fault, length
):
    disk, last, ids = waiting(SimulatedDisk())
    first = calls = 0
    while first <= calls:
        first += 1
        files = FaultyFiles(disk.copy(), first, fault, length)
        assert consume(files, last) == (ids, ids[:20], 0), first
        calls = files.calls
    assert calls > 30


def test_reads_that_give_less_than_was_asked_for_are_no_end():
    disk, last, ids = waiting(ShortReads())
    assert consume(FaultyFiles(disk, 1 << 60, errno.EIO), last) == (ids, ids[:20], 0)


# --- Syncs that fail --------------------------------------------------------------------------------------------------


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


def fail_syncs(seed: int, log_class: type[TopicLog] = TopicLog) -> int:
    """Publish with group commit, as nsqd does, also during a sync; returns the number of successful publishes."""
    random = Random(seed)
    disk = SimulatedDisk()
    log = open_log(disk, 500, log_class)
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
    assert durable <= set(ids_in(open_log(disk.power_cut(random), 500).recovered())), "durable messages exist"
    return len(durable)


def test_durable_messages_survive_any_failed_syncs():
    assert sum(map(fail_syncs, range(300))) > 1000, "most syncs succeed"


@pytest.mark.interpreted
def test_a_log_that_syncs_the_same_file_again_is_detected():
    with pytest.raises(AssertionError, match="durable messages exist"):
        list(map(fail_syncs, range(300), repeat(RetryingLog)))


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def log(disk: SimulatedDisk) -> TopicLog:
    return open_log(disk, 2000)


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
