"""Hours with lines that the parser of yesterday rejects, and the parser of today that reads some of them."""

import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.domain.uris import local_uri
from backfill_platform.examples import clickstream
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform_tests.events import hour, random_clicks, write_lines
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOURS = 3
CLICKS = random_clicks(7, hours=HOURS, clients=25)
# By hour: what today's parser reads, one of them twice, and what nobody can read.
MENDED = {
    0: ["71,30/Apr/1998,22:10:00,/a,-,5", "72,30/Apr/1998,22:11:00,/b,-,5", "72,30/Apr/1998,22:11:00,/b,-,5"],
    1: ["73,30/Apr/1998,23:10:00,/c,-,5"],
    2: [],
}
HOPELESS = {0: ["no commas here", ""], 1: ["74,30/Apr/1998,23:10:00,/c,-,many"], 2: ["also broken"]}


def parse_today(lines: DataFrame) -> DataFrame:
    """The parser of the clickstream, which takes `-` for the status 200."""
    mended = lines.withColumn("as_it_came", F.col("line")).withColumn("line", F.regexp_replace("line", ",-,", ",200,"))
    return clickstream.parse(mended).withColumn("line", F.col("as_it_came")).drop("as_it_came")


def hourly_pipeline(folder: Path, suffix: str) -> Pipeline:
    """The clickstream over a file for each hour, with yesterday's parser and table names of its own."""
    sessions, hourly = clickstream.pipeline.derived
    return replace(
        clickstream.pipeline,
        start=hour(0),
        end=hour(HOURS),
        source=HourlyFiles(local_uri(folder / "events") + "/%Y-%m-%dT%H.csv"),
        derived=(
            replace(sessions, name=f"sessions_{suffix}"),
            replace(hourly, name=f"site_hourly_{suffix}", reads=f"sessions_{suffix}"),
        ),
    )


def of_today(pipeline: Pipeline) -> Pipeline:
    """The pipeline with the parser of today."""
    return replace(pipeline, raw=replace(pipeline.raw, parse=parse_today))


def write_events(folder: Path) -> None:
    """A file for each hour."""
    for number in range(HOURS):
        clicks = [click.line for click in CLICKS if hour(number) <= click.at < hour(number + 1)]
        write_lines(folder / "events" / f"{hour(number):%Y-%m-%dT%H}.csv", [*clicks, *MENDED[number], *HOPELESS[number]])


def hourly_world(folder: Path, spark: "SparkSession", warehouse: Warehouse, suffix: str = "") -> World:
    """A world over these files; nothing has landed."""
    write_events(folder)
    pipeline = hourly_pipeline(folder, suffix or uuid.uuid4().hex[:8])
    return World(folder, spark, warehouse, pipeline, open_lake(folder))
