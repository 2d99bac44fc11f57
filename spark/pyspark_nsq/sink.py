"""Spark's side of writing.

Each task publishes its rows by itself. Nothing is left to commit, and nothing can be aborted: what nsqd has taken,
consumers have.
"""

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_nsq.options import OptionError, WriteOptions
from pyspark_nsq.publisher import BODY_COLUMNS, publish

_TYPES = {
    "body": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "defer_ms": ("int", "bigint"),
}


class NsqWriter(DataSourceArrowWriter):
    """``df.write.format("nsq")``."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(iterator, self._options)


class NsqStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("nsq")``."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(iterator, self._options)


def check_columns(schema: StructType, options: WriteOptions, overwrite: bool) -> None:
    """Raises ``OptionError`` for rows that cannot be messages."""
    if overwrite:
        raise OptionError('mode must be "append": what was published cannot be replaced')
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, kind in types.items():
        if kind not in _TYPES.get(name, ()):
            known = "; ".join(f"{name} {' or '.join(kinds)}" for name, kinds in _TYPES.items())
            raise OptionError(f"column {name} {kind} cannot be published; select what can: {known}")
    if len(types.keys() & set(BODY_COLUMNS)) != 1:
        raise OptionError("one column must be called body, or value")
    if not options.topic and "topic" not in types:
        raise OptionError("topic is required, as an option or as a column")


def _write(batches: Iterator[pa.RecordBatch], options: WriteOptions) -> WriterCommitMessage:
    context = TaskContext.get()
    publish(batches, options, context.partitionId() if context else 0)
    return WriterCommitMessage()
