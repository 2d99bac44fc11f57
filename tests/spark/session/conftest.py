"""One local Spark session for all tests in this folder, and an nsqd that retains messages."""

import itertools
import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import pyspark_nsq
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.spark.conftest import Publish


def local_session(**settings: str) -> SparkSession:
    """A session of two cores that knows format("nsq")."""
    # Otherwise workers use the Python on PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Otherwise Spark does not start if the host name does not resolve.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # With local[n] alone, Spark does not retry tasks.
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(name, "127.0.0.1")
    # Java code runs too rarely here to earn what its full optimization and its garbage collector's threads cost.
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
    pyspark_nsq.register(session)
    return session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = local_session()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def retaining(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdProcess]:
    """An nsqd that retains all messages for an hour."""
    folder = tmp_path_factory.mktemp("retaining")
    config = folder / "nsqd.cfg"
    config.write_text('[[policies]]\nretain_for = "1h"\n')
    with NsqdProcess(installed_nsqd(), folder, options=[f"--config={config}"]) as nsqd:
        yield nsqd


@pytest.fixture
def send(retaining: NsqdProcess, topic: str) -> Publish:
    """Publish this number of distinct bodies to the test's topic on `retaining`, and return them."""
    numbers = itertools.count()

    def publish(count: int) -> list[bytes]:
        bodies = [b"body %06d" % next(numbers) for _ in range(count)]
        assert retaining.asks("POST", f"/mpub?topic={topic}", b"\n".join(bodies)).status == 200
        return bodies

    return publish


@pytest.fixture
def speculating(spark: SparkSession) -> SparkSession:
    """A session with spark.speculation on."""
    session = spark.newSession()
    session.conf.set("spark.sql.legacy.setCommandRejectsSparkCoreConfs", "false")
    session.conf.set("spark.speculation", "true")
    pyspark_nsq.register(session)
    return session


@pytest.fixture
def options(retaining: NsqdProcess, topic: str) -> dict[str, str]:
    """The options of reading the test's topic from `retaining`, from its first message."""
    return {"subscribe": topic, "nsqdHttpAddresses": retaining.http_address, "startingOffsets": "earliest"}
