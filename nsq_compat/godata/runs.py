"""Divides the messages of Go's queues into runs of growing ids, and merges the runs.

Go's nsqd takes messages from memory and from files alternately. In the files of a channel, a few sequences of growing
ids are therefore interleaved, mostly two or three. A queue is read once to assign each message to a run, which takes a
byte of memory per message, and then once for each run.
"""

import errno
import heapq
import os
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Final

from nsq_compat.godata.format import GoMessage, QueueFiles, frame_of
from nsq_compat.godata.reader import QueueReport, read_queue
from nsq_compat.log.files import Files
from nsq_compat.protocol.message import EPOCH_TICK, NODE_ID_BITS, SEQUENCE_BITS, TICK_SHIFT, message_id

BELOW_TICK: Final = NODE_ID_BITS + SEQUENCE_BITS
_DAY: Final = 86_400 * 10**9 >> TICK_SHIFT  # ticks
_MAX_RUNS: Final = 8
_NO_RUN: Final = 255
_BLOCK: Final = 1 << 16  # many runs may be read at the same time
_is_nsqd_id = re.compile(rb"[0-9a-f]{16}").fullmatch


class QueueRuns:
    """A queue of Go's nsqd, which is read when this is created, and for each result. Methods may raise ``OSError``.

    A message is in no run if its id does not match its timestamp, or does not fit into `_MAX_RUNS` runs.
    """

    def __init__(self, files: Files, data_path: str, queue: QueueFiles) -> None:
        self.report = QueueReport()
        self._files = files
        self._data_path = data_path
        self._queue = queue
        self._runs = bytearray()  # of each message
        last_ids: list[bytes] = []
        for each in self._read(self.report):
            self._runs.append(_run_of(each, last_ids))
        self._count = len(last_ids)

    def runs(self) -> list[Iterator[bytes]]:
        """The frames of each run, by id."""
        return [self._frames(number) for number in range(self._count)]

    def others(self) -> Iterator[bytes]:
        """Yield the frames of the messages that are in no run."""
        return self._frames(_NO_RUN) if _NO_RUN in self._runs else iter(())

    def _frames(self, run: int) -> Iterator[bytes]:
        report = QueueReport()
        for each, its_run in zip(self._read(report), self._runs, strict=False):
            if its_run == run:
                yield frame_of(each)
        if report != self.report:
            path = os.path.join(self._data_path, self._queue.name)
            raise OSError(errno.EIO, "the files of the queue changed while they were read", path)

    def _read(self, report: QueueReport) -> Iterator[GoMessage]:
        return read_queue(self._files, self._data_path, self._queue.name, report, self._queue, block=_BLOCK)


def merged(queues: Mapping[str | None, QueueRuns], max_bytes: int) -> Iterator[list[dict[str | None, bytes]]]:
    """Yield the messages in the runs of all queues, by id, in batches of about `max_bytes`.

    A message is the frame of each queue that has it.
    """
    runs = [(owner, run) for owner, queue in queues.items() for run in queue.runs()]
    numbered = [_numbered(number, run) for number, (_, run) in enumerate(runs)]
    batch: list[dict[str | None, bytes]] = []
    size = 0
    for _, same in groupby(heapq.merge(*numbered), key=itemgetter(0)):
        frames: dict[str | None, bytes] = {}
        for _, number, frame in same:
            frames.setdefault(runs[number][0], frame)
            size += len(frame)
        batch.append(frames)
        if size >= max_bytes:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _numbered(number: int, run: Iterator[bytes]) -> Iterator[tuple[bytes, int, bytes]]:
    return ((message_id(frame), number, frame) for frame in run)


def _run_of(message: GoMessage, last_ids: list[bytes]) -> int:
    """The number of the first run, among those with these last ids, that the message can continue."""
    each_id = message.id
    if not _matches_timestamp(each_id, message.timestamp_ns):
        return _NO_RUN
    for number, last_id in enumerate(last_ids):
        if last_id < each_id:
            last_ids[number] = each_id
            return number
    if len(last_ids) == _MAX_RUNS:
        return _NO_RUN
    last_ids.append(each_id)
    return len(last_ids) - 1


def _matches_timestamp(message_id: bytes, published_ns: int) -> bool:
    """Whether an id is one of nsqd, and its time is within a day of the message's timestamp."""
    if not _is_nsqd_id(message_id):
        return False
    return abs((int(message_id, 16) >> BELOW_TICK) - ((published_ns >> TICK_SHIFT) - EPOCH_TICK)) < _DAY
