"""One Spark session for the whole run: a JVM takes ten seconds to start.

With TEST_SPARK=connect it is a session on a Spark Connect server, as `backfill up` runs it; else a classic one in this process.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backfill_platform.adapters.spark.session import connect_server_command, session_options, use_this_interpreter
from backfill_platform.devstack.processes import free_port
from backfill_platform_tests.fixtures_warehouse import wait_for_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_SECONDS = 120


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """A session with the options of the product."""
    use_this_interpreter()
    if os.environ.get("TEST_SPARK") == "connect":
        with connect_server() as remote:
            yield from _session(remote)
    else:
        yield from _session(None)


def _session(remote: str | None) -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    options = session_options(master="local[2]", remote=remote, driver_memory="1g")
    # Tests shuffle a few rows many times: every partition more is paid each time.
    for key, value in {**options, "spark.sql.shuffle.partitions": "4"}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@contextmanager
def connect_server() -> Iterator[str]:
    """A Spark Connect server on a free port, by the command of the product; yields its address."""
    port = free_port()
    command = connect_server_command(port=port, master="local[2]", driver_memory="1g")
    # Its Python workers look for the tests' own functions neither here nor in the folder that it was started in.
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )

    try:
        wait_for_port(process, port, START_SECONDS)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
