"""A segment: one file of a log, and the groups in it. Only the run of nsqd that created it appends to it.

A group has the frames of one publish, all or none of them. One of several frames also contains a checksum of each
frame, which is used only if the group's own checksum is wrong, and a copy of its header after the frames. So damage to
a frame or to the header does not affect other frames.

Blocks are reserved ahead of the writes, in growing steps, because a write that has to extend the file costs several
times as much. Reserved blocks read as zeros. In a large file zeros are also written ahead: most of a write's cost is
the first access to each page, and a dozen pages at once cost a fifth of that per page (docs/decisions/0016).
"""

import logging
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import suppress
from itertools import starmap
from typing import Final, NamedTuple, Self

import google_crc32c

from nsq_compat.log.data_path import LaterVersion
from nsq_compat.log.descriptors import Descriptors, File
from nsq_compat.log.files import read_up_to, write_all
from nsq_compat.protocol import storage_schema
from nsq_compat.protocol.layout import derive
from nsq_compat.protocol.message import cut_uniform, message_id
from nsq_compat.protocol.storage_schema import (
    ANY_MAGIC,
    DEFERRED,
    GROUP_MAGIC,
    KINDS,
    MAGIC_PREFIX,
    MESSAGES,
    RELEASED_MAGIC,
    SALT_SIZE,
    SEGMENT_MAGIC,
    TRAILER_MAGIC,
)

log = logging.getLogger(__name__)

_crc32c: Final = google_crc32c.value
_extend: Final = google_crc32c.extend
_MAGIC: Final = GROUP_MAGIC  # compiled code looks up names of other modules in a dict
_MARK: Final = derive(storage_schema.GROUP_MARK)
_FIELDS: Final = derive(storage_schema.GROUP_FIELDS)
_GROUP_HEADER: Final = derive(storage_schema.GROUP_HEADER)
HEADER_SIZE: Final = _GROUP_HEADER.size
MARK_SIZE: Final = _MARK.size
CHECKSUM_SIZE: Final = 4
LOW_32: Final = 0xFFFFFFFF
"""Mask of the bits of a group's offset that are mixed into its header's checksum, as the segment's salt is."""

unpack_header: Final = _GROUP_HEADER.unpack_from
_frame_size: Final = struct.Struct(">I").unpack_from

_MAX_UNIFORM_FRAMES: Final = 256
"""Frames of one size that are cut with one cached layout; bounds the size of such a layout."""


NOWHERE: Final = b""
"""The location of a message that is not in a segment, or has no known location."""
_OFFSET_BITS: Final = 40
_OFFSET_MASK: Final = (1 << _OFFSET_BITS) - 1
_LOCATION: Final = derive(storage_schema.CHECKPOINT_LOCATION)

_HEADER: Final = derive(storage_schema.SEGMENT_HEADER)
FIRST_GROUP: Final = _HEADER.size
"""The offset of the first group."""
_WITHOUT_SALT: Final = (storage_schema.SEGMENT_MAGIC_2, storage_schema.SEGMENT_MAGIC_1, RELEASED_MAGIC)

INDEX_STEP: Final = 1 << 16
"""Minimum distance in bytes between two index entries."""
_MIN_RESERVE: Final = 1 << 16
_MAX_RESERVE: Final = 1 << 24
_MAX_SEARCHES: Final = 64
"""Long ones, that are remembered. A full segment has fewer places with as much damage as one step searches."""
_ZERO_AHEAD_FROM: Final = 1 << 18
"""File size from which on zeros are written ahead. In smaller files, those of ten thousand idle topics would take too
much memory."""
_ZERO_AHEAD: Final = 1 << 17
_ZEROS: Final = bytes(_ZERO_AHEAD)
_NO_OFFSET: Final = 1 << 62  # greater than every offset
_SALT_BLOCK: Final = 1 << 18
_SALT_SEARCH: Final = 16
"""The search for a lost salt ends after reading this many times the size of the file."""
UNKNOWN_SEQ: Final = (1 << 64) - 1
"""Stands for a number that is not known yet: of a file that was just found, or of an index entry after damage."""


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
    """Frames that were published together.

    ``GROUP_FIELDS`` explains `first_seq` and `due_ns`. A control group has one frame, the name of the channel, which is
    empty for the topic; ``control_log`` describes that of REQUEUED. `place` is where the group begins (``place_of``), 0
    if unknown.
    """

    kind: int
    first_seq: int
    due_ns: int
    frames: Sequence[bytes]
    place: int = 0

    @property
    def offset(self) -> int:
        """The offset of the first message or, in a control group, of the next one."""
        return self.first_seq if self.kind == DEFERRED else self.first_seq + self.due_ns


class First(NamedTuple):
    """The first message of a group."""

    offset: int
    message_id: bytes
    timestamp_ns: int


class Part(NamedTuple):
    """A place in a large group, and the message that begins there. `left` messages of the group follow from it on."""

    first: First
    seq: int
    left: int
    position: int


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
    kind: int, first_seq: int, due_ns: int, frames: Sequence[bytes], offset: int, salt: int, joined: bytes = b""
) -> bytes:
    """The bytes of a group of at least one frame, to be written at `offset` of a segment with this `salt`.

    `joined`: the joined frames, if known.
    """
    # Hot: runs for every publish.
    count = len(frames)
    if count == 1:
        payload = frames[0]
        fields = _FIELDS.pack(_crc32c(payload), first_seq, due_ns, len(payload), 1, kind)
        crc: int = _crc32c(fields)
        return _MARK.pack(_MAGIC, crc ^ (offset & LOW_32) ^ salt) + fields + payload
    # zip reuses one argument tuple, and starmap passes it on unchanged, which is a seventh faster than map.
    checksums = struct.pack(f">{count}I", *starmap(_crc32c, zip(frames)))  # noqa: RUF058
    joined = joined or b"".join(frames)
    fields = _FIELDS.pack(_extend(_crc32c(checksums), joined), first_seq, due_ns, len(joined), count, kind)
    header_crc = _crc32c(fields) ^ (offset & LOW_32) ^ salt
    header, trailer = _MARK.pack(_MAGIC, header_crc), _MARK.pack(TRAILER_MAGIC, header_crc)
    return b"".join((header, fields, checksums, joined, trailer, fields))


def encode_headers(header: GroupHeader, salt: int) -> tuple[bytes, bytes]:
    """The bytes before a group's checksums and frames, and the trailer, which is empty for a group of one frame."""
    fields = _FIELDS.pack(
        header.payload_crc, header.first_seq, header.due_ns, header.size, header.record_count, header.kind
    )
    crc = _crc32c(fields) ^ (header.offset & LOW_32) ^ salt
    front = _MARK.pack(_MAGIC, crc) + fields
    return front, _MARK.pack(TRAILER_MAGIC, crc) + fields if header.record_count > 1 else b""


def decode_header(data: bytes, at: int, offset: int, salt: int) -> GroupHeader | None:
    """The header at `data[at:]`, which is at `offset` of a file with this `salt`; None if there is no sound header."""
    found = _header_with_salt(data, at, offset) if data.startswith(GROUP_MAGIC, at) else None
    return found[0] if found is not None and found[1] == salt else None


def decode_trailer(data: bytes, at: int, offset: int, salt: int) -> GroupHeader | None:
    """The header in the trailer at `data[at:]`; None if there is no sound trailer."""
    found = _header_with_salt(data, at, offset) if data.startswith(TRAILER_MAGIC, at) else None
    return found[0] if found is not None and found[1] == salt else None


def _header_with_salt(data: bytes, at: int, offset: int) -> tuple[GroupHeader, int] | None:
    """The header or trailer at `data[at:]`, and the salt with which it is sound; None if there can be none."""
    if len(data) - at < HEADER_SIZE:
        return None
    magic, header_crc, *fields = unpack_header(data, at)
    header = GroupHeader(offset, *fields)
    if magic == TRAILER_MAGIC:
        header = header._replace(offset=2 * offset - header.payload_end)
        if header.offset < 0 or header.record_count < 2:
            return None
    elif magic != GROUP_MAGIC:
        return None
    if header.kind not in KINDS or header.record_count < 1:
        return None
    return header, header_crc ^ _crc32c(data[at + MARK_SIZE : at + HEADER_SIZE]) ^ (header.offset & LOW_32)


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


class Index:
    """A segment's sparse index: about one group of messages in every INDEX_STEP bytes, in order.

    While the index of an earlier run's segment is being built, it covers the groups before `offset`, and `seq` is the
    number of the next message, UNKNOWN_SEQ after damage.
    """

    def __init__(self, seq: int = 0) -> None:
        self.offset = FIRST_GROUP
        self.seq = seq
        self.next_offset = 0  # the next group at this offset or later gets an entry
        self.count = 0  # messages in the segment, including deferred ones
        self.other_bytes = 0  # as `Segment.other_bytes`
        self._seqs: list[int] = []
        self._ids: list[bytes] = []
        self._offsets: list[int] = []

    @property
    def first_id(self) -> bytes | None:
        return self._ids[0] if self._ids else None

    def add(self, seq: int, first_id: bytes, offset: int) -> None:
        """Append a group of messages, which is at `next_offset` or later.

        `seq` is the number of its first message or, if it has none, the next number in the log.
        """
        self._seqs.append(seq)
        self._ids.append(first_id)
        self._offsets.append(offset)
        self.next_offset = offset + INDEX_STEP

    def number_last_entries(self, seq: int) -> None:
        """Give `seq` to the last entries, which were added with UNKNOWN_SEQ."""
        at = len(self._seqs) - 1
        while at >= 0 and self._seqs[at] == UNKNOWN_SEQ:
            self._seqs[at] = seq
            at -= 1

    def seek(self, seq: int) -> tuple[int, int]:
        """The offset at which to begin reading to find a message by its number, and the first number after it."""
        entry = bisect_right(self._seqs, seq) - 1
        return (self._offsets[entry], self._seqs[entry]) if entry >= 0 else (FIRST_GROUP, 0)

    def first_from(self, offset: int) -> int:
        """The offset of the first group with an entry from this offset on, beyond every file if there is none."""
        entry = bisect_left(self._offsets, offset)
        return self._offsets[entry] if entry < len(self._offsets) else _NO_OFFSET

    def last_until(self, offset: int) -> int:
        """The offset of the last group with an entry up to this offset, or of the first group."""
        entry = bisect_right(self._offsets, offset)
        return self._offsets[entry - 1] if entry else FIRST_GROUP

    def span_of_id(self, message_id: bytes) -> tuple[int, int]:
        """The range of offsets in which the group of this message begins, if it is in the segment."""
        following = bisect_right(self._ids, message_id)
        begin = self._offsets[following - 1] if following else FIRST_GROUP
        return begin, self._offsets[following] if following < len(self._offsets) else _NO_OFFSET


class _Ranges:
    """Ranges of offsets, of which those are remembered that are long or continue another one."""

    def __init__(self) -> None:
        self._begins: list[int] = []  # sorted, of ranges that do not touch
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> None:
        """Add a range that begins in no other one, but may end in one."""
        place = bisect_right(self._begins, begin)
        if place and self._ends[place - 1] >= begin:
            place -= 1
            begin, end = self._begins[place], max(end, self._ends[place])
        elif end - begin < INDEX_STEP:
            return
        stop = bisect_right(self._begins, end)
        if stop > place:
            end = max(end, self._ends[stop - 1])
        self._begins[place:stop] = [begin]
        self._ends[place:stop] = [end]

    def end_of(self, offset: int) -> int:
        """The end of the range that contains this offset, else the offset."""
        place = bisect_right(self._begins, offset)
        return max(offset, self._ends[place - 1]) if place else offset


class Searches:
    """What searches in a segment found out. Large groups are named by their offsets."""

    def __init__(self) -> None:
        self.reached: dict[tuple[int, int], int] = {}  # the offsets that long searches in damage have reached
        self.ends: dict[int, int] = {}  # of large groups that were written completely
        self.torn: set[int] = set()  # large groups that were not
        self.parts: dict[int, list[Part]] = {}  # of large groups, as far as one was searched

    def note(self, search: tuple[int, int], reached: int) -> None:
        self.reached[search] = reached
        if len(self.reached) > _MAX_SEARCHES:
            del self.reached[next(iter(self.reached))]


class Segment:
    """A segment file. `end` is the offset of the next group, or the size of the file if an earlier run created it.

    `acknowledged`: the offset up to which everything was written and acknowledged. Missing data before it is damage.
    `abandoned`: nothing more may be appended, because a failed write could not be undone or a sync failed. `poisoned`:
    a sync failed, so unsynced data never becomes durable. `released`: its messages are not needed any more and were
    discarded. `removed`: the file is deleted.
    """

    def __init__(self, descriptors: Descriptors, path: str, number: int, first_seq: int, end: int) -> None:
        self.number = number
        self.path = path
        self.file = File(path)
        self.first_seq = first_seq
        self.salt = 0
        self.end = end
        self.index: Index | None = None  # of an earlier run's segment: built when it is needed
        self.partial_index: Index | None = None
        self.index_is_used = False  # since the last `forget_index`
        self.searches = Searches()
        self.passed = _Ranges()  # of control records, found by `skip_control_records`
        self.first_id: bytes | None = None  # cached by `first_id_of`, as is the offset up to which there is none
        self.searched_for_id = FIRST_GROUP
        self.first: First | None = None  # cached by ``offsets.first_of``, as is the offset up to which there is none
        self.searched_for_first = FIRST_GROUP
        self.abandoned = False
        self.poisoned = False
        self.released = False
        self.removed = False
        self.settled = 0  # a sync of the data up to here has succeeded or failed
        self.other_bytes = 0  # of the deferred messages and control records that this run wrote or indexed
        self.header_lost = False  # the header is damaged: `first_seq` and `salt` are those of the first group found
        self.acknowledged = 0
        self._descriptors = descriptors
        self._files = descriptors.files
        self._pwrite = self._files.pwrite
        self._reserved = end
        self._prepared = end  # a write up to here needs no preparation
        self._step = _MIN_RESERVE

    @classmethod
    def create(cls, descriptors: Descriptors, path: str, number: int, first_seq: int, max_size: int) -> Self:
        """Create a file with a header and no groups. Raises ``OSError``, and then removes the file if it can."""
        segment = cls(descriptors, path, number, first_seq, 0)
        segment.index = Index()
        segment.salt = int.from_bytes(os.urandom(4), "big") or 1  # not with `secrets`, which loads OpenSSL
        segment.acknowledged = _NO_OFFSET
        descriptors.create(segment.file)
        try:
            segment.append(encode_segment_header(first_seq, salted(segment.salt)), max_size)
        except OSError:
            with suppress(OSError):
                segment.remove()
            raise
        return segment

    @property
    def needs_sync(self) -> bool:
        """Whether there is appended data for which no sync has succeeded or failed."""
        return self.end > self.settled

    def append(self, data: bytes, max_size: int) -> None:
        """Write all of `data` or nothing. Raises ``OSError``; if the write cannot be undone, abandons the segment."""
        # Hot: runs for every publish.
        end = self.end
        stop = end + len(data)
        file, descriptors = self.file, self._descriptors
        fd = file.fd if file is descriptors.last else descriptors.use(file)  # saves a call for a lone topic
        if stop > self._prepared:
            self._prepare(fd, stop, max_size)
        try:
            written = self._pwrite(fd, data, end)
            if written != len(data):
                write_all(self._files, fd, data[written:], end + written)
        except OSError:
            self._cut(fd)
            raise
        self.end = stop

    def move(self, descriptors: Descriptors, path: str) -> None:
        """The file, which is not open, was renamed. It is opened with these descriptors from now on."""
        self._descriptors = descriptors
        self.path = self.file.path = path

    def prepare(self, max_size: int) -> None:
        """Reserve blocks and write zeros before the next appends have to, if the file is large enough for that."""
        if self.end >= _ZERO_AHEAD_FROM and not self.abandoned and self.end + _ZERO_AHEAD > self._prepared < max_size:
            with suppress(OSError):  # the next append will raise the same error
                self._prepare(self._descriptors.use(self.file), self._prepared + 1, max_size)

    def pread(self, size: int, offset: int) -> bytes:
        """Read `size` bytes, fewer only at the end of the file. Raises ``OSError`` with the file name."""
        faults = self._descriptors.read_faults
        try:
            fd = self._descriptors.use(self.file)
            data = self._files.pread(fd, size, offset)
            if len(data) < size and offset + len(data) < self.end:
                data += read_up_to(self._files, fd, size - len(data), offset + len(data))
        except OSError as error:
            if error.filename is None:
                error.filename = self.path
            faults.failed(self, offset, size, error)
            raise
        if faults.problem is not None:
            faults.succeeded(self, offset, size)
        return data

    def next_data(self, offset: int) -> int:
        """Where bytes other than zeros may follow, as far as the system knows without reading."""
        with suppress(OSError):  # a read raises it, too
            return min(self.end, self._files.next_data(self._descriptors.use(self.file), offset))
        return offset

    def close(self) -> None:
        """Truncate reserved blocks and close the descriptor."""
        if self._reserved > self.end and not self.abandoned:
            with suppress(OSError):
                self._files.ftruncate(self._descriptors.use(self.file), self.end)
                self._reserved = self._prepared = self.end
        self._descriptors.close(self.file)

    def truncate(self, end: int) -> None:
        """Cut off reserved blocks and an unfinished group of an earlier run. Raises ``OSError``."""
        self._files.ftruncate(self._descriptors.use(self.file), end)
        self.end = self._reserved = self._prepared = end

    def release(self) -> None:
        """Discard all groups, and mark the header accordingly. Raises ``OSError``."""
        fd = self._descriptors.use(self.file)
        write_all(self._files, fd, encode_segment_header(self.first_seq, RELEASED_MAGIC), 0)
        self._note_released()
        self._files.ftruncate(fd, FIRST_GROUP)

    def read_header(self) -> None:
        """Read the header of a segment of an earlier run. Raises ``OSError``, ``LaterVersion`` among them."""
        data = self.pread(FIRST_GROUP, 0)
        header = decode_segment_header(data)
        if header is None:
            if is_of_later_version(data):
                raise LaterVersion(self.path)
            self.header_lost = True
            self.salt = self._find_salt()
        else:
            self.first_seq, self.salt = header.first_seq, header.salt
            if header.is_released:
                self._note_released()

    def forget_index(self) -> None:
        """Free the memory of the index, unless it was used since the last call. It is built again when needed."""
        if self.index_is_used:
            self.index_is_used = False
        elif self.index is not None:
            self.first_id = self.first_id or self.index.first_id
            self.index = None
            self.searches.parts.clear()
        else:
            self.partial_index = None
            self.searches.parts.clear()

    def _find_salt(self) -> int:
        """The salt of the first group that is sound with it, because the header is damaged; 0 if there is none."""
        of_trailer = 0  # used if there is one damaged group only
        position, left = FIRST_GROUP, _SALT_SEARCH * self.end
        while self.end - position >= HEADER_SIZE and left > 0:
            block = self.pread(_SALT_BLOCK, position)
            left -= len(block)
            at = block.find(MAGIC_PREFIX)
            while 0 <= at <= len(block) - HEADER_SIZE and left > 0:
                found = _header_with_salt(block, at, position + at)
                if found is not None and found[0].offset >= FIRST_GROUP and found[0].end <= self.end:
                    header, salt = found
                    payload = self.pread(header.payload_end - header.payload_begin, header.payload_begin)
                    if _crc32c(payload) == header.payload_crc:
                        return salt
                    left -= len(payload)
                    if block.startswith(TRAILER_MAGIC, at):
                        of_trailer = of_trailer or salt
                at = block.find(MAGIC_PREFIX, at + 1)
            position += max(1, len(block) - HEADER_SIZE + 1)
            if not block.strip(b"\0"):  # a forged copy may have holes of a terabyte
                position = max(position, self.next_data(position))
        return of_trailer

    def _note_released(self) -> None:
        self._descriptors.read_faults.forget(self)
        self.released = True
        self.index, self.partial_index, self.first_id, self.first = Index(), None, None, None
        self.searches = Searches()
        self.other_bytes = 0
        self.passed = _Ranges()
        self.searched_for_id = self.searched_for_first = FIRST_GROUP
        self.end = self._reserved = self._prepared = FIRST_GROUP

    def remove(self) -> None:
        """Delete the file. Raises ``OSError``."""
        self._descriptors.read_faults.forget(self)
        self._descriptors.close(self.file)
        self._files.unlink(self.path)
        self.removed = True

    def _prepare(self, fd: int, stop: int, max_size: int) -> None:
        if stop > self._reserved:
            self._reserve(fd, stop, max_size)
        begin = self._prepared
        if self.end < _ZERO_AHEAD_FROM:
            self._prepared = min(self._reserved, max(stop, _ZERO_AHEAD_FROM))
        elif stop - begin >= _ZERO_AHEAD:
            self._prepared = stop  # zeros do not speed up a write of this size
        else:
            self._prepared = min((stop // _ZERO_AHEAD + 1) * _ZERO_AHEAD, self._reserved)
            size = self._prepared - begin
            zeros = _ZEROS if size == _ZERO_AHEAD else _ZEROS[:size]  # compiled, every slice is a copy
            with suppress(OSError):  # the write of the group will raise the same error
                self._files.pwrite(fd, zeros, begin)

    def _reserve(self, fd: int, stop: int, max_size: int) -> None:
        wanted = max(stop, min(self._reserved + self._step, max_size))
        # If there is no space for the step, there may be space for the group. The next attempt is a step later.
        with suppress(OSError):
            self._files.fallocate(fd, self.end, wanted - self.end)
        self._reserved = wanted
        self._step = min(self._step * 2, _MAX_RESERVE)

    def _cut(self, fd: int) -> None:
        try:
            self._files.ftruncate(fd, self.end)
            self._reserved = self._prepared = self.end
            self._step = _MIN_RESERVE
        except OSError as error:
            log.error("LOG(%s): a failed write cannot be undone, continuing in a new file - %s", self.path, error)
            self.abandoned = True


class SegmentHeader(NamedTuple):
    """The decoded header of a segment. `salt` is 0 if its group headers have none."""

    first_seq: int
    salt: int
    is_released: bool


def encode_segment_header(first_seq: int, magic: bytes) -> bytes:
    """The header as it is written at the beginning of a file."""
    unsigned = _HEADER.pack(magic, first_seq, 0)[: _HEADER.offset("crc")]
    return _HEADER.pack(magic, first_seq, _crc32c(unsigned))


def salted(salt: int) -> bytes:
    """The magic of a segment with this salt."""
    return SEGMENT_MAGIC + salt.to_bytes(SALT_SIZE, "big")


def decode_segment_header(data: bytes) -> SegmentHeader | None:
    """None if the header is damaged or of another version."""
    if len(data) < FIRST_GROUP:
        return None
    magic, first_seq, _ = _HEADER.unpack_from(data)
    if data[:FIRST_GROUP] != encode_segment_header(first_seq, magic):
        return None
    if magic.startswith(SEGMENT_MAGIC):
        return SegmentHeader(first_seq, int.from_bytes(magic[len(SEGMENT_MAGIC) :], "big"), is_released=False)
    return SegmentHeader(first_seq, 0, magic == RELEASED_MAGIC) if magic in _WITHOUT_SALT else None


def is_of_later_version(data: bytes) -> bool:
    """Whether a header that ``decode_segment_header`` does not know is intact."""
    if len(data) < FIRST_GROUP or not data.startswith(ANY_MAGIC):
        return False
    magic, first_seq, _ = _HEADER.unpack_from(data)
    return data[:FIRST_GROUP] == encode_segment_header(first_seq, magic)


class StagedBatch:
    """The messages of one large publish, written step by step to a file that then becomes a segment of the log.

    ``TopicLog.attach`` makes it part of the log, by giving it the name of a segment when all groups are written. Until
    then, other producers continue to write to the log, and a crash discards the whole batch. The message numbers are
    not known until then either: groups are written with numbers counted from 0, and `assign_numbers` replaces them.
    """

    def __init__(self, descriptors: Descriptors, path: str, max_size: int) -> None:
        self.segment = Segment.create(descriptors, path, 0, 0, max_size)
        self.count = 0
        self._descriptors = descriptors
        self._max_size = max_size
        self._groups: list[tuple[GroupHeader, bytes]] = []  # with the ids of their first messages

    def add(self, frames: Sequence[bytes]) -> None:
        offset = self.segment.end
        data = encode_group(MESSAGES, self.count, 0, frames, offset, self.segment.salt)
        self.segment.append(data, self._max_size)
        header = decode_header(data, 0, offset, self.segment.salt)
        assert header is not None, "it was encoded just now"
        self._groups.append((header, message_id(frames[0])))
        self.count += len(frames)

    def assign_numbers(self, first_seq: int, log_seq: int, deferred_count: int) -> None:
        """Write the final message numbers. Raises ``OSError``.

        `log_seq` is the log's next number, for the header, and `deferred_count` the deferred messages before.
        """
        segment = self.segment
        fd = self._descriptors.use(segment.file)
        files = self._descriptors.files
        index = Index()
        for header, first_id in self._groups:
            numbered = header._replace(first_seq=first_seq + header.first_seq, due_ns=deferred_count)
            front, trailer = encode_headers(numbered, segment.salt)
            write_all(files, fd, front, header.offset)
            if trailer:
                write_all(files, fd, trailer, header.end - HEADER_SIZE)
            if header.offset >= index.next_offset:
                index.add(numbered.first_seq, first_id, header.offset)
        write_all(files, fd, encode_segment_header(log_seq, salted(segment.salt)), 0)
        index.count = self.count
        segment.index = index
        segment.first_seq = log_seq

    def discard(self) -> None:
        """Delete the file. If that fails, it is deleted when the log is next opened."""
        with suppress(OSError):
            self.segment.remove()
