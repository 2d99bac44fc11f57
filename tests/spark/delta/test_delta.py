"""Tables in Delta: each message once, also for another checkpoint, which no table of Parquet files accepts."""

import pytest
from pyspark.sql import DataFrame

from tests.spark.session.test_jobs import forget_commit, log, post, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.usefixtures("spark")]

log = log  # the fixture


def table(spark, tmp_path, name: str = "table") -> DataFrame:
    return spark.read.format("delta").load(str(tmp_path / name))


def test_the_lake_has_every_message_once_whichever_checkpoint_writes_it(spark, send, log, tmp_path):
    delta = [*log, "--format=delta"]
    bodies = send(500)
    assert run("lake", *delta, "--option=maxOffsetsPerTrigger=200") == 0
    forget_commit(tmp_path / "checkpoint")
    bodies += send(3)
    assert run("lake", *delta) == 0
    assert run("lake", *delta, f"--checkpoint={tmp_path / 'another'}") == 0
    rows = table(spark, tmp_path).select("body", "offset").collect()
    assert sorted(bytes(row.body) for row in rows) == bodies
    assert sorted(row.offset for row in rows) == list(range(503))
    assert (tmp_path / "table" / "_delta_log").is_dir()
    assert {folder.name[:4] for folder in (tmp_path / "table").glob("*=*")} == {"day="}


def test_the_lake_is_compacted(spark, send, log, tmp_path, capsys):
    bodies = send(50)
    delta = [*log, "--format=delta"]
    # Nothing is there to compact before the first batch, nor in it: its hour is not over.
    assert run("lake", *delta, "--option=maxOffsetsPerTrigger=20", "--compact-after=1") == 0
    assert "compacted" not in capsys.readouterr().out
    assert len(table(spark, tmp_path).inputFiles()) >= 3
    # An hour counts as over two hours before its end.
    assert run("lake", *delta, "--compact-after=-2") == 0
    assert "compacted" in capsys.readouterr().out
    frame = table(spark, tmp_path)
    assert len(frame.inputFiles()) == frame.select("day", "hour").distinct().count()
    assert sorted(bytes(row.body) for row in frame.collect()) == bodies


def test_json_is_merged_with_a_schema_that_grows_and_bad_messages_are_apart(spark, retaining, topic, log, tmp_path):
    lake = [*log, "--format=delta", f"--bad-path={tmp_path / 'bad'}"]
    post(retaining, topic, [b'{"page": "/", "at": 1.5}', b"no JSON"])
    assert run("json_lake", *lake, "--schema=page STRING") == 0
    post(retaining, topic, [b'{"page": "/b", "at": 2}', b"[]"])
    assert run("json_lake", *lake, "--schema=page STRING, at DOUBLE") == 0
    assert run("json_lake", *lake, "--schema=page STRING, at DOUBLE", f"--checkpoint={tmp_path / 'another'}") == 0
    rows = table(spark, tmp_path).orderBy("nsq_offset").collect()
    assert [(row.page, row.at, row.nsq_offset) for row in rows] == [("/", None, 0), ("/b", 2.0, 2)]
    bad = table(spark, tmp_path, "bad").orderBy("offset").collect()
    assert [(bytes(row.body), row.reason) for row in bad] == [
        (b"no JSON", "not a JSON object"),
        (b"[]", "not a JSON object"),
    ]


def test_a_message_that_is_delivered_again_is_merged_once(spark, publish, written, tmp_path):
    # Without `once`, as if its state were lost.
    from pyspark_nsq.delta_table import DeltaTable
    from pyspark_nsq.parquet_table import by_hour

    publish(3)
    messages = by_hour(spark.read.format("nsq").options(**written).load()).persist()
    target = DeltaTable(str(tmp_path / "table"), ("nsqd", "topic", "id"))
    target.write(messages.union(messages), 0)
    target.write(messages, 1)
    assert table(spark, tmp_path).count() == 3
