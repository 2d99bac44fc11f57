"""Our messages become Go's queues: a data path that Go's nsqd starts on and delivers everything from.

Into the data path the messages come from, the switch is a single rename, so that at any moment they are either all ours
or all Go's:

1. Everything is written to ``nsq_compat.exporting``, then that is renamed to ``nsq_compat.export``: complete.
2. ``nsq_compat`` is renamed to ``nsq_compat.exported-<n>``. From now on the messages are Go's.
3. The files are moved from ``nsq_compat.export`` to their places, and it is removed.

Into another, empty folder it is the same without step 2, and ours stay ours.

`recover` undoes what was interrupted before the switch (where there is ``nsq_compat``) and completes what was
interrupted behind it. What was ours is kept for the operator, who may remove ``nsq_compat.exported-<n>`` at any time.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

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
_WRITE_SIZE = 1 << 20  # bytes gathered for one write


def write_queue(
    files: Files, folder: str, name: str, messages: Iterable[GoMessage], max_bytes_per_file: int
) -> Positions:
    """Write the queue `name`, which must not exist in `folder`; all of it is on disk on return.

    Raises ``FileExistsError`` for a queue that has files already (``.bad`` ones do not count), ``OSError`` when writing
    fails; what was written is removed then if the system lets us.
    """
    existing = queues_among(files.listdir(folder)).get(name)
    if existing and existing.live:
        raise FileExistsError(f"the queue {name} exists already in {folder}")
    writer = _Writer(files, folder, name, max_bytes_per_file)
    try:
        for stored in messages:
            writer.add(encode_record(stored))
        writer.end_file()
        # A name in the folder must not be lost when the content it stands for is kept.
        files.fsync_folder(folder)
        replace_file(files, os.path.join(folder, positions_name(name)), writer.positions.encode(), sync=True)
    except BaseException:
        # Our own reader believes in data files without positions.
        writer.remove()
        raise
    return writer.positions


class _Writer:
    """The data files of one queue, one after the other."""

    def __init__(self, files: Files, folder: str, name: str, max_bytes_per_file: int) -> None:
        self.positions = Positions(0, 0, 0, 0, 0)
        self._files = files
        self._folder = folder
        self._name = name
        self._limit = max_bytes_per_file
        self._gathered = bytearray()
        self._descriptor = -1
        self._written = 0

    def add(self, record: bytes) -> None:
        """Append one record."""
        depth, _, _, number, offset = self.positions
        # nsqd: a file is full when the next record would exceed the limit; a record larger than that has one to itself.
        if offset > 0 and offset + len(record) > self._limit:
            self.end_file()
            number, offset = number + 1, 0
        self._gathered += record
        self.positions = Positions(depth + 1, 0, 0, number, offset + len(record))
        if len(self._gathered) >= _WRITE_SIZE:
            self._write()

    def end_file(self) -> None:
        """Write what is left of the current file, to the disk."""
        try:
            self._write()
            if self._descriptor >= 0:
                self._files.fsync(self._descriptor)
        finally:
            descriptor, self._descriptor = self._descriptor, -1
            if descriptor >= 0:
                self._files.close(descriptor)

    def remove(self) -> None:
        """Undo everything, as far as possible."""
        self._gathered.clear()
        with suppress(OSError):
            self.end_file()
        for number in range(self.positions.write_file + 1):
            with suppress(OSError):
                self._files.unlink(os.path.join(self._folder, data_name(self._name, number)))

    def _write(self) -> None:
        if not self._gathered:
            return
        if self._descriptor < 0:
            path = os.path.join(self._folder, data_name(self._name, self.positions.write_file))
            self._descriptor = self._files.open(path, _CREATE)
            self._written = 0
        data = bytes(self._gathered)
        self._gathered.clear()
        write_all(self._files, self._descriptor, data, self._written)
        self._written += len(data)


_WRITING = FOLDER + ".exporting"
_COMPLETE = FOLDER + ".export"
_EXPORTED = FOLDER + ".exported-"

Backlog = tuple[str, str | None, Iterable[bytes]]
"""Topic, channel (None: what no channel of the topic has got) and the frames of the next deliveries, in order."""


class ExportRefused(Exception):
    """The target cannot take an export; the text is for the operator."""


@dataclass(frozen=True, slots=True)
class Exported:
    """One queue that was written."""

    topic: str
    channel: str | None
    messages: int


def export(
    files: Files,
    source: str,
    target: str,
    topics: Sequence[TopicMetadata],
    backlogs: Iterable[Backlog],
    max_bytes_per_file: int,
) -> Iterator[Exported]:
    """Write Go's files for the data path `source` into `target`, which may be the same; both must be locked.

    `topics` says what is paused, and what exists without a message. Go's nsqd does not look at queues that are not in
    its nsqd.dat, so those of `backlogs` are added to it.

    Lazy: yields each queue when it is written; all is done when the iteration ends. Raises ``ExportRefused`` before
    anything was changed, ``OSError`` when writing fails: then nothing has changed hands.
    """
    recover(files, target)
    in_place = _same(source, target)
    _require_room(files, target, in_place)
    writing, complete = os.path.join(target, _WRITING), os.path.join(target, _COMPLETE)
    files.mkdir(writing, 0o700)
    written: list[tuple[str, str | None]] = []
    for topic, channel, frames in backlogs:
        queue = write_queue(files, writing, queue_name(topic, channel), map(message_of, frames), max_bytes_per_file)
        written.append((topic, channel))
        yield Exported(topic, channel, queue.depth)
    save_metadata(files, writing, _with_all(topics, written))
    files.rename(writing, complete)
    files.fsync_folder(target)
    if in_place:
        files.rename(our_folder(target), _name_for_ours(files, target))
        files.fsync_folder(target)
    _move_into_place(files, target)


def recover(files: Files, data_path: str) -> None:
    """Undo or complete an export that was interrupted. Before ``nsq_compat`` is made or looked at."""
    names = files.listdir(data_path)
    if _WRITING in names:
        remove_folder(files, os.path.join(data_path, _WRITING))
    if _COMPLETE in names:
        if FOLDER in names:
            remove_folder(files, os.path.join(data_path, _COMPLETE))
        else:
            _move_into_place(files, data_path)


def _with_all(topics: Sequence[TopicMetadata], queues: Iterable[tuple[str, str | None]]) -> Iterator[TopicMetadata]:
    """The topics, and those of the queues that are not among them."""
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


def _require_room(files: Files, target: str, in_place: bool) -> None:
    names = files.listdir(target)
    live = [queue for queue in queues_among(names).values() if queue.live]
    if live:
        raise ExportRefused(f"{target} has queue files of Go's already, such as {live[0].live[0]}")
    if in_place and FOLDER not in names:
        raise ExportRefused(f"{target} has no {FOLDER} folder: there is nothing to export")
    if not in_place and (FOLDER in names or metadata.FILE_NAME in names):
        raise ExportRefused(f"{target} is another data path already; give an empty folder")


def _move_into_place(files: Files, target: str) -> None:
    complete = os.path.join(target, _COMPLETE)
    # The names ending in meta.dat last: a queue without positions is none to Go.
    for name in sorted(files.listdir(complete), key=lambda name: (name.endswith(".meta.dat"), name)):
        files.rename(os.path.join(complete, name), os.path.join(target, name))
    files.fsync_folder(target)
    files.rmdir(complete)


def _name_for_ours(files: Files, target: str) -> str:
    taken = {name for name in files.listdir(target) if name.startswith(_EXPORTED)}
    number = next(n for n in range(1, len(taken) + 2) if f"{_EXPORTED}{n}" not in taken)
    return os.path.join(target, f"{_EXPORTED}{number}")


def _same(source: str, target: str) -> bool:
    return os.path.realpath(source) == os.path.realpath(target)
