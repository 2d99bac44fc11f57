"""A stream into a table, and the messages of another topic."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.crash.waiting import until_nothing_waits


def copy_all(spark: SparkSession, options: dict[str, str], folder: Path) -> tuple[int, int]:
    """Copy until no message waits; returns the numbers of rows and distinct bodies in the table."""

    def copy_waiting() -> None:
        stream = spark.readStream.format("nsq").options(**options, diary=str(folder)).load()
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
        writer.option("path", str(folder / "table")).trigger(availableNow=True).start().awaitTermination()

    until_nothing_waits(options, copy_waiting)
    # Read by way of the sink's log, which leaves out files of uncommitted batches.
    bodies = spark.read.parquet(str(folder / "table")).select("body")
    return bodies.count(), bodies.distinct().count()


def waiting_bodies(spark: SparkSession, options: dict[str, str], topic: str) -> list[bytes]:
    """The bodies of another topic's messages. `options` may be a stream's."""
    common = ("channel", "spoolDir", "nsqdTcpAddresses", "nsqdHttpAddresses")
    mine = {name: options[name] for name in common} | {"subscribe": topic}
    return [bytes(row.body) for row in spark.read.format("nsq").options(**mine).load().select("body").collect()]
