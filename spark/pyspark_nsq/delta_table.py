"""A Delta table that has each message once, whatever dies while it is written, and whichever query writes it.

A batch is merged by nsqd, topic and id, so a message that the table has is not added again. Delta makes a batch visible
in one step, and works on object stores. The session needs Delta's jar and its two settings (docs/spark-jobs.md).
"""

import os
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self

from pyspark_nsq.options import OptionError
from pyspark_nsq.parquet_table import HOURLY

_VIEW: Final = "nsq_batch"
_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"


class DeltaTable:
    """As `ParquetTable`, for a path of Delta. `keys` are the columns with nsqd, topic and id."""

    def __init__(self, path: str, keys: Sequence[str]) -> None:
        place = path if "://" in path else os.path.abspath(path)
        self._name = f"delta.`{place}`"
        self._keys = (*keys, *HOURLY)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing is open."""

    def write(self, rows: Any, batch: int, writer: str | None = None) -> None:
        """Add the rows that the table does not have: for ``foreachBatch``. They have the columns `HOURLY`."""
        spark = rows.sparkSession
        hours = rows.select(*HOURLY).distinct().collect()
        columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in rows.schema.fields)
        partitions = ", ".join(HOURLY)
        spark.sql(f"CREATE TABLE IF NOT EXISTS {self._name} ({columns}) USING delta PARTITIONED BY ({partitions})")
        if not hours:
            return
        # Delta reads only these folders of the table.
        place = " OR ".join(f"(old.day = DATE'{day}' AND old.hour = '{hour}')" for day, hour in hours)
        same = " AND ".join(f"old.`{name}` = new.`{name}`" for name in self._keys)
        rows.dropDuplicates(list(self._keys)).createOrReplaceTempView(_VIEW)
        spark.sql(
            f"MERGE WITH SCHEMA EVOLUTION INTO {self._name} AS old USING {_VIEW} AS new ON ({place}) AND {same} "
            "WHEN NOT MATCHED THEN INSERT *"
        )

    def compact(self, spark: Any, before: datetime) -> int:
        """Rewrite small files of hours that ended before this time. Returns the number of these hours."""
        from pyspark.errors import AnalysisException

        day, hour = before.date(), before.hour
        ended = f"day < DATE'{day}' OR (day = DATE'{day}' AND hour < '{hour:02}')"
        try:
            done = spark.sql(f"OPTIMIZE {self._name} WHERE {ended}").first()
        except AnalysisException:  # no batch has created the table yet
            return 0
        return int(done["metrics"]["partitionsOptimized"])


def require_delta(spark: Any) -> None:
    """Raise ``OptionError`` if the session does not have Delta."""
    if _EXTENSION not in spark.conf.get("spark.sql.extensions", ""):
        raise OptionError(
            "--format delta needs Delta: give spark-submit its package and two settings, as docs/spark-jobs.md shows"
        )
