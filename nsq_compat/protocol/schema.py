"""Every byte layout of NSQ's protocols, declared once with construct. All integers are big-endian unless said so.

This module is the truth, not the way: parsing with construct costs tens of microseconds, so nothing here runs once per
message. Fixed-size layouts are turned into fast codecs by ``layout.derive``; what has a variable size is cut by hand
where it is read. Tests hold both against these declarations, in both directions.

Layouts whose bytes may be misread are the place to look first: whoever changes a declaration here changes the wire.
"""

from typing import Any, Final

from construct import (
    Array,
    Bytes,
    Const,
    GreedyBytes,
    Int8ub,
    Int16ub,
    Int24ul,
    Int32sb,
    Int32ul,
    Int64sb,
    Prefixed,
    Rebuild,
    Struct,
    this,
)

MESSAGE_ID_LENGTH: Final = 16

# --- Opening a connection ---------------------------------------------------------------------------------------------

MAGIC_V1: Final = Const(b"  V1")
"""To nsqlookupd."""

MAGIC_V2: Final = Const(b"  V2")
"""To nsqd."""

# --- Commands with a body ---------------------------------------------------------------------------------------------

SIZE: Final = Struct("size" / Int32sb)
"""The number of bytes that follow, and in an MPUB the count of messages. It is signed: a negative one is an error."""

SIZED_BODY: Final = Prefixed(Int32sb, GreedyBytes)
"""What follows the line of PUB, DPUB, IDENTIFY and AUTH."""


def _mpub_size(context: Any) -> int:
    return 4 + sum(4 + len(body) for body in context.bodies)


def _body_count(context: Any) -> int:
    return len(context.bodies)


HTTP_MPUB_BODY: Final = Struct(
    "count" / Rebuild(Int32sb, _body_count),
    "bodies" / Array(this.count, SIZED_BODY),
)
"""What ``POST /mpub?binary=true`` carries."""

MPUB_BODY: Final = Struct(
    "size" / Rebuild(Int32sb, _mpub_size),
    "count" / Rebuild(Int32sb, _body_count),
    "bodies" / Array(this.count, SIZED_BODY),
)
"""What follows an MPUB line. The count says where it ends: ``size`` is never compared with what follows (nsqd)."""

MPUB_HEADER: Final = Struct("size" / Int32sb, "count" / Int32sb, "first_size" / Int32sb)
"""What ``MPUB_BODY`` begins with, up to the first body."""

# --- Frames from nsqd -------------------------------------------------------------------------------------------------

FRAME_HEADER: Final = Struct("size" / Int32sb, "type" / Int32sb)
"""``size`` counts what follows it: the type (4) and the data."""

FRAME: Final = Struct(
    "size" / Rebuild(Int32sb, lambda context: 4 + len(context.data)),
    "type" / Int32sb,
    "data" / Bytes(this.size - 4),
)


def _frame_of(frame_type: int) -> Struct:
    return Struct(
        "size" / Rebuild(Int32sb, lambda context: 4 + len(context.data)),
        "type" / Const(frame_type, Int32sb),
        "data" / Bytes(this.size - 4),
    )


RESPONSE_FRAME: Final = _frame_of(0)
ERROR_FRAME: Final = _frame_of(1)

MESSAGE_HEADER: Final = Struct(
    "timestamp_ns" / Int64sb,
    "attempts" / Int16ub,
    "id" / Bytes(MESSAGE_ID_LENGTH),
)
"""What a message frame's data begins with; the body takes the rest."""

MESSAGE: Final = Struct(*MESSAGE_HEADER.subcons, "body" / GreedyBytes)
"""The data of a message frame."""

MESSAGE_FRAME_HEADER: Final = Struct(*FRAME_HEADER.subcons, *MESSAGE_HEADER.subcons)
"""Everything before the body, for writing a whole message frame at once."""

MESSAGE_FRAME: Final = Struct(
    "size" / Rebuild(Int32sb, lambda context: 4 + MESSAGE_HEADER.sizeof() + len(context.body)),
    "type" / Const(2, Int32sb),
    *MESSAGE_HEADER.subcons,
    "body" / Bytes(this.size - 4 - MESSAGE_HEADER.sizeof()),
)

# --- nsqlookupd -------------------------------------------------------------------------------------------------------

LOOKUPD_REPLY: Final = SIZED_BODY
"""Replies of nsqlookupd have a size and no type."""

LOOKUPD_IDENTIFY: Final = Struct("line" / Const(b"IDENTIFY\n"), "body" / SIZED_BODY)
"""The one command to nsqlookupd with a body: JSON."""

# --- Snappy framing format (little-endian) ----------------------------------------------------------------------------

SNAPPY_CHUNK_HEADER: Final = Struct("type" / Int8ub, "length" / Int24ul)
"""``length`` counts what follows the header."""

SNAPPY_DATA_CHUNK: Final = Struct(
    "type" / Int8ub,
    "length" / Rebuild(Int24ul, lambda context: 4 + len(context.data)),
    "masked_crc" / Int32ul,
    "data" / Bytes(this.length - 4),
)
"""A chunk of type 0 (``data`` is one raw snappy block) or 1 (``data`` as it is), with the CRC-32C of the plain data."""

SNAPPY_STREAM_IDENTIFIER: Final = Struct(
    "type" / Const(0xFF, Int8ub), "length" / Const(6, Int24ul), "magic" / Const(b"sNaPpY")
)
"""Every snappy stream begins with it, each direction by itself."""
