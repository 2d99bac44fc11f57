"""A channel is moved in its topic's log: from there on every message comes once more, and nothing else is lost."""

from functools import partial
from random import Random

import pytest

from nsq_compat.log.offsets import OffsetReader
from nsq_compat.protocol.message import attempts
from nsq_compat.queue.values import NotLogged
from tests.broker import Consumer, Daemon, DataPath


def bodies(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


def move(daemon: Daemon, offset: int, *, drops_taken: bool = False) -> None:
    """Move the channel, which then has the depth that was announced before."""
    announced = daemon.topic().depth_if_moved("archive", offset, drops_taken=drops_taken)
    daemon.topic().move_channel("archive", offset, daemon.now_ns, drops_taken=drops_taken)
    assert daemon.channel().depth == announced


def drain(daemon: Daemon, consumer: Consumer) -> list[bytes]:
    """Everything that the channel delivers now, finished."""
    found: list[bytes] = []
    for _ in range(20):
        while some := consumer.takes():
            assert consumer.finishes(*some) == []
            found += some
        daemon.waits(0.06)
    return found


@pytest.fixture
def daemon(data_path: DataPath) -> Daemon:
    daemon = data_path.start()
    daemon.channel()
    return daemon


@pytest.fixture
def consumer(daemon: Daemon) -> Consumer:
    return daemon.consumer()


def test_a_channel_that_is_moved_back_gets_the_messages_from_there_again(daemon, consumer):
    daemon.publishes(*bodies(0, 10))
    assert drain(daemon, consumer) == bodies(0, 10)
    move(daemon, 4)
    assert daemon.channel().depth == 6
    daemon.publishes(*bodies(10, 12))
    assert daemon.channel().depth == 8
    assert drain(daemon, consumer) == bodies(4, 12)
    assert daemon.channel().depth == 0
    assert consumer.attempts(b"5") == 1
    daemon.publishes(b"after")
    assert drain(daemon, consumer) == [b"after"]


def test_a_channel_that_is_moved_on_passes_over_what_waits(daemon, consumer):
    daemon.publishes(*bodies(0, 10))
    assert consumer.takes(2) == bodies(0, 2)
    move(daemon, 7)
    assert daemon.channel().depth == 3
    assert drain(daemon, consumer) == bodies(7, 10)
    move(daemon, daemon.topic().next_offset)
    assert drain(daemon, consumer) == []
    assert daemon.channel().in_flight_count == 2


def test_what_was_not_delivered_yet_comes_once(daemon, consumer):
    daemon.publishes(*bodies(0, 10))
    taken = consumer.takes(6)
    consumer.finishes(*taken)
    move(daemon, 3)
    assert drain(daemon, consumer) == bodies(3, 10)


@pytest.mark.interpreted
@pytest.mark.parametrize("channels", [("archive",), ()])
@pytest.mark.parametrize("is_new", [False, True])
def test_many_deferred_messages_are_passed_over_in_steps(data_path, monkeypatch, channels, is_new):
    daemon, count, reads = data_path.start(), 10_000, []
    for name in channels:
        daemon.channel(name)
    for _ in range(count):
        daemon.publishes(b"later", defer=3600.0)
    daemon.publishes(b"now")
    if is_new:  # it has the deferred messages, too
        name, move_to_begin = "new", partial(daemon.topic().create_channel_at, "new", 0, daemon.now_ns)
    else:
        name, move_to_begin = "archive", partial(daemon.topic().move_channel, "archive", 0, daemon.now_ns)
        consumer = daemon.consumer(name)
        assert consumer.finishes(*consumer.takes()) == []
    attempts_to_move = 1
    while True:
        try:
            move_to_begin()
            break
        except BlockingIOError:
            attempts_to_move += 1
            assert name == "archive" or name not in daemon.topic().channels
    assert attempts_to_move > 1
    read = OffsetReader.read

    def noted(reader, max_bytes):
        reads.append(max_bytes)
        return read(reader, max_bytes)

    monkeypatch.setattr(OffsetReader, "read", noted)
    consumer, steps, found = daemon.consumer(name), 0, []
    while not (found := consumer.takes()):
        steps += 1
        assert len(reads) <= steps
        daemon.waits(0)
    assert found == [b"now"]
    assert consumer.finishes(b"now") == []
    assert consumer.takes() == []
    assert daemon.channel(name).deferred_count == count
    if channels or not is_new:
        assert steps > 4
        assert max(reads[1:]) < reads[0]


def test_messages_in_flight_come_again_after_they_were_answered(daemon, consumer):
    daemon.publishes(*bodies(0, 4))
    assert consumer.takes() == bodies(0, 4)
    consumer.finishes(b"3")
    move(daemon, 0)
    assert consumer.takes() == [b"3"]
    assert consumer.finishes(*bodies(0, 4)) == []
    assert drain(daemon, consumer) == bodies(0, 3)


def test_a_message_that_was_requeued_and_comes_again_is_not_in_flight_twice(data_path, daemon, consumer):
    daemon.publishes(*bodies(0, 4))
    assert consumer.takes() == bodies(0, 4)
    move(daemon, 0)
    consumer.requeues(b"1")
    consumer.requeues(b"2", 0.01)
    daemon.waits(0.02)
    taken = consumer.takes()
    assert sorted(taken) == bodies(1, 3)
    assert consumer.finishes(b"1") == []
    data_path.checkpoint(daemon)
    daemon = data_path.restart(daemon)
    assert sorted(drain(daemon, daemon.consumer())) == [b"0", b"0", b"1", b"2", b"2", b"3", b"3"]


def test_a_message_that_was_finished_and_comes_again_has_its_whole_timeout(daemon, consumer):
    daemon.publishes(*bodies(0, 3))
    assert consumer.takes() == bodies(0, 3)
    consumer.finishes(*bodies(1, 3))
    daemon.waits(40.0)
    move(daemon, 1)
    assert consumer.takes() == bodies(1, 3)
    daemon.waits(59.0)
    assert daemon.channel().timeout_count == 1
    daemon.waits(2.0)
    assert daemon.channel().timeout_count == 3
    assert sorted(drain(daemon, consumer)) == bodies(0, 3)


def test_what_is_there_twice_after_a_replay_comes_twice_after_a_crash(data_path, daemon, consumer):
    daemon.publishes(b"0", b"1")
    assert consumer.takes() == [b"0", b"1"]
    move(daemon, 0)
    assert consumer.takes() == []
    assert daemon.channel().depth == 0
    data_path.checkpoint(daemon)
    again = data_path.restart(daemon)
    reader = again.consumer()
    assert sorted(reader.takes()) == [b"0", b"1"]
    assert reader.finishes(b"0", b"1") == []
    assert sorted(drain(again, reader)) == [b"0", b"1"]


def test_what_was_taken_may_be_dropped(daemon, consumer):
    daemon.publishes(*bodies(0, 6))
    daemon.publishes(b"later", defer=60.0)
    assert consumer.takes(4) == bodies(0, 4)
    consumer.requeues(b"1", 30.0)
    consumer.requeues(b"2")
    move(daemon, 0, drops_taken=True)
    assert daemon.channel().dropped_count == 5
    assert consumer.finishes(b"0") == [b"0"]
    assert drain(daemon, consumer) == bodies(0, 6)
    daemon.waits(60.0)
    assert drain(daemon, consumer) == [b"later"]
    assert daemon.channel().deferred_count == 0


def test_deferred_messages_are_replayed_when_they_were_due_and_wait_if_they_are_not(daemon, consumer):
    daemon.publishes(b"0")
    daemon.publishes(b"soon", defer=1.0)
    daemon.publishes(b"late", defer=500.0)
    daemon.publishes(b"3")
    daemon.waits(2.0)
    assert sorted(drain(daemon, consumer)) == [b"0", b"3", b"soon"]
    move(daemon, 0)
    assert drain(daemon, consumer) == [b"0", b"soon", b"3"]
    move(daemon, 1)
    assert drain(daemon, consumer) == [b"soon", b"3"]
    daemon.waits(500.0)
    assert drain(daemon, consumer) == [b"late"]


def test_a_move_during_a_replay_begins_anew(daemon, consumer):
    daemon.publishes(*bodies(0, 20))
    drain(daemon, consumer)
    move(daemon, 5)
    first = consumer.takes(3)
    consumer.finishes(*first)
    assert first == bodies(5, 8)
    move(daemon, 2)
    assert daemon.channel().depth == 18
    assert drain(daemon, consumer) == bodies(2, 20)
    move(daemon, 2)
    move(daemon, 15)
    assert drain(daemon, consumer) == bodies(15, 20)


def test_deferred_messages_that_were_dropped_survive_a_second_move(daemon, consumer):
    daemon.publishes(*bodies(0, 5))
    daemon.publishes(b"late", defer=100.0)
    daemon.publishes(*bodies(6, 9))
    drain(daemon, consumer)
    move(daemon, 0, drops_taken=True)
    move(daemon, 2)
    assert drain(daemon, consumer) == [*bodies(2, 5), *bodies(6, 9)]
    daemon.waits(100.0)
    assert drain(daemon, consumer) == [b"late"]


def test_a_new_channel_may_begin_at_any_message(daemon, consumer):
    daemon.publishes(*bodies(0, 5))
    daemon.publishes(b"late", defer=100.0)
    drain(daemon, consumer)
    readers: dict[str, Consumer] = {}
    for name, offset, expected in (("all", 0, bodies(0, 5)), ("some", 3, bodies(3, 5)), ("none", 6, [])):
        daemon.topic().create_channel_at(name, offset, daemon.now_ns)
        readers[name] = daemon.consumer(name)
        assert drain(daemon, readers[name]) == expected
    daemon.waits(100.0)
    assert drain(daemon, readers["all"]) == [b"late"]
    assert drain(daemon, readers["none"]) == []


def test_the_first_channel_gets_what_the_topic_held_once(data_path):
    daemon = data_path.start()
    daemon.publishes(b"0")
    daemon.publishes(b"late", defer=10.0)
    daemon.publishes(b"2")
    daemon.topic().create_channel_at("archive", 0, daemon.now_ns)
    consumer = daemon.consumer()
    assert drain(daemon, consumer) == [b"0", b"2"]
    daemon.waits(10.0)
    assert drain(daemon, consumer) == [b"late"]


def test_the_place_of_a_channel_is_an_offset(daemon, consumer):
    daemon.publishes(*bodies(0, 3))
    daemon.publishes(b"late", defer=100.0)
    daemon.publishes(*bodies(4, 8))
    place = daemon.topic().offset_of_channel
    assert place("archive") == 0
    drain(daemon, consumer)
    assert place("archive") == 8
    move(daemon, 4)
    assert place("archive") == 4
    consumer.takes(2)
    assert place("archive") == 6
    move(daemon, 7)
    assert place("archive") == 7


def test_an_emptied_channel_has_no_replay(daemon, consumer):
    daemon.publishes(*bodies(0, 5))
    drain(daemon, consumer)
    move(daemon, 0)
    daemon.topic().empty_channel("archive")
    assert daemon.channel().depth == 0
    daemon.publishes(b"after")
    assert drain(daemon, consumer) == [b"after"]


def test_a_paused_topic_keeps_what_it_holds(daemon, consumer):
    daemon.publishes(*bodies(0, 3))
    drain(daemon, consumer)
    daemon.topic().pause()
    daemon.publishes(*bodies(3, 5))
    move(daemon, 1)
    assert drain(daemon, consumer) == bodies(1, 3)
    daemon.topic().unpause()
    assert drain(daemon, consumer) == bodies(3, 5)


def test_an_ephemeral_channel_cannot_be_moved(daemon):
    daemon.channel("tmp#ephemeral")
    with pytest.raises(NotLogged):
        daemon.topic().move_channel("tmp#ephemeral", 0, daemon.now_ns)
    with pytest.raises(NotLogged):
        daemon.topic().create_channel_at("new#ephemeral", 0, daemon.now_ns)
    assert "new#ephemeral" not in daemon.topic().channels


@pytest.mark.parametrize("checkpoint", ["before", "after", "never"])
@pytest.mark.parametrize("drops_taken", [False, True])
def test_a_move_survives_a_crash(data_path, daemon, consumer, checkpoint, drops_taken):
    daemon.publishes(*bodies(0, 10))
    daemon.publishes(b"late", defer=100.0)
    taken = consumer.takes(7)
    consumer.finishes(*taken[:5])
    if checkpoint == "before":
        data_path.checkpoint(daemon)
    consumer.finishes(b"5")
    move(daemon, 3, drops_taken=drops_taken)
    replayed = consumer.takes(2)
    assert replayed == bodies(3, 5)
    if checkpoint == "after":
        data_path.checkpoint(daemon)
    again = data_path.restart(daemon)
    reader = again.consumer()
    found = drain(again, reader)
    if checkpoint == "after":
        # What was taken comes first; 6 was in flight when the channel was moved, unless it was dropped.
        rest = bodies(5, 10) if drops_taken else [b"6", *bodies(5, 10)]
        assert sorted(found) == sorted([*replayed, *rest])
    else:
        expected = set(bodies(3, 10))
        assert set(found) - set(bodies(0, 3) if checkpoint == "never" and not drops_taken else ()) == expected
        assert all(found.count(each) <= 2 for each in found)
    again.waits(100.0)
    assert drain(again, reader) == [b"late"]


def test_moves_on_survive_a_crash(data_path, daemon, consumer):
    daemon.publishes(*bodies(0, 10))
    consumer.takes(3)
    move(daemon, 8)
    again = data_path.restart(daemon)
    assert sorted(drain(again, again.consumer())) == sorted([*bodies(0, 3), *bodies(8, 10)])


def test_what_an_earlier_replay_had_in_flight_comes_after_a_crash(data_path, daemon, consumer):
    daemon.publishes(*bodies(0, 40))
    drain(daemon, consumer)
    move(daemon, 10)
    data_path.checkpoint(daemon)
    assert consumer.takes(5) == bodies(10, 15)
    move(daemon, 30)
    again = data_path.restart(daemon)
    assert drain(again, again.consumer()) == [*bodies(10, 15), *bodies(30, 40)]


@pytest.mark.parametrize("seed", range(12))
def test_every_message_from_there_comes_exactly_once_more_with_random_moves(data_path, daemon, seed):
    random = Random(seed)
    consumers = [daemon.consumer() for _ in range(3)]
    published: list[bytes] = []
    counted: dict[bytes, int] = {}
    expected: dict[bytes, int] = {}
    for step in range(60):
        action = random.randrange(5)
        if action < 2:
            some = [b"%d.%d" % (step, number) for number in range(random.choice([1, 5, 40]))]
            daemon.publishes(*some, defer=random.choice([0.0, 0.0, 0.0, 0.03]))
            published += some
            expected.update(dict.fromkeys(some, 1))
        elif action == 2 and published:
            offset = random.randrange(len(published))
            # Everything that has arrived so far, is in flight or waits deferred, is counted: only what the channel has
            # taken comes again.
            for each in consumers:
                for body in [body for body, frame in each.frames.items() if each.id_of(body) in each.in_flight.frames]:
                    each.finishes(body)
            if drained(daemon, consumers, counted):
                move(daemon, offset)
                for each in published[offset:]:
                    expected[each] += 1
        else:
            for each in random.sample(consumers, 2):
                take_some(each, random.randrange(1, 30), counted)
                if random.random() < 0.3:
                    data_path.checkpoint(daemon)
            daemon.waits(0.01)
    assert drained(daemon, consumers, counted)
    assert counted == expected


def take_some(consumer: Consumer, room: int, counted: dict[bytes, int]) -> int:
    """Take, and finish half of it at once."""
    some = consumer.takes(room)
    for body in some:
        counted[body] = counted.get(body, 0) + 1
        assert attempts(consumer.frames[body]) == 1
    consumer.finishes(*some)
    return len(some)


def drained(daemon: Daemon, consumers: list[Consumer], counted: dict[bytes, int]) -> bool:
    for _ in range(20):
        while any(take_some(each, 100, counted) for each in consumers):
            pass
        daemon.waits(0.06)
    return not daemon.channel().depth and not daemon.channel().deferred_count


@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_delay_of_a_replayed_message_survives_a_crash(data_path, checkpoint):
    daemon = data_path.start()
    daemon.channel()
    consumer = daemon.consumer()
    daemon.publishes(b"a", b"b", b"c")
    consumer.takes_all()
    consumer.finishes(b"a", b"b", b"c")
    move(daemon, 0)
    if checkpoint:
        data_path.checkpoint(daemon)
    consumer.takes_all()
    consumer.requeues(b"b", 60)
    daemon = data_path.restart(daemon)
    consumer = daemon.consumer()
    assert sorted(consumer.takes_all()) == [b"a", b"c"]
    consumer.finishes(b"a", b"c")
    daemon.waits(61)
    assert consumer.takes_all() == [b"b"]
    assert consumer.attempts(b"b") == 2
    consumer.finishes(b"b")
    assert daemon.channel().depth == 0
