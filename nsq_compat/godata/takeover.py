"""A start on a data path that Go's nsqd has used: its queues become our topics, with everything they hold.

In a topic's log all channels read one stream, while Go's channels each hold a queue of their own, and what one has
finished another may not have. So of a new topic the largest queue becomes the stream, which costs no memory however
large it is; the messages of the other channels are kept beside the log and named one by one in the checkpoint. What no
channel has got follows in the stream, for all of them.

Where Go's positions are out of date, its files hold a message twice, in one queue or in a topic's and a channel's: a
channel gets it once.

The stream's ids must grow. Go's nearly do; a message whose id is out of order is kept beside the log too, and so is one
whose id does not fit its time: a damaged id that is very large would stop all others.
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
_BEHIND_OTHERS: Final = 1 << 40
"""Serials from here on: what is taken over waits behind what was ours before."""
_BELOW_TICK: Final = NODE_ID_BITS + SEQUENCE_BITS
_DAY: Final = 86_400 * 10**9 >> TICK_SHIFT  # ticks
_is_number = re.compile(rb"[0-9a-f]{16}").fullmatch


def take_over(files: Files, data_path: str, segment_size: int) -> None:
    """Import every queue of Go's in a data path that is locked and has our folder. Before any topic is opened.

    Logs what was imported and what was damaged. Raises ``OSError`` and ``MetadataError``: then Go's files are as they
    were, and the next start tries again.
    """
    importer = GoImport(files, data_path)
    importer.recover()
    topics = find_go_topics(files, data_path)
    known = _known(files, data_path) if topics else {}
    for topic in topics:
        if topic.is_empty(files, data_path):
            _log_damage(_read_all(topic, files, data_path))
            importer.dismiss(topic)
            continue
        builder = _Builder(files, data_path, importer.begin(topic), topic, segment_size)
        try:
            _log_damage(builder.build(known.get(topic.name, TopicMetadata(topic.name))))
        finally:
            builder.close()
        importer.commit(topic)


def _known(files: Files, data_path: str) -> dict[str, TopicMetadata]:
    """What nsqd.dat says of Go's topics, by name. Raises ``MetadataError``, also when any part of it is damaged.

    A channel of Go's without a message may have no file, and then only nsqd.dat names it. Without it the channel would
    not be given what waits in its topic, and once that is imported nothing could make up for it.
    """
    metadata = read_metadata(files, data_path)
    if metadata.damages:
        raise MetadataError(
            f"{path_of(data_path)} is damaged ({metadata.damage}), and Go's queues beside it are not imported without "
            "the channels it names: repair it, or move it away to import only the channels that have files"
        )
    return {topic.name: topic for topic in metadata.topics}


def _read_all(topic: GoTopic, files: Files, data_path: str) -> list[QueueReport]:
    """Reports of queues without a message."""
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
        self._serial = _BEHIND_OTHERS
        self._queues = {queue.channel: queue for queue in topic.queues}
        self._reports: list[QueueReport] = []

    def close(self) -> None:
        """Close the files."""
        self._stored.close()

    def build(self, known: TopicMetadata) -> list[QueueReport]:
        """Write log and checkpoint; `known` is what nsqd.dat says of the topic."""
        streamed = self._largest() if self._is_new else None
        if streamed is not None:
            self._state.channels[streamed] = place = ChannelState(self._seq)
            self._add_to_stream(self._queues.pop(streamed), [place])
        # From here on the stream is everybody's.
        if self._is_new:
            self._state.held = ChannelState(self._seq)
        self._make_channels([channel.name for channel in known.channels])
        self._hold_or_hand_over(known.paused)
        for name in sorted(name for name in self._queues if name is not None):
            self._add_beside(self._queues[name], self._state.channels[name])
        if None in self._queues:
            held = self._state.held
            self._add_to_stream(self._queues[None], [held] if held else list(self._state.channels.values()))
        for place in [*self._state.channels.values(), *([self._state.held] if self._state.held else [])]:
            self._name_once(place)
        self._write_checkpoint()
        return self._reports

    def _make_channels(self, known: Iterable[str]) -> None:
        """Those that are not there yet, as if they were made now."""
        held = self._state.held
        names = {*known, *(name for name in self._queues if name is not None)}
        for name in sorted(names - self._state.channels.keys()):
            self._state.channels[name] = ChannelState(self._seq if held is None else held.position)

    def _hold_or_hand_over(self, is_paused: bool) -> None:
        """Go's nsqd had the last word on whether the topic is paused; without channels it holds on in any case."""
        state = self._state
        if is_paused or not state.channels:
            state.held = state.held or ChannelState(self._seq)
        elif state.held is not None:
            for place in state.channels.values():
                place.entries += state.held.entries
            state.held = None

    def _largest(self) -> str | None:
        sizes = {
            name: sum(self._files.size(os.path.join(self._data_path, file)) for file in queue.found.live)
            for name, queue in self._queues.items()
            if name is not None
        }
        return max(sizes, key=lambda name: sizes[name], default=None)

    def _batches(self, queue: GoQueue) -> Iterator[list[bytes]]:
        self._reports.append(QueueReport())
        frames = queue.frames(self._files, self._data_path, self._reports[-1])
        while some := list(islice(frames, _BATCH_COUNT)):
            yield from _cut(some)

    def _add_to_stream(self, queue: GoQueue, places: list[ChannelState]) -> None:
        """Append the messages; those out of order go beside the log, to every one of `places`."""
        for batch in self._batches(queue):
            growing: list[bytes] = []
            others: list[bytes] = []
            for frame in batch:
                number = message_id(frame)
                if number > self._state.last_id and _is_of_its_time(number, timestamp_ns(frame)):
                    self._state.last_id = number
                    growing.append(frame)
                else:
                    others.append(frame)
            if growing:
                self._log.append(growing, self._seq)
                self._seq += len(growing)
            self._keep(others, places)

    def _add_beside(self, queue: GoQueue, place: ChannelState) -> None:
        for batch in self._batches(queue):
            self._keep(batch, [place])

    def _keep(self, frames: list[bytes], places: list[ChannelState]) -> None:
        if not frames:
            return
        self._log.keep(frames)
        for frame in frames:
            number = message_id(frame)
            entry = ENTRY.pack(0.0, self._serial, number, attempts(frame))
            self._serial += 1
            for place in places:
                place.entries.append(entry)

    def _name_once(self, place: ChannelState) -> None:
        """Go's files hold a message twice when their positions are out of date; of those the channel gets one."""
        ours = [key for key in place.entries if ENTRY.unpack_from(key)[1] < _BEHIND_OTHERS]
        taken_over = {entry_id(key): key for key in place.entries if ENTRY.unpack_from(key)[1] >= _BEHIND_OTHERS}
        for number in [*map(entry_id, ours), *self._in_stream(max(place.position, self._begin), taken_over.keys())]:
            taken_over.pop(number, None)
        place.entries = [*ours, *taken_over.values()]

    def _in_stream(self, position: int, ids: Collection[bytes]) -> list[bytes]:
        """Which of the ids are in the stream from a position on."""
        reader = self._log.reader(position)
        found: list[bytes] = []
        while ids and (groups := reader.read()):
            found += [number for group in groups for number in message_ids(group.frames) if number in ids]
        return found

    def _write_checkpoint(self) -> None:
        state = self._state
        self._log.sync()
        for place in state.channels.values():
            place.entries.sort()
        end = self._log.end._replace(seq=self._seq)
        saved = TopicState(end, state.clock_offset, self._last_id(), state.channels, state.held)
        replace_file(self._files, os.path.join(self._folder, CHECKPOINT), saved.encode(), sync=True)

    def _last_id(self) -> bytes:
        """What new ids must exceed: those of the stream's last tick, whatever node made them."""
        last = int(self._state.last_id, 16)
        return b"%016x" % (last | ((1 << _BELOW_TICK) - 1) if last else 0)


def _is_of_its_time(number: bytes, published_ns: int) -> bool:
    """Whether an id was made within a day of the message's time, as nsqd makes them."""
    if not _is_number(number):
        return False
    return abs((int(number, 16) >> _BELOW_TICK) - ((published_ns >> TICK_SHIFT) - EPOCH_TICK)) < _DAY


def _cut(frames: list[bytes]) -> Iterator[list[bytes]]:
    """Pieces of not much more than `_BATCH_BYTES`."""
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
