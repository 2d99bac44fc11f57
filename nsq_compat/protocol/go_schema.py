"""The records of Go nsqd's files of queued messages (go-diskqueue), declared with construct. Big-endian throughout.

A file is record behind record, without a checksum and without anything at either end. Where reading and writing stand
is in a file of its own, as text: see ``queue.go_data``.
"""

from typing import Final

from construct import Bytes, Int32sb, Rebuild, Struct, this

from nsq_compat.protocol.schema import MESSAGE_HEADER

RECORD_HEADER: Final = Struct("size" / Int32sb, *MESSAGE_HEADER.subcons)
"""``size`` counts what follows it: the rest of the header and the body. ``attempts`` counts the deliveries so far, 0
for a message that no consumer has seen."""

RECORD: Final = Struct(
    "size" / Rebuild(Int32sb, lambda context: MESSAGE_HEADER.sizeof() + len(context.body)),
    *MESSAGE_HEADER.subcons,
    "body" / Bytes(this.size - MESSAGE_HEADER.sizeof()),
)
