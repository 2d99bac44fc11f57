"""NSQ for Apache Spark: ``format("nsq")`` reads without loss and with repeatable micro-batches, and writes.

With mode=log, a batch is a range of offsets, for which nsqd gives the same messages whenever it is asked. With
mode=spool, messages come from a channel. nsqd forgets a finished message, but Spark may ask for a batch again.
Therefore a task writes received messages durably to a spool before it finishes them, and seals the part of the spool
that belongs to its batch. Spark reads the spool.

    source          ``format("nsq")``: the classes that Spark calls for reading
    sink            the classes that Spark calls for writing
    publisher       publishing of a task's rows
    staging         staged publishing: tasks write files, the driver publishes them
    progress        offsets and batches of a streaming query, on the driver
    nodes           discovery of nsqd, and their backlogs, over HTTP
    plan            distribution of a batch over nsqd and tasks
    drain           a reading task on an executor: receive, spool, FIN, seal
    decode          message frames to Arrow columns
    connection      a connection to one nsqd on a plain socket
    log_progress    offsets and batches of a query (mode=log), on the driver
    topic_logs      what all nsqd report of their logs
    log_plan        distribution of a batch of mode=log over tasks
    log_reader      a reading task of mode=log
    filters         which offsets the filters of a query need (mode=log)
    sql_table       the options of ``CREATE TABLE ... USING nsq``
    batch_spool     the spools of batch reads, and when they are deleted
    spool           the layout of the spool on disk, and its cleaning
    spool_file      a file of chunks with checksums
    suspects        ids of messages that nsqd may deliver again after a crash
    rows            messages as Arrow record batches
    spool_tool      ``python -m pyspark_nsq.spool_tool``: shows a spool and publishes its messages again
    reader          `run_reader`: pynsq's handlers on a cluster
    spark_versions  what differs between the versions of Spark
    duplicates      `once`: de-duplication of a stream; and in slots
    events          messages that are JSON objects, as rows of a time and a key
    parquet_table   a table of Parquet files that has each row once for any reader
    delta_table     a Delta table that has each message once
    command_line    flags and error reports shared by the pipelines in ``spark/jobs``
    options         validation of the user's options
    option_table    the table of options
    option_parsers  parsers of option values

May import ``nsq_compat``'s ``protocol``, ``session`` and ``bounded_http``, never gevent: executors are forked from
Spark's daemon, where monkey-patching is not allowed. Only ``source``, ``sink``, ``duplicates``, ``events`` and
``spark_versions`` import pyspark. Read ``drain`` first, then ``spool``.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any


def register(spark: Any) -> None:
    """Register ``format("nsq")`` with a session, and let Spark push filters down to Python data sources.

    Without it, Spark finds the package by itself if it is installed on driver and executors, but pushes no filters.

    On one machine (``local[...]``), workers then use the Python of this program, unless PYSPARK_PYTHON or the setting
    spark.pyspark.python names another. Spark itself would use the first ``python3`` on PATH.
    """
    from pyspark.errors import AnalysisException

    from pyspark_nsq.source import FilteringDataSource

    # Spark Connect has no context.
    context = getattr(spark, "sparkContext", None)
    is_chosen = "PYSPARK_PYTHON" in os.environ or spark.conf.get("spark.pyspark.python", "")
    if context is not None and context.master.startswith("local") and not is_chosen:
        context.pythonExec = sys.executable
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        spark.dataSource.register(FilteringDataSource)
    except AnalysisException as error:
        # Spark 4.0 keeps the one that it has found by itself, which is the same without filters.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def ack(frame: Any) -> int:
    """Acknowledge a batch read: delete its spool, after which the DataFrame cannot be read again.

    `frame` is a DataFrame that ``format("nsq")`` has loaded, or one with some of its columns. Returns the number of
    deleted messages. Raises ``ValueError`` for any other DataFrame, or if its spool does not exist on this machine.
    """
    from pyspark_nsq.batch_spool import acknowledge

    return acknowledge(field.metadata or {} for field in frame.schema.fields)


def once(messages: Any, keys: Sequence[str] = ("nsqd", "topic", "id"), within: str = "10 minutes") -> Any:
    """Drop the messages of a stream whose `keys` Spark has already received during the preceding time `within`.

    Unlike a watermark on `timestamp`, this never drops a message because it waited long at nsqd.
    """
    from pyspark_nsq import duplicates

    return duplicates.once(messages, keys, within)


def run_reader(spark: Any, handler: Callable[[Any], Any], **arguments: Any) -> Any:
    """Call a handler written for pynsq's ``Reader`` on the cluster; see ``pyspark_nsq.reader.run_reader``."""
    from pyspark_nsq import reader

    return reader.run_reader(spark, handler, **arguments)


def __getattr__(name: str) -> Any:
    # Spark looks for DefaultSource in every module named pyspark_*. Imported on demand: the spool needs no pyspark.
    if name == "DefaultSource":
        from pyspark_nsq.source import NsqDataSource

        return NsqDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
