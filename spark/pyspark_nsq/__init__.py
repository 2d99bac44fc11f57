"""NSQ for Apache Spark: ``format("nsq")`` to read, with nothing lost and every micro-batch repeatable, and to write.

NSQ forgets a message that is finished, and Spark may ask for a batch again. So a task puts what it receives into a
spool, durably, before it finishes it, and seals what belongs to its batch; Spark reads the spool.

    source        ``format("nsq")``: the classes Spark calls for reading
    sink          those for writing
    publisher     a task that writes
    staging       a driver that publishes what tasks have staged
    progress      a query's way forward on the driver: which batch comes next
    nodes         which nsqd there are and how much waits, over HTTP
    plan          a batch shared out over nsqd and tasks
    drain         a task on an executor: receive, spool, FIN, seal
    decode        what it receives, as columns
    connection    to one nsqd, on a plain socket
    batch_spool   the spools of batch reads: when these go
    spool         what is where on the disk, and what may be deleted
    spool_file    chunks with checksums
    suspects      what may come again after a crash
    rows          messages as Arrow
    spool_tool    ``python -m pyspark_nsq.spool_tool``: looks into a spool, puts back what is in it
    reader        `run_reader`: pynsq's handlers on a cluster
    duplicates    `once`: a stream without what has been there before
    command_line  what the pipelines in ``spark/jobs`` share
    options       what a user wrote, checked; `option_table` is the table, `kinds` what their texts may be

May import ``nsq_compat.protocol`` and ``nsq_compat.session``, never gevent: executors are forked from Spark's daemon,
and nothing may be patched there. Only ``source``, ``sink`` and ``duplicates`` import pyspark. Read ``drain`` first,
then ``spool``.
"""

from collections.abc import Callable, Sequence
from typing import Any


def register(spark: Any) -> None:
    """Make ``format("nsq")`` known to a session. Not needed where the package is installed on driver and executors.

    Raises ``ValueError`` for a session that runs tasks twice on purpose; without `register` the tasks say it, before
    they take anything.
    """
    from pyspark_nsq.options import SPECULATION, OptionError
    from pyspark_nsq.source import NsqDataSource

    if spark.conf.get("spark.speculation", "false").lower() == "true":
        raise OptionError(SPECULATION)
    spark.dataSource.register(NsqDataSource)


def ack(frame: Any) -> int:
    """The DataFrame of a batch read is where it was to go: its spool is deleted, and it can be read no more. Takes what
    ``format("nsq")`` has loaded, or a DataFrame with some of its columns. How many messages that were.

    Raises ``ValueError`` for any other DataFrame, and where its spool is not to be seen.
    """
    from pyspark_nsq.batch_spool import acknowledge

    return acknowledge(field.metadata or {} for field in frame.schema.fields)


def once(messages: Any, keys: Sequence[str] = ("nsqd", "topic", "id"), within: str = "10 minutes") -> Any:
    """A stream of messages, without those whose keys came in the time `within` before, by when Spark received them.

    Not one message is dropped for being old, as by a watermark on `timestamp`: who waited long at nsqd is not late.
    """
    from pyspark_nsq import duplicates

    return duplicates.once(messages, keys, within)


def run_reader(spark: Any, handler: Callable[[Any], Any], **arguments: Any) -> Any:
    """A handler written for pynsq's ``Reader``, called on the cluster; see ``pyspark_nsq.reader.run_reader``."""
    from pyspark_nsq import reader

    return reader.run_reader(spark, handler, **arguments)


def __getattr__(name: str) -> Any:
    # Spark looks for DefaultSource in every module named pyspark_*; who only wants the spool needs no pyspark.
    if name == "DefaultSource":
        from pyspark_nsq.source import NsqDataSource

        return NsqDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
