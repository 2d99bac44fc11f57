"""Imports the disk queues of Go's nsqd: each message exactly once, even if the process is killed at any time.

A topic is imported as a whole, with the queues of its channels, in one transaction:

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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nsq_compat.godata.format import QueueFiles, frame_of, queues_among
from nsq_compat.godata.reader import QueueReport, read_queue
from nsq_compat.log.data_path import TOPIC_SUFFIX, our_folder, remove_folder, topic_folder
from nsq_compat.log.files import Files, read_file, replace_file, write_all
from nsq_compat.protocol.go_json import dumps
from nsq_compat.protocol.names import is_ephemeral

log = logging.getLogger(__name__)

RECEIPT = "imported-from-go"
IMPORTING_SUFFIX = ".importing"
REPLACED_SUFFIX = ".replaced"
IMPORTED_FOLDER = "imported"
_COPY_SIZE = 1 << 20


class _BadReceipt(Exception):
    """A receipt that cannot be read."""


@dataclass(frozen=True, slots=True)
class GoQueue:
    """A disk queue of Go's nsqd. `channel` None: the queue of the topic itself."""

    topic: str
    channel: str | None
    found: QueueFiles

    def frames(self, files: Files, data_path: str, report: QueueReport | None = None) -> Iterator[bytes]:
        """The frames of the next deliveries, in order. Damage goes into `report`."""
        return map(frame_of, read_queue(files, data_path, self.found.name, report, self.found))


@dataclass(frozen=True, slots=True)
class GoTopic:
    """A topic that has disk queues; the queue of the topic itself comes first."""

    name: str
    queues: tuple[GoQueue, ...]

    def is_empty(self, files: Files, data_path: str) -> bool:
        """Whether no queue has a message, as after a clean stop of Go's nsqd without a backlog."""
        return not any(True for queue in self.queues for _ in queue.frames(files, data_path))


def find_go_topics(files: Files, data_path: str) -> list[GoTopic]:
    """The topics that have disk queues in the data path, sorted by name.

    Queues of ephemeral topics or channels, or with invalid names, are left out, and a warning is logged.
    """
    by_topic: dict[str, list[GoQueue]] = {}
    for found in queues_among(files.listdir(data_path)).values():
        owner = found.owner
        if not found.live:
            continue
        if owner is None or any(is_ephemeral(name) for name in owner if name):
            log.warning("DISKQUEUE(%s): not imported, this is no queue of a lasting topic or channel", found.name)
            continue
        by_topic.setdefault(owner[0], []).append(GoQueue(*owner, found))
    return [
        GoTopic(name, tuple(sorted(queues, key=lambda queue: queue.channel or "")))
        for name, queues in sorted(by_topic.items())
    ]


@dataclass(frozen=True, slots=True)
class _Receipt:
    """The files from which a topic was imported: sizes of all, and contents of files of positions, by name."""

    folder: str
    sizes: dict[str, int]
    positions: dict[str, str]

    def encode(self) -> bytes:
        return dumps({"folder": self.folder, "sizes": self.sizes, "positions": self.positions}).encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> "_Receipt":
        """Raises ``_BadReceipt`` unless every part is valid, because files are moved according to it."""
        try:
            read = json.loads(data)
            receipt = cls(str(int(read["folder"])), dict(read["sizes"]), dict(read["positions"]))
            names = [name for name in receipt.sizes if os.path.basename(name) == name]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise _BadReceipt(str(error)) from None
        if len(names) != len(receipt.sizes) or not receipt.positions.keys() <= receipt.sizes.keys():
            raise _BadReceipt("not a list of files")
        return receipt


class GoImport:
    """The transactions of importing disk queues, in a locked data path. All methods raise ``OSError``."""

    def __init__(self, files: Files, data_path: str) -> None:
        self._files = files
        self._data_path = data_path
        self._folder = our_folder(data_path)
        self._destination = ""
        self._receipts: dict[str, _Receipt] = {}

    def recover(self) -> None:
        """Undo or complete an interrupted import. Must be called before any topic is opened."""
        names = self._files.listdir(self._folder)
        for name in names:
            if name.endswith(REPLACED_SUFFIX):
                self._recover_replaced(name.removesuffix(REPLACED_SUFFIX))
        for name in names:
            if name.endswith(IMPORTING_SUFFIX):
                remove_folder(self._files, os.path.join(self._folder, name))
            elif name.endswith(TOPIC_SUFFIX):
                self._complete(name.removesuffix(TOPIC_SUFFIX))
        self._files.fsync_folder(self._folder)

    def begin(self, topic: GoTopic) -> str:
        """Create the folder in which to build the topic: a copy of the topic's folder, or empty for a new topic."""
        # Before the first message is read: messages added later must not count as imported.
        self._receipts[topic.name] = self._make_receipt(topic)
        staging = self._staging(topic.name)
        remove_folder(self._files, staging)
        self._files.mkdir(staging, 0o700)
        existing = topic_folder(self._data_path, topic.name)
        with suppress(FileNotFoundError):
            for name in self._files.listdir(existing):
                _copy(self._files, os.path.join(existing, name), os.path.join(staging, name))
        return staging

    def commit(self, topic: GoTopic) -> None:
        """Make the folder the topic, and move Go's files away. No file in it may be open."""
        staging, final = self._staging(topic.name), topic_folder(self._data_path, topic.name)
        for name in self._files.listdir(staging):
            _sync(self._files, os.path.join(staging, name))
        receipt = self._receipts.pop(topic.name)
        replace_file(self._files, os.path.join(staging, RECEIPT), receipt.encode(), sync=True)
        replaced = os.path.join(self._folder, topic.name + REPLACED_SUFFIX)
        with suppress(FileNotFoundError):
            self._files.rename(final, replaced)
            self._files.fsync_folder(self._folder)
        self._files.rename(staging, final)
        self._files.fsync_folder(self._folder)
        remove_folder(self._files, replaced)
        self._complete(topic.name)

    def set_aside_empty(self, topic: GoTopic) -> None:
        """Move the files of an empty topic away. This needs no transaction, because no message can be duplicated."""
        self._set_aside(topic.name, self._make_receipt(topic))

    def _staging(self, topic: str) -> str:
        return os.path.join(self._folder, topic + IMPORTING_SUFFIX)

    def _recover_replaced(self, topic: str) -> None:
        replaced = os.path.join(self._folder, topic + REPLACED_SUFFIX)
        if topic + TOPIC_SUFFIX in self._files.listdir(self._folder):
            remove_folder(self._files, replaced)
        else:
            self._files.rename(replaced, topic_folder(self._data_path, topic))

    def _make_receipt(self, topic: GoTopic) -> _Receipt:
        sizes: dict[str, int] = {}
        positions: dict[str, str] = {}
        for queue in topic.queues:
            for name in queue.found.live:
                with suppress(FileNotFoundError):
                    sizes[name] = self._files.size(os.path.join(self._data_path, name))
            if queue.found.positions is not None:
                positions[queue.found.positions] = self._content(queue.found.positions)
        return _Receipt(self._destination_number(), sizes, positions)

    def _destination_number(self) -> str:
        """The name of the folder under ``imported`` for all imports of this process, a new one."""
        if not self._destination:
            taken: Sequence[str] = ()
            with suppress(FileNotFoundError):
                taken = self._files.listdir(os.path.join(self._folder, IMPORTED_FOLDER))
            self._destination = str(1 + max((int(name) for name in taken if name.isdecimal()), default=0))
        return self._destination

    def _content(self, name: str) -> str:
        return read_file(self._files, os.path.join(self._data_path, name)).decode("latin-1")

    def _complete(self, topic: str) -> None:
        """Steps 5 and 6 for a topic that has a receipt."""
        path = os.path.join(topic_folder(self._data_path, topic), RECEIPT)
        try:
            receipt = _Receipt.decode(read_file(self._files, path))
        except FileNotFoundError:
            return
        except _BadReceipt as error:
            log.error("TOPIC(%s): receipt of an import is damaged - %s; its files are imported again", topic, error)
        else:
            self._set_aside(topic, receipt)
        self._files.unlink(path)
        self._files.fsync_folder(os.path.dirname(path))

    def _set_aside(self, topic: str, receipt: _Receipt) -> None:
        """Move the files of the receipt away, unless another nsqd has used the queues since it was written."""
        present = self._files.listdir(self._data_path)
        queues = queues_among(receipt.sizes).keys()
        live = [name for key, found in queues_among(present).items() if key in queues for name in found.live]
        if changed := [name for name in live if not self._is_as_received(name, receipt)]:
            log.warning(
                "TOPIC(%s): another nsqd has used the files of an interrupted import (%s); importing them again",
                topic, ", ".join(changed),
            )  # fmt: skip
            return
        destination = self._make_destination(receipt.folder)
        for name in sorted(live, key=lambda each: each not in receipt.positions):
            self._files.rename(os.path.join(self._data_path, name), os.path.join(destination, name))
        # The destination first: a power cut in between may leave a file under both names, but not under none.
        self._files.fsync_folder(destination)
        self._files.fsync_folder(self._data_path)

    def _is_as_received(self, name: str, receipt: _Receipt) -> bool:
        path = os.path.join(self._data_path, name)
        if self._files.size(path) != receipt.sizes.get(name):
            return False
        return name not in receipt.positions or self._content(name) == receipt.positions[name]

    def _make_destination(self, number: str) -> str:
        path = self._folder
        for name in (IMPORTED_FOLDER, number):
            parent, path = path, os.path.join(path, name)
            with suppress(FileExistsError):
                self._files.mkdir(path, 0o700)
                self._files.fsync_folder(parent)
        return path


def _copy(files: Files, source: str, target: str) -> None:
    read_from = files.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        write_to = files.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        try:
            offset = 0
            while data := files.pread(read_from, _COPY_SIZE, offset):
                write_all(files, write_to, data, offset)
                offset += len(data)
        finally:
            files.close(write_to)
    finally:
        files.close(read_from)


def _sync(files: Files, path: str) -> None:
    descriptor = files.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        files.fsync(descriptor)
    finally:
        files.close(descriptor)
