from nsq_compat.queue.cursor import Cursor
from nsq_compat.queue.deferred import Deferred
from nsq_compat.queue.held import Held


def held() -> Held:
    return Held(Cursor(None, 100), Deferred())


def test_what_is_held_counts_whether_it_waits_is_deferred_or_is_known_by_its_id(make_frames):
    some = held()
    some.cursor.extend(make_frames(b"a", b"b"))
    some.deferred.add(make_frames(b"c", first=2), 5.0)
    some.restored = [(b"%016x" % 9, 1)]
    assert len(some) == 4
    some.empty()
    assert len(some) == 0


def test_a_place_brings_back_what_was_given_up_to_it(make_frames):
    before, after = held(), held()
    before.cursor.extend(make_frames(b"a", b"b"))
    before.deferred.add(make_frames(b"c", first=2), 5.0)
    before.surrender_memory()
    assert [number for number, _ in before.restored] == [b"%016x" % number for number in range(2)]
    after.restore(before.state(), 2, shift=0.0)
    assert after.restored == before.restored
    assert after.deferred.next_due() == 5.0
    assert len(after) == len(before) == 3


def test_what_is_in_memory_is_named_for_when_memory_ends(make_frames):
    some = held()
    frames = make_frames(b"a", b"b")
    some.cursor.extend(frames[:1])
    some.deferred.add(frames[1:], 5.0)
    assert dict(some.frames_in_memory()) == {b"%016x" % number: frame for number, frame in enumerate(frames)}
