"""The layouts of files, declared with construct as ``schema`` declares those of the wire: a topic's log and its
checkpoint, and the disk queues of Go's nsqd. All integers are big-endian.

A change here changes files that exist. Give the magic of the file a new version, and keep reading the old one.
"""

from typing import Final

from construct import (
    Array,
    Bytes,
    Const,
    Float64b,
    GreedyRange,
    Int8ub,
    Int16ub,
    Int32sb,
    Int32ub,
    Int64sb,
    Int64ub,
    Optional,
    Rebuild,
    Struct,
    this,
)

from nsq_compat.protocol.schema import MESSAGE_HEADER

# --- Log --------------------------------------------------------------------------------------------------------------
#
# A segment is a file: a segment header, then one group after the other. Zeros where a group should begin mean that the
# rest was reserved and never written. ``log.group_reader`` describes how damage is told from the end.

SEGMENT_MAGIC: Final = b"nsqlog\x00\x01"
"""The last byte is the version of the log's layouts."""
RELEASED_MAGIC: Final = b"nsqgone\x01"
"""Replaces SEGMENT_MAGIC in a file of which nothing is needed any more."""

GROUP_MAGIC: Final = b"\xabNg\xd5"
TRAILER_MAGIC: Final = b"\xabNt\xd5"
MAGIC_PREFIX: Final = b"\xabN"
"""The common prefix, to search for both at once."""

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
"""`first_seq`: messages in this file have this number or a greater one, messages in earlier files have smaller ones.
`crc`: CRC-32C of the preceding fields."""

GROUP_MARK: Final = Struct("magic" / Bytes(4), "header_crc" / Int32ub)
"""`header_crc`: CRC-32C of the GROUP_FIELDS that follow, xor the low 32 bits of the group's offset in the file. The
offset distinguishes a group from a copy of it in a message body."""

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
"""A group of several frames. `checksums` are the CRC-32C of each frame, `trailer` repeats the header."""

REQUEUED_MESSAGE: Final = Struct("due_ns" / Int64sb, "id" / Bytes(16), "attempts" / Int16ub)
"""A message that a consumer requeued with a delay: its due time in nanoseconds since 1970, and the number of its next
delivery."""

REQUEUED_MESSAGES: Final = Struct(
    "name_length" / Int8ub,
    "name" / Bytes(this.name_length),
    "messages" / GreedyRange(REQUEUED_MESSAGE),
)
"""The frame of a REQUEUED group: messages of one channel, in the order in which they were requeued."""

# --- Checkpoint -------------------------------------------------------------------------------------------------------

CHECKPOINT_MAGIC: Final = b"NQC1"

CHECKPOINT_HEADER: Final = Struct(
    "magic" / Bytes(4),
    "crc" / Int32ub,
    "log_segment" / Int64sb,
    "log_offset" / Int64sb,
    "log_seq" / Int64ub,
    "clock_offset" / Float64b,
    "last_id" / Bytes(16),
    "held_back" / Int8ub,
    "channels" / Int32ub,
)
"""`crc`: CRC-32C of everything that follows it. `log_*`: the end of the log at that time, where recovery begins to
replay. `clock_offset` turns the entries' monotonic due times into seconds since 1970. `last_id`: the greatest message
id given out. `held_back`: flags; 1: the topic is paused, 2: it waits until its channels are known, 4: messages may be
missing in the log."""

CHECKPOINT_CHANNEL: Final = Struct(
    "name_length" / Int8ub,
    "position" / Int64ub,
    "gaps" / Int32ub,
    "entries" / Int32ub,
)
"""An empty name stands for the topic itself, which holds messages that no channel has received."""

CHECKPOINT_GAP: Final = Struct(
    "begin" / Int64ub,
    "end" / Int64ub,
)
"""A range of message numbers after `position` that the channel does not deliver; `end` is not part of it."""

CHECKPOINT_ENTRY: Final = Struct(
    "due" / Float64b,
    "serial" / Int64ub,
    "id" / Bytes(16),
    "attempts" / Int16ub,
)
"""A message that was taken from the stream and is not finished. `due` 0 means at once; `serial` orders messages with
equal due times. Entries sorted as bytes are sorted by due time."""

CHECKPOINT_LOCATION: Final = Struct(
    "place" / Int64ub,
    "frame_crc" / Int32ub,
)
"""Where an entry's message is in the log. `place`: the segment's number in the upper 24 bits, the frame's offset in the
lower 40; all zeros if unknown. `frame_crc`: CRC-32C of the frame."""

LOCATIONS_MAGIC: Final = b"NQL1"

CHECKPOINT: Final = Struct(
    "header" / CHECKPOINT_HEADER,
    "states"
    / Array(
        this.header.channels,
        Struct(
            "channel" / CHECKPOINT_CHANNEL,
            "name" / Bytes(this.channel.name_length),
            "gaps" / Array(this.channel.gaps, CHECKPOINT_GAP),
            "entries" / Array(this.channel.entries, CHECKPOINT_ENTRY),
        ),
    ),
    "locations"
    / Optional(
        Struct(
            "magic" / Const(LOCATIONS_MAGIC),
            "locations"
            / Array(
                this._.header.channels,
                Array(lambda context: context._.states[context._index].channel.entries, CHECKPOINT_LOCATION),
            ),
        )
    ),
)
"""The file. `locations` are those of all entries, in the order of the entries. Earlier versions neither write nor read
them."""

# --- Disk queues of Go's nsqd (go-diskqueue) --------------------------------------------------------------------------
#
# A data file is one record after the other, without checksums and without a header or trailer. The read and write
# positions are in a separate text file: see ``godata.format``.

GO_RECORD_HEADER: Final = Struct("size" / Int32sb, *MESSAGE_HEADER.subcons)
"""`size` counts the fields that follow it and the body. `attempts` counts the deliveries so far: 0 for a message that
was not delivered yet."""

GO_RECORD: Final = Struct(
    "size" / Rebuild(Int32sb, lambda context: MESSAGE_HEADER.sizeof() + len(context.body)),
    *MESSAGE_HEADER.subcons,
    "body" / Bytes(this.size - MESSAGE_HEADER.sizeof()),
)
