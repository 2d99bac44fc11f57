"""Divide events, which are JSON objects, into sessions by key, and write these to a table of Parquet files.

    spark-submit sessions.py --topic events --lookupd-http-address 10.0.0.5:4161 \\
        --checkpoint /shared/sessions-checkpoint --path /shared/sessions --key user --time at --gap "30 minutes"

A session has the events of a key that follow each other within --gap: by the time when they happened, even if they are
published in another order. A row has the key, the start and the end (--gap after the last event) and the number of
events. It is written once, when no event can belong to the session any more: when events have happened --late after its
end. Events that arrive later than --late are dropped, and counted in the progress line.
"""

import argparse
import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

from pyspark_nsq import command_line
from pyspark_nsq.events import events_of
from pyspark_nsq.parquet_table import by_hour


def parser() -> argparse.ArgumentParser:
    made = command_line.parser_of(__doc__, "sessions.py")
    command_line.add_reading_flags(made)
    command_line.add_streaming_flags(made)
    command_line.add_table_flags(made)
    made.add_argument("--key", required=True, metavar="FIELD", help="field of the JSON object with the key")
    made.add_argument(
        "--time", metavar="FIELD", help="field with the time in Unix seconds (default: time of publishing)"
    )
    made.add_argument("--gap", default="30 minutes", help='(default: "30 minutes")')
    made.add_argument("--late", default="10 minutes", help='how late an event may be (default: "10 minutes")')
    return made


def sessions(happened: DataFrame, given: argparse.Namespace) -> DataFrame:
    """Rows of key, start, end and events. An open session is state in the checkpoint."""
    by_session = happened.withWatermark("happened", given.late).groupBy(
        sql.session_window("happened", given.gap), "key"
    )
    counted = by_session.agg(sql.count("*").alias("events"))
    return counted.select("key", "session_window.start", "session_window.end", "events")


def job(given: argparse.Namespace) -> None:
    options = command_line.reading_from_earliest(given)
    spark = command_line.session("sessions")
    messages = spark.readStream.format("nsq").options(**options).load()
    rows = sessions(events_of(messages, given.key, given.time), given)
    command_line.fill(rows, given, command_line.Part(given.path, lambda each: by_hour(each, "start")))


if __name__ == "__main__":
    sys.exit(command_line.run(parser(), job, sys.argv[1:]))
