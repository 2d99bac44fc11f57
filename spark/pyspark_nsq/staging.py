"""``publishMode=staged``: tasks write what is to be published into files, and the driver publishes these, once.

    <stagingDir>/<job>/          a streaming query, by the id in its checkpoint, or one batch write
        published                batches up to this number are
        <batch>/                 a micro-batch; a batch write has only 0
            <uuid>.spool         what a task wants published: commands for nsqd, in order (`spool_file`)
            ledger               which of these files are the batch, and how far each has come

Invariants:

- Nothing is published before the ledger names the files, and the ledger names them once: a batch that is run again goes
  on with those it has, whatever its tasks come up with the second time.
- A command is published when nsqd has said so, and that is in the ledger, on the disk, before the next one is sent. A
  crash in between leaves one command of a file in doubt, and that one is published again.
- A file goes when its batch is published, or aborted before its ledger was begun.
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
from pyspark_nsq.publisher import CannotPublish, commands, connect
from pyspark_nsq.spool_file import SpoolError, SpoolFile, chunks, sync_folder, write_whole

log = logging.getLogger(__name__)

_LEDGER: Final = "ledger"
_PUBLISHED: Final = "published"
_COMMANDS: Final = pa.schema([("command", pa.binary())])

BEGUN: Final = "begun"
SENT: Final = "sent"
NOTED: Final = "noted"
COMPLETE: Final = "complete"
POINTS: Final = (BEGUN, SENT, NOTED, COMPLETE)
"""Where publishing may be interrupted, in order; `SENT` and `NOTED` for every command."""


class StagingError(Exception):
    """The folder cannot do its duty; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What a task has staged: so many commands in a file, which counts up to byte `size`."""

    name: str
    size: int
    commands: int


def nowhere(_: str) -> None:
    """Nobody wants to know how far publishing is."""


def folder_of(options: WriteOptions) -> Path:
    return Path(options.staging_dir) if options.staging_dir else Path(options.staging_parent) / "staging"


def prepare(options: WriteOptions) -> None:
    """Find out at once whether one can write there. Raises ``StagingError``."""
    folder = folder_of(options)
    if not folder.parent.is_dir() or (options.staging_dir and not folder.is_dir()):
        missing = folder if options.staging_dir else folder.parent
        raise StagingError(
            f"stagingDir: there is no folder {missing}. Make it, or mount it, on the driver and every executor."
        )
    with _said_plainly(folder):
        folder.mkdir(exist_ok=True)
        write_whole(folder / "trial", bytes(4096))


class StagedBatch:
    """One batch of one job, as its tasks and the driver see it."""

    def __init__(self, root: Path, job: str, batch: int) -> None:
        self.folder = root / job / str(batch)
        self._batch = batch

    @property
    def is_decided(self) -> bool:
        """It is published, or what is to be published is in its ledger; nothing needs to be staged for it."""
        return self.is_published or (self.folder / _LEDGER).exists()

    @property
    def is_published(self) -> bool:
        try:
            return self._batch <= int((self.folder.parent / _PUBLISHED).read_text())
        except FileNotFoundError:
            return False

    def stage(self, batches: Iterable[pa.RecordBatch], options: WriteOptions) -> Staged | None:
        """What a task does; None when there was nothing. Raises ``StagingError``, ``CannotPublish``."""
        full = (batch for batch in batches if batch.num_rows)
        first = next(full, None)
        if first is None:
            return None
        with _said_plainly(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self.folder.parent)
            file = SpoolFile(self.folder / f"{uuid.uuid4().hex}.spool")
            try:
                for batch in itertools.chain([first], full):
                    those = pa.array(commands(batch, options), pa.binary())
                    file.append(pa.RecordBatch.from_arrays([those], schema=_COMMANDS))
            except BaseException:
                file.path.unlink(missing_ok=True)
                raise
            finally:
                file.close()
        return Staged(file.path.name, file.size, file.rows)

    def publish(self, files: Sequence[Staged], options: WriteOptions, at: Callable[[str], None] = nowhere) -> None:
        """Publish these files, or go on where an earlier attempt was, with its files. Raises ``StagingError``,
        ``CannotPublish``."""
        with _said_plainly(self.folder):
            if not self.is_published and (files or self.is_decided):
                with Ledger(self.folder / _LEDGER, files) as ledger:
                    at(BEGUN)
                    for turn in range(len(ledger.files)):
                        self._publish(turn, ledger, options, at)
                at(COMPLETE)
                write_whole(self.folder.parent / _PUBLISHED, str(self._batch).encode())
            shutil.rmtree(self.folder, ignore_errors=True)

    def discard(self, files: Iterable[Staged]) -> None:
        """The batch is aborted: these files go, unless some of it may be published already."""
        if not self.is_decided:
            for each in files:
                (self.folder / each.name).unlink(missing_ok=True)

    def _publish(self, turn: int, ledger: "Ledger", options: WriteOptions, at: Callable[[str], None]) -> None:
        file, lost = ledger.files[turn], 0
        while ledger.done[turn] < file.commands:
            try:
                with connect(options, turn + lost) as connection:
                    for command in itertools.islice(self._commands(file), ledger.done[turn], None):
                        connection.publish(command, 1)
                        at(SENT)
                        ledger.note(turn)
                        at(NOTED)
            except NsqdLost as error:
                lost += 1
                if lost > len(options.nsqd_tcp_addresses):
                    raise CannotPublish(
                        f"{error}. What was published until then is in the ledger in {self.folder}; a stream that is "
                        "started again goes on behind it"
                    ) from None
                log.warning("publishing again what an nsqd may have: %s", error)

    def _commands(self, file: Staged) -> Iterator[bytes]:
        path, found = self.folder / file.name, 0
        for chunk in chunks(path, file.size):
            yield from chunk.batch.column("command").to_pylist()
            found += chunk.batch.num_rows
        if found != file.commands:
            raise StagingError(f"stagingDir: {path} is damaged: {found} commands of {file.commands} are left")


class Ledger:
    """The files of a batch, and how many commands of each are published."""

    def __init__(self, path: Path, files: Sequence[Staged]) -> None:
        """Begun with `files`, if there is none yet."""
        if not path.exists():
            write_whole(path, json.dumps([[each.name, each.size, each.commands] for each in files]).encode() + b"\n")
        whole = path.read_bytes()
        # A crash may have cut the last line.
        whole = whole[: whole.rindex(b"\n") + 1]
        head, *lines = whole.splitlines()
        self.files = [Staged(*each) for each in json.loads(head)]
        self.done = [0] * len(self.files)
        for line in lines:
            self.done[int(line)] += 1
        self._file = os.open(path, os.O_WRONLY)
        os.ftruncate(self._file, len(whole))
        os.lseek(self._file, 0, os.SEEK_END)

    def note(self, turn: int) -> None:
        """The next command of a file is published; returns when that is on the disk."""
        os.write(self._file, b"%d\n" % turn)
        os.fdatasync(self._file)
        self.done[turn] += 1

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


@contextmanager
def _said_plainly(folder: Path) -> Iterator[None]:
    try:
        yield
    except (SpoolError, OSError) as error:
        cause = error.__cause__ if isinstance(error, SpoolError) else error
        raise StagingError(
            f"stagingDir: {getattr(cause, 'strerror', None) or error} ({folder}). Put the folder right, and run it "
            "again: what was published before is in the ledger there."
        ) from error
