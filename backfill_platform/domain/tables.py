"""What a table is, for every engine: its layer, columns, key and the hour that owns a row.

The values here are derived from the pandera schemas of a pipeline (`pipelines/spec.py`); lake, warehouse and Spark derive
their own schemas from them, so that a column is declared once.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from backfill_platform.domain.hours import HOUR
from backfill_platform.errors import SpecError

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


class Layer(StrEnum):
    """Asset key prefix, lake namespace and ClickHouse database of a table.

    `quarantine` exists in the lake only: one table beside each table that rejects rows.
    """

    RAW = "raw"
    TRANSFORMED = "transformed"
    AGGREGATED = "aggregated"
    QUARANTINE = "quarantine"


class ColumnType(StrEnum):
    """The types that all engines share. Timestamps are UTC instants of microseconds; bytes are for the raw layer only."""

    BOOLEAN = "boolean"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT64 = "float64"
    STRING = "string"
    TIMESTAMP = "timestamp"
    BINARY = "binary"


class Partitioning(StrEnum):
    """How the ClickHouse table is partitioned. Days suit most tables; hours make whole-hour replacement cheap."""

    DAY = "day"
    HOUR = "hour"


@dataclass(frozen=True)
class Column:
    """One column. `description` is shown to people in Dagster and in ClickHouse comments."""

    name: str
    type: ColumnType
    nullable: bool = False
    description: str = ""


@dataclass(frozen=True)
class Table:
    """A table of a pipeline.

    `hour` names the column that holds the hour owning the row: the ingestion hour in `raw`, the owning hour elsewhere.
    `key` names the columns that identify a row within its hour; empty where an hour has one row. Rows of `raw` have no
    identity and are never published. `tenant` names the key column that says whose row it is, if rows are somebody's.
    Raises SpecError when names clash or the key cannot be one.
    """

    layer: Layer
    name: str
    columns: tuple[Column, ...]
    hour: str = "hour"
    key: tuple[str, ...] = ()
    partitioning: Partitioning = Partitioning.DAY
    tenant: str = ""

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        for name in (self.name, *names):
            if not _NAME.match(name):
                raise SpecError(f"{self}: '{name}' is no usable name; use lower case letters, digits and _")
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise SpecError(f"{self}: declared twice: {', '.join(duplicates)}")
        if "sign" in names:
            raise SpecError(f"{self}: 'sign' is the column ClickHouse collapses by; name yours otherwise")
        for name in (self.hour, *self.key):
            if name not in names:
                raise SpecError(f"{self}: '{name}' is used as a key but is not a column")
        for column in self.columns:
            if column.name in (self.hour, *self.key) and (column.nullable or column.type is ColumnType.FLOAT64):
                raise SpecError(f"{self}: key column '{column.name}' must be neither nullable nor a float")
        if self.layer is not Layer.RAW and (names := [one.name for one in self.columns if one.type is ColumnType.BINARY]):
            raise SpecError(f"{self}: {', '.join(names)} holds bytes, which only raw tables can; decode it to text")
        if self.tenant and self.tenant not in self.key:
            raise SpecError(
                f"{self}: the tenant column '{self.tenant}' must be part of the key, so that a row keeps its tenant"
            )
        if self.column(self.hour).type is not ColumnType.TIMESTAMP:
            raise SpecError(f"{self}: the hour column '{self.hour}' must be a timestamp")

    def __str__(self) -> str:
        return f"{self.layer}/{self.name}"

    @property
    def path(self) -> tuple[str, str]:
        """(layer, name): the asset key, the lake identifier and the ClickHouse database and table."""
        return (str(self.layer), self.name)

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def partition_hours(self, hours: Collection[datetime]) -> tuple[datetime, ...]:
        """The hours and all that share a partition of the ClickHouse table with them, in order."""
        if self.partitioning is Partitioning.HOUR:
            return tuple(sorted(hours))
        days = {hour.replace(hour=0) for hour in hours}
        return tuple(day + number * HOUR for day in sorted(days) for number in range(24))

    def column(self, name: str) -> Column:
        """The column of that name. Raises KeyError."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)
