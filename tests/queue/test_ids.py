import struct
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsq_compat.protocol.message import HEADER_SIZE, message_id
from nsq_compat.protocol.schema import UniformBodies
from nsq_compat.queue.ids import EPOCH_TICK, FrameFactory, MessageIds

NOW_NS = 1_700_000_000_000_000_000
TICK_NS = 1 << 20
TICKS_OF_SEQUENCE = 4096

node_ids = st.integers(0, 1023)
clocks = st.integers(-(1 << 63), (1 << 63) - 1)
counts = st.integers(0, 10_000)


def take_ids(factory, count, now_ns):
    """The next ids, each in one piece."""
    return [start + end for start, ends in factory.take_runs(count, now_ns) for end in ends]


def parts(message_id: bytes) -> tuple[int, int, int]:
    """Tick, node id and sequence."""
    number = int(message_id, 16)
    return number >> 22, number >> 12 & 1023, number & 4095


def test_an_id_is_the_tick_the_node_and_the_sequence_in_hex():
    (message_id,) = take_ids(MessageIds(617), 1, NOW_NS)
    expected = ((NOW_NS >> 20) - 1288834974288) << 22 | 617 << 12 | 0
    assert message_id == struct.pack(">q", expected).hex().encode()


@given(node_ids, st.lists(st.integers(0, 1 << 40), min_size=1, max_size=20, unique=True))
@example(1023, [(1 << 14) - 1, 1 << 14, (1 << 14) + 4095, (1 << 14) + 4096, (3 << 14) - 1, (1 << 41) - 1])
def test_an_id_does_not_depend_on_earlier_times(node_id, ticks):
    ids = MessageIds(node_id)
    for tick in sorted(ticks):
        assert parts(ids.take_one((EPOCH_TICK + tick) << 20)) == (tick, node_id, 0)


def test_the_sequence_grows_within_a_tick_and_begins_anew_in_the_next():
    ids = MessageIds(3)
    first = take_ids(ids, 2, NOW_NS) + take_ids(ids, 1, NOW_NS)
    then = take_ids(ids, 2, NOW_NS + TICK_NS)
    assert [parts(each)[2] for each in first + then] == [0, 1, 2, 0, 1]
    assert parts(then[0])[0] == parts(first[0])[0] + 1


def test_a_tick_that_is_used_up_borrows_from_the_next_instead_of_waiting():
    ids = MessageIds(3)
    tick = parts(take_ids(ids, 1, NOW_NS)[0])[0]
    rest = take_ids(ids, TICKS_OF_SEQUENCE, NOW_NS)
    assert parts(rest[-2]) == (tick, 3, 4095)
    assert parts(rest[-1]) == (tick + 1, 3, 0)


def test_ids_that_ran_ahead_wait_for_the_clock_to_catch_up():
    ids = MessageIds(3)
    last = take_ids(ids, 3 * TICKS_OF_SEQUENCE, NOW_NS)[-1]
    (behind,) = take_ids(ids, 1, NOW_NS + TICK_NS)
    (caught_up,) = take_ids(ids, 1, NOW_NS + 3 * TICK_NS)
    assert parts(behind) == (parts(last)[0] + 1, 3, 0)
    assert parts(caught_up) == (parts(last)[0] + 1, 3, 1)


def test_ids_go_on_growing_when_the_clock_jumps_back():
    ids = MessageIds(3)
    (before,) = take_ids(ids, 1, NOW_NS)
    (after,) = take_ids(ids, 1, NOW_NS - 3600 * 10**9)
    assert int(after, 16) == int(before, 16) + 1


def test_a_clock_that_was_far_ahead_for_a_moment_does_not_spoil_the_ids():
    ids = MessageIds(3)
    take_ids(ids, 2, (1 << 63) - 1)
    assert take_ids(ids, 1, NOW_NS) == take_ids(MessageIds(3), 1, NOW_NS)


def test_a_clock_before_the_epoch_of_ids_begins_at_zero():
    assert take_ids(MessageIds(0), 2, 0) == [b"0" * 16, b"0" * 15 + b"1"]


@given(node_ids, st.lists(st.tuples(clocks, counts), max_size=8))
@example(5, [((EPOCH_TICK + (1 << 41) - 1) << 20, 10_000), ((1 << 63) - 1, 2)])
def test_ids_strictly_grow_whatever_the_clock_does(node_id, takes):
    factory = MessageIds(node_id)
    ids = [message_id for now_ns, count in takes for message_id in take_ids(factory, count, now_ns)]
    assert len(ids) == sum(count for _, count in takes)
    assert all(before < after for before, after in pairwise(ids))
    assert all(len(each) == 16 and set(each) <= set(b"0123456789abcdef") for each in ids)
    assert {parts(each)[1] for each in ids} <= {node_id}


@given(node_ids, st.lists(st.tuples(clocks, st.sampled_from([0, 1, 1, 2, 5000])), max_size=20))
def test_a_batch_of_ids_is_the_ids_taken_one_by_one(node_id, takes):
    batch, single = MessageIds(node_id), MessageIds(node_id)
    for now_ns, count in takes:
        assert take_ids(batch, count, now_ns) == [single.take_one(now_ns) for _ in range(count)]


@given(node_ids, node_ids, clocks, clocks, st.integers(1, 5000))
def test_ids_go_on_growing_after_a_restart_whatever_clock_and_node_are_now(before, after, then_ns, now_ns, count):
    old = MessageIds(before)
    ids = take_ids(old, count, then_ns)
    assert old.last >= ids[-1]
    new = MessageIds(after)
    new.start_after(old.last)
    assert take_ids(new, 1, now_ns)[0] > ids[-1]


@pytest.mark.parametrize("count", [1, 2, 200, 5000], ids="{} messages".format)
@pytest.mark.parametrize("size", [4, 200, 5000])
def test_uniform_bodies_become_the_same_frames_as_other_bodies(count, size):
    bodies = [b"%04d" % number * (size // 4) for number in range(count)]
    frames, joined, total = FrameFactory(7).make(UniformBodies(bodies), NOW_NS)
    assert (frames, total) == (FrameFactory(7).make(bodies, NOW_NS)[0], count * size)
    assert joined == (b"".join(frames) if count > 1 else b"")  # a lone one is made as any other
    ids = [message_id(frame) for frame in frames]
    assert ids == sorted(set(ids))


def test_other_bodies_are_counted_and_not_joined():
    frames, joined, total = FrameFactory(0).make([b"a", b"bcd", b""], NOW_NS)
    assert ([len(frame) - HEADER_SIZE for frame in frames], joined, total) == ([1, 3, 0], b"", 4)


def test_ids_grow_from_one_call_to_the_next():
    frames = FrameFactory(0)
    ids = [message_id(frame) for _ in range(3) for frame in frames.make(UniformBodies([b"a", b"b"]), NOW_NS)[0]]
    ids += [message_id(frame) for frame in frames.make([b"c"], NOW_NS)[0]]
    assert ids == sorted(set(ids))
    assert frames.ids.last == ids[-1]
