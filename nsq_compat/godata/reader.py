"""Reads a disk queue of Go's nsqd, damaged or not: all readable messages, in order, in bounded memory.

**Files.** Go's nsqd trusts the file of positions. After a crash the file is out of date. It is missing if the queue is
young: it was not written yet, or was removed because the queue was emptied. Then Go's nsqd ignores the data files and
later overwrites them, and so loses acknowledged messages. This reader reads all data files from the one being read on:

- With positions, files before the read position are finished and ignored. Files *after* the write position are read,
  because Go's nsqd begins a file before it writes the positions, and so is data after the write position.
- Without positions, or with invalid ones, all data files are read from the beginning.

This does not bring back messages that were finished long ago. Go's nsqd deletes a file when it has been read to its
end, and all files of a queue that is emptied or deleted before it removes the positions. So files without positions
were begun after that, and messages in them that were finished were finished in the two seconds before a crash, which
Go's nsqd delivers again too. Such a duplicate is allowed; a loss is not. ``.bad`` files are not read, because Go's nsqd
also sets aside files that it has read to the end; the operator decides about them.

**Damage.** Records have no checksum, so only a wrong size can be detected. A part of a file that consists of records
from beginning to end is read as it is. In any other part, a record must be followed by the end or by something that
looks like a record: a valid size, a time between 2001 and 2043, an id of 16 hex digits, and the same again where that
one ends. If not, the next such offset is searched for, and the bytes up to it are counted as damaged, whereas Go's nsqd
discards the rest of the file. It is not always clear which of two sizes is wrong. A record that covers others is
dropped in favour of them. A record with too small a size is delivered truncated, as by Go's nsqd. A wrong size is not
detected if the record then ends where another record does.
"""

import errno
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from nsq_compat.godata.format import (
    RECORD_HEADER,
    SIZE_FIELD,
    SMALLEST_RECORD,
    GoMessage,
    Positions,
    QueueFiles,
    decode_positions,
    queues_among,
)
from nsq_compat.log.files import Files, opened, read_up_to

MAX_RECORD_SIZE = 256 << 20
"""Bytes. A record with a larger size is damaged: --max-msg-size cannot have been so large."""

MAX_DAMAGES_LISTED = 100
_BLOCK = 1 << 20
_MAX_POSITIONS_SIZE = 128  # bytes; five numbers need fewer
_TIMESTAMP = RECORD_HEADER.slices["timestamp_ns"]
# Times from 2001 to 2043: after that, the first byte would be a printable character.
_EARLIEST_NS = 10**18
_LATEST_NS = 0x20 << 56
# Size and timestamp (their first bytes), attempts, id: this rejects nearly everything that is not a record.
_headers = re.compile(rb"(?=[\x00-\x10].{3}[\x0d-\x1f].{7}..[0-9a-f]{16})", re.DOTALL)
_UNREADABLE = frozenset({errno.EIO, errno.EISDIR, errno.ELOOP, errno.ENOENT, errno.ENXIO, errno.ESPIPE})
# O_NONBLOCK: opening a pipe that is named like a data file must not wait for a writer.
_READ = os.O_RDONLY | os.O_NONBLOCK


class Damage(NamedTuple):
    """A damaged part of a file. `size` is in bytes; 0 if unknown, as for a missing file."""

    file: str
    offset: int
    size: int
    reason: str


@dataclass(slots=True)
class QueueReport:
    """The result of reading a queue, complete when the iterator has ended. `damages` lists the first damaged parts."""

    name: str = ""
    claimed_depth: int | None = None
    """The depth in the file of positions, which is out of date after a crash. None: there are no positions."""
    messages: int = 0
    bytes: int = 0
    """Size of all bodies."""
    unsynced: int = 0
    """Messages found after the write position, which was out of date."""
    damaged_parts: int = 0
    damaged_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    """Files that are no longer part of the queue: finished ones, and ``.bad`` ones."""

    def add_damage(self, file: str, offset: int, size: int, reason: str) -> None:
        self.damaged_parts += 1
        self.damaged_bytes += size
        if len(self.damages) < MAX_DAMAGES_LISTED:
            self.damages.append(Damage(file, offset, size, reason))


def read_queue(
    files: Files,
    folder: str,
    name: str,
    report: QueueReport | None = None,
    found: QueueFiles | None = None,
    block: int = _BLOCK,
) -> Iterator[GoMessage]:
    """Iterate over the unfinished messages of the queue `name` in `folder`, in order. Changes no file.

    Damage goes into `report` and raises nothing. An ``OSError`` that says nothing about the files, such as "too many
    open files" or "permission denied", is raised. `found` are the files of the queue, if they are known; `block` is the
    number of bytes to read at once.
    """
    report = QueueReport() if report is None else report
    report.name = name
    if found is None:
        found = queues_among(files.listdir(folder)).get(name, QueueFiles(name))
    positions = _read_positions(files, folder, found, report)
    first = positions.read_file if positions else 0
    report.ignored += [found.data[number] for number in sorted(found.data) if number < first]
    report.ignored += [found.bad[number] for number in sorted(found.bad)]
    unfinished = [number for number in sorted(found.data) if number >= first]
    _report_missing(name, unfinished, positions, report)
    for number in unfinished:
        start = positions.read_offset if positions and number == positions.read_file else 0
        confirmed = None
        if positions and number >= positions.write_file:
            confirmed = positions.write_offset if number == positions.write_file else 0
        name = found.data[number]
        yield from read_data_file(files, folder, name, report, start=start, confirmed=confirmed, block=block)


def read_data_file(
    files: Files,
    folder: str,
    name: str,
    report: QueueReport,
    *,
    start: int = 0,
    confirmed: int | None = None,
    block: int = _BLOCK,
) -> Iterator[GoMessage]:
    """Iterate over the messages of one data file from the offset `start` on; see `read_queue`.

    `confirmed` is the offset up to which the file was written according to the positions; None for all of it.
    """
    path = os.path.join(folder, name)
    size = 0
    try:
        size = files.size(path)
        with opened(files, path, _READ) as descriptor:
            data = _DataFile(files, descriptor, name, size, block)
            confirmed = size if confirmed is None else confirmed
            if start > size:
                report.add_damage(name, size, start - size, "shorter than the reading position")
                return
            if confirmed > size:
                report.add_damage(name, size, confirmed - size, "shorter than the writing position")
            parts = [(start, size)]
            # The confirmed part may be followed by newer records, or by the rest of older ones that were overwritten.
            if start < confirmed < size and data.is_whole(start, confirmed):
                parts = [(start, confirmed), (confirmed, size)]
            for begin, end in parts:
                for offset, found in _read_part(data, begin, end, data.is_whole(begin, end), report):
                    report.messages += 1
                    report.bytes += len(found.body)
                    report.unsynced += offset >= confirmed
                    yield found
    except OSError as error:
        _report_unreadable(report, name, max(0, size - start), error)


def _read_positions(files: Files, folder: str, found: QueueFiles, report: QueueReport) -> Positions | None:
    if found.positions is None:
        return None
    try:
        with opened(files, os.path.join(folder, found.positions), _READ) as descriptor:
            data = files.pread(descriptor, _MAX_POSITIONS_SIZE, 0)
    except OSError as error:
        _report_unreadable(report, found.positions, 0, error)
        return None
    positions = decode_positions(data)
    if positions is None:
        report.add_damage(found.positions, 0, len(data), "not the positions of a queue")
    else:
        report.claimed_depth = positions.depth
    return positions


def _report_missing(name: str, present: list[int], positions: Positions | None, report: QueueReport) -> None:
    """Report missing files between read and write position, as ranges, because there may be very many."""
    if positions is None:
        return
    expected, last = positions.read_file, positions.write_file
    begin = positions.read_offset if last == expected else 0
    if positions.write_offset <= begin:
        last -= 1  # nothing is unread in the file being written, which Go's nsqd creates at the first write
    for number in [*(n for n in present if n <= last), last + 1]:
        if number > expected:
            numbers = f"{expected:06d}" if number == expected + 1 else f"{expected:06d} to {number - 1:06d}"
            report.add_damage(f"{name}.diskqueue.{numbers}.dat", 0, 0, "missing")
        expected = max(expected, number + 1)


def _report_unreadable(report: QueueReport, name: str, size: int, error: OSError) -> None:
    """Report a file that the system cannot read; raises other errors, which may be temporary."""
    if error.errno not in _UNREADABLE:
        raise error
    report.add_damage(name, 0, size, os.strerror(error.errno))


class _DataFile:
    """A data file, read through a window of `block` bytes, or of one record if that is larger."""

    def __init__(self, files: Files, descriptor: int, name: str, end: int, block: int) -> None:
        self.name = name
        self.end = end
        self._files = files
        self._descriptor = descriptor
        self._block = block
        self._begin = 0
        self._window = b""
        self._last_search: tuple[int, int, int | None] = (0, 0, -1)

    def at(self, offset: int, size: int) -> bytes:
        """Read `size` bytes at `offset`; fewer at the end of the file."""
        begin = offset - self._begin
        if begin < 0 or begin + size > len(self._window):
            self._begin, begin = offset, 0
            wanted = min(max(size, self._block), self.end - offset)
            self._window = read_up_to(self._files, self._descriptor, wanted, offset)
        return self._window[begin : begin + size]

    def record_end(self, offset: int, limit: int) -> int | None:
        """The end of the record at `offset`; None if its size is impossible."""
        field = self.at(offset, SIZE_FIELD)
        size = int.from_bytes(field, "big", signed=True)
        if len(field) < SIZE_FIELD or not SMALLEST_RECORD <= size <= min(MAX_RECORD_SIZE, limit - offset - SIZE_FIELD):
            return None
        return offset + SIZE_FIELD + size

    def is_whole(self, start: int, end: int) -> bool:
        """Whether `start` to `end` is exactly one record after the other."""
        offset: int | None = start
        while offset is not None and offset < end:
            offset = self.record_end(offset, end)
        return offset == end

    def message(self, offset: int, end: int) -> GoMessage:
        record = self.at(offset, end - offset)
        _, timestamp_ns, attempts, message_id = RECORD_HEADER.unpack_from(record)
        return GoMessage(timestamp_ns, attempts, message_id, record[RECORD_HEADER.size :])

    def looks_like_record(self, offset: int, end: int) -> int | None:
        """The end of the record at `offset`; None if that does not look like a record of nsqd."""
        header = self.at(offset, RECORD_HEADER.size)
        if _headers.match(header) is None:
            return None
        if not _EARLIEST_NS <= int.from_bytes(header[_TIMESTAMP], "big", signed=True) < _LATEST_NS:
            return None
        return self.record_end(offset, end)

    def find_record(self, offset: int, end: int) -> int | None:
        """The first offset from this one on of a record that is followed by another one or by the end."""
        # The result is cached: between two damaged parts, every record causes the same search.
        searched_from, searched_to, found = self._last_search
        if end == searched_to and searched_from <= offset and (found is None or offset <= found):
            return found
        found = next((at for at in self._candidates(offset, end) if self._is_followed(at, end)), None)
        self._last_search = (offset, end, found)
        return found

    def find_covered(self, start: int, stop: int, end: int) -> int | None:
        """The offset of another record inside that from `start` to `stop`, if no record follows at `stop`."""
        if stop == end or self.looks_like_record(stop, end) is not None:
            return None
        search_from = start + (1 if self.looks_like_record(start, end) is None else RECORD_HEADER.size)
        found = self.find_record(search_from, end)
        return found if found is not None and found < stop else None

    def _candidates(self, offset: int, end: int) -> Iterator[int]:
        """The offsets at which a record's header may be."""
        while len(block := self.at(offset, min(self._block, end - offset))) >= RECORD_HEADER.size:
            for match in _headers.finditer(block):
                yield offset + match.start()
            offset += len(block) - RECORD_HEADER.size + 1  # a header may continue after the block

    def _is_followed(self, offset: int, end: int) -> bool:
        stop = self.looks_like_record(offset, end)
        return stop is not None and (stop == end or self.looks_like_record(stop, end) is not None)


def _read_part(
    data: _DataFile, start: int, end: int, is_whole: bool, report: QueueReport
) -> Iterator[tuple[int, GoMessage]]:
    """The messages of a part, with their offsets. A part that is not whole is damaged somewhere (see the module)."""
    while start < end:
        stop = data.record_end(start, end)
        if stop is None:
            following = None if is_whole else data.find_record(start + 1, end)
            reason = "changed while it was read" if is_whole else "no message begins here"
        else:
            following = None if is_whole else data.find_covered(start, stop, end)
            reason = "a message's size is wrong"
        if stop is None or following is not None:
            following = end if following is None else following
            report.add_damage(data.name, start, following - start, reason)
            start = following
        else:
            yield start, data.message(start, stop)
            start = stop
