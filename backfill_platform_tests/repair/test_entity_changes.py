"""Change events of entities through the platform: the newest of each entity and hour, whenever it arrives."""

import uuid
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyspark.sql.types as T
import pytest
from pandera.pyspark import DataFrameModel, Field
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.adapters.spark.entities import newest
from backfill_platform.domain.hours import HOUR, HourRange, hour_of
from backfill_platform.domain.tables import Layer
from backfill_platform.domain.uris import local_uri
from backfill_platform.pipelines.spec import DerivedTable, Pipeline, RawTable
from backfill_platform_tests.events import write_lines
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.oracles import entities
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T0 = datetime.fromisoformat("2026-01-01T00:00:00Z")
HOURS = HourRange(T0, T0 + 3 * HOUR)


class Changes(DataFrameModel):
    """A customer was changed or deleted."""

    ingestion_hour: T.TimestampType = Field(description="hour in which the change arrived, UTC")
    modified_at: T.TimestampType = Field(description="when the customer was modified, UTC")
    position: T.LongType = Field(ge=0, description="place of the change among those of its ingestion hour")
    customer_id: T.LongType = Field(ge=1, description="number of the customer")
    name: T.StringType = Field(nullable=True, description="name after the change; NULL for a delete")


class Newest(DataFrameModel):
    """The newest change of a customer within an hour."""

    hour: T.TimestampType = Field(description="hour of the modification, UTC")
    customer_id: T.LongType = Field(ge=1, description="number of the customer")
    modified_at: T.TimestampType = Field(description="when the customer was modified, UTC")
    name: T.StringType = Field(nullable=True, description="name after the change; NULL for a delete")


class Change(NamedTuple):
    """What arrived at a position of an hour; no name deletes."""

    arrived: int
    position: int
    customer: int
    minutes: int
    name: str | None

    @property
    def at(self) -> datetime:
        return T0 + timedelta(minutes=self.minutes)

    @property
    def line(self) -> str:
        return f"{self.position},{self.customer},{self.at:%Y-%m-%dT%H:%M:%SZ},{self.name or ''}"


def parse(lines: "DataFrame") -> "DataFrame":
    part = F.split("line", ",")
    return lines.select(
        "*",
        F.try_to_timestamp(part[2]).alias("modified_at"),
        part[0].cast("bigint").alias("position"),
        part[1].cast("bigint").alias("customer_id"),
        F.nullif(part[3], F.lit("")).alias("name"),
    )


def build(changes: "DataFrame") -> "DataFrame":
    by_hour = changes.withColumn("hour", F.date_trunc("hour", "modified_at"))
    found = newest(by_hour, key=("hour", "customer_id"), modified="modified_at", arrived=("ingestion_hour", "position"))
    return found.drop("ingestion_hour", "position")


def reference(changes: list[Change]) -> list[tuple[object, ...]]:
    found = entities.newest(
        changes,
        key=lambda one: (hour_of(one.at), one.customer),
        modified=lambda one: one.at,
        arrived=lambda one: (one.arrived, one.position),
    )
    return [(hour_of(one.at), one.customer, one.at, one.name) for one in found.values()]


@pytest.mark.whole
def test_a_late_change_repairs_the_hour_it_belongs_to(tmp_path: Path, spark: "SparkSession", warehouse_url: str) -> None:
    on_time = [
        Change(0, 0, 1, 5, "Ada"), Change(0, 1, 1, 30, "Ada L."), Change(0, 2, 2, 10, "Bob"), Change(0, 3, 2, 40, None),
        Change(0, 4, 3, 50, "Cy"), Change(1, 0, 1, 70, None), Change(1, 1, 4, 61, "Di"), Change(1, 2, 4, 61, "Dian"),
    ]  # fmt: skip
    late = [
        Change(2, 0, 1, 20, "older: never"), Change(2, 1, 2, 40, "Bob again: equal replaces"), Change(2, 2, 3, 59, None),
        Change(2, 3, 5, 130, "Eve"),
    ]  # fmt: skip
    for number in range(3):
        lines = [change.line for change in (*on_time, *late) if change.arrived == number]
        write_lines(tmp_path / f"{T0 + number * HOUR:%H}.csv", lines)
    table = f"customers_{uuid.uuid4().hex[:8]}"
    pipeline = Pipeline(
        name="customers",
        description="Changes of customers.",
        start=HOURS.start,
        end=HOURS.end,
        source=HourlyFiles(local_uri(tmp_path) + "/%H.csv"),
        raw=RawTable("customers", Changes, parse, event_time="modified_at"),
        derived=(DerivedTable(Layer.TRANSFORMED, table, Newest, reads="customers", build=build, key=("customer_id",)),),
    )
    with closing(Warehouse(warehouse_url)) as warehouse:
        world = World(tmp_path, spark, warehouse, pipeline, open_lake(tmp_path))
        first, last = HourRange(T0, T0 + 2 * HOUR), HourRange(T0 + 2 * HOUR, HOURS.end)

        def published(changes: list[Change]) -> bool:
            return world.net() == world.prints(reference(changes))

        try:
            world.run(world.everything, first)
            assert published(on_time)
            world.run(world.everything, last)
            assert not published([*on_time, *late])
            world.run(world.derived, HourRange(T0, T0 + HOUR))
            assert published([*on_time, *late])
        finally:
            world.drop()
