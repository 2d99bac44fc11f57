"""F2 for the log alone: a power cut keeps synced messages, and other publishes completely or not at all."""

from collections.abc import Iterable
from random import Random
from typing import cast

import pytest

from nsq_compat.log.files import Files
from nsq_compat.log.topic_log import TopicLog
from nsq_compat.protocol.message import make_frames, message_id
from nsq_compat.protocol.storage_schema import DEFERRED, MESSAGES
from tests.faults.disk import SimulatedDisk

pytestmark = pytest.mark.usefixtures("zeros_ahead")

FOLDER = "/orders.topic"
NOW_NS = 1_700_000_000_000_000_000


class NeverSyncingLog(TopicLog):
    """A log that reports a sync without doing it."""

    def sync(self) -> None:
        self.finish_sync(self.begin_sync(), None)


class Story:
    """Publishes, syncs and releases at random, and records the messages that must survive."""

    def __init__(self, seed: int, log_class: type[TopicLog]) -> None:
        self.random = Random(seed)
        self.disk = SimulatedDisk()
        self.publishes: list[list[bytes]] = []  # the ids of each group
        self.promised: set[bytes] = set()
        self.written: set[bytes] = set()
        self.finished: set[bytes] = set()
        self._log_class = log_class
        self._next_id = 0
        self._open()

    def _open(self) -> None:
        self.log = self._log_class.open(cast("Files", self.disk), FOLDER, segment_size=3000)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = self.random.choices([self._publish, self._sync, self._release], [6, 2, 1])[0]
            step()

    def power_cut(self) -> None:
        self.disk = self.disk.power_cut(self.random)
        self._open()
        self._check()

    def _publish(self) -> None:
        count = self.random.choice([1, 1, 1, 2, 5, 20])
        ids = [b"%016x" % (self._next_id + number) for number in range(count)]
        self._next_id += count
        bodies = [self.random.randbytes(self.random.choice([10, 100, 900])) for _ in ids]
        frames = make_frames(ids, NOW_NS, bodies)
        if self.random.random() < 0.2:
            self.log.append(frames, 0, NOW_NS, DEFERRED)
        else:
            self.log.append(frames, self.log.end.seq)
        self.publishes.append(ids)
        self.written.update(ids)

    def _sync(self) -> None:
        self.log.sync()
        self.promised = self.written - self.finished

    def _release(self) -> None:
        """Finish most old messages and release their segments, as after a durable checkpoint."""
        self._sync()
        end = self.log.end
        seq = self.random.randint(self.log.oldest, end.seq)
        some = [each for each in self.written if self.random.random() < 0.2]
        below = {message_id(each) for each in self._messages_below(seq)}
        finished = below - set(some)
        self.finished |= finished
        self.promised -= finished
        self.log.release(seq, lambda: self.written - self.finished, end)

    def _messages_below(self, seq: int) -> list[bytes]:
        reader = self.log.reader(0)
        found: list[bytes] = []
        while groups := reader.read():
            for group in groups:
                found += [frame for n, frame in enumerate(group.frames) if group.first_seq + n < seq]
        return found

    def _check(self) -> None:
        groups = list(self.log.recovered())
        found = [message_id(frame) for group in groups for frame in group.frames]
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


def tell(seed: int, log_class: type[TopicLog] = TopicLog) -> None:
    story = Story(seed, log_class)
    for _ in range(4):
        story.run(story.random.randint(1, 25))
        story.power_cut()


def tell_many(seeds: Iterable[int], log_class: type[TopicLog] = TopicLog) -> None:
    for seed in seeds:
        tell(seed, log_class)


@pytest.mark.parametrize("hundred", range(3))
def test_synced_messages_survive_a_power_cut(hundred):
    tell_many(range(hundred * 100, hundred * 100 + 100))


@pytest.mark.interpreted
def test_a_log_that_does_not_sync_is_detected():
    with pytest.raises(AssertionError, match="synced messages exist"):
        tell_many(range(100), NeverSyncingLog)
