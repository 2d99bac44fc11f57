"""The layouts of a topic's log on disk, declared like those of the wire in ``schema``. All integers are big-endian.

A file is a segment header and groups, one behind the other; zeros where a group should begin mean that the rest was
reserved and never written. How damage is told from the end is said in ``queue.group_reader``.

Whoever changes a declaration changes files that exist: give SEGMENT_MAGIC a new version and keep reading the old one.
"""

from typing import Final

from construct import Array, Bytes, Const, GreedyRange, Int8ub, Int16ub, Int32ub, Int64sb, Int64ub, Struct, this

SEGMENT_MAGIC: Final = b"nsqlog\x00\x01"
"""The last byte is the version of everything declared here."""
RELEASED_MAGIC: Final = b"nsqgone\x01"
"""In its place: nothing in this file is needed any more."""

GROUP_MAGIC: Final = b"\xabNg\xd5"
TRAILER_MAGIC: Final = b"\xabNt\xd5"
MAGIC_PREFIX: Final = b"\xabN"
"""What the two have in common, for searching both at once."""

MESSAGES: Final = 1
DEFERRED: Final = 2
CHANNEL_CREATED: Final = 3
CHANNEL_DELETED: Final = 4
CHANNEL_EMPTIED: Final = 5
TOPIC_EMPTIED: Final = 6
TOPIC_PAUSED: Final = 7
TOPIC_UNPAUSED: Final = 8
TOPIC_AWAITS_CHANNELS: Final = 9
TOPIC_KNOWS_CHANNELS: Final = 10
REQUEUED: Final = 11
KINDS: Final = range(MESSAGES, REQUEUED + 1)

SEGMENT_HEADER: Final = Struct(
    "magic" / Bytes(len(SEGMENT_MAGIC)),
    "first_seq" / Int64ub,
    "crc" / Int32ub,
)
"""`first_seq`: no message in this file has a smaller number, none in an earlier file this one or a greater. `crc`:
CRC-32C of what stands before it."""

GROUP_MARK: Final = Struct("magic" / Bytes(4), "header_crc" / Int32ub)
"""`header_crc`: CRC-32C of the GROUP_FIELDS behind it, xor the place in the file where the group begins (its low 32
bits), so that a copy of a group inside somebody's message is not taken for one."""

GROUP_FIELDS: Final = Struct(
    "payload_crc" / Int32ub,
    "first_seq" / Int64ub,
    "due_ns" / Int64sb,
    "size" / Int32ub,
    "count" / Int32ub,
    "kind" / Int32ub,
)
"""`payload_crc`: CRC-32C of checksums and frames. `size`: bytes of frames. `kind` is last because it is never zero."""

GROUP_HEADER: Final = Struct(*GROUP_MARK.subcons, *GROUP_FIELDS.subcons)

SINGLE_GROUP: Final = Struct(*GROUP_HEADER.subcons, "frame" / Bytes(this.size))
"""A group of one frame."""

GROUP: Final = Struct(
    *GROUP_HEADER.subcons,
    "checksums" / Array(this.count, Int32ub),
    "frames" / Bytes(this.size),
    "trailer" / Struct("magic" / Const(TRAILER_MAGIC), "header_crc" / Int32ub, *GROUP_FIELDS.subcons),
)
"""A group of several: `checksums` holds the CRC-32C of each frame, `trailer` the header once more."""

REQUEUED_MESSAGE: Final = Struct("due_ns" / Int64sb, "id" / Bytes(16), "attempts" / Int16ub)
"""A message that a consumer put back with a delay: when it is due (nanoseconds since 1970), and the number of its next
delivery."""

REQUEUED_MESSAGES: Final = Struct(
    "name_length" / Int8ub,
    "name" / Bytes(this.name_length),
    "messages" / GreedyRange(REQUEUED_MESSAGE),
)
"""The frame of a REQUEUED group: messages of one channel, in the order in which they were put back."""
