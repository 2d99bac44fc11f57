"""Copy the messages of a topic, or some of them, to another topic, which may be in another cluster.

    spark-submit nsq_to_nsq.py --topic events --channel orders --lookupd-http-address 10.0.0.5:4161 \\
        --spool /shared/nsq-spool --checkpoint /shared/nsq-to-nsq --where "get_json_object(text, '$.kind') = 'order'" \\
        --to-topic orders --to-nsqd-tcp-address 10.0.1.7:4150

--where is an SQL expression over the columns of docs/spark.md and `text`, the body as a string. No message is lost. A
batch that is run again after a crash is published again, except with --to-option publishMode=staged --to-option
stagingDir=FOLDER.
"""

import argparse
import sys

from pyspark.sql import functions as sql

from pyspark_nsq import command_line


def parser() -> argparse.ArgumentParser:
    made = command_line.parser_of(__doc__, "nsq_to_nsq.py")
    command_line.add_reading_flags(made)
    command_line.add_streaming_flags(made)
    command_line.add_writing_flags(made)
    made.add_argument("--where", default="true", metavar="SQL", help="condition for messages to copy")
    return made


def job(given: argparse.Namespace) -> None:
    source, target = command_line.reading(given), command_line.writing(given)
    spark = command_line.session("nsq_to_nsq")
    messages = spark.readStream.format("nsq").options(**source).load()
    chosen = messages.withColumn("text", sql.col("body").cast("string")).where(given.where).select("body")
    command_line.start(chosen.writeStream.format("nsq").options(**target), given)


if __name__ == "__main__":
    sys.exit(command_line.run(parser(), job, sys.argv[1:]))
