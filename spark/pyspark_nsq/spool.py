"""The spool of one query: received and finished messages, until Spark has committed them.

nsqd forgets a finished message, and Spark may ask for a batch again; until it is committed, the spool is the only copy.

    <spoolDir>/<stream>/          one query (one checkpoint)
        cleaned                   batches up to this number are deleted
        suspects/                 ids that may be delivered again (`suspects`)
        orphans/                  chunks that belong to no batch yet
        <seq>/<part>/             one task of one batch
            <attempt>.spool       messages received by one attempt (`spool_file`)
            SEALED                the byte ranges of files that are the partition; never changes

Invariants:

- A partition is sealed once: SEALED is created atomically, and only if it does not exist. Every attempt, before and
  after, returns exactly the rows that it names.
- An attempt finishes (FIN) a message only when it is on disk in a file that still exists.
- Cleaning deletes only messages that SEALED names. An attempt that Spark believed dead may have spooled and finished
  more; these messages have no other copy. They become orphans, and a later batch contains them.
"""

import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from pyspark_nsq.rows import Origin, origin_of
from pyspark_nsq.spool_file import (
    SpoolError,
    SpoolFile,
    chunks,
    encode,
    spool_errors,
    sync_folder,
    write_and_sync,
    write_atomically,
)
from pyspark_nsq.suspects import Suspects

_SEALED: Final = "SEALED"
_CLEANED: Final = "cleaned"
_ORPHANS: Final = "orphans"
_SPOOL: Final = ".spool"

# Tolerated difference between the clocks of nsqd and of the spool's disk, in seconds.
_MAX_CLOCK_SKEW: Final = 5


@dataclass(frozen=True, slots=True)
class Piece:
    """The first `size` bytes of a file, with `rows` messages. `file` is relative to the stream's folder."""

    file: str
    size: int
    rows: int


class Spool:
    """One stream's folder."""

    def __init__(self, root: Path | str, stream: str) -> None:
        self.folder = Path(root) / stream
        self.suspects = Suspects(self.folder / "suspects")

    def create(self) -> None:
        """Create the folder and check that it is writable. Raises ``SpoolError``."""
        root = self.folder.parent
        if not root.is_dir():
            raise SpoolError(
                f"spoolDir: there is no folder {root}. Create or mount it on the driver and every executor."
            )
        with spool_errors(self.folder):
            for each in (self.folder, self.folder / "suspects", self.folder / _ORPHANS):
                each.mkdir(exist_ok=True)
            sync_folder(root)
        write_atomically(self.folder / "trial", bytes(4096))

    def require(self) -> None:
        """Raise ``SpoolError`` if the stream's folder does not exist."""
        if not (self.folder / _ORPHANS).is_dir():
            raise SpoolError(
                f"spoolDir: there is no {self.folder}. Either it was removed and its batches are lost "
                "(failOnDataLoss=false continues without them), or this machine does not mount the driver's folder, "
                "which must be shared."
            )

    @property
    def cleaned(self) -> int:
        """Batches up to this number are deleted."""
        try:
            return int((self.folder / _CLEANED).read_text())
        except FileNotFoundError:
            return -1

    def partition(self, seq: int, part: int) -> "Partition":
        return Partition(self.folder, seq, part)

    def batches(self) -> list[int]:
        """The numbers of all batches in the spool."""
        if not self.folder.is_dir():
            return []
        return sorted(int(each.name) for each in self.folder.iterdir() if each.name.isdigit())

    def partitions(self, seq: int) -> list["Partition"]:
        folder = self.folder / str(seq)
        return [self.partition(seq, int(name)) for name in sorted(os.listdir(folder), key=int)]

    def orphans(self) -> list[Piece]:
        """Messages that belong to no batch yet."""
        folder = self.folder / _ORPHANS
        files = sorted(each for each in folder.iterdir() if each.suffix == _SPOOL) if folder.is_dir() else []
        found = [piece for piece in (_whole(self.folder, each) for each in files) if piece.rows]
        if not found:
            return []
        partitions = [partition for seq in self.batches() for partition in self.partitions(seq)]
        taken = {piece.file for partition in partitions for piece in partition.sealed() or ()}
        return [piece for piece in found if piece.file not in taken]

    def suspect_all_before_restart(self, origin: Origin, started: int) -> None:
        """Record all messages that were spooled before `started`, the start time of their nsqd, as suspects.

        If nsqd was killed before that start, it delivers messages again that were finished after its last checkpoint.
        Only the first task that sees a start time records it. `started` is in whole seconds, so two starts within one
        second count as one.
        """
        occasion = f"started {started}"
        if not self.suspects.has(origin, occasion):
            before = [file for file in self.folder.glob(f"*/*/*{_SPOOL}") if _mtime(file) < started + _MAX_CLOCK_SKEW]
            here = [file for file in before if _origin(file) == origin]
            ids = _ids(chunk.batch for file in here for chunk in chunks(file)).get(origin, set())
            self.suspects.add(origin, ids, occasion)

    def clean(self, last: int, age: float = 0.0) -> int:
        """Delete committed batches up to number `last`, except those sealed in the last `age` seconds.

        Returns the number of the last deleted batch. May be interrupted and repeated.
        """
        young = time.time() - age
        due: list[int] = []
        for seq in self.batches():
            if seq > last or any(map(young.__lt__, map(_mtime, (self.folder / str(seq)).glob(f"*/{_SEALED}")))):
                last = min(last, seq - 1)
                break
            due.append(seq)
        if not due:
            return last
        write_atomically(self.folder / _CLEANED, str(last).encode())
        for seq in due:
            for partition in self.partitions(seq):
                partition.clean(self.suspects)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.folder / str(seq))
        return last


class Partition:
    """The folder of one task, shared by all its attempts."""

    def __init__(self, stream_folder: Path, seq: int, part: int) -> None:
        self._stream_folder = stream_folder
        self.folder = stream_folder / str(seq) / str(part)
        self._seal = self.folder / _SEALED

    def create(self) -> None:
        with spool_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self.folder.parent)
            sync_folder(self._stream_folder)

    def new_file(self) -> SpoolFile:
        return SpoolFile(self.folder / f"{uuid.uuid4().hex}{_SPOOL}")

    def files(self) -> list[Path]:
        return sorted(each for each in self.folder.iterdir() if each.suffix == _SPOOL)

    def pieces(self) -> list[Piece]:
        """The intact chunks of all attempts so far."""
        return [piece for piece in map(self._piece, self.files()) if piece.rows]

    def _piece(self, file: Path) -> Piece:
        return _whole(self._stream_folder, file)

    @property
    def is_sealed(self) -> bool:
        return os.path.exists(self._seal)

    def sealed(self) -> list[Piece] | None:
        """The content of the partition; None if it is not sealed yet."""
        try:
            return [Piece(**each) for each in json.loads(self._seal.read_bytes())]
        except FileNotFoundError:
            return None

    def seal(self, pieces: list[Piece]) -> list[Piece]:
        """Seal the partition with `pieces`, unless it is sealed already; returns its content."""
        temporary = self.folder / f"{uuid.uuid4().hex}.tmp"
        with spool_errors(self.folder):
            content = [{"file": each.file, "size": each.size, "rows": each.rows} for each in pieces]
            write_and_sync(temporary, json.dumps(content).encode())
            with contextlib.suppress(FileExistsError):
                os.link(temporary, self._seal)
            temporary.unlink()
            sync_folder(self.folder)
        sealed = self.sealed()
        assert sealed is not None, "SEALED existed or was created above"
        return sealed

    def read(self, pieces: list[Piece]) -> Iterator[pa.RecordBatch]:
        """Yield the rows, chunk by chunk. Raises ``SpoolError`` if they are no longer in the spool."""
        for piece in pieces:
            rows = 0
            with spool_errors(self._stream_folder / piece.file):
                for chunk in chunks(self._stream_folder / piece.file, piece.size):
                    rows += chunk.batch.num_rows
                    yield chunk.batch
            if rows != piece.rows:
                raise SpoolError(
                    f"spoolDir: {self._stream_folder / piece.file} is damaged: {rows} rows of {piece.rows} are left"
                )

    def clean(self, suspects: Suspects) -> None:
        """Delete the messages that SEALED names, and make the others orphans."""
        sealed = self.sealed()
        # A committed batch is sealed; the folder of a task that never ran has no files.
        named = {each.file: each.size for each in sealed or ()}
        for file in self.files():
            name = str(file.relative_to(self._stream_folder))
            self._save_orphans(file, named.pop(name, 0), suspects)
            file.unlink(missing_ok=True)
        for name in named:
            (self._stream_folder / name).unlink(missing_ok=True)

    def _save_orphans(self, file: Path, after: int, suspects: Suspects) -> None:
        tail = [chunk.batch for chunk in chunks(file) if chunk.end > after]
        if not tail:
            return
        for origin, ids in _ids(tail).items():
            suspects.add(origin, ids)
        # The name is always the same: cleaning may be interrupted before the file is deleted, and repeated.
        write_atomically(self._stream_folder / _ORPHANS / file.name, b"".join(map(encode, tail)))


def ids_in(folder: Path, pieces: list[Piece]) -> dict[Origin, set[str]]:
    """The ids of all messages in these pieces."""
    return _ids(chunk.batch for piece in pieces for chunk in chunks(folder / piece.file, piece.size))


def _ids(batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> dict[Origin, set[str]]:
    found: dict[Origin, set[str]] = {}
    for batch in batches:
        found.setdefault(origin_of(batch), set()).update(batch.column("id").to_pylist())
    return found


def _mtime(file: Path) -> float:
    """The file's mtime; 0 if it is gone."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _origin(file: Path) -> Origin | None:
    """The origin of the messages in a task's file, which all come from one nsqd."""
    try:
        return next((origin_of(chunk.batch) for chunk in chunks(file)), None)
    except FileNotFoundError:
        return None


def _whole(stream_folder: Path, file: Path) -> Piece:
    size = rows = 0
    for chunk in chunks(file):
        size, rows = chunk.end, rows + chunk.batch.num_rows
    return Piece(str(file.relative_to(stream_folder)), size, rows)
