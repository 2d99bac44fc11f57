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
from itertools import groupby
from operator import itemgetter

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
from nsq_compat.log.files import Files, opened, replace_file, write_all
from nsq_compat.log.metadata import ChannelMetadata, TopicMetadata, save_metadata

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
    channels = {topic.name: {channel.name: channel for channel in topic.channels} for topic in topics}
    paused = {topic.name for topic in topics if topic.paused}
    for name, channel in queues:
        known = channels.setdefault(name, {})
        if channel is not None:
            known.setdefault(channel, ChannelMetadata(channel))
    for name, known in channels.items():
        yield TopicMetadata(name, name in paused, tuple(known.values()))


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
    positions = Positions(0, 0, 0, 0, 0)
    number = 0
    try:
        for number, chunks in groupby(_chunks(map(encode_record, messages), max_bytes_per_file), itemgetter(0)):
            path = os.path.join(folder, data_name(name, number))
            with opened(files, path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
                for _, offset, data, count in chunks:
                    write_all(files, fd, data, offset)
                    positions = Positions(positions.depth + count, 0, 0, number, offset + len(data))
                files.fsync(fd)
        files.fsync_folder(folder)
        replace_file(files, os.path.join(folder, positions_name(name)), positions.encode(), sync=True)
    except BaseException:
        for each in range(number + 1):  # our reader also reads data files without positions
            with suppress(OSError):
                files.unlink(os.path.join(folder, data_name(name, each)))
        raise
    return positions


def _chunks(records: Iterable[bytes], max_bytes_per_file: int) -> Iterator[tuple[int, int, bytes, int]]:
    """The records joined for writes: number of the file, offset in it, bytes, and number of records."""
    number = offset = count = 0
    data = bytearray()
    for record in records:
        end = offset + len(data)
        # nsqd: a new file is begun if the record would exceed the limit, unless the file is empty.
        is_full = end > 0 and end + len(record) > max_bytes_per_file
        if is_full or len(data) >= _WRITE_SIZE:
            yield number, offset, bytes(data), count
            number, offset = (number + 1, 0) if is_full else (number, end)
            data.clear()
            count = 0
        data += record
        count += 1
    if data:
        yield number, offset, bytes(data), count
