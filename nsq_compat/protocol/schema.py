"""Every byte layout of NSQ's protocols, declared once with construct. Integers are big-endian unless noted.

Parsing with construct takes tens of microseconds, so nothing here runs for each message. ``layout.derive`` makes fast
codecs of the fixed-size layouts; those of variable size are read by hand-written code. Tests compare both with these
declarations, in both directions. A change to a declaration is a change to the wire format.
"""

from typing import Any, Final

import construct as cs

MESSAGE_ID_LENGTH: Final = 16

# --- Opening a connection ---------------------------------------------------------------------------------------------

MAGIC_V1: Final = cs.Const(b"  V1")
"""To nsqlookupd."""

MAGIC_V2: Final = cs.Const(b"  V2")
"""To nsqd."""

# --- Commands with a body ---------------------------------------------------------------------------------------------

SIZE: Final = cs.Struct("size" / cs.Int32sb)
"""The number of bytes that follow; in an MPUB also the count of messages. Signed: a negative number is an error."""

SIZED_BODY: Final = cs.Prefixed(cs.Int32sb, cs.GreedyBytes)
"""Follows the line of PUB, DPUB, IDENTIFY and AUTH. A reply of nsqlookupd also has this form."""

HTTP_MPUB_BODY: Final = cs.Struct(
    "count" / cs.Rebuild(cs.Int32sb, lambda context: len(context.bodies)),
    "bodies" / cs.Array(cs.this.count, SIZED_BODY),
)
"""The body of ``POST /mpub?binary=true``."""

MPUB_BODY: Final = cs.Struct(
    "size" / cs.Rebuild(cs.Int32sb, lambda context: 4 + sum(4 + len(body) for body in context.bodies)),
    *HTTP_MPUB_BODY.subcons,
)
"""Follows an MPUB line. It ends after `count` bodies; like nsqd, nothing compares `size` with their sizes."""


class UniformBodies(tuple[bytes, ...]):
    """The bodies of an MPUB if all have one size; the reader has checked it.

    It is in this module because mypyc cannot compile a class derived from tuple.
    """

    __slots__ = ()


MPUB_HEADER: Final = cs.Struct("size" / cs.Int32sb, "count" / cs.Int32sb, "first_size" / cs.Int32sb)
"""The beginning of ``MPUB_BODY``, up to the first body."""

# --- Frames from nsqd -------------------------------------------------------------------------------------------------

FRAME_HEADER: Final = cs.Struct("size" / cs.Int32sb, "type" / cs.Int32sb)
"""`size` is that of the type (4) and the data."""


def _frame_of(kind: Any) -> cs.Struct:
    return cs.Struct(
        "size" / cs.Rebuild(cs.Int32sb, lambda context: 4 + len(context.data)),
        "type" / kind,
        "data" / cs.Bytes(cs.this.size - 4),
    )


FRAME: Final = _frame_of(cs.Int32sb)
RESPONSE_FRAME: Final = _frame_of(cs.Const(0, cs.Int32sb))
ERROR_FRAME: Final = _frame_of(cs.Const(1, cs.Int32sb))

MESSAGE_HEADER: Final = cs.Struct(
    "timestamp_ns" / cs.Int64sb,
    "attempts" / cs.Int16ub,
    "id" / cs.Bytes(MESSAGE_ID_LENGTH),
)
"""The beginning of a message frame's data; the rest is the body."""

MESSAGE: Final = cs.Struct(*MESSAGE_HEADER.subcons, "body" / cs.GreedyBytes)
"""The data of a message frame."""

MESSAGE_FRAME_HEADER: Final = cs.Struct(*FRAME_HEADER.subcons, *MESSAGE_HEADER.subcons)
"""Everything before the body of a message frame."""

MESSAGE_FRAME: Final = cs.Struct(
    "size" / cs.Rebuild(cs.Int32sb, lambda context: 4 + MESSAGE_HEADER.sizeof() + len(context.body)),
    "type" / cs.Const(2, cs.Int32sb),
    *MESSAGE_HEADER.subcons,
    "body" / cs.Bytes(cs.this.size - 4 - MESSAGE_HEADER.sizeof()),
)

# --- Message headers: not in NSQ (docs/decisions/0031) ----------------------------------------------------------------

MAX_HEADERS: Final = 64
"""Headers of one message."""
MAX_HEADER_NAME: Final = 128
"""Bytes."""
MAX_HEADER_VALUE: Final = 8192
"""Bytes: the longest `baggage` of W3C."""
MAX_HEADER_BLOCK: Final = 16384
"""Bytes of all headers of a message, with the sizes between them."""

HEADER: Final = cs.Struct(
    "name" / cs.Prefixed(cs.Int8ub, cs.GreedyBytes),
    "value" / cs.Prefixed(cs.Int16ub, cs.GreedyBytes),
)
"""`name` is a token as in HTTP, in lower case. `value` is UTF-8 without control characters, except for the tab."""

SHORT_SIZE: Final = cs.Struct("size" / cs.Int16ub)
"""The number of bytes of a header block, or of a value in it."""

HEADER_BLOCK: Final = cs.Prefixed(
    cs.Int16ub, cs.FocusedSeq("headers", "headers" / cs.GreedyRange(HEADER), cs.Terminated)
)
"""The headers of a message, each name once."""

PAYLOAD: Final = cs.Struct("headers" / HEADER_BLOCK, "body" / cs.GreedyBytes)
"""The body of HPUB, after its size, and each message of HMPUB. There, names may be in upper case, too."""

HMPUB_BODY: Final = cs.Prefixed(
    cs.Int32sb, cs.FocusedSeq("payloads", "payloads" / cs.PrefixedArray(cs.Int32sb, SIZED_BODY), cs.Terminated)
)
"""Follows an HMPUB line. Unlike that of an MPUB, its size has to be right."""

MESSAGE_FRAME_WITH_HEADERS: Final = cs.Struct(
    "size" / cs.Rebuild(cs.Int32sb, lambda context: 4 + MESSAGE_HEADER.sizeof() + len(PAYLOAD.build(context.payload))),
    "type" / cs.Const(3, cs.Int32sb),
    *MESSAGE_HEADER.subcons,
    "payload" / cs.FixedSized(cs.this.size - 4 - MESSAGE_HEADER.sizeof(), PAYLOAD),
)
"""A message that has headers: in the log, and to clients that asked for headers. Up to the id it is as without them."""

# --- nsqlookupd -------------------------------------------------------------------------------------------------------

LOOKUPD_IDENTIFY: Final = cs.Struct("line" / cs.Const(b"IDENTIFY\n"), "body" / SIZED_BODY)
"""The only command to nsqlookupd with a body, which is JSON."""

# --- Snappy framing format (little-endian) ----------------------------------------------------------------------------

SNAPPY_CHUNK_HEADER: Final = cs.Struct("type" / cs.Int8ub, "length" / cs.Int24ul)
"""`length` is that of the data after the header."""

SNAPPY_DATA_CHUNK: Final = cs.Struct(
    "type" / cs.Int8ub,
    "length" / cs.Rebuild(cs.Int24ul, lambda context: 4 + len(context.data)),
    "masked_crc" / cs.Int32ul,
    "data" / cs.Bytes(cs.this.length - 4),
)
"""A chunk of type 0 (`data` is one raw snappy block) or 1 (`data` is plain), with the CRC-32C of the plain data."""

SNAPPY_STREAM_IDENTIFIER: Final = cs.Struct(
    "type" / cs.Const(0xFF, cs.Int8ub), "length" / cs.Const(6, cs.Int24ul), "magic" / cs.Const(b"sNaPpY")
)
"""The first chunk of a snappy stream, in each direction."""
