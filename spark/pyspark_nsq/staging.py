"""``publishMode=staged``: tasks write messages to files, and the driver publishes these files once.

    <stagingDir>/<job>/          a streaming query, by the id in its checkpoint, or one batch write
        published                batches up to this number are published
        <batch>/                 a micro-batch; a batch write has only 0
            <uuid>.spool         a task's messages: commands for nsqd, in order (`spool_file`)
            ledger               the files that belong to the batch, and how many commands of each are published

Invariants:

- The ledger lists the files before publishing starts, and the list never changes: a batch that is run again continues
  with the listed files and ignores new ones.
- After nsqd has confirmed a command, the ledger records it durably before the next command is sent. After a crash, at
  most one command of a file is in doubt, and it is published again.
- A file is deleted when its batch is published, or aborted before it has a ledger.
"""

import itertools
import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from pyspark_nsq.connection import NsqdLost
from pyspark_nsq.options import WriteOptions
from pyspark_nsq.publisher import CannotPublish, commands, connect, targets
from pyspark_nsq.spool_file import SpoolError, SpoolFile, chunks, sync_folder, write_atomically

log = logging.getLogger(__name__)

_LEDGER: Final = "ledger"
_PUBLISHED: Final = "published"
_COMMANDS: Final = pa.schema([("command", pa.binary())])

BEGUN: Final = "begun"
SENT: Final = "sent"
NOTED: Final = "noted"
COMPLETE: Final = "complete"
POINTS: Final = (BEGUN, SENT, NOTED, COMPLETE)
"""The points passed to `at`, in order; `SENT` and `NOTED` for every command."""


class StagingError(Exception):
    """The folder cannot be read or written; the text says what to do."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """The file that a task has staged: its commands are in the first `size` bytes."""

    name: str
    size: int
    commands: int


def ignore_point(_: str) -> None:
    """Ignore the points that publishing reaches."""


def folder_of(options: WriteOptions) -> Path:
    return Path(options.staging_dir) if options.staging_dir else Path(options.staging_parent) / "staging"


def prepare(options: WriteOptions) -> None:
    """Create the folder and check that it is writable. Raises ``StagingError``."""
    folder = folder_of(options)
    if not folder.parent.is_dir() or (options.staging_dir and not folder.is_dir()):
        missing = folder if options.staging_dir else folder.parent
        raise StagingError(
            f"stagingDir: there is no folder {missing}. Create or mount it on the driver and every executor."
        )
    with _staging_errors(folder):
        folder.mkdir(exist_ok=True)
        write_atomically(folder / "trial", bytes(4096))


class StagedBatch:
    """One batch of one job; used by its tasks and by the driver."""

    def __init__(self, root: Path, job: str, batch: int) -> None:
        self.folder = root / job / str(batch)
        self._batch = batch

    @property
    def is_decided(self) -> bool:
        """The batch is published or has a ledger: its tasks need not stage anything."""
        return self.is_published or (self.folder / _LEDGER).exists()

    @property
    def is_published(self) -> bool:
        try:
            return self._batch <= int((self.folder.parent / _PUBLISHED).read_text())
        except FileNotFoundError:
            return False

    def stage(self, batches: Iterable[pa.RecordBatch], options: WriteOptions) -> StagedFile | None:
        """Write a task's rows to a file; None if there are no rows. Raises ``StagingError`` or ``CannotPublish``."""
        full = (batch for batch in batches if batch.num_rows)
        first = next(full, None)
        if first is None:
            return None
        with _staging_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self.folder.parent)
            file = SpoolFile(self.folder / f"{uuid.uuid4().hex}.spool")
            try:
                for batch in itertools.chain([first], full):
                    encoded = pa.array(commands(batch, options), pa.binary())
                    file.append(pa.RecordBatch.from_arrays([encoded], schema=_COMMANDS))
            except BaseException:
                file.path.unlink(missing_ok=True)
                raise
            finally:
                file.close()
        return StagedFile(file.path.name, file.size, file.rows)

    def publish(
        self, files: Sequence[StagedFile], options: WriteOptions, at: Callable[[str], None] = ignore_point
    ) -> None:
        """Publish these files, or continue an earlier attempt with its files.

        Raises ``StagingError`` or ``CannotPublish``.
        """
        with _staging_errors(self.folder):
            if not self.is_published and (files or self.is_decided):
                with Ledger(self.folder / _LEDGER, files) as ledger:
                    at(BEGUN)
                    for index in range(len(ledger.files)):
                        self._publish(index, ledger, options, at)
                at(COMPLETE)
                write_atomically(self.folder.parent / _PUBLISHED, str(self._batch).encode())
            shutil.rmtree(self.folder, ignore_errors=True)

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Abort the batch: delete these files, unless publishing has started."""
        if not self.is_decided:
            for each in files:
                (self.folder / each.name).unlink(missing_ok=True)

    def _publish(self, index: int, ledger: "Ledger", options: WriteOptions, at: Callable[[str], None]) -> None:
        file, lost = ledger.files[index], 0
        while ledger.done[index] < file.commands:
            try:
                with connect(options, index + lost) as connection:
                    for command in itertools.islice(self._commands(file), ledger.done[index], None):
                        connection.publish(command, 1)
                        at(SENT)
                        ledger.record(index)
                        at(NOTED)
            except NsqdLost as error:
                lost += 1
                if lost > len(targets(options)):
                    raise CannotPublish(
                        f"{error}. Published messages are recorded in the ledger in {self.folder}; a stream that is "
                        "started again continues after them"
                    ) from None
                log.warning("publishing a command again that an nsqd may have executed: %s", error)

    def _commands(self, file: StagedFile) -> Iterator[bytes]:
        path, found = self.folder / file.name, 0
        for chunk in chunks(path, file.size):
            yield from chunk.batch.column("command").to_pylist()
            found += chunk.batch.num_rows
        if found != file.commands:
            raise StagingError(f"stagingDir: {path} is damaged: {found} commands of {file.commands} are left")


class Ledger:
    """The files of a batch, and the number of published commands of each."""

    def __init__(self, path: Path, files: Sequence[StagedFile]) -> None:
        """Open the ledger, or create it with `files`."""
        if not path.exists():
            write_atomically(
                path, json.dumps([[each.name, each.size, each.commands] for each in files]).encode() + b"\n"
            )
        whole = path.read_bytes()
        # A crash may have left an incomplete last line.
        whole = whole[: whole.rindex(b"\n") + 1]
        head, *lines = whole.splitlines()
        self.files = [StagedFile(*each) for each in json.loads(head)]
        self.done = [0] * len(self.files)
        for line in lines:
            self.done[int(line)] += 1
        self._file = os.open(path, os.O_WRONLY)
        os.ftruncate(self._file, len(whole))
        os.lseek(self._file, 0, os.SEEK_END)

    def record(self, index: int) -> None:
        """Record durably that the next command of file number `index` is published."""
        os.write(self._file, b"%d\n" % index)
        os.fdatasync(self._file)
        self.done[index] += 1

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


@contextmanager
def _staging_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except (SpoolError, OSError) as error:
        cause = error.__cause__ if isinstance(error, SpoolError) else error
        raise StagingError(
            f"stagingDir: {getattr(cause, 'strerror', None) or error} ({folder}). Repair the folder and run the job "
            "again: the ledger there records the published messages."
        ) from error
