"""A user's program on Spark Connect: reads the waiting messages as a batch and as a stream.

connect_program.py OPTIONS(JSON) FOLDER: options of the source without a channel, and a folder for `checkpoint` and
`table`.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import pyspark_nsq


def main() -> None:
    options, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    pyspark_nsq.register(spark)
    batch = spark.read.format("nsq").options(**options, channel="batch").load()
    once = sorted(bytes(row.body).decode() for row in batch.select("body").collect())
    stream = spark.readStream.format("nsq").options(**options, channel="stream").load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start(str(folder / "table")).awaitTermination()
    table = spark.read.parquet(str(folder / "table"))
    streamed = sorted(bytes(row.body).decode() for row in table.select("body").collect())
    print(json.dumps([type(spark).__module__, once, streamed]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
