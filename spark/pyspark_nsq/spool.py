"""The spool of one query: received and finished messages, until Spark has committed them.

nsqd forgets a finished message, and Spark may ask for a batch again; until it is committed, the spool is the only copy.

    <spoolDir>/<stream>/          one query (one checkpoint)
        cleaned                   batches up to this number are deleted
        suspects/                 ids that may be delivered again (`suspects`)
        orphans/                  files with chunks that belong to no batch yet, from the offset in their names on
        <seq>/<part>/             one task of one batch
            <attempt>.spool       messages received by one attempt (`spool_file`)
            SEALED                the byte ranges of files that are the partition; never changes

Invariants:

- A partition is sealed once: SEALED is created atomically, and only if it does not exist. Every attempt, before and
  after, returns exactly the rows that it names.
- An attempt finishes (FIN) a message only when it is on disk in a file that still exists.
- Cleaning deletes only messages that SEALED names. An attempt that Spark believed dead may have spooled and finished
  more; these messages have no other copy. They become orphans, and a later batch contains them.
- Cleaning reads no message: a file that is longer than SEALED says is moved to the orphans as it is. The task that
  reads it records its ids as suspects. Until then tasks find them in the file.
"""

import contextlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from pyspark_nsq.rows import Origin, origin_of
from pyspark_nsq.spool_file import (
    SpoolError,
    SpoolFile,
    chunks,
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
    """`rows` messages from offset `start` of a file on. `file` is relative to the stream's folder.

    Up to offset `size`, the file has no other messages.
    """

    file: str
    size: int
    rows: int
    start: int = 0


@dataclass(frozen=True, slots=True)
class Orphan:
    """The messages of a file from offset `start` up to offset `size` that belong to no batch yet."""

    file: str
    start: int
    size: int


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

    def orphans(self) -> list[Orphan]:
        """Messages that belong to no batch yet, as far as the names and sizes of files tell."""
        found = self._orphans()
        if not found:
            return []
        partitions = [partition for seq in self.batches() for partition in self.partitions(seq)]
        taken = {piece.file for partition in partitions for piece in partition.sealed() or ()}
        return [each for each in found if each.file not in taken]

    def _orphans(self) -> list[Orphan]:
        folder = self.folder / _ORPHANS
        files = sorted(each for each in folder.iterdir() if each.suffix == _SPOOL) if folder.is_dir() else []
        found = (Orphan(str(each.relative_to(self.folder)), _start(each.name), _size(each)) for each in files)
        return [each for each in found if each.size > each.start]

    def read_orphan(self, orphan: Orphan) -> Iterator[pa.RecordBatch]:
        """Yield its intact chunks."""
        return (chunk.batch for chunk in chunks(self.folder / orphan.file, orphan.size, orphan.start))

    def count_orphans(self) -> int:
        """The number of messages that belong to no batch yet."""
        return sum(batch.num_rows for each in self.orphans() for batch in self.read_orphan(each))

    def seal_orphan(self, partition: "Partition", orphan: Orphan) -> list[Piece]:
        """Seal a partition with the messages of an orphan, unless it is sealed already; returns its content."""
        sealed = partition.sealed()
        if sealed is not None:
            return sealed
        partition.create()
        batches = list(self.read_orphan(orphan))
        for origin, ids in _ids(batches).items():
            self.suspects.add(origin, ids, f"orphan {orphan.file}")
        rows = sum(each.num_rows for each in batches)
        return partition.seal([Piece(orphan.file, orphan.size, rows, orphan.start)])

    def suspected(self, origin: Origin) -> set[str]:
        """The ids that `origin` may deliver again: the recorded ones, and those of orphans."""
        ids = self.suspects.of(origin)
        for each in self._orphans():
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile, with its batch: the ids are recorded
                ids |= _ids(self.read_orphan(each)).get(origin, set())
        return ids

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
                partition.clean()
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
            write_and_sync(temporary, json.dumps([asdict(each) for each in pieces]).encode())
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
                for chunk in chunks(self._stream_folder / piece.file, piece.size, piece.start):
                    rows += chunk.batch.num_rows
                    yield chunk.batch
            if rows != piece.rows:
                raise SpoolError(
                    f"spoolDir: {self._stream_folder / piece.file} is damaged: {rows} rows of {piece.rows} are left"
                )

    def clean(self) -> None:
        """Delete the files of which SEALED names all bytes, and move the others to the orphans."""
        sealed = self.sealed()
        # A committed batch is sealed; the folder of a task that never ran has no files.
        named = {self._stream_folder / each.file: each.size for each in sealed or ()}
        for file, after in (dict.fromkeys(self.files(), 0) | named).items():
            if _size(file) > after:
                self._make_orphan(file, after)
            else:
                file.unlink(missing_ok=True)

    def _make_orphan(self, file: Path, after: int) -> None:
        # An attempt that still writes the file finds it gone, and then finishes no more messages.
        folder = self._stream_folder / _ORPHANS
        os.replace(file, folder / f"{file.name.partition('.')[0]}.{after}{_SPOOL}")
        sync_folder(folder)


def ids_in(folder: Path, pieces: list[Piece]) -> dict[Origin, set[str]]:
    """The ids of all messages in these pieces."""
    return _ids(chunk.batch for piece in pieces for chunk in chunks(folder / piece.file, piece.size))


def _ids(batches: Iterable[pa.RecordBatch]) -> dict[Origin, set[str]]:
    found: dict[Origin, set[str]] = {}
    for batch in batches:
        found.setdefault(origin_of(batch), set()).update(batch.column("id").to_pylist())
    return found


def _start(name: str) -> int:
    """The offset where the messages of an orphan begin, by the name of its file."""
    _, start, *rest = name.split(".")
    return int(start) if rest else 0


def _size(file: Path) -> int:
    """The file's size; 0 if it is gone."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


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
