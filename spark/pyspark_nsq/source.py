"""``format("nsq")``: the classes that Spark calls for reading.

Spark calls `initialOffset`, `latestOffset`, `partitions` and `commit` on the driver, in one long-lived process. It
calls `read` on executors, each time in a worker with a fresh copy of the reader. Only the partition carries state from
driver to executor. Spark does not call `stop` at the end of a query, so nothing may depend on it.
"""

import functools
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from pyspark_nsq import batch_spool, sql_table, staging
from pyspark_nsq.drain import drain, ignore_point
from pyspark_nsq.filters import NO_BOUNDS
from pyspark_nsq.log_plan import Range
from pyspark_nsq.log_progress import LogProgress, batch_ranges, is_offset_of_log
from pyspark_nsq.log_reader import read_range
from pyspark_nsq.nodes import Nodes
from pyspark_nsq.option_table import AUTO, BATCH, LOG, SPOOL, STREAM
from pyspark_nsq.options import (
    SPECULATION,
    OptionError,
    ReadOptions,
    WriteOptions,
    read_options,
    require_spool_options,
    write_options,
)
from pyspark_nsq.plan import Share, from_json, plan_batch
from pyspark_nsq.progress import Offset, Progress, open_spool
from pyspark_nsq.rows import OPTIONAL_COLUMNS, SPARK_SCHEMA, Origin, columns, log_columns
from pyspark_nsq.sink import NsqStreamWriter, NsqWriter, check_columns
from pyspark_nsq.spark_versions import ReadMaxRows, SupportsTriggerAvailableNow
from pyspark_nsq.spool import Orphan, Spool
from pyspark_nsq.spool_file import SpoolError
from pyspark_nsq.topic_logs import TopicLogs

log = logging.getLogger(__name__)

_KINDS = {
    "string": StringType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "int": IntegerType(),
    "bigint": LongType(),
}
_TYPES = dict(each.split(" ") for each in f"{SPARK_SCHEMA}, {OPTIONAL_COLUMNS}".split(", "))

NO_AVAILABLE_NOW = (
    "Spark 4.0 and 4.1 do not tell a Python data source in time where a checkpoint continues if the query has the "
    "trigger availableNow. Nothing was read. Start the query without this trigger and with the option "
    "availableNow=true, as docs/spark.md shows (Spark 4.0 and 4.1)"
)
"""The error for this trigger in a query that has a checkpoint."""


class NsqDataSource(DataSource):
    """``format("nsq")``."""

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Identifies the loaded DataFrame: this object is pickled, and all copies have the same id.
        self._loaded = uuid.uuid4().hex

    def schema(self) -> StructType:
        table = sql_table.metadata_of(self.options)
        origin = table or batch_spool.metadata_of(self.options, self._loaded)
        fields = [each.split(" ") for each in SPARK_SCHEMA.split(", ")]
        return StructType([StructField(name, _KINDS[kind], metadata=origin) for name, kind in fields])

    def reader(self, schema: StructType) -> "NsqReader":
        table = sql_table.options_in(schema)
        if table is None:
            batch_spool.check_schema((each.metadata or {} for each in schema.fields), self.options, self._loaded)
        options = read_options(sql_table.merged(table, self.options), BATCH)
        return self._reader_class(options, _names(schema), self._loaded, table is not None)

    _reader_class: "type[NsqReader]"

    def streamReader(self, schema: StructType) -> "NsqStreamReader":  # noqa: N802 - Spark's name
        return NsqStreamReader(sql_table.merged(sql_table.options_in(schema), self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> NsqWriter:
        return NsqWriter(writing(self.options, schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> NsqStreamWriter:  # noqa: N802
        return NsqStreamWriter(writing(self.options, schema, overwrite))


def writing(given: Mapping[str, str], schema: StructType, overwrite: bool) -> WriteOptions:
    """Validate the options of writing rows of this schema, before a task begins."""
    # INSERT INTO without WITH has no options of its own. Other writes may have rows with the metadata of a table.
    table = None if given else sql_table.options_in(schema)
    options = write_options(sql_table.merged(table, given))
    own = frozenset(_TYPES) if table is not None else frozenset[str]()
    check_columns(schema, options, overwrite, own)
    if options.is_staged:
        staging.prepare(options)
    return options


class NsqPartition(InputPartition):
    """One task: its stream, batch and number, and what it reads."""

    def __init__(self, stream: str, seq: int, part: int, work: Orphan | Share) -> None:
        super().__init__((stream, seq, part))
        self.stream = stream
        self.seq = seq
        self.part = part
        self.work = work


class LogPartition(InputPartition):
    """One task of mode=log."""

    def __init__(self, work: Range) -> None:
        super().__init__((work.topic, work.nsqd, work.begin))
        self.work = work


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(given)
        self._schema = schema
        self._stops = False
        self._chosen: Progress | LogProgress | None = None
        # For Spark 4.0 and 4.1: where the next batch begins, and whether Spark has asked for the end of one.
        self._reached: Offset | None = None
        self._is_asked = False

    # Not in the constructor: Spark hides an error there behind one of its own, about a reader that it has not got.
    @functools.cached_property
    def _options(self) -> ReadOptions:
        return read_options(self._given, STREAM)

    @functools.cached_property
    def _names(self) -> list[str]:
        return _names(self._schema)

    def _progress(self, offset: Offset | None = None) -> Progress | LogProgress:
        """The progress in the mode of a checkpoint with this offset, or in that of the options."""
        if self._chosen is None:
            assert self._names, "checked before anything is read"
            self._chosen = progress_of(self._options, offset)
            if self._stops or self._options.available_now:
                self._chosen.stop_at_current_end()
        return self._chosen

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's names, here and below
        return self._progress().initial()

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        # The mode is not known yet if there is a checkpoint.
        self._stops = True
        if self._chosen is not None:
            self._chosen.stop_at_current_end()

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802
        if start is not None:
            return self._progress(start).next(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        # Spark 4.0 and 4.1. They use every offset that they get as the end of a batch.
        self._is_asked = True
        start = self._reached or self._progress().initial()
        self._reached = self._progress(start).next(start, self._options.max_messages_per_trigger)
        return self._reached

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return {} if self._chosen is None else self._chosen.report()

    def partitions(self, start: Offset, end: Offset) -> list[NsqPartition] | list[LogPartition]:
        if start == end:
            # At the start of a query, Spark shows so where its checkpoint ends.
            if not self._is_asked:
                self._reached = end
            elif "stream" not in end or end["seq"]:
                raise OptionError(NO_AVAILABLE_NOW)
            return []
        # From `end` alone: after a restart, the start of the first batch may differ.
        progress = self._progress(end)
        if isinstance(progress, LogProgress):
            return [LogPartition(each) for each in progress.ranges(end)]
        open_spool(self._options, end["stream"])
        return _partitions(end["stream"], end["seq"], from_json(end["plan"]))

    def read(self, partition: NsqPartition | LogPartition) -> Iterator[pa.RecordBatch]:
        return read(partition, self._options, self._names)

    def commit(self, end: Offset) -> None:
        self._progress(end).committed(end)


def progress_of(options: ReadOptions, offset: Offset | None) -> Progress | LogProgress:
    """The driver's part of a stream, in the mode of its checkpoint. Raises ``OptionError`` if the options forbid it."""
    if offset is None:
        is_log = options.mode == LOG or (options.mode == AUTO and TopicLogs(options).offers_log())
    else:
        is_log = is_offset_of_log(offset)
        mode = LOG if is_log else SPOOL
        if options.mode not in (AUTO, mode):
            raise OptionError(
                f"the checkpoint was written with mode={mode} and cannot be continued with mode={options.mode}: use "
                f"mode={mode}, or a new checkpoint"
            )
    log.info("topics are read with mode=%s", LOG if is_log else SPOOL)
    if is_log:
        return LogProgress(options)
    require_spool_options(options)
    return Progress(options)


class NsqReader(DataSourceReader):
    """A batch read of the messages that wait now. Every action on the loaded DataFrame gives the same rows."""

    def __init__(self, options: ReadOptions, names: Sequence[str], loaded: str, is_table: bool = False) -> None:
        self._options = options
        self._names = names
        self._loaded = loaded
        self._is_table = is_table
        self._bounds = NO_BOUNDS

    def partitions(self) -> list[NsqPartition] | list[LogPartition]:
        options = self._options
        if options.mode == LOG or (options.mode == AUTO and TopicLogs(options).offers_log()):
            log.info("topics are read with mode=log")
            return [LogPartition(each) for each in batch_ranges(options, self._bounds)]
        if self._is_table:
            raise OptionError(sql_table.NOT_A_LOG)
        log.info("topics are read with mode=spool")
        require_spool_options(options)
        spool = batch_spool.spool_of(options, self._loaded)
        shares = batch_spool.saved_plan(spool)
        if shares is None:
            batch_spool.require_no_other(options)
            nodes = Nodes(options)
            nodes.require()
            spool.create()
            nodes.create_channels(options.connect_timeout)
            batch_spool.expire(options.spool_dir)
            shares = plan_batch(nodes.settled_backlog(), options.max_messages or None, options)
            batch_spool.save_plan(spool, shares, options)
        return _partitions(spool.folder.name, 0, shares)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # If no messages wait, there are no partitions, and Spark creates one of its own.
        if not isinstance(partition, NsqPartition | LogPartition):
            return iter(())
        return read(partition, self._options, self._names)


NsqDataSource._reader_class = NsqReader


class FilteringReader(NsqReader):
    """Reads only the offsets that the filters of a query may need (mode=log)."""

    def pushFilters(self, filters: list[Any]) -> list[Any]:  # noqa: N802 - Spark's name
        self._bounds = self._bounds.narrowed(filters)
        return filters


class FilteringDataSource(NsqDataSource):
    """``format("nsq")`` in a session that pushes filters down. In others, Spark refuses a reader that takes them."""

    _reader_class = FilteringReader


def read(
    partition: NsqPartition | LogPartition,
    options: ReadOptions,
    names: Sequence[str],
    at: Callable[[str], None] = ignore_point,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition: of a log from nsqd; of a spool the first time from nsqd, later from the spool.

    `at` is passed to `drain`.
    """
    if isinstance(partition, LogPartition):
        work = partition.work
        for batch, offsets in read_range(work, options):
            yield log_columns(batch, offsets, names, work.topic, work.tcp, work.nsqd)
        return
    spool = Spool(options.spool_dir, partition.stream)
    folder = spool.partition(partition.seq, partition.part)
    try:
        spool.require()
        if partition.seq <= spool.cleaned:
            raise SpoolError(
                f"batch {partition.seq} is read again after its spool was deleted. Use a batch's DataFrame only while "
                "it is the current one, or set spoolRetainBatches higher."
            )
    except SpoolError:
        if options.fail_on_data_loss:
            raise
        return
    if isinstance(partition.work, Orphan):
        pieces = spool.seal_orphan(folder, partition.work)
    else:
        if folder.sealed() is None:
            _refuse_speculation()
        origin = Origin(partition.work.topic, options.channel, partition.work.nsqd)
        pieces = drain(spool, folder, origin, partition.work.count, options, at, partition.work.http)
    for batch in folder.read(pieces):
        yield columns(batch, names)


def _refuse_speculation() -> None:
    """Raise ``OptionError`` if spark.speculation is on or unknown.

    Only tasks can check this: Spark passes its settings to jobs of SQL and streams, but not to jobs of RDDs.
    """
    context = TaskContext.get()
    if context is None:
        return
    if context.getLocalProperty("spark.master") is None:
        raise OptionError(
            "a task of an RDD cannot find out whether spark.speculation is on, so it receives no messages: run an "
            "action of the DataFrame first, such as df.count(); then df.rdd, df.foreach and df.foreachPartition have "
            "its rows"
        )
    if (context.getLocalProperty("spark.speculation") or "").lower() == "true":
        raise OptionError(SPECULATION)


def _partitions(stream: str, seq: int, plan: Sequence[Orphan | Share]) -> list[NsqPartition]:
    return [NsqPartition(stream, seq, part, work) for part, work in enumerate(plan)]


def _names(schema: StructType) -> list[str]:
    for field in schema.fields:
        if _TYPES.get(field.name) != field.dataType.simpleString():
            known = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())
            raise OptionError(
                f"schema: there is no column {field.name} {field.dataType.simpleString()}; the columns are {known}"
            )
    return [field.name for field in schema.fields]
