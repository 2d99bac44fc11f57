"""The messages of one large publish, written step by step to a file that then becomes a segment of the log.

The file is not part of the log before it has the name of a segment, which it gets when everything is written. So a
process that ends earlier leaves nothing of the batch, and other publishers write to the log meanwhile. Message numbers
are known only at the end: until then groups carry numbers counted from 0, and `number` writes the true ones.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from nsq_compat.log.descriptors import Descriptors
from nsq_compat.log.files import write_all
from nsq_compat.log.group import HEADER_SIZE, MESSAGES, GroupHeader, encode_group, encode_headers, header_of
from nsq_compat.log.segment import Index, IndexEntry, Segment, encode_segment_header
from nsq_compat.protocol.message import message_id

log = logging.getLogger(__name__)


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
