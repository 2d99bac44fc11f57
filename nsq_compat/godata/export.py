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
from dataclasses import dataclass

from nsq_compat.godata.format import message_of, queue_name, queues_among
from nsq_compat.godata.writer import write_queue
from nsq_compat.log import metadata
from nsq_compat.log.data_path import FOLDER, our_folder, remove_folder
from nsq_compat.log.files import Files
from nsq_compat.log.metadata import ChannelMetadata, TopicMetadata, save_metadata

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
