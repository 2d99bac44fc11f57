import struct
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsq_compat.protocol import message, schema
from nsq_compat.protocol.message import (
    EPOCH_TICK,
    HEADER_SIZE,
    MAX_LEAD_NS,
    TICK_SHIFT,
    FrameFactory,
    MessageIds,
    message_id,
    publish_tick,
    tick_of,
)
from nsq_compat.protocol.schema import UniformBodies

ID = b"0123456789abcdef"
FRAME = b"\0\0\0\x23\0\0\0\2\0\0\0\0\0\0\x01\0\0\1" + ID + b"hello"

ids = st.binary(min_size=16, max_size=16)
timestamps = st.integers(-(1 << 63), (1 << 63) - 1)
bodies = st.binary(max_size=40)
attempts = st.integers(0, 0xFFFF)


def test_a_frame_is_the_bytes_of_the_wire():
    assert message.make_frames([ID], 256, [b"hello"]) == (FRAME,)


def test_the_fields_of_a_frame():
    assert message.message_id(FRAME) == ID
    assert message.attempts(FRAME) == 1
    assert message.timestamp_ns(FRAME) == 256
    assert message.body(FRAME) == b"hello"


@given(timestamps, st.lists(st.tuples(ids, bodies)))
def test_frames_match_the_declaration(timestamp_ns, contents):
    frames = message.make_frames([each for each, _ in contents], timestamp_ns, [body for _, body in contents])
    assert len(frames) == len(contents)
    for frame, (given_id, body) in zip(frames, contents, strict=True):
        declared = {"type": 2, "timestamp_ns": timestamp_ns, "attempts": 1, "id": given_id, "body": body}
        assert frame == schema.MESSAGE_FRAME.build(declared)


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 70_000])
def test_a_frame_is_the_same_made_alone_or_with_others_of_any_size(length):
    contents = [b"small", b"x" * length, b"smaller"]
    alone = [frame for body in contents for frame in message.make_frames([ID], 256, [body])]
    assert message.make_frames([ID] * 3, 256, contents) == tuple(alone)


@given(timestamps, st.integers(1, 300), st.integers(0, 5000), st.binary(max_size=16))
def test_frames_of_uniform_bodies_are_the_same_joined_and_split(timestamp_ns, count, size, start):
    bodies = [bytes([number & 0xFF]) * size for number in range(count)]
    ends = [b"%016d" % number for number in range(count)]
    ends = [end[len(start) :] for end in ends]
    frames = message.make_frames(ends, timestamp_ns, bodies, start)
    joined = message.join_uniform(ends, timestamp_ns, UniformBodies(bodies), start)
    assert joined == b"".join(frames)
    assert message.cut_uniform(b"before" + joined + b"behind", len(frames[0]), 6, count) == frames


@given(timestamps, attempts, ids, bodies)
def test_the_fields_of_a_frame_match_the_declaration(timestamp_ns, number, message_id, body):
    frame = schema.MESSAGE_FRAME.build(
        {"type": 2, "timestamp_ns": timestamp_ns, "attempts": number, "id": message_id, "body": body}
    )
    parsed = schema.MESSAGE_FRAME.parse(frame)
    assert message.timestamp_ns(frame) == parsed.timestamp_ns
    assert message.attempts(frame) == parsed.attempts
    assert message.message_id(frame) == parsed.id
    assert message.message_ids([frame, frame]) == [parsed.id, parsed.id]
    assert message.body(frame) == parsed.body
    assert message.raw_timestamps([frame]) == [struct.pack(">q", parsed.timestamp_ns)]


def next_attempt(frame: bytes) -> bytes:
    (again,) = message.next_attempts([frame])
    return again


@given(timestamps, attempts, ids, bodies)
def test_the_next_attempt_differs_only_in_its_number(timestamp_ns, number, message_id, body):
    fields = {"type": 2, "timestamp_ns": timestamp_ns, "id": message_id, "body": body}
    frame = schema.MESSAGE_FRAME.build({**fields, "attempts": number})
    again = schema.MESSAGE_FRAME.build({**fields, "attempts": (number + 1) % 65536})
    assert next_attempt(frame) == again
    assert message.next_attempts([frame, again]) == [again, next_attempt(again)]


def test_the_number_of_attempts_wraps_around():
    frame = FRAME
    for _ in range(65535):
        frame = next_attempt(frame)
    assert message.attempts(frame) == 0
    assert next_attempt(frame) == FRAME


def test_the_next_attempt_does_not_change_the_shared_frame():
    shared = bytes(FRAME)
    assert message.attempts(next_attempt(shared)) == 2
    assert shared == FRAME


def test_a_frame_can_have_any_attempt_number():
    assert message.attempts(message.with_attempts(FRAME, 7)) == 7
    assert message.with_attempts(message.with_attempts(FRAME, 7), 1) == FRAME


def test_no_bodies_make_no_frames():
    assert message.make_frames([], 0, []) == ()
    assert message.message_ids([]) == message.next_attempts([]) == []


def test_each_body_needs_its_own_id():
    with pytest.raises(ValueError, match="an id of its own"):
        message.make_frames([ID, ID], 0, [b"one"])
    with pytest.raises(ValueError, match="an id of its own"):
        message.join_uniform([ID, ID], 0, UniformBodies([b"one"]))


def test_a_timestamp_beyond_64_bits_is_refused():
    with pytest.raises(struct.error):
        message.make_frames([ID], 1 << 63, [b"body"])


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


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5000), st.integers(0, 600)), min_size=1))
def test_ids_are_ahead_of_the_times_of_later_messages_by_two_minutes_at_most(takes):
    ids = MessageIds(7)
    times: dict[bytes, int] = {}
    for is_large, count, seconds in takes:
        now_ns = NOW_NS + seconds * 10**9
        if is_large:
            first = ids.ahead(now_ns + 60 * 10**9, count)
            runs = ids.runs_from(first, count)
            ids.skip_to(first + count, now_ns)
        else:
            runs = ids.take_runs(count, now_ns) if count > 1 else [(ids.take_one(now_ns), [b""])]
        times |= {start + end: now_ns for start, ends in runs for end in ends}
    later = {message_id: now_ns for message_id, now_ns in times.items() if message_id > ids.early}
    assert all(publish_tick(each) - tick_of(now_ns) <= MAX_LEAD_NS >> TICK_SHIFT for each, now_ns in later.items())
    # Nothing is left out without need.
    if all(one[2] <= other[2] for one, other in pairwise(takes)):
        assert len(later) == len(times)


@given(node_ids, st.lists(st.tuples(clocks, st.sampled_from([1, 1, 2, 5000])), max_size=8))
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
