"""What a topic or channel has to deliver: the stream, returned frames, deferred ones, and those before a restart."""

import time
from contextlib import suppress

import pytest

from nsq_compat.log.checkpoint import ENTRY, ChannelState, immediate_entries, pack_key
from nsq_compat.protocol.message import attempts, body, make_frames, message_id, with_attempts
from nsq_compat.queue.backlog import Backlog, Cursor, prepare
from nsq_compat.queue.deferred import Deferred
from tests.broker import Log

PLENTY = 1 << 30


def frames(*bodies):
    return make_frames([b"%016x" % hash_of(each) for each in bodies], 0, bodies)


def hash_of(text):
    return int.from_bytes(text, "big")


def frame(text):
    return frames(text)[0]


@pytest.fixture
def cursor():
    return Cursor(None, 100)


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def backlog(cursor, log):
    return Backlog(cursor, Deferred(), 2, log.fetch)


def restores(backlog, *messages):
    """Bodies, and the number of the next delivery."""
    named = [(message_id(frame(text)), attempt) for text, attempt in messages]
    backlog.restore(ChannelState(0, immediate_entries(named)), 0, shift=0.0)


def take(backlog, limit=PLENTY, max_bytes=PLENTY):
    """Take frames, in as many calls as the log needs."""
    while True:
        with suppress(BlockingIOError):
            return backlog.take(limit, max_bytes)


def taken(backlog, limit=PLENTY, max_bytes=PLENTY):
    return [body(each) for each in take(backlog, limit, max_bytes)]


def all_of(backlog):
    found = []
    while some := taken(backlog):
        found += some
    return found


def test_the_stream_comes_in_order(backlog, cursor):
    cursor.extend(frames(b"a", b"b", b"c"))
    assert (len(backlog), taken(backlog, 2), taken(backlog)) == (3, [b"a", b"b"], [b"c"])


def test_returned_messages_go_to_the_end_of_the_queue(backlog, cursor):
    cursor.extend(frames(b"a", b"b"))
    backlog.put_back(frames(b"x"))
    cursor.extend(frames(b"c"))
    assert all_of(backlog) == [b"a", b"b", b"x", b"c"]


def test_peeking_shows_the_next_messages_in_order_and_takes_none(backlog, cursor):
    cursor.extend(frames(b"a", b"b", b"c"))
    backlog.put_back(frames(b"x", b"y"))
    cursor.extend(frames(b"d"))
    taken(backlog, 1)
    backlog.put_back(frames(b"z"))
    peeks = [[body(each) for each in backlog.peek_waiting(count)] for count in range(9)]
    order = all_of(backlog)
    assert sorted(order) == [b"b", b"c", b"d", b"x", b"y", b"z"]
    assert peeks == [order[:count] for count in range(9)]


def test_peeking_reads_no_more_restored_messages_than_requested(backlog, cursor, log):
    log.update((message_id(each), each) for each in frames(b"a", b"b", b"c"))
    restores(backlog, (b"a", 2), (b"b", 2), (b"c", 2))
    cursor.extend(frames(b"d"))
    seen = backlog.peek_waiting(2)
    assert [(body(each), attempts(each)) for each in seen] == [(b"a", 2), (b"b", 2)]
    assert (len(log.asked), [body(each) for each in backlog.peek_waiting(9)]) == (2, [b"a", b"b", b"c", b"d"])
    assert all_of(backlog) == [b"a", b"b", b"c", b"d"]


def test_restored_messages_that_memory_has_no_room_for_count_as_backend_depth(backlog, cursor, log):
    log.update((message_id(each), each) for each in frames(b"a", b"b", b"c"))
    cursor.allowed = 2
    depths = []
    for count in range(4):
        backlog.empty()
        restores(backlog, *[(text, 2) for text in (b"a", b"b", b"c")[:count]])
        depths.append((len(backlog), backlog.backend_depth))
    assert depths == [(0, 0), (1, 0), (2, 0), (3, 1)]
    cursor.extend(frames(b"d", b"e"))
    assert backlog.backend_depth == 3, "the messages of the stream are in memory"
    assert (taken(backlog, 1), len(backlog), backlog.backend_depth) == ([b"a"], 4, 0)


@pytest.mark.interpreted
def test_one_call_reads_one_block_of_the_log(backlog, cursor, monkeypatch):
    cursor.extend(frames(b"a", b"b", b"c"))
    blocks = [cursor.window.take(1, PLENTY) for _ in range(3)]
    monkeypatch.setattr(cursor, "_read_block", lambda: cursor.window.extend(blocks.pop(0)))
    backlog.put_back(frames(b"x"))
    assert [taken(backlog) for _ in range(3)] == [[b"a"], [b"b", b"x"], [b"c"]]


def test_returned_messages_wait_for_no_more_messages_than_memory_holds(backlog, cursor):
    cursor.extend(frames(b"a", b"b", b"c", b"d"))
    taken(backlog, 1)
    backlog.put_back(frames(b"x"))
    assert all_of(backlog) == [b"b", b"c", b"x", b"d"]


def test_returned_messages_come_at_once_if_there_are_no_others(backlog, cursor):
    backlog.put_back(frames(b"x", b"y"))
    assert (backlog.returned.length, taken(backlog, 1), taken(backlog)) == (2, [b"x"], [b"y"])


def test_messages_returned_at_different_times_keep_their_order(backlog, cursor):
    cursor.extend(frames(b"a", b"b", b"c"))
    backlog.put_back(frames(b"x"))
    taken(backlog, 1)
    backlog.put_back(frames(b"y"))
    assert taken(backlog) == [b"b", b"x", b"c", b"y"]


def test_no_more_bytes_are_taken_than_wanted(backlog, cursor):
    cursor.extend(frames(b"a", b"b"))
    backlog.put_back(frames(b"x"))
    size = len(frame(b"a"))
    assert taken(backlog, PLENTY, 2 * size) == [b"a", b"b"]
    assert taken(backlog, PLENTY, 2 * size) == [b"x"]


def test_emptying_drops_all_four_parts(backlog, cursor):
    restores(backlog, (b"r", 2))
    cursor.extend(frames(b"a"))
    backlog.put_back(frames(b"x"))
    backlog.deferred.add_new(frames(b"d"), 5.0)
    backlog.empty()
    assert (len(backlog), len(backlog.deferred), taken(backlog), list(backlog.returned.frames())) == (0, 0, [], [])
    assert backlog.state().all_entries() == []


def test_without_a_log_messages_that_do_not_fit_into_memory_are_not_deferred(cursor):
    backlog = Backlog(cursor, Deferred(None, 1), 2)
    assert (backlog.deferred.add_new(frames(b"a", b"b"), 5.0), len(backlog.deferred)) == (1, 1)


def test_another_backlog_is_given_a_copy_of_everything(backlog, cursor, log):
    log.update((message_id(each), each) for each in frames(b"r"))
    other = Backlog(Cursor(None, 100), Deferred(), 2, log.fetch)
    restores(backlog, (b"r", 3))
    cursor.extend(frames(b"a"))
    backlog.put_back(frames(b"x"))
    backlog.deferred.add_new(frames(b"d"), 5.0)
    assert other.follow(backlog) == 0
    assert (sorted(all_of(other)), other.deferred.next_due()) == ([b"a", b"r", b"x"], 5.0)
    assert (len(backlog), len(backlog.deferred)) == (3, 1)


def test_its_state_restores_returned_and_deferred_messages(backlog, cursor):
    after = Backlog(Cursor(None, 100), Deferred(), 2)
    cursor.extend(frames(b"a", b"b"))
    backlog.deferred.add_new(frames(b"d"), 5.0)
    backlog.put_back(cursor.take(2, PLENTY))
    ids = [(message_id(each), 1) for each in frames(b"a", b"b")]
    assert (backlog.state().position, backlog.state().immediate()) == (2, ids)
    after.restore(backlog.state(), 2, shift=1.0)
    assert (after.state().immediate(), after.deferred.next_due()) == (ids, 6.0)


def test_a_state_that_was_prepared_restores_the_same(log):
    immediate = immediate_entries([(b"%016x" % number, 2) for number in range(9)])
    deferred = [pack_key(100.0 + number % 7, number, b"%016x" % number, 1) for number in range(5000, 9, -1)]
    states = [ChannelState(2, immediate + deferred) for _ in range(2)]
    pauses: list[None] = []
    prepare(states[1], -50.0, lambda: pauses.append(None))
    assert pauses
    assert states[1].prepared is not None
    assert states[1].prepared.first_id == b"%016x" % 0
    restored: list[tuple[object, ...]] = []
    for state in states:
        backlog = Backlog(Cursor(None, 100), Deferred(log.fetch, 0), 2, log.fetch)
        backlog.restore(state, 2, shift=-50.0)
        keys = sorted(backlog.deferred.keys())
        entries = [(due, each, attempt) for due, _, each, attempt in map(ENTRY.unpack_from, keys)]
        restored.append((len(backlog), backlog.state().immediate(), backlog.deferred.next_due(), entries))
    assert restored[0] == restored[1]
    assert len(entries) == len(deferred)


def test_its_state_names_what_consumers_have(backlog):
    backlog.put_back(frames(b"b"))
    number = message_id(frame(b"a"))
    state = backlog.state([{number: with_attempts(frame(b"a"), 6)}])
    assert state.immediate() == [(number, 7), (message_id(frame(b"b")), 1)]


def test_the_frames_it_holds_are_those_that_were_taken_from_the_stream(backlog, cursor):
    cursor.extend(frames(b"a"))
    backlog.put_back(frames(b"x"))
    backlog.deferred.add_new(frames(b"d"), 5.0)
    assert [body(each) for each in backlog.frames()] == [b"x", b"d"]


# --- What was there before a restart ----------------------------------------------------------------------------------


def test_restored_messages_come_first_with_their_attempts(backlog, cursor, log):
    log.update((message_id(each), each) for each in frames(b"q", b"r"))
    restores(backlog, (b"q", 3), (b"r", 7))
    cursor.extend(frames(b"a"))
    assert len(backlog) == 3
    some = [*backlog.take(PLENTY, PLENTY), *backlog.take(PLENTY, PLENTY)]
    assert [(body(each), attempts(each)) for each in some] == [(b"q", 3), (b"r", 7), (b"a", 1)]


def test_only_the_ids_of_restored_messages_are_in_memory_until_they_are_delivered(backlog, log):
    bodies = [b"%d" % number for number in range(2000)]
    log.update((message_id(each), each) for each in frames(*bodies))
    restores(backlog, *((each, 2) for each in bodies))
    assert log.asked == []
    for count in range(1, 20):
        assert taken(backlog, 1) == bodies[count - 1 : count]
        assert backlog.returned.length <= 256
    assert len(backlog) == 2000 - 19
    assert [number for number, _ in backlog.state().immediate()] == [message_id(frame(each)) for each in bodies[19:]]


def test_few_restored_messages_are_read_at_once_and_the_next_call_goes_on(backlog, log):
    bodies = [b"%d" % number for number in range(40)]
    log.update((message_id(each), each) for each in frames(*bodies))
    restores(backlog, *((each, 2) for each in bodies))
    for asked in (16, 32):
        with pytest.raises(BlockingIOError):
            backlog.take(PLENTY, PLENTY)
        assert (len(log.asked), len(backlog), backlog.returned.length) == (asked, 40, 0)
        assert len(list(backlog.state().immediate())) == 40
    assert [body(each) for each in backlog.take(PLENTY, PLENTY)] == bodies
    assert (len(log.asked), len(backlog)) == (40, 0)


def test_a_backlog_emptied_between_two_reads_forgets_what_was_read(backlog, log):
    bodies = [b"%d" % number for number in range(40)]
    log.update((message_id(each), each) for each in frames(*bodies))
    restores(backlog, *((each, 2) for each in bodies))
    with pytest.raises(BlockingIOError):
        backlog.take(PLENTY, PLENTY)
    backlog.empty()
    restores(backlog, (b"30", 3))
    assert taken(backlog) == [b"30"]
    assert len(backlog) == 0


def test_a_message_restored_twice_does_not_block_others(backlog, log):
    log.update((message_id(each), each) for each in frames(b"q", b"r", b"s"))
    restores(backlog, *((each, 2) for each in (b"q", b"r", b"q", b"s")))
    assert taken(backlog) == [b"q", b"r", b"q", b"s"]
    assert len(backlog) == 0


def test_taking_out_restored_messages_compares_no_message_with_all_that_are_taken_out(backlog, log):
    """There may be a million of them, and each call is a step between which other clients are served."""
    bodies = [b"%d" % number for number in range(200_000)]
    restores(backlog, *((each, 2) for each in bodies))
    found = frames(*bodies[-20:])
    log.update((message_id(each), each) for each in found)
    costs = []
    for ids in ({b"0" * 16}, set(log)):
        began = time.thread_time()
        some = backlog.remove(ids)
        costs.append(time.thread_time() - began)
    assert (len(some), len(backlog)) == (16, 200_000 - 16)
    assert costs[1] < 4 * costs[0] + 0.01


def test_restored_messages_that_are_lost_do_not_end_a_search(backlog, log):
    bodies = [b"%d" % number for number in range(40)]
    restores(backlog, *((each, 2) for each in bodies))
    ids = {message_id(frame(each)) for each in bodies}
    log.update((message_id(each), each) for each in frames(*bodies[32:]))
    for left in (24, 8):
        with pytest.raises(BlockingIOError):
            backlog.remove(ids)
        assert len(backlog) == left
    assert [body(each) for each in backlog.remove(ids)] == bodies[32:]
    assert backlog.remove(ids) == []


def test_requeuing_everything_does_not_delay_restored_messages(backlog, log):
    bodies = [b"%d" % number for number in range(600)]
    log.update((message_id(each), each) for each in frames(*bodies))
    restores(backlog, *((each, 2) for each in bodies))
    seen: set[bytes] = set()
    for _ in range(2000):
        some = take(backlog, 1)
        seen.update(map(body, some))
        backlog.put_back(some)
    assert seen == set(bodies)


def test_a_log_that_cannot_be_read_costs_nothing(backlog, log):
    log.update((message_id(each), each) for each in frames(b"r"))
    restores(backlog, (b"r", 2))
    log.failing = True
    with pytest.raises(OSError, match="cannot read"):
        backlog.take(1, PLENTY)
    assert len(backlog) == 1
    log.failing = False
    assert taken(backlog) == [b"r"]


def test_messages_that_the_log_has_lost_are_left_out(backlog, log):
    log.update((message_id(each), each) for each in frames(b"r"))
    restores(backlog, (b"lost", 2), (b"r", 2))
    assert taken(backlog) == [b"r"]
    assert len(backlog) == 0


# --- A channel looked at ----------------------------------------------------------------------------------------------


def bodies(frames):
    return [body(frame) for frame in frames]


def test_peeking_shows_every_kind_and_takes_nothing(daemon, channel):
    consumer = daemon.consumer(timeout=60.0)
    daemon.publishes(b"a", b"b", b"c")
    daemon.publishes(b"later", defer=30.0)
    daemon.publishes(b"sooner", defer=20.0)
    consumer.takes(room=1)
    for _ in range(2):
        peek = channel.peek(10)
        assert bodies(peek.waiting) == [b"b", b"c"]
        assert [(due - daemon.now, body(frame)) for due, frame in peek.deferred] == [
            (20.0, b"sooner"),
            (30.0, b"later"),
        ]
        assert [(over - daemon.now, body(frame)) for over, frame in peek.in_flight] == [(60.0, b"a")]
    assert (channel.depth, channel.deferred_count, channel.in_flight_count) == (2, 2, 1)
    assert consumer.takes() == [b"b", b"c"]
    assert consumer.attempts(b"b") == 1


def test_peeking_shows_at_most_as_many_as_requested_and_the_earliest_deadlines(daemon, channel):
    slow, quick = daemon.consumer(timeout=90.0), daemon.consumer(timeout=30.0)
    daemon.publishes(*(b"%d" % number for number in range(10)))
    slow.takes(room=4)
    quick.takes(room=2)
    peek = channel.peek(3)
    assert (len(peek.waiting), len(peek.in_flight)) == (3, 3)
    assert bodies(frame for _, frame in peek.in_flight)[:2] == [*quick.frames]
