"""The files of one topic of nsq_to_file: their names, the open one, when the next one begins, and where they are put.

`--filename-format` has places for the topic, the host, the process and the date. The revision, which distinguishes
files that would have the same name, is left open until a file is opened.

A file ends when the date in its name has passed, when it is old, or when it is too large, as the options say. It is
closed before the next one is opened; with a work directory it is then moved to the output directory.

`now` is monotonic, `now_ns` wall clock. All methods of `FileSeries` may raise ``OSError``; after that, only synced
messages may be finished.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Final

from nsq_compat.cli.kinds import BOOLEAN, DURATION, INTEGER, STRING, choice
from nsq_compat.cli.options import option
from nsq_compat.log.data_path import reason
from nsq_compat.protocol.durations import SECOND, seconds
from nsq_compat.tools.channel_places import BeginningOptions
from nsq_compat.tools.nsq_to_file.output_file import (
    OutputFile,
    cut_unfinished_member,
    is_still_there,
    lock,
    move,
    repair,
)

log = logging.getLogger(__name__)

TEXT: Final = "text"
JSON: Final = "json"
REVISION: Final = "<REV>"
_TOKEN = re.compile("<(TOPIC|HOST|PID|DATETIME|REV)>")
_DATETIME_CODE = re.compile("%([YymdHIMSpBbAaZz%])")
_GZIP_SUFFIX: Final = ".gz"
_PATTERNS: Final = {
    "TOPIC": r"[.a-zA-Z0-9_-]+(?:#ephemeral)?",
    "PID": r"\d+",
    "DATETIME": r".*?",
    "REV": r"-\d{6,}",
}
"""Patterns of the values in names of files that another process may have made; the host must be this one."""


class BadFormat(ValueError):
    """A format that cannot name files; the text is for the operator."""


@dataclass(frozen=True, slots=True)
class Name:
    """A relative path without its revision."""

    template: str

    def with_revision(self, number: int) -> str:
        return self.template.replace(REVISION, f"-{number:06d}")

    @property
    def is_gzip(self) -> bool:
        return self.template.endswith(_GZIP_SUFFIX)


@dataclass(kw_only=True)
class FileOptions(BeginningOptions):
    """Where files go, when they end, and when they are synced and opened; a size or interval of 0 is no limit."""

    output_dir: str = option(STRING, "/tmp", "folder for the files")
    work_dir: str = option(STRING, "", "folder for unfinished files; by default the output directory")
    filename_format: str = option(
        STRING,
        f"<TOPIC>.<HOST>{REVISION}.<DATETIME>.log",
        f"names of files: <TOPIC>, <HOST>, <PID>, <DATETIME> and {REVISION}, which counts files of the same name",
    )
    datetime_format: str = option(STRING, "%Y-%m-%d_%H", "<DATETIME> in strftime's codes")
    format: str = option(
        choice(TEXT, JSON), TEXT, "a line is a message's body (text), or an object with all of it (json)"
    )
    host_identifier: str = option(STRING, "", "<HOST> in names, in which <SHORT_HOST> and <HOSTNAME> are replaced")
    gzip: bool = option(BOOLEAN, False, "compress files")
    gzip_level: int = option(INTEGER, 6, "from 1 (fast) to 9 (small)")
    skip_empty_files: bool = option(BOOLEAN, False, "open a file only when there is a message to write")
    rotate_size: int = option(INTEGER, 0, "size in bytes, uncompressed, at which a new file begins")
    rotate_interval: int = option(DURATION, 0, "age at which a new file begins")
    sync_interval: int = option(DURATION, 30 * SECOND, "longest time between two syncs to the disk")

    def __post_init__(self) -> None:
        self.work_dir = self.work_dir or self.output_dir

    @property
    def moves(self) -> bool:
        return os.path.realpath(self.work_dir) != os.path.realpath(self.output_dir)

    @property
    def needs_revisions(self) -> bool:
        """Whether several files can have one name."""
        return self.gzip or self.rotate_size > 0 or self.rotate_interval > 0 or self.moves

    @property
    def never_appends(self) -> bool:
        return self.gzip or self.rotate_interval > 0


class FileNames:
    """The names of all files of one program."""

    def __init__(self, options: FileOptions, hostname: str, pid: int = 0) -> None:
        """Raises ``BadFormat``."""
        filename_format = options.filename_format
        if options.needs_revisions and REVISION not in filename_format:
            raise BadFormat(f"missing {REVISION} in --filename-format when gzip, rotation, or work dir enabled")
        if not options.needs_revisions:
            filename_format = filename_format.replace(REVISION, "")
        if options.gzip and not filename_format.endswith(_GZIP_SUFFIX):
            filename_format += _GZIP_SUFFIX
        short = hostname.split(".")[0]
        self._format = "/".join(each for each in filename_format.split("/") if each != ".")
        self._datetime_format = options.datetime_format
        host = (options.host_identifier or short).replace("<SHORT_HOST>", short).replace("<HOSTNAME>", hostname)
        self._values = {"HOST": host, "PID": str(pid), "REV": REVISION}

    def name(self, topic: str, now_ns: int) -> Name:
        """The name of a topic's file that is opened now. Raises ``BadFormat`` if it is not below its folders."""
        values = {**self._values, "TOPIC": topic, "DATETIME": datetime_text(self._datetime_format, now_ns)}
        template = _TOKEN.sub(lambda token: values[token[1]], self._format).lstrip("/")
        parts = template.split("/")
        # A topic may be named "..", and publishing must not give write access outside of the output directory.
        if ".." in parts:
            raise BadFormat(f"{template} leads out of the output directory")
        if parts[-1] in ("", "."):  # to open it would fail, and end the program
            raise BadFormat(f"{template} is a directory")
        # So would the file of another topic, whose folder has the name of this file.
        if "." in parts:
            raise BadFormat(f"{template} is not in a folder of its own")
        return Name(template)

    def recognize(self, path: str) -> tuple[str, Name, int] | None:
        """Parse the name of an unfinished file of this program, or of an earlier process with the same options.

        Returns the topic, which is "" where names do not contain it, the name and the revision.
        """
        found = self._pattern().fullmatch(path)
        if found is None:
            return None
        values = found.groupdict()
        template = _TOKEN.sub(lambda token: values[token[1]] if token[1] != "REV" else REVISION, self._plain_format())
        suffix = _GZIP_SUFFIX if path.endswith(_GZIP_SUFFIX) else ""
        return values.get("TOPIC", ""), Name(template + suffix), int(values["REV"][1:])

    def _plain_format(self) -> str:
        """Without the suffix, because --gzip may have changed since the file was made."""
        return self._format.lstrip("/").removesuffix(_GZIP_SUFFIX)

    def _pattern(self) -> re.Pattern[str]:
        any_of = {**_PATTERNS, "HOST": re.escape(self._values["HOST"])}
        pattern, seen = "", set[str]()
        for index, piece in enumerate(_TOKEN.split(self._plain_format())):
            if index % 2 == 0:
                pattern += re.escape(piece)
            else:
                pattern += f"(?P={piece})" if piece in seen else f"(?P<{piece}>{any_of[piece]})"
                seen.add(piece)
        return re.compile(f"{pattern}(?:{re.escape(_GZIP_SUFFIX)})?", re.DOTALL)


def datetime_text(datetime_format: str, now_ns: int) -> str:
    """Local time in those of strftime's codes that nsq_to_file supports; others are kept as text."""
    moment = time.localtime(now_ns // 1_000_000_000)
    return _DATETIME_CODE.sub(lambda code: "%" if code[1] == "%" else time.strftime(code[0], moment), datetime_format)


class FileSeries:
    def __init__(self, topic: str, names: FileNames, options: FileOptions) -> None:
        self._topic = topic
        self._names = names
        self._options = options
        self._file: OutputFile | None = None
        self._name: Name | None = None
        self._revision = 0
        self._opened_at = 0.0

    @property
    def path(self) -> str:
        """The open file, or the folder of the next one."""
        return self._file.path if self._file is not None else self._options.work_dir

    def must_rotate(self, now: float, now_ns: int) -> bool:
        """Whether the next message belongs into a new file."""
        file, options = self._file, self._options
        if file is None:
            return True
        age = now - self._opened_at
        if self._names.name(self._topic, now_ns) != self._name:
            log.info("[%s] %s has a new name, rotating...", self._topic, file.path)
        elif 0 < seconds(options.rotate_interval) < age:
            log.info("[%s] %s is open for %.3g s, rotating...", self._topic, file.path, age)
        elif 0 < options.rotate_size < file.size:
            log.info("[%s] %s has %d bytes, rotating...", self._topic, file.path, file.size)
        else:
            return False
        return True

    def open_next(self, now: float, now_ns: int) -> None:
        """Close the open file, if any, and open the next."""
        self.close()
        name = self._names.name(self._topic, now_ns)
        self._revision = self._revision + 1 if name == self._name else 0
        self._name = name
        while (file := self._try_to_open(name)) is None:
            self._revision += 1
        log.info("[%s] opened %s", self._topic, file.path)
        self._file = file
        self._opened_at = now

    def write(self, lines: Sequence[bytes]) -> int:
        """Write lines until the file is too large, at least one; returns how many."""
        file, limit = self._file, self._options.rotate_size
        assert file is not None, "open_next comes before writing"
        ends = accumulate((len(line) + 1 for line in lines), initial=file.size)
        fitting = min(len(lines), sum(end <= limit for end in ends)) if limit > 0 else len(lines)
        file.write(b"".join([line + b"\n" for line in lines[:fitting]]))
        return fitting

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Sync and close the open file, if any, and put it in place."""
        file, self._file = self._file, None
        if file is None:
            return
        file.close()
        if self._options.moves:
            assert self._name is not None, "a file was opened"
            put_in_place(file.path, self._options.output_dir, self._name, self._revision)

    def _try_to_open(self, name: Name) -> OutputFile | None:
        """Open the file of this revision; None if it is taken or already too large."""
        options, relative = self._options, name.with_revision(self._revision)
        path = os.path.join(options.work_dir, relative)
        if options.moves and os.path.exists(os.path.join(options.output_dir, relative)):
            return None
        try:
            level = options.gzip_level if options.gzip else None
            file = OutputFile(path, exclusive=options.never_appends, shared=not options.moves, gzip_level=level)
        except FileExistsError:
            following = os.path.join(options.work_dir, name.with_revision(self._revision + 1))
            if name.is_gzip and not os.path.exists(following):
                repair(path)  # the last file may have been left by a process that was killed
            return None
        if 0 < options.rotate_size < file.size:
            file.close()
            return None
        return file


# --- Putting files in place -------------------------------------------------------------------------------------------


def put_in_place(source: str, folder: str, name: Name, revision: int) -> str:
    """Move a file atomically to its name below `folder`, with the next free revision; returns its path.

    Raises ``OSError``.
    """
    for number in count(revision):
        target = os.path.join(folder, name.with_revision(number))
        try:
            move(source, target)
        except FileExistsError:
            log.warning("destination file already exists: %s", target)
            continue
        if number == revision:
            log.info("moved finished file %s to %s", source, target)
        else:
            log.info("renamed finished file %s to %s to avoid overwrite", source, target)
        return target
    raise AssertionError("count() does not end")


def recover(work_dir: str, output_dir: str, names: FileNames, wants: Callable[[str], bool]) -> None:
    """Put files in place that dead processes left in the work directory, of topics that `wants` accepts."""
    for path in sorted(os.path.join(parent, each) for parent, _, files in os.walk(work_dir) for each in files):
        recognized = names.recognize(os.path.relpath(path, work_dir))
        if recognized is None or not wants(recognized[0]):
            continue
        try:
            _recover_one(path, output_dir, *recognized[1:])
        except OSError as error:  # it stays; new messages must be written nevertheless
            log.error("cannot put %s in place: %s", path, reason(error))


def _recover_one(path: str, output_dir: str, name: Name, revision: int) -> None:
    with open(path, "r+b") as file:
        # Another process may have put it in place before, and have a new file of this name.
        if not lock(file.fileno()) or not is_still_there(path, file.fileno()):
            return
        if name.is_gzip and not cut_unfinished_member(file.fileno()):
            log.warning("%s is damaged; it is put in place as it is", path)
        if os.fstat(file.fileno()).st_size == 0:
            os.unlink(path)
            return
        log.info("%s was left behind by a process that is gone", path)
        put_in_place(path, output_dir, name, revision)
