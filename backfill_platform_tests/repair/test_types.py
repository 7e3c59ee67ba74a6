"""A pipeline with types of every kind, through all steps: what does not fit is in quarantine, the rest is published."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyspark.sql.types as T
import pytest
from pandera.pyspark import DataFrameModel, Field
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.adapters.files.hourly import ArchiveFile
from backfill_platform.adapters.iceberg.lake import quarantine_of
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import WAREHOUSE
from backfill_platform.domain.tables import Layer, TargetTable
from backfill_platform.domain.uris import local_uri
from backfill_platform.pipelines.spec import DerivedTable, Pipeline, RawTable
from backfill_platform.repair.undo import UndoScope
from backfill_platform_tests.events import T0
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ITEM = T.StructType([T.StructField("sku", T.StringType(), False), T.StructField("count", T.ShortType(), False)])
_LINE = (
    "at timestamp, id string, status string, amount decimal(18,4), day date, tags array<string>, "
    "items array<struct<sku: string, count: smallint>>, hints map<string, double>"
)


class Lines(DataFrameModel):
    ingestion_hour: T.TimestampType = Field()
    event_time: T.TimestampType = Field()
    id: T.StringType = Field()
    status: T.StringType = Field()
    amount: T.DecimalType(18, 4) = Field()  # type: ignore[valid-type]
    day: T.DateType = Field()
    tags: T.ArrayType(T.StringType()) = Field()  # type: ignore[valid-type]
    items: T.ArrayType(ITEM) = Field()  # type: ignore[valid-type]
    hints: T.MapType(T.StringType(), T.DoubleType()) = Field()  # type: ignore[valid-type]


class Orders(DataFrameModel):
    hour: T.TimestampType = Field()
    id: T.StringType = Field()
    at: T.TimestampType = Field()
    status: T.StringType = Field()
    amount: T.DecimalType(18, 4) = Field(ge=0)  # type: ignore[valid-type]
    share: T.FloatType = Field()
    level: T.ByteType = Field()
    day: T.DateType = Field()
    tags: T.ArrayType(T.StringType(), False) = Field()  # type: ignore[valid-type]
    first: ITEM = Field()  # type: ignore[valid-type]
    items: T.ArrayType(ITEM, False) = Field()  # type: ignore[valid-type]
    hints: T.MapType(T.StringType(), T.DoubleType()) = Field()  # type: ignore[valid-type]


STORED = {
    "id": "UUID",
    "at": "DateTime('Europe/Berlin')",
    "status": "LowCardinality(String)",
    "amount": "Decimal(9, 2)",
    "day": "Date",
    "tags": "Array(LowCardinality(String))",
    "items": "Array(Tuple(sku FixedString(2), count UInt8))",
}


def parse(lines: "DataFrame") -> "DataFrame":
    return (
        lines.withColumn("o", F.from_json("line", _LINE)).select("*", F.col("o.at").alias("event_time"), "o.*").drop("o", "at")
    )


def build(orders: "DataFrame") -> "DataFrame":
    return orders.select(
        F.date_trunc("hour", "event_time").alias("hour"),
        "id",
        F.col("event_time").alias("at"),
        "status",
        "amount",
        F.lit(0.25).cast("float").alias("share"),
        F.size("items").cast("tinyint").alias("level"),
        "day",
        "tags",
        F.get("items", 0).alias("first"),
        "items",
        "hints",
    )


def order(number: int, **other: Any) -> dict[str, Any]:
    usual = {
        "at": f"{T0 + timedelta(minutes=number):%Y-%m-%dT%H:%M:%SZ}",
        "id": str(UUID(int=number)),
        "status": "new",
        "amount": "12.5000",
        "day": "2024-02-29",
        "tags": ["a", ""],
        "items": [{"sku": "xy", "count": number}],
        "hints": {"b": 1.5, "a": None},
    }
    return {**usual, **other}


BAD: dict[int, dict[str, Any]] = {
    1: {"id": "no uuid"},
    2: {"amount": "1.2345"},
    3: {"day": "2150-01-01"},
    4: {"tags": ["a", None]},
    5: {"items": [{"sku": "xyz", "count": 1}]},
    6: {"items": [{"sku": "xy", "count": 256}]},
    7: {"at": f"{T0 + timedelta(minutes=7):%Y-%m-%dT%H:%M:%S}.5Z"},
}


EXISTING = """
CREATE TABLE shop_orders.`Orders v2` (id UUID, at DateTime('Europe/Berlin'), status String, amount Decimal(9, 2), share Float32,
    level Int8, day Date, tags Array(LowCardinality(String)), first Tuple(sku String, count Int16),
    items Array(Tuple(sku FixedString(2), count UInt8)), hints Map(String, Nullable(Float64)), came DateTime DEFAULT now(),
    month String MATERIALIZED toString(toYYYYMM(at)), Sign Int8)
ENGINE = CollapsingMergeTree(Sign) PARTITION BY toYYYYMM(at) ORDER BY (at, id)
"""


@pytest.fixture(params=["created", "existing"])
def world(request: pytest.FixtureRequest, tmp_path: Path, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    """Orders in a table that the platform creates, and in one that is there and has no hour."""
    lines = [json.dumps(order(number, **BAD.get(number, {}))) for number in range(60)]
    (tmp_path / "orders.jsonl").write_text("\n".join(lines))
    orders = DerivedTable(Layer.TRANSFORMED, "typed_orders", Orders, "orders", build, key=("id",), stored_as=STORED)
    if request.param == "existing":
        warehouse.command("CREATE DATABASE shop_orders", doing="preparing")
        warehouse.command(EXISTING, doing="preparing")
        target = TargetTable("shop_orders", "Orders v2", "Sign", hour="at")
        orders = replace(orders, key=("id", "at"), target=target)
    pipeline = Pipeline(
        "orders", "Orders.", T0, T0 + HOUR, ArchiveFile(local_uri(tmp_path / "orders.jsonl"), HourRange(T0, T0 + HOUR)),
        RawTable("orders", Lines, parse), (orders,),
    )  # fmt: skip
    made = World(tmp_path, spark, warehouse, pipeline, open_lake(tmp_path))
    yield made
    made.drop()
    warehouse.command("DROP DATABASE IF EXISTS shop_orders SYNC", doing="cleaning up")


def test_every_type_goes_through_all_steps(world: World) -> None:
    outcomes = world.run(world.everything)
    assert {outcome.error for by_hour in outcomes.values() for outcome in by_hour.values()} == {""}
    table = world.pipeline.published[0]
    reasons = world.lake.read(quarantine_of(table), ("reason",), "reason != ''").to_pylist()
    assert sorted(row["reason"] for row in reasons) == sorted(
        ["id: fits UUID", "amount: fits Decimal(9, 2)", "day: fits Date", "tags: fits Array(LowCardinality(String))"]
        + ["items: fits Array(Tuple(sku FixedString(2), count UInt8))"] * 2
        + ["at: fits DateTime('Europe/Berlin')"]
    )
    assert stored(world, 8) == (Decimal("12.50"), 0.25, 1, date(2024, 2, 29), ["a", ""], [("xy", 8)], {"b": 1.5, "a": None})
    before = world.net()
    assert before[table.name][T0].rows == 60 - len(BAD)
    world.warehouse.command(
        f"ALTER TABLE {target_name(table)} UPDATE tags = ['x'], hints = map('a', 2.0), amount = 1 WHERE level = 1 "
        "SETTINGS mutations_sync = 2",
        doing="damaging",
    )
    assert world.net() != before
    world.run([(WAREHOUSE, table.name)])
    assert world.net() == before
    repaired = f"r{world.repairs}"
    (undone,) = world.undo(UndoScope(repaired))
    assert not undone.undoable.conflicts
    assert world.net() != before
    assert stored(world, 8)[4] == ["x"]


def stored(world: World, number: int) -> tuple[Any, ...]:
    (row,) = world.warehouse.rows(
        "SELECT amount, share, level, day, tags, arrayMap(i -> (toString(i.sku), i.count), items), hints "
        f"FROM {target_name(world.pipeline.published[0])} FINAL WHERE id = '{UUID(int=number)}'",
        doing="reading an order",
    )
    return row
