"""Declarations compared with hand-written bytes. A failure means that the wire format has changed."""

import re
from pathlib import Path
from typing import Any

import pytest
from construct import ConstructError, Container

import nsq_compat
from nsq_compat.protocol import schema

ID = b"0123456789abcdef"

LAYOUTS: dict[str, tuple[Any, bytes]] = {
    "MAGIC_V1": (None, b"  V1"),
    "MAGIC_V2": (None, b"  V2"),
    "SIZED_BODY": (b"abc", b"\0\0\0\3abc"),
    "HTTP_MPUB_BODY": ({"bodies": [b"a", b"bc"]}, b"\0\0\0\2\0\0\0\1a\0\0\0\2bc"),
    "MPUB_BODY": ({"bodies": [b"a", b"bc"]}, b"\0\0\0\x0f\0\0\0\2\0\0\0\1a\0\0\0\2bc"),
    "FRAME_HEADER": ({"size": 6, "type": 1}, b"\0\0\0\6\0\0\0\1"),
    "FRAME": ({"type": 7, "data": b"x"}, b"\0\0\0\5\0\0\0\7x"),
    "RESPONSE_FRAME": ({"data": b"OK"}, b"\0\0\0\6\0\0\0\0OK"),
    "ERROR_FRAME": ({"data": b"E_X"}, b"\0\0\0\7\0\0\0\1E_X"),
    "MESSAGE_HEADER": (
        {"timestamp_ns": 0x0102030405060708, "attempts": 0x0A0B, "id": ID},
        b"\1\2\3\4\5\6\7\x08\x0a\x0b" + ID,
    ),
    "MESSAGE": (
        {"timestamp_ns": 1, "attempts": 2, "id": ID, "body": b"xy"},
        b"\0\0\0\0\0\0\0\1\0\2" + ID + b"xy",
    ),
    "MESSAGE_FRAME_HEADER": (
        {"size": 32, "type": 2, "timestamp_ns": 1, "attempts": 2, "id": ID},
        b"\0\0\0\x20\0\0\0\2\0\0\0\0\0\0\0\1\0\2" + ID,
    ),
    "MESSAGE_FRAME": (
        {"timestamp_ns": 1, "attempts": 2, "id": ID, "body": b"xy"},
        b"\0\0\0\x20\0\0\0\2\0\0\0\0\0\0\0\1\0\2" + ID + b"xy",
    ),
    "SHORT_SIZE": ({"size": 2}, b"\0\2"),
    "HEADER": ({"name": b"a", "value": b"bc"}, b"\1a\0\2bc"),
    "HEADER_BLOCK": ([{"name": b"a", "value": b"bc"}, {"name": b"d", "value": b""}], b"\0\x0a\1a\0\2bc\1d\0\0"),
    "PAYLOAD": ({"headers": [{"name": b"a", "value": b"bc"}], "body": b"xy"}, b"\0\6\1a\0\2bcxy"),
    "HMPUB_BODY": ([b"a", b"bc"], b"\0\0\0\x0f\0\0\0\2\0\0\0\1a\0\0\0\2bc"),
    "MESSAGE_FRAME_WITH_HEADERS": (
        {
            "timestamp_ns": 1,
            "attempts": 2,
            "id": ID,
            "payload": {"headers": [{"name": b"a", "value": b"bc"}], "body": b"xy"},
        },
        b"\0\0\0\x28\0\0\0\3\0\0\0\0\0\0\0\1\0\2" + ID + b"\0\6\1a\0\2bcxy",
    ),
    "SIZE": ({"size": 2}, b"\0\0\0\2"),
    "MPUB_HEADER": ({"size": 7, "count": 1, "first_size": 3}, b"\0\0\0\7\0\0\0\1\0\0\0\3"),
    "LOOKUPD_IDENTIFY": ({"body": b"{}"}, b"IDENTIFY\n\0\0\0\2{}"),
    "SNAPPY_CHUNK_HEADER": ({"type": 1, "length": 0x030201}, b"\1\1\2\3"),
    "SNAPPY_DATA_CHUNK": ({"type": 1, "masked_crc": 0x04030201, "data": b"ab"}, b"\1\6\0\0\1\2\3\4ab"),
    "SNAPPY_STREAM_IDENTIFIER": ({}, b"\xff\6\0\0sNaPpY"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_declaration_builds_the_bytes_of_the_wire(name):
    value, wire = LAYOUTS[name]
    assert getattr(schema, name).build(value) == wire


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_declaration_parses_what_it_builds(name):
    value, wire = LAYOUTS[name]
    parsed = getattr(schema, name).parse(wire)
    if isinstance(parsed, Container):
        assert {key: parsed[key] for key in value} == value
    elif value is not None:
        assert parsed == value


def test_every_declaration_is_tested_here():
    declared = {name for name, value in vars(schema).items() if name.isupper() and hasattr(value, "build")}
    assert declared == set(LAYOUTS)


def test_the_size_of_an_mpub_body_is_not_compared_with_its_messages():
    assert schema.MPUB_BODY.parse(b"\0\0\0\1\0\0\0\1\0\0\0\1a").bodies == [b"a"]


@pytest.mark.parametrize(
    ("name", "wire"),
    [
        ("SIZED_BODY", b"\xff\xff\xff\xff"),
        ("SIZED_BODY", b"\0\0\0\3ab"),
        ("RESPONSE_FRAME", b"\0\0\0\6\0\0\0\1OK"),
        ("MESSAGE_FRAME", b"\0\0\0\x1d\0\0\0\2\0\0\0\0\0\0\0\1\0\2" + ID),
        ("SNAPPY_STREAM_IDENTIFIER", b"\xff\6\0\0snappy"),
        ("MAGIC_V2", b"  V1"),
    ],
)
def test_wrong_sizes_are_refused(name, wire):
    with pytest.raises(ConstructError):
        getattr(schema, name).parse(wire)


def test_no_module_writes_the_format_of_a_size_by_hand():
    package = Path(nsq_compat.__file__).parent
    by_hand = re.compile(r"""struct\.\w+\(["']>i+["']""")
    assert [file.name for file in package.rglob("*.py") if by_hand.search(file.read_text("utf-8"))] == []
