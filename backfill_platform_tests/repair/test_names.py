"""Columns with capital letters, as in a table of somebody else, through all steps."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark.sql.types as T
import pytest
from pandera.pyspark import DataFrameModel, Field
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.staging import Loading
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.adapters.files.formats import JsonLines
from backfill_platform.adapters.files.hourly import ArchiveFile
from backfill_platform.adapters.iceberg.lake import quarantine_of
from backfill_platform.detection.survey import survey
from backfill_platform.domain.change_limits import ChangeLimits
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import WAREHOUSE
from backfill_platform.domain.tables import Layer, TargetTable
from backfill_platform.domain.uris import local_uri
from backfill_platform.pipelines.spec import DerivedTable, Pipeline, RawTable
from backfill_platform.repair.publish import Publishing
from backfill_platform.repair.undo import UndoScope
from backfill_platform_tests.events import T0
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.whole


class Events(DataFrameModel):
    ingestion_hour: T.TimestampType = Field()
    EventTime: T.TimestampType = Field()
    WatchID: T.LongType = Field()
    CounterID: T.LongType = Field()
    URL: T.StringType = Field(nullable=True)


class Hits(DataFrameModel):
    hour: T.TimestampType = Field()
    WatchID: T.LongType = Field()
    CounterID: T.LongType = Field(ge=0)
    EventTime: T.TimestampType = Field()
    URL: T.StringType = Field(nullable=True)


def build(events: "DataFrame") -> "DataFrame":
    """Spark finds columns in whatever case; what it returns has the case of the schema."""
    return events.select(F.date_trunc("hour", "eventtime").alias("hour"), "WatchID", "CounterID", "EventTime", "URL")


TABLE = """
CREATE TABLE web_names.Hits (WatchID UInt64, CounterID UInt32, EventTime DateTime('UTC'), URL Nullable(String), Sign Int8)
ENGINE = CollapsingMergeTree(Sign) PARTITION BY toYYYYMM(EventTime) ORDER BY (CounterID, EventTime, WatchID)
"""


@pytest.fixture
def world(tmp_path: Path, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    rows = [
        {
            "WatchID": number,
            "CounterID": -1 if number == 5 else 2**40 if number == 6 else number % 3,
            "EventTime": f"{T0 + timedelta(minutes=5 * number):%Y-%m-%dT%H:%M:%SZ}",
            "URL": None if number == 7 else f"/{number}",
        }
        for number in range(24)
    ]
    (tmp_path / "hits.jsonl").write_text("\n".join(map(json.dumps, rows)))
    warehouse.command("CREATE DATABASE web_names", doing="preparing")
    warehouse.command(TABLE, doing="preparing")
    hits = DerivedTable(
        Layer.TRANSFORMED, "named_hits", Hits, "named_events", build, key=("CounterID", "WatchID", "EventTime"),
        tenant="CounterID", target=TargetTable("web_names", "Hits", "Sign", hour="EventTime"),
        stored_as={"WatchID": "UInt64", "CounterID": "UInt32", "EventTime": "DateTime('UTC')"},
    )  # fmt: skip
    hours = HourRange(T0, T0 + 2 * HOUR)
    pipeline = Pipeline(
        "named", "Hits.", hours.start, hours.end, ArchiveFile(local_uri(tmp_path / "hits.jsonl"), hours, format=JsonLines()),
        RawTable("named_events", Events, event_time="EventTime", same_event=("WatchID",)), (hits,),
    )  # fmt: skip
    made = World(tmp_path, spark, warehouse, pipeline, open_lake(tmp_path))
    yield made
    made.drop()
    warehouse.command("DROP DATABASE web_names SYNC", doing="cleaning up")


def test_names_may_have_capital_letters(world: World) -> None:
    outcomes = world.run(world.everything)
    assert {outcome.error for by_hour in outcomes.values() for outcome in by_hour.values()} == {""}
    (table,) = world.pipeline.published
    reasons = world.lake.read(quarantine_of(table), ("reason",), "reason != ''").to_pylist()
    below = "CounterID: greater_than_or_equal_to(0); CounterID: fits UInt32"
    assert {row["reason"] for row in reasons} == {below, "CounterID: fits UInt32"}
    before = world.net()
    assert sum(one.rows for one in before[table.name].values()) == 22
    assert survey(world.pipeline, world.hours, world.lake, world.warehouse).gaps == ()
    damage(world, "URL = '/lost' WHERE CounterID < 2 AND WatchID < 3")
    (gap,) = survey(world.pipeline, world.hours, world.lake, world.warehouse).gaps
    assert set(gap.tenants) == {"0", "1"}
    refused = world.run(assets(world), change_limits=ChangeLimits(columns=frozenset()))[assets(world)[0]]
    assert "URL" in refused[T0].error
    world.run(assets(world), tenants=("0",))
    world.run(assets(world), publishing=Publishing(Loading.PUSH))
    assert world.net() == before
    (undone,) = world.undo(UndoScope(f"r{world.repairs}", tenant="1"))
    assert (undone.undoable.conflicts, undone.failed) == (0, ())
    assert world.net() != before


def assets(world: World) -> list[tuple[str, str]]:
    return [(WAREHOUSE, world.pipeline.published[0].name)]


def damage(world: World, change: str) -> Any:
    statement = f"ALTER TABLE {target_name(world.pipeline.published[0])} UPDATE {change} SETTINGS mutations_sync = 2"
    return world.warehouse.command(statement, doing="damaging")
