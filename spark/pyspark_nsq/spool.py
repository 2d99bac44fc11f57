"""The spool of one query: what was received and finished, until Spark has committed it.

nsqd forgets a message once it is finished, and Spark may ask for a batch again; in between, the spool is the only copy.

    <spoolDir>/<stream>/          one query (one checkpoint)
        cleaned                   batches up to this number are gone
        suspects/                 ids that may come again (`suspects`)
        orphans/                  chunks that belong to no batch yet
        <seq>/<part>/             one task of one batch
            <attempt>.spool       what one attempt received (`spool_file`)
            SEALED                which bytes of which files the partition is, for ever

Invariants:

- A partition is sealed once: SEALED appears whole, and only if it was not there. Every attempt, before and after, gives
  exactly the rows it names.
- An attempt finishes (FIN) only what is on the disk in a file that is still there.
- Cleaning deletes only what SEALED names. What an attempt spooled behind it, having been thought dead, was finished and
  is nowhere else: it becomes an orphan, and a later batch has it.
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
    said_plainly,
    sync_folder,
    write_new,
    write_whole,
)
from pyspark_nsq.suspects import Suspects

_SEALED: Final = "SEALED"
_CLEANED: Final = "cleaned"
_ORPHANS: Final = "orphans"
_SPOOL: Final = ".spool"

# Seconds between the clocks of nsqd and of the spool's disk that do not matter.
_CLOCKS_APART: Final = 5


@dataclass(frozen=True, slots=True)
class Piece:
    """So many bytes from the beginning of a file, named from the stream's folder, and how many rows these are."""

    file: str
    size: int
    rows: int


class Spool:
    """One stream's folder."""

    def __init__(self, root: Path | str, stream: str) -> None:
        self.folder = Path(root) / stream
        self.suspects = Suspects(self.folder / "suspects")

    def create(self) -> None:
        """Makes the folder, and finds out at once whether one can write there. Raises ``SpoolError``."""
        root = self.folder.parent
        if not root.is_dir():
            raise SpoolError(
                f"spoolDir: there is no folder {root}. Make it, or mount it, on the driver and every executor."
            )
        with said_plainly(self.folder):
            for each in (self.folder, self.folder / "suspects", self.folder / _ORPHANS):
                each.mkdir(exist_ok=True)
            sync_folder(root)
        write_whole(self.folder / "trial", bytes(4096))

    def require(self) -> None:
        """Raises ``SpoolError`` where the stream's folder is not to be seen."""
        if not (self.folder / _ORPHANS).is_dir():
            raise SpoolError(
                f"spoolDir: there is no {self.folder}. Either it was removed, then its batches are lost "
                "(failOnDataLoss=false goes on without them), or this machine does not see the folder "
                "the driver uses: it must be shared."
            )

    @property
    def cleaned(self) -> int:
        """Batches up to this number are gone."""
        try:
            return int((self.folder / _CLEANED).read_text())
        except FileNotFoundError:
            return -1

    def partition(self, seq: int, part: int) -> "Partition":
        return Partition(self.folder, seq, part)

    def batches(self) -> list[int]:
        """The numbers of all batches that are there."""
        if not self.folder.is_dir():
            return []
        return sorted(int(each.name) for each in self.folder.iterdir() if each.name.isdigit())

    def partitions(self, seq: int) -> list["Partition"]:
        folder = self.folder / str(seq)
        return [self.partition(seq, int(name)) for name in sorted(os.listdir(folder), key=int)]

    def orphans(self) -> list[Piece]:
        """What belongs to no batch yet."""
        folder = self.folder / _ORPHANS
        files = sorted(each for each in folder.iterdir() if each.suffix == _SPOOL) if folder.is_dir() else []
        found = [piece for piece in (_whole(self.folder, each) for each in files) if piece.rows]
        if not found:
            return []
        partitions = [partition for seq in self.batches() for partition in self.partitions(seq)]
        taken = {piece.file for partition in partitions for piece in partition.sealed() or ()}
        return [piece for piece in found if piece.file not in taken]

    def suspect_from_before(self, origin: Origin, started: int) -> None:
        """That nsqd was started at this time of its clock. If it was killed before, it gives out again what was
        finished since its last checkpoint: whatever was spooled before may come again. What is spooled later is not
        looked at: the first to know of the start has said what there was. `started` is in whole seconds, so one that
        was started twice within a second is taken for one."""
        occasion = f"started {started}"
        if not self.suspects.has(origin, occasion):
            before = [file for file in self.folder.glob(f"*/*/*{_SPOOL}") if _written(file) < started + _CLOCKS_APART]
            here = [file for file in before if _origin(file) == origin]
            ids = _ids(chunk.batch for file in here for chunk in chunks(file)).get(origin, set())
            self.suspects.add(origin, ids, occasion)

    def clean(self, last: int, age: float = 0.0) -> int:
        """Delete batches up to number `last`, which are known to be committed, but none that was sealed in the last
        `age` seconds; up to which that is. May be repeated, and interrupted."""
        young = time.time() - age
        due: list[int] = []
        for seq in self.batches():
            if seq > last or any(map(young.__lt__, map(_written, (self.folder / str(seq)).glob(f"*/{_SEALED}")))):
                last = min(last, seq - 1)
                break
            due.append(seq)
        if not due:
            return last
        write_whole(self.folder / _CLEANED, str(last).encode())
        for seq in due:
            for partition in self.partitions(seq):
                partition.clean(self.suspects)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self.folder / str(seq))
        return last


class Partition:
    """One task's folder, as all its attempts see it."""

    def __init__(self, stream_folder: Path, seq: int, part: int) -> None:
        self._stream_folder = stream_folder
        self.folder = stream_folder / str(seq) / str(part)
        self._seal = self.folder / _SEALED

    def create(self) -> None:
        with said_plainly(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self.folder.parent)
            sync_folder(self._stream_folder)

    def new_file(self) -> SpoolFile:
        return SpoolFile(self.folder / f"{uuid.uuid4().hex}{_SPOOL}")

    def files(self) -> list[Path]:
        return sorted(each for each in self.folder.iterdir() if each.suffix == _SPOOL)

    def pieces(self) -> list[Piece]:
        """The whole chunks of every attempt until now."""
        return [piece for piece in map(self._piece, self.files()) if piece.rows]

    def _piece(self, file: Path) -> Piece:
        return _whole(self._stream_folder, file)

    @property
    def is_sealed(self) -> bool:
        return os.path.exists(self._seal)

    def sealed(self) -> list[Piece] | None:
        """What the partition is; None as long as that is open."""
        try:
            return [Piece(**each) for each in json.loads(self._seal.read_bytes())]
        except FileNotFoundError:
            return None

    def seal(self, pieces: list[Piece]) -> list[Piece]:
        """Say what the partition is, unless another attempt has said so: its word counts."""
        temporary = self.folder / f"{uuid.uuid4().hex}.tmp"
        with said_plainly(self.folder):
            said = [{"file": each.file, "size": each.size, "rows": each.rows} for each in pieces]
            write_new(temporary, json.dumps(said).encode())
            with contextlib.suppress(FileExistsError):
                os.link(temporary, self._seal)
            temporary.unlink()
            sync_folder(self.folder)
        sealed = self.sealed()
        assert sealed is not None, "it was there, or was made"
        return sealed

    def read(self, pieces: list[Piece]) -> Iterator[pa.RecordBatch]:
        """The rows, chunk by chunk. Raises ``SpoolError`` when the spool no longer has them."""
        for piece in pieces:
            rows = 0
            with said_plainly(self._stream_folder / piece.file):
                for chunk in chunks(self._stream_folder / piece.file, piece.size):
                    rows += chunk.batch.num_rows
                    yield chunk.batch
            if rows != piece.rows:
                raise SpoolError(
                    f"spoolDir: {self._stream_folder / piece.file} is damaged: {rows} rows of {piece.rows} are left"
                )

    def clean(self, suspects: Suspects) -> None:
        """Delete what SEALED names; set aside what lies behind it."""
        sealed = self.sealed()
        # A committed batch is sealed; a task that never ran has nothing.
        named = {each.file: each.size for each in sealed or ()}
        for file in self.files():
            name = str(file.relative_to(self._stream_folder))
            self._set_aside(file, named.pop(name, 0), suspects)
            file.unlink(missing_ok=True)
        for name in named:
            (self._stream_folder / name).unlink(missing_ok=True)

    def _set_aside(self, file: Path, after: int, suspects: Suspects) -> None:
        tail = [chunk.batch for chunk in chunks(file) if chunk.end > after]
        if not tail:
            return
        for origin, ids in _ids(tail).items():
            suspects.add(origin, ids)
        # The same name whenever it is done: cleaning may have been interrupted between this and the deletion.
        write_whole(self._stream_folder / _ORPHANS / file.name, b"".join(map(encode, tail)))


def ids_in(folder: Path, pieces: list[Piece]) -> dict[Origin, set[str]]:
    """The ids of all messages in these pieces."""
    return _ids(chunk.batch for piece in pieces for chunk in chunks(folder / piece.file, piece.size))


def _ids(batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> dict[Origin, set[str]]:
    found: dict[Origin, set[str]] = {}
    for batch in batches:
        found.setdefault(origin_of(batch), set()).update(batch.column("id").to_pylist())
    return found


def _written(file: Path) -> float:
    """When it was written to; long ago if it is gone."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _origin(file: Path) -> Origin | None:
    """Of the messages in a file that a task wrote, which all come from one nsqd."""
    try:
        return next((origin_of(chunk.batch) for chunk in chunks(file)), None)
    except FileNotFoundError:
        return None


def _whole(stream_folder: Path, file: Path) -> Piece:
    size = rows = 0
    for chunk in chunks(file):
        size, rows = chunk.end, rows + chunk.batch.num_rows
    return Piece(str(file.relative_to(stream_folder)), size, rows)
