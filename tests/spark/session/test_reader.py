"""pynsq's handlers on a real Spark: requeued messages return, dead ones are set aside, and all are counted."""

from collections import Counter
from typing import Any

import pytest

import pyspark_nsq
from pyspark_nsq.reader import OUTCOMES

pytestmark = pytest.mark.timeout(300)


@pytest.mark.newer_spark
def test_a_handler_gets_every_message_until_it_is_finished_or_dead(spark, nsqd, topic, publish, tmp_path):
    good, slow, poison, worse = publish(4)
    seen = tmp_path / "seen"
    (tmp_path / "spool").mkdir()
    for kept in ("retry", "dead"):
        nsqd.create_channel(f"{topic}.c.{kept}", "c")

    # A local function, so that it is pickled by value.
    def handler(message: Any) -> bool | None:
        with open(seen, "a") as file:
            print(message.body.decode(), message.attempts, file=file)
        if message.body == worse:
            raise RuntimeError("handler failed")
        if message.body == slow and message.attempts == 1:
            message.requeue(delay=0)
            return None
        return bool(message.body != poison)

    def run() -> Counter[str]:
        query = pyspark_nsq.run_reader(
            spark,
            handler,
            topic=topic,
            channel="c",
            spool_dir=str(tmp_path / "spool"),
            checkpoint=str(tmp_path / "checkpoint"),
            nsqd_tcp_addresses=[nsqd.tcp_address],
            nsqd_http_addresses=[nsqd.http_address],
            max_tries=2,
            requeue_delay=0,
            available_now=True,
            idleTimeoutMs=20000,
        )
        query.awaitTermination()
        counts: Counter[str] = Counter()
        for progress in query.recentProgress:
            if counted := progress.observedMetrics.get("run_reader"):
                counts.update({name: counted[name] or 0 for name in (*OUTCOMES, "raised")})
        return +counts

    assert run() == {"finished": 1, "requeued": 3, "raised": 1}
    assert run() == {"finished": 1, "dead": 2, "raised": 1}
    assert run() == {}
    names = {good: "good", slow: "slow", poison: "poison", worse: "worse"}
    lines = [line.rsplit(" ", 1) for line in seen.read_text().splitlines()]
    assert sorted((names[body.encode()], int(attempts)) for body, attempts in lines) == [
        *(("good", 1), ("poison", 1), ("poison", 2)),
        *(("slow", 1), ("slow", 2), ("worse", 1), ("worse", 2)),
    ]
    dead = spark.read.format("nsq").options(
        subscribe=f"{topic}.c.dead",
        channel="c",
        spoolDir=str(tmp_path),
        nsqdTcpAddresses=nsqd.tcp_address,
        nsqdHttpAddresses=nsqd.http_address,
    )
    assert sorted(bytes(row.body) for row in dead.load().collect()) == sorted([poison, worse])
