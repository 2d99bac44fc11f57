"""Dropping messages that have been there before, without dropping any that have not."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql


def once(messages: DataFrame, keys: Sequence[str], within: str) -> DataFrame:
    """A stream of messages, without those whose keys came in the time `within` before them.

    That time is measured by when Spark received a batch, which is in the checkpoint with it. Measured by `timestamp`, a
    message that waited long at nsqd would come behind the watermark, and Spark drops what does.
    """
    received = messages.withColumn("_received", sql.current_timestamp()).withWatermark("_received", within)
    return received.dropDuplicatesWithinWatermark(list(keys)).drop("_received")
