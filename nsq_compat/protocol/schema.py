"""Every byte layout of NSQ's protocols, declared once with construct. Integers are big-endian unless noted.

Parsing with construct takes tens of microseconds, so nothing here runs for each message. ``layout.derive`` makes fast
codecs of the fixed-size layouts; those of variable size are read by hand-written code. Tests compare both with these
declarations, in both directions. A change to a declaration is a change to the wire format.
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
"""The number of bytes that follow; in an MPUB also the count of messages. Signed: a negative number is an error."""

SIZED_BODY: Final = Prefixed(Int32sb, GreedyBytes)
"""Follows the line of PUB, DPUB, IDENTIFY and AUTH. A reply of nsqlookupd also has this form."""

HTTP_MPUB_BODY: Final = Struct(
    "count" / Rebuild(Int32sb, lambda context: len(context.bodies)),
    "bodies" / Array(this.count, SIZED_BODY),
)
"""The body of ``POST /mpub?binary=true``."""

MPUB_BODY: Final = Struct(
    "size" / Rebuild(Int32sb, lambda context: 4 + sum(4 + len(body) for body in context.bodies)),
    *HTTP_MPUB_BODY.subcons,
)
"""Follows an MPUB line. It ends after `count` bodies; like nsqd, nothing compares `size` with their sizes."""


class UniformBodies(tuple[bytes, ...]):
    """The bodies of an MPUB if all have one size; the reader has checked it.

    It is in this module because mypyc cannot compile a class derived from tuple.
    """

    __slots__ = ()


MPUB_HEADER: Final = Struct("size" / Int32sb, "count" / Int32sb, "first_size" / Int32sb)
"""The beginning of ``MPUB_BODY``, up to the first body."""

# --- Frames from nsqd -------------------------------------------------------------------------------------------------

FRAME_HEADER: Final = Struct("size" / Int32sb, "type" / Int32sb)
"""`size` is that of the type (4) and the data."""


def _frame_of(kind: Any) -> Struct:
    return Struct(
        "size" / Rebuild(Int32sb, lambda context: 4 + len(context.data)),
        "type" / kind,
        "data" / Bytes(this.size - 4),
    )


FRAME: Final = _frame_of(Int32sb)
RESPONSE_FRAME: Final = _frame_of(Const(0, Int32sb))
ERROR_FRAME: Final = _frame_of(Const(1, Int32sb))

MESSAGE_HEADER: Final = Struct(
    "timestamp_ns" / Int64sb,
    "attempts" / Int16ub,
    "id" / Bytes(MESSAGE_ID_LENGTH),
)
"""The beginning of a message frame's data; the rest is the body."""

MESSAGE: Final = Struct(*MESSAGE_HEADER.subcons, "body" / GreedyBytes)
"""The data of a message frame."""

MESSAGE_FRAME_HEADER: Final = Struct(*FRAME_HEADER.subcons, *MESSAGE_HEADER.subcons)
"""Everything before the body of a message frame."""

MESSAGE_FRAME: Final = Struct(
    "size" / Rebuild(Int32sb, lambda context: 4 + MESSAGE_HEADER.sizeof() + len(context.body)),
    "type" / Const(2, Int32sb),
    *MESSAGE_HEADER.subcons,
    "body" / Bytes(this.size - 4 - MESSAGE_HEADER.sizeof()),
)

# --- nsqlookupd -------------------------------------------------------------------------------------------------------

LOOKUPD_IDENTIFY: Final = Struct("line" / Const(b"IDENTIFY\n"), "body" / SIZED_BODY)
"""The only command to nsqlookupd with a body, which is JSON."""

# --- Snappy framing format (little-endian) ----------------------------------------------------------------------------

SNAPPY_CHUNK_HEADER: Final = Struct("type" / Int8ub, "length" / Int24ul)
"""`length` is that of the data after the header."""

SNAPPY_DATA_CHUNK: Final = Struct(
    "type" / Int8ub,
    "length" / Rebuild(Int24ul, lambda context: 4 + len(context.data)),
    "masked_crc" / Int32ul,
    "data" / Bytes(this.length - 4),
)
"""A chunk of type 0 (`data` is one raw snappy block) or 1 (`data` is plain), with the CRC-32C of the plain data."""

SNAPPY_STREAM_IDENTIFIER: Final = Struct(
    "type" / Const(0xFF, Int8ub), "length" / Const(6, Int24ul), "magic" / Const(b"sNaPpY")
)
"""The first chunk of a snappy stream, in each direction."""
