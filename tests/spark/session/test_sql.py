"""Tables and views of SQL: what is created with USING nsq can be queried, filtered, and inserted into."""

import pytest

from nsq_conformance.nsqd_process import NsqdProcess
from tests.faults.test_clock import FalseClock
from tests.spark.session.test_source import bodies_of, streamed

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def tables(spark, topic):
    """Names of tables, which are dropped at the end."""
    names = [f"{topic}_{each}".replace(".", "_").replace("-", "_") for each in ("messages", "target")]
    yield names
    for name in names:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def listed(**options: str) -> str:
    return "(" + ", ".join(f"'{name}' '{value}'" for name, value in options.items()) + ")"


@pytest.mark.newer_spark
def test_a_table_is_read_with_the_offsets_that_a_filter_needs(spark, options, send, tables, topic):
    bodies = send(10)
    # A task for each message that is read.
    spark.sql(f"CREATE TABLE {tables[0]} USING nsq OPTIONS {listed(**options, maxMessagesPerPartition='1')}")
    assert bodies_of(spark.table(tables[0])) == bodies
    where = f"offset >= 3 AND offset < 6 AND topic = '{topic}' AND timestamp >= '2020-01-01' AND body <> 'body 000004'"
    chosen = spark.sql(f"SELECT * FROM {tables[0]} WHERE {where}")
    assert bodies_of(chosen) == [bodies[3], bodies[5]]
    assert chosen.rdd.getNumPartitions() == 3
    assert spark.sql(f"SELECT * FROM {tables[0]} WHERE topic = 'other' OR offset < 0").count() == 0
    assert spark.sql(f"SELECT * FROM {tables[0]} WHERE topic = 'other'").count() == 0


@pytest.mark.newer_spark
def test_a_time_up_to_which_a_filter_reads_leaves_out_later_offsets_and_no_row(spark, options, tables, topic, tmp_path):
    clock = FalseClock(tmp_path)
    (tmp_path / "data").mkdir()
    config = tmp_path / "nsqd.cfg"
    config.write_text('[[policies]]\nretain_for = "1h"\n')
    clock.jump("-60m")
    with NsqdProcess(clock.command, tmp_path / "data", options=[f"--config={config}"]) as nsqd:
        for offset in ("-60m", "-40m", "-20m", "-50m", "-5m", "+0"):
            clock.jump(offset)
            assert nsqd.asks("POST", f"/pub?topic={topic}", offset.encode()).status == 200
        own = {**options, "nsqdHttpAddresses": nsqd.http_address, "maxMessagesPerPartition": "1"}
        spark.sql(f"CREATE TABLE {tables[0]} USING nsq OPTIONS {listed(**own)}")
        chosen = spark.sql(f"SELECT * FROM {tables[0]} WHERE timestamp < now() - INTERVAL 45 MINUTES")
        assert bodies_of(chosen) == [b"-50m", b"-60m"]
        # Until the message that was published last while the clock was set back.
        assert chosen.rdd.getNumPartitions() == 4
        span = "timestamp >= now() - INTERVAL 65 MINUTES AND timestamp <= now() - INTERVAL 3 MINUTES"
        assert spark.sql(f"SELECT * FROM {tables[0]} WHERE {span}").count() == 5


@pytest.mark.newer_spark
def test_rows_are_inserted_into_a_table(spark, retaining, options, send, tables, topic):
    send(2)
    target = {"topic": f"{topic}.copy", "nsqdTcpAddresses": retaining.tcp_address}
    spark.sql(f"CREATE TABLE {tables[0]} USING nsq OPTIONS {listed(**options)}")
    spark.sql(f"CREATE TABLE {tables[1]} USING nsq OPTIONS {listed(**target)}")
    spark.sql(f"INSERT INTO {tables[1]} (body) SELECT body FROM {tables[0]}")
    spark.sql(f"INSERT INTO {tables[1]} (body) VALUES (CAST('new' AS BINARY))")
    rows = spark.table(tables[0]).where("offset = 0").select("body")
    rows.write.format("nsq").mode("append").options(**target).save()
    copied = {**options, "subscribe": f"{topic}.copy"}
    bodies = [b"body 000000", b"body 000000", b"body 000001", b"new"]
    assert bodies_of(spark.read.format("nsq").options(**copied).load()) == bodies


def test_rows_are_inserted_into_a_table_with_columns_of_its_own(spark, retaining, options, tables, topic):
    spark.sql(f"CREATE TABLE {tables[0]} (value STRING) USING nsq")
    target = listed(topic=topic, nsqdTcpAddresses=retaining.tcp_address)
    spark.sql(f"INSERT INTO {tables[0]} WITH {target} VALUES ('new')")
    assert bodies_of(spark.read.format("nsq").options(**options).load()) == [b"new"]
    with pytest.raises(Exception, match="Spark passes the OPTIONS of a table that has columns"):
        spark.sql(f"INSERT INTO {tables[0]} VALUES ('new')")


def test_a_table_takes_no_messages_from_a_channel(spark, written, tables, nsqd, topic, publish):
    publish(3)
    spark.sql(f"CREATE TABLE {tables[0]} USING nsq OPTIONS {listed(**written)}")
    with pytest.raises(Exception, match="a table of CREATE TABLE is read with mode=log only"):
        spark.table(tables[0]).count()
    assert nsqd.channel_stats(topic, "c")["depth"] == 3


def test_columns_without_a_meaning_are_ignored_only_on_request(spark, retaining, options, topic):
    rows = spark.createDataFrame([("k", "new", None)], "key string, value string, headers array<binary>")
    writer = rows.write.format("nsq").mode("append").option("topic", topic)
    writer = writer.option("nsqdTcpAddresses", retaining.tcp_address)
    with pytest.raises(Exception, match="column key string cannot be published.* with ignoreColumns=key"):
        writer.save()
    writer.option("ignoreColumns", "key, headers").save()
    assert bodies_of(spark.read.format("nsq").options(**options).load()) == [b"new"]


def test_a_streams_wrong_option_is_the_last_error_in_the_report(spark, options, tmp_path):
    stream = streamed(spark, **options, maxMesages="5")
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(Exception, match="did you mean maxMessages") as caught:
        query.awaitTermination()
    report = str(caught.value).partition("=== Streaming Query ===")[0].splitlines()
    assert "During handling" not in str(caught.value)
    assert [line for line in report if line.strip() and "SQLSTATE" not in line][-1].endswith(
        "did you mean maxMessages?"
    )
