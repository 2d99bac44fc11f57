"""Imports all disk queues of Go's nsqd when nsqd starts on its data path: they become our topics and channels.

In our log all channels of a topic read one stream, which takes no memory at any size, while in Go's nsqd each channel
has a queue of its own. For a new topic, the queues are merged by id into the stream (``runs``): each message once, with
gaps for the channels that do not have it. If the topic has more than `_MAX_MERGED` channels with messages, those of the
smaller queues are kept outside the stream, with an entry each in the checkpoint. So are the messages of all
channels if our log has messages of the topic already. The topic's own queue becomes part of the stream in any case.

If the positions are out of date, the same message may be in a queue twice, or in a topic's and a channel's queue. A
channel receives it once.

Ids in the stream must grow. A message with an id that does not match its timestamp is kept outside the stream,
because one damaged, very large id would force all following messages out of the stream. So is a message of a channel
that has other attempts there than in the stream.

Each message is imported exactly once, even if the process is killed at any time. A topic is imported as a whole, with
the queues of its channels, in one transaction:

1. `GoImport.begin` creates the folder ``<topic>.importing``, a copy of ``<topic>.topic`` if that exists. The caller
   adds the messages of the queues to it.
2. `GoImport.commit` syncs the folder and writes the *receipt*, a list of Go's files, into it.
3. ``<topic>.topic``, if it exists, is renamed to ``<topic>.replaced``.
4. ``<topic>.importing`` is renamed to ``<topic>.topic``. From now on the messages are ours.
5. ``<topic>.replaced`` is removed. The files in the receipt are moved to ``imported/<n>/``, positions first: if Go's
   nsqd is started in between, it sees an empty queue instead of delivering the messages a second time.
6. The receipt is removed.

Each step is durable before the next begins. `GoImport.recover` undoes an import that was interrupted before step 4,
which is then repeated, and completes one that was interrupted later. If Go's nsqd has used the files between steps 4
and 5, which shows in their names, sizes and positions, they are not moved but imported again: then some messages are
delivered twice, but none is lost.

The operator may remove ``imported`` at any time.
"""

import json
import logging
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress, count
from typing import Final

from nsq_compat.godata.format import QueueFiles, frame_of, queues_among
from nsq_compat.godata.reader import QueueReport, read_queue
from nsq_compat.godata.runs import BELOW_TICK, QueueRuns, merged
from nsq_compat.log.checkpoint import CHECKPOINT, ENTRY, ChannelState, TopicState, entry_id
from nsq_compat.log.data_path import TOPIC_SUFFIX, our_folder, remove_folder
from nsq_compat.log.files import Files, opened, read_file, replace_file, write_all
from nsq_compat.log.kept import cut_by_size
from nsq_compat.log.metadata import MetadataError, TopicMetadata, path_of, read_metadata
from nsq_compat.log.recovery import StoredTopic
from nsq_compat.protocol.go_json import dumps
from nsq_compat.protocol.message import attempts, message_id, message_ids
from nsq_compat.protocol.names import is_ephemeral

log = logging.getLogger(__name__)

RECEIPT: Final = "imported-from-go"
_IMPORTING_SUFFIX: Final = ".importing"
_REPLACED_SUFFIX: Final = ".replaced"
_IMPORTED_FOLDER: Final = "imported"
_COPY_SIZE: Final = 1 << 20
_BATCH_BYTES: Final = 1 << 20
_FIRST_SERIAL: Final = 1 << 40
"""Serials of imported messages begin here, so that they follow those that the topic had before."""
_MAX_MERGED: Final = 16
"""Channels of a topic whose queues are merged. Each of their runs takes a descriptor and 64 KiB meanwhile."""

GoTopic = Mapping[str | None, QueueFiles]
"""A topic's disk queues by channel. None: the queue of the topic itself."""


def take_over(files: Files, data_path: str, segment_size: int) -> None:
    """Import all disk queues in a locked data path. Must be called before any topic is opened.

    Logs imports and damage. Raises ``OSError`` and ``MetadataError``; then Go's files are unchanged, and the next start
    tries again.
    """
    importer = GoImport(files, data_path)
    importer.recover()
    topics = find_go_topics(files, data_path)
    known = _known_topics(files, data_path) if topics else {}
    for name, topic in topics.items():
        # Before the first message is read: messages added later must not count as imported.
        receipt = importer.make_receipt(topic.values())
        empty = read_empty(files, data_path, topic)
        if empty is not None:
            _log_damage(empty)
            importer.set_aside(name, receipt)  # without a transaction, because no message can be duplicated
            continue
        log.info("TOPIC(%s): importing disk queues of Go's nsqd, %d bytes", name, sum(receipt.sizes.values()))
        with StoredTopic(files, importer.begin(name), segment_size) as stored:
            _log_damage(_Builder(files, data_path, stored, topic).build(known.get(name, TopicMetadata(name))))
        importer.commit(name, receipt)


def find_go_topics(files: Files, data_path: str) -> dict[str, GoTopic]:
    """The topics that have disk queues in the data path.

    Queues of ephemeral topics or channels, or with invalid names, are left out, and a warning is logged.
    """
    topics: dict[str, dict[str | None, QueueFiles]] = {}
    for found in queues_among(files.listdir(data_path)).values():
        owner = found.owner
        if not found.live:
            continue
        if owner is None or any(is_ephemeral(name) for name in owner if name):
            log.warning("DISKQUEUE(%s): not imported, its topic or channel is ephemeral or invalid", found.name)
            continue
        topic, channel = owner
        topics.setdefault(topic, {})[channel] = found
    return dict(topics)


def read_empty(files: Files, data_path: str, topic: GoTopic) -> list[QueueReport] | None:
    """The reports of a topic without a message, as after a clean stop of Go's nsqd; None if there is a message."""
    reports: list[QueueReport] = []
    for queue in topic.values():
        reports.append(QueueReport())
        for _ in read_queue(files, data_path, queue.name, reports[-1], queue):
            return None
    return reports


def _known_topics(files: Files, data_path: str) -> dict[str, TopicMetadata]:
    """The topics in nsqd.dat, by name. Raises ``MetadataError``, also if any part of the file is damaged.

    A channel without messages may have no queue file, so that only nsqd.dat names it. If it were overlooked, it would
    not receive the messages that wait in its topic, and could not receive them after the import either.
    """
    metadata = read_metadata(files, data_path)
    if metadata.faults:
        raise MetadataError(
            f"{path_of(data_path)} is damaged ({metadata.damage}), and Go's queues beside it are not imported without "
            "the channels it names: repair it, or move it away to import only the channels that have files"
        )
    return {topic.name: topic for topic in metadata.topics}


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
    def __init__(self, files: Files, data_path: str, stored: StoredTopic, topic: GoTopic) -> None:
        self._files = files
        self._data_path = data_path
        self._log = stored.log
        self._state = stored.state
        self._seq = max(self._state.end.seq, self._log.end.seq)
        self._begin = self._seq
        self._serial = _FIRST_SERIAL
        self._queues = dict(topic)
        self._reports: list[QueueReport] = []

    def build(self, known: TopicMetadata) -> list[QueueReport]:
        """Write log and checkpoint. `known` is the topic in nsqd.dat."""
        names = {*(channel.name for channel in known.channels), *(name for name in self._queues if name is not None)}
        held = self._state.held  # it may have deferred messages, which are not in the stream
        if self._seq == 0 and not self._state.channels and not (held is not None and held.entries):
            self._merge(names, is_handed_over=bool(names) and not known.paused)
            self._state.held = ChannelState(self._seq)  # messages from here on are for all channels
        held = self._state.held
        for name in sorted(names - self._state.channels.keys()):
            self._state.channels[name] = ChannelState(self._seq if held is None else held.position)
        self._pause_or_hand_over(known.paused)
        for name in sorted(name for name in self._queues if name is not None):
            self._reports.append(QueueReport())
            queue = self._queues[name]
            messages = read_queue(self._files, self._data_path, queue.name, self._reports[-1], queue)
            for batch in cut_by_size(map(frame_of, messages), _BATCH_BYTES):
                self._keep(batch, [self._state.channels[name]])
        if None in self._queues:
            held = self._state.held
            self._add_to_stream(self._queues[None], [held] if held else list(self._state.channels.values()))
        for state in self._state.backlogs:
            self._drop_duplicates(state)
        self._write_checkpoint()
        return self._reports

    def _pause_or_hand_over(self, is_paused: bool) -> None:
        """Pause the topic as nsqd.dat says. Unless it is paused or has no channel, give them its own messages."""
        topic = self._state
        if is_paused or not topic.channels:
            topic.held = topic.held or ChannelState(self._seq)
        elif topic.held is not None:
            for state in topic.channels.values():
                state.entries += topic.held.entries
            topic.held = None

    def _merge(self, names: Iterable[str], is_handed_over: bool) -> None:
        """Make the stream of a new topic, from the topic's own queue too if its messages are for the channels now."""
        owners: list[str | None] = [name for name in self._queues if name is not None]
        owners = sorted(owners, key=self._size, reverse=True)[:_MAX_MERGED]
        if is_handed_over and None in self._queues:
            owners.append(None)
        queues = {owner: self._runs(self._queues.pop(owner)) for owner in owners}
        channels = {name: ChannelState(self._seq) for name in sorted(names)}
        gaps: dict[str, list[tuple[int, int]]] = {name: [] for name in channels}
        for batch in merged(queues, _BATCH_BYTES):
            stream = [next(iter(frames.values())) for frames in batch]
            self._log.append(stream, self._seq)
            for name, state in channels.items():
                received = [frames.get(name, frames.get(None)) for frames in batch]
                others = [own != frame for own, frame in zip(received, stream, strict=True)]
                gaps[name] += _ranges(compress(count(self._seq), others))
                self._keep([own for own in compress(received, others) if own is not None], [state])
            self._seq += len(batch)
            self._state.last_id = message_id(stream[-1])
        for name, state in channels.items():
            state.skip(gaps[name])
        self._state.channels = channels
        for owner, queue in queues.items():
            states = list(channels.values()) if owner is None else [channels[owner]]
            for unsuitable in cut_by_size(queue.others(), _BATCH_BYTES):
                self._keep(unsuitable, states)

    def _size(self, owner: str | None) -> int:
        return sum(self._files.size(os.path.join(self._data_path, file)) for file in self._queues[owner].live)

    def _runs(self, queue: QueueFiles) -> QueueRuns:
        runs = QueueRuns(self._files, self._data_path, queue)
        self._reports.append(runs.report)
        return runs

    def _add_to_stream(self, queue: QueueFiles, states: list[ChannelState]) -> None:
        """Append the messages to the stream; those with an unsuitable id are kept, for each of `states`."""
        runs = self._runs(queue)
        for batch in merged({None: runs}, _BATCH_BYTES):
            growing = [frames[None] for frames in batch if message_id(frames[None]) > self._state.last_id]
            if growing:
                self._log.append(growing, self._seq)
                self._seq += len(growing)
                self._state.last_id = message_id(growing[-1])
            self._keep([frames[None] for frames in batch[: len(batch) - len(growing)]], states)
        for unsuitable in cut_by_size(runs.others(), _BATCH_BYTES):
            self._keep(unsuitable, states)

    def _keep(self, frames: list[bytes], states: list[ChannelState]) -> None:
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
        for key in ours:
            imported.pop(entry_id(key), None)
        reader = self._log.reader(max(state.position, self._begin))
        gaps = deque(state.gaps)
        while imported and (groups := reader.read()):
            for group in groups:
                for seq, each_id in enumerate(message_ids(group.frames), group.first_seq):
                    while gaps and gaps[0][1] <= seq:
                        gaps.popleft()
                    if not gaps or seq < gaps[0][0]:
                        imported.pop(each_id, None)
        state.entries = [*ours, *imported.values()]

    def _write_checkpoint(self) -> None:
        topic = self._state
        self._log.sync()
        for state in topic.channels.values():
            state.entries.sort()
        # New ids must exceed the greatest of the stream's last tick, of any node id.
        last = int(topic.last_id, 16)
        last_id = b"%016x" % (last | ((1 << BELOW_TICK) - 1) if last else 0)
        end = self._log.end._replace(seq=self._seq)
        saved = TopicState(end, topic.clock_offset, last_id, topic.channels, topic.held)
        replace_file(self._files, os.path.join(self._log.folder, CHECKPOINT), saved.encode(), sync=True)


def _ranges(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The ranges that growing numbers form: first number, and the number after the last."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return found


@dataclass(frozen=True, slots=True)
class _Receipt:
    """The files from which a topic was imported: sizes of all, and contents of files of positions, by name."""

    folder: str
    sizes: dict[str, int]
    positions: dict[str, str]

    def encode(self) -> bytes:
        return dumps({"folder": self.folder, "sizes": self.sizes, "positions": self.positions}).encode("ascii")

    def has_same(self, name: str, other: "_Receipt") -> bool:
        """Whether a file has the same size in both, and the same content if it has positions."""
        return self.sizes[name] == other.sizes.get(name) and self.positions.get(name) == other.positions.get(name)

    @classmethod
    def decode(cls, data: bytes) -> "_Receipt":
        """Raises ``ValueError`` unless every part is valid, because files are moved according to it."""
        try:
            read = json.loads(data)
            receipt = cls(str(int(read["folder"])), dict(read["sizes"]), dict(read["positions"]))
            names = [name for name in receipt.sizes if os.path.basename(name) == name]
        except (TypeError, KeyError, RecursionError) as error:
            raise ValueError(str(error)) from None
        if len(names) != len(receipt.sizes) or not receipt.positions.keys() <= receipt.sizes.keys():
            raise ValueError("not a list of files")
        return receipt


class GoImport:
    """The transactions of importing disk queues, in a locked data path. All methods raise ``OSError``."""

    def __init__(self, files: Files, data_path: str) -> None:
        self._files = files
        self._data_path = data_path
        self._folder = our_folder(data_path)
        self._destination = ""  # the name of the folder under ``imported`` for all imports of this process

    def recover(self) -> None:
        """Undo or complete an interrupted import. Must be called before any topic is opened."""
        names = self._files.listdir(self._folder)
        for name in names:
            if name.endswith(_REPLACED_SUFFIX):
                replaced, topic = os.path.join(self._folder, name), name.removesuffix(_REPLACED_SUFFIX)
                if topic + TOPIC_SUFFIX in names:
                    remove_folder(self._files, replaced)
                else:
                    self._files.rename(replaced, self._path(topic, TOPIC_SUFFIX))
        for name in names:
            if name.endswith(_IMPORTING_SUFFIX):
                remove_folder(self._files, os.path.join(self._folder, name))
            elif name.endswith(TOPIC_SUFFIX):
                self._complete(name.removesuffix(TOPIC_SUFFIX))
        self._files.fsync_folder(self._folder)

    def begin(self, name: str) -> str:
        """Create the folder in which to build the topic: a copy of the topic's folder, or empty for a new topic."""
        staging, existing = self._path(name, _IMPORTING_SUFFIX), self._path(name, TOPIC_SUFFIX)
        remove_folder(self._files, staging)
        self._files.mkdir(staging, 0o700)
        with suppress(FileNotFoundError):
            for file in self._files.listdir(existing):
                _copy(self._files, os.path.join(existing, file), os.path.join(staging, file))
        return staging

    def commit(self, name: str, receipt: _Receipt) -> None:
        """Make the folder the topic, and move Go's files away. No file in it may be open."""
        staging, final = self._path(name, _IMPORTING_SUFFIX), self._path(name, TOPIC_SUFFIX)
        for file in self._files.listdir(staging):
            with opened(self._files, os.path.join(staging, file)) as fd:
                self._files.fsync(fd)
        replace_file(self._files, os.path.join(staging, RECEIPT), receipt.encode(), sync=True)
        replaced = self._path(name, _REPLACED_SUFFIX)
        with suppress(FileNotFoundError):
            self._files.rename(final, replaced)
            self._files.fsync_folder(self._folder)
        self._files.rename(staging, final)
        self._files.fsync_folder(self._folder)
        remove_folder(self._files, replaced)
        self._complete(name)

    def _path(self, topic: str, suffix: str) -> str:
        return os.path.join(self._folder, topic + suffix)

    def make_receipt(self, queues: Iterable[QueueFiles]) -> _Receipt:
        sizes: dict[str, int] = {}
        positions: dict[str, str] = {}
        for queue in queues:
            for name in queue.live:
                with suppress(FileNotFoundError):
                    sizes[name] = self._files.size(os.path.join(self._data_path, name))
            if queue.positions is not None:
                content = read_file(self._files, os.path.join(self._data_path, queue.positions))
                positions[queue.positions] = content.decode("latin-1")
        if not self._destination:
            taken: Sequence[str] = ()
            with suppress(FileNotFoundError):
                taken = self._files.listdir(os.path.join(self._folder, _IMPORTED_FOLDER))
            self._destination = str(1 + max((int(name) for name in taken if name.isdecimal()), default=0))
        return _Receipt(self._destination, sizes, positions)

    def _complete(self, topic: str) -> None:
        """Steps 5 and 6 for a topic that has a receipt."""
        path = os.path.join(self._path(topic, TOPIC_SUFFIX), RECEIPT)
        try:
            receipt = _Receipt.decode(read_file(self._files, path))
        except FileNotFoundError:
            return
        except ValueError as error:
            log.error("TOPIC(%s): receipt of an import is damaged - %s; its files are imported again", topic, error)
        else:
            self.set_aside(topic, receipt)
        self._files.unlink(path)
        self._files.fsync_folder(os.path.dirname(path))

    def set_aside(self, topic: str, receipt: _Receipt) -> None:
        """Move the files of the receipt away, unless another nsqd has used the queues since it was written."""
        queues = queues_among(receipt.sizes).keys()
        present = queues_among(self._files.listdir(self._data_path))
        now = self.make_receipt(found for name, found in present.items() if name in queues)
        if changed := [name for name in now.sizes if not now.has_same(name, receipt)]:
            log.warning(
                "TOPIC(%s): another nsqd has used the files of an interrupted import (%s); importing them again",
                topic, ", ".join(changed),
            )  # fmt: skip
            return
        destination = self._folder
        for part in (_IMPORTED_FOLDER, receipt.folder):
            parent, destination = destination, os.path.join(destination, part)
            with suppress(FileExistsError):
                self._files.mkdir(destination, 0o700)
                self._files.fsync_folder(parent)
        for name in sorted(now.sizes, key=lambda each: each not in receipt.positions):
            self._files.rename(os.path.join(self._data_path, name), os.path.join(destination, name))
        # The destination first: a power cut in between may leave a file under both names, but not under none.
        self._files.fsync_folder(destination)
        self._files.fsync_folder(self._data_path)


def _copy(files: Files, source: str, target: str) -> None:
    with opened(files, source) as read_from, opened(files, target, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as write_to:
        offset = 0
        while data := files.pread(read_from, _COPY_SIZE, offset):
            write_all(files, write_to, data, offset)
            offset += len(data)
