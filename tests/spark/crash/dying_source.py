"""The data source with two additions: its tasks kill themselves where they are told to, and note what they yield.

Told by two options, as everything is that a task hears of: `diary`, a folder, and `dieAt`, one of `POINTS` and how
often. Every partition is struck once at most; in every other batch it happens to the second chunk.
"""

import hashlib
import os
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_nsq import drain
from pyspark_nsq.option_table import STREAM
from pyspark_nsq.options import read_options
from pyspark_nsq.source import NsqDataSource, NsqPartition, NsqStreamReader, read

YIELDING = "yielding"
POINTS = (*drain.POINTS, YIELDING)
_OF_CHUNKS = (drain.BEFORE_SPOOL, drain.SPOOLED, drain.FINISHED)


class DyingDataSource(NsqDataSource):
    def streamReader(self, schema: StructType) -> NsqStreamReader:  # noqa: N802 - Spark's name
        own = {"diary": "", "dieat": ""}
        options = {name: value for name, value in self.options.items() if name not in own}
        own |= {name: self.options[name] for name in own if name in self.options}
        point, _, times = own["dieat"].partition(":")
        return DyingReader(options, schema.names, Path(own["diary"]), point, int(times or 0))


class DyingReader(NsqStreamReader):
    def __init__(self, options: dict[str, str], names: list[str], diary: Path, point: str, times: int) -> None:
        super().__init__(read_options(options, STREAM), names)
        self._diary = diary
        self._point = point
        self._times = times

    def read(self, partition: NsqPartition) -> Iterator[pa.RecordBatch]:
        death = _Death(self._diary / "deaths", self._point, self._times, partition.seq, partition.part)
        yields = self._diary / "yields" / death.whose
        yields.mkdir(parents=True, exist_ok=True)
        with open(yields / uuid.uuid4().hex, "ab", buffering=0) as diary:
            for number, batch in enumerate(read(partition, self._options, self._names, death.at)):
                if number:
                    death.at(YIELDING)
                diary.write(hashlib.sha256(batch.serialize()).hexdigest().encode() + b"\n")
                yield batch


@dataclass
class _Death:
    folder: Path
    point: str
    times: int
    seq: int
    part: int
    passed: int = field(default=0, init=False)

    @property
    def whose(self) -> str:
        return f"{self.seq}.{self.part}"

    def at(self, point: str) -> None:
        self.passed += point == self.point
        if self.passed != (1 + self.seq % 2 if self.point in _OF_CHUNKS else 1):
            return
        self.folder.mkdir(exist_ok=True)
        if len(os.listdir(self.folder)) >= self.times or (self.folder / self.whose).exists():
            return
        (self.folder / self.whose).touch()
        os.kill(os.getpid(), signal.SIGKILL)
