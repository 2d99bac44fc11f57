"""Write the messages of a topic to a table of Parquet files, each message once for any reader.

    spark-submit lake.py --topic events --lookupd-http-address 10.0.0.5:4161 \\
        --checkpoint /shared/lake-checkpoint --path /shared/lake --compact-after 1

The table is partitioned by day and hour of publishing, in UTC. The job begins with the earliest message that is
retained. Whatever dies, the job continues where it stopped when it is started again, and no message is missing or there
twice: not for Spark, nor for a reader that knows nothing of Spark.

With --format delta the table is one of Delta, into which messages are merged by nsqd, topic and id.

With --spool the job reads a channel. A message that nsqd delivers again has the same nsqd, topic and id, and is dropped
if it was received in the last --within. This is measured by the time when Spark received a message, not by the time
when it was published, so that no message is dropped because it is old.
"""

import argparse
import sys

import pyspark_nsq
from pyspark_nsq import command_line


def parser() -> argparse.ArgumentParser:
    made = command_line.parser_of(__doc__, "lake.py")
    command_line.add_reading_flags(made)
    command_line.add_streaming_flags(made)
    command_line.add_table_flags(made, merges=True)
    made.add_argument(
        "--within", default="10 minutes", help='with --spool: how long ids are remembered (default: "10 minutes")'
    )
    return made


def job(given: argparse.Namespace) -> None:
    options = command_line.reading_from_earliest(given)
    spark = command_line.session("lake")
    messages = spark.readStream.format("nsq").options(**options).load()
    command_line.fill(pyspark_nsq.once(messages, within=given.within) if given.spool else messages, given)


if __name__ == "__main__":
    sys.exit(command_line.run(parser(), job, sys.argv[1:]))
