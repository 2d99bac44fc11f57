"""A session with Delta, of the package that `make spark-delta` names."""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.spark.session import conftest as of_session

retaining, send = of_session.retaining, of_session.send


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    settings = {
        "spark.jars.packages": os.environ["DELTA_PACKAGE"],
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Of a small table. By default, each look at its state is 50 tasks.
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    session = of_session.local_session(**settings)
    yield session
    session.stop()
