"""``nsq_data check``: examine a data path without changing it, and report the findings as text or JSON."""

import errno
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from nsq_compat.godata.format import queues_among
from nsq_compat.godata.reader import QueueReport, read_queue
from nsq_compat.log.data_path import topic_folder, topics_in
from nsq_compat.log.files import Files, OsFiles
from nsq_compat.log.metadata import MetadataError, TopicMetadata, load_metadata
from nsq_compat.log.recovery import StoredTopic


@dataclass(slots=True)
class Findings:
    """The result of `check`."""

    data_path: str
    metadata: tuple[TopicMetadata, ...] = ()
    metadata_error: str = ""
    queues: list[QueueReport] = field(default_factory=list)
    """Go's."""
    bad_files: int = 0
    """Files that Go has set aside; not counted as damage, because they are old."""
    topics: list["TopicFindings"] = field(default_factory=list)
    """Ours."""

    @property
    def damaged(self) -> bool:
        """Whether messages are lost, or a start would fail."""
        return bool(
            self.metadata_error
            or any(queue.damaged_parts for queue in self.queues)
            or any(topic.damaged_records or topic.damages or topic.problems for topic in self.topics)
        )


@dataclass(slots=True)
class TopicFindings:
    """A topic in our files."""

    name: str
    bytes: int = 0
    """Size of its files, finished messages included."""
    depths: dict[str, int] = field(default_factory=dict)
    """By channel; "" for messages of the topic that no channel has yet."""
    damaged_records: int = 0
    damages: list[str] = field(default_factory=list)
    """File, offset and number of lost messages of the first hundred damaged places."""
    problems: list[str] = field(default_factory=list)


def check(files: Files, data_path: str) -> Findings:
    """Read all files. Raises ``OSError`` if the folder cannot be read."""
    findings = Findings(data_path)
    try:
        findings.metadata = load_metadata(files, data_path)
    except MetadataError as error:
        findings.metadata_error = str(error)
    for found in queues_among(files.listdir(data_path)).values():
        findings.bad_files += len(found.bad)
        if found.live:
            report = QueueReport()
            for _ in read_queue(files, data_path, found.name, report, found):
                pass
            findings.queues.append(report)
    for name in topics_in(files, data_path):
        findings.topics.append(_check_topic(_ReadOnly(), data_path, name))
    return findings


def _check_topic(files: Files, data_path: str, name: str) -> TopicFindings:
    findings = TopicFindings(name)
    try:
        with StoredTopic(files, topic_folder(data_path, name)) as topic:
            findings.bytes = topic.log.disk_bytes
            findings.depths = {channel or "": depth for channel, depth in topic.depths().items()}
            if topic.checkpoint_error:
                findings.problems.append(f"checkpoint is damaged: {topic.checkpoint_error}")
            try:
                topic.read_needed()
            finally:
                findings.damaged_records = topic.log.damaged_records
                findings.damages = topic.log.damage.findings
    except OSError as error:  # other topics can be examined nevertheless
        findings.problems.append(f"cannot be read: {error}")
    return findings


class _ReadOnly(OsFiles):
    """Files for the code of the daemon, that refuse every change."""

    @staticmethod
    def open(path: str, flags: int, mode: int = 0o600) -> int:
        return os.open(path, flags & ~(os.O_ACCMODE | os.O_CREAT | os.O_TRUNC) | os.O_RDONLY, mode)

    def __getattribute__(self, name: str) -> Any:
        return _refuse if name in _CHANGING else super().__getattribute__(name)


_CHANGING = frozenset({"pwrite", "fallocate", "ftruncate", "rename", "unlink", "rmdir", "mkdir"})


def _refuse(*_: object) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def as_json(findings: Findings) -> dict[str, Any]:
    """The findings as plain values for JSON."""
    return {
        "data_path": findings.data_path,
        "damaged": findings.damaged,
        "metadata_error": findings.metadata_error or None,
        "metadata": [asdict(topic) for topic in findings.metadata],
        "bad_files": findings.bad_files,
        "go_queues": [_queue_as_json(queue) for queue in findings.queues],
        "topics": [asdict(topic) for topic in findings.topics],
    }


def _queue_as_json(queue: QueueReport) -> dict[str, Any]:
    return {
        "name": queue.name,
        "messages": queue.messages,
        "bytes": queue.bytes,
        "claimed_depth": queue.claimed_depth,
        "unsynced": queue.unsynced,
        "damaged_parts": queue.damaged_parts,
        "damaged_bytes": queue.damaged_bytes,
        "damages": [damage._asdict() for damage in queue.damages],
        "ignored": queue.ignored,
    }


def as_text(findings: Findings) -> Iterator[str]:
    """The findings as lines of text."""
    yield f"data path {findings.data_path}"
    yield from _metadata_lines(findings)
    for topic in findings.topics:
        yield from _topic_lines(topic)
    for queue in findings.queues:
        yield from _queue_lines(queue)
    if findings.bad_files:
        yield f"{_count(findings.bad_files, 'file')} set aside by Go as bad; nsq_data salvage lists what is in them"
    yield "damaged" if findings.damaged else "clean"


def _metadata_lines(findings: Findings) -> Iterator[str]:
    if findings.metadata_error:
        yield f"nsqd.dat: {findings.metadata_error}"
        return
    channels = sum(len(topic.channels) for topic in findings.metadata)
    yield f"nsqd.dat: {_count(len(findings.metadata), 'topic')}, {_count(channels, 'channel')}"


def _topic_lines(topic: TopicFindings) -> Iterator[str]:
    yield f"topic {topic.name}: {_count(topic.bytes, 'byte')}"
    for channel, depth in sorted(topic.depths.items()):
        yield f"  {channel or '(no channel)'}: depth {depth}"
    if topic.damaged_records:
        yield f"  damaged: {_count(topic.damaged_records, 'message')}"
    for damage in topic.damages:
        yield f"  {damage}"
    for problem in topic.problems:
        yield f"  {problem}"


def _queue_lines(queue: QueueReport) -> Iterator[str]:
    notes = [f"{_count(queue.messages, 'message')} of {_count(queue.bytes, 'byte')}"]
    if queue.claimed_depth is None:
        notes.append("no positions")
    elif queue.claimed_depth != queue.messages:
        notes.append(f"Go counted {queue.claimed_depth}")
    if queue.unsynced:
        notes.append(f"{queue.unsynced} of them not yet in its positions")
    yield f"Go's queue {queue.name}: {', '.join(notes)}"
    for damage in queue.damages:
        size = f", {_count(damage.size, 'byte')}" if damage.size else ""
        yield f"  damaged: {damage.file} at {damage.offset}{size}: {damage.reason}"
    if queue.damaged_parts > len(queue.damages):
        yield f"  damaged: {queue.damaged_parts - len(queue.damages)} more"
    for name in queue.ignored:
        yield f"  ignored: {name}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
