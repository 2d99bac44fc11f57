"""Publish the rows of files to a topic, one message per row.

    spark-submit publisher.py --format parquet --path /shared/results --to-topic results \\
        --to-nsqd-tcp-address 10.0.0.7:4150 --to-nsqd-tcp-address 10.0.0.8:4150

With --format text every line is a message; empty lines are skipped, because nsqd refuses empty messages. With any other
format every row is a message, as JSON. If the job fails and is run again, rows may be published twice; with --to-option
publishMode=staged --to-option stagingDir=FOLDER a job whose tasks fail publishes nothing.
"""

import argparse
import sys

from pyspark_nsq import command_line

FORMATS = ("text", "json", "csv", "parquet", "orc")


def parser() -> argparse.ArgumentParser:
    made = command_line.parser_of(__doc__, "publisher.py")
    command_line.add_writing_flags(made)
    made.add_argument("--path", required=True, help="a file, or a folder of files")
    made.add_argument("--format", choices=FORMATS, default="text", help="(default: text)")
    return made


def job(given: argparse.Namespace) -> None:
    target = command_line.writing(given)
    spark = command_line.session("publisher")
    rows = spark.read.format(given.format).load(given.path)
    bodies = rows.where("value != ''") if given.format == "text" else rows.selectExpr("to_json(struct(*)) AS value")
    count = bodies.count()
    bodies.write.format("nsq").mode("append").options(**target).save()
    print(f"published {count:,} messages to {given.to_topic}", flush=True)


if __name__ == "__main__":
    sys.exit(command_line.run(parser(), job, sys.argv[1:]))
