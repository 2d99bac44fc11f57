"""Write the messages of a topic that are JSON objects of a given schema to a table, and all others to another table.

    spark-submit json_lake.py --topic events --lookupd-http-address 10.0.0.5:4161 \\
        --checkpoint /shared/json-checkpoint --path /shared/events --bad-path /shared/events-bad \\
        --schema "page STRING, at DOUBLE, tags ARRAY<STRING>"

The schema is Spark SQL's. A field that an object does not have is null; a field that the schema does not have is left
out. A message is bad if it is not UTF-8, not a JSON object, or has a value of another type. The table has a column for
each field, and nsq_id, nsq_topic, nsq_nsqd, nsq_offset and nsq_timestamp, by which a row is found in the topic. The
table of bad messages has their bytes, and a reason. Both tables are as those of lake.py: by day and hour of publishing,
each message once for any reader. With --format delta they are tables of Delta, into which messages are merged by nsqd,
topic and id.
"""

import argparse
import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from pyspark_nsq import command_line
from pyspark_nsq.command_line import Part
from pyspark_nsq.parquet_table import by_hour

_ORIGIN = ("id", "topic", "nsqd", "offset", "timestamp")
_KEYS = ("nsq_nsqd", "nsq_topic", "nsq_id")
_CORRUPT = "_corrupt"


def parser() -> argparse.ArgumentParser:
    made = command_line.parser_of(__doc__, "json_lake.py")
    command_line.add_reading_flags(made)
    command_line.add_streaming_flags(made)
    command_line.add_table_flags(made, merges=True)
    made.add_argument("--bad-path", required=True, metavar="FOLDER", help="the table of bad messages")
    schema = made.add_mutually_exclusive_group(required=True)
    schema.add_argument("--schema", metavar="DDL", help='such as "page STRING, at DOUBLE"')
    schema.add_argument("--schema-file", type=Path, metavar="FILE", help="a file with the schema")
    return made


def parsed(messages: DataFrame, schema: str) -> DataFrame:
    """Add the columns `record`, and `reason`, which is null for a good message."""
    text = sql.col("body").cast("string")
    settings = {"columnNameOfCorruptRecord": _CORRUPT}
    record = sql.from_json(text, f"{schema}, {_CORRUPT} STRING", settings)
    reason = (
        sql.when(~sql.is_valid_utf8(text), "not UTF-8")
        .when(~sql.startswith(sql.ltrim(text), sql.lit("{")), "not a JSON object")
        .when(sql.col(f"record.{_CORRUPT}").isNotNull() | sql.col("record").isNull(), "not JSON of the schema")
    )
    return messages.withColumn("record", record).withColumn("reason", reason)


def good(rows: DataFrame) -> DataFrame:
    origin = [sql.col(name).alias(f"nsq_{name}") for name in _ORIGIN]
    records = rows.where("reason IS NULL").select("record.*", *origin).drop(_CORRUPT)
    return by_hour(records, "nsq_timestamp")


def bad(rows: DataFrame) -> DataFrame:
    return by_hour(rows.where("reason IS NOT NULL").drop("record"))


def job(given: argparse.Namespace) -> None:
    options = command_line.reading_from_earliest(given)
    schema = given.schema or given.schema_file.read_text().strip()
    spark = command_line.session("json_lake")
    messages = spark.readStream.format("nsq").options(**options).load()
    tables = (Part(given.path, good, _KEYS), Part(given.bad_path, bad))
    command_line.fill(parsed(messages, schema), given, *tables)


if __name__ == "__main__":
    sys.exit(command_line.run(parser(), job, sys.argv[1:]))
