"""The data source with two additions: reading tasks, and the driver when it publishes staged files, can be killed at
a point; and tasks record the rows that they yield.

Two options control this: `diary`, a folder, and `dieAt`, a point and a number of kills. A point is one of `POINTS`,
`YIELDED`, or of ``staging.POINTS`` for writing. Without `diary` the data source is unchanged.
"""

import hashlib
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_nsq import drain, staging
from pyspark_nsq.sink import NsqStreamWriter
from pyspark_nsq.source import LogPartition, NsqDataSource, NsqPartition, NsqStreamReader, read, writing
from tests.spark.crash.works import Death, kill_the_jvm

YIELDING = "yielding"
YIELDED = "yielded"
POINTS = (*drain.POINTS, YIELDING)
_OF_CHUNKS = (drain.BEFORE_SPOOL, drain.SPOOLED, drain.FINISHED)
_OF_COMMANDS = (staging.SENT, staging.NOTED)


class DyingDataSource(NsqDataSource):
    def streamReader(self, schema: StructType) -> NsqStreamReader:  # noqa: N802 - Spark's name
        if "diary" not in self.options:
            return super().streamReader(schema)
        return DyingReader(_plain(self.options), schema, Path(self.options["diary"]), *_told(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> NsqStreamWriter:  # noqa: N802
        point, most = _told(self.options)
        turn = 3 if point in _OF_COMMANDS else 1
        death = Death(Path(self.options["diary"]) / "deaths", most, point, turn, kill=kill_the_jvm)
        return NsqStreamWriter(writing(_plain(self.options), schema, overwrite), death.at)


class DyingReader(NsqStreamReader):
    """Kills a task of each partition once at most; in every second batch, at the second chunk."""

    def __init__(self, options: dict[str, str], schema: StructType, diary: Path, point: str, most: int) -> None:
        super().__init__(options, schema)
        self._diary = diary
        self._point = point
        self._most = most

    def read(self, partition: NsqPartition | LogPartition) -> Iterator[pa.RecordBatch]:
        turn = 1
        if isinstance(partition, LogPartition):
            name = f"{partition.work.topic}.{partition.work.nsqd}.{partition.work.begin}"
        else:
            name = f"{partition.seq}.{partition.part}"
            turn += partition.seq % 2 if self._point in _OF_CHUNKS else 0
        death = Death(self._diary / "deaths", self._most, self._point, turn, name)
        yields = self._diary / "yields" / name
        yields.mkdir(parents=True, exist_ok=True)
        with open(yields / uuid.uuid4().hex, "ab", buffering=0) as diary:
            for number, batch in enumerate(read(partition, self._options, self._names, death.at)):
                # The part of a log that a task reads may be one batch.
                if number or isinstance(partition, LogPartition):
                    death.at(YIELDING)
                diary.write(hashlib.sha256(batch.serialize()).hexdigest().encode() + b"\n")
                yield batch
            death.at(YIELDED)


def _plain(options: Mapping[str, str]) -> dict[str, str]:
    """The options without the two additions."""
    return {name: value for name, value in options.items() if name not in ("diary", "dieat")}


def _told(options: Mapping[str, str]) -> tuple[str, int]:
    """The point and the number of kills."""
    point, _, most = options.get("dieat", "").partition(":")
    return point, int(most or 0)
