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
    error_frame,
    response_frame,
)


@given(st.binary())
def test_a_response_is_the_frame_that_was_declared(data):
    frame = response_frame(data)
    assert frame == schema.RESPONSE_FRAME.build({"data": data})
    assert schema.FRAME.parse(frame).type == FRAME_TYPE_RESPONSE


@given(st.binary())
def test_an_error_is_the_frame_that_was_declared(data):
    frame = error_frame(data)
    assert frame == schema.ERROR_FRAME.build({"data": data})
    assert schema.FRAME.parse(frame).type == FRAME_TYPE_ERROR


def test_a_message_has_the_type_that_was_declared():
    frame = schema.MESSAGE_FRAME.build({"timestamp_ns": 0, "attempts": 1, "id": b"0" * 16, "body": b""})
    assert schema.FRAME.parse(frame).type == FRAME_TYPE_MESSAGE


@pytest.mark.parametrize(("frame", "data"), [(OK, b"OK"), (HEARTBEAT, b"_heartbeat_"), (CLOSE_WAIT, b"CLOSE_WAIT")])
def test_the_prebuilt_frames_hold_nsqs_words(frame, data):
    assert schema.RESPONSE_FRAME.parse(frame).data == data
