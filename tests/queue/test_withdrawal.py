"""Taking messages out of a channel by their ids. `tests/faults/test_model.py` does it at random, with crashes."""

import pytest

from nsq_compat.protocol import message
from nsq_compat.queue.channel import NotInFlight
from nsq_compat.queue.withdrawal import Withdrawal

UNKNOWN = b"0" * 16


def ids_of(daemon, *bodies, channel="archive"):
    """The ids of waiting, deferred and delivered messages."""
    peek = daemon.channel(channel).peek(100)
    frames = [*peek.waiting, *(frame for _, frame in [*peek.deferred, *peek.in_flight])]
    by_body = {message.body(frame): message.message_id(frame) for frame in frames}
    return [by_body[body] for body in bodies]


def take_out(daemon, *ids):
    """Returns the bodies with the attempts of their next delivery, and the ids that are missing."""
    search = Withdrawal(daemon.channel(), ids)
    found: dict[bytes, int] = {}
    while not search.is_done:
        found.update((message.body(frame), message.attempts(frame)) for frame in search.step(daemon.now))
    return found, list(search.missing)


@pytest.fixture(params=["in memory", "in the log"])
def busy(request, daemon, data_path):
    """A daemon with messages in memory, or mostly in the log."""
    return daemon if request.param == "in memory" else data_path.start(mem_queue_size=2)


def test_waiting_messages_are_taken_from_anywhere_in_the_queue(busy):
    consumer = busy.consumer()
    busy.publishes(*(b"%d" % number for number in range(30)))
    first, middle, last = (b"%016x" % (int(ids_of(busy, b"0")[0], 16) + number) for number in (0, 17, 29))
    assert take_out(busy, last, middle, first, UNKNOWN) == ({b"0": 1, b"17": 1, b"29": 1}, [UNKNOWN])
    assert busy.channel().depth == 27
    assert consumer.takes_all() == [b"%d" % number for number in range(30) if number not in (0, 17, 29)]
    assert busy.channel().depth == 0


def test_deferred_messages_are_taken_before_they_are_due(busy):
    consumer = busy.consumer()
    for delay in (5.0, 3.0, 9.0, 1.0, 7.0):
        busy.publishes(b"after %d" % delay, defer=delay)
    ids = ids_of(busy, b"after 3", b"after 9")
    assert take_out(busy, *ids) == ({b"after 3": 1, b"after 9": 1}, [])
    assert busy.channel().deferred_count == 3
    busy.waits(10)
    assert consumer.takes_all() == [b"after 1", b"after 5", b"after 7"]


def test_a_consumer_cannot_answer_a_message_that_was_taken_from_it(busy):
    consumer = busy.consumer()
    busy.publishes(b"a", b"b")
    consumer.takes(2)
    assert take_out(busy, consumer.id_of(b"a")) == ({b"a": 2}, [])
    assert consumer.awake
    assert consumer.finishes(b"a", b"b") == [b"a"]
    with pytest.raises(NotInFlight, match="ID not in flight"):
        consumer.requeues(b"a")


def test_messages_of_a_consumer_that_left_are_taken(busy):
    consumer = busy.consumer()
    busy.publishes(b"a")
    consumer.takes()
    consumer.leaves()
    assert take_out(busy, consumer.id_of(b"a")) == ({b"a": 2}, [])
    assert busy.channel().in_flight_count == 0


def test_requeued_messages_are_taken_from_between_others(busy):
    consumer = busy.consumer()
    busy.publishes(b"a", b"b", b"c", b"d")
    while consumer.takes(1):
        pass
    for body in (b"a", b"b", b"c", b"d"):
        consumer.requeues(body)
    assert take_out(busy, consumer.id_of(b"b")) == ({b"b": 2}, [])
    assert consumer.takes_all() == [b"a", b"c", b"d"]


def test_nothing_is_delivered_during_a_search_and_everything_after_it(busy):
    consumer = busy.consumer()
    busy.publishes(b"a", b"b")
    search = Withdrawal(busy.channel(), [UNKNOWN])
    search.step(busy.now)
    assert consumer.takes() == []
    while not search.is_done:
        search.step(busy.now)
    assert consumer.awake
    assert consumer.takes_all() == [b"a", b"b"]


def test_an_abandoned_search_holds_the_channel_for_a_second_only(busy):
    consumer = busy.consumer()
    busy.publishes(b"a")
    Withdrawal(busy.channel(), [UNKNOWN]).step(busy.now)
    assert consumer.takes() == []
    busy.waits(1)
    assert consumer.awake
    assert consumer.takes() == [b"a"]


def test_a_search_that_comes_too_late_begins_again(busy):
    """A message that was waiting is in flight now, where the search was before."""
    consumer = busy.consumer()
    busy.publishes(b"a")
    (wanted,) = ids_of(busy, b"a")
    search = Withdrawal(busy.channel(), [UNKNOWN, wanted])
    search.step(busy.now)
    busy.waits(1)
    assert consumer.takes() == [b"a"]
    found = []
    while not search.is_done:
        found += search.step(busy.now)
    assert [message.body(frame) for frame in found] == [b"a"]
    assert list(search.missing) == [UNKNOWN]


def test_a_message_that_was_put_off_comes_when_it_is_due(busy):
    consumer = busy.consumer()
    busy.publishes(b"a", b"b")
    search = Withdrawal(busy.channel(), ids_of(busy, b"a"))
    while not search.is_done:
        if frames := search.step(busy.now):
            busy.channel().requeue_withdrawn(frames, busy.now, 30.0)
    assert busy.channel().requeue_count == 1
    assert consumer.takes_all() == [b"b"]
    busy.waits(30)
    assert consumer.takes() == [b"a"]
    assert consumer.attempts(b"a") == 1


def test_a_read_error_takes_nothing(data_path, disk):
    daemon = data_path.start(mem_queue_size=0)
    consumer = daemon.consumer()
    for number in range(3):
        daemon.publishes(b"%d" % number)
    (wanted,) = ids_of(daemon, b"2")
    data_path.checkpoint(daemon)
    daemon = data_path.restart(daemon, mem_queue_size=0)
    consumer = daemon.consumer()
    disk.unreadable = True
    with pytest.raises(OSError, match="memory"):
        take_out(daemon, wanted)
    disk.unreadable = False
    assert daemon.channel().depth == 3
    assert consumer.takes_all() == [b"0", b"1", b"2"]


def test_what_was_taken_out_does_not_come_back_after_a_kill_once_a_checkpoint_is_written(data_path):
    daemon = data_path.start(mem_queue_size=2)
    daemon.channel()
    daemon.publishes(*(b"%d" % number for number in range(6)))
    daemon.publishes(b"later", defer=60.0)
    ids = ids_of(daemon, b"1", b"4", b"later")
    take_out(daemon, *ids)
    data_path.checkpoint(daemon)
    daemon = data_path.restart(daemon)
    consumer = daemon.consumer()
    daemon.waits(60)
    assert consumer.takes_all() == [b"0", b"2", b"3", b"5"]


def test_a_peek_shows_only_what_is_left(busy):
    busy.channel()
    busy.publishes(*(b"%d" % number for number in range(6)))
    take_out(busy, *ids_of(busy, b"1", b"3", b"4"))
    assert [message.body(frame) for frame in busy.channel().peek(10).waiting] == [b"0", b"2", b"5"]


def test_many_deferred_messages_are_searched_in_parts(busy):
    """Wherever they are in the heap, and however keys move in it."""
    channel = busy.channel()
    for number in range(200):
        busy.publishes(b"%d" % number, defer=1.0 + number * 37 % 101)
    frames = [frame for _, frame in channel.backlog.deferred.peek(200)]
    wanted = {message.message_id(frame) for frame in frames[::3]}
    found, at = [], 0
    while at >= 0:
        some, at = channel.backlog.deferred.remove(wanted, at)
        found += some
    assert {message.message_id(frame) for frame in found} == wanted
    left = [message.message_id(frame) for _, frame in channel.backlog.deferred.peek(200)]
    assert left == [each for frame in frames if (each := message.message_id(frame)) not in wanted]


@pytest.mark.parametrize("read", [0, 2])
@pytest.mark.parametrize("memory", [2, 100])
def test_messages_that_follow_a_replay_are_taken_as_those_of_the_replay_are(data_path, memory, read):
    daemon = data_path.start(mem_queue_size=memory)
    consumer = daemon.consumer()
    daemon.channel("other")
    daemon.publishes(*(b"%d" % number for number in range(10)))
    consumer.finishes(*consumer.takes_all())
    daemon.topic().move_channel("archive", 6, daemon.now_ns)
    daemon.publishes(*(b"%d" % number for number in range(10, 20)))
    taken = consumer.takes(read) if read else []
    assert take_out(daemon, *ids_of(daemon, b"10", b"19", b"9", b"15", channel="other")) == (
        {b"9": 1, b"10": 1, b"15": 1, b"19": 1},
        [],
    )
    assert daemon.channel().depth == 10 - len(taken)
    left = [b"%d" % number for number in range(6, 20) if number not in (9, 10, 15, 19)]
    assert taken + consumer.takes_all() == left
    assert daemon.channel().depth == 0
