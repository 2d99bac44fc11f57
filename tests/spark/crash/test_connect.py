"""Spark Connect: a program without its own JVM reads NSQ."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.crash.running import Work

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("connect_program.py")


def test_a_batch_and_a_stream_are_read_over_spark_connect(nsqd, topic, written, tmp_path, tell):
    bodies = [f"body {number}" for number in range(20_000)]
    for channel in ("batch", "stream"):
        nsqd.create_channel(topic, channel)
    assert nsqd.asks("POST", f"/mpub?topic={topic}", "\n".join(bodies).encode()).status == 200
    options = {name: value for name, value in written.items() if name != "channel"}
    run = subprocess.run(
        [sys.executable, PROGRAM, json.dumps(options), str(tmp_path)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    module, *read = json.loads(run.stdout.splitlines()[-1])
    assert module.startswith("pyspark.sql.connect")
    for name, rows in zip(("a batch", "a stream into a table"), read, strict=True):
        lost, twice = len(set(bodies) - set(rows)), len(rows) - len(set(rows))
        tell(Work(name, "Spark Connect", f"{len(bodies):,}: lost {lost}, twice {twice}"))
    assert read == [sorted(bodies)] * 2
