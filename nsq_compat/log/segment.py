"""A segment: one file of a log. Only the run that created it appends groups to it; later runs only read it.

Blocks are reserved ahead of the writes, in growing steps, because a write that has to extend the file costs several
times as much. Reserved blocks read as zeros. In a large file zeros are also written ahead: most of a write's cost is
the first touch of each page, and pages that are touched a dozen at a time cost a fifth (docs/decisions/0016).

A large publish is written to a segment of its own, a ``StagedBatch``, which joins the log when it is complete.
"""

import logging
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from google_crc32c import value as crc32c

from nsq_compat.log.descriptors import Descriptors, File
from nsq_compat.log.files import read_up_to, write_all
from nsq_compat.log.group import HEADER_SIZE, GroupHeader, decode_header, encode_group, encode_headers
from nsq_compat.protocol import storage_schema
from nsq_compat.protocol.layout import derive
from nsq_compat.protocol.message import message_id
from nsq_compat.protocol.storage_schema import MESSAGES

log = logging.getLogger(__name__)

_HEADER: Final = derive(storage_schema.SEGMENT_HEADER)
FIRST_GROUP: Final = _HEADER.size
"""The offset of the first group."""
_MAGICS: Final = (storage_schema.SEGMENT_MAGIC, storage_schema.RELEASED_MAGIC)

INDEX_STEP: Final = 1 << 16
"""The least number of bytes between two index entries."""
_MIN_RESERVE: Final = 1 << 16
_MAX_RESERVE: Final = 1 << 24
_ZERO_AHEAD_FROM: Final = 1 << 18
"""File size from which on zeros are written ahead. Smaller files get none, because ten thousand quiet topics should not
use memory for them."""
_ZERO_AHEAD: Final = 1 << 17
_ZEROS: Final = bytes(_ZERO_AHEAD)
_NO_OFFSET: Final = 1 << 62  # greater than every offset
UNKNOWN_SEQ: Final = (1 << 64) - 1
"""A number that is not known yet: of a segment that was found, or of an index entry after damage."""


class Index:
    """A segment's sparse index: about one group of messages in every INDEX_STEP bytes, in order.

    While that of a segment of an earlier run is built, it has the groups before `offset`, and `seq` is the number of
    the next message, UNKNOWN_SEQ after damage.
    """

    def __init__(self, seq: int = 0) -> None:
        self.offset = FIRST_GROUP
        self.seq = seq
        self.next_offset = 0  # the next group at this offset or later gets an entry
        self.count = 0  # messages in the segment, including deferred ones
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
        """Where to begin reading to find a message by its number: an offset, and the first number behind it."""
        entry = bisect_right(self._seqs, seq) - 1
        return (self._offsets[entry], self._seqs[entry]) if entry >= 0 else (FIRST_GROUP, 0)

    def span_of_id(self, message_id: bytes) -> tuple[int, int]:
        """The range of offsets in which the group of this message begins, if it is in the segment."""
        following = bisect_right(self._ids, message_id)
        begin = self._offsets[following - 1] if following else FIRST_GROUP
        return begin, self._offsets[following] if following < len(self._offsets) else _NO_OFFSET


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
        self.end = end
        self.index: Index | None = None  # of an earlier run's segment: built when it is needed
        self.partial_index: Index | None = None
        self.first_id: bytes | None = None  # cached by `first_id_of`
        self.abandoned = False
        self.poisoned = False
        self.released = False
        self.removed = False
        self.synced = 0
        self.sync_failed_end = 0  # a failed sync was reported for the data up to here
        self.header_lost = False  # the header is damaged: `first_seq` is that of the first message found
        self.acknowledged = 0
        self._descriptors = descriptors
        self._files = descriptors.files
        self._pwrite = self._files.pwrite
        self._reserved = end
        self._prepared = end  # a write up to here needs no preparation
        self._step = _MIN_RESERVE

    @classmethod
    def create(cls, descriptors: Descriptors, path: str, number: int, first_seq: int, max_size: int) -> "Segment":
        """Create a file with a header and no groups. Raises ``OSError``, and then removes the file if it can."""
        segment = cls(descriptors, path, number, first_seq, 0)
        segment.index = Index()
        segment.acknowledged = _NO_OFFSET
        descriptors.create(segment.file)
        try:
            segment.append(encode_segment_header(first_seq), max_size)
        except OSError:
            with suppress(OSError):
                segment.remove()
            raise
        return segment

    @property
    def needs_sync(self) -> bool:
        """Whether there is appended data for which no sync has succeeded or failed."""
        return self.end > self.synced and self.end > self.sync_failed_end

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

    def prepare(self, max_size: int) -> None:
        """Reserve blocks and write zeros before the next appends have to, if the file is large enough for that."""
        if self.end >= _ZERO_AHEAD_FROM and not self.abandoned and self.end + _ZERO_AHEAD > self._prepared < max_size:
            with suppress(OSError):  # the next append meets the same error
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
        write_all(self._files, fd, encode_segment_header(self.first_seq, storage_schema.RELEASED_MAGIC), 0)
        self._note_released()
        self._files.ftruncate(fd, FIRST_GROUP)

    def read_header(self) -> None:
        """Read the header of a segment of an earlier run. Raises ``OSError``."""
        header = decode_segment_header(self.pread(FIRST_GROUP, 0))
        if header is None:
            self.header_lost = True
        else:
            self.first_seq, is_released = header
            if is_released:
                self._note_released()

    def _note_released(self) -> None:
        self._descriptors.read_faults.forget(self)
        self.released = True
        self.index, self.partial_index, self.first_id = Index(), None, None
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
            self._prepared = stop  # a write of this size gains nothing from zeros
        else:
            self._prepared = min((stop // _ZERO_AHEAD + 1) * _ZERO_AHEAD, self._reserved)
            size = self._prepared - begin
            zeros = _ZEROS if size == _ZERO_AHEAD else _ZEROS[:size]  # compiled, every slice is a copy
            with suppress(OSError):  # the write of the group meets the same error
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
            log.error("LOG(%s): a failed write cannot be undone, going on in a new file - %s", self.path, error)
            self.abandoned = True


def encode_segment_header(first_seq: int, magic: bytes = storage_schema.SEGMENT_MAGIC) -> bytes:
    """The header as it is written at the beginning of a file."""
    unsigned = _HEADER.pack(magic, first_seq, 0)[: _HEADER.offset("crc")]
    return _HEADER.pack(magic, first_seq, crc32c(unsigned))


def decode_segment_header(data: bytes) -> tuple[int, bool] | None:
    """The first number, and whether the segment is released; None if the header is damaged or of another version."""
    if len(data) < FIRST_GROUP:
        return None
    magic, first_seq, _ = _HEADER.unpack_from(data)
    if magic not in _MAGICS or data[:FIRST_GROUP] != encode_segment_header(first_seq, magic):
        return None
    return first_seq, magic == storage_schema.RELEASED_MAGIC


class StagedBatch:
    """The messages of one large publish, written step by step to a file that then becomes a segment of the log.

    ``TopicLog.attach`` makes it part of the log, by giving it the name of a segment when all groups are written. Until
    then a crash leaves nothing of the batch, and other producers go on writing to the log. Message numbers are not
    known before that either: groups are written with numbers counted from 0, and `assign_numbers` replaces them.
    """

    def __init__(self, descriptors: Descriptors, path: str, max_size: int) -> None:
        self.segment = Segment.create(descriptors, path, 0, 0, max_size)
        self.count = 0
        self._descriptors = descriptors
        self._max_size = max_size
        self._groups: list[tuple[GroupHeader, bytes]] = []  # with the ids of their first messages

    def add(self, frames: Sequence[bytes]) -> None:
        offset = self.segment.end
        data = encode_group(MESSAGES, self.count, 0, frames, offset)
        self.segment.append(data, self._max_size)
        header = decode_header(data, 0, offset)
        assert header is not None, "it was encoded just now"
        self._groups.append((header, message_id(frames[0])))
        self.count += len(frames)

    def assign_numbers(self, first_seq: int, log_seq: int) -> None:
        """Write the final message numbers. `log_seq` is the log's next number, for the header. Raises ``OSError``."""
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
                index.add(numbered.first_seq, first_id, header.offset)
        write_all(files, fd, encode_segment_header(log_seq), 0)
        index.count = self.count
        segment.index = index
        segment.first_seq = log_seq

    def discard(self) -> None:
        """Delete the file. If that fails, it is deleted when the log is opened the next time."""
        with suppress(OSError):
            self.segment.remove()
