"""The layouts on disk against bytes written out by hand, and against the codecs derived from them."""

import struct
from typing import Any

import pytest
from construct import Array, Const
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol import storage_schema as schema
from nsq_compat.protocol.layout import derive

FIELDS = {"payload_crc": 0x01020304, "first_seq": 5, "due_ns": -1, "size": 6, "count": 2, "kind": schema.DEFERRED}
FIELDS_WIRE = b"\1\2\3\4" + b"\0" * 7 + b"\5" + b"\xff" * 8 + b"\0\0\0\6" + b"\0\0\0\2" + b"\0\0\0\2"
HEADER_WIRE = b"\xabNg\xd5" + b"\0\0\0\7" + FIELDS_WIRE

LAYOUTS: dict[str, tuple[dict[str, Any], bytes]] = {
    "SEGMENT_HEADER": (
        {"magic": schema.SEGMENT_MAGIC, "first_seq": 0x0102, "crc": 3},
        b"nsqlog\0\1" + b"\0" * 6 + b"\1\2" + b"\0\0\0\3",
    ),
    "GROUP_MARK": ({"magic": schema.GROUP_MAGIC, "header_crc": 7}, b"\xabNg\xd5\0\0\0\7"),
    "GROUP_FIELDS": (FIELDS, FIELDS_WIRE),
    "GROUP_HEADER": ({"magic": schema.GROUP_MAGIC, "header_crc": 7, **FIELDS}, HEADER_WIRE),
    "SINGLE_GROUP": (
        {"magic": schema.GROUP_MAGIC, "header_crc": 7, **FIELDS, "frame": b"abcdef"},
        HEADER_WIRE + b"abcdef",
    ),
    "GROUP": (
        {
            "magic": schema.GROUP_MAGIC, "header_crc": 7, **FIELDS, "checksums": [8, 9], "frames": b"abcdef",
            "trailer": {"header_crc": 7, **FIELDS},
        },
        HEADER_WIRE + b"\0\0\0\x08\0\0\0\x09" + b"abcdef" + b"\xabNt\xd5" + HEADER_WIRE[4:],
    ),
}  # fmt: skip
NUMBERS = {"L": (0, (1 << 32) - 1), "Q": (0, (1 << 64) - 1), "q": (-(1 << 63), (1 << 63) - 1)}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_these_bytes(name):
    values, wire = LAYOUTS[name]
    declaration = getattr(schema, name)
    assert declaration.build(values) == wire
    parsed = declaration.parse(wire)
    assert {key: parsed[key] for key in values if key != "trailer"} == {
        key: value for key, value in values.items() if key != "trailer"
    }


@pytest.mark.parametrize("name", ["SEGMENT_HEADER", "GROUP_MARK", "GROUP_FIELDS", "GROUP_HEADER"])
@given(data=st.data())
def test_the_derived_codec_is_the_declaration(name, data):
    declaration = getattr(schema, name)
    values = {}
    for member in declaration.subcons:
        if hasattr(member.subcon, "fmtstr"):
            values[member.name] = data.draw(st.integers(*NUMBERS[member.subcon.fmtstr[1:]]))
        else:
            size = member.subcon.sizeof()
            values[member.name] = data.draw(st.binary(min_size=size, max_size=size))
    wire = declaration.build(values)
    codec = derive(declaration)
    assert codec.pack(*values.values()) == wire
    assert codec.unpack_from(b"before" + wire, 6) == tuple(values.values())


def test_no_header_is_taken_for_zeros_and_none_for_a_trailer():
    assert len({schema.GROUP_MAGIC, schema.TRAILER_MAGIC, b"\0" * 4}) == 3
    assert schema.GROUP_MAGIC.startswith(schema.MAGIC_PREFIX)
    assert schema.TRAILER_MAGIC.startswith(schema.MAGIC_PREFIX)
    assert len(schema.SEGMENT_MAGIC) == len(schema.RELEASED_MAGIC)
    assert 0 not in schema.KINDS


def test_a_group_of_several_ends_with_its_header():
    assert any(isinstance(member.subcon, Array) for member in schema.GROUP.subcons)
    trailer = schema.GROUP.subcons[-1].subcon
    assert isinstance(trailer.subcons[0].subcon, Const)
    assert trailer.sizeof() == schema.GROUP_HEADER.sizeof() == 40
    assert struct.calcsize(">4sI") == schema.GROUP_MARK.sizeof()
