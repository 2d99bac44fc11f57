"""Imports all disk queues of Go's nsqd when nsqd starts on its data path: they become our topics and channels.

In our log all channels of a topic read one stream, while in Go's nsqd each channel has a queue of its own. For a new
topic, the largest queue of a channel becomes the stream, which costs no memory however large it is. The messages of the
other channels are retained outside the stream, with an entry each in the checkpoint. The messages in the topic's own
queue follow in the stream, for all channels.

If the positions are out of date, the same message may be in a queue twice, or in a topic's and a channel's queue. A
channel receives it once.

Ids in the stream must grow. Those of Go's nsqd nearly do. A message with an id out of order is retained outside the
stream, and so is one with an id that does not match its timestamp, because one damaged, very large id would force all
following messages out of the stream.
"""

import logging
import os
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Final

from nsq_compat.godata.queue_import import GoImport, GoQueue, GoTopic, find_go_topics
from nsq_compat.godata.reader import QueueReport
from nsq_compat.log.checkpoint import ENTRY, ChannelState, TopicState, entry_id
from nsq_compat.log.files import Files, replace_file
from nsq_compat.log.metadata import MetadataError, TopicMetadata, path_of, read_metadata
from nsq_compat.log.recovery import StoredTopic
from nsq_compat.log.storage import CHECKPOINT
from nsq_compat.protocol.message import attempts, message_id, message_ids, timestamp_ns
from nsq_compat.queue.ids import EPOCH_TICK, NODE_ID_BITS, SEQUENCE_BITS, TICK_SHIFT

log = logging.getLogger(__name__)

_BATCH_COUNT: Final = 1024
_BATCH_BYTES: Final = 1 << 20
_FIRST_SERIAL: Final = 1 << 40
"""Serials of imported messages begin here, so that they follow those that the topic had before."""
_BELOW_TICK: Final = NODE_ID_BITS + SEQUENCE_BITS
_DAY: Final = 86_400 * 10**9 >> TICK_SHIFT  # ticks
_is_nsqd_id = re.compile(rb"[0-9a-f]{16}").fullmatch


def take_over(files: Files, data_path: str, segment_size: int) -> None:
    """Import all disk queues in a locked data path. Must be called before any topic is opened.

    Logs imports and damage. Raises ``OSError`` and ``MetadataError``; then Go's files are unchanged, and the next start
    tries again.
    """
    importer = GoImport(files, data_path)
    importer.recover()
    topics = find_go_topics(files, data_path)
    known = _known_topics(files, data_path) if topics else {}
    for topic in topics:
        if topic.is_empty(files, data_path):
            _log_damage(_read_all(topic, files, data_path))
            importer.set_aside_empty(topic)
            continue
        builder = _Builder(files, data_path, importer.begin(topic), topic, segment_size)
        try:
            _log_damage(builder.build(known.get(topic.name, TopicMetadata(topic.name))))
        finally:
            builder.close()
        importer.commit(topic)


def _known_topics(files: Files, data_path: str) -> dict[str, TopicMetadata]:
    """The topics in nsqd.dat, by name. Raises ``MetadataError``, also if any part of the file is damaged.

    A channel without messages may have no queue file, so that only nsqd.dat names it. If it were overlooked, it would
    not receive the messages that wait in its topic, and could not receive them after the import either.
    """
    metadata = read_metadata(files, data_path)
    if metadata.damages:
        raise MetadataError(
            f"{path_of(data_path)} is damaged ({metadata.damage}), and Go's queues beside it are not imported without "
            "the channels it names: repair it, or move it away to import only the channels that have files"
        )
    return {topic.name: topic for topic in metadata.topics}


def _read_all(topic: GoTopic, files: Files, data_path: str) -> list[QueueReport]:
    """The reports of queues without messages."""
    reports = []
    for queue in topic.queues:
        reports.append(QueueReport())
        for _ in queue.frames(files, data_path, reports[-1]):
            pass
    return reports


def _log_damage(reports: Iterable[QueueReport]) -> None:
    for report in reports:
        if report.messages:
            log.info("DISKQUEUE(%s): imported %d messages", report.name, report.messages)
        for damage in report.damages:
            log.error("DISKQUEUE(%s): damaged: %s at %d: %s", report.name, damage.file, damage.offset, damage.reason)
        if report.damaged_parts:
            log.error(
                "DISKQUEUE(%s): %d damaged parts, %d bytes could not be read",
                report.name, report.damaged_parts, report.damaged_bytes,
            )  # fmt: skip


class _Builder:
    """Builds one topic in a folder."""

    def __init__(self, files: Files, data_path: str, folder: str, topic: GoTopic, segment_size: int) -> None:
        self._files = files
        self._data_path = data_path
        self._folder = folder
        self._stored = StoredTopic(files, folder, segment_size)
        self._log = self._stored.log
        self._state = self._stored.state
        self._seq = max(self._state.end.seq, self._log.end.seq)
        self._is_new = self._seq == 0 and not self._state.channels
        self._begin = self._seq
        self._serial = _FIRST_SERIAL
        self._queues = {queue.channel: queue for queue in topic.queues}
        self._reports: list[QueueReport] = []

    def close(self) -> None:
        self._stored.close()

    def build(self, known: TopicMetadata) -> list[QueueReport]:
        """Write log and checkpoint. `known` is the topic in nsqd.dat."""
        streamed = self._largest_queue() if self._is_new else None
        if streamed is not None:
            self._state.channels[streamed] = state = ChannelState(self._seq)
            self._add_to_stream(self._queues.pop(streamed), [state])
        if self._is_new:  # messages from here on are for all channels
            self._state.held = ChannelState(self._seq)
        self._create_channels([channel.name for channel in known.channels])
        self._pause_or_hand_over(known.paused)
        for name in sorted(name for name in self._queues if name is not None):
            for batch in self._batches(self._queues[name]):
                self._retain(batch, [self._state.channels[name]])
        if None in self._queues:
            held = self._state.held
            self._add_to_stream(self._queues[None], [held] if held else list(self._state.channels.values()))
        for state in [*self._state.channels.values(), *([self._state.held] if self._state.held else [])]:
            self._drop_duplicates(state)
        self._write_checkpoint()
        return self._reports

    def _create_channels(self, known: Iterable[str]) -> None:
        """Create the channels that do not exist yet."""
        held = self._state.held
        names = {*known, *(name for name in self._queues if name is not None)}
        for name in sorted(names - self._state.channels.keys()):
            self._state.channels[name] = ChannelState(self._seq if held is None else held.position)

    def _pause_or_hand_over(self, is_paused: bool) -> None:
        """Pause the topic as nsqd.dat says. Unless it is paused or has no channel, give them its own messages."""
        topic = self._state
        if is_paused or not topic.channels:
            topic.held = topic.held or ChannelState(self._seq)
        elif topic.held is not None:
            for state in topic.channels.values():
                state.entries += topic.held.entries
            topic.held = None

    def _largest_queue(self) -> str | None:
        sizes = {
            name: sum(self._files.size(os.path.join(self._data_path, file)) for file in queue.found.live)
            for name, queue in self._queues.items()
            if name is not None
        }
        return max(sizes, key=lambda name: sizes[name], default=None)

    def _batches(self, queue: GoQueue) -> Iterator[list[bytes]]:
        self._reports.append(QueueReport())
        frames = queue.frames(self._files, self._data_path, self._reports[-1])
        while frames_read := list(islice(frames, _BATCH_COUNT)):
            yield from _cut(frames_read)

    def _add_to_stream(self, queue: GoQueue, states: list[ChannelState]) -> None:
        """Append the messages to the stream; those with an unsuitable id are retained, for each of `states`."""
        for batch in self._batches(queue):
            growing: list[bytes] = []
            others: list[bytes] = []
            for frame in batch:
                frame_id = message_id(frame)
                if frame_id > self._state.last_id and _matches_timestamp(frame_id, timestamp_ns(frame)):
                    self._state.last_id = frame_id
                    growing.append(frame)
                else:
                    others.append(frame)
            if growing:
                self._log.append(growing, self._seq)
                self._seq += len(growing)
            self._retain(others, states)

    def _retain(self, frames: list[bytes], states: list[ChannelState]) -> None:
        if not frames:
            return
        self._log.keep(frames)
        for frame in frames:
            entry = ENTRY.pack(0.0, self._serial, message_id(frame), attempts(frame))
            self._serial += 1
            for state in states:
                state.entries.append(entry)

    def _drop_duplicates(self, state: ChannelState) -> None:
        """Drop imported entries of messages that the channel also has in another entry or in the stream."""
        ours = [key for key in state.entries if ENTRY.unpack_from(key)[1] < _FIRST_SERIAL]
        imported = {entry_id(key): key for key in state.entries if ENTRY.unpack_from(key)[1] >= _FIRST_SERIAL}
        in_stream = self._ids_in_stream(max(state.position, self._begin), imported.keys())
        for each_id in [*map(entry_id, ours), *in_stream]:
            imported.pop(each_id, None)
        state.entries = [*ours, *imported.values()]

    def _ids_in_stream(self, position: int, ids: Collection[bytes]) -> list[bytes]:
        """Which of the ids are in the stream from a position on."""
        reader = self._log.reader(position)
        found: list[bytes] = []
        while ids and (groups := reader.read()):
            found += [each for group in groups for each in message_ids(group.frames) if each in ids]
        return found

    def _write_checkpoint(self) -> None:
        topic = self._state
        self._log.sync()
        for state in topic.channels.values():
            state.entries.sort()
        end = self._log.end._replace(seq=self._seq)
        saved = TopicState(end, topic.clock_offset, self._last_id(), topic.channels, topic.held)
        replace_file(self._files, os.path.join(self._folder, CHECKPOINT), saved.encode(), sync=True)

    def _last_id(self) -> bytes:
        """The id that new ones must exceed: the greatest of the stream's last tick, of any node id."""
        last = int(self._state.last_id, 16)
        return b"%016x" % (last | ((1 << _BELOW_TICK) - 1) if last else 0)


def _matches_timestamp(message_id: bytes, published_ns: int) -> bool:
    """Whether an id is one of nsqd, and its time is within a day of the message's timestamp."""
    if not _is_nsqd_id(message_id):
        return False
    return abs((int(message_id, 16) >> _BELOW_TICK) - ((published_ns >> TICK_SHIFT) - EPOCH_TICK)) < _DAY


def _cut(frames: list[bytes]) -> Iterator[list[bytes]]:
    """Cut a list into batches of about `_BATCH_BYTES`."""
    piece: list[bytes] = []
    size = 0
    for frame in frames:
        piece.append(frame)
        size += len(frame)
        if size >= _BATCH_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
