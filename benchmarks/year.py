"""A year of hours, landed, built, published and judged: `python -m benchmarks.year [--hours N]`.

Every hour has a few visits, so that what is measured is the work on hours and not on rows. The survey is what `backfill gaps`
and the sensor do: it must find nothing in the year as published, and exactly the damage done to it afterwards.
"""

import argparse
import json
import logging
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

from pyspark.sql import SparkSession

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.sql import qualified, target_name
from backfill_platform.adapters.files.hourly import ArchiveFile
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.spark.session import session_options, use_this_interpreter
from backfill_platform.detection.survey import survey
from backfill_platform.devstack.embedded_clickhouse import server as embedded
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.tables import Table
from backfill_platform.domain.uris import local_uri
from backfill_platform.examples import clickstream
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.outcomes import StepFinished
from benchmarks.repairs import repair, services

RESULTS = Path(__file__).parent / "results-year.md"
START = datetime(2025, 1, 1, tzinfo=UTC)
VISITS = 12  # an hour, of two requests each
SURVEYS = 5


def write_requests(path: Path, hours: int) -> None:
    """Visits in the middle of their hours."""
    chance = random.Random(7)
    with open(path, "w", encoding="latin-1") as file:
        for number in range(hours):
            for _ in range(VISITS):
                client, at = chance.randrange(100_000), START + number * HOUR + timedelta(seconds=1200 + chance.randrange(600))
                for second in (0, 30):
                    moment = at + timedelta(seconds=second)
                    file.write(f"{client},{moment:%d/%b/%Y},{moment:%H:%M:%S},/,200,10\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=8760, help="how many; the results file is written for a year only")
    parser.add_argument("--home", type=Path, help="a folder in which the set-up is kept, and found again by the next call")
    arguments = parser.parse_args()
    hours, home = arguments.hours, arguments.home
    logging.disable(logging.WARNING)
    folder = home or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    try:
        span = HourRange(START, START + hours * HOUR)
        source = ArchiveFile(local_uri(folder / "requests.csv"), span, encoding="ISO-8859-1")
        pipeline = replace(clickstream.pipeline, start=span.start, end=span.end, source=source)
        lake = Lake(f"sqlite:///{folder}/catalog.db", local_uri(folder))
        with embedded.start(folder / "warehouse") as server, closing(Warehouse(server.url)) as warehouse:
            done = folder / "seconds.json"
            if not done.exists():
                write_requests(folder / "requests.csv", hours)
                done.write_text(json.dumps(set_up(pipeline, span, lake, warehouse)))
            steps: dict[str, float] = json.loads(done.read_text())
            healthy = judge(pipeline, span, lake, warehouse, server.pid, [])
            damaged = START + hours // 2 * HOUR
            with without_hour(warehouse, pipeline.published[0], damaged):
                lost = judge(pipeline, span, lake, warehouse, server.pid, [damaged])
    finally:
        if not home:
            shutil.rmtree(folder)
    text = (
        "# A year of hours\n\n"
        f"`python -m benchmarks.year` on 2 cores ({platform.machine()}), PySpark {version('pyspark')}, chdb-core "
        f"{version('chdb-core')}: {hours:,} hours with {2 * VISITS} events each.\n\n"
        f"Three layers judged {SURVEYS} times each, in seconds, while {os.getloadavg()[0]:.0f} processes wanted the cores: "
        "medians, with the smallest and the largest. The first survey of a process reads Iceberg's manifests, the others know "
        "them. As published, no gap was invented; an hour deleted from ClickHouse was the only one found.\n\n"
        "| survey | on the clock | processor time | processor time of ClickHouse |\n|---|---|---|---|\n"
        + row("as published, the first", healthy[:1])
        + row("as published, the others", healthy[1:])
        + row("with an hour deleted", lost)
        + "\n"
        f"Landed, built and published in one range run: {sum(steps.values()):.0f} s "
        f"({1000 * sum(steps.values()) / hours / len(steps):.0f} ms for each of {hours * len(steps):,} asset-hours).\n\n"
        + "\n".join(f"- {name}: {value:.0f} s" for name, value in steps.items())
        + "\n"
    )
    sys.stdout.write(text)
    if hours == parser.get_default("hours"):
        RESULTS.write_text(text)


def set_up(pipeline: Pipeline, span: HourRange, lake: Lake, warehouse: Warehouse) -> dict[str, float]:
    """Land, build and publish all hours; the seconds that each asset took."""
    use_this_interpreter()
    builder = SparkSession.builder
    for name, value in session_options(master="local[2]", remote=None, driver_memory="3g").items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    assets = [asset for node in pipeline.nodes for asset in node.assets if asset[0] != "dry_run"]
    steps: dict[str, float] = {}
    began = time.perf_counter()
    for event in repair(pipeline, services(lake, spark, warehouse), span, assets, "bench"):
        if isinstance(event, StepFinished):
            asset = "/".join(event.step.asset)
            steps[asset] = steps.get(asset, 0.0) + time.perf_counter() - began - sum(steps.values())
            sys.stderr.write(f"{asset} {event.step.hours}: {sum(steps.values()):.0f} s\n")
    return steps


@dataclass(frozen=True)
class Seconds:
    """What a survey took: on the clock, and of processor time, its own and the warehouse's."""

    clock: float
    own: float
    warehouse: float


def judge(
    pipeline: Pipeline, span: HourRange, lake: Lake, warehouse: Warehouse, pid: int, missing: list[datetime]
) -> list[Seconds]:
    """What surveys take, all of which must find these hours and nothing else; `pid` is the warehouse's process."""
    seconds = []
    for _ in range(SURVEYS):
        before = (time.perf_counter(), time.process_time(), processor_time(pid))
        gaps = survey(pipeline, span, lake, warehouse).gaps
        after = (time.perf_counter(), time.process_time(), processor_time(pid))
        seconds.append(Seconds(*(end - start for start, end in zip(before, after, strict=True))))
        if [(gap.hour, str(gap.kind)) for gap in gaps] != [(hour, "missing") for hour in missing]:
            raise SystemExit(f"{len(gaps)} gaps found, not {missing}: {gaps[:3]}")
    return seconds


def processor_time(pid: int) -> float:
    """The seconds of processor time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def without_hour(warehouse: Warehouse, table: Table, hour: datetime) -> Iterator[None]:
    """The target without the rows of an hour, which come back in the end."""
    target, kept, why = target_name(table), qualified("default", "kept"), "damaging"
    where = f"hour = toDateTime({int(hour.timestamp())}, 'UTC')"
    warehouse.drop(kept, doing=why)
    warehouse.command(f"CREATE TABLE {kept} ENGINE = Memory AS SELECT * FROM {target} WHERE {where}", doing=why)
    warehouse.command(f"ALTER TABLE {target} DELETE WHERE {where}", settings={"mutations_sync": 2}, doing=why)
    try:
        yield
    finally:
        warehouse.command(f"INSERT INTO {target} SELECT * FROM {kept}", doing=why)
        warehouse.drop(kept, doing=why)


def row(name: str, seconds: list[Seconds]) -> str:
    """Medians with the smallest and the largest."""
    columns = [[one.clock for one in seconds], [one.own for one in seconds], [one.warehouse for one in seconds]]
    cells = [f"{statistics.median(column):.2f} ({min(column):.2f} to {max(column):.2f})" for column in columns]
    return f"| {name} | {' | '.join(cells)} |\n"


if __name__ == "__main__":
    main()
