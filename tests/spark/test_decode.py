"""Frames to columns, and ids to FIN: the same as message by message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol import command_writer
from nsq_compat.protocol.frame_reader import Message
from pyspark_nsq.decode import NotText, decode, finish
from tests.spark.frames import frames_of

IDS = st.binary(min_size=16, max_size=16).map(lambda data: bytes(byte & 0x7F for byte in data))
MESSAGES = st.builds(
    Message, st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 65535), IDS, st.binary(max_size=300)
)


@given(st.lists(MESSAGES, min_size=1, max_size=20), st.binary(max_size=9), st.binary(max_size=9))
def test_columns_are_what_the_messages_say_whatever_lies_around_them(messages, before, after):
    data, starts = frames_of(messages)
    batch = decode(before + data + after, [len(before) + start for start in starts])
    batch.validate(full=True)
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        (each.id.decode(), each.body, each.timestamp_ns, each.attempts) for each in messages
    ]


@given(st.lists(IDS.map(bytes.decode), min_size=1, max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_fins_are_written_for_all_ids_or_some(ids, begin, end):
    messages = [Message(1, 1, each.encode(), b"") for each in ids]
    column = decode(*frames_of(messages)).column("id")
    assert finish(column[begin : max(begin, end)]) == command_writer.finish(each.encode() for each in ids[begin:end])


def test_an_id_that_is_no_text_is_refused():
    with pytest.raises(NotText):
        decode(*frames_of([Message(1, 1, b"\xff" * 16, b"")]))
