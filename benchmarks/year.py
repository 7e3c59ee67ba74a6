"""A year of hours, landed, built, published and judged: `python -m benchmarks.year [--hours N]`.

Every hour has a few visits, so that what is measured is the work on hours and not on rows. The survey is what `backfill gaps`
and the sensor do: it must find nothing in the year as published, and exactly the damage done to it afterwards.
"""

import argparse
import logging
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

from pyspark.sql import SparkSession

from backfill_platform.core.hours import HOUR, HourRange
from backfill_platform.core.plan import make_plan
from backfill_platform.core.uris import local_uri
from backfill_platform.lake.tables import Lake
from backfill_platform.pipelines import clickstream
from backfill_platform.repair.detect import survey
from backfill_platform.repair.engine import Context, run
from backfill_platform.repair.outcomes import HourOutcome, StepFinished
from backfill_platform.spark.session import session_options, use_this_interpreter
from backfill_platform.streams.files import ArchiveFile
from backfill_platform.warehouse import embedded
from backfill_platform.warehouse.client import Warehouse
from backfill_platform.warehouse.sql import target_name

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
    hours = parser.parse_args().hours
    logging.disable(logging.WARNING)
    use_this_interpreter()
    builder = SparkSession.builder
    for name, value in session_options(master="local[2]", remote=None, driver_memory="3g").items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    folder = Path(tempfile.mkdtemp())
    try:
        write_requests(folder / "requests.csv", hours)
        span = HourRange(START, START + hours * HOUR)
        source = ArchiveFile(local_uri(folder / "requests.csv"), span, encoding="ISO-8859-1")
        pipeline = replace(clickstream.pipeline, start=span.start, end=span.end, source=source)
        lake = Lake(f"sqlite:///{folder}/catalog.db", local_uri(folder))
        with embedded.start(folder / "warehouse") as server, closing(Warehouse(server.url)) as warehouse:
            assets = [asset for node in pipeline.nodes for asset in node.assets if asset[0] != "dry_run"]
            why = "benchmark"
            context = Context(
                pipeline, lake, lambda: spark, lambda: warehouse, lambda: datetime.now(UTC), "bench", why, why, why
            )
            steps: dict[str, float] = {}
            began = time.perf_counter()
            for event in run(make_plan(pipeline.name, pipeline.nodes, span, assets), context):
                if isinstance(event, HourOutcome) and event.error:
                    raise SystemExit(f"{event.asset} {event.hour}: {event.error}")
                if isinstance(event, StepFinished):
                    asset = "/".join(event.step.asset)
                    steps[asset] = steps.get(asset, 0.0) + time.perf_counter() - began - sum(steps.values())
                    sys.stderr.write(f"{asset} {event.step.hours}: {sum(steps.values()):.0f} s\n")
            seconds = []
            for _ in range(SURVEYS):
                began = time.perf_counter()
                found = survey(pipeline, span, lake, warehouse).gaps
                seconds.append(time.perf_counter() - began)
                if found:
                    raise SystemExit(f"{len(found)} gaps in a year without any: {found[:3]}")
            damaged = START + hours // 2 * HOUR
            warehouse.command(
                f"ALTER TABLE {target_name(pipeline.published[0])} DELETE WHERE hour = toDateTime({int(damaged.timestamp())})",
                settings={"mutations_sync": 2},
                doing="damaging",
            )
            gaps = survey(pipeline, span, lake, warehouse).gaps
            if [(gap.hour, str(gap.kind)) for gap in gaps] != [(damaged, "missing")]:
                raise SystemExit(f"the damaged hour was not found: {gaps}")
    finally:
        shutil.rmtree(folder)
    text = (
        "# A year of hours\n\n"
        f"`python -m benchmarks.year` on 2 cores ({platform.machine()}), PySpark {version('pyspark')}, chdb-core "
        f"{version('chdb-core')}: {hours:,} hours with {2 * VISITS} events each.\n\n"
        f"Judged, three layers: **{statistics.median(seconds):.2f} s** ({min(seconds):.2f} to {max(seconds):.2f}, {SURVEYS} "
        "surveys). No gap was invented; an hour deleted from ClickHouse afterwards was the only one found.\n\n"
        f"Landed, built and published in one range run: {sum(steps.values()):.0f} s "
        f"({1000 * sum(steps.values()) / hours / len(steps):.0f} ms for each of {hours * len(steps):,} asset-hours).\n\n"
        + "\n".join(f"- {name}: {value:.0f} s" for name, value in steps.items())
        + "\n"
    )
    sys.stdout.write(text)
    if hours == parser.get_default("hours"):
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
