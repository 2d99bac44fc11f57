"""A stream published to another topic with ``publishMode=staged``."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.crash.copying import waiting_bodies
from tests.spark.crash.waiting import until_nothing_waits

COMMAND = 250
"""Messages in an MPUB."""


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
        stream = spark.readStream.format("nsq").options(**source, diary=str(folder)).load().select("body")
        writer = stream.writeStream.format("nsq").options(**target)
        writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()

    until_nothing_waits(source, republish_waiting)
    copies = waiting_bodies(spark, options, target["topic"])
    return len(copies), len(set(copies))
