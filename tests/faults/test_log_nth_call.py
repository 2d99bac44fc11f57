"""F3 for the log by itself: any one call of the system fails, or a few in a row, and nothing acknowledged is lost."""

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import cast

import pytest

from nsq_compat.log.checkpoint import ChannelState, TopicState, entries_at_once, entry_id
from nsq_compat.log.files import Files
from nsq_compat.log.recovery import recover
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol.message import make_frames, message_id
from nsq_compat.protocol.storage_schema import DEFERRED, MESSAGES
from nsq_compat.queue.backlog import Cursor
from tests.faults.disk import SHORT_WRITE, FaultyFiles, SimulatedDisk

pytestmark = pytest.mark.usefixtures("zeros_ahead")

FOLDER = "/orders.topic"
NOW_NS = 1_700_000_000_000_000_000
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


class Story:
    """A day of a log on a disk that fails; whoever asked is told, and asks for something else then."""

    def __init__(self, log_class: type[TopicLog], first: int, fault: int | str, length: int) -> None:
        self.disk = SimulatedDisk()
        self.files = FaultyFiles(self.disk, first, fault, length)
        self.acknowledged: dict[bytes, int] = {}  # id -> number, -1 for deferred ones
        self.finished: set[bytes] = set()
        self.publishes: list[list[bytes]] = []
        self._log_class = log_class
        self._next_id = 0
        self._random = Random(1)
        with suppress(OSError):
            self._tell()

    def _tell(self) -> None:
        log = self._log_class.open(cast("Files", self.files), FOLDER, segment_size=2000)
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
        for count in counts:
            ids = [b"%016x" % (self._next_id + number) for number in range(count)]
            self._next_id += count
            frames = make_frames(ids, NOW_NS, [self._random.randbytes(60) for _ in ids])
            self.publishes.append(ids)
            seq = log.end.seq
            try:
                log.append(frames, seq, NOW_NS if deferred else 0, DEFERRED if deferred else MESSAGES)
            except OSError:
                continue
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
        log = TopicLog.open(cast("Files", self.disk.kill()), FOLDER, segment_size=2000)
        groups = list(log.recovered())
        in_order = [message_id(frame) for group in groups for frame in group.frames]
        wanted = self.acknowledged.keys() - self.finished
        found = set(in_order) | log.fetch(wanted).keys()
        assert wanted <= found, "what was acknowledged is there"
        for ids in self.publishes:
            there = set(ids) & set(in_order)
            assert there <= self.acknowledged.keys() or there == set(ids), "a publish is there as a whole"
        for group in groups:
            if group.kind == MESSAGES and message_id(group.frames[0]) in self.acknowledged:
                assert self.acknowledged[message_id(group.frames[0])] == group.first_seq, "numbers stay"
        assert log.damaged_records == 0
        assert log.end.seq > max(self.acknowledged.values(), default=-1)


def call_all(fault: int | str, length: int, log_class: type[TopicLog] = TopicLog) -> int:
    first = 0
    while True:
        first += 1
        story = Story(log_class, first, fault, length)
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
    log = TopicLog.open(cast("Files", files), FOLDER, segment_size=2000)
    frames = make_frames([b"%016x" % 1], NOW_NS, [b"one"])
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
    log = TopicLog.open(cast("Files", disk), FOLDER, segment_size=2000)
    ids = [b"%016x" % number for number in range(200)]
    for number, each in enumerate(ids):
        log.append(make_frames([each], NOW_NS, [b"x" * 60]), number)
    last = TopicState(log.end, 0.0, ids[-1], {"c": ChannelState(0, entries_at_once([(each, 1) for each in ids[:20]]))})
    log.close()
    return disk, last, ids


def consume(files: FaultyFiles, last: TopicState) -> tuple[list[bytes], list[bytes], int]:
    """By number and by id, what a daemon delivers that starts again, and asks again, until the system answers."""
    states = {"c": ChannelState(0, list(last.channels["c"].entries))}
    while True:
        with suppress(OSError):
            log = TopicLog.open(cast("Files", files), FOLDER, segment_size=2000, start=last.end)
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
    return taken, found, log.damaged_records


@pytest.mark.parametrize("length", [1, 9])
@pytest.mark.parametrize("fault", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.EACCES])
def test_whichever_call_fails_at_the_start_or_later_everything_is_delivered_once_and_nothing_is_called_damaged(
    fault, length
):
    disk, last, ids = waiting(SimulatedDisk())
    first = calls = 0
    while first <= calls:
        first += 1
        files = FaultyFiles(cast("Files", disk.copy()), first, fault, length)
        assert consume(files, last) == (ids, ids[:20], 0), first
        calls = files.calls
    assert calls > 30


def test_reads_that_give_less_than_was_asked_for_are_no_end():
    disk, last, ids = waiting(ShortReads())
    assert consume(FaultyFiles(cast("Files", disk), 1 << 60, errno.EIO), last) == (ids, ids[:20], 0)
