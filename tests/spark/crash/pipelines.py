"""For spark-submit: four of the pipelines in ``spark/jobs`` one after the other, and what they left, as JSON.

pipelines.py ASKED(JSON): `source` and `target` are flags, `topic` what is published to, `folder` where everything goes.
"""

import importlib
import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from pyspark_nsq import command_line


def run(name: str, *arguments: object) -> None:
    job = importlib.import_module(f"spark.jobs.{name}")
    status = command_line.run(job.parser(), job.job, [str(each) for each in arguments])
    if status:
        sys.exit(status)


def main() -> None:
    asked = json.loads(sys.argv[1])
    source, target, topic, folder = asked["source"], asked["target"], asked["topic"], Path(asked["folder"])

    def stream(name: str) -> list[object]:
        return [*source, f"--topic={topic}", f"--channel={name}", "--once", f"--checkpoint={folder / name}"]

    run("publisher", f"--path={folder / 'lines'}", f"--to-topic={topic}", *target)
    run("nsq_to_parquet", *stream("table"), f"--path={folder / 'rows'}")
    times = ["--key=page", "--time=at", "--watermark=0 seconds"]
    run("windowed_counts", *stream("windows"), *times, f"--path={folder / 'counts'}")
    run("nsq_to_nsq", *stream("copy"), f"--to-topic={topic}.copy", *target)
    run("batch_drain", *source, f"--topic={topic}.copy", "--channel=drain", f"--path={folder / 'drained'}")
    spark = SparkSession.builder.getOrCreate()
    found = {}
    for name in ("rows", "drained"):
        bodies = spark.read.parquet(str(folder / name)).select("body")
        found[name] = [bodies.count(), bodies.distinct().count()]
    found["counted"] = spark.read.parquet(str(folder / "counts")).groupBy().sum("events").first()[0]
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
