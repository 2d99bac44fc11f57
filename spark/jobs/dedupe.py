"""Write a topic that has duplicates to a table of Parquet files, each message once.

    spark-submit dedupe.py --topic events --lookupd-http-address 10.0.0.5:4161 \\
        --checkpoint /shared/dedupe-checkpoint --path /shared/once --within "1 hour"

    spark-submit dedupe.py --topic events --lookupd-http-address 10.0.0.5:4161 \\
        --checkpoint /shared/dedupe-checkpoint --path /shared/once --slots 34168399

Messages of a topic with the same --key are the same, by default those with the same body: producers that publish each
message to two nsqd give the copies different ids. If two distinct messages may have the same body, add an id to it.

Without --slots, de-duplication is exact: a key is remembered for --within after Spark received it. Choose a time longer
than one of the nsqd may be down or lag. The state grows with the messages of that time. With --slots, the state has a
fixed size, 16 bytes a slot: a slot has the last key that was hashed to it. A message whose key was overwritten may pass
twice; no message is dropped that was not seen.
"""

import argparse
import sys

from pyspark.sql import functions as sql

import pyspark_nsq
from pyspark_nsq import command_line
from pyspark_nsq.duplicates import ROCKSDB, once_in_slots


def parser() -> argparse.ArgumentParser:
    made = command_line.parser_of(__doc__, "dedupe.py")
    command_line.add_reading_flags(made)
    command_line.add_streaming_flags(made)
    command_line.add_table_flags(made)
    made.add_argument("--key", default="body", metavar="SQL", help="over the columns of docs/spark.md (default: body)")
    size = made.add_mutually_exclusive_group()
    size.add_argument("--within", default="1 hour", help='how long keys are remembered (default: "1 hour")')
    size.add_argument("--slots", type=command_line.positive, help="remember the last key of each of this many slots")
    return made


def job(given: argparse.Namespace) -> None:
    options = command_line.reading_from_earliest(given)
    spark = command_line.session("dedupe").newSession()
    pyspark_nsq.register(spark)
    messages = spark.readStream.format("nsq").options(**options).load()
    # Without its body, all messages of which the key is null would be the same.
    key = f"concat(encode(topic, 'UTF-8'), X'00', coalesce(CAST({given.key} AS BINARY), body))"
    if given.slots:
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        rows = once_in_slots(messages, key, given.slots)
    else:
        digests = messages.withColumn("_digest", sql.expr(f"sha2({key}, 256)"))
        rows = pyspark_nsq.once(digests, ["_digest"], given.within).drop("_digest")
    command_line.fill(rows, given)


if __name__ == "__main__":
    sys.exit(command_line.run(parser(), job, sys.argv[1:]))
