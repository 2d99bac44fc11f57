import os
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.log.segment import NOWHERE
from nsq_compat.log.storage import Durability
from nsq_compat.protocol.message import body, message_id, with_attempts
from nsq_compat.protocol.message import make_frames as make_message_frames
from nsq_compat.queue.deferred import Deferred, SharedReads
from nsq_compat.queue.schedule import NEVER, Schedule
from tests.broker import Log

PLENTY = 1000


def in_memory(deferred: Deferred) -> int:
    return len(list(deferred.frames()))


def bodies(frames):
    return [body(frame) for frame in frames]


@pytest.fixture
def deferred() -> Deferred:
    return Deferred()


@given(st.lists(st.integers(0, 20), max_size=40), st.integers(0, 45))
def test_peeking_shows_the_messages_due_first_and_takes_none(dues, count):
    deferred = Deferred()
    for number, due in enumerate(dues):
        deferred.add(make_message_frames([b"%016x" % number], 0, [b"%d" % number]), due=float(due))
    seen = deferred.peek(count)
    assert [due for due, _ in seen] == sorted(dues)[:count]
    assert [frame for _, frame in seen] == deferred.release(99.0, PLENTY)[:count]


def test_peeking_reads_the_log_and_shows_the_next_attempt(make_frames):
    frames = make_frames(b"a", b"b")
    deferred = Deferred(Log(*frames).fetch, memory=0)
    deferred.add_entry(10.0, message_id(frames[0]), 3)
    deferred.add_entry(5.0, b"0123456789abcdef", 1)
    assert deferred.peek(5) == [(10.0, with_attempts(frames[0], 3))]
    assert len(deferred) == 2


def test_the_messages_added_last_are_found_whenever_they_are_due(deferred, make_frames, monkeypatch):
    a, b, c = make_frames(b"a", b"b", b"c")
    for due, frame in ((30.0, a), (10.0, b), (20.0, c)):
        deferred.add([frame], due)
    assert sorted(deferred.latest(2)) == [(10.0, b), (20.0, c)]
    monkeypatch.setattr("nsq_compat.queue.deferred._MAX_SEARCHED", 2)
    assert deferred.latest(1) == [(10.0, b)]


@pytest.mark.parametrize("memory", [0, 1])
def test_the_attempts_at_the_next_delivery_are_kept(make_frames, memory):
    (frame,) = make_frames(b"a")
    again = with_attempts(frame, 7)
    deferred = Deferred(Log(frame).fetch, memory)
    deferred.add([again], due=10.0, locations=[NOWHERE])
    assert deferred.release(10.0, PLENTY) == [again]


def test_sharing_adds_the_same_messages_to_another_and_keeps_them(deferred, make_frames):
    before, c, b, a = make_frames(b"before", b"c", b"b", b"a")
    deferred.add([a, b], due=10.0)
    deferred.add([c], due=5.0)
    others = [Deferred(), Deferred()]
    for other in others:
        other.add([before], due=10.0)
        assert deferred.share_with(other) == 0
    assert (len(deferred), deferred.release(10.0, PLENTY)) == (3, [c, a, b])
    for other in others:
        assert (len(other), other.release(10.0, PLENTY)) == (4, [c, a, b, before])


def test_emptying_drops_everything(deferred, make_frames):
    deferred.add(make_frames(b"a", b"b"), due=10.0)
    deferred.empty()
    assert (len(deferred), deferred.next_due(), in_memory(deferred)) == (0, NEVER, 0)
    assert deferred.release(99.0, PLENTY) == []


# --- With a log -------------------------------------------------------------------------------------------------------


def test_without_a_log_everything_stays_in_memory(deferred, make_frames):
    assert deferred.room_after(1, 1 << 20) >= PLENTY
    deferred.add(make_frames(*[b"x"] * PLENTY), due=10.0)
    assert in_memory(deferred) == PLENTY


def test_with_a_log_no_more_frames_than_agreed_stay_in_memory(make_frames):
    a, b, c = make_frames(b"a", b"b", b"c")
    log = Log(a, b, c)
    deferred = Deferred(log.fetch, memory=2)
    assert deferred.room_after(1, 30) == 1
    deferred.add([a, b], due=10.0)
    assert deferred.room_after(1, 30) == -1
    deferred.add([c], due=5.0, locations=[NOWHERE])
    assert (len(deferred), in_memory(deferred)) == (3, 2)
    assert deferred.release(10.0, PLENTY) == [c, a, b]
    assert log.asked == [message_id(c)]


def test_with_a_log_large_frames_do_not_take_more_than_16_mib(make_frames):
    frames = make_frames(*[bytes(1 << 20)] * 40)
    deferred = Deferred(Log(*frames).fetch, memory=PLENTY)
    for number in range(3):  # also after messages have left
        for frame in frames:
            deferred.add([frame], due=10.0, locations=() if deferred.room_after(1, len(frame)) >= 0 else [NOWHERE])
        assert sum(map(len, deferred.frames())) == sum(map(len, frames[:15]))
        if number == 1:
            assert deferred.remove({message_id(frame) for frame in frames[:5]}, 0)[0] == list(frames[:5])
        released = []
        while deferred.next_due() < NEVER:
            released += deferred.release(10.0, PLENTY)
        assert released == list(frames[5 if number == 1 else 0 :])
    assert in_memory(deferred) == 0


def test_the_room_is_that_for_frames_of_the_same_size(make_frames):
    (frame,) = make_frames(bytes((1 << 20) - 100))
    deferred = Deferred(Log(frame).fetch, memory=PLENTY)
    assert [deferred.room_after(count, count << 20) for count in (0, 1, 15, 16, 17, 20)] == [0, 15, 1, 0, -1, -4]
    for _ in range(2):  # what is deferred again does not count twice
        deferred.add([frame], due=10.0)
        assert deferred.room_after(1, 1 << 20) == 14


def test_large_frames_that_are_shared_do_not_take_more_than_16_mib(make_frames):
    frames = make_frames(*[bytes(1 << 20)] * 40)
    log = Log(*frames)
    first, second = (Deferred(log.fetch, memory=PLENTY, locate=log.locate) for _ in range(2))
    for number, frame in enumerate(frames):
        (first if number < 10 else second).add([frame], due=10.0, locations=[NOWHERE])
    first.share_with(second)
    assert in_memory(second) <= 17
    assert len(second) == 40


def test_hundreds_of_channels_share_the_keys(make_frames):
    frames = make_frames(*[b"%d" % number for number in range(PLENTY)])
    log = Log(*frames)
    held = Deferred(log.fetch, memory=PLENTY // 2, locate=log.locate)
    for number, frame in enumerate(reversed(frames)):
        held.add([frame], due=2000.0 - number, locations=[NOWHERE])
    logged = Deferred(log.fetch, memory=PLENTY // 2, locate=log.locate)
    ephemeral = Deferred(memory=PLENTY)
    assert (held.share_with(logged), held.share_with(ephemeral)) == (0, PLENTY - PLENTY // 2)
    ours = set(map(id, held.keys()))
    for other, expected in ((logged, PLENTY), (ephemeral, PLENTY // 2)):
        assert len(ours.intersection(map(id, other.keys()))) == len(other) == expected
    released: list[bytes] = []
    while logged.next_due() < NEVER:
        released += logged.release(2000.0, PLENTY)
    assert released == list(frames)
    assert ephemeral.release(2000.0, PLENTY) == list(frames[PLENTY // 2 :])


def test_a_log_that_cannot_be_read_costs_nothing(make_frames):
    frames = make_frames(b"a", b"b", b"c")
    log = Log(*frames)
    deferred = Deferred(log.fetch, memory=2)
    deferred.add(frames[:2], due=10.0)
    deferred.add(frames[2:], due=10.0, locations=[NOWHERE])
    log.failing = True
    with pytest.raises(OSError, match="cannot read"):
        deferred.release(10.0, PLENTY)
    assert (len(deferred), deferred.next_due()) == (3, 10.0)
    log.failing = False
    assert deferred.release(10.0, PLENTY) == list(frames)


def test_messages_that_the_log_has_lost_are_left_out(make_frames):
    a, b = make_frames(b"a", b"b")
    deferred = Deferred(Log(b).fetch, memory=0)
    deferred.add([a, b], due=10.0, locations=[NOWHERE] * 2)
    assert deferred.release(10.0, PLENTY) == [b]
    assert len(deferred) == 0


def test_messages_shared_with_a_channel_that_has_less_room_are_read_from_the_log(make_frames):
    frames = make_frames(b"a", b"b", b"c")
    roomy = Deferred(Log(*frames).fetch, memory=3)
    roomy.add(frames, due=10.0)
    log = Log(*frames)
    tight = Deferred(log.fetch, memory=1, locate=log.locate)
    roomy.share_with(tight)
    assert bodies(frame for _, frame in tight.peek(3)) == [b"a", b"b", b"c"]
    assert (len(tight), in_memory(tight)) == (3, 1)
    assert tight.release(10.0, PLENTY) == list(frames)


@pytest.mark.interpreted
def test_frames_that_do_not_fit_are_handed_over_to_the_log_in_batches(make_frames, monkeypatch):
    monkeypatch.setattr("nsq_compat.queue.deferred._LOCATED_AT_ONCE", 3)
    frames = make_frames(b"a", b"b", b"c", b"d", b"e")
    log = Log(*frames)
    deferred = Deferred(log.fetch, memory=1, locate=log.locate)
    counts = []
    for frame in frames:
        deferred.add([frame], due=10.0)
        counts.append(in_memory(deferred))
    assert counts == [1, 2, 3, 1, 2]
    assert deferred.release(10.0, PLENTY) == list(frames)


@pytest.mark.interpreted
def test_due_frames_are_not_kept_because_others_are_released(make_frames):
    frames = make_frames(*[b"%d" % number for number in range(2000)])
    log = Log(*frames)
    deferred = Deferred(log.fetch, memory=0, locate=log.locate)
    released, most = [], 0
    for number, frame in enumerate(frames):
        deferred.add([frame], due=1.0)
        if number % 10 == 0:
            released += deferred.release(2.0, 1)
            most = max(most, in_memory(deferred))
    assert most <= 256
    assert bodies(released) == [b"%d" % number for number in range(len(released))]


def test_frames_that_the_log_does_not_take_stay_in_memory(make_frames, monkeypatch):
    monkeypatch.setattr("nsq_compat.queue.deferred._LOCATED_AT_ONCE", 1)
    frames = make_frames(b"a", b"b", b"c")
    log = Log()
    log.failing = True
    deferred = Deferred(log.fetch, memory=1, locate=log.locate)
    for frame in frames:
        deferred.add([frame], due=10.0)
    assert in_memory(deferred) == 3
    assert deferred.release(10.0, PLENTY) == list(frames)


def test_keys_restore_all_messages_with_due_times_of_another_clock(make_frames):
    frames = [with_attempts(frame, 3) for frame in make_frames(b"a", b"b", b"c")]
    before = Deferred()
    before.add(frames[:2], due=1010.0)
    before.add(frames[2:], due=1005.0)
    after = Deferred(Log(*frames).fetch, memory=PLENTY)
    after.restore(before.keys(), shift=-1000.0)
    assert after.next_due() == 5.0
    assert after.release(5.0, PLENTY) == frames[2:]
    assert after.release(10.0, PLENTY) == frames[:2]


def test_messages_that_became_due_while_nsqd_was_down_are_due_at_once(make_frames):
    frames = make_frames(b"a")
    before = Deferred()
    before.add(frames, due=10.0)
    after = Deferred(Log(*frames).fetch, memory=0)
    after.restore(before.keys(), shift=-1000.0)
    assert after.release(0.0, PLENTY) == list(frames)


dues = st.integers(0, 20)


@given(st.lists(st.tuples(dues, st.integers(0, 3))), st.lists(st.tuples(dues, st.integers(0, 9))).map(sorted), dues)
def test_every_message_is_released_once_by_the_first_release_that_may(batches, releases, memory):
    log = Log()
    deferred = Deferred(log.fetch, memory)
    waiting: list[tuple[int, bytes]] = []
    number = 0
    for due, size in batches:
        frames = [b"\0" * 18 + b"%016x" % (number + index) for index in range(size)]
        number += size
        log.update((message_id(frame), frame) for frame in frames)
        deferred.add(frames, float(due), [NOWHERE] * size)
        waiting += [(due, frame) for frame in frames]
    waiting.sort(key=lambda each: each[0])  # stable, so equal times keep their order
    for now, limit in releases:
        due_now = [frame for due, frame in waiting if due <= now][:limit]
        assert deferred.release(float(now), limit) == due_now
        del waiting[: len(due_now)]
        assert len(deferred) == len(waiting)
        assert deferred.next_due() == (waiting[0][0] if waiting else NEVER)
        assert in_memory(deferred) <= memory


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


def test_due_messages_are_read_once_and_little_besides(data_path, meter):
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


def test_messages_published_together_and_requeued_with_other_delays_are_not_read_together(data_path, meter):
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


def test_a_message_requeued_again_and_again_is_located_once(data_path, meter):
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


@pytest.mark.parametrize("spilled", [False, True])
def test_at_level_memory_a_message_requeued_again_and_again_is_written_once(data_path, meter, spilled):
    daemon = data_path.start(Durability.MEMORY, mem_queue_size=20)
    consumer = daemon.consumer()
    bodies = some_bodies()
    for each in () if spilled else bodies:
        daemon.publishes(each)
        consumer.takes()
        consumer.requeues(each, 60.0)
    if spilled:
        daemon.publishes(*bodies)
    else:
        daemon.waits(60.0)
    topic_log = daemon.topic().store.log
    random = Random(27)
    written: list[int] = []
    for _ in range(5):
        received: list[bytes] = []
        while len(received) < COUNT:
            for each in consumer.takes():
                received.append(each)
                consumer.requeues(each, 60 + random.random() * SPREAD)
            daemon.waits(0.1)
        assert sorted(received) == bodies
        written.append(topic_log.disk_bytes)
        meter.bytes = 0
        daemon.waits(60 + SPREAD)
    assert written == written[:1] * 5
    assert meter.bytes < COUNT * ONE


@pytest.mark.parametrize("ending", ["stopped", "killed", "killed after a checkpoint"])
def test_locations_survive_a_restart(data_path, meter, ending):
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
def test_messages_copied_from_a_deleted_segment_are_found(data_path, durability):
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


def test_a_damaged_message_is_counted_and_its_neighbours_are_delivered(data_path):
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
    assert daemon.topic().store.log.damage.records == 1


def test_shared_reads_are_dropped_a_moment_after_the_last_read(make_frames):
    log, schedule = Log(*make_frames(b"a", b"b")), Schedule()
    reads = SharedReads(log.fetch, schedule, channels=("one", "two"))
    for _ in range(2):
        assert reads.fetch(list(log), {}) == log
    assert len(log.asked) == 2
    now = 1000.0
    while (now := schedule.run(now)) != NEVER:
        pass
    reads.fetch(list(log), {})
    assert len(log.asked) == 4


def test_reads_of_a_single_channel_are_not_remembered(make_frames):
    log, schedule = Log(*make_frames(b"a", b"b")), Schedule()
    reads = SharedReads(log.fetch, schedule, channels=("one",))
    assert reads.fetch(list(log), {}) == log
    assert schedule.run(1e9) == NEVER
