"""A user's program: copies what waits into a table, and says who its JVM is, for whoever wants to kill it.

stream_program.py OPTIONS(JSON) FOLDER: `checkpoint` and `table` are in the folder.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import pyspark_nsq


def main() -> None:
    options, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(name, "127.0.0.1")
    # A JVM killed while it began its very first batch leaves a checkpoint that is neither there nor not.
    builder = builder.config("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
    spark = builder.getOrCreate()
    pyspark_nsq.register(spark)
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "a session of this process has one"
    print(jvm.java.lang.ProcessHandle.current().pid(), flush=True)
    writer = spark.readStream.format("nsq").options(**options).load().writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "table"))
    writer.trigger(availableNow=True).start().awaitTermination()
    # Through the sink's own log: files of batches that were never committed are no rows.
    bodies = spark.read.parquet(str(folder / "table")).select("body")
    print(json.dumps([bodies.count(), bodies.distinct().count()]), flush=True)


if __name__ == "__main__":
    main()
