"""For spark-submit: run the pipelines in ``spark/jobs`` one after the other, and print their results as JSON.

pipelines.py REQUEST(JSON): `nsqd` has the TCP and HTTP addresses of two nsqd, `topic` is the target, `spool` and
`folder` are folders. The last line has for each pipeline the number of messages and of distinct ones.
"""

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pyspark_nsq import command_line


def run(name: str, *arguments: object) -> None:
    job = importlib.import_module(f"spark.jobs.{name}")
    status = command_line.run(job.parser(), job.job, [str(each) for each in arguments])
    if status:
        sys.exit(status)


def counted(bodies: DataFrame) -> list[int]:
    return [bodies.count(), bodies.distinct().count()]


def main() -> None:
    asked = json.loads(sys.argv[1])
    nsqd, topic, folder = asked["nsqd"], asked["topic"], Path(asked["folder"])

    def source(nodes: Sequence[Sequence[str]]) -> list[str]:
        flags = [
            f"--{kind}-address={node[turn]}" for node in nodes for turn, kind in enumerate(("nsqd-tcp", "nsqd-http"))
        ]
        return [*flags, f"--spool={asked['spool']}", "--option=partitionsPerNsqd=2"]

    def stream(name: str, of: str = topic, nodes: Sequence[Sequence[str]] = nsqd[:1]) -> list[str]:
        own = [f"--topic={of}", f"--channel={name}", "--once", f"--checkpoint={folder / 'checkpoints' / name}"]
        return [*source(nodes), *own]

    def publish(to: str, node: Sequence[str]) -> None:
        run("publisher", f"--path={folder / 'lines'}", f"--to-topic={to}", f"--to-nsqd-tcp-address={node[0]}")

    publish(topic, nsqd[0])
    run("lake", *stream("table"), f"--path={folder / 'rows'}")
    times = ["--key=page", "--time=at", "--watermark=0 seconds"]
    run("windowed_counts", *stream("windows"), *times, f"--path={folder / 'counts'}")
    run("sessions", *stream("sessions"), *times[:2], "--late=0 seconds", f"--path={folder / 'sessions'}")
    schema = ["--schema=page STRING, at DOUBLE", f"--bad-path={folder / 'bad'}"]
    run("json_lake", *stream("json"), *schema, f"--path={folder / 'columns'}")
    run("nsq_to_nsq", *stream("copy"), f"--to-topic={topic}.copy", f"--to-nsqd-tcp-address={nsqd[0][0]}")
    run("batch_drain", *source(nsqd[:1]), f"--topic={topic}.copy", "--channel=drain", f"--path={folder / 'drained'}")
    for node in nsqd:
        publish(f"{topic}.pair", node)
    run("dedupe", *stream("pair", f"{topic}.pair", nsqd), f"--path={folder / 'single'}")
    read = SparkSession.builder.getOrCreate().read
    table, drained, single = (read.parquet(str(folder / name)).select("body") for name in ("rows", "drained", "single"))
    events, visits = (
        read.parquet(str(folder / name)).groupBy().sum("events").first()[0] for name in ("counts", "sessions")
    )
    columns = read.parquet(str(folder / "columns")).where("page IS NOT NULL").select("at")
    found = {"lake": counted(table), "batch_drain": counted(drained), "dedupe": counted(single)}
    # The messages published here are read below.
    found |= {"publisher": found["lake"], "nsq_to_nsq": found["batch_drain"]}
    found |= {"json_lake": counted(columns), "sessions": [visits, visits], "windowed_counts": [events, events]}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
