from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nsq_compat.protocol.message import make_frames, message_id
from nsq_compat.queue.in_flight import InFlight
from nsq_compat.queue.schedule import NEVER

MAX_LIFETIME = 900.0


def ids_of(frames):
    return [message_id(frame) for frame in frames]


@pytest.fixture
def in_flight() -> InFlight:
    return InFlight()


def test_expired_messages_are_in_the_order_of_delivery(in_flight, make_frames):
    first, second = make_frames(b"a", b"b"), make_frames(b"c", first=10)
    in_flight.add(first, now=100.0, timeout=60.0)
    in_flight.add(second, now=101.0, timeout=60.0)
    assert in_flight.expire(200.0) == [*first, *second]


@pytest.mark.parametrize("size", [1, 3])
def test_finishing_in_order_leaves_no_places(in_flight, make_frames, size):
    window = []
    for first in range(0, 500 * size, size):
        frames = make_frames(*[b"x"] * size, first=first)
        in_flight.add(frames, now=100.0, timeout=60.0)
        window.append(frames)
        if len(window) == 10:
            in_flight.finish(ids_of(window.pop(0)))
        assert in_flight._places <= 11 * size


def test_places_behind_a_message_that_takes_long_are_caught_up_with(in_flight, make_frames):
    slow, *others = (make_frames(b"x", first=first) for first in range(600))
    in_flight.add(slow, now=100.0, timeout=60.0)
    for frames in others:
        in_flight.add(frames, now=100.0, timeout=60.0)
        in_flight.finish(ids_of(frames))
    assert in_flight._places == 600
    in_flight.finish(ids_of(slow))
    for first in range(1000, 1600):
        frames = make_frames(b"x", first=first)
        in_flight.add(frames, now=100.0, timeout=60.0)
        in_flight.finish(ids_of(frames))
    assert in_flight._places == 0


def test_frames_are_found_by_their_ids_each_once(in_flight, make_frames):
    one, two, three = make_frames(b"one", b"two", b"three")
    in_flight.add([one, two, three], 0.0, 60.0)
    ids = [message_id(frame) for frame in (three, one, three)]
    assert in_flight.frames_of([ids[0], b"0123456789abcdef", *ids[1:]]) == [three, one]
    assert len(in_flight) == 3


def test_peeking_shows_each_frame_with_its_deadline(in_flight, make_frames):
    a, b, c, d = frames = make_frames(b"a", b"b", b"c", b"d")
    in_flight.add(frames, now=100.0, timeout=60.0)
    in_flight.finish([message_id(a)])
    in_flight.touch(message_id(b), 200.0, MAX_LIFETIME)
    in_flight.take(message_id(c))
    in_flight.add([c], now=110.0, timeout=60.0)
    assert sorted(in_flight.peek()) == [(160.0, d), (170.0, c), (200.0, b)]
    assert len(in_flight) == 3


def test_touching_never_exceeds_the_maximal_lifetime(in_flight, make_frames):
    (frame,) = make_frames(b"a")
    in_flight.add([frame], now=100.0, timeout=60.0)
    assert in_flight.touch(message_id(frame), 200.0, 150.0) == 200.0
    assert in_flight.touch(message_id(frame), 251.0, 150.0) == 250.0
    assert in_flight.expire(250.0) == [frame]


def places(in_flight: InFlight) -> int:
    """What is kept beside the frames themselves: batches and the ids in them."""
    return (
        sum(1 + len(ids) for _, _, ids in in_flight._batches)
        + len(in_flight._void_places)
        + len(in_flight._own_deadlines)
    )


class CountedId(bytes):
    """An id that counts how often it was compared with another one."""

    compared = 0

    def __eq__(self, other):
        CountedId.compared += 1
        return bytes.__eq__(self, other)

    __hash__ = bytes.__hash__


def test_touching_does_not_search_all_messages(in_flight, make_frames):
    batches = [make_frames(b"x", first=first) for first in range(3000)]
    for frames in batches[:2500]:
        in_flight.add(frames, now=100.0, timeout=60.0)
    for frames in batches[2500:]:
        in_flight.add(frames, now=101.0, timeout=60.0)
        in_flight.finish(ids_of(frames))
        (last,) = ids_of(batches[2499])
        in_flight.touch(last, 170.0, MAX_LIFETIME)
    touched = [CountedId(each) for frames in batches[1500:2499] for each in ids_of(frames)]
    assert [in_flight.touch(each, 2000.0, MAX_LIFETIME) for each in touched] == [100.0 + MAX_LIFETIME] * 999
    assert CountedId.compared < 20 * len(touched)


@pytest.mark.parametrize("ending", ["finished", "sent again", "sent to others", "touched"])
def test_messages_that_were_answered_long_before_their_deadline_take_no_memory(in_flight, make_frames, ending):
    for number in range(10_000):
        (frame,) = make_frames(b"a", first=0 if ending == "sent again" else number)
        in_flight.add([frame], now=100.0 + number / 1000, timeout=900.0)
        if ending == "touched":
            in_flight.touch(message_id(frame), 1100.0, 1e9)
        if ending in ("finished", "touched"):
            in_flight.finish([message_id(frame)])
        else:
            in_flight.take(message_id(frame))
    assert places(in_flight) < 3000


def test_forgetting_finished_places_keeps_every_deadline(in_flight, make_frames):
    plain, touched, again, finished = frames = make_frames(b"plain", b"touched", b"again", b"finished")
    in_flight.add(frames, now=100.0, timeout=900.0)
    in_flight.touch(message_id(touched), 1100.0, 1e9)
    in_flight.take(message_id(again))
    in_flight.add([again], now=150.0, timeout=900.0)
    in_flight.finish(ids_of([finished]))
    many = make_frames(*[b"x"] * 2000, first=100)
    in_flight.add(many, now=200.0, timeout=900.0)
    in_flight.finish(ids_of(many))
    in_flight.add(make_frames(b"last", first=5000), now=201.0, timeout=900.0)
    assert places(in_flight) < 10
    assert in_flight.expire(1000.0) == [plain]
    assert in_flight.expire(1050.0) == [again]
    assert in_flight.expire(1100.0) == [touched]


def test_a_finished_message_that_comes_again_has_its_whole_time(in_flight, make_frames):
    first, second = frames = make_frames(b"first", b"second")
    in_flight.add(frames, now=100.0, timeout=60.0)
    in_flight.finish(ids_of([first]))
    in_flight.add_again([first], now=150.0, timeout=60.0)
    assert sorted(in_flight.peek()) == [(160.0, second), (210.0, first)]
    assert in_flight.expire(160.0) == [second]
    assert in_flight.take(message_id(first)) == first
    in_flight.add_again([first], now=170.0, timeout=60.0)
    assert in_flight.expire(229.0) == []
    assert in_flight.expire(230.0) == [first]
    assert in_flight.next_deadline() == float("inf")


@dataclass
class Delivery:
    """What the naive model knows of a frame in flight."""

    frame: bytes
    delivered: float
    deadline: float


class InFlightIsADictOfDeadlines(RuleBasedStateMachine):
    """The deque with its exceptions against a dict that is searched from end to end.

    `TIMEOUT` is one for all, as it is for a consumer. Frames that left may be sent again, to the same consumer.
    """

    TIMEOUT = 10.0
    MAX_LIFETIME = 25.0

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.serial = 0
        self.in_flight = InFlight()
        self.model: dict[bytes, Delivery] = {}
        self.gone: list[bytes] = []  # frames that may be sent again

    def send(self, frames: list[bytes]) -> None:
        self.in_flight.add(frames, self.now, self.TIMEOUT)
        for frame in frames:
            self.model[message_id(frame)] = Delivery(frame, self.now, self.now + self.TIMEOUT)

    def some(self, choice: int) -> bytes:
        """An id, mostly one that is in flight."""
        ids = [*self.model, b"unknown"]
        return ids[choice % len(ids)]

    def new_frames(self, count: int) -> list[bytes]:
        ids = [b"%016x" % (self.serial + number) for number in range(count)]
        self.serial += count
        return list(make_frames(ids, 0, [b"body"] * count))

    @rule(count=st.integers(1, 5), again=st.integers(0, 3))
    def add(self, count: int, again: int) -> None:
        frames = [*self.gone[:again], *self.new_frames(count)]
        del self.gone[:again]
        self.send(frames)

    @rule(again=st.integers(1, 3))
    def send_again_alone(self, again: int) -> None:
        frames = self.gone[:again]
        del self.gone[:again]
        self.send(frames)

    @rule(count=st.integers(400, 700))
    def add_many_and_finish_most(self, count: int) -> None:
        frames = self.new_frames(count)
        self.send(frames)
        ids = ids_of(frames)[2:]
        assert self.in_flight.finish(ids) == []
        for each in ids:
            del self.model[each]

    @rule(choices=st.lists(st.integers(0, 50), max_size=4))
    def finish(self, choices: list[int]) -> None:
        ids = [self.some(choice) for choice in choices]
        missing = [each for each in ids if self.model.pop(each, None) is None]
        assert self.in_flight.finish(ids) == missing

    @rule(choice=st.integers(0, 50))
    def take(self, choice: int) -> None:
        wanted = self.some(choice)
        frame = self.in_flight.take(wanted)
        delivery = self.model.pop(wanted, None)
        assert frame == (delivery.frame if delivery else None)
        if frame is not None:
            self.gone.append(frame)

    @rule(choice=st.integers(0, 50), more=st.integers(1, 20))
    def touch(self, choice: int, more: int) -> None:
        wanted = self.some(choice)
        deadline = self.in_flight.touch(wanted, self.now + more, self.MAX_LIFETIME)
        delivery = self.model.get(wanted)
        if delivery is None:
            assert deadline is None
        else:
            delivery.deadline = min(self.now + more, delivery.delivered + self.MAX_LIFETIME)
            assert deadline == delivery.deadline

    @rule(seconds=st.integers(0, 8))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        due = [each for each, delivery in self.model.items() if delivery.deadline <= self.now]
        expired = self.in_flight.expire(self.now)
        assert sorted(ids_of(expired)) == sorted(due)
        assert {message_id(frame): frame for frame in expired} == {each: self.model[each].frame for each in due}
        for each in due:
            self.gone.append(self.model.pop(each).frame)

    @rule()
    def clear(self) -> None:
        self.in_flight.clear()
        self.model.clear()

    @invariant()
    def the_same_frames_are_in_flight(self) -> None:
        assert len(self.in_flight) == len(self.model)
        assert self.in_flight.frames == {each: delivery.frame for each, delivery in self.model.items()}

    @invariant()
    def nobody_comes_too_late_or_for_nothing_at_once(self) -> None:
        earliest = min((delivery.deadline for delivery in self.model.values()), default=NEVER)
        assert self.now < self.in_flight.next_deadline() <= earliest

    @invariant()
    def what_is_kept_is_bounded(self) -> None:
        assert places(self.in_flight) <= 3 * (2 * len(self.model) + 1024 + 700)


TestInFlightIsADictOfDeadlines = InFlightIsADictOfDeadlines.TestCase
