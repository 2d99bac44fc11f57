"""Messages that are JSON objects, as events with a time and a key."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql


def events_of(messages: DataFrame, key: str, time: str | None) -> DataFrame:
    """Rows of `happened` and `key`, from these fields of the objects.

    For an event without a time in Unix seconds, the publish time counts; a missing key is (none).
    """
    text = sql.col("body").cast("string")
    happened = sql.get_json_object(text, f"$.{time}").try_cast("double") if time else sql.lit(None)
    return messages.select(
        sql.coalesce(sql.timestamp_micros((happened * 1_000_000).cast("bigint")), "timestamp").alias("happened"),
        sql.coalesce(sql.get_json_object(text, f"$.{key}"), sql.lit("(none)")).alias("key"),
    )
