import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol import message, schema
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
    for frame, (message_id, body) in zip(frames, contents, strict=True):
        declared = {"type": 2, "timestamp_ns": timestamp_ns, "attempts": 1, "id": message_id, "body": body}
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
