import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from nsq_compat.protocol.message import message_id
from nsq_compat.queue import departed as module
from nsq_compat.queue.departed import Departed
from nsq_compat.queue.in_flight import InFlight
from nsq_compat.queue.schedule import NEVER
from tests.queue.test_in_flight import Delivery, InFlightIsADictOfDeadlines, ids_of


@pytest.fixture
def departed() -> Departed:
    return Departed()


def consumer_with(*frames: bytes, now: float = 100.0, timeout: float = 60.0) -> InFlight:
    in_flight = InFlight()
    in_flight.add(frames, now, timeout)
    return in_flight


def test_messages_of_a_consumer_keep_their_deadlines(departed, make_frames):
    a, b, c, d = make_frames(b"a", b"b", b"c", b"d")
    in_flight = consumer_with(a, b, c)
    in_flight.add([d], 101.0, 60.0)
    in_flight.finish([message_id(b)])
    in_flight.touch(message_id(c), 300.0, 900.0)
    departed.absorb(in_flight, answerable=False)
    assert (len(in_flight), len(departed)) == (0, 3)
    assert departed.delivery_of(message_id(c)) == (300.0, 100.0)
    assert departed.delivery_of(message_id(b)) is None
    assert departed.next_deadline() == 160.0
    assert departed.expire(160.0) == [a]
    assert departed.expire(161.0) == [d]
    assert departed.expire(299.9) == []
    assert departed.expire(300.0) == [c]
    assert departed.next_deadline() == NEVER


def test_the_first_to_time_out_comes_first_whichever_consumer_left_first(departed, make_frames):
    late, early, same = make_frames(b"late", b"early", b"same")
    departed.absorb(consumer_with(late, timeout=90.0), answerable=False)
    departed.absorb(consumer_with(early), answerable=False)
    departed.absorb(consumer_with(same), answerable=False)
    assert list(departed.peek()) == [(160.0, early), (160.0, same), (190.0, late)]
    assert departed.expire(200.0) == [early, same, late]


def test_a_limit_is_exceeded_by_a_part_of_a_batch_at_most(departed, make_frames):
    frames = make_frames(*[b"x"] * 30)
    for first in range(0, 30, 10):
        departed.absorb(consumer_with(*frames[first : first + 10]), answerable=False)
    assert departed.expire(160.0, 11) == list(frames[:20])
    assert departed.expire(160.0, 11) == list(frames[20:])


def test_clients_answer_only_messages_that_are_answerable(departed, make_frames):
    a, b, c = make_frames(b"a", b"b", b"c")
    departed.absorb(consumer_with(a), answerable=True)
    departed.absorb(consumer_with(b), answerable=False)
    departed.add([c], 100.0, 60.0)
    ids = ids_of([a, b, c])
    assert departed.answerable(ids) == ids[:1]
    departed.touch(ids[0], 110.0, 900.0)  # sooner
    departed.touch(ids[0], 180.0, 900.0)
    departed.expire(170.0)
    assert departed.answerable([*ids, b"unknown"]) == ids[:1]
    assert departed.finish([*ids, b"unknown"]) == [*ids[1:], b"unknown"]
    assert departed.answerable(ids) == []


def test_touching_again_and_again_keeps_nothing_more(departed, make_frames):
    a, b = make_frames(b"a", b"b")
    departed.add([a, b], 100.0, 60.0)
    for later in range(1000):
        departed.touch(message_id(a), 161.0 + later / 10, 900.0)
    assert len(departed._heap) == 1
    assert departed.expire(160.0) == [b]
    assert len(departed._heap) == 1
    assert departed.expire(NEVER) == [a]


def test_nothing_is_kept_once_all_messages_are_answered(departed, make_frames):
    frames = make_frames(*[b"x"] * 100)
    for each in frames:
        departed.absorb(consumer_with(each), answerable=True)
    assert departed.finish(ids_of(frames)) == []
    assert (departed.next_deadline(), departed._heap, departed._batches_by_id) == (NEVER, [], {})


def test_a_peek_looks_at_a_bounded_number_of_batches(departed, make_frames):
    finished = make_frames(*[b"x"] * (module._PEEKED_AT_ONCE - 1))
    for each in finished:
        departed.absorb(consumer_with(each), answerable=True)
    seen, unseen = make_frames(b"seen", b"unseen", first=5000)
    departed.absorb(consumer_with(seen, timeout=61.0), answerable=False)
    departed.absorb(consumer_with(unseen, timeout=62.0), answerable=False)
    departed.finish(ids_of(finished))
    assert list(departed.peek()) == [(161.0, seen)]


class DepartedIsADictOfDeadlines(InFlightIsADictOfDeadlines):
    """As for a consumer's messages, and those of others, which have other time limits."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight: InFlight = Departed()

    @rule(count=st.integers(1, 4), timeout=st.integers(1, 20), touched=st.booleans())
    def a_consumer_leaves(self, count: int, timeout: int, touched: bool) -> None:
        frames = self.new_frames(count)
        leaving = InFlight()
        leaving.add(frames, self.now, timeout)
        self.model.update({message_id(each): Delivery(each, self.now, self.now + timeout) for each in frames})
        if touched:
            first = message_id(frames[0])
            self.model[first].deadline = self.now + 15
            leaving.touch(first, self.now + 15, self.MAX_LIFETIME)
        assert isinstance(self.in_flight, Departed)
        self.in_flight.absorb(leaving, answerable=touched)

    @invariant()
    def what_is_kept_is_bounded(self) -> None:
        assert self.in_flight.frames or self.in_flight.next_deadline() == NEVER


TestDepartedIsADictOfDeadlines = DepartedIsADictOfDeadlines.TestCase


def test_however_many_consumers_have_left_a_channel_looks_at_one_set(daemon, channel):
    for _ in range(300):
        daemon.publishes(b"a")
        leaving = daemon.consumer()
        leaving.takes(room=1)
        leaving.leaves()
    assert len(channel.in_flight_sets()) == 1
    assert channel.in_flight_count == channel.unanswered_count == 300
