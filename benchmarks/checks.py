"""What checking costs: a pass without checks, the same with ours, and the same with pandera's own validate.

Run from the root of the repository: `python -m benchmarks.checks`. Writes `benchmarks/results-checks.md`. Ours counts the
failing rows of every check by hour and keeps samples; pandera says of each check whether all rows pass. Each is measured on a
pass that does nothing with its rows, and on the write of a repair. A repair then reads what it has written, for rules of whole
hours and a hash of their content; that is measured as well. The results are compared with what was put into the data before
anything is reported.
"""

import argparse
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyspark.sql.types as T
from pandera.config import ValidationDepth, config_context
from pandera.pyspark import DataFrameModel, Field
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.checks import mark_failures
from backfill_platform.adapters.spark.schema_rules import rules_of
from backfill_platform.adapters.spark.session import session_options, use_this_interpreter
from backfill_platform.adapters.spark.split_rejects import RejectSplit
from backfill_platform.adapters.spark.writer import write_by_hour
from backfill_platform.domain.tables import Column, ColumnType, Layer, Table
from backfill_platform.domain.uris import local_uri
from backfill_platform.repair.write_audit_promote import judge, rejects_by_hour

HOURS = 24
COMPARED = {"ours": "pandera", "ours, written": "pandera, written", "ours, written and judged": "pandera, written"}
RESULTS = Path(__file__).parent / "results-checks.md"
START = datetime(1998, 4, 30, 22, tzinfo=UTC)

Write = Callable[[DataFrame], None]


class Events(DataFrameModel):
    """Seven columns, twelve checks."""

    hour: T.TimestampType = Field()
    client_id: T.LongType = Field(ge=0)
    url: T.StringType = Field(str_startswith="/")
    status: T.IntegerType = Field(in_range={"min_value": 100, "max_value": 599})
    bytes: T.LongType = Field(ge=0, nullable=True)
    method: T.StringType = Field(isin=["GET", "POST", "HEAD"])
    share: T.DoubleType = Field(in_range={"min_value": 0, "max_value": 1})


RULES = rules_of(Events)
TABLE = Table(
    Layer.TRANSFORMED,
    "events",
    (
        Column("hour", ColumnType.TIMESTAMP),
        Column("client_id", ColumnType.INT64),
        Column("url", ColumnType.STRING),
        Column("status", ColumnType.INT32),
        Column("bytes", ColumnType.INT64, nullable=True),
        Column("method", ColumnType.STRING),
        Column("share", ColumnType.FLOAT64),
    ),
)


def write_events(spark: SparkSession, rows: int, folder: str, *, bad: bool) -> None:
    """Events over a day; with `bad`, every thousandth status and every ten thousandth client fails its check."""
    n = F.col("id")
    status = F.when(n % 1000 == 7, 0).otherwise(200) if bad else F.lit(200)
    client = F.when(n % 10_000 == 9, -1).otherwise(n % 50_000) if bad else n % 50_000
    spark.range(rows).select(
        F.timestamp_seconds(F.lit(int(START.timestamp())) + F.floor(n * HOURS / rows) * 3600).alias("hour"),
        client.cast("bigint").alias("client_id"),
        F.concat(F.lit("/images/"), (n % 9973).cast("string"), F.lit(".gif")).alias("url"),
        status.cast("int").alias("status"),
        F.when(n % 10 > 0, n % 4096).alias("bytes"),
        F.when(n % 3 == 0, "POST").otherwise("GET").alias("method"),
        (F.xxhash64("id") % 1000 / 2000 + 0.5).alias("share"),
    ).write.parquet(folder)


def write_nothing(frame: DataFrame) -> None:
    """A pass over all columns of all rows."""
    frame.write.format("noop").mode("overwrite").save()


def write_hours(frame: DataFrame) -> None:
    """The write of a repair: shuffled and sorted by hour, to Parquet."""
    with tempfile.TemporaryDirectory() as folder:
        write_by_hour(frame, local_uri(Path(folder, "rows")), hour=TABLE.hour)


def ours(frame: DataFrame, write: Write = write_nothing) -> dict[str, int]:
    """Mark the rows, write the good ones, and count on the way: the failures by check, of all hours."""
    with split(frame) as found:
        write(found.good.select(*TABLE.column_names))
        failed: Counter[str] = Counter()
        for of_hour in rejects_by_hour(found.rejects()).values():
            failed.update(of_hour.by_rule)
    return dict(failed)


def split(frame: DataFrame) -> RejectSplit:
    return RejectSplit(mark_failures(frame, RULES), TABLE.hour, F.to_json(F.struct(*TABLE.column_names)))


def ours_judged(frame: DataFrame) -> None:
    """What a repair does: the good rows are judged as they were written, with a hash of each hour's content."""
    with tempfile.TemporaryDirectory() as folder, split(frame) as found:
        write_by_hour(found.good.select(*TABLE.column_names), local_uri(Path(folder, "rows")), hour=TABLE.hour)
        judge(found, frame.sparkSession.read.parquet(f"{folder}/rows"), TABLE, RULES, {})


def by_pandera(frame: DataFrame, write: Write = write_nothing) -> set[str]:
    """pandera's own verdict by column, and all rows written: it does not tell which failed."""
    with config_context(validation_enabled=True, validation_depth=ValidationDepth.SCHEMA_AND_DATA):
        errors = Events.validate(frame).pandera.errors
    write(frame)
    return {found["column"] for kinds in errors.values() for ones in kinds.values() for found in ones}


def measure(spark: SparkSession, folder: str, runs: int) -> dict[str, list[float]]:
    """Seconds of each way, in interleaved runs after one that is not counted."""
    ways: dict[str, Callable[[DataFrame], Any]] = {
        "plain": write_nothing,
        "ours": ours,
        "pandera": by_pandera,
        "plain, written": write_hours,
        "ours, written": partial(ours, write=write_hours),
        "pandera, written": partial(by_pandera, write=write_hours),
        "ours, written and judged": ours_judged,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(runs + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            way(spark.read.parquet(folder))
            took = time.perf_counter() - began
            sys.stderr.write(f"{Path(folder).name}, run {run}: {name} {took:.2f} s\n")
            if run:
                seconds[name].append(took)
    return seconds


def verify(spark: SparkSession, folder: str, rows: int, *, bad: bool) -> None:
    """Both must find exactly what was put in. Raises SystemExit otherwise."""
    expected = (
        {"status: in_range(100, 599)": rows // 1000, "client_id: greater_than_or_equal_to(0)": rows // 10_000} if bad else {}
    )
    found, columns = ours(spark.read.parquet(folder)), by_pandera(spark.read.parquet(folder))
    if found != expected or columns != {name.split(":")[0] for name in expected}:
        raise SystemExit(f"wrong results, nothing is reported: expected {expected}, ours {found}, pandera {columns}")


def report(measured: dict[str, dict[str, list[float]]], rows: int) -> str:
    """The figures as Markdown."""
    lines = [
        "# What checking costs",
        "",
        f"{rows:,} rows, 7 columns, {len(RULES.rows)} checks, {HOURS} hours; seconds, median (least to most) of "
        "interleaved runs.",
        f"{platform.machine()}, {os.cpu_count()} cores shared with other work, Python {platform.python_version()}, "
        f"PySpark {version('pyspark')}, pandera {version('pandera')}. Made by `python -m benchmarks.checks`.",
        "",
        "| data | pass | seconds | the checks add |",
        "| --- | --- | --- | --- |",
    ]
    base = {name: "plain, written" if "written" in name else "plain" for name in next(iter(measured.values()))}
    for data, seconds in measured.items():
        middle = {name: statistics.median(times) for name, times in seconds.items()}
        added = {name: middle[name] - middle[without] for name, without in base.items()}
        for name, times in seconds.items():
            more = f"{added[name]:.2f}" if base[name] != name else ""
            lines.append(f"| {data} | {name} | {middle[name]:.2f} ({min(times):.2f} to {max(times):.2f}) | {more} |")
        shares = {name: f"{added[name] / added[other]:.2f}" for name, other in COMPARED.items()}
        lines.append(f"| {data} | ours / pandera | | {'; '.join(f'{name}: **{share}**' for name, share in shares.items())} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=6_000_000)
    arguments.add_argument("--runs", type=int, default=3)
    chosen = arguments.parse_args()
    use_this_interpreter()
    builder = SparkSession.builder
    for key, value in session_options(master="local[2]", remote=None, driver_memory="4g").items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    folder = tempfile.mkdtemp()
    try:
        measured = {}
        for name, bad in (("all rows good", False), ("some rows bad", True)):
            data = f"{folder}/{name}"
            write_events(spark, chosen.rows, data, bad=bad)
            verify(spark, data, chosen.rows, bad=bad)
            measured[name] = measure(spark, data, chosen.runs)
        text = report(measured, chosen.rows)
        sys.stdout.write(text)
        RESULTS.write_text(text)
    finally:
        spark.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
