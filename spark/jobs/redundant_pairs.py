"""Write a topic that producers publish to two nsqd to a table of Parquet files, each message once.

    spark-submit redundant_pairs.py --topic events --channel pairs \\
        --nsqd-tcp-address 10.0.0.7:4150 --nsqd-tcp-address 10.0.0.8:4150 \\
        --nsqd-http-address 10.0.0.7:4151 --nsqd-http-address 10.0.0.8:4151 \\
        --spool /shared/nsq-spool --checkpoint /shared/redundant-pairs --path /shared/events

The two copies of a message have different ids and the same body, so they are recognized by a digest of the body. It is
remembered for --within after Spark received the first copy; choose a time longer than one of the nsqd may be down or
lag. Two distinct messages must not have the same body; add an id if necessary.
"""

import argparse
import sys

from pyspark.sql import functions as sql

import pyspark_nsq
from pyspark_nsq import command_line


def parser() -> argparse.ArgumentParser:
    made = command_line.parser_of(__doc__, "redundant_pairs.py")
    command_line.add_reading_flags(made)
    command_line.add_streaming_flags(made)
    made.add_argument("--path", required=True, metavar="FOLDER", help="the table")
    made.add_argument("--within", default="1 hour", help='how long digests are remembered (default: "1 hour")')
    return made


def job(given: argparse.Namespace) -> None:
    options = command_line.reading(given)
    spark = command_line.session("redundant_pairs")
    messages = spark.readStream.format("nsq").options(**options).load()
    digests = messages.withColumn("digest", sql.sha2("body", 256))
    rows = pyspark_nsq.once(digests, ["topic", "digest"], given.within)
    command_line.start(rows.writeStream.format("parquet").option("path", given.path), given)


if __name__ == "__main__":
    sys.exit(command_line.run(parser(), job, sys.argv[1:]))
