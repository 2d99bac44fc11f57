"""mode=log in a real Spark: what is retained is read by offset, the same rows whenever a batch is asked for."""

import itertools
from typing import Any

import pytest
from pyspark.sql import DataFrame

from pyspark_nsq.spark_versions import start_available_now
from tests.spark.session.test_source import bodies_of, run_to_the_end, streamed

pytestmark = pytest.mark.timeout(300)


def test_two_runs_write_every_message_to_the_table_once(spark, options, send, tmp_path):
    stream = streamed(spark, **options, maxOffsetsPerTrigger="300")
    bodies = send(500)
    assert run_to_the_end(stream, tmp_path / "checkpoint", path=tmp_path / "table") == 500
    bodies += send(3)
    assert run_to_the_end(stream, tmp_path / "checkpoint", path=tmp_path / "table") == 3
    assert bodies_of(spark.read.parquet(str(tmp_path / "table"))) == bodies


def test_a_batch_that_fails_is_the_same_after_a_restart(spark, options, send, tmp_path):
    bodies = send(20)
    seen: list[list[bytes]] = []
    failures = itertools.count(1)

    def handle(frame: DataFrame, _: int) -> None:
        seen.append(bodies_of(frame))
        if next(failures) == 1:
            send(5)
            raise RuntimeError("the sink failed")

    stream = streamed(spark, **options)
    with pytest.raises(Exception, match="the sink failed"):
        run_to_the_end(stream, tmp_path / "checkpoint", each=handle)
    run_to_the_end(stream, tmp_path / "checkpoint", each=handle)
    assert seen[:2] == [bodies, bodies]
    assert [len(each) for each in seen[2:]] == [5]


def test_a_topic_that_was_created_anew_while_the_query_was_stopped_fails_it(
    spark, options, send, retaining, topic, tmp_path
):
    place = {"path": tmp_path / "table"}
    stream = streamed(spark, **options)
    bodies = send(10)
    run_to_the_end(stream, tmp_path / "checkpoint", **place)
    assert retaining.asks("POST", f"/topic/delete?topic={topic}").status == 200
    bodies += send(15)
    with pytest.raises(Exception, match="has another log of .* than the one of which 10 messages were read"):
        run_to_the_end(stream, tmp_path / "checkpoint", **place)
    skipping = streamed(spark, **options, failOnDataLoss="false")
    assert run_to_the_end(skipping, tmp_path / "checkpoint", **place) == 15
    assert bodies_of(spark.read.parquet(str(tmp_path / "table"))) == bodies


def test_a_batch_read_has_the_columns_of_a_log_in_several_tasks(spark, options, send, retaining, topic):
    bodies = send(10)
    frame = spark.read.format("nsq").options(**options, minPartitions="3").load()
    assert frame.rdd.getNumPartitions() == 3
    rows: list[Any] = frame.orderBy("offset").collect()
    assert [(row.offset, bytes(row.body)) for row in rows] == list(enumerate(bodies))
    [place] = {(row.topic, row.channel, row.partition) for row in rows}
    assert place == (topic, None, retaining.http_address)


@pytest.mark.newer_spark
def test_every_action_of_a_batch_read_has_the_same_rows(spark, options, send):
    send(10)
    frame = spark.read.format("nsq").options(**options).load()
    assert frame.count() == 10
    # Nothing was consumed, so another read has the same rows, and those that were published since.
    send(2)
    assert frame.count() == 10
    assert spark.read.format("nsq").options(**options).load().count() == 12


def test_headers_are_a_column_that_a_schema_names(spark, options, send, retaining, topic):
    (plain,) = send(1)
    answer = retaining.asks("POST", f"/pub?topic={topic}", b"with", **{"X-NSQ-Header-Key": "v"})
    assert answer.status == 200
    frame = spark.read.format("nsq").schema("body binary, headers map<string,string>").options(**options).load()
    rows = {bytes(row.body): row.headers for row in frame.collect()}
    assert rows == {plain: None, b"with": {"key": "v"}}
    assert frame.where("headers['key'] = 'v'").count() == 1


def test_a_checkpoint_belongs_to_one_mode(spark, options, send, tmp_path):
    send(1)
    stream = streamed(spark, **options)
    run_to_the_end(stream, tmp_path / "checkpoint", path=tmp_path / "table")
    (tmp_path / "spool").mkdir()
    spool = {"mode": "spool", "channel": "c", "spoolDir": str(tmp_path / "spool"), "nsqdTcpAddresses": "127.0.0.1:1"}
    other = streamed(spark, **options | spool)
    with pytest.raises(Exception, match="the checkpoint was written with mode=log and cannot be continued"):
        run_to_the_end(other, tmp_path / "checkpoint", path=tmp_path / "table")


@pytest.mark.newer_spark
def test_the_progress_says_how_far_behind_the_query_is(spark, options, send, retaining, tmp_path):
    send(7)
    stream = streamed(spark, **options, maxOffsetsPerTrigger="3")
    query = start_available_now(
        stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    query.awaitTermination()
    first = query.recentProgress[0]["sources"][0]
    assert first["numInputRows"] == 3
    latest = first["latestOffset"]
    assert retaining.http_address in str(latest)
    assert "maxOffsetsBehindLatest" in str(latest)


def test_speculation_is_allowed_because_a_second_attempt_takes_nothing(speculating, options, send):
    bodies = send(4)
    assert bodies_of(speculating.read.format("nsq").options(**options).load()) == bodies
