"""A checkpoint's layout against bytes written out by hand, and against the codecs derived from it."""

import struct
from typing import Any

import pytest
from construct import Const
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol import checkpoint_schema as schema
from nsq_compat.protocol.layout import derive

HEADER = {
    "crc": 1, "log_segment": 2, "log_offset": 3, "log_seq": 4, "clock_offset": 1.5, "last_id": b"0123456789abcdef",
    "held_back": 1, "channels": 1,
}  # fmt: skip
HEADER_WIRE = (
    b"NQC1\0\0\0\1" + b"\0" * 7 + b"\2" + b"\0" * 7 + b"\3" + b"\0" * 7 + b"\4" + b"\x3f\xf8" + b"\0" * 6
    + b"0123456789abcdef" + b"\1" + b"\0\0\0\1"
)  # fmt: skip
CHANNEL = {"name_length": 2, "position": 7, "gaps": 1, "entries": 1}
CHANNEL_WIRE = b"\2" + b"\0" * 7 + b"\7" + b"\0\0\0\1" + b"\0\0\0\1"
GAP = {"begin": 8, "end": 9}
GAP_WIRE = b"\0" * 7 + b"\x08" + b"\0" * 7 + b"\x09"
ENTRY = {"due": 1.5, "serial": 5, "id": b"fedcba9876543210", "attempts": 0x0102}
ENTRY_WIRE = b"\x3f\xf8" + b"\0" * 6 + b"\0" * 7 + b"\5" + b"fedcba9876543210" + b"\1\2"

LAYOUTS: dict[str, tuple[dict[str, Any], bytes]] = {
    "CHECKPOINT_HEADER": (HEADER, HEADER_WIRE),
    "CHECKPOINT_CHANNEL": (CHANNEL, CHANNEL_WIRE),
    "CHECKPOINT_GAP": (GAP, GAP_WIRE),
    "CHECKPOINT_ENTRY": (ENTRY, ENTRY_WIRE),
    "CHECKPOINT": (
        {"header": HEADER, "places": [{"channel": CHANNEL, "name": b"ch", "gaps": [GAP], "entries": [ENTRY]}]},
        HEADER_WIRE + CHANNEL_WIRE + b"ch" + GAP_WIRE + ENTRY_WIRE,
    ),
}
PARTS = ["CHECKPOINT_HEADER", "CHECKPOINT_CHANNEL", "CHECKPOINT_GAP", "CHECKPOINT_ENTRY"]
NUMBERS = {"B": (0, 255), "H": (0, (1 << 16) - 1), "L": (0, (1 << 32) - 1), "Q": (0, (1 << 64) - 1), "q": (-5, 1 << 62)}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_these_bytes(name):
    values, wire = LAYOUTS[name]
    declaration = getattr(schema, name)
    assert declaration.build(values) == wire
    assert declaration.build(declaration.parse(wire)) == wire


def values_of(declaration, data):
    drawn = {}
    for member in declaration.subcons:
        if isinstance(member.subcon, Const):
            continue
        code = getattr(member.subcon, "fmtstr", "")[1:]
        if code == "d":
            drawn[member.name] = data.draw(st.floats(allow_nan=False))
        elif code:
            drawn[member.name] = data.draw(st.integers(*NUMBERS[code]))
        else:
            size = member.subcon.length
            drawn[member.name] = data.draw(st.binary(min_size=size, max_size=size))
    return drawn


@pytest.mark.parametrize("name", PARTS)
@given(data=st.data())
def test_the_derived_codec_is_the_declaration(name, data):
    declaration = getattr(schema, name)
    values = values_of(declaration, data)
    layout = derive(declaration)
    wire = declaration.build(values)
    assert layout.pack(*values.values()) == wire
    assert layout.unpack_from(wire) == tuple(values.values())
    assert layout.size == len(wire)


def test_another_version_is_not_taken_for_this_one():
    with pytest.raises(ValueError, match="NQC1"):
        derive(schema.CHECKPOINT_HEADER).unpack_from(b"NQC2" + HEADER_WIRE[4:])


@given(st.lists(st.tuples(st.floats(0, 1e12), st.integers(0, (1 << 64) - 1)), min_size=2))
def test_entries_sorted_as_bytes_are_in_the_order_of_their_due_times(entries):
    pack = struct.Struct(">dQ16sH").pack
    wire = [pack(due, serial, b"\xff" * 16, 65535) for due, serial in entries]
    assert [struct.unpack_from(">dQ", each) for each in sorted(wire)] == sorted(entries)
