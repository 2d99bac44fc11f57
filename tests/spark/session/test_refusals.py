"""Errors that a real Spark reports before a message is consumed: the channel keeps its messages."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from nsq_conformance.nsqd_process import NsqdProcess
from pyspark_nsq.spark_versions import start_available_now
from tests.spark.conftest import Publish, small_disk
from tests.spark.session.test_source import streamed

pytestmark = pytest.mark.timeout(300)

MESSAGES = 10


@pytest.fixture
def waiting(nsqd: NsqdProcess, topic: str, publish: Publish) -> Iterator[None]:
    """The same messages wait in the channel before and after the test, and none was ever delivered."""
    publish(MESSAGES)
    yield
    stats = nsqd.channel_stats(topic, "c")
    counts = {name: stats[name] for name in ("depth", "in_flight_count", "message_count", "requeue_count")}
    assert counts == {"depth": MESSAGES, "in_flight_count": 0, "message_count": MESSAGES, "requeue_count": 0}


Run = Callable[[SparkSession, dict[str, str], Path], object]


def as_a_stream(spark: SparkSession, options: dict[str, str], folder: Path) -> None:
    writer = streamed(spark, **options).writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    start_available_now(writer).awaitTermination()


def as_a_batch(spark: SparkSession, options: dict[str, str], _: Path) -> None:
    loaded(spark, options).count()


def loaded(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("nsq").options(**options).load()


both = pytest.mark.parametrize("run", [as_a_stream, as_a_batch])


@both
@pytest.mark.usefixtures("waiting")
def test_speculation_is_refused_with_mode_spool(speculating, written, tmp_path, run):
    with pytest.raises(Exception, match="spark.speculation must be false with mode=spool"):
        run(speculating, written, tmp_path)


# Spark finds DefaultSource without a call of `register`.
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

SparkSession.builder.getOrCreate().read.format("nsq").options(**json.loads(sys.argv[1])).load().count()
"""


@pytest.mark.usefixtures("waiting")
def test_a_program_submitted_with_speculation_reads_nothing(written, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    submit = Path(sys.executable).with_name("spark-submit")
    settings = ("spark.speculation=true", "spark.ui.enabled=false", "spark.driver.host=127.0.0.1")
    ended = subprocess.run(
        [submit, "--master=local[1]", *(f"--conf={each}" for each in settings), program, json.dumps(written)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.getcwd(), "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    assert ended.returncode == 1
    assert "spark.speculation must be false with mode=spool (spark-submit --conf" in ended.stderr


@pytest.mark.usefixtures("waiting")
def test_an_rdd_reads_nothing_because_it_cannot_check_the_settings(spark, written):
    with pytest.raises(Exception, match="run an action of the DataFrame first"):
        loaded(spark, written).rdd.count()


def test_an_rdd_has_the_rows_of_its_dataframe(spark, written, publish):
    bodies = publish(MESSAGES)
    frame = loaded(spark, written)
    assert frame.count() == MESSAGES
    assert sorted(bytes(row.body) for row in frame.rdd.collect()) == sorted(bodies)


@both
@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"channel": "c#ephemeral"}, "channel must be a channel without #ephemeral"),
        ({"channels": "c"}, "there is no option channels; did you mean channel"),
        ({"nsqdTcpAddresses": "127.0.0.1:1", "nsqdHttpAddresses": "127.0.0.1:1"}, "no nsqd can be reached; start one"),
        ({"spoolDir": "/nowhere"}, "there is no folder /nowhere. Create or mount it"),
    ],
)
@pytest.mark.usefixtures("waiting")
def test_a_wrong_option_is_reported_in_one_sentence(spark, written, tmp_path, run, wrong, sentence):
    with pytest.raises(Exception, match=sentence):
        run(spark, written | wrong, tmp_path)


@pytest.mark.privileged
@both
@pytest.mark.parametrize(
    ("read_only", "sentence"), [(True, "spoolDir: Read-only file system"), (False, "spoolDir: No space left")]
)
@pytest.mark.usefixtures("waiting")
def test_a_spool_that_is_not_writable_is_reported_in_one_sentence(spark, written, tmp_path, run, read_only, sentence):
    with small_disk(tmp_path, full=True, read_only=read_only) as disk, pytest.raises(Exception, match=sentence):
        run(spark, written | {"spoolDir": str(disk)}, tmp_path)
