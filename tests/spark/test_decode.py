"""Decoding frames to columns and encoding FINs give the same result as message by message."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol import command_writer
from nsq_compat.protocol.frames import Message
from nsq_compat.protocol.headers import Headers
from nsq_compat.session.client_session import ReceivedFrames
from pyspark_nsq.decode import InvalidMessage, decode, finish
from tests.spark.frames import frames_of

IDS = st.binary(min_size=16, max_size=16).map(lambda data: bytes(byte & 0x7F for byte in data))
NO_HEADERS: st.SearchStrategy[Headers] = st.just({})
MESSAGES = st.builds(
    Message, st.integers(-(1 << 63), (1 << 63) - 1), st.integers(0, 65535), IDS, st.binary(max_size=300), NO_HEADERS
)


def rows(blocks: list[ReceivedFrames]) -> list[tuple[object, ...]]:
    batch = decode(blocks)
    batch.validate(full=True)
    return [tuple(row.values()) for row in batch.to_pylist()]


def fields(messages: list[Message]) -> list[tuple[object, ...]]:
    return [(each.id.decode(), each.body, each.timestamp_ns, each.attempts) for each in messages]


def shifted(places: Sequence[int], by: int) -> Sequence[int]:
    if isinstance(places, range):
        return range(places.start + by, places.stop + by, places.step)
    return [each + by for each in places]


@given(st.lists(MESSAGES, min_size=1, max_size=20), st.binary(max_size=9), st.binary(max_size=9))
def test_columns_equal_the_messages_whatever_bytes_surround_them(messages, before, after):
    data, starts = frames_of(messages)
    assert rows([ReceivedFrames(before + data + after, [len(before) + start for start in starts])]) == fields(messages)


HEADERS = st.dictionaries(st.text("abc-", min_size=1, max_size=3), st.text("xyzä", max_size=4), max_size=3)


@given(st.lists(st.builds(lambda message, headers: message._replace(headers=headers), MESSAGES, HEADERS), min_size=1))
def test_headers_are_a_column_and_no_part_of_the_body(messages):
    batch = decode([ReceivedFrames(*frames_of(messages))])
    batch.validate(full=True)
    assert [row[:4] for row in rows([ReceivedFrames(*frames_of(messages))])] == fields(messages)
    if any(message.headers for message in messages):
        assert [dict(each or ()) for each in batch.column("headers").to_pylist()] == [each.headers for each in messages]
    else:
        assert "headers" not in batch.schema.names


# Blocks as a frame reader returns them: message offsets are a range if all sizes are equal, and a list otherwise.
UNIFORM = st.integers(0, 300).flatmap(
    lambda size: st.lists(
        st.builds(
            Message,
            st.integers(0, 1 << 62),
            st.integers(0, 9),
            IDS,
            st.binary(min_size=size, max_size=size),
            NO_HEADERS,
        ),
        min_size=1,
        max_size=5,
    )
)


@given(
    st.lists(
        UNIFORM.map(lambda each: (each, True)) | st.tuples(st.lists(MESSAGES, min_size=1), st.just(False)),
        min_size=1,
    )
)
def test_blocks_of_uniform_and_mixed_message_sizes_are_decoded_together(blocks):
    together, expected = list[ReceivedFrames](), list[tuple[object, ...]]()
    for messages, alike in blocks:
        data, starts = frames_of(messages)
        around = b"\xff" * len(together)  # so that each block starts at another offset
        places = range(0, starts[-1] + 1, starts[1]) if alike else starts
        together.append(ReceivedFrames(around + data + around, shifted(places, len(around))))
        expected += fields(messages)
    assert rows(together) == expected


@given(UNIFORM, st.integers(1, 3))
def test_blocks_of_one_message_size_are_decoded_together(messages, times):
    data, starts = frames_of(messages)
    block = ReceivedFrames(b"before" + data, shifted(range(0, starts[-1] + 1, starts[1]), 6))
    assert rows([block] * times) == fields(messages) * times


@given(st.lists(IDS.map(bytes.decode), min_size=1, max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_fins_are_encoded_for_any_slice_of_ids(ids, begin, end):
    messages = [Message(1, 1, each.encode(), b"") for each in ids]
    column = decode([ReceivedFrames(*frames_of(messages))]).column("id")
    assert finish(column[begin : max(begin, end)]) == command_writer.finish(each.encode() for each in ids[begin:end])


def test_a_message_id_that_is_not_ascii_is_refused():
    with pytest.raises(InvalidMessage):
        decode([ReceivedFrames(*frames_of([Message(1, 1, b"\xff" * 16, b"")]))])


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\1", b"\0\x1f", b"\0\1\0"])
@pytest.mark.parametrize("following", [b"", frames_of([Message(1, 1, b"0" * 16, b"body")])[0]])
def test_headers_that_reach_into_the_next_message_are_refused(payload, following):
    """Of such offsets, Arrow would make arrays with bodies of a negative size."""
    data = b"".join([(30 + len(payload)).to_bytes(4, "big"), b"\0\0\0\3", bytes(10), b"1" * 16, payload, following])
    starts = [0, 34 + len(payload), *([len(data)] if following else [])]
    with pytest.raises(InvalidMessage, match="invalid headers"):
        decode([ReceivedFrames(data, starts)])
