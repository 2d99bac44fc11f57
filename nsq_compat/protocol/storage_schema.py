"""The layouts of files, declared with construct as ``schema`` declares those of the wire: a topic's log and its
checkpoint, and the disk queues of Go's nsqd. All integers are big-endian.

A change here changes files that exist. Give the magic of the file a new version, and keep reading the old one. Leave
the layout of SEGMENT_HEADER as it is: by its magic and checksum, earlier versions notice that the file is not theirs,
and refuse to start.
"""

from typing import Final

import construct as cs

from nsq_compat.protocol.schema import MESSAGE_HEADER

# --- Log --------------------------------------------------------------------------------------------------------------
#
# A segment is a file: a segment header, then one group after the other. Zeros where a group should begin mean that the
# rest was reserved and never written. ``log.group_reader`` describes how damage is distinguished from the end.

ANY_MAGIC: Final = b"nsq"
"""The beginning of all segments, also of later versions."""
SEGMENT_MAGIC: Final = b"nsq\x03"
"""The last byte is the version of the log's layouts."""
SEGMENT_MAGIC_2: Final = b"nsqlog\x00\x02"
"""In the place of SEGMENT_MAGIC and the salt in version 2, which differs only in that it has no salt."""
SEGMENT_MAGIC_1: Final = b"nsqlog\x00\x01"
"""The same in version 1, where only messages that are due at once have a number: in MESSAGES and control groups
`due_ns` is 0, and `first_seq` of a DEFERRED group is the number of the next message. ``log.migration`` turns it into
version 2."""
RELEASED_MAGIC: Final = b"nsqgone\x01"
"""Replaces SEGMENT_MAGIC and the salt in a file that has no message that is still needed."""
SALT_SIZE: Final = 4

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
CHANNEL_MOVED: Final = 12
TOPIC_HAS_HEADERS: Final = 13
PUBLISH_IDS: Final = 14
KINDS: Final = range(MESSAGES, PUBLISH_IDS + 1)

SEGMENT_HEADER: Final = cs.Struct(
    "magic" / cs.Bytes(len(SEGMENT_MAGIC) + SALT_SIZE),
    "first_seq" / cs.Int64ub,
    "crc" / cs.Int32ub,
)
"""`magic`: SEGMENT_MAGIC and the salt, a random number that is not zero, or a magic without a salt. `first_seq`:
messages in this file have this number or a greater one, messages in earlier files have smaller ones. `crc`: CRC-32C of
the preceding fields."""

GROUP_MARK: Final = cs.Struct("magic" / cs.Bytes(4), "header_crc" / cs.Int32ub)
"""`header_crc`: CRC-32C of the GROUP_FIELDS that follow, xor the low 32 bits of the group's offset in the file, xor the
segment's salt, which is zero if it has none. The offset distinguishes a group from a copy of it in a message body. The
salt keeps a producer from computing what a header would be at some offset."""

GROUP_FIELDS: Final = cs.Struct(
    "payload_crc" / cs.Int32ub,
    "first_seq" / cs.Int64ub,
    "due_ns" / cs.Int64sb,
    "size" / cs.Int32ub,
    "count" / cs.Int32ub,
    "kind" / cs.Int32ub,
)
"""`payload_crc`: CRC-32C of checksums and frames. `size`: bytes of frames. `kind` is last because it is never zero.

`first_seq` is the number of the first message, or of the next one in a control group. Messages that are due at once are
numbered by themselves. An offset counts the deferred ones too: `first_seq` of a DEFERRED group is the offset of its
first message, and `due_ns` its due time. In all other groups, `due_ns` is the number of deferred messages before it, so
`first_seq` plus `due_ns` is an offset."""

GROUP_HEADER: Final = cs.Struct(*GROUP_MARK.subcons, *GROUP_FIELDS.subcons)

SINGLE_GROUP: Final = cs.Struct(*GROUP_HEADER.subcons, "frame" / cs.Bytes(cs.this.size))
"""A group of one frame."""

GROUP: Final = cs.Struct(
    *GROUP_HEADER.subcons,
    "checksums" / cs.Array(cs.this.count, cs.Int32ub),
    "frames" / cs.Bytes(cs.this.size),
    "trailer" / cs.Struct("magic" / cs.Const(TRAILER_MAGIC), "header_crc" / cs.Int32ub, *GROUP_FIELDS.subcons),
)
"""A group of several frames. `checksums` are the CRC-32C of each frame, `trailer` repeats the header."""

REQUEUED_MESSAGE: Final = cs.Struct("due_ns" / cs.Int64sb, "id" / cs.Bytes(16), "attempts" / cs.Int16ub)
"""A message that a consumer requeued with a delay: its due time in nanoseconds since 1970, and the number of its next
delivery."""

REQUEUED_MESSAGES: Final = cs.Struct(
    "name_length" / cs.Int8ub,
    "name" / cs.Bytes(cs.this.name_length),
    "messages" / cs.GreedyRange(REQUEUED_MESSAGE),
)
"""The frame of a REQUEUED group: messages of one channel, in the order in which they were requeued."""

REPLAY: Final = cs.Struct(
    "moved_ns" / cs.Int64sb,
    "again_from" / cs.Int64ub,
    "again_to" / cs.Int64ub,
    "count" / cs.Int32ub,
    "ranges" / cs.Array(cs.this.count, cs.Struct("begin" / cs.Int64ub, "end" / cs.Int64ub)),
)
"""What a channel that was moved back delivers before it goes on in the stream: ``checkpoint.Replay``."""

MOVED_CHANNEL: Final = cs.Struct(
    "name_length" / cs.Int8ub,
    "name" / cs.Bytes(cs.this.name_length),
    "reached" / cs.Int64ub,
    "skip_from" / cs.Int64ub,
    "skip_to" / cs.Int64ub,
    "drops" / cs.Int8ub,
    "replay" / REPLAY,
)
"""The frame of a CHANNEL_MOVED group. `reached`: the offset that an earlier replay had reached. `skip_from`, `skip_to`:
the numbers that the channel no longer delivers from the stream. `drops`: 1 if what it had taken and not finished was
dropped."""

DIGEST_SIZE: Final = 16

ADOPTED_IDS: Final = cs.Struct("time_ns" / cs.Int64sb, "digests" / cs.GreedyRange(cs.Bytes(DIGEST_SIZE)))
"""The frame of a PUBLISH_IDS group: hashes of publish ids of another nsqd that was taken over, and when the last was
published, in nanoseconds since 1970. The ids of the topic's own messages are in the messages."""

# --- Checkpoint -------------------------------------------------------------------------------------------------------

CHECKPOINT_MAGIC: Final = b"NQC1"

CHECKPOINT_HEADER: Final = cs.Struct(
    "magic" / cs.Bytes(4),
    "crc" / cs.Int32ub,
    "log_segment" / cs.Int64sb,
    "log_offset" / cs.Int64sb,
    "log_seq" / cs.Int64ub,
    "clock_offset" / cs.Float64b,
    "last_id" / cs.Bytes(16),
    "held_back" / cs.Int8ub,
    "channels" / cs.Int32ub,
)
"""`crc`: CRC-32C of everything that follows it. `log_*`: the end of the log at that time, where recovery begins to
replay. `clock_offset` turns the entries' monotonic due times into seconds since 1970. `last_id`: the greatest message
id given out. `held_back`: flags; 1: the topic is paused, 2: it waits until its channels are known, 4: messages may be
missing in the log, 8: messages may have headers."""

CHECKPOINT_CHANNEL: Final = cs.Struct(
    "name_length" / cs.Int8ub,
    "position" / cs.Int64ub,
    "gaps" / cs.Int32ub,
    "entries" / cs.Int32ub,
)
"""An empty name stands for the topic itself, which holds messages that no channel has received."""

CHECKPOINT_GAP: Final = cs.Struct("begin" / cs.Int64ub, "end" / cs.Int64ub)
"""A range of message numbers after `position` that the channel does not deliver; `end` is not part of it."""

CHECKPOINT_ENTRY: Final = cs.Struct(
    "due" / cs.Float64b,
    "serial" / cs.Int64ub,
    "id" / cs.Bytes(16),
    "attempts" / cs.Int16ub,
)
"""A message that was taken from the stream and is not finished. `due` 0 means at once; `serial` orders messages with
equal due times. Entries sorted as bytes are sorted by due time."""

CHECKPOINT_LOCATION: Final = cs.Struct("place" / cs.Int64ub, "frame_crc" / cs.Int32ub)
"""Where an entry's message is in the log. `place`: the segment's number in the upper 24 bits, the frame's offset in the
lower 40; all zeros if unknown. `frame_crc`: CRC-32C of the frame."""

LOCATIONS_MAGIC: Final = b"NQL1"

CHECKPOINT_REPLAY: Final = cs.Struct(
    "name_length" / cs.Int8ub, "name" / cs.Bytes(cs.this.name_length), "replay" / REPLAY
)

REPLAYS_MAGIC: Final = b"NQR1"

EMPTIED_MAGIC: Final = b"NQE1"

CHECKPOINT: Final = cs.Struct(
    "header" / CHECKPOINT_HEADER,
    "states"
    / cs.Array(
        cs.this.header.channels,
        cs.Struct(
            "channel" / CHECKPOINT_CHANNEL,
            "name" / cs.Bytes(cs.this.channel.name_length),
            "gaps" / cs.Array(cs.this.channel.gaps, CHECKPOINT_GAP),
            "entries" / cs.Array(cs.this.channel.entries, CHECKPOINT_ENTRY),
        ),
    ),
    "locations"
    / cs.Optional(
        cs.Struct(
            "magic" / cs.Const(LOCATIONS_MAGIC),
            "locations"
            / cs.Array(
                cs.this._.header.channels,
                cs.Array(lambda context: context._.states[context._index].channel.entries, CHECKPOINT_LOCATION),
            ),
        )
    ),
    "replays"
    / cs.Optional(
        cs.Struct(
            "magic" / cs.Const(REPLAYS_MAGIC),
            "count" / cs.Int32ub,
            "replays" / cs.Array(cs.this.count, CHECKPOINT_REPLAY),
        )
    ),
    "emptied" / cs.Optional(cs.Struct("magic" / cs.Const(EMPTIED_MAGIC), "offset" / cs.Int64ub)),
)
"""The file. `locations` are those of all entries, in the order of the entries. `replays` are those of the channels that
have one. `emptied` is the next offset when the topic was emptied last, if it ever was. Earlier versions neither write
nor read these three."""

# --- Disk queues of Go's nsqd (go-diskqueue) --------------------------------------------------------------------------
#
# A data file is one record after the other, without checksums and without a header or trailer. The read and write
# positions are in a separate text file: see ``godata.format``.

GO_RECORD_HEADER: Final = cs.Struct("size" / cs.Int32sb, *MESSAGE_HEADER.subcons)
"""`size` counts the fields that follow it and the body. `attempts` counts the deliveries so far: 0 for a message that
was not delivered yet."""

GO_RECORD: Final = cs.Struct(
    "size" / cs.Rebuild(cs.Int32sb, lambda context: MESSAGE_HEADER.sizeof() + len(context.body)),
    *MESSAGE_HEADER.subcons,
    "body" / cs.Bytes(cs.this.size - MESSAGE_HEADER.sizeof()),
)
