import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.log.group import (
    HEADER_SIZE,
    Group,
    cut_frames,
    decode_header,
    decode_trailer,
    encode_group,
    is_hole,
    salvage,
)
from nsq_compat.protocol import storage_schema as schema
from nsq_compat.protocol.message import make_frames

NOW_NS = 1_700_000_000_000_000_000

bodies = st.lists(st.binary(max_size=50), min_size=1, max_size=8)


def frames_of(*bodies: bytes) -> tuple[bytes, ...]:
    return make_frames([b"%016x" % number for number in range(len(bodies))], NOW_NS, bodies)


@given(bodies, st.sampled_from(schema.KINDS), st.integers(0, 1 << 50), st.integers(0, 1 << 62), st.integers(0, 1 << 40))
def test_a_group_is_what_is_declared(bodies, kind, first_seq, due_ns, offset):
    frames = frames_of(*bodies)
    data = encode_group(kind, first_seq, due_ns, frames, offset)
    if len(frames) == 1:
        parsed = schema.SINGLE_GROUP.parse(data)
        assert parsed.frame == frames[0]
    else:
        parsed = schema.GROUP.parse(data)
        assert parsed.frames == b"".join(frames)
        assert list(parsed.checksums) == [crc32c(frame) for frame in frames]
        assert parsed.trailer.header_crc == parsed.header_crc
        assert data[-HEADER_SIZE + 8 :] == data[8:HEADER_SIZE]
    fields = data[8:HEADER_SIZE]
    assert parsed.magic == schema.GROUP_MAGIC
    assert parsed.header_crc == crc32c(fields) ^ (offset & 0xFFFFFFFF)
    payload = data[HEADER_SIZE : len(data) - (HEADER_SIZE if len(frames) > 1 else 0)]
    assert parsed.payload_crc == crc32c(payload)
    assert (parsed.kind, parsed.first_seq, parsed.due_ns) == (kind, first_seq, due_ns)
    assert (parsed.count, parsed.size) == (len(frames), sum(map(len, frames)))


@given(bodies, st.integers(0, 1 << 40), st.binary(max_size=20))
def test_header_and_trailer_are_decoded_at_any_offset_of_a_block(bodies, offset, before):
    frames = frames_of(*bodies)
    data = before + encode_group(schema.MESSAGES, 7, 0, frames, offset) + b"behind"
    header = decode_header(data, len(before), offset)
    assert header is not None
    assert header.end - offset == len(data) - len(before) - len(b"behind")
    begin, end = header.frames_begin - offset + len(before), header.payload_end - offset + len(before)
    assert tuple(cut_frames(data, begin, end, len(frames))) == frames
    if len(frames) > 1:
        assert decode_trailer(data, end, header.payload_end) == header


@given(bodies, st.sampled_from(schema.KINDS), st.integers(0, 1 << 40))
def test_joined_frames_make_the_same_group(bodies, kind, offset):
    frames = frames_of(*bodies)
    assert encode_group(kind, 7, 0, frames, offset, b"".join(frames)) == encode_group(kind, 7, 0, frames, offset)


@pytest.mark.parametrize("sizes", [[4] * 300, [4, 3, 5], [4, 5, 3], [3, 4, 5], [0, 256, 512, 256], [256, 0, 512]])
def test_frames_of_any_sizes_are_cut_at_their_beginnings(sizes):
    frames = frames_of(*(b"x" * size for size in sizes))
    joined = b"".join(frames)
    assert tuple(cut_frames(b"!" + joined, 1, 1 + len(joined), len(frames))) == frames


def test_a_header_is_valid_only_at_the_offset_where_it_was_written():
    data = encode_group(schema.MESSAGES, 7, 0, frames_of(b"a", b"b"), 1000)
    assert decode_header(data, 0, 1000)
    assert decode_header(data, 0, 1001) is None
    assert decode_trailer(data, len(data) - HEADER_SIZE, 1000 + len(data) - HEADER_SIZE)
    assert decode_trailer(data, len(data) - HEADER_SIZE, 999 + len(data) - HEADER_SIZE) is None


@pytest.mark.parametrize("size", [0, 3, HEADER_SIZE - 1])
def test_a_part_of_a_header_is_no_header(size):
    data = encode_group(schema.MESSAGES, 7, 0, frames_of(b"a"), 0)[:size]
    assert decode_header(data, 0, 0) is None
    assert decode_trailer(data, 0, 0) is None


def salvaged(damage) -> list[Group] | None:
    frames = frames_of(b"zero", b"one!", b"two!", b"three", b"four")
    data = bytearray(encode_group(schema.MESSAGES, 10, 0, frames, 20))
    damage(data)
    header = decode_header(bytes(data), 0, 20)
    assert header is not None
    return salvage(header, bytes(data))


def test_the_sound_frames_of_a_damaged_group_keep_their_numbers():
    def damage(data):
        data[data.index(b"one!")] ^= 1
        data[data.index(b"two!")] ^= 1

    frames = frames_of(b"zero", b"one!", b"two!", b"three", b"four")
    assert salvaged(damage) == [
        Group(schema.MESSAGES, 10, 0, [frames[0]]),
        Group(schema.MESSAGES, 13, 0, [frames[3], frames[4]]),
    ]


def test_a_frame_with_a_damaged_size_is_skipped():
    frames = frames_of(b"zero", b"one!", b"two!", b"three", b"four")

    def damage(data):
        data[data.index(frames[1]) + 2] ^= 0x40

    assert [group.first_seq for group in salvaged(damage) or ()] == [10, 12]


def test_a_group_with_a_sector_of_zeros_was_never_written():
    def damage(data):
        begin = 512 - 20
        data[begin : begin + 512] = bytes(min(512, len(data) - begin))

    frames = frames_of(*[b"x" * 200] * 6)
    data = bytearray(encode_group(schema.MESSAGES, 10, 0, frames, 20))
    damage(data)
    header = decode_header(bytes(data), 0, 20)
    assert header is not None
    assert salvage(header, bytes(data)) is None


def test_the_search_for_frames_in_a_crafted_message_ends():
    trap = b"\x00\x00\x00\x30\x00\x00\x00\x02" * 50_000
    data = bytearray(encode_group(schema.MESSAGES, 0, 0, frames_of(trap, b"behind"), 0))
    data[60] ^= 1
    header = decode_header(bytes(data), 0, 0)
    assert header is not None
    assert salvage(header, bytes(data)) is not None


def test_a_hole_extends_to_the_end_of_the_sector():
    assert is_hole(bytes(12) + b"x", 500)
    assert not is_hole(bytes(11) + b"x", 500)
    assert is_hole(b"", 0)
