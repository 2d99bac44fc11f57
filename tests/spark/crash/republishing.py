"""A stream published to another topic, ``publishMode=staged``."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.crash.copying import what_waits
from tests.spark.crash.waiting import until_nothing_waits

COMMAND = 250
"""Messages in an MPUB."""


def republish_all(spark: SparkSession, options: dict[str, str], folder: Path) -> tuple[int, int]:
    """Messages and distinct bodies in the other topic, when nothing waits any more. `dieAt` is the writer's."""
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

    def republish_what_waits() -> None:
        stream = spark.readStream.format("nsq").options(**source, diary=str(folder)).load().select("body")
        writer = stream.writeStream.format("nsq").options(**target)
        writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()

    until_nothing_waits(source, republish_what_waits)
    copies = what_waits(spark, options, target["topic"])
    return len(copies), len(set(copies))
