"""A checkpoint is decoded as it was encoded, and anything but a complete checkpoint is rejected."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.log.checkpoint import (
    ENTRY,
    HEADER,
    BadCheckpoint,
    ChannelState,
    Encoding,
    TopicState,
    decode,
    entry_id,
    immediate_entries,
    is_immediate,
    pack_key,
)
from nsq_compat.log.segment import NOWHERE, location_of, place_of
from nsq_compat.log.topic_log import LogEnd
from nsq_compat.protocol import storage_schema

numbers = st.integers(0, (1 << 64) - 1)
ids = st.integers(0, (1 << 64) - 1).map(lambda number: b"%016x" % number)
locations = st.just(NOWHERE) | st.builds(location_of, st.integers(1, (1 << 64) - 1), st.binary(max_size=3))
entries = st.builds(pack_key, st.floats(0, 1e12), numbers, ids, st.integers(0, 65535), locations)
states = st.builds(
    ChannelState, numbers, st.lists(entries, max_size=5), st.lists(st.tuples(numbers, numbers), max_size=3)
)
names = st.text(st.sampled_from("abcXYZ.-_019"), min_size=1, max_size=64)
checkpoints = st.builds(
    TopicState,
    st.builds(LogEnd, st.integers(0, 1 << 62), st.integers(0, 1 << 62), numbers),
    st.floats(allow_nan=False, allow_infinity=False),
    ids,
    st.dictionaries(names, states, max_size=4),
    st.none() | states,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1 << 62),
)
LOCATED = pack_key(7.5, 3, b"%016x" % 6, 1, location_of(place_of(1, 300), b"frame"))
SMALL = TopicState(
    LogEnd(1, 400, 9),
    1.5,
    b"%016x" % 77,
    {"c": ChannelState(3, [*immediate_entries([(b"%016x" % 5, 2)]), LOCATED], [(4, 6)])},
    paused=True,
    emptied_at=8,
)


@given(checkpoints)
def test_decoding_reverses_encoding(checkpoint):
    assert decode(checkpoint.encode()) == checkpoint


def test_the_encoding_matches_the_declaration():
    parsed = storage_schema.CHECKPOINT.parse(SMALL.encode())
    assert (parsed.header.log_offset, parsed.header.held_back, parsed.states[0].name) == (400, 1, b"c")
    assert parsed.states[0].gaps[0].end == 6
    assert storage_schema.CHECKPOINT.build(parsed) == SMALL.encode()


def test_an_older_version_reads_a_checkpoint_without_the_locations():
    state = SMALL.channels["c"]
    plain = replace(
        SMALL, emptied_at=0, channels={"c": replace(state, entries=[key[: ENTRY.size] for key in state.entries])}
    )
    content, plain_content = SMALL.encode()[HEADER.size :], plain.encode()[HEADER.size :]
    assert content.startswith(plain_content + storage_schema.LOCATIONS_MAGIC)
    assert decode(plain.encode()) == plain


def test_the_locations_match_the_declaration():
    parsed = storage_schema.CHECKPOINT.parse(SMALL.encode())
    assert [location.place for location in parsed.locations.locations[0]] == [0, place_of(1, 300)]
    assert parsed.emptied.offset == 8
    without = TopicState(LogEnd(1, 400, 9), 1.5, b"%016x" % 77, {"c": ChannelState(3)})
    parsed = storage_schema.CHECKPOINT.parse(without.encode())
    assert (parsed.locations, parsed.replays, parsed.emptied) == (None, None, None)


def test_many_entries_are_encoded_in_steps():
    keys = [pack_key(float(number), number, b"%016x" % number, 1) for number in range(20_000)]
    checkpoint = TopicState(LogEnd(1, 400, 9), 1.5, b"%016x" % 77, {"c": ChannelState(3, keys)})
    encoding = Encoding(checkpoint)
    steps = 0
    while encoding.step():
        steps += 1
    assert steps >= 4
    assert b"".join(encoding.finish()) == checkpoint.encode()
    assert decode(checkpoint.encode()) == checkpoint


@pytest.mark.parametrize("offset", range(len(SMALL.encode())))
def test_a_flipped_bit_is_detected(offset):
    data = bytearray(SMALL.encode())
    data[offset] ^= 1 << (offset % 8)
    with pytest.raises(BadCheckpoint):
        decode(bytes(data))


def test_another_version_is_not_taken_for_this_one():
    with pytest.raises(BadCheckpoint, match="NQC1"):
        decode(b"NQC2" + SMALL.encode()[4:])


def test_an_invalid_name_of_a_channel_is_refused():
    forged = replace(SMALL, channels={"a\nUNREGISTER t c": ChannelState(0)}).encode()
    with pytest.raises(BadCheckpoint, match=r'"a\\nUNREGISTER t c" is no name of a channel'):
        decode(forged)


@pytest.mark.parametrize("size", range(len(SMALL.encode())))
def test_a_truncated_checkpoint_is_detected(size):
    with pytest.raises(BadCheckpoint):
        decode(SMALL.encode()[:size])


@given(st.binary(max_size=300))
def test_garbage_is_detected(data):
    with pytest.raises(BadCheckpoint):
        decode(data)


def test_entries_are_due_at_once_or_deferred():
    soon = ENTRY.pack(5.0, 1, b"%016x" % 1, 4)
    at_once = immediate_entries([(b"%016x" % 9, 2), (b"%016x" % 3, 1)])
    state = ChannelState(0, [soon, *reversed(at_once)])
    assert [is_immediate(key) for key in state.entries] == [False, True, True]
    assert state.immediate() == [(b"%016x" % 9, 2), (b"%016x" % 3, 1)]
    assert state.take_deferred() == [soon]
    assert state.entries == []
    assert entry_id(soon) == b"%016x" % 1


def test_skipping_moves_the_position_or_makes_a_gap():
    ahead, behind = ChannelState(5), ChannelState(3)
    for state in (ahead, behind):
        state.skip([(5, 8)])
        state.skip([(9, 9)])
    assert (ahead.position, ahead.gaps) == (8, [])
    assert (behind.position, behind.gaps) == (3, [(5, 8)])
    behind.skip([(2, 4)])
    behind.skip([(7, 10)])
    assert (behind.position, behind.gaps) == (4, [(5, 10)])
    behind.skip([(4, 5)])
    assert (behind.position, behind.gaps) == (10, [])


@given(st.integers(0, 5), st.lists(st.integers(6, 30), unique=True))
def test_just_the_skipped_messages_are_left_out(position, numbers):
    place = ChannelState(position, gaps=[(31, 33)])
    place.skip((seq, seq + 1) for seq in numbers)
    read = set(range(place.position, 40)).difference(*(range(*gap) for gap in place.gaps))
    assert read == set(range(position, 40)) - set(numbers) - {31, 32}
    assert place.gaps == sorted(place.gaps)
    assert all(begin > place.position for begin, _ in place.gaps)
