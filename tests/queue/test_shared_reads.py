"""Deferred messages that memory does not hold are read where they are in the log: each once, for all channels."""

import os
from random import Random

import pytest

from nsq_compat.log.storage import Durability
from nsq_compat.protocol.message import body, message_id
from nsq_compat.queue.in_flight import NEVER
from nsq_compat.queue.schedule import Schedule
from nsq_compat.queue.shared_reads import SharedReads

COUNT = 400
SPREAD = 40.0
ONE = 1 << 11
"""Bytes that may be read for one message: itself, and what a single read takes too much."""


class Meter:
    """Counts what is read from a disk."""

    def __init__(self, disk):
        self.bytes = 0
        self._pread = disk.pread
        disk.pread = self._count

    def _count(self, fd, size, offset, /):
        data = self._pread(fd, size, offset)
        self.bytes += len(data)
        return data


@pytest.fixture
def meter(disk):
    return Meter(disk)


def some_bodies(count=COUNT):
    return [b"%0100d" % number for number in range(count)]


def defers(daemon, bodies):
    random = Random(26)
    for each in bodies:
        daemon.publishes(each, defer=10 + random.random() * SPREAD)


def receives(daemon, consumers, seconds=SPREAD + 10):
    """Everything that comes within that time, by consumer; each takes all it can get ten times a second."""
    received: list[list[bytes]] = [[] for _ in consumers]
    for _ in range(int(seconds * 10) + 1):
        for consumer, bodies in zip(consumers, received, strict=True):
            while some := consumer.takes():
                bodies += some
                consumer.finishes(*some)
        daemon.waits(0.1)
    return received


def test_what_is_due_is_read_once_and_little_besides(data_path, meter):
    daemon = data_path.start()
    consumer = daemon.consumer()
    defers(daemon, some_bodies())
    meter.bytes = 0
    (received,) = receives(daemon, [consumer])
    assert sorted(received) == some_bodies()
    assert meter.bytes < COUNT * ONE


def test_one_read_serves_all_channels(data_path, meter):
    daemon = data_path.start()
    consumers = [daemon.consumer(name) for name in ("archive", "metrics", "mail", "search")]
    defers(daemon, some_bodies())
    meter.bytes = 0
    for received in receives(daemon, consumers):
        assert sorted(received) == some_bodies()
    assert meter.bytes < COUNT * ONE


def test_what_was_published_together_and_requeued_with_other_delays_is_not_read_together(data_path, meter):
    daemon = data_path.start(mem_queue_size=2)
    consumer = daemon.consumer()
    bodies = some_bodies()
    daemon.publishes(*bodies)
    random = Random(26)
    while some := consumer.takes():
        for each in some:
            consumer.requeues(each, 10 + random.random() * SPREAD)
    meter.bytes = 0
    (received,) = receives(daemon, [consumer])
    assert sorted(received) == bodies
    assert {consumer.attempts(each) for each in bodies} == {2}
    # What was not gathered into a batch yet is looked for by its id, if it is not due before.
    assert meter.bytes < COUNT * ONE


def test_what_is_requeued_again_and_again_is_looked_for_once(data_path, meter):
    daemon = data_path.start()
    consumer = daemon.consumer()
    bodies = some_bodies()
    defers(daemon, bodies)
    random = Random(27)
    for _ in range(int(SPREAD + 10) * 10 + 1):
        while some := consumer.takes():
            for each in some:
                consumer.requeues(each, 60 + random.random() * SPREAD)
        daemon.waits(0.1)
    daemon.waits(5.0)
    meter.bytes = 0
    (received,) = receives(daemon, [consumer], 60 + SPREAD)
    assert sorted(received) == bodies
    assert meter.bytes < COUNT * ONE


@pytest.mark.parametrize("ending", ["stopped", "killed", "killed after a checkpoint"])
def test_after_a_restart_it_is_known_where_they_are(data_path, meter, ending):
    daemon = data_path.start()
    daemon.channel()
    defers(daemon, some_bodies())
    if ending == "stopped":
        data_path.stop(daemon)
    else:
        if ending != "killed":
            data_path.checkpoint(daemon)
        data_path.kill(daemon)
    daemon = data_path.start()
    consumer = daemon.consumer()
    meter.bytes = 0
    (received,) = receives(daemon, [consumer])
    assert sorted(received) == some_bodies()
    assert meter.bytes < COUNT * ONE


@pytest.mark.parametrize("durability", list(Durability))
def test_what_was_copied_out_of_the_log_is_found_all_the_same(data_path, durability):
    data_path.segment_size = 10_000
    daemon = data_path.start(durability)
    consumer = daemon.consumer()
    daemon.publishes(b"early", defer=50.0)
    daemon.publishes(b"late", defer=60.0)
    before = data_path.files.listdir(data_path.folder())
    for number in range(60):
        daemon.publishes(*[b"%0100d" % number] * 10)
        while consumer.takes():
            consumer._channel.finish(consumer, list(consumer.in_flight.frames))
        data_path.checkpoint(daemon)
    after = data_path.files.listdir(data_path.folder())
    if durability is not Durability.MEMORY:
        assert set(before) - set(after), "the segment they were in is gone"
    (received,) = receives(daemon, [consumer], 70)
    assert received == [b"early", b"late"]


def test_a_damaged_message_does_not_come_and_is_counted_and_its_neighbours_come(data_path):
    daemon = data_path.start()
    consumer = daemon.consumer()
    bodies = some_bodies(20)
    defers(daemon, bodies)
    (path,) = [
        os.path.join(data_path.folder(), name)
        for name in data_path.files.listdir(data_path.folder())
        if name.startswith("log.")
    ]
    with open(path, "r+b") as file:
        file.seek(file.read().index(bodies[7]) + 50)
        file.write(b"x")
    (received,) = receives(daemon, [consumer])
    assert sorted(received) == [each for each in bodies if each != bodies[7]]
    assert consumer._channel.backlog.deferred.damaged_count == 1


def test_what_was_read_is_forgotten_when_nothing_is_read_any_more(make_frames):
    frames = {message_id(frame): frame for frame in make_frames(b"a", b"b")}
    asked = []

    def fetch(ids, locations=()):
        asked.extend(ids)
        return {number: frames[number] for number in ids}

    schedule = Schedule()
    reads = SharedReads(fetch, schedule)
    reads.readers = 2
    for _ in range(2):
        assert [body(frame) for frame in reads.fetch(list(frames)).values()] == [b"a", b"b"]
    assert len(asked) == 2
    now = 1000.0
    while (now := schedule.run(now)) != NEVER:
        pass
    reads.fetch(list(frames))
    assert len(asked) == 4


def test_a_single_channel_has_nothing_remembered_for_it(make_frames):
    frames = {message_id(frame): frame for frame in make_frames(b"a", b"b")}
    schedule = Schedule()
    reads = SharedReads(lambda ids, locations=(): {number: frames[number] for number in ids}, schedule)
    reads.readers = 1
    assert reads.fetch(list(frames)) == frames
    assert schedule.run(1e9) == NEVER
