"""A user's program: runs a query until no message waits, and counts its results.

program.py MASTER. It first prints the process id of its JVM, so that tests can kill it. It then reads lines of JSON (a
work, options of the source, and a folder for its files) and answers each with [messages, distinct bodies].
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.crash.dying_source import DyingDataSource
from tests.spark.crash.works import copy_all, copy_log, fill_lake, handle_all, republish_all

WORKS = {
    "copy": copy_all,
    "copy_log": copy_log,
    "fill_lake": fill_lake,
    "handle": handle_all,
    "republish": republish_all,
}


def session(master: str) -> SparkSession:
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(name, "127.0.0.1")
    # A JVM killed at the start of its first batch leaves an incomplete checkpoint.
    builder = builder.config("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false")
    return builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()


def main() -> None:
    spark = session(sys.argv[1])
    spark.dataSource.register(DyingDataSource)
    jvm = spark.sparkContext._jvm
    assert jvm is not None, "a session of this process has one"
    print(jvm.java.lang.ProcessHandle.current().pid(), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        counts = WORKS[asked["work"]](spark, asked["options"], Path(asked["folder"]))
        print(json.dumps(counts), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
