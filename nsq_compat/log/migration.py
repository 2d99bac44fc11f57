"""Migration of segments of version 1, in which deferred messages have no offsets (``storage_schema``).

A segment is copied to a temporary file, with other numbers in the headers of its groups and everything at the same
place, so the locations in a checkpoint stay valid. The copy is synced and renamed. So after a crash at any moment each
segment is whole, and the next start migrates those that are left. A topic that never had a deferred message needs no
copies: only the segments' own headers, of a single sector, change.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from nsq_compat.log.files import TEMPORARY, Files, adopt_temporary, opened, read_up_to, write_all
from nsq_compat.log.segment import (
    FIRST_GROUP,
    HEADER_SIZE,
    GroupHeader,
    decode_header,
    decode_segment_header,
    decode_trailer,
    encode_headers,
    encode_segment_header,
)
from nsq_compat.protocol.storage_schema import DEFERRED, MAGIC_PREFIX, SEGMENT_MAGIC_1, SEGMENT_MAGIC_2

log = logging.getLogger(__name__)

_BLOCK: Final = 1 << 20


def migrate(files: Files, folder: str, names: list[str]) -> None:
    """Migrate those of these segments of a topic's log that need it. `names` are sorted. Raises ``OSError``."""
    old = version_1_files(files, folder, names)
    if not old:
        return
    count_of = "1 file" if len(old) == 1 else f"{len(old)} files"
    log.info("LOG(%s): migrating %s, so that all messages have offsets", folder, count_of)
    count = 0
    for name in names:
        path = os.path.join(folder, name)
        with _opened(files, path, os.O_RDWR) as fd:
            size = files.size(path)
            header = decode_segment_header(read_up_to(files, fd, FIRST_GROUP, 0))
            numbering = _Numbering(files, fd, size, count, is_old=name in old, salt=header.salt if header else 0)
            numbering.run(None)
            front = b"" if header is None else encode_segment_header(header.first_seq, SEGMENT_MAGIC_2)
            if numbering.changes:
                _copy(files, fd, path, size, count, front)
            elif name in old and front:
                write_all(files, fd, front, 0)
                files.fsync(fd)
        count = numbering.count
    files.fsync_folder(folder)


def version_1_files(files: Files, folder: str, names: list[str]) -> list[str]:
    """Those of these segments that nsqd will migrate at its next start. Raises ``OSError``."""
    found: list[str] = []
    for name in names:
        with _opened(files, os.path.join(folder, name), os.O_RDONLY) as fd:
            if files.pread(fd, len(SEGMENT_MAGIC_1), 0) == SEGMENT_MAGIC_1:
                found.append(name)
    return found


@contextmanager
def _opened(files: Files, path: str, flags: int) -> Iterator[int]:
    """As ``opened``; errors in the block name the file."""
    with opened(files, path, flags) as fd:
        try:
            yield fd
        except OSError as error:
            error.filename = error.filename or path
            raise


def _copy(files: Files, fd: int, path: str, size: int, count: int, front: bytes) -> None:
    """Replace a segment by a copy with the numbers of version 2; `count` deferred messages are before it."""
    with opened(files, path + TEMPORARY, os.O_RDWR | os.O_CREAT | os.O_TRUNC) as target:
        for offset in range(0, size, _BLOCK):
            write_all(files, target, read_up_to(files, fd, min(_BLOCK, size - offset), offset), offset)
        write_all(files, target, front, 0)
        _Numbering(files, fd, size, count, is_old=True, salt=0).run(target)
        files.fsync(target)
    adopt_temporary(files, path)


class _Numbering:
    """Passes over the groups of a segment. `count` is the number of deferred messages so far.

    `changes`: whether a group of an old segment needs other numbers.
    """

    def __init__(self, files: Files, fd: int, size: int, count: int, is_old: bool, salt: int) -> None:
        self.count = count
        self.changes = False
        self._files = files
        self._fd = fd
        self._size = size
        self._is_old = is_old
        self._salt = salt

    def run(self, target: int | None) -> None:
        """Write the headers with the numbers of version 2 to the file `target`."""
        offset = FIRST_GROUP
        block = b""
        base = 0
        while self._size - offset >= HEADER_SIZE:
            if not base <= offset <= base + len(block) - HEADER_SIZE:
                base = offset
                block = read_up_to(self._files, self._fd, _BLOCK, base)
                if len(block) < HEADER_SIZE:
                    break
            at = offset - base
            header = decode_header(block, at, offset, self._salt)
            if header is not None and header.end <= self._size:
                self._number(header, target, is_sound=True)
                offset = header.end
                continue
            trailer = decode_trailer(block, at, offset, self._salt)
            if trailer is not None and trailer.offset >= FIRST_GROUP:  # its header is damaged
                self._number(trailer, target, is_sound=False)
                offset += HEADER_SIZE
                continue
            found = block.find(MAGIC_PREFIX, at + 1)
            offset = base + found if found >= 0 else max(offset + 1, base + len(block) - HEADER_SIZE + 1)

    def _number(self, header: GroupHeader, target: int | None, is_sound: bool) -> None:
        if not self._is_old:
            if header.kind != DEFERRED:
                self.count = max(self.count, header.due_ns)
                return
        elif header.kind == DEFERRED:
            numbered = header._replace(first_seq=header.first_seq + self.count)
        else:
            numbered = header._replace(due_ns=self.count)
        if self._is_old and numbered != header:
            self.changes = True
            if target is not None:
                front, trailer = encode_headers(numbered, self._salt)
                if is_sound:
                    write_all(self._files, target, front, header.offset)
                if trailer:
                    write_all(self._files, target, trailer, header.end - HEADER_SIZE)
        if header.kind == DEFERRED:
            self.count += header.record_count
