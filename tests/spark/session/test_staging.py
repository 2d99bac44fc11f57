"""``publishMode=staged`` in a real Spark: a repeated batch is published once, a failed one not at all."""

from pathlib import Path

import pytest

from nsq_conformance.nsqd_process import NsqdProcess
from pyspark_nsq.spark_versions import start_available_now
from tests.spark.session.test_source import streamed

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def target(nsqd: NsqdProcess, topic: str, tmp_path: Path) -> dict[str, str]:
    """Options for writing to another topic, which has channel `c`."""
    nsqd.create_channel(f"{topic}.copy", "c")
    (tmp_path / "staging").mkdir()
    staged = {"publishMode": "staged", "stagingDir": str(tmp_path / "staging")}
    return staged | {"nsqdTcpAddresses": nsqd.tcp_address, "topic": f"{topic}.copy"}


def count(nsqd: NsqdProcess, topic: str) -> int:
    messages: int = nsqd.channel_stats(f"{topic}.copy", "c")["message_count"]
    return messages


def test_a_repeated_micro_batch_is_published_once(spark, written, target, publish, nsqd, topic, tmp_path):
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        stream = streamed(spark, **written).select("body")
        writer = stream.writeStream.format("nsq").options(**target, checkpointLocation=str(checkpoint))
        start_available_now(writer).awaitTermination()

    publish(5)
    run()
    assert count(nsqd, topic) == 5
    # As if Spark had crashed after the writer's commit and before its own.
    (commit,) = (checkpoint / "commits").glob("0")
    commit.unlink()
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    publish(2)
    run()
    assert count(nsqd, topic) == 7
    assert not list((tmp_path / "staging").glob("*/[0-9]*"))


def test_a_write_is_published_after_all_tasks_or_not_at_all(spark, target, nsqd, topic, tmp_path):
    rows = spark.range(0, 10, 1, 2)
    good = rows.selectExpr("CAST(id AS STRING) AS value")
    good.write.format("nsq").mode("append").options(**target).save()
    assert count(nsqd, topic) == 10
    bad = rows.selectExpr("CASE WHEN id = 9 THEN NULL ELSE CAST(id AS STRING) END AS value")
    with pytest.raises(Exception, match="a row has a null body"):
        bad.write.format("nsq").mode("append").options(**target).save()
    assert count(nsqd, topic) == 10
    assert [each.name for each in (tmp_path / "staging").iterdir()] == ["trial"]
