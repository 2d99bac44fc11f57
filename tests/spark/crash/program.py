"""A user's program: copies into a table what waits, until nothing does, and counts what is there.

program.py MASTER. First it says who its JVM is, for whoever wants to kill it. Then for each line of JSON, options of
the source and a folder for `checkpoint`, `table` and the source's diary, a line [rows, distinct bodies].
"""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_nsq.nodes import HttpFailed, ask
from tests.spark.crash.dying_source import DyingDataSource


def session(master: str) -> SparkSession:
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(name, "127.0.0.1")
    # A JVM killed while it began its very first batch leaves a checkpoint that is neither there nor not.
    builder = builder.config("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
    return builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()


def copy_what_waits(spark: SparkSession, options: dict[str, str], folder: Path) -> None:
    stream = spark.readStream.format("nsq").options(**options, diary=str(folder)).load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    writer.option("path", str(folder / "table")).trigger(availableNow=True).start().awaitTermination()


def waiting(options: dict[str, str]) -> tuple[int, int]:
    """How many messages wait for the channel, and how many were given to somebody; of an nsqd that is there."""
    found = [0, 0]
    for address in options["nsqdHttpAddresses"].split(","):
        stats = ask(address, "stats", 5, format="json", topic=options["subscribe"], channel=options["channel"])
        for topic in stats["topics"]:
            found[0] += topic["depth"] + sum(channel["depth"] for channel in topic["channels"])
            found[1] += sum(channel["in_flight_count"] for channel in topic["channels"])
    return found[0], found[1]


def is_empty(options: dict[str, str]) -> bool:
    """Whether nothing is left, once nothing is in flight to somebody who died."""
    while True:
        try:
            depth, in_flight = waiting(options)
        except HttpFailed:
            in_flight = 1
        if not in_flight:
            return not depth
        time.sleep(0.1)


def copy_all(spark: SparkSession, options: dict[str, str], folder: Path) -> tuple[int, int]:
    """Rows and distinct bodies, when nothing waits any more."""
    over = False
    while not over:
        # Once more when nothing is left: what was set aside for a later batch has one then.
        over = is_empty(options)
        copy_what_waits(spark, options, folder)
    # Through the sink's own log: files of batches that were never committed are no rows.
    bodies = spark.read.parquet(str(folder / "table")).select("body")
    return bodies.count(), bodies.distinct().count()


def main() -> None:
    spark = session(sys.argv[1])
    spark.dataSource.register(DyingDataSource)
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "a session of this process has one"
    print(jvm.java.lang.ProcessHandle.current().pid(), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(copy_all(spark, asked["options"], Path(asked["folder"]))), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
