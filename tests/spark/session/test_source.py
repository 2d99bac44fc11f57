"""The data source in a real Spark."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import pyspark_nsq
from pyspark_nsq.spark_versions import reading_available_now, start_available_now

pytestmark = pytest.mark.timeout(300)


def streamed(spark: SparkSession, **options: str) -> DataFrame:
    """A stream that `start_available_now` ends."""
    return spark.readStream.format("nsq").options(**options, **reading_available_now()).load()


def run_to_the_end(frame: DataFrame, checkpoint: Path, **sink: object) -> int:
    """Run a query until it has read what waits, and return the number of rows that it read."""
    writer = frame.writeStream.option("checkpointLocation", str(checkpoint))
    if "each" in sink:
        writer = writer.foreachBatch(sink["each"])
    else:
        writer = writer.format("parquet").option("path", str(sink["path"]))
    query = start_available_now(writer)
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


def bodies_of(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.body) for row in frame.select("body").collect())


def test_two_runs_write_every_message_to_the_table_once(spark, written, publish, tmp_path):
    stream = streamed(spark, **written, maxMessagesPerTrigger="300")
    bodies = publish(500)
    assert run_to_the_end(stream, tmp_path / "checkpoint", path=tmp_path / "table") == 500
    bodies += publish(3)
    assert run_to_the_end(stream, tmp_path / "checkpoint", path=tmp_path / "table") == 3
    assert bodies_of(spark.read.parquet(str(tmp_path / "table"))) == sorted(bodies)


def test_a_batch_that_fails_after_spooling_is_the_same_after_a_restart(spark, written, publish, tmp_path):
    bodies = publish(20)
    seen: list[list[bytes]] = []
    failures = itertools.count(1)

    def handle(frame: DataFrame, _: int) -> None:
        seen.append(bodies_of(frame))
        seen.append(bodies_of(frame))
        if next(failures) == 1:
            raise RuntimeError("the sink failed")

    stream = streamed(spark, **written)
    with pytest.raises(Exception, match="the sink failed"):
        run_to_the_end(stream, tmp_path / "checkpoint", each=handle)
    run_to_the_end(stream, tmp_path / "checkpoint", each=handle)
    assert seen == [sorted(bodies)] * 4


def test_a_batch_read_gives_every_action_the_same_rows_and_only_selected_columns(spark, written, publish):
    bodies = publish(10)
    frame = spark.read.format("nsq").schema("body binary, timestamp_ns bigint").options(**written).load()
    assert frame.columns == ["body", "timestamp_ns"]
    assert bodies_of(frame) == sorted(bodies)
    publish(5)
    assert bodies_of(frame) == sorted(bodies)


def test_headers_are_a_column_of_messages_from_a_channel(spark, written, publish, nsqd, topic):
    (plain,) = publish(1)
    assert nsqd.asks("POST", f"/pub?topic={topic}", b"with", **{"X-NSQ-Header-Key": "v"}).status == 200
    frame = spark.read.format("nsq").schema("body binary, headers map<string,string>").options(**written).load()
    assert {bytes(row.body): row.headers for row in frame.collect()} == {plain: None, b"with": {"key": "v"}}


def test_a_batch_read_of_an_empty_channel_has_no_rows(spark, written, tmp_path):
    frame = spark.read.format("nsq").options(**written).load()
    assert bodies_of(frame) == []
    assert pyspark_nsq.ack(frame) == 0
    assert not list(tmp_path.iterdir())


def test_rows_are_published_as_a_batch_and_as_a_stream(spark, written, publish, topic, tmp_path):
    bodies = publish(5)
    target = {"nsqdTcpAddresses": written["nsqdTcpAddresses"], "topic": f"{topic}.copy"}
    stream = streamed(spark, **written).select("body")
    writer = stream.writeStream.format("nsq").options(**target, checkpointLocation=str(tmp_path / "checkpoint"))
    start_available_now(writer).awaitTermination()
    spark.createDataFrame([("six",), ("seven",)], "value string").write.format("nsq").mode("append").options(
        **target
    ).save()
    copied = spark.read.format("nsq").options(**(written | {"subscribe": f"{topic}.copy"})).load()
    assert bodies_of(copied) == sorted([*bodies, b"six", b"seven"])


def test_columns_that_cannot_be_published_are_named_before_anything_runs(spark, written):
    target = {"nsqdTcpAddresses": written["nsqdTcpAddresses"], "topic": "t"}
    with pytest.raises(Exception, match="column id bigint cannot be published"):
        spark.range(3).write.format("nsq").mode("append").options(**target).save()


def test_an_acknowledged_read_leaves_no_files(spark, written, publish, tmp_path):
    bodies = publish(4)
    frame = spark.read.format("nsq").options(**written).load()
    with pytest.raises(ValueError, match="no action has read the DataFrame yet"):
        pyspark_nsq.ack(frame)
    chosen = frame.select("body").where("length(body) > 0")
    assert bodies_of(chosen) == sorted(bodies)
    assert pyspark_nsq.ack(chosen) == 4
    assert not list(tmp_path.iterdir())


@pytest.mark.newer_spark
def test_a_read_that_was_acknowledged_cannot_be_read_again(spark, written, publish):
    publish(1)
    frame = spark.read.format("nsq").options(**written).load()
    assert frame.count() == 1
    assert pyspark_nsq.ack(frame) == 1
    with pytest.raises(Exception, match="Either it was removed"):
        frame.count()


PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from pyspark_nsq import command_line

SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
spark = command_line.session("program")
print(spark.conf.get("spark.sql.shuffle.partitions"), "partitions")
print(spark.read.format("nsq").options(**json.loads(sys.argv[1])).load().count(), "messages")
"""


def test_a_job_needs_no_activated_environment_and_shuffles_to_as_many_partitions_as_cores(written, publish, tmp_path):
    publish(3)
    (tmp_path / "program.py").write_text(PROGRAM)
    # The first python3 on PATH, which Spark's workers use by default, cannot run them.
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment |= {"PATH": f"{other.parent}:{os.environ['PATH']}", "PYTHONPATH": os.getcwd()}
    ended = subprocess.run(
        [sys.executable, tmp_path / "program.py", json.dumps(written)],
        capture_output=True,
        text=True,
        env=environment | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert ended.stdout.splitlines() == ["3 partitions", "3 messages"], ended.stderr


def test_a_read_that_is_retried_with_the_name_of_its_spool_has_the_same_rows(spark, written, publish):
    bodies = publish(4)
    named = {**written, "spoolName": "run-1"}
    # As if the job died after this read.
    assert bodies_of(spark.read.format("nsq").options(**named).load()) == sorted(bodies)
    publish(2)
    with pytest.raises(Exception, match="an earlier read of channel c was not acknowledged, and its messages are in"):
        spark.read.format("nsq").options(**written).load().count()
    again = spark.read.format("nsq").options(**named).load()
    assert bodies_of(again) == sorted(bodies)
    assert pyspark_nsq.ack(again) == 4
    assert spark.read.format("nsq").options(**named).load().count() == 2
