"""A group: the frames of one publish as they stand in a log, all of them or none.

A group of several frames carries a checksum of each, looked at only when the group's own is wrong, and its header once
more behind the frames: a damaged record or a damaged header costs no other record.
"""

import struct
from collections.abc import Sequence
from itertools import starmap
from typing import Final, NamedTuple

import google_crc32c

from nsq_compat.protocol import storage_schema
from nsq_compat.protocol.frames import FRAME_HEADER, FRAME_TYPE_MESSAGE
from nsq_compat.protocol.layout import derive
from nsq_compat.protocol.message import HEADER_SIZE as MESSAGE_HEADER_SIZE
from nsq_compat.protocol.message import cut_uniform
from nsq_compat.protocol.storage_schema import (
    CHANNEL_CREATED,
    CHANNEL_DELETED,
    CHANNEL_EMPTIED,
    DEFERRED,
    GROUP_MAGIC,
    KINDS,
    MESSAGES,
    REQUEUED,
    TOPIC_AWAITS_CHANNELS,
    TOPIC_EMPTIED,
    TOPIC_KNOWS_CHANNELS,
    TOPIC_PAUSED,
    TOPIC_UNPAUSED,
    TRAILER_MAGIC,
)

__all__ = [
    "CHANNEL_CREATED",
    "CHANNEL_DELETED",
    "CHANNEL_EMPTIED",
    "DEFERRED",
    "MESSAGES",
    "REQUEUED",
    "TOPIC_AWAITS_CHANNELS",
    "TOPIC_EMPTIED",
    "TOPIC_KNOWS_CHANNELS",
    "TOPIC_PAUSED",
    "TOPIC_UNPAUSED",
    "Group",
    "GroupHeader",
]

_crc32c: Final = google_crc32c.value
_extend: Final = google_crc32c.extend
_MAGIC: Final = GROUP_MAGIC  # compiled, a name of another module is looked for in a dict
_MARK: Final = derive(storage_schema.GROUP_MARK)
_FIELDS: Final = derive(storage_schema.GROUP_FIELDS)
_HEADER: Final = derive(storage_schema.GROUP_HEADER)
HEADER_SIZE: Final = _HEADER.size
MARK_SIZE: Final = _MARK.size
CHECKSUM_SIZE: Final = 4
LOW_32: Final = 0xFFFFFFFF
"""What a place in a file is cut to before it is mixed into a header's checksum."""

unpack_header: Final = _HEADER.unpack_from
_frame_size: Final = struct.Struct(">I").unpack_from
_FRAME_TYPE: Final = FRAME_HEADER.pack(0, FRAME_TYPE_MESSAGE)[FRAME_HEADER.offset("type") :]

_ALIKE_AT_ONCE: Final = 256
"""Frames of one size; bounds what a remembered layout takes."""

_SECTOR: Final = 512
"""What a disk writes at once: when the power is cut, each of them is there or is not."""

_EFFORT: Final = 16
"""Frames are looked for in a damaged group until this many times its size was summed up: input made to be looked
through for ever is not."""


NOWHERE: Final = b""
"""The location of a message that is not in a segment, or of which it is not known where."""
_OFFSET_BITS: Final = 40
_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1
_LOCATION: Final = derive(storage_schema.CHECKPOINT_LOCATION)


def place_of(segment: int, offset: int) -> int:
    """A place in a log as one number."""
    return segment << _OFFSET_BITS | offset


def locations_of(place: int, frames: Sequence[bytes]) -> list[bytes]:
    """The locations of all messages of the group that begins there: they are in the order of the log."""
    count = len(frames)
    place += HEADER_SIZE + (count * CHECKSUM_SIZE if count > 1 else 0)
    locations: list[bytes] = []
    for frame in frames:
        locations.append(location_of(place, frame))
        place += len(frame)
    return locations


def location_of(place: int, frame: bytes) -> bytes:
    """The location of a frame that begins there: enough to read it without its group, and to know that it is sound."""
    return _LOCATION.pack(place, _crc32c(frame))


def split_location(location: bytes) -> tuple[int, int, int]:
    """The number of the segment, the offset of the frame in it and the frame's checksum."""
    place, crc = _LOCATION.unpack_from(location)
    return place >> _OFFSET_BITS, place & _OFFSET_MASK, crc


class Group(NamedTuple):
    """Frames that were published together; `due_ns` is wall clock, 0 for at once.

    Only MESSAGES groups have sequence numbers: `first_seq` for the first frame, one more for each that follows. The one
    "frame" of a control group is the name of the channel, empty for a topic; that of REQUEUED is in ``requeued``.
    `place` is where it begins in the log (``place_of``), 0 if that is not known.
    """

    kind: int
    first_seq: int
    due_ns: int
    frames: Sequence[bytes]
    place: int = 0


class GroupHeader(NamedTuple):
    """What stands before a group's frames, and where."""

    offset: int
    payload_crc: int
    first_seq: int
    due_ns: int
    size: int
    record_count: int
    kind: int

    @property
    def payload_begin(self) -> int:
        """Where checksums, if any, and frames begin."""
        return self.offset + HEADER_SIZE

    @property
    def payload_end(self) -> int:
        """Where the frames end."""
        return self.frames_begin + self.size

    @property
    def frames_begin(self) -> int:
        """Where the first frame begins."""
        return self.payload_begin + (self.record_count * CHECKSUM_SIZE if self.record_count > 1 else 0)

    @property
    def end(self) -> int:
        """Where the next group begins."""
        return self.payload_end + (HEADER_SIZE if self.record_count > 1 else 0)


def encode_group(
    kind: int, first_seq: int, due_ns: int, frames: Sequence[bytes], offset: int, joined: bytes = b""
) -> bytes:
    """A group as it is written at `offset` of a file; at least one frame. `joined`: the frames, if they are so."""
    # Hot: runs for every publish.
    count = len(frames)
    if count == 1:
        payload = frames[0]
        fields = _FIELDS.pack(_crc32c(payload), first_seq, due_ns, len(payload), 1, kind)
        crc: int = _crc32c(fields)
        return _MARK.pack(_MAGIC, crc ^ (offset & LOW_32)) + fields + payload
    # zip makes the tuples of arguments, one and the same again and again, and starmap hands them on as they are: a
    # seventh less for each checksum than with map.
    checksums = struct.pack(f">{count}I", *starmap(_crc32c, zip(frames)))  # noqa: RUF058
    joined = joined or b"".join(frames)
    fields = _FIELDS.pack(_extend(_crc32c(checksums), joined), first_seq, due_ns, len(joined), count, kind)
    header_crc = _crc32c(fields) ^ (offset & LOW_32)
    header, trailer = _MARK.pack(_MAGIC, header_crc), _MARK.pack(TRAILER_MAGIC, header_crc)
    return b"".join((header, fields, checksums, joined, trailer, fields))


def header_of(data: bytes, offset: int) -> GroupHeader:
    """The header of a group just encoded."""
    _, _, *fields = unpack_header(data, 0)
    return GroupHeader(offset, *fields)


def encode_headers(header: GroupHeader) -> tuple[bytes, bytes]:
    """What stands before a group's frames, and behind them: nothing if it has one frame only."""
    fields = _FIELDS.pack(
        header.payload_crc, header.first_seq, header.due_ns, header.size, header.record_count, header.kind
    )
    crc = _crc32c(fields) ^ (header.offset & LOW_32)
    front = _MARK.pack(_MAGIC, crc) + fields
    return front, _MARK.pack(TRAILER_MAGIC, crc) + fields if header.record_count > 1 else b""


def decode_header(data: bytes, at: int, offset: int) -> GroupHeader | None:
    """The header at `data[at:]`, which is at `offset` of the file; None if there is none, or it is damaged."""
    if len(data) - at < HEADER_SIZE or not data.startswith(GROUP_MAGIC, at):
        return None
    _, header_crc, *fields = unpack_header(data, at)
    header = GroupHeader(offset, *fields)
    return header if _is_sound(header, data, at, header_crc) else None


def decode_trailer(data: bytes, at: int, offset: int) -> GroupHeader | None:
    """The header of the group whose trailer is at `data[at:]`; None if there is none, or it is damaged."""
    if len(data) - at < HEADER_SIZE or not data.startswith(TRAILER_MAGIC, at):
        return None
    _, header_crc, *fields = unpack_header(data, at)
    header = GroupHeader(0, *fields)
    begin = offset - header.payload_end
    header = header._replace(offset=begin)
    return header if begin >= 0 and header.record_count > 1 and _is_sound(header, data, at, header_crc) else None


def _is_sound(header: GroupHeader, data: bytes, at: int, header_crc: int) -> bool:
    return (
        header.kind in KINDS
        and header.record_count > 0
        and _crc32c(data[at + MARK_SIZE : at + HEADER_SIZE]) == header_crc ^ (header.offset & LOW_32)
    )


def cut_frames(data: bytes, at: int, end: int, count: int) -> list[bytes]:
    """The `count` frames in `data[at:end]`, which is known to be undamaged."""
    # Hot: runs for every message read back. A frame's size does not count the four bytes of the size itself.
    size = 4 + _frame_size(data, at)[0]
    if count * size == end - at and count <= _ALIKE_AT_ONCE and _are_alike(data, at, end, size, count):
        return list(cut_uniform(data, size, at, count))
    frames: list[bytes] = []
    add, read_size = frames.append, _frame_size
    last = end - 4
    while at <= last:
        stop = at + 4 + read_size(data, at)[0]
        add(data[at:stop])
        at = stop
    return frames


def _are_alike(data: bytes, at: int, end: int, size: int, count: int) -> bool:
    """Whether the four bytes that say a frame's size are the same in all of them."""
    return all(data[at + byte : end : size] == data[at + byte : at + byte + 1] * count for byte in range(4))


def salvage(header: GroupHeader, data: bytes) -> list[Group] | None:
    """The undamaged records of a damaged group, as groups without gaps; `data` is all of the group.

    None if the group was never wholly written, which shows by a sector of zeros in it: it is all or nothing.
    """
    frames_begin, frames_end = header.frames_begin - header.offset, header.payload_end - header.offset
    expected = struct.unpack_from(f">{header.record_count}I", data, HEADER_SIZE) if header.record_count > 1 else ()
    found = _find_frames(data, frames_begin, frames_end, expected) if expected else []
    if _is_torn(header.offset, data, frames_end, found):
        return None
    return _without_gaps(header, found)


def is_hole(data: bytes, offset: int) -> bool:
    """Whether what begins at `offset` of a file begins with the rest of a sector that was never written."""
    return not any(data[: _SECTOR - offset % _SECTOR])


class _Found(NamedTuple):
    number: int
    begin: int
    frame: bytes


def _find_frames(data: bytes, at: int, end: int, expected: Sequence[int]) -> list[_Found]:
    """Frames in `data[at:end]` whose checksum is an expected one, in order."""
    wanted: dict[int, list[int]] = {}
    for position, checksum in enumerate(expected):
        wanted.setdefault(checksum, []).append(position)
    found: list[_Found] = []
    next_number = 0
    effort = _EFFORT * len(data)
    while at < end and effort > 0:
        frame = _plausible_frame(data, at, end)
        if frame:
            effort -= len(frame)
            number = next((each for each in wanted.get(_crc32c(frame), ()) if each >= next_number), None)
            if number is not None:
                found.append(_Found(number, at, frame))
                next_number = number + 1
                at += len(frame)
                continue
        # Damaged: the next frame is where a frame's type is and its checksum fits. The type stands behind the size.
        place = data.find(_FRAME_TYPE, at + 5, end)
        at = place - 4 if place >= 0 else end
    return found


def _plausible_frame(data: bytes, at: int, end: int) -> bytes | None:
    if at + MESSAGE_HEADER_SIZE > end or not data.startswith(_FRAME_TYPE, at + 4):
        return None
    stop = at + 4 + _frame_size(data, at)[0]
    return data[at:stop] if at + MESSAGE_HEADER_SIZE <= stop <= end else None


def _is_torn(offset: int, data: bytes, frames_end: int, found: Sequence[_Found]) -> bool:
    """Whether a sector holds nothing but zeros, as far as it is the group's, and more than the trailer is in it."""
    rest = bytearray(data)
    for _, begin, frame in found:
        rest[begin : begin + len(frame)] = b"\1" * len(frame)
    starts = [0, *range(-offset % _SECTOR or _SECTOR, frames_end, _SECTOR)]
    return any(not any(rest[start : start + _SECTOR - (offset + start) % _SECTOR]) for start in starts)


def _without_gaps(header: GroupHeader, found: Sequence[_Found]) -> list[Group]:
    groups: list[Group] = []
    run: list[bytes] = []
    expected = -1
    for number, _, frame in found:
        if number != expected:
            run = []
            first_seq = header.first_seq + (number if header.kind == MESSAGES else 0)
            groups.append(Group(header.kind, first_seq, header.due_ns, run))
        run.append(frame)
        expected = number + 1
    return groups
