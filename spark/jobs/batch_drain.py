"""Write the messages that wait in a channel to files, and end.

    spark-submit batch_drain.py --topic events --channel nightly --lookupd-http-address 10.0.0.5:4161 \\
        --spool /shared/nsq-spool --format json --path /shared/events/2026-11-21

The files are written before the spool is acknowledged. If the job fails in between, the received messages are in its
spool, and `python -m pyspark_nsq.spool_tool` shows them and publishes them again. With --format json, a body that is
not UTF-8 is written in base64, as `body_base64`.
"""

import argparse
import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

import pyspark_nsq
from pyspark_nsq import command_line

FORMATS = ("parquet", "json", "orc")


def as_text(messages: DataFrame) -> DataFrame:
    """Convert bodies to strings; a body that is not UTF-8 becomes `body_base64`."""
    text = sql.col("body").cast("string")
    is_text = sql.is_valid_utf8(text)
    return messages.withColumn("body_base64", sql.when(~is_text, sql.base64("body"))).withColumn(
        "body", sql.when(is_text, text)
    )


def parser() -> argparse.ArgumentParser:
    made = command_line.parser_of(__doc__, "batch_drain.py")
    command_line.add_reading_flags(made)
    made.add_argument("--path", required=True, metavar="FOLDER", help="target; existing files stay")
    made.add_argument("--format", choices=FORMATS, default="parquet", help="(default: parquet)")
    return made


def job(given: argparse.Namespace) -> None:
    if given.spool is None:
        raise command_line.UsageError("--spool is required: the job empties a channel")
    options = command_line.reading_once(given)
    spark = command_line.session("batch_drain")
    messages = spark.read.format("nsq").options(**options).load()
    rows = as_text(messages) if given.format == "json" else messages
    print(f"draining {given.topic}, channel {given.channel}, through the spool {given.spool}", flush=True)
    rows.write.mode("append").format(given.format).save(given.path)
    print(f"{pyspark_nsq.ack(messages):,} messages are in {given.path}", flush=True)


if __name__ == "__main__":
    sys.exit(command_line.run(parser(), job, sys.argv[1:]))
