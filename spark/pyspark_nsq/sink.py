"""The classes that Spark calls for writing.

With publishMode=direct each task publishes its own rows. There is nothing to commit, and a publish cannot be undone.
With publishMode=staged tasks write files, and `commit`, on the driver, publishes them.
"""

import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_nsq.options import OptionError, WriteOptions
from pyspark_nsq.publisher import BODY_COLUMNS, publish
from pyspark_nsq.rows import HEADERS
from pyspark_nsq.spark_versions import DataSourceStreamArrowWriter
from pyspark_nsq.staging import StagedBatch, StagedFile, folder_of, ignore_point

_TYPES = {
    "body": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "defer_ms": ("int", "bigint"),
    HEADERS: ("map<string,string>",),
}
# Local properties that Spark sets for the tasks of a stream.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class StagedCommit(WriterCommitMessage):
    """The file that a task has staged for a job, or None if it had no rows."""

    def __init__(self, job: str, staged: StagedFile | None) -> None:
        self.job = job
        self.staged = staged


class NsqWriter(DataSourceArrowWriter):
    """``df.write.format("nsq")``."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        # Pickled with this object, so that tasks and commit use the same id.
        self._job = f"write-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if not self._options.is_staged:
            return _publish(iterator, self._options)
        batch = StagedBatch(folder_of(self._options), self._job, 0)
        return StagedCommit(self._job, batch.stage(iterator, self._options))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if self._options.is_staged:
            StagedBatch(folder_of(self._options), self._job, 0).publish(_files(messages), self._options)
            self._remove()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the staged files: a failed batch write is never continued."""
        if self._options.is_staged:
            self._remove()

    def _remove(self) -> None:
        shutil.rmtree(folder_of(self._options) / self._job, ignore_errors=True)


class NsqStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream.format("nsq")``. `at` is passed to ``StagedBatch.publish``."""

    def __init__(self, options: WriteOptions, at: Callable[[str], None] = ignore_point) -> None:
        self._options = options
        self._at = at

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if not self._options.is_staged:
            return _publish(iterator, self._options)
        context = TaskContext.get()
        assert context is not None, "tasks have one"
        job, batch_id = (context.getLocalProperty(name) for name in (_QUERY, _BATCH))
        assert job is not None, "Spark sets the query id for the tasks of a stream"
        assert batch_id is not None, "Spark sets the batch id for the tasks of a stream"
        batch = StagedBatch(folder_of(self._options), job, int(batch_id))
        if not batch.is_decided:
            return StagedCommit(job, batch.stage(iterator, self._options))
        for _ in iterator:  # Spark requires that it is exhausted
            pass
        return StagedCommit(job, None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        for job in _jobs(messages):
            StagedBatch(folder_of(self._options), job, batchId).publish(_files(messages), self._options, self._at)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for job in _jobs(messages):
            StagedBatch(folder_of(self._options), job, batchId).discard(_files(messages))


def _files(messages: Iterable[WriterCommitMessage | None]) -> list[StagedFile]:
    return [each.staged for each in messages if isinstance(each, StagedCommit) and each.staged]


def _jobs(messages: Iterable[WriterCommitMessage | None]) -> set[str]:
    """One job id, or none if no task staged rows."""
    return {each.job for each in messages if isinstance(each, StagedCommit)}


def check_columns(
    schema: StructType, options: WriteOptions, overwrite: bool, own: frozenset[str] = frozenset()
) -> None:
    """Raise ``OptionError`` if rows of this schema cannot be messages. `own` are the columns of a table of messages."""
    if overwrite:
        raise OptionError('mode must be "append": published messages cannot be overwritten')
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    needed = _TYPES.keys() - {HEADERS}
    for name, kind in types.items():
        if (name in _TYPES and kind in _TYPES[name]) or (name in options.ignore_columns and name not in needed):
            continue
        if name in _TYPES or name not in own:
            known = "; ".join(f"{name} {' or '.join(kinds)}" for name, kinds in _TYPES.items())
            leave_out = "" if name in needed else f", or leave it out with ignoreColumns={name}"
            raise OptionError(
                f"column {name} {kind} cannot be published; select from these columns: {known}{leave_out}"
            )
    if len(types.keys() & set(BODY_COLUMNS)) != 1:
        raise OptionError("exactly one column must be named body or value")
    if not options.topic and "topic" not in types:
        raise OptionError("topic is required, as an option or as a column")


def _publish(batches: Iterator[pa.RecordBatch], options: WriteOptions) -> WriterCommitMessage:
    context = TaskContext.get()
    publish(batches, options, context.partitionId() if context else 0)
    return WriterCommitMessage()
