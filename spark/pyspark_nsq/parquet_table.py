"""A table of Parquet files that has each row once for any reader, whatever dies while the table is written.

    <path>/day=2026-11-26/hour=03/<batch>-<uuid>.parquet   the table
    <path>.state/state.json                                the last batch, and the renames that bring it into the table
    <path>.state/lock                                      held by the process that writes the table
    <path>.state/new-<uuid>/                               files of a batch, or of an hour, that are being written

A batch is written beside the table. When all its files are on disk, they are noted in `state.json`, and renamed into
the table. From then on, the batch belongs to the table: the renames are finished after a crash, and a batch that is
asked for again is skipped. What died earlier left nothing but a folder `new-...`, which is deleted. So no reader needs
to know which files count, as readers of Spark's own streaming tables need `_spark_metadata`.

To compact an hour, its rows are written to a new folder, which then changes places with the hour's folder in one step.

The table and its state are folders of one file system, which the driver and all executors share.
"""

import ctypes
import fcntl
import json
import math
import os
import shutil
import threading
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import pyarrow.parquet as pq

from pyspark_nsq.options import OptionError

HOURLY: Final = ("day", "hour")
"""The columns by which a table is partitioned: a date, and a string of two digits."""
FILE_BYTES: Final = 128 << 20
"""Size of the files of a compacted hour."""

_QUERY: Final = "sql.streaming.queryId"
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_libc: Final = ctypes.CDLL(None, use_errno=True)


def by_hour(rows: Any, column: str = "timestamp") -> Any:
    """Add the columns `HOURLY` of a time, in UTC whatever the session's time zone."""
    return rows.selectExpr(
        "*",
        f"date_from_unix_date(CAST(unix_seconds({column}) DIV 86400 AS INT)) AS day",
        f"lpad(CAST(unix_seconds({column}) DIV 3600 % 24 AS STRING), 2, '0') AS hour",
    )


class ParquetTable:
    """One query's table. Enter it to write: this takes the lock, and finishes what a crash has left."""

    def __init__(self, path: str) -> None:
        if "://" in path:
            raise OptionError(
                f"path must be a folder, on a disk that the driver and all executors share; it is {path!r}"
            )
        self.folder = Path(path).absolute()
        self._state_folder = self.folder.with_name(f"{self.folder.name}.state")
        self._state_file = self._state_folder / "state.json"
        self._state: dict[str, Any] = {"writer": None, "batch": -1, "moves": []}
        # The stream's thread adds files, while the main thread compacts.
        self._changing = threading.Lock()
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Raises ``OptionError`` if another process writes the table."""
        for folder in (self.folder, self._state_folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = open(self._state_folder / "lock", "ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise OptionError(f"path: another job writes {self.folder}; stop it, or choose another folder") from None
        if self._state_file.exists():
            self._state = json.loads(self._state_file.read_bytes())
            self._move()
        for left in self._state_folder.glob("new-*"):
            shutil.rmtree(left)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.close()

    def write(self, rows: Any, batch: int, writer: str | None = None) -> None:
        """Add the rows of a batch, which have the columns `HOURLY`, unless the table has it: for ``foreachBatch``.

        `writer` numbers the batches; by default it is the streaming query. Raises ``OptionError`` if another writer has
        written the table before.
        """
        context = rows.sparkSession.sparkContext
        writer = writer or context.getLocalProperty(_QUERY)
        if self._state["writer"] not in (None, writer):
            raise OptionError(
                f"path: {self.folder} was written by another query, whose checkpoint is not this one; messages would "
                "be there twice. Use that checkpoint, or another folder"
            )
        if batch <= self._state["batch"]:
            return
        new = self._new_folder()
        # One file for each task and hour.
        rows.coalesce(context.defaultParallelism).write.partitionBy(*HOURLY).parquet(f"file://{new}")
        files = _files(new)
        _sync(files)
        moves = [
            [
                str(file.relative_to(self._state_folder)),
                f"{file.parent.relative_to(new)}/{batch:06}-{uuid.uuid4().hex}.parquet",
            ]
            for file in files
        ]
        with self._changing:
            self._save({"writer": writer, "batch": batch, "moves": moves})
            self._move()
        shutil.rmtree(new)

    def compact(self, spark: Any, before: datetime) -> int:
        """Rewrite small files of hours that ended before this time. Returns the number of these hours.

        Raises ``OptionError`` if the file system cannot exchange two folders in one step.
        """
        hours = [hour for hour in sorted(self.folder.glob("day=*/hour=*")) if _end_of(hour) <= before]
        return sum(self._rewrite(spark, hour) for hour in hours)

    def _rewrite(self, spark: Any, hour: Path) -> bool:
        files = _files(hour)
        wanted = math.ceil(sum(file.stat().st_size for file in files) / FILE_BYTES)
        if len(files) <= wanted:
            return False
        new = self._new_folder()
        # The schemas differ if the job was given another one meanwhile.
        rows = spark.read.option("mergeSchema", "true").parquet(*(f"file://{file}" for file in files))
        rows.coalesce(wanted).write.parquet(f"file://{new}")
        made = _files(new)
        if _count(made) != _count(files):
            raise RuntimeError(f"{new} has {_count(made)} rows, and {hour} {_count(files)}; nothing was replaced")
        for other in [each for each in new.iterdir() if each not in made]:
            other.unlink()
        _sync(made)
        with self._changing:
            # A batch with late messages may have added a file, or is to be brought into the table by the next run.
            if self._state["moves"] or _files(hour) != files:
                return False
            _exchange(new, hour)
        shutil.rmtree(new)
        return True

    def _new_folder(self) -> Path:
        # A task of a driver that was killed may still write, so a name is used once.
        return self._state_folder / f"new-{uuid.uuid4().hex}"

    def _save(self, state: dict[str, Any]) -> None:
        new = self._state_file.with_suffix(".new")
        with open(new, "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._state_file)
        _sync_folder(self._state_folder)
        self._state = state

    def _move(self) -> None:
        """Rename the files of the last batch into the table, those that are not there yet."""
        if not self._state["moves"]:
            return
        targets = set()
        for source, target in self._state["moves"]:
            old, new = self._state_folder / source, self.folder / target
            new.parent.mkdir(parents=True, exist_ok=True)
            if not new.exists():
                os.rename(old, new)
            targets |= {new.parent, new.parent.parent}
        for folder in (*targets, self.folder):
            _sync_folder(folder)
        self._save(self._state | {"moves": []})


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("**/*.parquet"))


def _count(files: Iterable[Path]) -> int:
    return sum(pq.read_metadata(file).num_rows for file in files)


def _end_of(hour: Path) -> datetime:
    day = datetime.fromisoformat(hour.parent.name.removeprefix("day=")).replace(tzinfo=UTC)
    return day + timedelta(hours=int(hour.name.removeprefix("hour=")) + 1)


def _sync(files: Iterable[Path]) -> None:
    """Force the files and their names to disk: Spark does not."""
    for each in files:
        with open(each, "rb") as file:
            os.fsync(file.fileno())
    for folder in {each.parent for each in files}:
        _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    place = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def _exchange(one: Path, other: Path) -> None:
    """Give each folder the other's name, in one step."""
    if _libc.renameat2(_AT_FDCWD, bytes(one), _AT_FDCWD, bytes(other), _RENAME_EXCHANGE):
        error = os.strerror(ctypes.get_errno())
        raise OptionError(f"compacting: the file system of {other} cannot exchange two folders in one step ({error})")
