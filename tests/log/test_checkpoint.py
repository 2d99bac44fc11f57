"""A checkpoint survives encoding, and nothing but a whole checkpoint is taken for one."""

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
    entries_at_once,
    entry_id,
    is_at_once,
    pack_key,
)
from nsq_compat.log.group import NOWHERE, location_of, place_of
from nsq_compat.log.topic_log import LogEnd
from nsq_compat.protocol import storage_schema

numbers = st.integers(0, (1 << 64) - 1)
ids = st.integers(0, (1 << 64) - 1).map(lambda number: b"%016x" % number)
locations = st.just(NOWHERE) | st.builds(location_of, st.integers(1, (1 << 64) - 1), st.binary(max_size=3))
entries = st.builds(pack_key, st.floats(0, 1e12), numbers, ids, st.integers(0, 65535), locations)
places = st.builds(
    ChannelState, numbers, st.lists(entries, max_size=5), st.lists(st.tuples(numbers, numbers), max_size=3)
)
names = st.text(st.sampled_from("abcXYZ.-_019"), min_size=1, max_size=64)
checkpoints = st.builds(
    TopicState,
    st.builds(LogEnd, st.integers(0, 1 << 62), st.integers(0, 1 << 62), numbers),
    st.floats(allow_nan=False, allow_infinity=False),
    ids,
    st.dictionaries(names, places, max_size=4),
    st.none() | places,
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
LOCATED = pack_key(7.5, 3, b"%016x" % 6, 1, location_of(place_of(1, 300), b"frame"))
SMALL = TopicState(
    LogEnd(1, 400, 9),
    1.5,
    b"%016x" % 77,
    {"c": ChannelState(3, [*entries_at_once([(b"%016x" % 5, 2)]), LOCATED], [(4, 6)])},
    paused=True,
)


@given(checkpoints)
def test_what_is_decoded_is_what_was_encoded(checkpoint):
    assert decode(checkpoint.encode()) == checkpoint


def test_the_bytes_are_those_of_the_declaration():
    parsed = storage_schema.CHECKPOINT.parse(SMALL.encode())
    assert (parsed.header.log_offset, parsed.header.held_back, parsed.states[0].name) == (400, 1, b"c")
    assert parsed.states[0].gaps[0].end == 6
    assert storage_schema.CHECKPOINT.build(parsed) == SMALL.encode()


def test_an_older_version_finds_what_it_reads_before_the_locations():
    place = SMALL.channels["c"]
    plain = replace(SMALL, channels={"c": replace(place, entries=[key[: ENTRY.size] for key in place.entries])})
    content, plain_content = SMALL.encode()[HEADER.size :], plain.encode()[HEADER.size :]
    assert content.startswith(plain_content + storage_schema.LOCATIONS_MAGIC)
    assert decode(plain.encode()) == plain


def test_locations_are_those_of_the_declaration():
    parsed = storage_schema.CHECKPOINT.parse(SMALL.encode())
    assert [location.place for location in parsed.locations.locations[0]] == [0, place_of(1, 300)]
    without = TopicState(LogEnd(1, 400, 9), 1.5, b"%016x" % 77, {"c": ChannelState(3)})
    assert storage_schema.CHECKPOINT.parse(without.encode()).locations is None


def test_many_entries_are_encoded_a_step_at_a_time():
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
def test_a_flipped_bit_anywhere_is_noticed(offset):
    data = bytearray(SMALL.encode())
    data[offset] ^= 1 << (offset % 8)
    with pytest.raises(BadCheckpoint):
        decode(bytes(data))


@pytest.mark.parametrize("size", range(len(SMALL.encode())))
def test_a_checkpoint_that_is_cut_short_is_noticed(size):
    with pytest.raises(BadCheckpoint):
        decode(SMALL.encode()[:size])


@given(st.binary(max_size=300))
def test_garbage_is_noticed(data):
    with pytest.raises(BadCheckpoint):
        decode(data)


def test_entries_are_told_apart_by_their_due_times():
    soon = ENTRY.pack(5.0, 1, b"%016x" % 1, 4)
    at_once = entries_at_once([(b"%016x" % 9, 2), (b"%016x" % 3, 1)])
    place = ChannelState(0, [soon, *reversed(at_once)])
    assert place.at_once() == [(b"%016x" % 9, 2), (b"%016x" % 3, 1)]
    assert place.deferred() == [soon]
    assert [is_at_once(key) for key in place.entries] == [False, True, True]
    assert entry_id(soon) == b"%016x" % 1


def test_passing_over_moves_who_has_all_and_makes_a_gap_for_who_is_behind():
    ahead, behind = ChannelState(5), ChannelState(3)
    for place in (ahead, behind):
        place.pass_over(5, 8)
        place.pass_over(9, 9)
    assert (ahead.position, ahead.gaps) == (8, [])
    assert (behind.position, behind.gaps) == (3, [(5, 8)])
