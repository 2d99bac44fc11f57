"""A stream into a table, and what else is to be counted of a topic."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.crash.waiting import until_nothing_waits


def copy_all(spark: SparkSession, options: dict[str, str], folder: Path) -> tuple[int, int]:
    """Rows and distinct bodies in the table, when nothing waits any more."""

    def copy_what_waits() -> None:
        stream = spark.readStream.format("nsq").options(**options, diary=str(folder)).load()
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
        writer.option("path", str(folder / "table")).trigger(availableNow=True).start().awaitTermination()

    until_nothing_waits(options, copy_what_waits)
    # Through the sink's own log: files of batches that were never committed are no rows.
    bodies = spark.read.parquet(str(folder / "table")).select("body")
    return bodies.count(), bodies.distinct().count()


def what_waits(spark: SparkSession, options: dict[str, str], topic: str) -> list[bytes]:
    """The bodies of another topic's messages. `options` may be a stream's."""
    common = ("channel", "spoolDir", "nsqdTcpAddresses", "nsqdHttpAddresses")
    mine = {name: options[name] for name in common} | {"subscribe": topic}
    return [bytes(row.body) for row in spark.read.format("nsq").options(**mine).load().select("body").collect()]
