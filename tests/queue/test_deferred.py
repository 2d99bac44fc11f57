from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.log.group import NOWHERE
from nsq_compat.protocol.message import body, message_id, with_attempts
from nsq_compat.protocol.message import make_frames as make_message_frames
from nsq_compat.queue.deferred import Deferred
from nsq_compat.queue.in_flight import NEVER

PLENTY = 1000


class Log(dict[bytes, bytes]):
    """Frames by id, as a topic's log gives them; what it was asked for is noted."""

    def __init__(self, *frames: bytes) -> None:
        super().__init__((message_id(frame), frame) for frame in frames)
        self.asked: list[list[bytes]] = []
        self.locations: dict[bytes, bytes] = {}
        """What it was told."""
        self.failing = False

    def fetch(
        self, ids: Sequence[bytes], locations: Mapping[bytes, bytes] = MappingProxyType({}), /
    ) -> dict[bytes, bytes]:
        self.asked.append(list(ids))
        self.locations.update(locations)
        if self.failing:
            raise OSError("cannot read")
        return {number: self[number] for number in ids if number in self}

    def locate(self, frames: Sequence[bytes]) -> dict[bytes, bytes]:
        if self.failing:
            raise OSError("cannot write")
        return {}


def in_memory(deferred: Deferred) -> int:
    return len(list(deferred.frames()))


def bodies(frames):
    return [body(frame) for frame in frames]


@pytest.fixture
def deferred() -> Deferred:
    return Deferred()


def test_a_frame_is_kept_until_its_time_and_not_a_moment_less(deferred, make_frames):
    frames = make_frames(b"a")
    deferred.add(frames, due=10.0)
    assert deferred.release(9.999, PLENTY) == []
    assert deferred.release(10.0, PLENTY) == list(frames)
    assert deferred.release(10.0, PLENTY) == []


def test_the_sooner_comes_first_whenever_it_was_put_in(deferred, make_frames):
    late, soon = make_frames(b"late", b"soon")
    deferred.add([late], due=20.0)
    deferred.add([soon], due=10.0)
    assert deferred.next_due() == 10.0
    assert bodies(deferred.release(30.0, PLENTY)) == [b"soon", b"late"]


def test_what_is_due_at_one_time_comes_in_the_order_it_went_in(deferred, make_frames):
    d, c, b, a = make_frames(b"d", b"c", b"b", b"a")
    deferred.add([a, b], due=10.0)
    deferred.add([c], due=10.0)
    deferred.add([d], due=10.0)
    assert bodies(deferred.release(10.0, PLENTY)) == [b"a", b"b", b"c", b"d"]


@given(st.lists(st.integers(0, 20), max_size=40), st.integers(0, 45))
def test_looking_shows_those_that_are_due_first_and_takes_nothing(dues, count):
    deferred = Deferred()
    for number, due in enumerate(dues):
        deferred.add(make_message_frames([b"%016x" % number], 0, [b"%d" % number]), due=float(due))
    seen = deferred.peek(count)
    assert [due for due, _ in seen] == sorted(dues)[:count]
    assert [frame for _, frame in seen] == deferred.release(99.0, PLENTY)[:count]


def test_looking_finds_in_the_log_what_memory_does_not_hold_and_says_its_next_attempt(make_frames):
    frames = make_frames(b"a", b"b")
    deferred = Deferred(Log(*frames).fetch, memory=0)
    deferred.add_entry(10.0, message_id(frames[0]), 3)
    deferred.add_entry(5.0, b"0123456789abcdef", 1)
    assert deferred.peek(5) == [(10.0, with_attempts(frames[0], 3))]
    assert len(deferred) == 2


def test_those_put_in_last_are_found_whenever_they_are_due(deferred, make_frames, monkeypatch):
    a, b, c = make_frames(b"a", b"b", b"c")
    for due, frame in ((30.0, a), (10.0, b), (20.0, c)):
        deferred.add([frame], due)
    assert sorted(deferred.latest(2)) == [(10.0, b), (20.0, c)]
    monkeypatch.setattr("nsq_compat.queue.deferred._MANY", 2)
    assert deferred.latest(1) == [(10.0, b)]


def test_no_more_is_released_than_there_is_room_for_and_the_rest_stays_due(deferred, make_frames):
    deferred.add(make_frames(b"a", b"b", b"c"), due=10.0)
    assert deferred.release(20.0, 0) == []
    assert bodies(deferred.release(20.0, 2)) == [b"a", b"b"]
    assert (len(deferred), deferred.next_due()) == (1, 10.0)
    assert bodies(deferred.release(20.0, 2)) == [b"c"]


def test_nothing_is_due_when_nothing_is_deferred(deferred, make_frames):
    assert deferred.next_due() == NEVER
    deferred.add(make_frames(b"a"), due=10.0)
    deferred.release(10.0, PLENTY)
    assert deferred.next_due() == NEVER


def test_the_number_of_the_next_delivery_is_kept(deferred, make_frames):
    (frame,) = make_frames(b"a")
    again = with_attempts(frame, 7)
    deferred.add([again], due=10.0)
    assert deferred.release(10.0, PLENTY) == [again]


def test_sharing_gives_another_the_same_messages_and_keeps_them(deferred, make_frames):
    a, b, c = make_frames(b"a", b"b", b"c")
    deferred.add([a, b], due=10.0)
    deferred.add([c], due=5.0)
    others = [Deferred(), Deferred()]
    for other in others:
        deferred.share_with(other)
    for each in (deferred, *others):
        assert len(each) == 3
        assert each.release(5.0, PLENTY) == [c]
        assert each.release(10.0, PLENTY) == [a, b]


def test_what_was_shared_at_one_time_keeps_its_order(deferred, make_frames):
    before, *rest = make_frames(b"before", b"c", b"b", b"a")
    for frame in reversed(rest):
        deferred.add([frame], due=10.0)
    other = Deferred()
    other.add([before], due=10.0)
    deferred.share_with(other)
    assert bodies(other.release(10.0, PLENTY)) == [b"before", b"a", b"b", b"c"]


def test_emptying_says_how_much_it_was(deferred, make_frames):
    deferred.add(make_frames(b"a", b"b"), due=10.0)
    assert deferred.empty() == 2
    assert (len(deferred), deferred.next_due(), in_memory(deferred)) == (0, NEVER, 0)
    assert deferred.release(99.0, PLENTY) == []


# --- With a log -------------------------------------------------------------------------------------------------------


def test_without_a_log_everything_stays_in_memory(deferred, make_frames):
    assert deferred.fit_in_memory(PLENTY)
    deferred.add(make_frames(*[b"x"] * PLENTY), due=10.0)
    assert in_memory(deferred) == PLENTY


def test_with_a_log_no_more_frames_than_agreed_stay_in_memory(make_frames):
    a, b, c = make_frames(b"a", b"b", b"c")
    log = Log(a, b, c)
    deferred = Deferred(log.fetch, memory=2)
    assert deferred.fit_in_memory(2)
    assert not deferred.fit_in_memory(3)
    deferred.add([a, b], due=10.0)
    assert not deferred.fit_in_memory(1)
    deferred.add([c], due=5.0, locations=[NOWHERE])
    assert (len(deferred), in_memory(deferred)) == (3, 2)
    assert deferred.release(10.0, PLENTY) == [c, a, b]
    assert log.asked == [[message_id(c)]]


def test_what_is_all_in_memory_asks_the_log_nothing(make_frames):
    frames = make_frames(b"a", b"b")
    log = Log(*frames)
    deferred = Deferred(log.fetch, memory=2)
    deferred.add(frames, due=10.0)
    assert deferred.release(10.0, PLENTY) == list(frames)
    assert log.asked == []


def test_a_frame_from_the_log_gets_the_number_of_its_next_delivery(make_frames):
    (frame,) = make_frames(b"a")
    deferred = Deferred(Log(frame).fetch, memory=0)
    deferred.add([with_attempts(frame, 7)], due=10.0, locations=[NOWHERE])
    assert deferred.release(10.0, PLENTY) == [with_attempts(frame, 7)]


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


def test_what_the_log_has_lost_is_counted_and_left_out(make_frames):
    a, b = make_frames(b"a", b"b")
    deferred = Deferred(Log(b).fetch, memory=0)
    deferred.add([a, b], due=10.0, locations=[NOWHERE] * 2)
    assert deferred.release(10.0, PLENTY) == [b]
    assert (deferred.damaged_count, len(deferred)) == (1, 0)


def test_what_is_shared_with_one_that_keeps_less_in_memory_is_in_the_log(make_frames):
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


def test_keys_bring_everything_back_with_times_of_another_clock(make_frames):
    frames = [with_attempts(frame, 3) for frame in make_frames(b"a", b"b", b"c")]
    before = Deferred()
    before.add(frames[:2], due=1010.0)
    before.add(frames[2:], due=1005.0)
    after = Deferred(Log(*frames).fetch, memory=PLENTY)
    after.restore(before.keys(), shift=-1000.0)
    assert after.next_due() == 5.0
    assert after.release(5.0, PLENTY) == frames[2:]
    assert after.release(10.0, PLENTY) == frames[:2]


def test_what_became_due_while_nobody_was_there_is_due_at_once(make_frames):
    frames = make_frames(b"a")
    before = Deferred()
    before.add(frames, due=10.0)
    after = Deferred(Log(*frames).fetch, memory=0)
    after.restore(before.keys(), shift=-1000.0)
    assert after.release(0.0, PLENTY) == list(frames)


dues = st.integers(0, 20)


@given(st.lists(st.tuples(dues, st.integers(0, 3))), st.lists(st.tuples(dues, st.integers(0, 9))).map(sorted), dues)
def test_everything_comes_out_once_at_the_first_release_that_may_have_it(batches, releases, memory):
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
