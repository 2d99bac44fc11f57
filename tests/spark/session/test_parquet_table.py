"""A table of Parquet files, written by a real Spark that dies at every step, and read by a reader that is not Spark."""

import fcntl
import functools
import os
import shutil
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_nsq.options import OptionError
from pyspark_nsq.parquet_table import ParquetTable, by_hour

pytestmark = pytest.mark.timeout(300)

LATE = datetime(2026, 11, 26, tzinfo=UTC)


class Killed(BaseException):
    """The process dies here: nothing catches this."""


class Steps:
    """Dies at the n-th call that changes something on disk; 0 for never."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dies_at = 0
        self.done = 0
        for module, name in ((os, "rename"), (os, "replace"), (os, "fsync"), (shutil, "rmtree")):
            monkeypatch.setattr(module, name, self._step(getattr(module, name)))
        monkeypatch.setattr("pyspark_nsq.parquet_table._exchange", self._step(_exchange()))

    def _step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            self.done += 1
            if self.done == self.dies_at:
                raise Killed
            return function(*arguments, **named)

        return step

    def survives(self, dies_at: int, action: Callable[[], None]) -> bool:
        self.done, self.dies_at = 0, dies_at
        try:
            action()
        except Killed:
            return False
        finally:
            self.dies_at = 0
        return True


def _exchange() -> Callable[..., Any]:
    from pyspark_nsq import parquet_table

    return parquet_table._exchange


@pytest.fixture
def rows(spark: SparkSession) -> Callable[[int], DataFrame]:
    """The rows of a batch: four, in two hours and two tasks."""

    def made(batch: int) -> DataFrame:
        times = spark.range(4 * batch, 4 * batch + 4, 1, 2)
        return by_hour(times.selectExpr("id", "timestamp_seconds(1764115200 + id % 2 * 3600) AS timestamp"))

    return made


def ids_in(folder: Path) -> Counter[int]:
    """What a reader sees that knows only the folder."""
    table = pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive").to_table()
    return Counter(table.column("id").to_pylist() if table.num_rows else ())


def write(folder: Path, frame: DataFrame, batch: int) -> None:
    with ParquetTable(str(folder)) as table:
        table.write(frame, batch, "test")


def test_a_batch_is_in_the_table_once_whatever_step_it_dies_at(rows, tmp_path, monkeypatch):
    steps = Steps(monkeypatch)
    survived = False
    dies_at = 0
    while not survived:
        dies_at += 1
        folder = tmp_path / f"table {dies_at}"
        write(folder, rows(0), 0)
        survived = steps.survives(dies_at, functools.partial(write, folder, rows(1), 1))
        seen = ids_in(folder)
        assert set(seen.values()) == {1}, dies_at
        assert seen.keys() >= {0, 1, 2, 3}, dies_at
        # Spark asks for a batch again if it died before its own commit.
        write(folder, rows(1), 1)
        assert ids_in(folder) == Counter(range(8)), dies_at
        assert not list(folder.with_name(f"{folder.name}.state").glob("new-*")), dies_at
    assert dies_at > 10


def test_an_hour_is_whole_whatever_step_its_compaction_dies_at(spark, rows, tmp_path, monkeypatch):
    steps = Steps(monkeypatch)

    def compact() -> None:
        with ParquetTable(str(folder)) as table:
            assert table.compact(spark, LATE) in (0, 1, 2)

    survived = False
    dies_at = 0
    while not survived:
        dies_at += 1
        folder = tmp_path / f"table{dies_at}"
        for batch in range(2):
            write(folder, rows(batch), batch)
        survived = steps.survives(dies_at, compact)
        assert ids_in(folder) == Counter(range(8)), dies_at
        compact()
        assert ids_in(folder) == Counter(range(8)), dies_at
        # One file for each of the two hours; a batch that is asked for again is not written again.
        assert len(list(folder.glob("day=2025-11-26/hour=0[01]/*.parquet"))) == 2
        write(folder, rows(1), 1)
        assert ids_in(folder) == Counter(range(8)), dies_at
    assert dies_at > 5


def test_an_hour_that_is_not_over_is_not_compacted(spark, rows, tmp_path):
    for batch in range(2):
        write(tmp_path / "table", rows(batch), batch)
    with ParquetTable(str(tmp_path / "table")) as table:
        assert table.compact(spark, datetime(2025, 11, 26, 0, 59, tzinfo=UTC)) == 0
        assert table.compact(spark, datetime(2025, 11, 26, 1, 0, tzinfo=UTC)) == 1
        assert table.compact(spark, datetime(2025, 11, 26, 1, 0, tzinfo=UTC)) == 0


def test_a_late_row_that_arrives_during_a_compaction_stays(spark, rows, tmp_path, monkeypatch):
    with ParquetTable(str(tmp_path / "table")) as table:
        for batch in range(2):
            table.write(rows(batch), batch, "test")
        rewritten = table._new_folder
        late = iter([2])

        def meanwhile() -> Path:
            for batch in late:
                table.write(rows(batch), batch, "test")
            return rewritten()

        monkeypatch.setattr(table, "_new_folder", meanwhile)
        assert table.compact(spark, LATE) == 1
        assert ids_in(tmp_path / "table") == Counter(range(12))
        assert table.compact(spark, LATE) == 1
    assert ids_in(tmp_path / "table") == Counter(range(12))


def test_a_table_has_one_writer(rows, tmp_path):
    with ParquetTable(str(tmp_path / "table")) as table:
        table.write(rows(0), 0, "one checkpoint")
        with pytest.raises(OptionError, match="another job writes"), ParquetTable(str(tmp_path / "table")):
            pass
        with pytest.raises(OptionError, match="was written by another query, whose checkpoint"):
            table.write(rows(1), 1, "another checkpoint")
    with open(tmp_path / "table.state" / "lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(OptionError, match="path must be a folder"):
        ParquetTable("s3://bucket/table")
