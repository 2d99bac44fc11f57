"""The works of a user's program, each a query that runs until no message waits; and the deaths of its processes.

A work takes options of the source, and a folder for its files, and returns the numbers of results and distinct ones.
"""

import functools
import os
import signal
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

import pyarrow.dataset
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import pyspark_nsq
from pyspark_nsq.nodes import HttpFailed, ask
from pyspark_nsq.parquet_table import ParquetTable, by_hour
from pyspark_nsq.reader import Message
from pyspark_nsq.spark_versions import reading_available_now, start_available_now

COMMAND = 250
"""Messages in an MPUB."""
CALLED = "called"
"""The handler's diary: for each call the body, and whether the message was finished."""
HANDLER = "handler"
EXECUTOR = "executor"


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_the_jvm() -> None:
    """Kill the parent JVM, and this process, which would otherwise run for some milliseconds more."""
    pid = os.getppid()
    while Path(f"/proc/{pid}/comm").read_text() != "java\n":
        status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        pid = int(status["PPid"])
    os.kill(pid, signal.SIGKILL)
    kill_this_process()


@dataclass
class Death:
    """Kills a process when it reaches a point for the n-th time.

    A folder has a file for each process killed so far; a name that is there is not killed again, and their number is
    limited.
    """

    folder: Path
    most: int
    point: str
    turn: int = 1
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    kill: Callable[[], None] = kill_this_process
    passed: int = field(default=0, init=False)

    def at(self, point: str) -> None:
        if point != self.point:
            return
        self.passed += 1
        if self.passed != self.turn or len(deaths(self.folder)) >= self.most or (self.folder / self.name).exists():
            return
        self.folder.mkdir(exist_ok=True)
        (self.folder / self.name).touch()
        self.kill()


def deaths(folder: Path) -> list[str]:
    """The names of the killed processes."""
    return os.listdir(folder) if folder.exists() else []


_KILL = {"": kill_this_process, HANDLER: kill_this_process, EXECUTOR: kill_the_jvm}


# --- Waiting ----------------------------------------------------------------------------------------------------------


def until_nothing_waits(options: dict[str, str], read_waiting: Callable[[], None]) -> None:
    """Run a query until nothing is left, and once more for an unfinished batch and for orphans."""
    before = after = False
    while not (before and after):
        before = is_empty(options)
        read_waiting()
        after = is_empty(options)


def is_empty(options: dict[str, str]) -> bool:
    """Whether no message is left; waits for timeouts of messages in flight to killed consumers."""
    while True:
        try:
            depth, in_flight = waiting(options)
        except HttpFailed:
            in_flight = 1
        if not in_flight:
            return not depth
        time.sleep(0.1)


def waiting(options: dict[str, str]) -> tuple[int, int]:
    """The numbers of waiting messages and of messages in flight, of the nsqd that can be reached."""
    found = [0, 0]
    for address in options["nsqdHttpAddresses"].split(","):
        for name in options["subscribe"].split(","):
            stats = ask(address, "stats", 5, format="json", topic=name, channel=options["channel"])
            for topic in stats["topics"] or ():
                found[0] += topic["depth"] + sum(channel["depth"] for channel in topic["channels"])
                found[1] += sum(channel["in_flight_count"] for channel in topic["channels"])
    return found[0], found[1]


# --- A table ----------------------------------------------------------------------------------------------------------


def streamed(spark: SparkSession, options: dict[str, str], folder: Path) -> DataFrame:
    return spark.readStream.format("nsq").options(**options, **reading_available_now(), diary=str(folder)).load()


def copy_all(spark: SparkSession, options: dict[str, str], folder: Path) -> tuple[int, int]:
    """Copy until no message waits; returns the numbers of rows and distinct bodies in the table."""

    def copy_waiting() -> None:
        stream = streamed(spark, options, folder)
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
        start_available_now(writer.option("path", str(folder / "table"))).awaitTermination()

    until_nothing_waits(options, copy_waiting)
    # Read by way of the sink's log, which leaves out files of uncommitted batches.
    bodies = spark.read.parquet(str(folder / "table")).select("body")
    return bodies.count(), bodies.distinct().count()


def copy_log(spark: SparkSession, options: dict[str, str], folder: Path) -> tuple[int, int]:
    """As `copy_all`, by offset: what the logs have at the start."""
    stream = streamed(spark, options, folder)
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    start_available_now(writer.option("path", str(folder / "table"))).awaitTermination()
    bodies = spark.read.parquet(str(folder / "table")).select("body")
    return bodies.count(), bodies.distinct().count()


def fill_lake(spark: SparkSession, options: dict[str, str], folder: Path) -> tuple[int, int]:
    """As `copy_log`, with the table of ``spark/jobs/lake.py``, and counted by a reader that is not Spark."""
    with ParquetTable(str(folder / "lake")) as table:
        stream = by_hour(streamed(spark, options, folder))
        writer = stream.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        start_available_now(writer.foreachBatch(table.write)).awaitTermination()
        table.compact(spark, datetime.now(UTC) + timedelta(days=1))
    rows = pyarrow.dataset.dataset(folder / "lake", format="parquet", partitioning="hive")
    bodies = rows.to_table(["body"]).column("body")
    return len(bodies), len(bodies.unique())


def waiting_bodies(spark: SparkSession, options: dict[str, str], topic: str) -> list[bytes]:
    """The bodies of another topic's messages. `options` may be a stream's."""
    common = ("channel", "spoolDir", "nsqdTcpAddresses", "nsqdHttpAddresses")
    mine = {name: options[name] for name in common} | {"subscribe": topic, "keepSpool": "86400000"}
    return [bytes(row.body) for row in spark.read.format("nsq").options(**mine).load().select("body").collect()]


# --- Another topic ----------------------------------------------------------------------------------------------------


def republish_all(spark: SparkSession, options: dict[str, str], folder: Path) -> tuple[int, int]:
    """Publish until no message waits; returns the numbers of messages and distinct bodies in the other topic.

    `dieAt` is an option of the writer.
    """
    source = {name: value for name, value in options.items() if name != "dieAt"}
    staging = folder / "staging"
    staging.mkdir(exist_ok=True)
    target = {
        "nsqdTcpAddresses": options["nsqdTcpAddresses"],
        "topic": f"{options['subscribe']}.copy",
        "publishMode": "staged",
        "stagingDir": str(staging),
        "mpubMessages": str(COMMAND),
        "diary": str(folder),
        "dieAt": options.get("dieAt", ""),
    }

    def republish_waiting() -> None:
        stream = streamed(spark, source, folder).select("body")
        writer = stream.writeStream.format("nsq").options(**target)
        start_available_now(writer.option("checkpointLocation", str(folder / "checkpoint"))).awaitTermination()

    until_nothing_waits(source, republish_waiting)
    copies = waiting_bodies(spark, options, target["topic"])
    return len(copies), len(set(copies))


# --- A handler --------------------------------------------------------------------------------------------------------


class Handler:
    """A handler that kills its worker or its executor at the n-th call, in a limited number of partitions."""

    def __init__(self, folder: Path, victim: str, most: int) -> None:
        self._folder = folder
        self._victim = victim
        self._most = most
        self._death: Death | None = None

    def __call__(self, message: Message) -> bool | None:
        if self._death is None:
            victim, kill = self._victim, _KILL[self._victim]
            self._death = Death(self._folder / "deaths", self._most, victim, 700, _partition(), kill)
        self._death.at(self._victim)
        number = int(message.body.split()[1])
        is_finished = number % 100 != 0 and (number % 10 != 0 or message.attempts > 1)
        _open(self._folder / CALLED).write(b"%s %d\n" % (message.body, is_finished))
        if not is_finished:
            message.requeue(delay=0)
        return is_finished or None


@functools.cache
def _open(path: Path) -> BinaryIO:
    return open(path, "ab", buffering=0)


def _partition() -> str:
    context = TaskContext.get()
    assert context is not None, "tasks have one"
    return f"{context.getLocalProperty('streaming.sql.batchId')}.{context.partitionId()}"


def handle_all(spark: SparkSession, options: dict[str, str], folder: Path) -> tuple[int, int]:
    """Handle until no message waits; returns the number of finished and dead messages, and of distinct ones.

    `dieAt` names the process to kill, and the number of kills.
    """
    topic, channel = options["subscribe"], options["channel"]
    own = ("subscribe", "channel", "spoolDir", "nsqdTcpAddresses", "nsqdHttpAddresses", "dieAt")
    victim, _, most = options.get("dieAt", ":0").partition(":")
    handler = Handler(folder, victim, int(most))
    # So that a partition publishes retries several times.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")

    def handle_waiting() -> None:
        pyspark_nsq.run_reader(
            spark,
            handler,
            topic=topic,
            channel=channel,
            spool_dir=options["spoolDir"],
            checkpoint=str(folder / "checkpoint"),
            nsqd_tcp_addresses=options["nsqdTcpAddresses"],
            nsqd_http_addresses=options["nsqdHttpAddresses"],
            max_tries=2,
            requeue_delay=0,
            available_now=True,
            **{name: value for name, value in options.items() if name not in own},
        ).awaitTermination()

    until_nothing_waits(options | {"subscribe": f"{topic},{topic}.{channel}.retry"}, handle_waiting)
    lines = (line.rsplit(b" ", 1) for line in (folder / CALLED).read_bytes().splitlines())
    done = [body for body, is_finished in lines if is_finished == b"1"]
    done += waiting_bodies(spark, options, f"{topic}.{channel}.dead")
    return len(done), len(set(done))
