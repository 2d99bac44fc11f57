"""Reads a disk queue of Go's, damaged or not: every message that can be read, in order, in bounded memory.

**Which files.** Go trusts its file of positions; after a crash that is out of date, or missing while a queue is young
(it was never written yet, or just removed because the queue was emptied). Then Go ignores data files and later writes
over them: acknowledged messages are lost. Here every data file counts, from the one being read onwards:

- with positions, files before the reading position are finished and ignored; those *behind* the writing position are
  read, because Go begins such a file before it writes down that it did. So is what follows the writing position.
- without positions, or with some that cannot be understood, all data files are read from their beginning.

Can that bring back messages that were finished long ago? Go deletes a file when it is read to its end, and all files
when a queue is emptied or deleted, before it removes the positions. So without positions only files exist that were
begun after that; what was consumed from them was consumed in the two seconds before a crash, and Go itself delivers
again what was consumed in the two seconds before a crash. A duplicate of that kind is allowed, a loss is not. ``.bad``
files are never read here: Go also sets aside files it had read to the end, so that is for an operator to decide.

**Damage.** Records have no checksum; a wrong size is all one can notice. A part of a file that is records from end to
end is believed as it is. In any other, each record must be followed by what looks like another one (a sensible size, a
time of this century, an id of 16 hex digits, and the same again where that one ends), or by the end. Where it is not,
the next place that looks so is searched for, and what lies between is counted as damaged. Go gives up all the rest of
such a file. One cannot always tell which of two sizes is wrong: a record that swallows its followers is dropped in
their favour, one whose size became too small is delivered short, as Go would. A wrong size that happens to end where
another record ends goes unnoticed.
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
from nsq_compat.log.files import Files

MAX_RECORD_SIZE = 256 << 20
"""Bytes. Whatever --max-msg-size was, a record that says it is larger is damaged."""

MAX_DAMAGES_LISTED = 100
_BLOCK = 1 << 20
_POSITIONS_LIMIT = 128  # bytes; five numbers need fewer
_TIMESTAMP = RECORD_HEADER.slices["timestamp_ns"]
# A time from 2001 to 2043 in nanoseconds: beyond that, its first byte would be a character of a text.
_EARLIEST_NS = 10**18
_LATEST_NS = 0x20 << 56
# Size, timestamp (both by their first byte), attempts, id: rejects at once nearly everything that is no record.
_headers = re.compile(rb"(?=[\x00-\x10].{3}[\x0d-\x1f].{7}..[0-9a-f]{16})", re.DOTALL)
_UNREADABLE = frozenset({errno.EIO, errno.EISDIR, errno.ELOOP, errno.ENOENT, errno.ENXIO, errno.ESPIPE})
_READ = (
    os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
)  # who names a pipe like a data file shall not make us wait for a writer


class Damage(NamedTuple):
    """What could not be read. `size` is in bytes; 0 when it is not known, as for a missing file."""

    file: str
    offset: int
    size: int
    reason: str


@dataclass(slots=True)
class QueueReport:
    """What reading a queue came to, complete when the reading is. `damages` lists the first of `damaged_parts`."""

    name: str = ""
    claimed_depth: int | None = None
    """How many messages Go's positions promise; out of date after a crash. None: there are no positions."""
    messages: int = 0
    bytes: int = 0
    """Of the bodies."""
    unsynced: int = 0
    """Messages found behind the positions, because Go had not written down that it wrote them."""
    damaged_parts: int = 0
    damaged_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    """Files that are no part of the queue any more: finished, or set aside by Go as bad."""

    def add_damage(self, file: str, offset: int, size: int, reason: str) -> None:
        self.damaged_parts += 1
        self.damaged_bytes += size
        if len(self.damages) < MAX_DAMAGES_LISTED:
            self.damages.append(Damage(file, offset, size, reason))


def read_queue(
    files: Files, folder: str, name: str, report: QueueReport | None = None, found: QueueFiles | None = None
) -> Iterator[GoMessage]:
    """The messages of the queue `name` in `folder` that are not finished, in order. Nothing is changed.

    Damage never raises: it goes into `report`. An ``OSError`` does when it says nothing about the files, such as "too
    many open files" or "permission denied". `found` spares listing the folder.
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
        start, confirmed = 0, None
        if positions and number == positions.read_file:
            start = positions.read_offset
        if positions and number == positions.write_file:
            confirmed = positions.write_offset
        elif positions and number > positions.write_file:
            confirmed = 0
        yield from read_data_file(files, folder, found.data[number], report, start=start, confirmed=confirmed)


def read_data_file(
    files: Files, folder: str, name: str, report: QueueReport, *, start: int = 0, confirmed: int | None = None
) -> Iterator[GoMessage]:
    """The messages of one data file from the offset `start` on; see `read_queue`.

    `confirmed` is the offset up to which Go has said that it wrote the file, None for all of it.
    """
    path = os.path.join(folder, name)
    try:
        size = files.size(path)
        descriptor = files.open(path, _READ)
    except OSError as error:
        _report_unreadable(report, name, 0, error)
        return
    try:
        data = _DataFile(files, descriptor, name, size)
        yield from _read(data, start, data.end if confirmed is None else confirmed, report)
    finally:
        files.close(descriptor)


def _read_positions(files: Files, folder: str, found: QueueFiles, report: QueueReport) -> Positions | None:
    if found.positions is None:
        return None
    try:
        descriptor = files.open(os.path.join(folder, found.positions), _READ)
        try:
            data = files.pread(descriptor, _POSITIONS_LIMIT, 0)
        finally:
            files.close(descriptor)
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
    """Say which numbers between reading and writing position have no file, as ranges: there may be very many."""
    if positions is None:
        return
    expected, last = positions.read_file, positions.write_file
    begin = positions.read_offset if last == expected else 0
    if positions.write_offset <= begin:
        last -= 1  # nothing unread in the file being written; Go makes it when there is something to write
    for number in [*(n for n in present if n <= last), last + 1]:
        if number > expected:
            numbers = f"{expected:06d}" if number == expected + 1 else f"{expected:06d} to {number - 1:06d}"
            report.add_damage(f"{name}.diskqueue.{numbers}.dat", 0, 0, "missing")
        expected = max(expected, number + 1)


def _report_unreadable(report: QueueReport, name: str, size: int, error: OSError) -> None:
    """Count a file the system cannot read; raises other errors, which may be gone the next time."""
    if error.errno not in _UNREADABLE:
        raise error
    report.add_damage(name, 0, size, os.strerror(error.errno))


class _DataFile:
    """A data file through a window of `_BLOCK` bytes, or of one record when that is larger."""

    def __init__(self, files: Files, descriptor: int, name: str, end: int) -> None:
        self.name = name
        self.end = end
        self._files = files
        self._descriptor = descriptor
        self._begin = 0
        self._window = b""
        self._last_search: tuple[int, int, int | None] = (0, 0, -1)

    def at(self, offset: int, size: int) -> bytes:
        """The bytes there; fewer at the end of the file."""
        begin = offset - self._begin
        if begin < 0 or begin + size > len(self._window):
            self._begin, begin = offset, 0
            self._window = self._read(offset, min(max(size, _BLOCK), self.end - offset))
        return self._window[begin : begin + size]

    def _read(self, offset: int, size: int) -> bytes:
        data = self._files.pread(self._descriptor, size, offset)
        if len(data) >= size or not data:
            return data
        parts = [data]  # a signal or a network file system may give less than there is
        missing = size - len(data)
        while missing > 0 and (data := self._files.pread(self._descriptor, missing, offset + size - missing)):
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def record_end(self, offset: int, limit: int) -> int | None:
        """Where the record at `offset` ends; None when its size is impossible."""
        field = self.at(offset, SIZE_FIELD)
        size = int.from_bytes(field, "big", signed=True)
        if len(field) < SIZE_FIELD or not SMALLEST_RECORD <= size <= min(MAX_RECORD_SIZE, limit - offset - SIZE_FIELD):
            return None
        return offset + SIZE_FIELD + size

    def is_whole(self, start: int, end: int) -> bool:
        """True when there are records, one behind the other, from `start` exactly to `end`."""
        offset: int | None = start
        while offset is not None and offset < end:
            offset = self.record_end(offset, end)
        return offset == end

    def message(self, offset: int, end: int) -> GoMessage:
        """The message of the record there."""
        record = self.at(offset, end - offset)
        _, timestamp_ns, attempts, message_id = RECORD_HEADER.unpack_from(record)
        return GoMessage(timestamp_ns, attempts, message_id, record[RECORD_HEADER.size :])

    def looks_like_record(self, offset: int, end: int) -> int | None:
        """Where a record that looks like one of nsqd's ends; None when nothing at `offset` does."""
        header = self.at(offset, RECORD_HEADER.size)
        if _headers.match(header) is None:
            return None
        if not _EARLIEST_NS <= int.from_bytes(header[_TIMESTAMP], "big", signed=True) < _LATEST_NS:
            return None
        return self.record_end(offset, end)

    def find_record(self, offset: int, end: int) -> int | None:
        """The first offset from this one on that looks like a record followed by another one or by the end."""
        # What was found is remembered: between two damages every record asks again for the same place.
        searched_from, searched_to, found = self._last_search
        if end == searched_to and searched_from <= offset and (found is None or offset <= found):
            return found
        found = next((at for at in self._candidates(offset, end) if self._is_followed(at, end)), None)
        self._last_search = (offset, end, found)
        return found

    def _candidates(self, offset: int, end: int) -> Iterator[int]:
        """Offsets of what may be the header of a record."""
        while len(block := self.at(offset, min(_BLOCK, end - offset))) >= RECORD_HEADER.size:
            for match in _headers.finditer(block):
                yield offset + match.start()
            offset += len(block) - RECORD_HEADER.size + 1  # a header cut by the end of the block is the next one's

    def _is_followed(self, offset: int, end: int) -> bool:
        stop = self.looks_like_record(offset, end)
        return stop is not None and (stop == end or self.looks_like_record(stop, end) is not None)


def _read(data: _DataFile, start: int, confirmed: int, report: QueueReport) -> Iterator[GoMessage]:
    """The records from `start` to the end of the file, in up to two parts: the confirmed one and the rest."""
    if start > data.end:
        report.add_damage(data.name, data.end, start - data.end, "shorter than the reading position")
        return
    if confirmed > data.end:
        report.add_damage(data.name, data.end, confirmed - data.end, "shorter than the writing position")
    parts = [(start, data.end)]
    try:
        # Behind the confirmed part may be newer records, or the rest of older ones that were written over.
        if start < confirmed < data.end and data.is_whole(start, confirmed):
            parts = [(start, confirmed), (confirmed, data.end)]
        for begin, end in parts:
            read = _believed if data.is_whole(begin, end) else _doubted
            for offset, found in read(data, begin, end, report):
                report.messages += 1
                report.bytes += len(found.body)
                report.unsynced += offset >= confirmed
                yield found
    except OSError as error:
        _report_unreadable(report, data.name, data.end - start, error)


def _believed(data: _DataFile, start: int, end: int, report: QueueReport) -> Iterator[tuple[int, GoMessage]]:
    """The records of a part that is whole, with their offsets."""
    while start < end:
        stop = data.record_end(start, end)
        if stop is None:
            report.add_damage(data.name, start, end - start, "changed while it was read")
            return
        yield start, data.message(start, stop)
        start = stop


def _doubted(data: _DataFile, start: int, end: int, report: QueueReport) -> Iterator[tuple[int, GoMessage]]:
    """The records of a part that is damaged somewhere: see the module's docstring."""
    while start < end:
        stop = data.record_end(start, end)
        if stop is None:
            found = data.find_record(start + 1, end)
            following = end if found is None else found
            report.add_damage(data.name, start, following - start, "no message begins here")
        elif stop == end or data.looks_like_record(stop, end) is not None:
            yield start, data.message(start, stop)
            following = stop
        elif (found := data.find_record(_behind_header(data, start, end), end)) is not None and found < stop:
            report.add_damage(data.name, start, found - start, "a message's size is wrong")
            following = found
        else:
            yield start, data.message(start, stop)
            following = stop
        start = following


def _behind_header(data: _DataFile, start: int, end: int) -> int:
    """Where to look for the next record when one at `start` is doubtful: what does not look like one may hide it."""
    return start + (1 if data.looks_like_record(start, end) is None else RECORD_HEADER.size)
