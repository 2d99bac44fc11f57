"""Names, positions and messages of Go's queue files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.godata.format import (
    GoMessage,
    Positions,
    QueueFiles,
    data_name,
    decode_positions,
    encode_record,
    frame_of,
    message_of,
    positions_name,
    queue_name,
    queues_among,
)
from nsq_compat.protocol import message, storage_schema

messages = st.builds(
    GoMessage,
    st.integers(0, (1 << 63) - 1),
    st.integers(0, 0xFFFF),
    st.binary(min_size=16, max_size=16),
    st.binary(max_size=50),
)


def test_positions_are_depth_reading_and_writing():
    assert decode_positions(b"3\n7,0\n7,93\n") == Positions(3, 7, 0, 7, 93)
    assert Positions(3, 7, 0, 7, 93).encode() == b"3\n7,0\n7,93\n"


def test_a_wrong_depth_may_be_negative():
    assert decode_positions(b"-2\n0,0\n0,0\n") == Positions(-2, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "data",
    [b"", b"3", b"3\n7,0\n", b"3\n7,0\n7\n", b"x\n0,0\n0,0\n", b"0\n-1,0\n0,0\n", b"0\n0,0\n0,0\n0", b"\0" * 12,
     b"0\n0,0\n0," + b"9" * 40 + b"\n", "٣\n0,0\n0,0\n".encode()],
)  # fmt: skip
def test_other_contents_are_not_positions(data):
    assert decode_positions(data) is None


@given(st.binary(max_size=40))
def test_any_bytes_are_decoded_or_rejected(data):
    positions = decode_positions(data)
    assert positions is None or min(positions[1:]) >= 0


def test_files_are_sorted_into_queues():
    found = queues_among(
        [
            "nsqd.dat", "t.diskqueue.meta.dat", "t.diskqueue.000010.dat", "t.diskqueue.000009.dat",
            "t:c.diskqueue.meta.dat", "t.diskqueue.000003.dat.bad", "t.diskqueue.meta.dat.123.tmp",
            "a.diskqueue.1234567.dat", "a.diskqueue.12.dat", "a.diskqueue.0000007.dat", "nsq_compat",
        ]
    )  # fmt: skip
    assert list(found) == ["a", "t", "t:c"]
    assert found["t"].live == ["t.diskqueue.meta.dat", "t.diskqueue.000009.dat", "t.diskqueue.000010.dat"]
    assert found["t"].bad == {3: "t.diskqueue.000003.dat.bad"}
    assert found["a"].live == ["a.diskqueue.1234567.dat"]


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("t", ("t", None)),
        ("t:c", ("t", "c")),
        ("a.b#ephemeral:c", ("a.b#ephemeral", "c")),
        ("t:", None),
        (":c", None),
        ("a b", None),
        ("t:c:d", None),
    ],
)
def test_a_queue_belongs_to_a_topic_or_a_channel(name, owner):
    assert QueueFiles(name).owner == owner


def test_file_names_are_those_of_go():
    assert queue_name("t", None) == "t"
    assert queue_name("t", "c") == "t:c"
    assert positions_name("t:c") == "t:c.diskqueue.meta.dat"
    assert data_name("t", 7) == "t.diskqueue.000007.dat"
    assert data_name("t", 1234567) == "t.diskqueue.1234567.dat"


@given(messages)
def test_a_record_matches_the_declaration(stored):
    assert encode_record(stored) == storage_schema.GO_RECORD.build(stored._asdict())


def test_a_frame_is_meant_for_the_next_delivery():
    frame = frame_of(GoMessage(5, 0, b"0123456789abcdef", b"body"))
    assert (message.attempts(frame), message.timestamp_ns(frame)) == (1, 5)
    assert (message.message_id(frame), message.body(frame)) == (b"0123456789abcdef", b"body")


@given(messages)
def test_a_message_survives_conversion_to_a_frame(stored):
    assert message_of(frame_of(stored)) == stored
