"""The shipped pipelines from their files to the warehouse, equal to their references in plain Python."""

import gzip
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.files.hourly import ArchiveFile
from backfill_platform.adapters.iceberg.lake import quarantine_of
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.examples import payments, playbacks
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.reports.facts import facts_of
from backfill_platform_tests.events import write_lines
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.oracles import payments as payments_reference
from backfill_platform_tests.oracles import playbacks as playbacks_reference
from backfill_platform_tests.world import World, warehouse_asset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.whole

# Three hours, at the beginning of the last of which a household paid for the fourth time in an hour.
EVENING = HourRange(datetime(2017, 3, 1, 18, tzinfo=UTC), datetime(2017, 3, 1, 21, tzinfo=UTC))
MALFORMED = {
    "": "event_time: missing; household_id: missing; store_id: missing; basket_id: missing; product_id: missing; "
    "quantity: missing; sales_cents: missing",
    "1,2,3,4,1.0,-1.0,0.0,0.0,0.0,9,2017-03-01 18:00:00": "sales_cents: greater_than_or_equal_to(0)",
    "1,2,3,4,1.0,1.0,0.0,0.0,0.0,9,2017-03-01 21:00:00": "event_time: not within the hours of its file",
}


@pytest.fixture
def paid(tmp_path: Path, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    """Some hours of the shipped baskets, a line of them delivered twice, and lines that must be refused."""
    with gzip.open(payments.LINES_FILE, "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file if any(f",{hour:%Y-%m-%d %H}:" in line for hour in EVENING)]
    uri = write_lines(tmp_path / "lines.csv", [payments.HEADER, *lines, lines[0], *MALFORMED])
    source = ArchiveFile(uri, EVENING, header=payments.HEADER)
    pipeline = replace(payments.pipeline, start=EVENING.start, end=EVENING.end, source=source)
    yield from world_of(pipeline, tmp_path, spark, warehouse)


@pytest.fixture
def played(tmp_path: Path, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    """The shipped evening of impressions and plays."""
    yield from world_of(playbacks.pipeline, tmp_path, spark, warehouse)


def world_of(pipeline: Pipeline, folder: Path, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    suffix = uuid.uuid4().hex[:8]
    detail, hourly = pipeline.derived
    derived = (
        replace(detail, name=f"{detail.name}_{suffix}"),
        replace(hourly, name=f"{hourly.name}_{suffix}", reads=f"{detail.name}_{suffix}"),
    )
    world = World(folder, spark, warehouse, replace(pipeline, derived=derived), open_lake(folder))
    yield world
    world.drop()


def rebuild_in_chunks(world: World, *cuts: int) -> set[object]:
    """Lose the derived tables and make them again chunk by chunk, the last chunk first; what became of the hours."""
    hours = list(world.hours)
    for derived in world.pipeline.derived:
        world.lake.remove_hours(derived.table, hours)
    read_ends = [0, *cuts, len(hours)]
    statuses: set[object] = set()
    for first, last in reversed(list(pairwise(read_ends))):
        outcomes = world.run(world.derived, HourRange(hours[first], hours[last - 1] + HOUR))
        assert not [found.error for by_hour in outcomes.values() for found in by_hour.values() if found.error]
        for derived in world.pipeline.derived:
            statuses |= {facts_of(found)["status"] for found in outcomes[warehouse_asset(derived.name)].values()}
    return statuses


def test_payments_are_published_as_the_reference_has_them(paid: World) -> None:
    every, _ = payments_reference.read_lines(payments.LINES_FILE)
    lines = [line for line in every if line.at in EVENING]
    assert max(row[-2] for row in payments_reference.velocity(lines)) == 4  # type: ignore[type-var]

    outcomes = paid.run(paid.everything)

    assert not [found.error for by_hour in outcomes.values() for found in by_hour.values() if found.error]
    wanted = paid.prints(payments_reference.velocity(lines), payments_reference.payments_hourly(lines))
    assert paid.net() == wanted
    raw = paid.pipeline.raw.table
    landed = outcomes[raw.path].values()
    assert sum(int(facts_of(found)["rows"]) for found in landed) == len(lines) + 1
    assert sum(int(facts_of(found)["duplicates"]) for found in landed) == 1
    rejects = [file.uri for file in paid.lake.files(quarantine_of(raw))]
    assert {row["payload"]: row["reason"] for row in paid.spark.read.parquet(*rejects).collect()} == MALFORMED
    assert rebuild_in_chunks(paid, 1, 2) == {"unchanged"}
    assert paid.net() == wanted


def test_impressions_wait_for_their_plays_and_are_published_as_the_reference_has_them(played: World) -> None:
    events, bad = playbacks_reference.read_events(playbacks.EVENTS_FOLDER)
    raw, start = played.pipeline.raw.table, played.hours.start

    first = played.run([raw.path, played.pipeline.derived[0].table.path], HourRange(start, start + 5 * HOUR))
    errors = {hour: found.error for hour, found in first[played.pipeline.derived[0].table.path].items()}
    assert [hour for hour, error in errors.items() if not error] == [start]  # plays of the fifth hour may be its own
    assert "the lake does not have raw/playbacks of 2017-06-01T23" in errors[start + HOUR]

    outcomes = played.run(played.everything)
    assert not [found.error for by_hour in outcomes.values() for found in by_hour.values() if found.error]
    wanted = played.prints(playbacks_reference.attribution(events), playbacks_reference.playbacks_hourly(events))
    assert played.net() == wanted
    landed = outcomes[raw.path].values()
    assert sum(int(facts_of(found)["rows"]) for found in landed) == len(events)
    assert sum(int(facts_of(found)["duplicates"]) for found in landed) > 0
    rejects = [file.uri for file in played.lake.files(quarantine_of(raw))]
    assert sorted(row["payload"] for row in played.spark.read.parquet(*rejects).collect()) == sorted(bad)
    assert rebuild_in_chunks(played, 1, 6, 7) == {"unchanged"}
    assert played.net() == wanted
