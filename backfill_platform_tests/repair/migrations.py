"""A pipeline whose columns change, on a real lake and a real ClickHouse, with its rows kept in memory beside them."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark.sql.types as T
from pandera.pyspark import DataFrameModel, Field

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.lake_files import file_fingerprints
from backfill_platform.adapters.clickhouse.publishing.prepare import Status, prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.push import arrow_type
from backfill_platform.adapters.clickhouse.publishing.staging import Loading, Staging
from backfill_platform.adapters.clickhouse.schema import create_target
from backfill_platform.adapters.clickhouse.sql import names, target_name
from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.adapters.iceberg.lake import Lake, quarantine_of
from backfill_platform.domain.hours import HOUR
from backfill_platform.domain.request import RepairRequest
from backfill_platform.domain.tables import Layer, Table
from backfill_platform.domain.uris import local_uri
from backfill_platform.pipelines.spec import DerivedTable, Pipeline, RawTable
from backfill_platform.repair.job import RepairIdentity, RepairJob
from backfill_platform.repair.migrate import Migration, migrate, plan_migration

START = datetime(2026, 1, 1, tzinfo=UTC)
Row = dict[str, Any]

# What each type may be widened to, and a value that only fits the wider one is not needed: the readers are what is tested.
WIDER: dict[str, tuple[T.DataType, ...]] = {
    "number": (T.ShortType(), T.IntegerType(), T.LongType()),
    "measure": (T.FloatType(), T.DoubleType()),
    "amount": (T.DecimalType(5, 2), T.DecimalType(12, 2), T.DecimalType(30, 2)),
    "text": (T.StringType(),),
    "moment": (T.TimestampType(),),
}


@dataclass(frozen=True)
class Declared:
    """A column as it is declared by now: its family and how wide it is, and the names that it had."""

    family: str
    width: int = 0
    was: tuple[str, ...] = ()

    @property
    def type(self) -> T.DataType:
        return WIDER[self.family][self.width]

    def value(self, seed: int) -> Any:
        match self.family:
            case "number":
                return seed % 30_000
            case "measure":
                return seed / 8
            case "amount":
                return Decimal(seed % 900).scaleb(-2)
            case "text":
                return f"text {seed}"
        return START + timedelta(microseconds=seed)


def nothing(rows: Any) -> Any:
    return rows


class Events(DataFrameModel):
    ingestion_hour: T.TimestampType = Field()
    event_time: T.TimestampType = Field()


def pipeline_of(name: str, columns: dict[str, Declared], **more: Any) -> Pipeline:
    """A pipeline with one published table of these nullable columns, by hour and `who`."""
    fields: dict[str, Any] = {"hour": T.TimestampType, "who": T.LongType}
    body: dict[str, Any] = {"hour": Field(), "who": Field()}
    for column, declared in columns.items():
        fields[column] = declared.type
        body[column] = Field(nullable=True)
    schema = type("Made", (DataFrameModel,), {"__annotations__": fields, **body})
    was = {column: declared.was for column, declared in columns.items() if declared.was}
    derived = DerivedTable(
        Layer.TRANSFORMED, name, schema, reads=f"{name}_events", build=nothing, key=("who",), was=was, version="", **more
    )
    return Pipeline(
        name=name,
        description="a test",
        start=START,
        end=START + 24 * HOUR,
        source=HourlyFiles("file:///nowhere/%H.csv"),
        raw=RawTable(f"{name}_events", Events, nothing),
        derived=(derived,),
    )


@dataclass
class Stage:
    """One pipeline with its lake and target; the rows that it should hold, by hour, under the names of now."""

    lake: Lake
    warehouse: Warehouse
    folder: Path
    name: str = field(default_factory=lambda: f"m{uuid.uuid4().hex[:8]}")
    columns: dict[str, Declared] = field(default_factory=dict)
    rows: dict[datetime, list[Row]] = field(default_factory=dict)
    count: int = 0

    @property
    def pipeline(self) -> Pipeline:
        return pipeline_of(self.name, self.columns)

    @property
    def table(self) -> Table:
        return self.pipeline.derived[0].table

    def create(self) -> None:
        for table in self.pipeline.tables:
            self.lake.ensure(table)
            self.lake.ensure(quarantine_of(table))
        create_target(self.warehouse, self.table)

    def job(self) -> RepairJob:
        self.count += 1
        return RepairJob(self.pipeline, RepairRequest(), RepairIdentity(f"r{self.count}", "0"), lambda: START + 24 * HOUR)

    def plan(self, *drops: str) -> Migration:
        return plan_migration(self.pipeline, self.lake, self.warehouse, START + 24 * HOUR, drops)

    def migrate(self, *drops: str, on_step: Callable[[str], None] = lambda step: None) -> Migration:
        return migrate(self.job(), self.lake, self.warehouse, drops, on_step)

    def build(self, hour: datetime, seed: int) -> str:
        """An hour as the ordinary run builds and publishes it by now; the name of the repair."""
        self.rows[hour] = [
            {"hour": hour, "who": who, **{name: one.value(seed + who) for name, one in self.columns.items()}}
            for who in range(3)
        ]
        self.rows[hour][0].update(dict.fromkeys(self.columns))  # NULL in all of them
        schema = pa.schema([(column.name, arrow_type(column.type)) for column in self.table.columns])
        self.count += 1
        path = self.folder / f"{self.name}_{self.count}.parquet"
        pq.write_table(pa.Table.from_pylist(self.rows[hour], schema), path, compression="zstd")
        self.lake.stage(self.table, "setup", [hour], {hour: [local_uri(path)]})
        self.lake.promote(self.table, "setup", [hour])
        with Staging(self.warehouse, self.table, f"r{self.count}", [hour], lease_seconds=5) as staging:
            staging.load_files(self.uris(hour), {hour: 3})
            (result,) = publish(prepare(staging, [hour]))
            assert result.status in (Status.PUBLISHED, Status.UNCHANGED), result.reason
        return f"r{self.count}"

    def uris(self, *hours: datetime) -> list[str]:
        return [file.uri for file in self.lake.files(self.table, hours)]

    def change(self, old: str, new: str, declared: Declared | None) -> None:
        """Change a column, and what the rows should hold of it."""
        columns = {**self.columns}
        if old:
            columns.pop(old)
        if declared is not None:
            columns[new] = declared
        self.columns = columns
        for rows in self.rows.values():
            for row in rows:
                value = row.pop(old, None)
                if new:
                    row[new] = value

    def assert_holds(self) -> None:
        """Iceberg's reader, ClickHouse's, ours, and the target say the same, and what they should."""
        table, hours = self.table, sorted(self.rows)
        expected = sorted(_plain(table, row) for rows in self.rows.values() for row in rows)
        read = self.lake.read(table, table.column_names, "who >= 0").to_pylist()
        assert sorted(_plain(table, row) for row in read) == expected
        for name in self.columns:
            empty = sum(row[name] is None for rows in self.rows.values() for row in rows)
            assert self.lake.read(table, ["who"], f"{name} is null").num_rows == empty
        sql = f"SELECT {names(table.column_names)} FROM {target_name(table)} FINAL"
        stored = [dict(zip(table.column_names, row, strict=True)) for row in self.warehouse.rows(sql, doing="looking")]
        assert sorted(_plain(table, row) for row in stored) == expected
        net = fingerprints.net(self.warehouse, table, hours)
        for loading in Loading:
            assert file_fingerprints(self.warehouse, table, hours, self.uris(*hours), loading) == net


def _plain(table: Table, row: Row) -> str:
    values = (row[name] for name in sorted(table.column_names))
    return str([value.timestamp() if isinstance(value, datetime) else value for value in values])
