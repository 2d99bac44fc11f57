"""A checkpoint survives encoding, and nothing but a whole checkpoint is taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol import checkpoint_schema
from nsq_compat.queue.checkpoint import (
    ENTRY,
    HELD_BY_TOPIC,
    BadCheckpoint,
    Checkpoint,
    Place,
    decode,
    entries_at_once,
    entry_id,
    is_at_once,
)
from nsq_compat.queue.topic_log import LogEnd

numbers = st.integers(0, (1 << 64) - 1)
ids = st.integers(0, (1 << 64) - 1).map(lambda number: b"%016x" % number)
entries = st.builds(ENTRY.pack, st.floats(0, 1e12), numbers, ids, st.integers(0, 65535))
places = st.builds(Place, numbers, st.lists(entries, max_size=5), st.lists(st.tuples(numbers, numbers), max_size=3))
names = st.text(st.sampled_from("abcXYZ.-_019"), min_size=1, max_size=64) | st.just(HELD_BY_TOPIC)
checkpoints = st.builds(
    Checkpoint,
    st.builds(LogEnd, st.integers(0, 1 << 62), st.integers(0, 1 << 62), numbers),
    st.floats(allow_nan=False, allow_infinity=False),
    ids,
    st.dictionaries(names, places, max_size=4),
    st.booleans(),
    st.booleans(),
)
SMALL = Checkpoint(
    LogEnd(1, 400, 9), 1.5, b"%016x" % 77, {"c": Place(3, entries_at_once([(b"%016x" % 5, 2)]), [(4, 6)])}, True
)


@given(checkpoints)
def test_what_is_decoded_is_what_was_encoded(checkpoint):
    assert decode(checkpoint.encode()) == checkpoint


def test_the_bytes_are_those_of_the_declaration():
    parsed = checkpoint_schema.CHECKPOINT.parse(SMALL.encode())
    assert (parsed.header.log_offset, parsed.header.held_back, parsed.places[0].name) == (400, 1, b"c")
    assert parsed.places[0].gaps[0].end == 6
    assert checkpoint_schema.CHECKPOINT.build(parsed) == SMALL.encode()


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
    place = Place(0, [soon, *reversed(at_once)])
    assert place.at_once() == [(b"%016x" % 9, 2), (b"%016x" % 3, 1)]
    assert place.deferred() == [soon]
    assert [is_at_once(key) for key in place.entries] == [False, True, True]
    assert entry_id(soon) == b"%016x" % 1


def test_passing_over_moves_who_has_all_and_makes_a_gap_for_who_is_behind():
    ahead, behind = Place(5), Place(3)
    for place in (ahead, behind):
        place.pass_over(5, 8)
        place.pass_over(9, 9)
    assert (ahead.position, ahead.gaps) == (8, [])
    assert (behind.position, behind.gaps) == (3, [(5, 8)])
