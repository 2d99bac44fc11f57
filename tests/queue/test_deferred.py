import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.queue.deferred import Deferred
from nsq_compat.queue.in_flight import NEVER


@pytest.fixture
def deferred() -> Deferred:
    return Deferred()


def test_a_frame_is_kept_until_its_time_and_not_a_moment_less(deferred):
    deferred.add([b"a"], due=10.0)
    assert deferred.release(9.999) == []
    assert deferred.release(10.0) == [b"a"]
    assert deferred.release(10.0) == []


def test_the_sooner_comes_first_whenever_it_was_put_in(deferred):
    deferred.add([b"late"], due=20.0)
    deferred.add([b"soon"], due=10.0)
    assert deferred.next_due() == 10.0
    assert deferred.release(30.0) == [b"soon", b"late"]


def test_what_is_due_at_one_time_comes_in_the_order_it_went_in(deferred):
    deferred.add([b"a", b"b"], due=10.0)
    deferred.add([b"c"], due=10.0)
    deferred.add([b"d"], due=10.0)
    assert deferred.release(10.0) == [b"a", b"b", b"c", b"d"]


def test_nothing_is_due_when_nothing_is_deferred(deferred):
    assert deferred.next_due() == NEVER
    deferred.add([b"a"], due=10.0)
    deferred.release(10.0)
    assert deferred.next_due() == NEVER


def test_sharing_gives_another_the_same_frames_and_keeps_them(deferred):
    batch = [b"a", b"b"]
    deferred.add(batch, due=10.0)
    deferred.add([b"c"], due=5.0)
    others = [Deferred(), Deferred()]
    for other in others:
        deferred.share_with(other)
    for each in (deferred, *others):
        assert len(each) == 3
        assert each.release(5.0) == [b"c"]
        assert each.release(10.0) == [b"a", b"b"]
    assert batch == [b"a", b"b"]


def test_what_was_shared_at_one_time_keeps_its_order(deferred):
    for body in (b"a", b"b", b"c"):
        deferred.add([body], due=10.0)
    other = Deferred()
    other.add([b"before"], due=10.0)
    deferred.share_with(other)
    assert other.release(10.0) == [b"before", b"a", b"b", b"c"]


def test_emptying_says_how_much_it_was(deferred):
    deferred.add([b"a", b"b"], due=10.0)
    assert deferred.empty() == 2
    assert len(deferred) == 0
    assert deferred.next_due() == NEVER
    assert deferred.release(99.0) == []


dues = st.integers(0, 20)


@given(st.lists(st.tuples(dues, st.integers(0, 3))), st.lists(dues).map(sorted))
def test_everything_comes_out_once_at_the_first_release_that_may_have_it(batches, releases):
    deferred = Deferred()
    waiting: list[tuple[int, bytes]] = []
    for number, (due, size) in enumerate(batches):
        frames = [b"%d.%d" % (number, index) for index in range(size)]
        deferred.add(frames, float(due))
        waiting += [(due, frame) for frame in frames]
    waiting.sort(key=lambda each: each[0])  # stable, so equal times keep their order
    for now in releases:
        assert deferred.release(float(now)) == [frame for due, frame in waiting if due <= now]
        waiting = [(due, frame) for due, frame in waiting if due > now]
        assert len(deferred) == len(waiting)
        assert deferred.next_due() > now
