"""The files of one topic of nsq_to_file: the open one, when the next one begins, and where finished ones are put.

A file ends when the date in its name has passed, when it is old, or when it is too large, as the options say. It is
closed before the next one is opened; with a work directory it is then moved to the output directory.

`now` is monotonic, `now_ns` wall clock. All methods may raise ``OSError``; after that, only synced messages may be
finished.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass

from nsq_compat.tools.nsq_to_file.file_names import FileNames, Name
from nsq_compat.tools.nsq_to_file.output_file import OutputFile, put_in_place, repair

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Where files go and when they end; a size or interval of 0 is no limit."""

    output_dir: str
    work_dir: str
    gzip_level: int | None = None
    rotate_size: int = 0
    rotate_interval: float = 0

    @property
    def moves(self) -> bool:
        return os.path.realpath(self.work_dir) != os.path.realpath(self.output_dir)

    @property
    def needs_revisions(self) -> bool:
        """Whether several files can have one name."""
        return self.gzip_level is not None or self.rotate_size > 0 or self.rotate_interval > 0 or self.moves

    @property
    def never_appends(self) -> bool:
        return self.gzip_level is not None or self.rotate_interval > 0


class FileSeries:
    def __init__(self, topic: str, names: FileNames, rules: Rules) -> None:
        self._topic = topic
        self._names = names
        self._rules = rules
        self._file: OutputFile | None = None
        self._name: Name | None = None
        self._revision = 0
        self._opened_at = 0.0

    @property
    def path(self) -> str | None:
        """The path of the open file."""
        return self._file.path if self._file else None

    def must_rotate(self, now: float, now_ns: int) -> bool:
        """Whether the next message belongs into a new file."""
        file, rules = self._file, self._rules
        if file is None:
            return True
        age = now - self._opened_at
        if self._names.name(self._topic, now_ns) != self._name:
            log.info("[%s] %s has a new name, rotating...", self._topic, file.path)
        elif 0 < rules.rotate_interval < age:
            log.info("[%s] %s is open for %.3g s, rotating...", self._topic, file.path, age)
        elif 0 < rules.rotate_size < file.size:
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

    def count_fitting(self, bodies: Sequence[bytes]) -> int:
        """How many of these lines to write until the file is too large; at least one."""
        limit = self._rules.rotate_size
        if limit <= 0:
            return len(bodies)
        size = self._open_file.size
        for number, body in enumerate(bodies, 1):
            size += len(body) + 1
            if size > limit:
                return number
        return len(bodies)

    def write(self, bodies: Sequence[bytes]) -> None:
        """Write each as a line."""
        self._open_file.write(b"".join([body + b"\n" for body in bodies]))

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Sync and close the open file, if any, and put it in place."""
        file, self._file = self._file, None
        if file is None:
            return
        file.close()
        if self._rules.moves:
            assert self._name is not None, "a file was opened"
            put_in_place(file.path, self._rules.output_dir, self._name, self._revision)

    @property
    def _open_file(self) -> OutputFile:
        assert self._file is not None, "open_next comes before writing"
        return self._file

    def _try_to_open(self, name: Name) -> OutputFile | None:
        """Open the file of this revision; None if it is taken or already too large."""
        rules, relative = self._rules, name.with_revision(self._revision)
        path = os.path.join(rules.work_dir, relative)
        if rules.moves and os.path.exists(os.path.join(rules.output_dir, relative)):
            return None
        try:
            file = OutputFile.open(
                path, exclusive=rules.never_appends, shared=not rules.moves, gzip_level=rules.gzip_level
            )
        except FileExistsError:
            following = os.path.join(rules.work_dir, name.with_revision(self._revision + 1))
            if name.is_gzip and not os.path.exists(following):
                repair(path)  # the last file may have been left by a process that was killed
            return None
        if 0 < rules.rotate_size < file.size:
            file.close()
            return None
        return file
