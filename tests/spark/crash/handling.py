"""A pynsq handler on the cluster. It requeues every tenth message once and never finishes every hundredth."""

import functools
from pathlib import Path
from typing import BinaryIO

from pyspark import TaskContext
from pyspark.sql import SparkSession

import pyspark_nsq
from pyspark_nsq.reader import Message
from tests.spark.crash.copying import waiting_bodies
from tests.spark.crash.death import Death, kill_the_jvm, kill_this_process
from tests.spark.crash.waiting import until_nothing_waits

CALLED = "called"
"""The handler's diary: for each call the body, and whether the message was finished."""
HANDLER = "handler"
EXECUTOR = "executor"
_KILL = {"": kill_this_process, HANDLER: kill_this_process, EXECUTOR: kill_the_jvm}


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
