"""One file of a log: groups are only ever appended, in the run that made it; a later run only reads it.

Blocks are reserved ahead of the writing, in growing steps, because appending to a file that has to grow costs several
times as much as writing into what is reserved. What is reserved and not written is zeros. Once there is much in a file,
zeros are written ahead as well: what makes a write dear is each page that is not in memory yet, and pages that come by
the dozen cost a fifth (docs/decisions/0016).
"""

import logging
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from google_crc32c import value as crc32c

from nsq_compat.log.descriptors import Descriptors, File
from nsq_compat.log.files import write_all
from nsq_compat.log.group import HEADER_SIZE, MESSAGES, GroupHeader, encode_group, encode_headers, header_of
from nsq_compat.protocol import storage_schema
from nsq_compat.protocol.layout import derive
from nsq_compat.protocol.message import message_id

log = logging.getLogger(__name__)

_HEADER: Final = derive(storage_schema.SEGMENT_HEADER)
FIRST_GROUP: Final = _HEADER.size
"""Where the first group begins."""

_MAGICS: Final = (storage_schema.SEGMENT_MAGIC, storage_schema.RELEASED_MAGIC)

INDEX_STEP: Final = 1 << 16
"""Bytes between two entries of the sparse index, at least."""

_FIRST_STEP: Final = 1 << 16
_LAST_STEP: Final = 1 << 24
_MUCH: Final = 1 << 18
"""Bytes in a file from which on zeros are written ahead: ten thousand quiet topics should not take memory for that."""
_AHEAD: Final = 1 << 17
_ZEROS: Final = bytes(_AHEAD)
_FAR: Final = 1 << 62


UNKNOWN_SEQ: Final = (1 << 64) - 1
"""In an index: behind damage, before the next group with a number."""


class IndexEntry(NamedTuple):
    """A group in a segment: the number of its first message or the next one's, its first message's id, its offset."""

    seq: int
    first_id: bytes
    offset: int


class Index:
    """Some of the groups of a segment, in order, about one in every INDEX_STEP bytes. Control groups are not in it."""

    def __init__(self) -> None:
        self.next_offset = 0  # a group from here on gets an entry
        self.count = 0  # messages in the segment, deferred ones included
        self._seqs: list[int] = []
        self._ids: list[bytes] = []
        self._offsets: list[int] = []

    @property
    def first_id(self) -> bytes | None:
        """The smallest id; None if there is no message."""
        return self._ids[0] if self._ids else None

    def add(self, place: IndexEntry) -> None:
        """The next group; `next_offset` says when."""
        self._seqs.append(place.seq)
        self._ids.append(place.first_id)
        self._offsets.append(place.offset)
        self.next_offset = place.offset + INDEX_STEP

    def number_last(self, seq: int) -> None:
        """`seq` is the number that the last places were added without."""
        at = len(self._seqs) - 1
        while at >= 0 and self._seqs[at] == UNKNOWN_SEQ:
            self._seqs[at] = seq
            at -= 1

    def place_of_seq(self, seq: int) -> tuple[int, int]:
        """Where to begin reading to find a message by its number: the offset, and the first number from there on."""
        entry = bisect_right(self._seqs, seq) - 1
        return (self._offsets[entry], self._seqs[entry]) if entry >= 0 else (FIRST_GROUP, 0)

    def span_of_id(self, message_id: bytes) -> tuple[int, int]:
        """The message is in a group that begins in this range of offsets, if it is in the segment."""
        following = bisect_right(self._ids, message_id)
        begin = self._offsets[following - 1] if following else FIRST_GROUP
        return begin, self._offsets[following] if following < len(self._offsets) else _FAR


class Segment:
    """A file by its number. `end` is where the next group goes, or the size of the file if an earlier run made it.

    `abandoned`: nothing more may be appended, because a failed write could not be undone or a sync failed. `poisoned`:
    what is not synced yet never will be. `released`: there is nothing in it any more, and that is no loss. `removed`:
    the file is gone.
    """

    def __init__(self, descriptors: Descriptors, path: str, number: int, first_seq: int, end: int) -> None:
        self.number = number
        self.path = path
        self.file = File(path)
        self.first_seq = first_seq
        self.end = end
        self.index: Index | None = None  # made when it is needed for a segment that was found
        self.first_id: bytes | None = None  # remembered once it was looked for
        self.abandoned = False
        self.poisoned = False
        self.released = False
        self.removed = False
        self.synced = 0
        self.refused = 0  # up to here it was said that syncing failed
        self.lost_header = False  # a damaged one: `first_seq` is that of the first message that was found
        self._acknowledged = 0
        self._is_ours = False
        self._descriptors = descriptors
        self._files = descriptors.files
        self._pwrite = self._files.pwrite
        self._reserved = end
        self._prepared = end  # up to here there is nothing to do before a write
        self._step = _FIRST_STEP

    @classmethod
    def create(cls, descriptors: Descriptors, path: str, number: int, first_seq: int, max_size: int) -> "Segment":
        """A new, empty file. Raises ``OSError``, and leaves nothing then if the system lets it."""
        segment = cls(descriptors, path, number, first_seq, 0)
        segment.index = Index()
        segment._is_ours = True
        descriptors.create(segment.file)
        try:
            segment.append(encode_segment_header(first_seq), max_size)
        except OSError:
            with suppress(OSError):
                segment.remove()
            raise
        return segment

    @property
    def acknowledged(self) -> int:
        """Up to here everything was written and acknowledged: what is not there any more is damage, and no end."""
        return self.end if self._is_ours else self._acknowledged

    def note_acknowledged(self, offset: int) -> None:
        """An earlier run says so."""
        self._acknowledged = offset

    @property
    def needs_sync(self) -> bool:
        """Whether something was appended that a sync has neither secured nor given up."""
        return self.end > self.synced and self.end > self.refused

    def append(self, data: bytes, max_size: int) -> None:
        """Write all or nothing. Raises ``OSError``; if not even nothing was possible the segment is abandoned."""
        # Hot: runs for every publish.
        end = self.end
        stop = end + len(data)
        fd = self._descriptors.use(self.file)
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

    def prepare(self, max_size: int) -> None:
        """Do now what the next appends would have to do before they write, if there is much in the file."""
        if self.end >= _MUCH and not self.abandoned and self.end + _AHEAD > self._prepared < max_size:
            with suppress(OSError):  # who appends will find out
                self._prepare(self._descriptors.use(self.file), self._prepared + 1, max_size)

    def pread(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes, fewer only where the file ends. Raises ``OSError`` with the name of the file."""
        faults = self._descriptors.read_faults
        try:
            fd = self._descriptors.use(self.file)
            data = self._files.pread(fd, size, offset)
            if len(data) < size and offset + len(data) < self.end:
                data = self._pread_rest(fd, size, offset, data)
        except OSError as error:
            if error.filename is None:
                error.filename = self.path
            faults.failed(self, offset, size, error)
            raise
        if faults.problem is not None:
            faults.succeeded(self, offset, size)
        return data

    def close(self) -> None:
        """Give back what was reserved, and the descriptor."""
        if self._reserved > self.end and not self.abandoned:
            with suppress(OSError):
                self._files.ftruncate(self._descriptors.use(self.file), self.end)
                self._reserved = self._prepared = self.end
        self._descriptors.close(self.file)

    def truncate(self, end: int) -> None:
        """Forget what an earlier run reserved or did not finish. Raises ``OSError``."""
        self._files.ftruncate(self._descriptors.use(self.file), end)
        self.end = self._reserved = self._prepared = end

    def release(self) -> None:
        """Give back all but the header, which says so. Raises ``OSError``."""
        fd = self._descriptors.use(self.file)
        write_all(self._files, fd, encode_segment_header(self.first_seq, storage_schema.RELEASED_MAGIC), 0)
        self.note_released()
        self._files.ftruncate(fd, FIRST_GROUP)

    def note_released(self) -> None:
        """The file has a header that says so."""
        self._descriptors.read_faults.forget(self)
        self.released = True
        self.index = Index()
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
        if self.end < _MUCH:
            self._prepared = min(self._reserved, max(stop, _MUCH))
        elif stop - begin >= _AHEAD:
            self._prepared = stop  # one write of so much costs no more than zeros before it
        else:
            self._prepared = min((stop // _AHEAD + 1) * _AHEAD, self._reserved)
            size = self._prepared - begin
            zeros = _ZEROS if size == _AHEAD else _ZEROS[:size]  # compiled, a slice of all of them would be a copy
            with suppress(OSError):  # there is room for the group, or its own write will say so
                self._files.pwrite(fd, zeros, begin)

    def _reserve(self, fd: int, stop: int, max_size: int) -> None:
        wanted = max(stop, min(self._reserved + self._step, max_size))
        # Without room for the step there may be room for the group. Either way the next attempt is a step away.
        with suppress(OSError):
            self._files.fallocate(fd, self.end, wanted - self.end)
        self._reserved = wanted
        self._step = min(self._step * 2, _LAST_STEP)

    def _cut(self, fd: int) -> None:
        """Undo what a failed write may have left."""
        try:
            self._files.ftruncate(fd, self.end)
            self._reserved = self._prepared = self.end
            self._step = _FIRST_STEP
        except OSError as error:
            log.error("LOG(%s): a failed write cannot be undone, going on in a new file - %s", self.path, error)
            self.abandoned = True

    def _pread_rest(self, fd: int, size: int, offset: int, data: bytes) -> bytes:
        """The system may give less than was asked for; only nothing at all is the end of the file."""
        while len(data) < size and (more := self._files.pread(fd, size - len(data), offset + len(data))):
            data += more
        return data


class SegmentHeader(NamedTuple):
    """What a file begins with."""

    first_seq: int
    released: bool


def encode_segment_header(first_seq: int, magic: bytes = storage_schema.SEGMENT_MAGIC) -> bytes:
    """What a file begins with."""
    unsigned = _HEADER.pack(magic, first_seq, 0)[: _HEADER.offset("crc")]
    return _HEADER.pack(magic, first_seq, crc32c(unsigned))


def decode_segment_header(data: bytes) -> SegmentHeader | None:
    """None if the header is damaged or of another version."""
    if len(data) < FIRST_GROUP:
        return None
    magic, first_seq, _ = _HEADER.unpack_from(data)
    if magic not in _MAGICS or data[:FIRST_GROUP] != encode_segment_header(first_seq, magic):
        return None
    return SegmentHeader(first_seq, magic == storage_schema.RELEASED_MAGIC)


class _Written(NamedTuple):
    header: GroupHeader
    first_id: bytes


class StagedBatch:
    """Made by ``TopicLog.stage``. `segment` has no number before the batch is attached to the log."""

    def __init__(self, descriptors: Descriptors, path: str, max_size: int) -> None:
        self.segment = Segment.create(descriptors, path, 0, 0, max_size)
        self.count = 0
        self._descriptors = descriptors
        self._max_size = max_size
        self._groups: list[_Written] = []

    def add(self, frames: Sequence[bytes]) -> None:
        """Write one group. Raises ``OSError``."""
        offset = self.segment.end
        data = encode_group(MESSAGES, self.count, 0, frames, offset)
        self.segment.append(data, self._max_size)
        self._groups.append(_Written(header_of(data, offset), message_id(frames[0])))
        self.count += len(frames)

    def number(self, first_seq: int, log_seq: int) -> None:
        """Give the messages their numbers. `log_seq` is where the log's numbers stand. Raises ``OSError``."""
        segment = self.segment
        fd = self._descriptors.use(segment.file)
        files = self._descriptors.files
        index = Index()
        for header, first_id in self._groups:
            numbered = header._replace(first_seq=first_seq + header.first_seq)
            front, trailer = encode_headers(numbered)
            write_all(files, fd, front, header.offset)
            if trailer:
                write_all(files, fd, trailer, header.end - HEADER_SIZE)
            if header.offset >= index.next_offset:
                index.add(IndexEntry(numbered.first_seq, first_id, header.offset))
        write_all(files, fd, encode_segment_header(log_seq), 0)
        index.count = self.count
        segment.index = index
        segment.first_seq = log_seq

    def discard(self) -> None:
        """Delete the file. What cannot be deleted now is deleted when the log is opened the next time."""
        with suppress(OSError):
            self.segment.remove()
