"""Files of an hour each, landed: `python -m benchmarks.hourly_files [--files 24 96 ...] [--lines 100]`.

Each count of files lands into a lake of its own, by a session that has landed a few before.
"""

import argparse
import gzip
import logging
import platform
import random
import shutil
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

from pyspark.sql import SparkSession

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.spark.session import session_options, use_this_interpreter
from backfill_platform.devstack.embedded_clickhouse import server as embedded
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.uris import local_uri
from backfill_platform.examples import clickstream
from backfill_platform.repair.outcomes import StepFinished
from benchmarks.repairs import repair, services

RESULTS = Path(__file__).parent / "results-hourly-files.md"
BEFORE = {24: 11.2, 96: 33.6, 192: 56.8, 720: 397}
START = datetime(2025, 1, 1, tzinfo=UTC)


def write_files(folder: Path, hours: int, lines: int) -> None:
    """One gzip file for each hour."""
    chance = random.Random(7)
    for number in range(hours):
        start = START + number * HOUR
        text = []
        for at in sorted(chance.randrange(3600) for _ in range(lines)):
            moment = start + timedelta(seconds=at)
            text.append(f"{chance.randrange(100_000)},{moment:%d/%b/%Y},{moment:%H:%M:%S},/,200,10\n")
        path = folder / f"{start:%Y-%m-%d}" / f"{start:%H}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(text).encode(), 6))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="+", default=[24, 96, 192, 720, 2160])
    parser.add_argument("--lines", type=int, default=100, help="in each file")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    use_this_interpreter()
    builder = SparkSession.builder
    for name, value in session_options(master="local[2]", remote=None, driver_memory="3g").items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    seconds = {}
    for turn, files in enumerate([4, *arguments.files]):
        folder = Path(tempfile.mkdtemp())
        try:
            write_files(folder, files, arguments.lines)
            taken = land(spark, folder, files, arguments.lines)
        finally:
            shutil.rmtree(folder)
        if turn:
            seconds[files] = taken
            rate = files * arguments.lines / taken
            sys.stderr.write(f"{files} files of {arguments.lines} lines: {taken:.1f} s, {rate:,.0f} lines/s\n")
    RESULTS.write_text(page(seconds, arguments.lines))


def page(seconds: dict[int, float], lines: int) -> str:
    """The results as a page of Markdown."""
    rows = "".join(
        f"| {files:,} | {taken:.1f} | {files * lines / taken:,.0f} | {1000 * taken / files:.0f} | {BEFORE.get(files, '')} |\n"
        for files, taken in seconds.items()
    )
    return (
        "# Hourly files, landed\n\n"
        f"`python -m benchmarks.hourly_files` on 2 cores ({platform.machine()}), PySpark {version('pyspark')}: gzip files of "
        f"{lines} lines, landed in one run by a session that has landed four before; one run each. Before: one read for each "
        "file, joined by unions, at cd34055 on the same machine, and 720 files on another day.\n\n"
        "| files | seconds | lines in a second | ms for a file | seconds before |\n|---|---|---|---|---|\n" + rows
    )


def land(spark: SparkSession, folder: Path, files: int, lines: int) -> float:
    """Land all files in one run; the seconds it took."""
    span = HourRange(START, START + files * HOUR)
    source = HourlyFiles(f"{local_uri(folder)}/%Y-%m-%d/%H.csv.gz", encoding="ISO-8859-1")
    pipeline = replace(clickstream.pipeline, start=span.start, end=span.end, source=source)
    lake = Lake(f"sqlite:///{folder}/catalog.db", local_uri(folder / "lake"))
    with embedded.start(folder / "warehouse") as server, closing(Warehouse(server.url)) as warehouse:
        began, landed = time.perf_counter(), 0
        for event in repair(pipeline, services(lake, spark, warehouse), span, [pipeline.raw.table.path], "bench"):
            if isinstance(event, StepFinished):
                landed += sum(outcome.lake.rows for outcome in event.outcomes if outcome.lake and not outcome.error)
        taken = time.perf_counter() - began
    if landed != files * lines:
        raise SystemExit(f"{landed:,} rows landed of {files * lines:,} lines")
    return taken


if __name__ == "__main__":
    main()
