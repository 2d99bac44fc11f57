"""The layouts of files against bytes written out by hand, and against the codecs derived from them."""

import struct
from typing import Any

import construct
import pytest
from construct import Array, Const
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.protocol import storage_schema as schema
from nsq_compat.protocol.layout import derive

FIELDS = {"payload_crc": 0x01020304, "first_seq": 5, "due_ns": -1, "size": 6, "count": 2, "kind": schema.DEFERRED}
FIELDS_WIRE = b"\1\2\3\4" + b"\0" * 7 + b"\5" + b"\xff" * 8 + b"\0\0\0\6" + b"\0\0\0\2" + b"\0\0\0\2"
HEADER_WIRE = b"\xabNg\xd5" + b"\0\0\0\7" + FIELDS_WIRE

CHECKPOINT_FIELDS = {
    "magic": schema.CHECKPOINT_MAGIC, "crc": 1, "log_segment": 2, "log_offset": 3, "log_seq": 4, "clock_offset": 1.5,
    "last_id": b"0123456789abcdef", "held_back": 1, "channels": 1,
}  # fmt: skip
CHECKPOINT_WIRE = (
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
    "SEGMENT_HEADER": (
        {"magic": schema.SEGMENT_MAGIC + b"salt", "first_seq": 0x0102, "crc": 3},
        b"nsq\3salt" + b"\0" * 6 + b"\1\2" + b"\0\0\0\3",
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
    "CHECKPOINT_HEADER": (CHECKPOINT_FIELDS, CHECKPOINT_WIRE),
    "CHECKPOINT_CHANNEL": (CHANNEL, CHANNEL_WIRE),
    "CHECKPOINT_GAP": (GAP, GAP_WIRE),
    "CHECKPOINT_ENTRY": (ENTRY, ENTRY_WIRE),
    "CHECKPOINT": (
        {
            "header": CHECKPOINT_FIELDS,
            "states": [{"channel": CHANNEL, "name": b"ch", "gaps": [GAP], "entries": [ENTRY]}],
        },
        CHECKPOINT_WIRE + CHANNEL_WIRE + b"ch" + GAP_WIRE + ENTRY_WIRE,
    ),
}  # fmt: skip
DERIVED = [
    "SEGMENT_HEADER", "GROUP_MARK", "GROUP_FIELDS", "GROUP_HEADER",
    "CHECKPOINT_HEADER", "CHECKPOINT_CHANNEL", "CHECKPOINT_GAP", "CHECKPOINT_ENTRY", "CHECKPOINT_LOCATION",
]  # fmt: skip
NUMBERS = {
    "B": (0, 255),
    "H": (0, (1 << 16) - 1),
    "L": (0, (1 << 32) - 1),
    "Q": (0, (1 << 64) - 1),
    "q": (-(1 << 63), (1 << 63) - 1),
}
RECORD_WIRE = bytes.fromhex("0000001f17979cfe362a00000002") + b"0123456789abcdef" + b"hello"


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_these_bytes(name):
    values, wire = LAYOUTS[name]
    declaration = getattr(schema, name)
    assert declaration.build(values) == wire
    parsed = declaration.parse(wire)
    assert declaration.build(parsed) == wire
    flat = {key: value for key, value in values.items() if isinstance(value, int | bytes)}
    assert {key: parsed[key] for key in flat} == flat


@pytest.mark.parametrize("name", DERIVED)
@given(data=st.data())
def test_the_derived_codec_is_the_declaration(name, data):
    declaration = getattr(schema, name)
    values = values_of(declaration, data)
    wire = declaration.build(values)
    codec = derive(declaration)
    assert codec.pack(*values.values()) == wire
    assert codec.unpack_from(b"before" + wire, 6) == tuple(values.values())
    assert codec.size == len(wire)


def values_of(declaration, data):
    drawn = {}
    for member in declaration.subcons:
        code = getattr(member.subcon, "fmtstr", "")[1:]
        if code == "d":
            drawn[member.name] = data.draw(st.floats(allow_nan=False))
        elif code:
            drawn[member.name] = data.draw(st.integers(*NUMBERS[code]))
        else:
            size = member.subcon.length
            drawn[member.name] = data.draw(st.binary(min_size=size, max_size=size))
    return drawn


def test_no_header_is_taken_for_zeros_and_none_for_a_trailer():
    assert len({schema.GROUP_MAGIC, schema.TRAILER_MAGIC, b"\0" * 4}) == 3
    assert schema.GROUP_MAGIC.startswith(schema.MAGIC_PREFIX)
    assert schema.TRAILER_MAGIC.startswith(schema.MAGIC_PREFIX)
    assert len(schema.SEGMENT_MAGIC) + schema.SALT_SIZE == len(schema.SEGMENT_MAGIC_2) == len(schema.RELEASED_MAGIC)
    assert 0 not in schema.KINDS


def test_a_group_of_several_ends_with_its_header():
    assert any(isinstance(member.subcon, Array) for member in schema.GROUP.subcons)
    trailer = schema.GROUP.subcons[-1].subcon
    assert isinstance(trailer.subcons[0].subcon, Const)
    assert trailer.sizeof() == schema.GROUP_HEADER.sizeof() == 40
    assert struct.calcsize(">4sI") == schema.GROUP_MARK.sizeof()


@given(st.lists(st.tuples(st.floats(0, 1e12), st.integers(0, (1 << 64) - 1)), min_size=2))
def test_entries_sorted_as_bytes_are_in_the_order_of_their_due_times(entries):
    pack = struct.Struct(">dQ16sH").pack
    wire = [pack(due, serial, b"\xff" * 16, 65535) for due, serial in entries]
    assert [struct.unpack_from(">dQ", each) for each in sorted(wire)] == sorted(entries)


def test_a_record_of_go_is_size_timestamp_attempts_id_and_body():
    record = schema.GO_RECORD.parse(RECORD_WIRE)
    assert (record.size, record.timestamp_ns, record.attempts) == (31, 1_700_000_000_000_000_000, 2)
    assert (record.id, record.body) == (b"0123456789abcdef", b"hello")


def test_building_a_record_of_go_computes_its_size():
    fields = {"timestamp_ns": 1_700_000_000_000_000_000, "attempts": 2, "id": b"0123456789abcdef", "body": b"hello"}
    assert schema.GO_RECORD.build(fields) == RECORD_WIRE


@given(st.integers(26, (1 << 31) - 1), st.integers(), st.integers(0, 0xFFFF), st.binary(min_size=16, max_size=16))
def test_the_derived_header_of_a_record_packs_as_the_declaration_builds(size, timestamp, attempts, message_id):
    timestamp %= 1 << 63
    layout = derive(schema.GO_RECORD_HEADER)
    packed = layout.pack(size, timestamp, attempts, message_id)
    fields = construct.Container(size=size, timestamp_ns=timestamp, attempts=attempts, id=message_id)
    assert packed == schema.GO_RECORD_HEADER.build(fields)
    assert layout.unpack_from(packed) == (size, timestamp, attempts, message_id)
