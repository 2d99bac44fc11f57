"""A handler of pynsq's on the cluster. Every tenth message it requeues once, every hundredth it never finishes."""

import functools
from pathlib import Path
from typing import BinaryIO

from pyspark import TaskContext
from pyspark.sql import SparkSession

import pyspark_nsq
from pyspark_nsq.reader import Message
from tests.spark.crash.copying import what_waits
from tests.spark.crash.death import Death, kill_the_jvm, kill_this_process
from tests.spark.crash.waiting import until_nothing_waits

CALLED = "called"
"""The handler's diary: for each call the body, and whether that finished it."""
HANDLER = "handler"
EXECUTOR = "executor"
_KILL = {"": kill_this_process, HANDLER: kill_this_process, EXECUTOR: kill_the_jvm}


class Handler:
    """Dies in so many partitions at the n-th of its calls, in the middle of what Spark gives it at once: it alone, or
    its executor."""

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
    """Messages that were finished or given up, with and without those that were so twice, when nothing waits. `dieAt`
    says who dies, and how often."""
    topic, channel = options["subscribe"], options["channel"]
    own = ("subscribe", "channel", "spoolDir", "nsqdTcpAddresses", "nsqdHttpAddresses", "dieAt")
    victim, _, most = options.get("dieAt", ":0").partition(":")
    handler = Handler(folder, victim, int(most))
    # Several times to a partition something is sent on.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")

    def handle_what_waits() -> None:
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

    until_nothing_waits(options | {"subscribe": f"{topic},{topic}.{channel}.retry"}, handle_what_waits)
    lines = (line.rsplit(b" ", 1) for line in (folder / CALLED).read_bytes().splitlines())
    done = [body for body, is_finished in lines if is_finished == b"1"]
    done += what_waits(spark, options, f"{topic}.{channel}.dead")
    return len(done), len(set(done))
