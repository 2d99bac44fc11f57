"""``nsq_data``: check a data path, export it to Go's nsqd, and salvage messages from Go's ``.bad`` files.

    nsq_data check   --data-path=... [--json]
    nsq_data export  --data-path=... [--to=...]
    nsq_data salvage --data-path=... [--queue=...] [--into=topic[:channel]] [--json]

The data path must not be used by an nsqd, ours or Go's. Exit code 0: success; 1: damage was found, a part failed, or no
nsqd has ever used the folder; 2: nothing was done (wrong usage, no such folder, in use).
"""

import base64
import errno
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from nsq_compat import version_text
from nsq_compat.cli.flags import EXIT_FAILURE, EXIT_USAGE, parse_arguments
from nsq_compat.cli.kinds import BOOLEAN, INTEGER, STRING, STRINGS
from nsq_compat.cli.logs import configure, parse_log_level
from nsq_compat.cli.options import option, table_of
from nsq_compat.godata import export as go_export
from nsq_compat.godata.export import write_queue
from nsq_compat.godata.format import GoMessage, QueueFiles, queue_name, queues_among
from nsq_compat.godata.reader import QueueReport, read_data_file, read_queue
from nsq_compat.log.data_path import (
    FOLDER,
    MIRROR_STATE,
    MIRRORS,
    DataPathError,
    DataPathLock,
    our_folder,
    reason,
    resolved,
    topic_folder,
    topics_in,
)
from nsq_compat.log.files import OsFiles, read_file
from nsq_compat.log.metadata import FILE_NAME, MetadataError, TopicMetadata, load_metadata
from nsq_compat.log.recovery import StoredTopic
from nsq_compat.protocol.errors import one_line
from nsq_compat.protocol.go_json import dumps
from nsq_compat.protocol.message import has_headers
from nsq_compat.tools.program import Refused
from nsq_compat.web.application import picked

PROGRAM = "nsq_data"
SALVAGED_SUFFIX = ".salvaged"
_DEFAULT_FILE_SIZE = 100 * 1024 * 1024
_MAX_GAPS = 100
_UNREADABLE = "cannot be read"
_FILES = OsFiles()


@dataclass(kw_only=True)
class DataOptions:
    data_path: str = option(STRING, "", "data path of nsqd; by default the current folder")


@dataclass(kw_only=True)
class CheckOptions(DataOptions):
    json: bool = option(BOOLEAN, False, "print one JSON object instead of text")


@dataclass(kw_only=True)
class ExportOptions(DataOptions):
    to: str = option(STRING, "", "empty folder for Go's files; by default the data path itself")
    max_bytes_per_file: int = option(INTEGER, _DEFAULT_FILE_SIZE, "size in bytes at which a new data file begins")


@dataclass(kw_only=True)
class SalvageOptions(DataOptions):
    queue: tuple[str, ...] = option(
        STRINGS, (), "only bad files of this `topic[:channel]` (repeat for several); by default all"
    )
    into: str = option(
        STRING, "", "write the messages to the queue of this `topic[:channel]`, which must have no files of Go's"
    )
    max_bytes_per_file: int = option(INTEGER, _DEFAULT_FILE_SIZE, "size in bytes at which a new data file begins")
    json: bool = option(BOOLEAN, False, "list messages as one JSON object a line, bodies included")


def main() -> NoReturn:
    """The console script."""
    configure(f"[{PROGRAM}] ", parse_log_level("error"))
    raise SystemExit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run the subcommand of a command line; returns the exit code."""
    name = words[0] if words else ""
    if name in ("-h", "--help", "-help"):
        print((__doc__ or "").strip())
        return 0
    if name.lstrip("-") == "version" and name.startswith("-"):
        print(version_text(PROGRAM))
        return 0
    if name not in _COMMANDS:
        print(f"usage: {PROGRAM} {'|'.join(_COMMANDS)} [flags], or -h behind one of these", file=sys.stderr)
        return EXIT_USAGE
    options_type, command = _COMMANDS[name]
    try:
        arguments = parse_arguments(f"{PROGRAM} {name}", table_of(options_type), words[1:])
        if arguments.rest:
            raise Refused(f"{name} takes only flags, not {arguments.rest[0]}")
        options = options_type(**arguments.given)
        options.data_path = resolved(options.data_path)
        return command(options)
    except NeverUsed as error:
        code, text = EXIT_FAILURE, str(error)
    except (DataPathError, MetadataError, Refused, go_export.ExportRefused) as error:
        code, text = EXIT_USAGE, str(error)
    except BrokenPipeError:
        # The reader has closed its end. Buffered output must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except OSError as error:
        code, text = EXIT_FAILURE, f"{error.filename or 'failed'}: {reason(error)}"
    print(f"{PROGRAM}: {text}", file=sys.stderr)
    return code


class NeverUsed(Exception):
    """No nsqd has used the folder."""


def _check_used(data_path: str) -> None:
    names = _FILES.listdir(data_path)
    if not queues_among(names) and not any(name.startswith((FILE_NAME, FOLDER)) for name in names):
        raise NeverUsed(f"{data_path} is no data path: no nsqd, ours or Go's, has left a file in it")


# --- check ------------------------------------------------------------------------------------------------------------


def _check(options: CheckOptions) -> int:
    with DataPathLock(options.data_path):
        _check_used(options.data_path)
        findings = check(options.data_path)
    for line in [dumps(as_json(findings))] if options.json else as_text(findings):
        print(one_line(line))  # a primary chooses the address that its copy names
    return EXIT_FAILURE if findings.damaged else 0


@dataclass(slots=True)
class Findings:
    data_path: str
    metadata: tuple[TopicMetadata, ...] = ()
    metadata_error: str | None = None
    go_queues: list[QueueReport] = field(default_factory=list)
    bad_files: int = 0
    """Files that Go has set aside; not counted as damage, because they are old."""
    topics: list["TopicFindings"] = field(default_factory=list)
    """Ours."""
    mirror_of: str = ""
    """For a copy, the address of its primary."""
    mirrors: list["Findings"] = field(default_factory=list)
    """Copies of other nsqds' data paths."""

    @property
    def damaged(self) -> bool:
        """Whether messages are lost, or a start would fail; also in a copy."""
        return bool(
            self.metadata_error
            or any(queue.damaged_parts for queue in self.go_queues)
            or any(topic.is_damaged for topic in self.topics)
            or any(mirror.damaged for mirror in self.mirrors)
        )


@dataclass(slots=True)
class TopicFindings:
    """A topic in our files."""

    name: str
    bytes: int = 0
    """Size of its files, finished messages included."""
    depths: dict[str, int] = field(default_factory=dict)
    """By channel; "" for messages of the topic that no channel has yet."""
    first_offset: int | None = None
    """Of the messages that are retained, finished or not; None while files are of an earlier version."""
    next_offset: int | None = None
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Offsets between them of which there is no message, up to a hundred; the second is not part of it."""
    old_files: int = 0
    """Files of an earlier version, which nsqd migrates at its next start."""
    damaged_records: int = 0
    damages: list[str] = field(default_factory=list)
    """File, offset and number of lost messages of the first hundred damaged places."""
    problems: list[str] = field(default_factory=list)

    @property
    def is_damaged(self) -> bool:
        return bool(self.damaged_records or self.damages or self.problems)


def check(data_path: str) -> Findings:
    """Read all files. Raises ``OSError`` if the folder cannot be read."""
    findings = Findings(data_path)
    try:
        findings.metadata = load_metadata(_FILES, data_path)
    except MetadataError as error:
        findings.metadata_error = str(error)
    for found in queues_among(_FILES.listdir(data_path)).values():
        findings.bad_files += len(found.bad)
        if found.live:
            report = QueueReport()
            for _ in read_queue(_FILES, data_path, found.name, report, found):
                pass
            findings.go_queues.append(report)
    findings.topics = [_check_topic(data_path, name) for name in topics_in(_FILES, data_path)]
    findings.mirrors = list(_check_mirrors(data_path))
    return findings


def _check_mirrors(data_path: str) -> Iterator[Findings]:
    folder = os.path.join(our_folder(data_path), MIRRORS)
    with suppress(FileNotFoundError):
        for identity in sorted(_FILES.listdir(folder)):
            copy = os.path.join(folder, identity)
            findings = check(copy)
            findings.mirror_of = _primary_of(copy) or "an unknown primary"
            yield findings


def _primary_of(copy: str) -> str:
    with suppress(OSError, ValueError, TypeError, KeyError):
        state = json.loads(read_file(_FILES, os.path.join(copy, MIRROR_STATE)))
        return f"{state['broadcast_address']}:{state['tcp_port']}"
    return ""


def _check_topic(data_path: str, name: str) -> TopicFindings:
    findings = TopicFindings(name)
    try:
        with StoredTopic(_ReadOnly(), topic_folder(data_path, name)) as topic:
            findings.bytes = topic.log.disk_bytes
            findings.depths = {channel or "": depth for channel, depth in topic.depths().items()}
            if topic.checkpoint_error:
                findings.problems.append(f"checkpoint is damaged: {topic.checkpoint_error}")
            try:
                topic.read_needed()
                findings.old_files = len(topic.old_files)
                if not findings.old_files:
                    findings.first_offset, findings.next_offset, gaps = topic.read_retained()
                    findings.gaps = gaps[:_MAX_GAPS]
            finally:
                findings.damaged_records = topic.log.damage.records
                findings.damages = topic.log.damage.findings
    except OSError as error:  # other topics can be examined nevertheless
        findings.problems.append(f"{_UNREADABLE}: {error.filename or name}: {reason(error)}")
    return findings


class _ReadOnly(OsFiles):
    """Files for the code of the daemon, that refuse every change."""

    @staticmethod
    def open(path: str, flags: int, mode: int = 0o600) -> int:
        return os.open(path, flags & ~(os.O_ACCMODE | os.O_CREAT | os.O_TRUNC) | os.O_RDONLY, mode)

    @staticmethod
    def _refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    pwrite = fallocate = ftruncate = rename = unlink = rmdir = mkdir = _refuse


def as_json(findings: Findings) -> dict[str, Any]:
    keys = "name messages bytes claimed_depth unsynced damaged_parts damaged_bytes damages ignored"
    return {
        **picked(findings, "data_path damaged metadata_error metadata bad_files go_queues topics mirror_of? mirrors"),
        "metadata": [asdict(topic) for topic in findings.metadata],
        "go_queues": [
            {**picked(queue, keys), "damages": [damage._asdict() for damage in queue.damages]}
            for queue in findings.go_queues
        ],
        "topics": [asdict(topic) for topic in findings.topics],
        "mirrors": [as_json(mirror) for mirror in findings.mirrors],
    }


def as_text(findings: Findings) -> Iterator[str]:
    name = f"copy of {findings.mirror_of}" if findings.mirror_of else "data path"
    yield f"{name} {findings.data_path}"
    topics, channels = len(findings.metadata), sum(len(topic.channels) for topic in findings.metadata)
    counts = f"{_count(topics, 'topic')}, {_count(channels, 'channel')}"
    yield f"nsqd.dat: {findings.metadata_error or counts}"
    for topic in findings.topics:
        yield from _topic_lines(topic)
    for queue in findings.go_queues:
        yield from _queue_lines(queue)
    if findings.bad_files:
        yield f"{_count(findings.bad_files, 'file')} set aside by Go as bad; nsq_data salvage lists what is in them"
    for mirror in findings.mirrors:
        yield from (f"  {line}" for line in as_text(mirror))
    yield "damaged" if findings.damaged else "clean"


def _topic_lines(topic: TopicFindings) -> Iterator[str]:
    yield f"topic {topic.name}: {_count(topic.bytes, 'byte')}"
    if topic.next_offset is not None and topic.first_offset != topic.next_offset:
        yield f"  offsets {topic.first_offset} to {topic.next_offset - 1}"
    yield from (f"  no messages from offset {begin} to {end - 1}" for begin, end in topic.gaps)
    if topic.old_files:
        yield f"  {_count(topic.old_files, 'file')} of an earlier version, which nsqd migrates at its next start"
    for channel, depth in sorted(topic.depths.items()):
        yield f"  {channel or '(no channel)'}: depth {depth}"
    if topic.damaged_records:
        yield f"  damaged: {_count(topic.damaged_records, 'message')}"
    yield from (f"  {finding}" for finding in (*topic.damages, *topic.problems))


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


# --- export -----------------------------------------------------------------------------------------------------------


def _export(options: ExportOptions) -> int:
    source = options.data_path
    target = options.to or source
    with ExitStack() as locks:
        locks.enter_context(DataPathLock(source))
        if os.path.realpath(target) != os.path.realpath(source):
            locks.enter_context(DataPathLock(target))
        _check_used(source)
        go_export.recover(_FILES, source)
        topics = load_metadata(_FILES, source)
        complaints: list[str] = []
        without_headers = Counter[str]()
        backlogs = _stored_backlogs(source, complaints, without_headers)
        messages = 0
        for name, count in go_export.export(_FILES, source, target, topics, backlogs, options.max_bytes_per_file):
            print(one_line(f"{name}: {count}"))
            messages += count
    for complaint in complaints:
        print(one_line(complaint))
    for name, count in without_headers.items():
        print(f"{one_line(name)}: {count} with headers, which are left out, because Go's nsqd has none")
    print(f"{messages} messages written to {target}")
    return EXIT_FAILURE if complaints else 0


def _stored_backlogs(
    data_path: str, complaints: list[str], without_headers: Counter[str]
) -> Iterator[go_export.Backlog]:
    """The undelivered messages in our files, by topic and channel. Counts those with headers, by queue."""

    def counted(name: str, frames: Iterable[bytes]) -> Iterator[bytes]:
        for frame in frames:
            if has_headers(frame):
                without_headers[name] += 1
            yield frame

    for name in topics_in(_FILES, data_path):
        with StoredTopic(_FILES, topic_folder(data_path, name)) as topic:
            if problem := topic.checkpoint_error:
                complaints.append(f"{name}: checkpoint is damaged ({problem}), its whole log is exported")
            for channel, frames in topic.backlogs():
                yield name, channel, counted(queue_name(name, channel), frames)
            if topic.log.damage.records:
                complaints.append(f"{name}: {topic.log.damage.records} messages are damaged")


# --- salvage ----------------------------------------------------------------------------------------------------------


def _salvage(options: SalvageOptions) -> int:
    data_path = options.data_path
    if options.into and QueueFiles(options.into).owner is None:
        raise Refused(f"--into takes topic or topic:channel, not {options.into}")
    with DataPathLock(data_path):
        _check_used(data_path)
        ours = list(_damaged_topics(data_path, {name.partition(":")[0] for name in options.queue}))
        queues = queues_among(_FILES.listdir(data_path))
        wanted = [queue for queue in queues.values() if not options.queue or queue.name in options.queue]
        bad = [name for queue in wanted for _, name in sorted(queue.bad.items())]
        report = QueueReport()
        found = ((name, stored) for name in bad for stored in read_data_file(_FILES, data_path, name, report))
        if not options.into:
            line = _json_line if options.json else _text_line
            for name, stored in found:
                print(line(name, stored))
        elif bad:
            _salvage_into(options, bad, (stored for _, stored in found))
    for damage in report.damages:
        print(one_line(f"{damage.file} at {damage.offset}: {damage.reason}"), file=sys.stderr)
    if bad:
        print(
            f"{len(bad)} files, {report.messages} messages, {report.damaged_parts} damaged parts; "
            "files that Go had read to the end are among them, so messages may have been delivered before",
            file=sys.stderr,
        )
    else:
        print("there are no bad files of Go's nsqd to salvage", file=sys.stderr)
    for topic in ours:
        print(one_line(_advice(topic)), file=sys.stderr)
    return EXIT_FAILURE if report.damaged_parts or ours else 0


def _damaged_topics(data_path: str, wanted: set[str]) -> Iterator[TopicFindings]:
    """Our topics that are damaged, of those that are wanted; all if none is named."""
    for name in topics_in(_FILES, data_path):
        if not wanted or name in wanted:
            findings = _check_topic(data_path, name)
            if findings.is_damaged:
                yield findings


def _advice(topic: TopicFindings) -> str:
    """What nsqd delivers of a damaged topic."""
    damage = [f"{_count(topic.damaged_records, 'message')} damaged"] if topic.damaged_records else []
    text = f"topic {topic.name}: {', '.join([*damage, *topic.problems]) or 'damaged'}"
    if any(problem.startswith(_UNREADABLE) for problem in topic.problems):
        return f"{text}; nsqd refuses to start until the file can be read"
    depths = ", ".join(f"{channel or '(no channel)'} {depth}" for channel, depth in sorted(topic.depths.items()))
    return f"{text}; start nsqd, which skips the damage and delivers the rest: {depths}"


def _salvage_into(options: SalvageOptions, bad: Sequence[str], messages: Iterator[GoMessage]) -> None:
    try:
        write_queue(_FILES, options.data_path, options.into, messages, options.max_bytes_per_file)
    except FileExistsError as error:
        raise Refused(f"{error}; start nsqd, which takes its messages over, or choose another") from None
    # Not to be salvaged twice. The files are kept, because their damaged parts may still be of use.
    for name in bad:
        path = os.path.join(options.data_path, name)
        _FILES.rename(path, path + SALVAGED_SUFFIX)
    _FILES.fsync_folder(options.data_path)


def _text_line(name: str, stored: GoMessage) -> str:
    message_id = stored.id.decode("ascii", "backslashreplace")
    # The id, and the name of a file, may have any characters.
    return one_line(f"{name} {message_id} {stored.timestamp_ns} attempts={stored.attempts} size={len(stored.body)}")


def _json_line(name: str, stored: GoMessage) -> str:
    message = {"file": name, "id": stored.id.decode("ascii", "backslashreplace"), "timestamp": stored.timestamp_ns}
    body = base64.b64encode(stored.body).decode("ascii")
    return dumps({**message, "attempts": stored.attempts, "body_base64": body})


_COMMANDS: dict[str, tuple[type[DataOptions], Callable[[Any], int]]] = {
    "check": (CheckOptions, _check),
    "export": (ExportOptions, _export),
    "salvage": (SalvageOptions, _salvage),
}
