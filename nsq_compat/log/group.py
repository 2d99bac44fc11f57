"""A group: the frames of one publish as they are stored in a log, all or none of them.

A group of several frames also contains a checksum of each frame, which is used only if the group's own checksum is
wrong, and a copy of its header after the frames. So damage to a frame or to the header does not affect other frames.
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
from nsq_compat.protocol.storage_schema import GROUP_MAGIC, KINDS, MESSAGES, TRAILER_MAGIC

_crc32c: Final = google_crc32c.value
_extend: Final = google_crc32c.extend
_MAGIC: Final = GROUP_MAGIC  # compiled, a name of another module costs a dict lookup
_MARK: Final = derive(storage_schema.GROUP_MARK)
_FIELDS: Final = derive(storage_schema.GROUP_FIELDS)
_HEADER: Final = derive(storage_schema.GROUP_HEADER)
HEADER_SIZE: Final = _HEADER.size
MARK_SIZE: Final = _MARK.size
CHECKSUM_SIZE: Final = 4
LOW_32: Final = 0xFFFFFFFF
"""Mask of the bits of a group's offset that are mixed into its header's checksum."""

unpack_header: Final = _HEADER.unpack_from
_frame_size: Final = struct.Struct(">I").unpack_from
_FRAME_TYPE: Final = FRAME_HEADER.pack(0, FRAME_TYPE_MESSAGE)[FRAME_HEADER.offset("type") :]

_MAX_UNIFORM_FRAMES: Final = 256
"""Frames of one size that are cut with one cached layout; bounds the size of such a layout."""

SECTOR: Final = 512
"""Bytes that a disk writes atomically: after a power cut each sector is written or is not."""

_MAX_SCAN_FACTOR: Final = 16
"""The search for frames in a damaged group ends after computing checksums of this many times its size."""


NOWHERE: Final = b""
"""The location of a message that is not in a segment, or has no known location."""
_OFFSET_BITS: Final = 40
_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1
_LOCATION: Final = derive(storage_schema.CHECKPOINT_LOCATION)


def place_of(segment: int, offset: int) -> int:
    return segment << _OFFSET_BITS | offset


def locations_of(place: int, frames: Sequence[bytes]) -> list[bytes]:
    """The locations of all messages of the group that begins at `place`. They sort in the order of the log."""
    count = len(frames)
    place += HEADER_SIZE + (count * CHECKSUM_SIZE if count > 1 else 0)
    locations: list[bytes] = []
    for frame in frames:
        locations.append(location_of(place, frame))
        place += len(frame)
    return locations


def location_of(place: int, frame: bytes) -> bytes:
    """The location of a frame that begins at `place`: enough to read it without its group, and to verify it."""
    return _LOCATION.pack(place, _crc32c(frame))


def split_location(location: bytes) -> tuple[int, int, int]:
    """Segment number, offset of the frame in the segment, and checksum of the frame."""
    place, crc = _LOCATION.unpack_from(location)
    return place >> _OFFSET_BITS, place & _OFFSET_MASK, crc


class Group(NamedTuple):
    """Frames that were published together. `due_ns` is wall-clock time, 0 for at once.

    Only MESSAGES groups have message numbers: `first_seq` is that of the first frame. A control group has one frame,
    the name of the channel, which is empty for the topic; ``control_log`` describes that of REQUEUED. `place` is where
    the group begins (``place_of``), 0 if unknown.
    """

    kind: int
    first_seq: int
    due_ns: int
    frames: Sequence[bytes]
    place: int = 0


class GroupHeader(NamedTuple):
    """The decoded header of a group, and its offset."""

    offset: int
    payload_crc: int
    first_seq: int
    due_ns: int
    size: int
    record_count: int
    kind: int

    @property
    def payload_begin(self) -> int:
        """Offset of the checksums, if any, and frames."""
        return self.offset + HEADER_SIZE

    @property
    def payload_end(self) -> int:
        return self.frames_begin + self.size

    @property
    def frames_begin(self) -> int:
        return self.payload_begin + (self.record_count * CHECKSUM_SIZE if self.record_count > 1 else 0)

    @property
    def end(self) -> int:
        return self.payload_end + (HEADER_SIZE if self.record_count > 1 else 0)


def encode_group(
    kind: int, first_seq: int, due_ns: int, frames: Sequence[bytes], offset: int, joined: bytes = b""
) -> bytes:
    """The bytes of a group of at least one frame, to be written at `offset`. `joined`: the joined frames, if known."""
    # Hot: runs for every publish.
    count = len(frames)
    if count == 1:
        payload = frames[0]
        fields = _FIELDS.pack(_crc32c(payload), first_seq, due_ns, len(payload), 1, kind)
        crc: int = _crc32c(fields)
        return _MARK.pack(_MAGIC, crc ^ (offset & LOW_32)) + fields + payload
    # zip reuses one argument tuple, and starmap passes it on as it is: a seventh less for each checksum than with map.
    checksums = struct.pack(f">{count}I", *starmap(_crc32c, zip(frames)))  # noqa: RUF058
    joined = joined or b"".join(frames)
    fields = _FIELDS.pack(_extend(_crc32c(checksums), joined), first_seq, due_ns, len(joined), count, kind)
    header_crc = _crc32c(fields) ^ (offset & LOW_32)
    header, trailer = _MARK.pack(_MAGIC, header_crc), _MARK.pack(TRAILER_MAGIC, header_crc)
    return b"".join((header, fields, checksums, joined, trailer, fields))


def encode_headers(header: GroupHeader) -> tuple[bytes, bytes]:
    """The bytes before a group's checksums and frames, and the trailer, which is empty for a group of one frame."""
    fields = _FIELDS.pack(
        header.payload_crc, header.first_seq, header.due_ns, header.size, header.record_count, header.kind
    )
    crc = _crc32c(fields) ^ (header.offset & LOW_32)
    front = _MARK.pack(_MAGIC, crc) + fields
    return front, _MARK.pack(TRAILER_MAGIC, crc) + fields if header.record_count > 1 else b""


def decode_header(data: bytes, at: int, offset: int) -> GroupHeader | None:
    """The header at `data[at:]`, which is at `offset` of the file; None if there is no sound header."""
    if len(data) - at < HEADER_SIZE or not data.startswith(GROUP_MAGIC, at):
        return None
    _, header_crc, *fields = unpack_header(data, at)
    header = GroupHeader(offset, *fields)
    return header if _is_sound(header, data, at, header_crc) else None


def decode_trailer(data: bytes, at: int, offset: int) -> GroupHeader | None:
    """The header in the trailer at `data[at:]`; None if there is no sound trailer."""
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
    """Cut `data[at:end]`, which is known to be sound, into its `count` frames."""
    # Hot: runs for every message read back. A frame's size does not count the four bytes of the size itself.
    size = 4 + _frame_size(data, at)[0]
    if count * size == end - at and count <= _MAX_UNIFORM_FRAMES and _have_one_size(data, at, end, size, count):
        return list(cut_uniform(data, size, at, count))
    frames: list[bytes] = []
    add, read_size = frames.append, _frame_size
    last = end - 4
    while at <= last:
        stop = at + 4 + read_size(data, at)[0]
        add(data[at:stop])
        at = stop
    return frames


def _have_one_size(data: bytes, at: int, end: int, size: int, count: int) -> bool:
    return all(data[at + byte : end : size] == data[at + byte : at + byte + 1] * count for byte in range(4))


def salvage(header: GroupHeader, data: bytes) -> list[Group] | None:
    """The sound frames of a damaged group, as groups of consecutive frames; `data` is the whole group.

    None if the group was not completely written, as a sector of zeros in it shows: then none of it counts.
    """
    frames_begin, frames_end = header.frames_begin - header.offset, header.payload_end - header.offset
    expected = struct.unpack_from(f">{header.record_count}I", data, HEADER_SIZE) if header.record_count > 1 else ()
    found = _find_frames(data, frames_begin, frames_end, expected) if expected else []
    if _is_torn(header.offset, data, frames_end, found):
        return None
    return _without_gaps(header, found)


def is_hole(data: bytes, offset: int) -> bool:
    """Whether `data`, which is at `offset` of the file, is zeros up to the end of the sector."""
    return not any(data[: SECTOR - offset % SECTOR])


_Found = tuple[int, int, bytes]
"""A frame's position in its group, where it begins in the data, and the frame."""


def _find_frames(data: bytes, at: int, end: int, expected: Sequence[int]) -> list[_Found]:
    """The frames in `data[at:end]` that have an expected checksum, in order."""
    wanted: dict[int, list[int]] = {}
    for index, checksum in enumerate(expected):
        wanted.setdefault(checksum, []).append(index)
    found: list[_Found] = []
    next_index = 0
    budget = _MAX_SCAN_FACTOR * len(data)
    while at < end and budget > 0:
        frame = _plausible_frame(data, at, end)
        if frame:
            budget -= len(frame)
            match = next((each for each in wanted.get(_crc32c(frame), ()) if each >= next_index), None)
            if match is not None:
                found.append((match, at, frame))
                next_index = match + 1
                at += len(frame)
                continue
        # Damaged: search for the next frame type, which follows the frame's size.
        type_at = data.find(_FRAME_TYPE, at + 5, end)
        at = type_at - 4 if type_at >= 0 else end
    return found


def _plausible_frame(data: bytes, at: int, end: int) -> bytes | None:
    if at + MESSAGE_HEADER_SIZE > end or not data.startswith(_FRAME_TYPE, at + 4):
        return None
    stop = at + 4 + _frame_size(data, at)[0]
    return data[at:stop] if at + MESSAGE_HEADER_SIZE <= stop <= end else None


def _is_torn(offset: int, data: bytes, frames_end: int, found: Sequence[_Found]) -> bool:
    """Whether the group's part of a sector is all zeros; a sector with nothing but trailer does not count."""
    rest = bytearray(data)
    for _, begin, frame in found:
        rest[begin : begin + len(frame)] = b"\1" * len(frame)
    starts = [0, *range(-offset % SECTOR or SECTOR, frames_end, SECTOR)]
    return any(not any(rest[start : start + SECTOR - (offset + start) % SECTOR]) for start in starts)


def _without_gaps(header: GroupHeader, found: Sequence[_Found]) -> list[Group]:
    groups: list[Group] = []
    run: list[bytes] = []
    expected = -1
    for index, _, frame in found:
        if index != expected:
            run = []
            first_seq = header.first_seq + (index if header.kind == MESSAGES else 0)
            groups.append(Group(header.kind, first_seq, header.due_ns, run))
        run.append(frame)
        expected = index + 1
    return groups
