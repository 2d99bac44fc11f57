"""Spark's side of writing.

Each task publishes its rows by itself. Nothing is left to commit, and nothing can be aborted: what nsqd has taken,
consumers have. Unless they are `staged`: then tasks only write files, and `commit`, on the driver, publishes.
"""

import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_nsq.options import OptionError, WriteOptions
from pyspark_nsq.publisher import BODY_COLUMNS, publish
from pyspark_nsq.staging import Staged, StagedBatch, folder_of, nowhere

_TYPES = {
    "body": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "defer_ms": ("int", "bigint"),
}
# What Spark tells the tasks of a stream, among their local properties.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class StagedMessage(WriterCommitMessage):
    """What a task of a batch of a job has staged; None for nothing."""

    def __init__(self, job: str, staged: Staged | None) -> None:
        self.job = job
        self.staged = staged


class NsqWriter(DataSourceArrowWriter):
    """``df.write.format("nsq")``."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        # This object is pickled: tasks and commit have the same.
        self._job = f"write-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if not self._options.is_staged:
            return _publish(iterator, self._options)
        batch = StagedBatch(folder_of(self._options), self._job, 0)
        return StagedMessage(self._job, batch.stage(iterator, self._options))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.is_staged:
            StagedBatch(folder_of(self._options), self._job, 0).publish(_files(messages), self._options)
            self._remove()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nobody goes on with a write that failed."""
        if self._options.is_staged:
            self._remove()

    def _remove(self) -> None:
        shutil.rmtree(folder_of(self._options) / self._job, ignore_errors=True)


class NsqStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("nsq")``. `at` is ``StagedBatch.publish``'s."""

    def __init__(self, options: WriteOptions, at: Callable[[str], None] = nowhere) -> None:
        self._options = options
        self._at = at

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if not self._options.is_staged:
            return _publish(iterator, self._options)
        context = TaskContext.get()
        assert context is not None, "tasks have one"
        job, number = (context.getLocalProperty(name) for name in (_QUERY, _BATCH))
        assert job is not None, "Spark names its query to the tasks of a stream"
        assert number is not None, "and the batch"
        batch = StagedBatch(folder_of(self._options), job, int(number))
        if not batch.is_decided:
            return StagedMessage(job, batch.stage(iterator, self._options))
        for _ in iterator:  # Spark wants it read to its end
            pass
        return StagedMessage(job, None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        for job in _jobs(messages):
            StagedBatch(folder_of(self._options), job, batchId).publish(_files(messages), self._options, self._at)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for job in _jobs(messages):
            StagedBatch(folder_of(self._options), job, batchId).discard(_files(messages))


def _files(messages: Iterable[WriterCommitMessage | None]) -> list[Staged]:
    return [each.staged for each in messages if isinstance(each, StagedMessage) and each.staged]


def _jobs(messages: Iterable[WriterCommitMessage | None]) -> set[str]:
    """One, or none if nothing was staged by anybody."""
    return {each.job for each in messages if isinstance(each, StagedMessage)}


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


def _publish(batches: Iterator[pa.RecordBatch], options: WriteOptions) -> WriterCommitMessage:
    context = TaskContext.get()
    publish(batches, options, context.partitionId() if context else 0)
    return WriterCommitMessage()
