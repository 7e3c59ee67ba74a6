"""Iceberg tables and SQL queries as sources: the rows of each hour once, deletes respected, changes found."""

import pickle
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet
import pyspark.sql.types as T
import pytest
from pandera.pyspark import DataFrameModel, Field
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.iceberg import source_rows
from backfill_platform.adapters.iceberg.lake import quarantine_of
from backfill_platform.adapters.iceberg.source_rows import TableReading
from backfill_platform.adapters.iceberg.source_table import IcebergTable
from backfill_platform.adapters.records.taking import taken_from
from backfill_platform.adapters.sql import query_rows
from backfill_platform.adapters.sql.query import SqlQuery
from backfill_platform.detection.survey import survey
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import Landing
from backfill_platform.domain.uris import local_uri
from backfill_platform.errors import PreconditionError, SettingsError, SpecError
from backfill_platform.pipelines.spec import DeclaredSource, Pipeline, RawTable
from backfill_platform.repair.outcomes import HourOutcome
from backfill_platform.repair.wiring import Services
from backfill_platform_tests.adapters.elsewhere import rows_elsewhere
from backfill_platform_tests.fixtures_pipeline import open_lake
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T0 = datetime(2026, 1, 1, tzinfo=UTC)
HOURS = HourRange(T0, T0 + 3 * HOUR)


class Orders(DataFrameModel):
    """An order of a shop."""

    ingestion_hour: T.TimestampType = Field()
    placed_at: T.TimestampType = Field()
    customer: T.StringType = Field()
    cents: T.LongType = Field(ge=0)


def order(number: int) -> dict[str, Any]:
    """Every fifth order has a customer who is unknown, and every seventh a price below zero."""
    placed = T0 + timedelta(minutes=number)
    customer = None if number % 5 == 0 else f"Zoë {number}"
    return {"placed_at": placed, "customer": customer, "cents": -1 if number % 7 == 0 else number}


ORDERS = [order(number) for number in range(240)]  # of four hours
Rows = Counter[tuple[Any, ...]]


def expected(orders: list[dict[str, Any]]) -> tuple[Rows, Rows]:
    """The rows of the hours that land, and the rejects with their reason."""
    rows: Rows = Counter()
    rejects: Rows = Counter()
    for one in orders:
        hour = one["placed_at"].replace(minute=0, second=0, microsecond=0)
        reasons = ["customer: missing"] * (one["customer"] is None) + ["cents: greater_than_or_equal_to(0)"] * (
            one["cents"] < 0
        )
        if hour in HOURS and reasons:
            rejects[hour, "; ".join(reasons)] += 1
        elif hour in HOURS:
            rows[hour, one["placed_at"], one["customer"], one["cents"]] += 1
    return rows, rejects


class Shop:
    """A world whose source is reached by the connection `shop`."""

    def __init__(
        self, folder: Path, spark: "SparkSession", warehouse: Warehouse, properties: dict[str, str], source: DeclaredSource
    ) -> None:
        raw = RawTable("orders", Orders, event_time="placed_at")
        pipeline = Pipeline("shop", "Orders.", HOURS.start, HOURS.end, source, raw, derived=())
        self.properties = properties
        self.world = _Connected(folder, spark, warehouse, pipeline, open_lake(folder))
        self.world.connections = {"shop": properties}

    def land(self, hours: HourRange = HOURS) -> dict[datetime, HourOutcome]:
        path = self.world.pipeline.raw.table.path
        return self.world.run([path], hours)[path]

    def landed(self) -> tuple[Rows, Rows]:
        raw = self.world.pipeline.raw.table
        read = self.world.lake.read
        names = ("ingestion_hour", "placed_at", "customer", "cents")
        rows = Counter(tuple(row[name] for name in names) for row in read(raw, names, "cents >= 0").to_pylist())
        rejects = read(quarantine_of(raw), (quarantine_of(raw).hour, "reason"), "reason != ''").to_pylist()
        return rows, Counter((row[quarantine_of(raw).hour], row["reason"]) for row in rejects)

    def changed(self) -> list[datetime]:
        """The hours whose source has changed since they landed."""
        world = self.world
        found = survey(world.pipeline, HOURS, world.lake, world.warehouse, connect=world.connections.__getitem__)
        return [gap.hour for gap in found.gaps]


class _Connected(World):
    connections: dict[str, dict[str, str]]

    @property
    def services(self) -> Services:
        return replace(super().services, connect=self.connections.__getitem__)


@pytest.fixture
def warehouse(warehouse_url: str) -> Iterator[Warehouse]:
    with closing(Warehouse(warehouse_url)) as opened:
        yield opened


def schema_of(zoned: bool) -> pa.Schema:
    kind = pa.timestamp("us", "UTC") if zoned else pa.timestamp("us")
    return pa.schema([("placed_at", kind), ("customer", pa.string()), ("cents", pa.int64()), ("note", pa.string())])


def table_of(orders: list[dict[str, Any]], zoned: bool = True) -> pa.Table:
    rows = [one if zoned else {**one, "placed_at": one["placed_at"].replace(tzinfo=None)} for one in orders]
    return pa.Table.from_pylist(rows, schema_of(zoned))


def catalog_of(folder: Path) -> tuple[SqlCatalog, dict[str, str]]:
    (folder / "other").mkdir()
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/other/catalog.db", "warehouse": local_uri(folder / "other")}
    catalog = SqlCatalog("shop", **properties)
    catalog.create_namespace("sales")
    return catalog, properties


@pytest.mark.whole
@pytest.mark.parametrize("zoned", [True, False], ids=["with a zone", "without a zone"])
@pytest.mark.parametrize("files", ["by hour", "across hours"])
def test_rows_of_an_iceberg_table_land_in_the_hour_of_their_time(
    spark: "SparkSession", warehouse: Warehouse, tmp_path: Path, zoned: bool, files: str
) -> None:
    catalog, properties = catalog_of(tmp_path)
    table = catalog.create_table("sales.orders", schema_of(zoned))
    if files == "by hour":
        for hour in range(4):
            table.append(table_of(ORDERS[60 * hour : 60 * hour + 60], zoned))
    else:
        for part in range(3):
            table.append(table_of(ORDERS[part::3], zoned))
    shop = Shop(tmp_path, spark, warehouse, properties, IcebergTable("shop", "sales.orders", "placed_at"))
    outcomes = shop.land()
    assert {hour: outcome.error for hour, outcome in outcomes.items()} == dict.fromkeys(HOURS, "")
    assert shop.landed() == expected(ORDERS)
    assert shop.changed() == []
    table.append(table_of([order(66)], zoned))
    table.append(table_of([order(500)], zoned))
    assert shop.changed() == [T0 + HOUR]
    shop.land(HourRange(T0 + HOUR, T0 + 2 * HOUR))
    assert shop.landed() == expected([*ORDERS, order(66)])
    assert shop.changed() == []
    table.delete("cents > 66 and cents < 120")  # also rewrites the files that it finds
    assert T0 + HOUR in shop.changed()
    deleted = [one for one in [*ORDERS, order(66)] if not 66 < one["cents"] < 120]
    outcomes = shop.land()
    assert "keeping its rows" in outcomes[T0 + HOUR].error
    assert shop.landed() == expected([*ORDERS, order(66)]), "rows that were deleted in the source are not lost without asking"
    path = shop.world.pipeline.raw.table.path
    shop.world.run([path], HOURS, landing=Landing.REPLACE)
    assert shop.landed() == expected(deleted)


def test_a_filter_hours_without_rows_and_hours_to_come(spark: "SparkSession", warehouse: Warehouse, tmp_path: Path) -> None:
    catalog, properties = catalog_of(tmp_path)
    table = catalog.create_table("sales.orders", schema_of(True))
    table.append(table_of([one for one in ORDERS if not T0 + HOUR <= one["placed_at"] < T0 + 2 * HOUR]))
    table.append(table_of([{"placed_at": None, "customer": "timeless", "cents": 1}]))
    declared = IcebergTable("shop", "sales.orders", "placed_at", where="cents >= 0 and customer is not null")
    shop = Shop(tmp_path, spark, warehouse, properties, declared)
    outcomes = shop.land()
    assert [hour for hour, outcome in outcomes.items() if outcome.error] == [T0 + HOUR]
    assert "sales.orders has no rows of 2026-01-01T01; may_be_empty=True" in outcomes[T0 + HOUR].error
    rows, _ = expected(ORDERS)
    assert shop.landed() == (Counter({row: n for row, n in rows.items() if row[0] != T0 + HOUR}), Counter())
    empty = replace(shop.world.pipeline, source=replace(declared, may_be_empty=True))
    path = empty.raw.table.path
    outcomes = shop.world.run([path], HOURS, pipeline=empty)[path]
    assert {outcome.error for outcome in outcomes.values()} == {""}
    early = declared.open(lambda name: properties, lambda: T0 + HOUR)
    absent = early.inspect([T0, T0 + HOUR], {}).absent
    assert absent == {T0 + HOUR: "the hour is not over: it is 2026-01-01T01:00 UTC"}


def deletes(table: Table, content: DataFileContent, path: Path) -> None:
    """Add a file of deletes to a table, as other engines do; pyiceberg writes none."""
    entry = DataFile.from_args(
        content=content,
        file_path=local_uri(path),
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=1,
        file_size_in_bytes=path.stat().st_size,
        spec_id=0,
    )
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(entry)


def test_deletes_of_other_engines_are_respected_or_told(spark: "SparkSession", warehouse: Warehouse, tmp_path: Path) -> None:
    catalog, properties = catalog_of(tmp_path)
    table = catalog.create_table("sales.orders", schema_of(True), properties={"format-version": "2"})
    table.append(table_of(ORDERS))
    declared = IcebergTable("shop", "sales.orders", "placed_at")
    shop = Shop(tmp_path, spark, warehouse, properties, declared)
    before = declared.open(lambda name: properties, lambda: HOURS.end).versions([T0])
    (data,) = (task.file.file_path for task in table.scan().plan_files())
    gone = tmp_path / "other" / "gone.parquet"
    pyarrow.parquet.write_table(pa.table({"file_path": [data, data], "pos": pa.array([1, 61], pa.int64())}), gone)
    deletes(table, DataFileContent.POSITION_DELETES, gone)
    assert {outcome.error for outcome in shop.land().values()} == {""}
    assert shop.landed() == expected([one for number, one in enumerate(ORDERS) if number not in (1, 61)])
    assert declared.open(lambda name: properties, lambda: HOURS.end).versions([T0]) != before
    deletes(table, DataFileContent.EQUALITY_DELETES, gone)
    with pytest.raises(PreconditionError, match=r"sales.orders cannot be read: .*equality deletes"):
        shop.land()


def test_what_is_wrong_with_a_table_is_one_sentence(tmp_path: Path) -> None:
    catalog, properties = catalog_of(tmp_path)
    catalog.create_table("sales.orders", schema_of(True))

    def inspect(declared: IcebergTable, given: dict[str, str] = properties, taken: str = "cents") -> None:
        declared.open(lambda name: given, lambda: HOURS.end).inspect([T0], {taken: "bigint"})

    with pytest.raises(PreconditionError, match=r"the Iceberg table sales.lost of shop cannot be opened: .*lost"):
        inspect(IcebergTable("shop", "sales.lost", "placed_at"))
    with pytest.raises(SpecError, match="has no column 'price'; it has placed_at, customer, cents, note"):
        inspect(IcebergTable("shop", "sales.orders", "placed_at"), taken="price")
    with pytest.raises(SpecError, match=r"the column 'cents' of the Iceberg table sales.orders is a long, not a timestamp"):
        inspect(IcebergTable("shop", "sales.orders", "cents"))
    secret = {"type": "sql", "uri": "postgresql+nothing://me:hush@nowhere/db", "warehouse": "file:///x"}
    with pytest.raises(PreconditionError, match="cannot be opened") as told:
        inspect(IcebergTable("shop", "sales.orders", "placed_at"), secret)
    assert "hush" not in str(told.value)


QUERY = "SELECT placed_at, customer, cents, id FROM orders WHERE placed_at >= :start AND placed_at < :end"
VERSION = "SELECT count(*), max(cents) FROM orders WHERE placed_at >= :start AND placed_at < :end"


def database_of(folder: Path, orders: list[dict[str, Any]]) -> str:
    path = folder / "shop.db"
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, placed_at TEXT, customer TEXT, cents)")
        rows = [(f"{one['placed_at']:%Y-%m-%d %H:%M:%S.%f}", one["customer"], one["cents"]) for one in orders]
        database.executemany("INSERT INTO orders (placed_at, customer, cents) VALUES (?, ?, ?)", rows)
        database.commit()
    return f"sqlite:///{path}"


def test_rows_of_a_query_land_in_their_hour(spark: "SparkSession", warehouse: Warehouse, tmp_path: Path) -> None:
    url = database_of(tmp_path, ORDERS)
    declared = SqlQuery("shop", QUERY + ";", version=VERSION, zoned=False)
    shop = Shop(tmp_path, spark, warehouse, {"url": url}, declared)
    assert {outcome.error for outcome in shop.land().values()} == {""}
    assert shop.landed() == expected(ORDERS)
    assert shop.changed() == []
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        database.execute("INSERT INTO orders (placed_at, customer, cents) VALUES ('2026-01-01 01:06:00.000000', 'Zoë 66', 66)")
        database.execute("INSERT INTO orders (placed_at, customer, cents) VALUES ('2026-01-01 01:06:00.000000', 'Zoë', 'much')")
        database.commit()
    assert shop.changed() == [T0 + HOUR]
    shop.land()
    rows, rejects = expected([*ORDERS, order(66)])
    assert shop.landed() == (rows, rejects + Counter({(T0 + HOUR, "cents: does not fit bigint"): 1}))


def test_a_parser_gets_the_columns_of_a_query_as_text(spark: "SparkSession", tmp_path: Path) -> None:
    source = SqlQuery("shop", QUERY, zoned=False).open(lambda name: {"url": database_of(tmp_path, ORDERS)}, lambda: HOURS.end)
    rows = source.lines(spark, [T0])
    assert dict(rows.dtypes)["id"] == "string"
    assert rows.agg(F.sum("id")).first()[0] == sum(range(1, 61))  # type: ignore[index]


def test_what_is_wrong_with_a_query_is_one_sentence(spark: "SparkSession", tmp_path: Path) -> None:
    def inspect(query: str, given: dict[str, str] | None = None) -> Any:
        declared, url = SqlQuery("shop", query, zoned=False), database_of(tmp_path, ORDERS[:1])
        return declared.open(lambda name: given if given is not None else {"url": url}, lambda: HOURS.end).inspect(
            [T0 + HOUR], {"cents": "bigint"}
        )

    with pytest.raises(SpecError, match="must limit its rows by :start and :end; it lacks :end and :start"):
        SqlQuery("shop", "SELECT 1 WHERE x::start > :started")
    with pytest.raises(SpecError, match="gives no column 'cents'; it gives id"):
        inspect("SELECT id FROM orders WHERE placed_at >= :start AND placed_at < :end")
    with pytest.raises(SpecError, match="gives several columns 'cents'"):
        inspect("SELECT cents, cents FROM orders WHERE placed_at >= :start AND placed_at < :end")
    with pytest.raises(PreconditionError, match=r"the query of shop failed: no such table: lost\Z"):
        inspect("SELECT cents FROM lost WHERE placed_at >= :start AND placed_at < :end")
    with pytest.raises(SettingsError, match="the connection shop of BACKFILL_CONNECTIONS has no url"):
        inspect(QUERY, {})
    with pytest.raises(PreconditionError, match="the query of shop failed") as told:
        inspect(QUERY, {"url": "nothing://me:hush@nowhere/db"})
    assert "hush" not in str(told.value)
    assert "the query gives no rows of 2026-01-01T01; may_be_empty=True" in inspect(QUERY).absent[T0 + HOUR]


def test_what_a_database_says_while_it_is_read_is_told(spark: "SparkSession", warehouse: Warehouse, tmp_path: Path) -> None:
    # SQLite finds the overflow when it comes to the row.
    cents = "abs(CASE WHEN id = 30 THEN -9223372036854775808 ELSE cents END) AS cents"
    declared = SqlQuery("shop", QUERY.replace("cents", cents, 1), zoned=False)
    shop = Shop(tmp_path, spark, warehouse, {"url": database_of(tmp_path, ORDERS)}, declared)
    with pytest.raises(PreconditionError, match="the query of the source failed: integer overflow"):
        shop.land(HourRange(T0, T0 + HOUR))


def test_workers_need_not_have_this_package(spark: "SparkSession", tmp_path: Path) -> None:
    catalog, properties = catalog_of(tmp_path)
    catalog.create_table("sales.orders", schema_of(True)).append(table_of(ORDERS))
    url, taken = database_of(tmp_path, ORDERS), {"cents": "bigint"}
    declared = IcebergTable("shop", "sales.orders", "placed_at").open(lambda name: properties, lambda: HOURS.end)
    query = SqlQuery("shop", QUERY, zoned=False).open(lambda name: {"url": url}, lambda: HOURS.end)
    # Reading them here once lets the modules travel.
    assert declared.lines(spark, [T0], taken).count() == query.lines(spark, [T0], taken).count() == 60
    table = catalog.load_table("sales.orders")
    (task,) = table.scan().plan_files()
    of_table = TableReading(
        table.metadata, table.metadata_location, dict(table.io.properties), ("cents",), "placed_at", zoned=True, where=""
    )
    epoch = pa.array([int(T0.timestamp())], pa.int64())
    read = taken_from(source_rows.task_reader(of_table), taken)
    assert rows_elsewhere(tmp_path, read, pa.table({"_task": [pickle.dumps(task)], "_epoch": epoch})) == 60
    of_query = query_rows.QueryReading(url, QUERY, zoned=False, columns=("cents",))
    read = taken_from(query_rows.hour_reader(of_query), taken)
    assert rows_elsewhere(tmp_path, read, pa.table({"_epoch": epoch})) == 60
