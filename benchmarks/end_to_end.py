"""From the raw lake to published ClickHouse: `python -m benchmarks.end_to_end [--quick]`.

The clickstream pipeline rebuilds and publishes hours of a million raw events each: sessions and hourly metrics are read with
their margins, deduplicated, followed until they are closed, checked, committed to the lake, staged, compared, published,
verified and written to the ledger. Beside it, in the same run and turn by turn, a bare Spark job reads the same files and
sessionizes them into a no-op sink: no margins, duplicates, checks, aggregates, lake or warehouse. Nothing is reported before
the sessions in ClickHouse are those that one plain SQL statement of ClickHouse finds in the raw files.
"""

import argparse
import logging
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.sql import FILE_SETTINGS, literal, target_name
from backfill_platform.adapters.iceberg.lake import Lake, quarantine_of
from backfill_platform.adapters.spark.hours import between
from backfill_platform.adapters.spark.reader import spark_schema
from backfill_platform.adapters.spark.session import session_options, use_this_interpreter
from backfill_platform.adapters.spark.writer import write_by_hour
from backfill_platform.devstack.embedded_clickhouse import server as embedded
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.examples import clickstream
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.outcomes import StepFinished, StepStarted
from benchmarks.repairs import repair as walk
from benchmarks.repairs import services

RESULTS = Path(__file__).parent / "results-end-to-end.md"
START = datetime(2026, 1, 1, tzinfo=UTC)
AROUND = 2  # hours of events before and after those that are rebuilt
PER_SESSION = 10  # events, on average
GAP = clickstream.GAP


@dataclass(frozen=True)
class Figures:
    """Seconds of one repair, by step, and of the bare job."""

    steps: dict[str, float]
    bare: float
    events: int
    sessions: int

    @property
    def wall(self) -> float:
        return sum(self.steps.values())

    @property
    def sessions_alone(self) -> float:
        """Without the hourly metrics, which the bare job does not compute either."""
        return sum(seconds for name, seconds in self.steps.items() if not name.endswith("/site_hourly"))


def pipeline_of(hours: int) -> Pipeline:
    return replace(clickstream.pipeline, start=START, end=START + (hours + 2 * AROUND) * HOUR)


def land_events(spark: SparkSession, lake: Lake, pipeline: Pipeline, per_hour: int) -> None:
    """Visits of ten requests on average, seeded, one in a thousand requests delivered twice, as landing would leave them."""
    table, hours = pipeline.raw.table, HourRange(pipeline.start, pipeline.end or START)
    visits, n = len(hours) * per_hour // PER_SESSION, F.col("id")

    def chance(name: str, below: int) -> Column:
        return F.pmod(F.xxhash64("id", F.lit(name)), F.lit(below))

    requests = spark.range(visits).select(
        chance("client", visits // 3).alias("client_id"),
        (chance("start", len(hours) * 3600) + int(hours.start.timestamp())).alias("began"),
        F.explode(F.sequence(F.lit(1), (chance("length", 2 * PER_SESSION - 1) + 1).cast("int"))).alias("number"),
        n,
    )
    second = F.col("began") + (F.col("number") - 1) * F.pmod(F.xxhash64("id", "number"), F.lit(180))
    rows = requests.select(
        F.timestamp_seconds(second).alias("event_time"),
        "client_id",
        F.concat(
            F.lit("/english/images/"), F.pmod(F.xxhash64("number", n), F.lit(9973)).cast("string"), F.lit("/team.gif")
        ).alias("url"),
        F.when(F.pmod(F.xxhash64(n, "number"), F.lit(50)) == 0, 404).otherwise(200).cast("int").alias("status"),
        F.pmod(F.xxhash64("number", n), F.lit(4096)).alias("bytes"),
        F.pmod(F.xxhash64("number", "began"), F.lit(1000)).alias("chance"),
    ).where(between("event_time", hours.start, hours.end))
    twice = rows.where("chance = 7").unionByName(rows)
    raw = twice.withColumn("ingestion_hour", F.date_trunc("hour", "event_time")).select(*table.column_names)
    for kept in (table, quarantine_of(table)):
        lake.ensure(kept)
    files = write_by_hour(raw, lake.data_uri(table, "generated"), hour=table.hour, sort_by=("event_time",))
    lake.stage(table, "generated", list(hours), files)
    lake.promote(table, "generated", list(hours))


def numbered(events: DataFrame) -> DataFrame:
    """The events with the number of their session, as everybody writes it."""
    in_order = Window.partitionBy("client_id").orderBy("event_time")
    seconds = F.col("event_time").cast("long")
    starts = F.when(seconds - F.lag(seconds).over(in_order) < int(GAP.total_seconds()), 0).otherwise(1)
    return events.withColumn("starts", starts).withColumn("session", F.sum("starts").over(in_order))


def bare_job(spark: SparkSession, paths: list[str], pipeline: Pipeline) -> float:
    """Seconds to read and sessionize as everybody writes it, with the same columns, and to do nothing with the result."""
    began = time.perf_counter()
    events = spark.read.schema(spark_schema(pipeline.raw.table)).parquet(*paths)
    sessions = (
        numbered(events)
        .groupBy("client_id", "session")
        .agg(
            F.min("event_time").alias("started_at"),
            F.max("event_time").alias("ended_at"),
            F.count("*").alias("requests"),
            F.count_if(F.col("status") >= 400).alias("errors"),
            F.sum("bytes").alias("bytes"),
            F.min_by("url", "event_time").alias("entry_url"),
        )
    )
    sessions.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def sessions_by_sql(warehouse: Warehouse, paths: list[str], span: HourRange) -> tuple[int, int]:
    """Sessions that start in the hours and their requests, found by ClickHouse itself in the raw files, duplicates left out."""
    start, end = int(span.start.timestamp()), int(span.end.timestamp())
    files = ", ".join(literal(path.removeprefix("file://")) for path in paths)
    sql = f"""
        SELECT count(), sum(requests) FROM (
            SELECT client_id, session, min(second) AS began, count() AS requests FROM (
                SELECT client_id, second, sum(starts) OVER (PARTITION BY client_id ORDER BY second) AS session FROM (
                    SELECT client_id, second,
                        second - lagInFrame(second, 1, toInt64(-1000000)) OVER (PARTITION BY client_id ORDER BY second
                            ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) >= {int(GAP.total_seconds())} AS starts
                    FROM (SELECT DISTINCT client_id, url, status, bytes,
                              toInt64(toUnixTimestamp(assumeNotNull(event_time))) AS second
                          FROM file([{files}], Parquet))))
            GROUP BY client_id, session)
        WHERE began >= {start} AND began < {end}"""
    ((sessions, requests),) = warehouse.rows(sql, doing="sessionizing in SQL", settings=FILE_SETTINGS)
    return int(sessions), int(requests)


def repair(
    spark: SparkSession, lake: Lake, warehouse: Warehouse, pipeline: Pipeline, span: HourRange, name: str
) -> dict[str, float]:
    """Seconds of every step of a repair of the hours, from nothing in the warehouse."""
    for table in pipeline.published:
        warehouse.command(f"DROP TABLE IF EXISTS {target_name(table)} SYNC", doing="emptying")
    assets = [asset for node in pipeline.nodes[1:] for asset in node.assets if asset[0] != "dry_run"]
    steps: dict[str, float] = {}
    began = time.perf_counter()
    for event in walk(pipeline, services(lake, spark, warehouse), span, assets, name):
        if isinstance(event, StepStarted) and not steps:
            steps["begin"] = time.perf_counter() - began
        if isinstance(event, StepFinished):
            asset = "/".join(event.step.asset)  # long steps finish in parts
            steps[asset] = steps.get(asset, 0.0) + time.perf_counter() - began - sum(steps.values())
    steps["end"] = time.perf_counter() - began - sum(steps.values())
    return steps


@contextmanager
def world(spark: SparkSession, hours: int, per_hour: int) -> Iterator[tuple[Lake, embedded.EmbeddedWarehouse, Pipeline]]:
    folder = Path(tempfile.mkdtemp())
    try:
        lake = Lake(f"sqlite:///{folder}/catalog.db", folder.as_uri())
        pipeline = pipeline_of(hours)
        land_events(spark, lake, pipeline, per_hour)
        with embedded.start(folder / "warehouse") as server:
            yield lake, server, pipeline
    finally:
        shutil.rmtree(folder)


def measure(spark: SparkSession, hours: int, per_hour: int, runs: int) -> tuple[list[Figures], float]:
    """Figures of the runs, after one that is not counted, and the server's peak memory in gigabytes."""
    found = []
    with world(spark, hours, per_hour) as (lake, server, pipeline), closing(Warehouse(server.url)) as warehouse:
        span = HourRange(START + AROUND * HOUR, START + (AROUND + hours) * HOUR)
        raw = pipeline.raw.table
        events = sum(lake.rows_by_hour(raw, span).values())
        # What sessions of the hours can be made of: the bare job gets the hour before and all hours after, like ours.
        window = HourRange(span.start - HOUR, span.end + HOUR)
        paths = [file.uri for file in lake.files(raw, list(window))]
        # In a process of its own: what one statement over all events needs is not the memory of a repair.
        with (
            tempfile.TemporaryDirectory() as folder,
            embedded.start(Path(folder)) as judge,
            closing(Warehouse(judge.url)) as sql,
        ):
            expected = sessions_by_sql(sql, [file.uri for file in lake.files(raw)], span)
        for number in range(runs + 1):
            bare = bare_job(spark, paths, pipeline)
            steps = repair(spark, lake, warehouse, pipeline, span, f"bench{number}")
            stored = warehouse.rows(
                f"SELECT count(), sum(requests) FROM {target_name(pipeline.published[0])} FINAL", doing="counting"
            )
            if [tuple(map(int, row)) for row in stored] != [expected]:
                raise SystemExit(
                    f"ClickHouse holds {stored} (sessions, requests), its SQL finds {expected}: nothing is reported"
                )
            figures = Figures(steps, bare, events, expected[0])
            say(f"{hours} h, run {number}: bare {bare:.1f} s, ours {figures.wall:.1f} s: {told(steps)}\n")
            if number:
                found.append(figures)
        return found, peak_memory(server.pid)


def told(steps: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in steps.items())


def peak_memory(pid: int | str) -> float:
    """Gigabytes of a process, the most it ever had."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) / 1e6


def jvm_of(spark: SparkSession) -> int:
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr,operator]


def report(hours: int, found: list[Figures], memory: float, jvm: float) -> str:
    wall = [figures.wall for figures in found]
    middle, bare = statistics.median(wall), statistics.median(figures.bare for figures in found)
    ratio = statistics.median(figures.wall / figures.bare for figures in found)
    alone = statistics.median(figures.sessions_alone / figures.bare for figures in found)
    cells = (
        f"{hours}",
        f"{found[0].events:,}",
        f"{found[0].sessions:,}",
        f"{middle:.1f} ({min(wall):.1f} to {max(wall):.1f})",
        f"{middle / hours:.2f}",
        f"{found[0].events / middle:,.0f}",
        f"{bare:.1f}",
        f"**{alone:.2f}**",
        f"**{ratio:.2f}**",
        f"{jvm:.1f} + {peak_memory('self'):.1f} + {memory:.1f}",
    )
    return f"| {' | '.join(cells)} |\n"


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run of a tenth of the events")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--hours", type=int, nargs="+", default=[1, 6, 24, 48])
    parser.add_argument("--heap", metavar="SIZE", help="another heap than 4g for Spark's JVM; only prints")
    options = parser.parse_args()
    per_hour, runs = (100_000, 1) if options.quick else (1_000_000, options.runs)
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)
    use_this_interpreter()
    builder = SparkSession.builder
    for key, value in session_options(master="local[2]", remote=None, driver_memory=options.heap or "4g").items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    lines, slow = [], ""
    try:
        for hours in options.hours:
            found, memory = measure(spark, hours, per_hour, runs)
            lines.append(report(hours, found, memory, peak_memory(jvm_of(spark))))
            steps = {name: statistics.median(one.steps[name] for one in found) for name in found[0].steps}
            slow += f"- {hours} hours: {told(steps)}\n"
    finally:
        spark.stop()
    text = HEAD.format(
        cores=len(os.sched_getaffinity(0)),
        machine=platform.machine(),
        spark=version("pyspark"),
        chdb=version("chdb-core"),
        runs=runs,
        rate=per_hour,
        heap=options.heap or "4g",
    )
    text += "".join(lines) + "\nSeconds by step, medians:\n\n" + slow
    say(text)
    if not options.quick and not options.heap:
        RESULTS.write_text(text)


HEAD = """# Raw lake to published ClickHouse

`python -m benchmarks.end_to_end` on {cores} cores ({machine}), PySpark {spark} with a heap of {heap}, chdb-core {chdb}; medians
of {runs} runs, interleaved with the bare job; {rate:,} raw events an hour. The sessions in ClickHouse were compared with those
that its own SQL finds in the raw files. All rows are new to ClickHouse. The bare job computes sessions and no hourly metrics:
ours does both. Memory is the peak of the JVM, of Python and of the warehouse since their start.

| hours | events | sessions | ours, s (spread) | s an hour | events/s | bare, s | sessions / bare | ours / bare | peak GB |
|---|---|---|---|---|---|---|---|---|---|
"""


if __name__ == "__main__":
    main()
