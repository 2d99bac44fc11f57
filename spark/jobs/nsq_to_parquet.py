"""Write the messages of a topic to a table of Parquet files, each message once.

    spark-submit nsq_to_parquet.py --topic events --channel parquet --lookupd-http-address 10.0.0.5:4161 \\
        --spool /shared/nsq-spool --checkpoint /shared/nsq-to-parquet --path /shared/events

A message that nsqd delivers again has the same nsqd, topic and id, and is dropped if it was received in the last
--within. This is measured by the time when Spark received a message, not by the time when it was published, so that no
message is dropped because it is old. The table is partitioned by day of publishing.
"""

import argparse
import sys

from pyspark.sql import functions as sql

import pyspark_nsq
from pyspark_nsq import command_line


def parser() -> argparse.ArgumentParser:
    made = command_line.parser_of(__doc__, "nsq_to_parquet.py")
    command_line.add_reading_flags(made)
    command_line.add_streaming_flags(made)
    made.add_argument("--path", required=True, metavar="FOLDER", help="the table")
    made.add_argument("--within", default="10 minutes", help='how long ids are remembered (default: "10 minutes")')
    return made


def job(given: argparse.Namespace) -> None:
    options = command_line.reading(given)
    spark = command_line.session("nsq_to_parquet")
    messages = spark.readStream.format("nsq").options(**options).load()
    rows = pyspark_nsq.once(messages, within=given.within).withColumn("day", sql.to_date("timestamp"))
    command_line.start(rows.writeStream.format("parquet").partitionBy("day").option("path", given.path), given)


if __name__ == "__main__":
    sys.exit(command_line.run(parser(), job, sys.argv[1:]))
