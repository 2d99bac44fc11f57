"""A Spark session that runs queries for `benchmarks.spark`: a line of JSON in, a line out.

Two formats are for comparison only. `nsq-direct` reads NSQ as `nsq` does, but without a spool: a crash loses messages
that are finished and not yet written. `nsq-ready` plans as `nsq` does with mode=log, but its tasks read nothing: they
return rows that are made in advance. What it takes is Spark's own share, which no source can avoid.
"""

import json
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import pyspark_nsq
from nsq_compat.protocol import command_writer
from pyspark_nsq.connection import NsqConnection
from pyspark_nsq.decode import decode, finish
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.plan import Share
from pyspark_nsq.rows import SPOOLED, Origin, columns, log_columns, spooled
from pyspark_nsq.source import LogPartition, NsqDataSource, NsqPartition, NsqStreamReader

_READY_ROWS = 18_000
"""As many as mode=log gets in one answer."""


class DirectDataSource(NsqDataSource):
    @classmethod
    def name(cls) -> str:
        return "nsq-direct"

    def streamReader(self, schema: StructType) -> NsqStreamReader:  # noqa: N802 - Spark's name
        return DirectReader(self.options, schema)


class DirectReader(NsqStreamReader):
    def read(self, partition: NsqPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition.work, Share), "there are no orphans without a spool"
        for batch in _received(partition.work, self._options):
            yield columns(batch, self._names)


def _received(share: Share, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a task, in chunks."""
    origin = Origin(share.topic, options.channel, share.nsqd)
    with NsqConnection(share.nsqd, options) as connection:
        connection.subscribe(share.topic, options.channel)
        wanted, in_flight = share.count, connection.max_rdy_count
        connection.send(command_writer.ready(min(in_flight, wanted)))
        while wanted > 0:
            blocks = connection.receive(options.idle_timeout)
            while sum(len(each.starts) - 1 for each in blocks) < min(in_flight // 2, wanted) and (
                more := connection.receive(options.idle_timeout)
            ):
                blocks += more
            if not blocks:
                break
            batch = decode(blocks)
            wanted -= len(batch)
            connection.send(command_writer.ready(min(in_flight, max(wanted, 0))) + finish(batch.column("id")))
            yield spooled(origin, batch)
        connection.end_session()


class ReadyDataSource(NsqDataSource):
    @classmethod
    def name(cls) -> str:
        return "nsq-ready"

    def streamReader(self, schema: StructType) -> NsqStreamReader:  # noqa: N802 - Spark's name
        return ReadyReader(self.options, schema)


class ReadyReader(NsqStreamReader):
    def read(self, partition: NsqPartition | LogPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogPartition), "it is used with mode=log"
        work = partition.work
        message = {"id": "0123456789abcdef", "body": b"x" * 200, "timestamp_ns": time.time_ns(), "attempts": 1}
        messages = pa.RecordBatch.from_pylist([message] * _READY_ROWS, schema=SPOOLED)
        offsets = pa.array(np.arange(_READY_ROWS, dtype=np.int64))
        ready = log_columns(messages, offsets, self._names, work.topic, work.tcp, work.nsqd)
        for begin in range(work.begin, work.end, _READY_ROWS):
            yield ready.slice(0, work.end - begin)


def run(spark: SparkSession, asked: dict[str, Any]) -> dict[str, float]:
    """Run a query until no message waits; returns rows, seconds of its micro-batches, and total seconds."""
    began = time.monotonic()
    writer = spark.readStream.format(asked["format"]).options(**asked["options"]).load().writeStream
    writer = writer.format(asked["sink"]).option("checkpointLocation", f"{asked['folder']}/checkpoint")
    if asked["sink"] != "noop":
        writer = writer.option("path", f"{asked['folder']}/table")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [each for each in query.recentProgress if each["numInputRows"]]
    seconds = time.monotonic() - began
    shutil.rmtree(asked["folder"])
    return {
        "rows": sum(each["numInputRows"] for each in batches),
        "batch_seconds": sum(each["durationMs"]["triggerExecution"] for each in batches) / 1000,
        "seconds": seconds,
    }


def main() -> None:
    builder = SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(name, "127.0.0.1")
    spark = builder.getOrCreate()
    pyspark_nsq.register(spark)
    spark.dataSource.register(DirectDataSource)
    spark.dataSource.register(ReadyDataSource)
    for line in sys.stdin:
        print(json.dumps(run(spark, json.loads(line))), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
