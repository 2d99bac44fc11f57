"""A topic's checkpoint on disk, declared with construct: where each channel stands and what it has not finished.

header, then for each channel: channel header, name, gaps, entries; then for each channel the locations of its entries
"""

from typing import Final

from construct import Array, Bytes, Const, Float64b, Int8ub, Int16ub, Int32ub, Int64sb, Int64ub, Optional, Struct, this

CHECKPOINT_HEADER: Final = Struct(
    "magic" / Const(b"NQC1"),
    "crc" / Int32ub,
    "log_segment" / Int64sb,
    "log_offset" / Int64sb,
    "log_seq" / Int64ub,
    "clock_offset" / Float64b,
    "last_id" / Bytes(16),
    "held_back" / Int8ub,
    "channels" / Int32ub,
)
"""``crc`` is the CRC-32C of everything behind it. The log's end is where recovery begins to look. ``clock_offset``
turns the entries' monotonic due times into seconds since 1970. ``last_id`` is the greatest message id given out.
``held_back`` says why a topic holds back what is published: 1 if it is paused, 2 if it waits to know its channels, 3
for both."""

CHECKPOINT_CHANNEL: Final = Struct(
    "name_length" / Int8ub,
    "position" / Int64ub,
    "gaps" / Int32ub,
    "entries" / Int32ub,
)
"""A name of length 0 is the topic itself, holding what no channel has got."""

CHECKPOINT_GAP: Final = Struct(
    "begin" / Int64ub,
    "end" / Int64ub,
)
"""A part of the stream behind ``position`` that is not for this channel: from the first number up to the second."""

CHECKPOINT_ENTRY: Final = Struct(
    "due" / Float64b,
    "serial" / Int64ub,
    "id" / Bytes(16),
    "attempts" / Int16ub,
)
"""A message that was taken from the stream and is not finished; ``due`` 0 means at once, ``serial`` keeps the order of
those with equal due times. Sorted as bytes, entries are sorted by due time."""

CHECKPOINT_LOCATION: Final = Struct(
    "place" / Int64ub,
    "frame_crc" / Int32ub,
)
"""Where in the log an entry's message is: `place` is the number of the segment in the upper 24 bits, the offset of the
frame in the lower 40; all zeros if that is not known. ``frame_crc`` is the CRC-32C of the frame as it stands there."""

LOCATIONS_MAGIC: Final = b"NQL1"

CHECKPOINT: Final = Struct(
    "header" / CHECKPOINT_HEADER,
    "places"
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
            "places"
            / Array(
                this._.header.channels,
                Array(lambda context: context._.places[context._index].channel.entries, CHECKPOINT_LOCATION),
            ),
        )
    ),
)
"""All of it. The locations are those of all entries, in their order; there are none in checkpoints of versions that did
not know them, which do not read them either."""
