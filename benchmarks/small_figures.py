"""What is paid beside the work itself: importing the definitions, starting Spark, planning, comparing rows in ClickHouse."""

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.spark.session import connect_server_command
from backfill_platform.devstack.embedded_clickhouse import server as embedded
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import make_plan
from backfill_platform.examples import clickstream
from benchmarks.end_to_end import peak_memory
from benchmarks.publish import PAYMENTS, fill, generate, repair

IMPORT = "import time; began = time.perf_counter(); import backfill_platform.definitions; print(time.perf_counter() - began)"
# The imports are not counted: both ways need them.
FIRST_QUERY = """
import sys, time
from pyspark.sql import SparkSession
from backfill_platform.adapters.spark.session import session_options, use_this_interpreter
use_this_interpreter()
began = time.perf_counter()
builder = SparkSession.builder
for key, value in session_options(master="local[2]", remote=sys.argv[1] or None, driver_memory="4g").items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
assert spark.range(1000).count() == 1000
print(time.perf_counter() - began)
spark.stop()
"""
AT_ONCE = 3  # hours that are staged together, as a repair stages three million rows at a time
PATIENCE = 120


def seconds_of(code: str, compiled: str, *arguments: str) -> float:
    """What a fresh process prints last; `compiled` is the folder of the bytecode, which not every environment keeps."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1])


def spread(seconds: list[float], digits: int = 2) -> str:
    """The median, with the least and the most."""
    middle, least, most = (f"{value:,.{digits}f}" for value in (statistics.median(seconds), min(seconds), max(seconds)))
    return f"{middle} ({least} to {most})" if len(seconds) > 1 else middle


def imports(runs: int) -> str:
    with tempfile.TemporaryDirectory() as compiled:
        first = seconds_of(IMPORT, compiled)
        seconds = [seconds_of(IMPORT, compiled) for _ in range(runs)]
    return (
        f"| import of the definitions, in a fresh process | {spread(seconds)} | {runs} |\n"
        f"| the same, no module compiled yet | {first:.2f} | 1 |\n"
    )


def spark_starts(runs: int) -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = connect_server_command(port=port, master="local[2]", driver_memory="2g")
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "log", "wb") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)
        compiled = f"{folder}/compiled"
        seconds_of("import pyspark.sql.connect.session; print(0)", compiled)
        try:
            while not _answers(port):
                if server.poll() is not None or time.perf_counter() > began + PATIENCE:
                    raise SystemExit("the Spark Connect server does not start")
                time.sleep(0.1)
            started = time.perf_counter() - began
            connected = [seconds_of(FIRST_QUERY, compiled, f"sc://127.0.0.1:{port}") for _ in range(runs + 1)]
        finally:
            server.terminate()
            server.wait()
        classic = [seconds_of(FIRST_QUERY, compiled, "") for _ in range(runs)]
    return (
        f"| classic Spark session in this process, until its first query is done | {spread(classic)} | {runs} |\n"
        f"| Spark Connect server, until it listens (once for `backfill up`) | {started:.2f} | 1 |\n"
        f"| connecting to it, until the first query is done: the first client | {connected[0]:.2f} | 1 |\n"
        f"| the same, the next clients | {spread(connected[1:])} | {runs} |\n"
    )


def _answers(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


def plan_of_a_year(runs: int) -> str:
    pipeline, start = clickstream.pipeline, datetime(2025, 1, 1, tzinfo=UTC)
    assets = [asset for node in pipeline.nodes for asset in node.assets]
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        plan = make_plan(pipeline.name, pipeline.nodes, HourRange(start, start + 8760 * HOUR), assets)
        assert sum(len(step.hours) for step in plan.steps) == 8760 * len(assets)
        seconds.append(time.perf_counter() - began)
    return f"| plan of 8,760 hours, {len(assets)} assets | {spread(seconds, 5)} | {runs} |\n"


def warehouse_diff(hours: int, rows: int, runs: int) -> str:
    """Load, compare, prove and publish hours of so many rows, one percent of them wrong, a few hours at a time."""
    with (
        tempfile.TemporaryDirectory() as folder,
        embedded.start(Path(folder) / "warehouse") as server,
        closing(Warehouse(server.url)) as warehouse,
    ):
        table = replace(PAYMENTS, name=f"bench_{hours}")
        files = generate(warehouse, Path(folder), hours, rows)
        found: list[tuple[float, float, int]] = []
        for number in range(runs):
            fill(warehouse, table, list(files), rows, wrong_percent=1)
            parts = [
                repair(server.url, table, {hour: files[hour] for hour in list(files)[first : first + AT_ONCE]}, rows, name)
                for first in range(0, hours, AT_ONCE)
                for name in [f"turn{number}part{first}"]
            ]
            found.append((sum(p.load for p in parts), sum(p.wall for p in parts), sum(p.written for p in parts)))
            wanted = fingerprints.files(warehouse, table, list(files), list(files.values()))
            if fingerprints.net(warehouse, table, list(files)) != wanted:
                raise SystemExit("the published rows are not those of the files: nothing is reported")
        memory = peak_memory(server.pid)
    loads, walls = [one[0] for one in found], [one[1] for one in found]
    return f"| {hours} x {rows:,} | {spread(loads)} | {spread(walls)} | {found[0][2]:,} | {memory:.1f} | {runs} |\n"
