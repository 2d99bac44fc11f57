"""Exports topics as a data path from which Go's nsqd delivers all messages.

An export into the same data path switches by a single rename, so that at any time all messages are either ours or Go's:

1. All files are written to ``nsq_compat.exporting``, which is then renamed to ``nsq_compat.export``.
2. ``nsq_compat`` is renamed to ``nsq_compat.exported-<n>``. From now on the messages are Go's.
3. The files are moved from ``nsq_compat.export`` to the data path, and the empty folder is removed.

An export into another, empty folder omits step 2, and our messages stay.

`recover` undoes an export that was interrupted before step 2 (``nsq_compat`` exists), and completes one that was
interrupted after it. The operator may remove ``nsq_compat.exported-<n>`` at any time.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from nsq_compat.godata.format import (
    GoMessage,
    Positions,
    data_name,
    encode_record,
    message_of,
    positions_name,
    queue_name,
    queues_among,
)
from nsq_compat.log import metadata
from nsq_compat.log.data_path import FOLDER, our_folder, remove_folder
from nsq_compat.log.files import Files, replace_file, write_all
from nsq_compat.log.metadata import ChannelMetadata, TopicMetadata, save_metadata

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_WRITE_SIZE = 1 << 20  # bytes buffered for one write
_WRITING = FOLDER + ".exporting"
_COMPLETE = FOLDER + ".export"
_EXPORTED = FOLDER + ".exported-"

Backlog = tuple[str, str | None, Iterable[bytes]]
"""Topic, channel (None: the topic's own messages), and the frames of the next deliveries, in order."""


class ExportRefused(Exception):
    """The target is not suitable for an export."""


def export(
    files: Files,
    source: str,
    target: str,
    topics: Sequence[TopicMetadata],
    backlogs: Iterable[Backlog],
    max_bytes_per_file: int,
) -> Iterator[tuple[str, int]]:
    """Write the files of Go's nsqd for the data path `source` into `target`, possibly the same. Both must be locked.

    `topics` are those of nsqd.dat. Topics and channels that are only in `backlogs` are added, because Go's nsqd ignores
    queues that nsqd.dat does not name.

    Yields the name and number of messages of each queue when it is written; the export is complete when the iterator
    ends. Raises ``ExportRefused`` before anything was changed, and ``OSError`` if writing fails: then the messages are
    still ours.
    """
    recover(files, target)
    in_place = os.path.realpath(source) == os.path.realpath(target)
    _check_target(files, target, in_place)
    writing, complete = os.path.join(target, _WRITING), os.path.join(target, _COMPLETE)
    files.mkdir(writing, 0o700)
    written: list[tuple[str, str | None]] = []
    for topic, channel, frames in backlogs:
        name = queue_name(topic, channel)
        positions = write_queue(files, writing, name, map(message_of, frames), max_bytes_per_file)
        written.append((topic, channel))
        yield name, positions.depth
    save_metadata(files, writing, _with_queues(topics, written))
    files.rename(writing, complete)
    files.fsync_folder(target)
    if in_place:
        files.rename(our_folder(target), _exported_name(files, target))
        files.fsync_folder(target)
    _move_into_place(files, target)


def recover(files: Files, data_path: str) -> None:
    """Undo or complete an interrupted export. Must be called before ``nsq_compat`` is used or created."""
    names = files.listdir(data_path)
    if _WRITING in names:
        remove_folder(files, os.path.join(data_path, _WRITING))
    if _COMPLETE in names:
        if FOLDER in names:
            remove_folder(files, os.path.join(data_path, _COMPLETE))
        else:
            _move_into_place(files, data_path)


def _with_queues(topics: Sequence[TopicMetadata], queues: Iterable[tuple[str, str | None]]) -> Iterator[TopicMetadata]:
    """The topics, with all topics and channels of the queues added."""
    channels: dict[str, dict[str, ChannelMetadata]] = {}
    paused = {topic.name: topic.paused for topic in topics}
    for topic in topics:
        channels.setdefault(topic.name, {}).update({channel.name: channel for channel in topic.channels})
    for name, channel_name in queues:
        known = channels.setdefault(name, {})
        if channel_name is not None:
            known.setdefault(channel_name, ChannelMetadata(channel_name))
    for name, known in channels.items():
        yield TopicMetadata(name, paused.get(name, False), tuple(known.values()))


def _check_target(files: Files, target: str, in_place: bool) -> None:
    names = files.listdir(target)
    live = [queue for queue in queues_among(names).values() if queue.live]
    if live:
        raise ExportRefused(f"{target} already has queue files of Go's nsqd, such as {live[0].live[0]}")
    if in_place and FOLDER not in names:
        raise ExportRefused(f"{target} has no {FOLDER} folder: there is nothing to export")
    if not in_place and (FOLDER in names or metadata.FILE_NAME in names):
        raise ExportRefused(f"{target} is already a data path; give an empty folder")


def _move_into_place(files: Files, target: str) -> None:
    complete = os.path.join(target, _COMPLETE)
    # Files of positions last: Go's nsqd ignores a queue without positions.
    for name in sorted(files.listdir(complete), key=lambda name: (name.endswith(".meta.dat"), name)):
        files.rename(os.path.join(complete, name), os.path.join(target, name))
    files.fsync_folder(target)
    files.rmdir(complete)


def _exported_name(files: Files, target: str) -> str:
    taken = {name for name in files.listdir(target) if name.startswith(_EXPORTED)}
    number = next(n for n in range(1, len(taken) + 2) if f"{_EXPORTED}{n}" not in taken)
    return os.path.join(target, f"{_EXPORTED}{number}")


def write_queue(
    files: Files, folder: str, name: str, messages: Iterable[GoMessage], max_bytes_per_file: int
) -> Positions:
    """Write the disk queue `name` of Go's nsqd, which must not exist in `folder`. It is durable on return.

    Data files come first, positions last and atomically: Go's nsqd ignores data files without positions, so it never
    sees a part of a queue. Raises ``FileExistsError`` if the queue has files other than ``.bad`` ones, and ``OSError``
    if writing fails; then the files are removed if possible.
    """
    existing = queues_among(files.listdir(folder)).get(name)
    if existing and existing.live:
        raise FileExistsError(f"the queue {name} exists already in {folder}")
    writer = _Writer(files, folder, name, max_bytes_per_file)
    try:
        for stored in messages:
            writer.add(encode_record(stored))
        writer.end_file()
        files.fsync_folder(folder)
        replace_file(files, os.path.join(folder, positions_name(name)), writer.positions.encode(), sync=True)
    except BaseException:
        writer.remove()  # our reader also reads data files without positions
        raise
    return writer.positions


class _Writer:
    def __init__(self, files: Files, folder: str, name: str, max_bytes_per_file: int) -> None:
        self.positions = Positions(0, 0, 0, 0, 0)
        self._files = files
        self._folder = folder
        self._name = name
        self._limit = max_bytes_per_file
        self._buffer = bytearray()
        self._descriptor = -1

    def add(self, record: bytes) -> None:
        depth, _, _, number, offset = self.positions
        # nsqd: a new file is begun if the record would exceed the limit, unless the file is empty.
        if offset > 0 and offset + len(record) > self._limit:
            self.end_file()
            number, offset = number + 1, 0
        self._buffer += record
        self.positions = Positions(depth + 1, 0, 0, number, offset + len(record))
        if len(self._buffer) >= _WRITE_SIZE:
            self._write()

    def end_file(self) -> None:
        try:
            self._write()
            if self._descriptor >= 0:
                self._files.fsync(self._descriptor)
        finally:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                self._files.close(descriptor)

    def remove(self) -> None:
        self._buffer.clear()
        with suppress(OSError):
            self.end_file()
        for number in range(self.positions.write_file + 1):
            with suppress(OSError):
                self._files.unlink(os.path.join(self._folder, data_name(self._name, number)))

    def _write(self) -> None:
        if not self._buffer:
            return
        if self._descriptor < 0:
            path = os.path.join(self._folder, data_name(self._name, self.positions.write_file))
            self._descriptor = self._files.open(path, _CREATE)
        data = bytes(self._buffer)
        self._buffer.clear()
        write_all(self._files, self._descriptor, data, self.positions.write_offset - len(data))
