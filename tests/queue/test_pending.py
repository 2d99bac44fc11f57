"""What a channel could deliver: the stream, what came back, and what it had before a restart."""

import pytest

from nsq_compat.protocol.message import attempts, body, make_frames, message_id, with_attempts
from nsq_compat.queue.cursor import Cursor
from nsq_compat.queue.pending import Pending

PLENTY = 1 << 30


def frames(*bodies):
    return make_frames([b"%016x" % hash_of(each) for each in bodies], 0, bodies)


def hash_of(text):
    return int.from_bytes(text, "big")


def frame(text):
    return frames(text)[0]


class Log:
    """Frames by id; notes what it was asked for, and may fail."""

    def __init__(self, *bodies):
        self.frames = {message_id(each): each for each in frames(*bodies)}
        self.asked = 0
        self.failing = False

    def fetch(self, ids):
        if self.failing:
            raise OSError("cannot read")
        self.asked += len(ids)
        return {number: self.frames[number] for number in ids if number in self.frames}


@pytest.fixture
def cursor():
    return Cursor(None, 100)


@pytest.fixture
def pending(cursor):
    return Pending(cursor, memory=2)


def taken(pending, limit=PLENTY, max_bytes=PLENTY):
    return [body(each) for each in pending.take(limit, max_bytes)]


def all_of(pending):
    found = []
    while some := taken(pending):
        found += some
    return found


def test_the_stream_comes_in_order(pending, cursor):
    cursor.extend(frames(b"a", b"b", b"c"))
    assert (len(pending), taken(pending, 2), taken(pending)) == (3, [b"a", b"b"], [b"c"])


def test_what_came_back_goes_to_the_end_of_the_line(pending, cursor):
    cursor.extend(frames(b"a", b"b"))
    pending.put_back(frames(b"x"))
    cursor.extend(frames(b"c"))
    assert all_of(pending) == [b"a", b"b", b"x", b"c"]


def test_looking_shows_what_would_be_taken_in_that_order_and_takes_nothing(pending, cursor):
    cursor.extend(frames(b"a", b"b", b"c"))
    pending.put_back(frames(b"x", b"y"))
    cursor.extend(frames(b"d"))
    taken(pending, 1)
    pending.put_back(frames(b"z"))
    looks = [[body(each) for each in pending.look(count)] for count in range(9)]
    order = all_of(pending)
    assert sorted(order) == [b"b", b"c", b"d", b"x", b"y", b"z"]
    assert looks == [order[:count] for count in range(9)]


def test_looking_reads_no_more_of_what_was_there_before_a_restart_than_is_asked_for(pending, cursor):
    log = Log(b"a", b"b", b"c")
    cursor.extend(frames(b"d"))
    pending.restore([(number, 2) for number in log.frames], log.fetch)
    seen = pending.look(2)
    assert [(body(each), attempts(each)) for each in seen] == [(b"a", 2), (b"b", 2)]
    assert (log.asked, [body(each) for each in pending.look(9)]) == (2, [b"a", b"b", b"c", b"d"])
    assert all_of(pending) == [b"a", b"b", b"c", b"d"]


def test_what_came_back_waits_for_no_more_than_memory_holds(pending, cursor):
    cursor.extend(frames(b"a", b"b", b"c", b"d"))
    taken(pending, 1)
    pending.put_back(frames(b"x"))
    assert all_of(pending) == [b"b", b"c", b"x", b"d"]


def test_what_came_back_comes_at_once_if_nothing_else_is_there(pending, cursor):
    pending.put_back(frames(b"x", b"y"))
    assert (pending.returned_count, taken(pending, 1), taken(pending)) == (2, [b"x"], [b"y"])


def test_what_came_back_at_different_times_keeps_its_order(pending, cursor):
    cursor.extend(frames(b"a", b"b", b"c"))
    pending.put_back(frames(b"x"))
    taken(pending, 1)
    pending.put_back(frames(b"y"))
    assert taken(pending) == [b"b", b"x", b"c", b"y"]


def test_putting_back_nothing_changes_nothing(pending):
    pending.put_back([])
    assert (len(pending), taken(pending)) == (0, [])


def test_no_more_bytes_are_taken_than_wanted(pending, cursor):
    cursor.extend(frames(b"a", b"b"))
    pending.put_back(frames(b"x"))
    size = len(frame(b"a"))
    assert taken(pending, PLENTY, 2 * size) == [b"a", b"b"]
    assert taken(pending, PLENTY, 2 * size) == [b"x"]


def test_emptying_forgets_all_three(pending, cursor):
    cursor.extend(frames(b"a"))
    pending.put_back(frames(b"x"))
    pending.restore([(message_id(frame(b"r")), 2)], Log(b"r").fetch)
    pending.empty()
    assert (len(pending), taken(pending), list(pending.returned()), list(pending.restored())) == (0, [], [], [])


# --- What was there before a restart ----------------------------------------------------------------------------------


def test_what_is_restored_comes_first_with_the_number_of_its_next_delivery(pending, cursor):
    cursor.extend(frames(b"a"))
    pending.restore([(message_id(frame(b"q")), 3), (message_id(frame(b"r")), 7)], Log(b"q", b"r").fetch)
    assert len(pending) == 3
    some = [*pending.take(PLENTY, PLENTY), *pending.take(PLENTY, PLENTY)]
    assert [(body(each), attempts(each)) for each in some] == [(b"q", 3), (b"r", 7), (b"a", 1)]


def test_until_it_is_its_turn_only_ids_are_in_memory(pending):
    bodies = [b"%d" % number for number in range(2000)]
    log = Log(*bodies)
    pending.restore([(message_id(frame(each)), 2) for each in bodies], log.fetch)
    assert log.asked == 0
    for count in range(1, 20):
        assert taken(pending, 1) == bodies[count - 1 : count]
        assert pending.returned_count <= 256
    assert len(pending) == 2000 - 19
    assert [number for number, _ in pending.restored()] == [
        message_id(frame(each)) for each in bodies[19 + pending.returned_count :]
    ]


def test_nothing_is_stuck_behind_what_was_named_twice(pending):
    pending.restore([(message_id(frame(each)), 2) for each in (b"q", b"r", b"q", b"s")], Log(b"q", b"r", b"s").fetch)
    assert taken(pending) == [b"q", b"r", b"q", b"s"]
    assert (len(pending), pending.damaged_count) == (0, 0)


def test_who_puts_everything_back_does_not_keep_the_rest_from_being_restored(pending):
    bodies = [b"%d" % number for number in range(600)]
    pending.restore([(message_id(frame(each)), 2) for each in bodies], Log(*bodies).fetch)
    seen: set[bytes] = set()
    for _ in range(2000):
        some = pending.take(1, PLENTY)
        seen.update(map(body, some))
        pending.put_back(some)
    assert seen == set(bodies)


def test_a_log_that_cannot_be_read_costs_nothing(pending):
    log = Log(b"r")
    pending.restore([(message_id(frame(b"r")), 2)], log.fetch)
    log.failing = True
    with pytest.raises(OSError, match="cannot read"):
        pending.take(1, PLENTY)
    assert len(pending) == 1
    log.failing = False
    assert taken(pending) == [b"r"]


def test_what_the_log_has_lost_is_counted_and_left_out(pending):
    pending.restore([(message_id(frame(b"lost")), 2), (message_id(frame(b"r")), 2)], Log(b"r").fetch)
    assert taken(pending) == [b"r"]
    assert (pending.damaged_count, len(pending)) == (1, 0)


def test_what_came_back_can_be_looked_at(pending):
    again = with_attempts(frame(b"x"), 4)
    pending.put_back([again])
    assert list(pending.returned()) == [again]
