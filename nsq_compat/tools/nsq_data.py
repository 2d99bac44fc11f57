"""``nsq_data``: check a data path, export it to Go's nsqd, and salvage messages from Go's ``.bad`` files.

    nsq_data check   --data-path=... [--json]
    nsq_data export  --data-path=... [--to=...]
    nsq_data salvage --data-path=... [--queue=...] [--into=topic[:channel]] [--json]

The data path must not be used by an nsqd, ours or Go's. Exit code 0: success; 1: damage was found, or a part failed; 2:
nothing was done (wrong usage, no such folder, in use).
"""

import base64
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from nsq_compat import version_line
from nsq_compat.cli.flags import EXIT_FAILURE, EXIT_USAGE, parse_arguments
from nsq_compat.cli.kinds import BOOLEAN, INTEGER, STRING, STRINGS
from nsq_compat.cli.logs import configure, parse_log_level
from nsq_compat.cli.options import option, table_of
from nsq_compat.godata import export as go_export
from nsq_compat.godata.export import write_queue
from nsq_compat.godata.format import GoMessage, QueueFiles, queues_among
from nsq_compat.godata.reader import QueueReport, read_data_file
from nsq_compat.log.data_path import DataPathError, DataPathLock, reason, resolved, topic_folder, topics_in
from nsq_compat.log.files import Files, OsFiles
from nsq_compat.log.metadata import MetadataError, load_metadata
from nsq_compat.log.recovery import StoredTopic
from nsq_compat.protocol.go_json import dumps
from nsq_compat.tools.data_check import as_json, as_text, check

PROGRAM = "nsq_data"
SALVAGED_SUFFIX = ".salvaged"
_DEFAULT_FILE_SIZE = 100 * 1024 * 1024
_DATA_PATH = "data path of nsqd; by default the current folder"
_FILE_SIZE = "size in bytes at which a new data file begins"

T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class CheckOptions:
    """``nsq_data check``."""

    data_path: str = option("data-path", STRING, "", _DATA_PATH)
    json: bool = option("json", BOOLEAN, False, "print one JSON object instead of text")


@dataclass(slots=True, kw_only=True)
class ExportOptions:
    """``nsq_data export``."""

    data_path: str = option("data-path", STRING, "", _DATA_PATH)
    to: str = option("to", STRING, "", "empty folder for Go's files; by default the data path itself")
    max_bytes_per_file: int = option("max-bytes-per-file", INTEGER, _DEFAULT_FILE_SIZE, _FILE_SIZE)


@dataclass(slots=True, kw_only=True)
class SalvageOptions:
    """``nsq_data salvage``."""

    data_path: str = option("data-path", STRING, "", _DATA_PATH)
    queue: tuple[str, ...] = option(
        "queue", STRINGS, (), "only bad files of this `topic[:channel]` (repeat for several); by default all"
    )
    into: str = option(
        "into",
        STRING,
        "",
        "write the messages to the queue of this `topic[:channel]`, which must have no files of Go's",
    )
    max_bytes_per_file: int = option("max-bytes-per-file", INTEGER, _DEFAULT_FILE_SIZE, _FILE_SIZE)
    json: bool = option("json", BOOLEAN, False, "list messages as one JSON object a line, bodies included")


class _Refused(Exception):
    """Nothing was done; the text is for the operator."""


def main() -> NoReturn:
    """Run one subcommand."""
    configure(f"[{PROGRAM}] ", parse_log_level("error"))
    raise SystemExit(run(sys.argv[1:], OsFiles()))


def run(words: Sequence[str], files: Files) -> int:
    """Run the subcommand of a command line; returns the exit code."""
    name = words[0] if words else ""
    if name.lstrip("-") == "version" and name.startswith("-"):
        print(version_line(PROGRAM))
        return 0
    command = _COMMANDS.get(name)
    if command is None:
        print(f"usage: {PROGRAM} {'|'.join(_COMMANDS)} [flags], or -h behind one of these", file=sys.stderr)
        return EXIT_USAGE
    try:
        return command(files, words[1:])
    except (DataPathError, MetadataError, _Refused, go_export.ExportRefused) as error:
        return _complain(EXIT_USAGE, str(error))
    except BrokenPipeError:
        # The reader has closed its end. Buffered output must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILURE
    except OSError as error:
        return _complain(EXIT_FAILURE, f"{error.filename or 'failed'}: {reason(error)}")


def _complain(code: int, text: str) -> int:
    print(f"{PROGRAM}: {text}", file=sys.stderr)
    return code


def _options(name: str, options_type: type[T], words: Sequence[str]) -> T:
    arguments = parse_arguments(f"{PROGRAM} {name}", table_of(options_type), words)
    if arguments.rest:
        raise _Refused(f"{name} takes only flags, not {arguments.rest[0]}")
    return options_type(**arguments.given)


def _check(files: Files, words: Sequence[str]) -> int:
    options = _options("check", CheckOptions, words)
    data_path = resolved(options.data_path)
    with DataPathLock(data_path):
        findings = check(files, data_path)
    for line in [dumps(as_json(findings))] if options.json else as_text(findings):
        print(line)
    return EXIT_FAILURE if findings.damaged else 0


# --- export -----------------------------------------------------------------------------------------------------------


def _export(files: Files, words: Sequence[str]) -> int:
    options = _options("export", ExportOptions, words)
    source = resolved(options.data_path)
    target = options.to or source
    with ExitStack() as locks:
        locks.enter_context(DataPathLock(source))
        if os.path.realpath(target) != os.path.realpath(source):
            locks.enter_context(DataPathLock(target))
        go_export.recover(files, source)
        topics = load_metadata(files, source)
        complaints: list[str] = []
        backlogs = _stored_backlogs(files, source, complaints)
        messages = 0
        for name, count in go_export.export(files, source, target, topics, backlogs, options.max_bytes_per_file):
            print(f"{name}: {count}")
            messages += count
    for complaint in complaints:
        print(complaint)
    print(f"{messages} messages written to {target}")
    return EXIT_FAILURE if complaints else 0


def _stored_backlogs(files: Files, data_path: str, complaints: list[str]) -> Iterator[go_export.Backlog]:
    """The undelivered messages in our files, by topic and channel."""
    for name in topics_in(files, data_path):
        with StoredTopic(files, topic_folder(data_path, name)) as topic:
            if topic.checkpoint_error:
                complaints.append(
                    f"{name}: checkpoint is damaged ({topic.checkpoint_error}), its whole log is exported"
                )
            for channel, frames in topic.backlogs():
                yield name, channel, frames
            if topic.log.damaged_records:
                complaints.append(f"{name}: {topic.log.damaged_records} messages are damaged")


# --- salvage ----------------------------------------------------------------------------------------------------------


def _salvage(files: Files, words: Sequence[str]) -> int:
    options = _options("salvage", SalvageOptions, words)
    data_path = resolved(options.data_path)
    if options.into and QueueFiles(options.into).owner is None:
        raise _Refused(f"--into takes topic or topic:channel, not {options.into}")
    with DataPathLock(data_path):
        queues = queues_among(files.listdir(data_path))
        bad = [
            name
            for queue in queues.values()
            if not options.queue or queue.name in options.queue
            for _, name in sorted(queue.bad.items())
        ]
        report = QueueReport()
        if options.into:
            _salvage_into(files, data_path, bad, report, options)
        else:
            _list_messages(files, data_path, bad, report, _json_line if options.json else _text_line)
    for damage in report.damages:
        print(f"{damage.file} at {damage.offset}: {damage.reason}", file=sys.stderr)
    print(
        f"{len(bad)} files, {report.messages} messages, {report.damaged_parts} damaged parts; "
        "files that Go had read to the end are among them, so messages may have been delivered before",
        file=sys.stderr,
    )
    return EXIT_FAILURE if report.damaged_parts else 0


def _salvage_into(
    files: Files, data_path: str, bad: Sequence[str], report: QueueReport, options: SalvageOptions
) -> None:
    if not bad:
        return
    messages = (stored for name in bad for stored in read_data_file(files, data_path, name, report))
    try:
        write_queue(files, data_path, options.into, messages, options.max_bytes_per_file)
    except FileExistsError as error:
        raise _Refused(f"{error}; start nsqd, which takes its messages over, or choose another") from None
    # Not to be salvaged twice. The files are kept, because their damaged parts may still be of use.
    for name in bad:
        path = os.path.join(data_path, name)
        files.rename(path, path + SALVAGED_SUFFIX)
    files.fsync_folder(data_path)


def _list_messages(
    files: Files, data_path: str, bad: Sequence[str], report: QueueReport, line: Callable[[str, GoMessage], str]
) -> None:
    for name in bad:
        for stored in read_data_file(files, data_path, name, report):
            print(line(name, stored))


def _text_line(name: str, stored: GoMessage) -> str:
    message_id = stored.id.decode("ascii", "backslashreplace")
    return f"{name} {message_id} {stored.timestamp_ns} attempts={stored.attempts} size={len(stored.body)}"


def _json_line(name: str, stored: GoMessage) -> str:
    return dumps(
        {
            "file": name,
            "id": stored.id.decode("ascii", "backslashreplace"),
            "timestamp": stored.timestamp_ns,
            "attempts": stored.attempts,
            "body_base64": base64.b64encode(stored.body).decode("ascii"),
        }
    )


_COMMANDS: dict[str, Callable[[Files, Sequence[str]], int]] = {
    "check": _check,
    "export": _export,
    "salvage": _salvage,
}

if __name__ == "__main__":
    main()
