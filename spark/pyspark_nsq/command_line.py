"""Flags, session, progress line and error reports for the pipelines in ``spark/jobs``.

A job is a parser and a function. The function validates its flags before it creates a session, because that takes
seconds. Of Spark's report of a failed task, only this package's error message is shown.
"""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from pyspark_nsq.delta_table import DeltaTable, require_delta
from pyspark_nsq.nodes import HttpFailed, NoNodes
from pyspark_nsq.option_table import BATCH, LOG, SPOOL, STREAM
from pyspark_nsq.options import OptionError, read_options, write_options
from pyspark_nsq.parquet_table import ParquetTable, by_hour

PARQUET: Final = "parquet"
DELTA: Final = "delta"
COMPACTING_SECONDS: Final = 60
"""How often a stream looks for hours to compact."""

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_SENTENCE: Final = re.compile(r"pyspark_nsq\.[\w.]+: (.+)")


class UsageError(ValueError):
    """A flag is wrong; the text is for the user."""


def run(parser: argparse.ArgumentParser, job: Callable[[argparse.Namespace], None], arguments: Sequence[str]) -> int:
    """Run a job and return the exit status: 0, 2 for wrong flags, 1 for a failure."""
    given = parser.parse_args(arguments)
    try:
        job(given)
    except (OptionError, UsageError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except Exception as error:
        sentence = str(error) if isinstance(error, NoNodes | HttpFailed) else _sentence_in(error)
        if sentence is None:
            raise
        print(f"{parser.prog}: {sentence}", file=sys.stderr)
        return 1
    return 0


def _sentence_in(error: Exception) -> str | None:
    """The error message of this package in a task, or Spark's about an invalid query; None for any other error."""
    from pyspark.errors import AnalysisException

    if sentences := _SENTENCE.findall(str(error)):
        return str(sentences[-1]).strip()
    # The text of an error of syntax begins with an empty line.
    return str(error).strip().splitlines()[0] if isinstance(error, AnalysisException) else None


def parser_of(module_docstring: str | None, program: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=program, description=module_docstring, formatter_class=argparse.RawTextHelpFormatter
    )


def positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"must be an integer, at least 1; it is {text!r}")
    return int(text)


def add_reading_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the source; `reading` converts them to options."""
    flags = parser.add_argument_group("reading")
    flags.add_argument("--topic", required=True, help="separated by commas")
    flags.add_argument("--channel", help="with --spool: used by this job only; created if it does not exist")
    flags.add_argument("--lookupd-http-address", action="append", default=[], metavar="HOST:PORT", help="repeatable")
    flags.add_argument(
        "--nsqd-tcp-address",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="with --spool: instead of nsqlookupd; repeatable",
    )
    flags.add_argument(
        "--nsqd-http-address",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="instead of nsqlookupd; with --spool: of the same nsqd, in the same order; repeatable",
    )
    flags.add_argument(
        "--spool",
        metavar="FOLDER",
        help="receive from a channel (mode=spool), with this folder, which the driver and all executors share; "
        "without it, read by offset what nsqd retains (mode=log)",
    )
    flags.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another option of docs/spark.md; repeatable",
    )


def add_streaming_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a stream; `start` uses them."""
    flags = parser.add_argument_group("the stream")
    flags.add_argument("--checkpoint", required=True, metavar="FOLDER", help="from which a restarted job continues")
    flags.add_argument("--once", action="store_true", help="end after reading the messages that wait now")
    flags.add_argument("--for", dest="seconds", type=float, metavar="SECONDS", help="end after this time")
    flags.add_argument("--every", metavar="INTERVAL", help='interval of batches, "10 seconds" (default: no pause)')


def add_table_flags(parser: argparse.ArgumentParser, *, merges: bool = False) -> None:
    """Add the flags of a table; `fill` uses them. Rows that can be merged by their message may go to a Delta table."""
    flags = parser.add_argument_group("the table")
    flags.add_argument(
        "--path", required=True, metavar="FOLDER", help="the table; FOLDER.state beside it shows how far it is"
    )
    flags.add_argument(
        "--compact-after",
        type=float,
        metavar="HOURS",
        help="rewrite the small files of an hour this long after its end (default: never)",
    )
    if merges:
        flags.add_argument(
            "--format",
            choices=(PARQUET, DELTA),
            default=PARQUET,
            help="plain Parquet files, or Delta, which merges messages by nsqd, topic and id (default: parquet)",
        )
    else:
        parser.set_defaults(format=PARQUET)


def add_writing_flags(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the flags of the target; `writing` converts them to options."""
    flags = parser.add_argument_group("writing")
    flags.add_argument("--to-topic", required=required)
    flags.add_argument(
        "--to-nsqd-tcp-address", action="append", default=[], required=required, metavar="HOST:PORT", help="repeatable"
    )
    flags.add_argument(
        "--to-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another option of docs/spark.md; repeatable",
    )


def reading(given: argparse.Namespace, use: str = STREAM) -> dict[str, str]:
    """Return the options of the source. Raises ``OptionError`` or ``UsageError``."""
    options = {"subscribe": given.topic, "mode": LOG if given.spool is None else SPOOL}
    options |= {"channel": given.channel or "", "spoolDir": given.spool or ""}
    for name in ("lookupd_http_address", "nsqd_tcp_address", "nsqd_http_address"):
        if addresses := getattr(given, name):
            options[f"{name}es"] = ",".join(addresses)
    if getattr(given, "once", False):
        from pyspark_nsq.spark_versions import reading_available_now

        options |= reading_available_now()
    options |= _named(given.option, "--option")
    read_options(options, use)
    return options


def reading_from_earliest(given: argparse.Namespace) -> dict[str, str]:
    """`reading` for a stream that begins with the earliest message, unless an option says otherwise."""
    options = reading(given)
    begins = any(name.lower() in ("startingoffsets", "startingtimestamp") for name in options)
    return options if begins or options["mode"] == SPOOL else options | {"startingOffsets": "earliest"}


def reading_once(given: argparse.Namespace) -> dict[str, str]:
    """`reading` for a batch read."""
    return reading(given, BATCH)


def writing(given: argparse.Namespace) -> dict[str, str]:
    """Return the options of the target. Raises ``OptionError`` or ``UsageError``."""
    options = {"topic": given.to_topic, "nsqdTcpAddresses": ",".join(given.to_nsqd_tcp_address)}
    options |= _named(given.to_option, "--to-option")
    write_options(options)
    return options


def _named(pairs: Sequence[str], flag: str) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"{flag} must be NAME=VALUE; it is {pair!r}")
    return dict(pair.split("=", 1) for pair in pairs)


def session(name: str) -> Any:
    """Get the session of spark-submit and register ``format("nsq")``.

    A shuffle has as many partitions as there are cores, unless spark.sql.shuffle.partitions is set: Spark's 200 would
    make 200 files a batch of a table.
    """
    from pyspark.sql import SparkSession

    from pyspark_nsq import register

    spark = SparkSession.builder.appName(name).getOrCreate()
    context = getattr(spark, "sparkContext", None)  # not with Spark Connect
    if context is not None and not context.getConf().contains(_PARTITIONS):
        spark.conf.set(_PARTITIONS, str(context.defaultParallelism))
    register(spark)
    return spark


def start(writer: Any, given: argparse.Namespace, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Run a stream to its end or until Ctrl-C, and print progress after each batch with messages.

    `meanwhile` is called twice a second.
    """
    from pyspark_nsq.spark_versions import start_available_now

    writer = writer.option("checkpointLocation", given.checkpoint)
    if given.once:
        query = start_available_now(writer)
    else:
        query = (writer.trigger(processingTime=given.every) if given.every else writer).start()
    end = None if given.seconds is None else time.monotonic() + given.seconds
    line = ProgressLine()
    try:
        while not query.awaitTermination(0.5):
            line.show(query.recentProgress)
            meanwhile()
            if end is not None and time.monotonic() > end:
                break
    except KeyboardInterrupt:
        print("\nstopping; a job with the same checkpoint and spool continues here", flush=True)
    finally:
        query.stop()
        line.show(query.recentProgress)
        line.end()


class Part(NamedTuple):
    """A table: its path, what selects its rows, with day and hour, and the columns with nsqd, topic and id."""

    path: str
    select: Callable[[Any], Any] = by_hour
    keys: Sequence[str] = ("nsqd", "topic", "id")


def fill(rows: Any, given: argparse.Namespace, *parts: Part) -> None:
    """Run a stream that writes its rows to tables, and compact these. By default there is one table with all rows."""
    parts = parts or (Part(given.path),)
    names = " and ".join(part.path for part in parts)
    if given.format == DELTA:
        require_delta(rows.sparkSession)
    with ExitStack() as opened:
        tables = [(_table(part, given), part.select) for part in parts]
        for table, _ in tables:
            opened.enter_context(table)

        def write(batch: Any, number: int) -> None:
            if len(tables) > 1 or given.format == DELTA:  # so that the batch is read once
                batch.persist()
            for table, select in tables:
                table.write(select(batch), number)
            batch.unpersist()

        def compact() -> None:
            if given.compact_after is not None:
                before = datetime.now(UTC) - timedelta(hours=given.compact_after)
                if hours := sum(table.compact(rows.sparkSession, before) for table, _ in tables):
                    print(f"compacted {hours} hours of {names}", flush=True)

        start(rows.writeStream.foreachBatch(write), given, Periodic(COMPACTING_SECONDS, compact))
        compact()


def _table(part: Part, given: argparse.Namespace) -> DeltaTable | ParquetTable:
    return DeltaTable(part.path, part.keys) if given.format == DELTA else ParquetTable(part.path)


class Periodic:
    """Calls `action` every `seconds`, if it is itself called often enough; never if `seconds` is None."""

    def __init__(self, seconds: float | None, action: Callable[[], None]) -> None:
        self._seconds = seconds
        self._action = action
        self._last = time.monotonic()

    def __call__(self) -> None:
        if self._seconds is not None and time.monotonic() - self._last >= self._seconds:
            self._last = time.monotonic()
            self._action()


class ProgressLine:
    """The progress of a stream: one line that is overwritten on a terminal, a new line each time elsewhere."""

    def __init__(self) -> None:
        self._shown = -1
        self._messages = 0
        self._dropped = 0

    def show(self, progress: Sequence[Any]) -> None:
        """Print new batches. `progress` has Spark's reports of the last batches, the oldest first."""
        new = [each for each in progress if each["batchId"] > self._shown and each["numInputRows"]]
        for each in new:
            self._shown = each["batchId"]
            self._messages += each["numInputRows"]
            self._dropped += dropped(each)
        if new:
            print(self._text(new[-1]), end="\r" if sys.stdout.isatty() else "\n", flush=True)

    def end(self) -> None:
        if sys.stdout.isatty():
            print()

    def _text(self, progress: Any) -> str:
        rate = progress["processedRowsPerSecond"] or 0
        text = f"batch {progress['batchId']}: {self._messages:,} messages so far, read at {rate:,.0f} a second"
        waiting = backlog(progress)
        text += f", {waiting:,} wait" if waiting is not None else ""
        return text + (f", {self._dropped:,} left out" if self._dropped else "")


def dropped(progress: Any) -> int:
    """The rows that stateful operators dropped from a batch, as late or as duplicates."""
    return sum(
        operator["numRowsDroppedByWatermark"] + operator["customMetrics"].get("numDroppedDuplicateRows", 0)
        for operator in progress["stateOperators"]
    )


def backlog(progress: Any) -> int | None:
    """The messages that waited at nsqd when the batch was planned; None if no source is NSQ, or Spark asks none."""
    from pyspark_nsq.spark_versions import HAS_ADMISSION

    if not HAS_ADMISSION:
        return None
    offsets = [json.loads(each["latestOffset"] or "null") for each in progress["sources"]]
    counts = [each["backlog"] for each in offsets if isinstance(each, dict) and "backlog" in each]
    return sum(counts) if counts else None
