"""One Spark session for the whole run: a JVM takes ten seconds to start."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from backfill_platform.spark.session import session_options, use_this_interpreter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """A classic local session with the options of the product."""
    from pyspark.sql import SparkSession

    use_this_interpreter()
    builder = SparkSession.builder
    options = session_options(master="local[2]", remote=None, driver_memory="1g")
    # Tests shuffle a few rows many times: every partition more is paid each time.
    for key, value in {**options, "spark.sql.shuffle.partitions": "4"}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()
