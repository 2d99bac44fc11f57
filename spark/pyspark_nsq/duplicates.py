"""De-duplication of a stream without dropping late messages."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql


def once(messages: DataFrame, keys: Sequence[str], within: str) -> DataFrame:
    """Drop the messages whose keys were received during the preceding time `within`.

    The watermark is on the time when Spark received a batch, which is part of the checkpoint. With a watermark on
    `timestamp`, Spark would drop a message that waited long at nsqd.
    """
    received = messages.withColumn("_received", sql.current_timestamp()).withWatermark("_received", within)
    return received.dropDuplicatesWithinWatermark(list(keys)).drop("_received")
