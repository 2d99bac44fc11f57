from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol import schema
from nsq_compat.protocol.frames import (
    CLOSE_WAIT,
    FRAME_TYPE_ERROR,
    FRAME_TYPE_MESSAGE,
    FRAME_TYPE_RESPONSE,
    HEARTBEAT,
    OK,
    Frame,
    FrameBlock,
    FrameError,
    FrameReader,
    Message,
    error_frame,
    parse_message,
    response_frame,
)
from tests.cuts import cut


@given(st.binary())
def test_a_response_matches_its_declaration(data):
    frame = response_frame(data)
    assert frame == schema.RESPONSE_FRAME.build({"data": data})
    assert schema.FRAME.parse(frame).type == FRAME_TYPE_RESPONSE


@given(st.binary())
def test_an_error_matches_its_declaration(data):
    frame = error_frame(data)
    assert frame == schema.ERROR_FRAME.build({"data": data})
    assert schema.FRAME.parse(frame).type == FRAME_TYPE_ERROR


def test_a_message_frame_has_the_declared_type():
    frame = schema.MESSAGE_FRAME.build({"timestamp_ns": 0, "attempts": 1, "id": b"0" * 16, "body": b""})
    assert schema.FRAME.parse(frame).type == FRAME_TYPE_MESSAGE


@pytest.mark.parametrize(("frame", "data"), [(OK, b"OK"), (HEARTBEAT, b"_heartbeat_"), (CLOSE_WAIT, b"CLOSE_WAIT")])
def test_the_prebuilt_frames_contain_nsqs_words(frame, data):
    assert schema.RESPONSE_FRAME.parse(frame).data == data


FRAMES = st.lists(st.builds(Frame, st.integers(-3, 3), st.binary(max_size=40)), max_size=8)


def read(pieces, max_frame_size=1000):
    """The frames in the pieces, and the error, if any."""
    reader = FrameReader(max_frame_size)
    frames: list[Frame] = []
    try:
        for piece in pieces:
            frames.extend(reader.receive_data(piece))
    except FrameError as error:
        return frames, str(error)
    return frames, reader.hand_back()


@given(FRAMES, st.binary(max_size=7), st.lists(st.integers(0, 400)))
def test_frames_do_not_depend_on_how_the_input_is_split(frames, rest, points):
    wire = b"".join(schema.FRAME.build({"type": frame.type, "data": frame.data}) for frame in frames) + rest
    assert read(cut(wire, points)) == (frames, rest)


@given(st.binary(max_size=60) | st.binary(max_size=20).map(lambda data: OK + b"\0\0\0" + data))
def test_any_bytes_lead_to_frames_or_a_frame_error_however_split(data):
    assert read([data]) == read([data[index : index + 1] for index in range(len(data))])


def frames_in(block: FrameBlock) -> list[bytes]:
    return [block.data[begin:stop] for begin, stop in pairwise(block.starts)]


def read_blocks(pieces, max_frame_size=1000):
    """Like `read`, with blocks of frames; messages have complete headers."""
    reader = FrameReader(max_frame_size)
    frames: list[Frame] = []
    try:
        for piece in pieces:
            block = reader.receive_block(piece)
            others = dict(block.others)
            for number, data in enumerate(frames_in(block)):
                frames.append(others.get(number, Frame(data[7], data[8:])))
    except FrameError as error:
        return frames, str(error)
    return frames, reader.hand_back()


@given(FRAMES, st.binary(max_size=7), st.lists(st.integers(0, 400)))
def test_blocks_have_the_same_frames_however_the_input_is_split(frames, rest, points):
    whole = [frame._replace(data=bytes(26) + frame.data) if frame.type in (2, 3) else frame for frame in frames]
    wire = b"".join(schema.FRAME.build({"type": frame.type, "data": frame.data}) for frame in whole) + rest
    assert read_blocks(cut(wire, points)) == (whole, rest)


# Typical input: many messages of one size, and sometimes another frame.
RUNS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 200)), max_size=5)


@given(RUNS, st.sampled_from([b"", HEARTBEAT]), st.binary(max_size=7), st.lists(st.integers(0, 20_000), max_size=4))
def test_messages_of_one_size_are_detected_however_the_input_is_split(runs, between, rest, points):
    wire, expected = b"", list[bytes]()
    for size, count in runs:
        frames = [schema.FRAME.build({"type": 2, "data": b"%026d" % number + bytes(size)}) for number in range(count)]
        expected += [*frames, *([between] if between else [])]
        wire += b"".join(frames) + between
    reader, found = FrameReader(), list[bytes]()
    for piece in cut(wire + rest, points):
        block = reader.receive_block(piece)
        others = {number for number, _ in block.others}
        assert [number in others for number in range(len(block.starts) - 1)] == [
            frame == HEARTBEAT for frame in frames_in(block)
        ]
        found += frames_in(block)
    assert (found, reader.hand_back()) == (expected, rest)


def test_the_starts_of_messages_of_one_size_are_a_range():
    frame = schema.FRAME.build({"type": 2, "data": bytes(100)})
    assert FrameReader().receive_block(frame * 1000 + frame[:50]).starts == range(0, 108_001, 108)
    assert FrameReader().receive_block(frame * 3 + HEARTBEAT + frame).starts == [0, 108, 216, 324, 343, 451]


@given(st.binary(max_size=60) | st.binary(max_size=20).map(lambda data: OK + b"\0\0\0" + data))
def test_any_bytes_lead_to_blocks_or_the_same_frame_error_however_split(data):
    frames, end = read_blocks([data[index : index + 1] for index in range(len(data))])
    # Frames in the same piece as an invalid frame are lost, and so is the connection.
    assert read_blocks([data]) == (([], end) if isinstance(end, str) else (frames, end))


@pytest.mark.parametrize("size", [3, 1001, 4 + 25])
def test_a_block_with_an_invalid_size_raises_in_every_call(size):
    reader = FrameReader(max_frame_size=1000)
    wrong = schema.FRAME_HEADER.build({"size": size, "type": 2}) + bytes(30)
    for data in (OK + wrong, b"more"):
        with pytest.raises(FrameError):
            reader.receive_block(data)


@pytest.mark.parametrize("size", [-(1 << 31), -1, 0, 3, 1001, (1 << 31) - 1])
def test_an_invalid_size_is_refused_after_the_frames_before_it(size):
    reader = FrameReader(max_frame_size=1000)
    frames = reader.receive_data(OK + schema.FRAME_HEADER.build({"size": size, "type": 0}))
    assert next(frames) == (0, b"OK")
    with pytest.raises(FrameError):
        next(frames)
    with pytest.raises(FrameError):
        list(reader.receive_data(b"more"))


def test_the_largest_allowed_frame_is_read():
    data = bytes(996)
    assert read([response_frame(data)], max_frame_size=1000)[0] == [(0, data)]


def test_the_bytes_after_the_last_frame_can_be_handed_back():
    reader = FrameReader()
    for frame in reader.receive_data(OK + HEARTBEAT + b"\x16\x03\x01"):
        assert frame.data == b"OK"
        assert reader.hand_back() == HEARTBEAT + b"\x16\x03\x01"
        break


def test_frames_not_iterated_over_come_with_the_next_bytes():
    reader = FrameReader()
    assert next(reader.receive_data(OK + HEARTBEAT)).data == b"OK"
    assert [frame.data for frame in reader.receive_data(error_frame(b"E_X"))] == [b"_heartbeat_", b"E_X"]


@given(st.integers(0, 2**63 - 1), st.integers(0, 65535), st.binary(min_size=16, max_size=16), st.binary())
def test_a_message_is_parsed_as_declared(timestamp_ns, attempts, message_id, body):
    values = {"timestamp_ns": timestamp_ns, "attempts": attempts, "id": message_id, "body": body}
    assert parse_message(schema.MESSAGE.build(values)) == Message(**values)


@given(st.binary(max_size=25))
def test_a_message_shorter_than_its_header_is_refused(data):
    with pytest.raises(FrameError):
        parse_message(data)
