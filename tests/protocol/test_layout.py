"""Every fixed-size declaration compared with the codec derived from it, in both directions."""

import struct
from typing import Any

import construct
import pytest
from construct import Bytes, Const, Int8ub, Int16ub, Int24ub, Int32sb, Int32ub, Int32ul, Int64sb, Int64ub, Struct, this
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol import schema
from nsq_compat.protocol.layout import ReceiveBuffer, derive

ALL_KINDS = Struct(
    "count" / Int32ub,
    "version" / Int16ub,
    "flags" / Int8ub,
    "offset" / Int64ub,
    "digest" / Bytes(5),
)
FIXED = {
    "FRAME_HEADER": schema.FRAME_HEADER,
    "MESSAGE_HEADER": schema.MESSAGE_HEADER,
    "MESSAGE_FRAME_HEADER": schema.MESSAGE_FRAME_HEADER,
    "SIZE": schema.SIZE,
    "MPUB_HEADER": schema.MPUB_HEADER,
    "all kinds": ALL_KINDS,
}
INTEGERS = {
    "b": (-(1 << 7), (1 << 7) - 1),
    "B": (0, (1 << 8) - 1),
    "H": (0, (1 << 16) - 1),
    "l": (-(1 << 31), (1 << 31) - 1),
    "L": (0, (1 << 32) - 1),
    "q": (-(1 << 63), (1 << 63) - 1),
    "Q": (0, (1 << 64) - 1),
}


def names_of(declaration):
    """The fields of a codec in order."""
    return [member.name for member in declaration.subcons]


def values_of(declaration):
    """Values for the fields of a declaration, by name."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for member in declaration.subcons:
        if isinstance(member.subcon, construct.Bytes):
            fields[member.name] = st.binary(min_size=member.subcon.length, max_size=member.subcon.length)
        else:
            fields[member.name] = st.integers(*INTEGERS[member.subcon.fmtstr[1:]])
    return st.fixed_dictionaries(fields)


@pytest.mark.parametrize("name", FIXED)
@given(data=st.data())
def test_a_derived_codec_packs_what_the_declaration_builds(name, data):
    declaration = FIXED[name]
    values = data.draw(values_of(declaration))
    assert derive(declaration).pack(*[values[each] for each in names_of(declaration)]) == declaration.build(values)


@pytest.mark.parametrize("name", FIXED)
@given(data=st.data())
def test_a_derived_codec_unpacks_what_the_declaration_parses_at_any_offset(name, data):
    declaration = FIXED[name]
    wire = declaration.build(data.draw(values_of(declaration)))
    before = data.draw(st.binary(max_size=9))
    parsed = declaration.parse(wire)
    values = derive(declaration).unpack_from(before + wire + b"more", len(before))
    assert values == tuple(parsed[each] for each in names_of(declaration))


@pytest.mark.parametrize("name", FIXED)
@given(data=st.data())
def test_slices_and_offsets_are_where_the_declaration_puts_its_fields(name, data):
    declaration = FIXED[name]
    layout = derive(declaration)
    wire = declaration.build(data.draw(values_of(declaration)))
    parsed = declaration.parse(wire)
    for member in declaration.subcons:
        part = wire[layout.slices[member.name]]
        assert part == member.build(parsed[member.name])
        assert wire.startswith(part, layout.offset(member.name))
    assert layout.size == declaration.sizeof() == len(wire)


def test_a_short_buffer_and_a_number_that_does_not_fit_are_errors_of_struct():
    layout = derive(schema.FRAME_HEADER)
    with pytest.raises(struct.error):
        layout.unpack_from(b"\0\0\0")
    with pytest.raises(struct.error):
        layout.pack(1 << 31, 0)


@pytest.mark.parametrize(
    ("declaration", "complaint"),
    [
        (Int32sb, "construct.Struct"),
        (Struct(Int32sb), "without a name"),
        (Struct("little" / Int32ul), "'little'"),
        (Struct("odd" / Int24ub), "'odd'"),
        (Struct("size" / Int32sb, "data" / Bytes(this.size)), "'data'"),
        (Struct("inner" / Struct("a" / Int64sb)), "'inner'"),
        (Struct("rest" / construct.GreedyBytes), "'rest'"),
        (Struct("mark" / Const(b"abc")), "'mark'"),
        (schema.MPUB_BODY, "'size'"),
        (schema.SNAPPY_CHUNK_HEADER, "'length'"),
    ],
)
def test_a_field_that_cannot_be_derived_is_named(declaration, complaint):
    with pytest.raises(TypeError, match=complaint):
        derive(declaration)


def test_a_reader_continues_when_enough_bytes_have_arrived():
    buffer = ReceiveBuffer(needed=3)
    assert [buffer.append(byte) for byte in (b"a", b"b", b"c")] == [False, False, True]
    assert buffer.gather() == b"abc"
    buffer.position, buffer.needed = 2, 1
    assert buffer.append(b"de")
    assert (buffer.gather(), buffer.position) == (b"cde", 0)
    buffer.position = 1
    buffer.append(b"f")
    assert [buffer.hand_back(), buffer.hand_back()] == [b"def", b""]


def test_a_single_piece_is_used_without_a_copy():
    buffer = ReceiveBuffer(needed=1)
    read = b"a whole read"
    buffer.append(read)
    assert buffer.gather() is read
