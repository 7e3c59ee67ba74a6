"""What a table is, for every engine: its layer, columns, key and the hour that owns a row.

The values here are derived from the pandera schemas of a pipeline (`pipelines/spec.py`); lake, warehouse and Spark derive
their own schemas from them, so that a column is declared once.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property

from backfill_platform.domain.column_types import FLOATS, ColumnType, DataType, holds_bytes, is_nested
from backfill_platform.domain.hours import HOUR
from backfill_platform.domain.stored_types import StoredType, natural, parse
from backfill_platform.domain.value_limits import Limit, fit
from backfill_platform.errors import SpecError

_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")


class Layer(StrEnum):
    """Asset key prefix, lake namespace and ClickHouse database of a table.

    `quarantine` exists in the lake only: one table beside each table that rejects rows.
    """

    RAW = "raw"
    TRANSFORMED = "transformed"
    AGGREGATED = "aggregated"
    QUARANTINE = "quarantine"


class Partitioning(StrEnum):
    """How the ClickHouse table is partitioned. Days suit most tables; hours make whole-hour replacement cheap.

    A table that exists may have any partitions; what is declared here then says which hours share one, if one is rewritten.
    """

    DAY = "day"
    HOUR = "hour"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True)
class Column:
    """One column. `description` is shown in Dagster and is the comment of the column in ClickHouse.

    `stored_as` is its type in ClickHouse, where that is not the one that its `type` has by itself. `was` are names that it had
    earlier: files of the lake are never rewritten, and older ones have its values under these.
    """

    name: str
    type: DataType
    nullable: bool = False
    description: str = ""
    stored_as: str = ""
    was: tuple[str, ...] = ()

    @cached_property
    def stored(self) -> StoredType:
        """What ClickHouse stores it as. Raises SpecError for a text that is no type."""
        return parse(self.stored_as) if self.stored_as else natural(self.type, self.nullable)

    @cached_property
    def limit(self) -> Limit:
        """The values that ClickHouse can store as they are. Raises SpecError where none can be."""
        limit = fit(self.type, self.stored)
        if self.nullable and not self.stored.nullable:
            hint = "it has no NULL for these" if is_nested(self.type) else f"declare it as Nullable({self.stored})"
            raise SpecError(f"it is nullable, and {self.stored} is not; {hint}, or make the column not nullable")
        return limit


class TargetEngine(StrEnum):
    """The engines of ClickHouse that a repair can be published to; how, and what is guaranteed, differs."""

    COLLAPSING = "CollapsingMergeTree"  # or a versioned one: a cancel and a state for each row that changes
    REPLACING = "ReplacingMergeTree"  # newer rows, and deleted ones where it has a column that marks them; else partitions
    PLAIN = "MergeTree"  # whole partitions


@dataclass(frozen=True)
class TargetTable:
    """The table of ClickHouse that a table is published to, where it is not the one that the platform would create.

    `database` and `name` are the layer and the name of the table unless they are given. `sign` is the column that it collapses
    by. `hour` is an expression of ClickHouse for the hour that owns a row, such as `toStartOfHour(started_at)`, for a table
    without the hour column; what it is computed from must be in the key. `engine` may also be its text. `deleted` is the
    column by which a ReplacingMergeTree marks rows as deleted, such as `is_deleted`; without it, partitions are replaced.
    """

    database: str = ""
    name: str = ""
    sign: str = "sign"
    hour: str = ""
    engine: TargetEngine | str = TargetEngine.COLLAPSING
    deleted: str = ""

    @property
    def replaces_partitions(self) -> bool:
        """Whether a repair replaces whole partitions, because the engine has no row that takes another one back."""
        return self.engine == TargetEngine.PLAIN or (self.engine == TargetEngine.REPLACING and not self.deleted)


@dataclass(frozen=True)
class Table:
    """A table of a pipeline.

    `hour` names the column that holds the hour owning the row: the ingestion hour in `raw`, the owning hour elsewhere.
    `key` names the columns that identify a row within its hour; empty where an hour has one row. Rows of `raw` have no key
    and are never published. `tenant` names the key column with the owner of the row, if rows have owners.
    Raises SpecError when names clash, or the columns cannot be used as declared.
    """

    layer: Layer
    name: str
    columns: tuple[Column, ...]
    hour: str = "hour"
    key: tuple[str, ...] = ()
    partitioning: Partitioning = Partitioning.DAY
    tenant: str = ""
    target: TargetTable = TargetTable()

    def __post_init__(self) -> None:
        self._check_names()
        self._check_types()
        self._check_earlier_names()
        self._check_target()
        if self.tenant and self.tenant not in self.key:
            raise SpecError(
                f"{self}: the tenant column '{self.tenant}' must be part of the key, so that a row keeps its tenant"
            )

    def _check_names(self) -> None:
        names = [column.name for column in self.columns]
        if not _NAME.match(self.name):
            raise SpecError(f"{self}: '{self.name}' cannot be used as a name; use lower case letters, digits and _")
        for name in names:
            if not _COLUMN.match(name):
                raise SpecError(f"{self}: '{name}' cannot be used as a name; use letters, digits and _, a letter first")
        # Spark takes names that differ only in capitals for one.
        small = [name.lower() for name in names]
        if duplicates := sorted({name for name in names if small.count(name.lower()) > 1}):
            raise SpecError(f"{self}: declared twice: {', '.join(duplicates)}")
        if self.sign in names:
            raise SpecError(f"{self}: '{self.sign}' is the column that ClickHouse collapses by; choose another name")
        if self.target.deleted in names:
            raise SpecError(f"{self}: '{self.target.deleted}' marks deleted rows in ClickHouse; leave it out of the schema")
        for name in (self.hour, *self.key):
            if name not in names:
                raise SpecError(f"{self}: '{name}' is used as a key but is not a column")

    def _check_types(self) -> None:
        for column in self.columns:
            if column.name in (self.hour, *self.key) and (column.nullable or column.type in FLOATS or is_nested(column.type)):
                raise SpecError(
                    f"{self}: key column '{column.name}' must be neither nullable nor a float nor an array, map or struct"
                )
            if column.stored_as:
                self._check_stored(column)
        binary = [column.name for column in self.columns if holds_bytes(column.type)]
        if self.layer is not Layer.RAW and binary:
            raise SpecError(f"{self}: {', '.join(binary)} holds bytes, which only raw tables may; decode it to text")
        if self.column(self.hour).type is not ColumnType.TIMESTAMP:
            raise SpecError(f"{self}: the hour column '{self.hour}' must be a timestamp")

    def _check_stored(self, column: Column) -> None:
        try:
            nullable_key = column.stored.nullable and column.name in (self.hour, *self.key)
            _ = column.limit
        except SpecError as error:
            raise SpecError(f"{self}: column '{column.name}': {error}") from None
        if nullable_key:
            raise SpecError(f"{self}: key column '{column.name}' cannot be stored as {column.stored}: NULL sorts nowhere")

    def _check_earlier_names(self) -> None:
        earlier = [name for column in self.columns for name in column.was]
        taken = [name.lower() for name in (*self.column_names, self.sign, *earlier)]
        for column in self.columns:
            for name in column.was:
                if not _COLUMN.match(name) or taken.count(name.lower()) > 1:
                    raise SpecError(
                        f"{self}: '{column.name}' cannot have been '{name}': that is no name, or that of another column"
                    )
            if column.was and (column.name in (self.hour, *self.key) or is_nested(column.type)):
                raise SpecError(
                    f"{self}: '{column.name}' cannot be renamed, because it is part of the key, or an array, map or struct; "
                    "declare a table of another name, or a new column"
                )

    def _check_target(self) -> None:
        if self.target.engine not in list(TargetEngine):
            known = ", ".join(TargetEngine)
            raise SpecError(f"{self}: the target's engine '{self.target.engine}' cannot be repaired; use one of {known}")
        if self.target.deleted and self.target.engine != TargetEngine.REPLACING:
            raise SpecError(f"{self}: only a ReplacingMergeTree has a column that marks deleted rows; leave out 'deleted'")
        if not self.target.hour:
            return
        words = set(re.findall(r"\w+", self.target.hour))
        used = [column.name for column in self.columns if column.name in words]
        if self.hour in used or not used:
            raise SpecError(
                f"{self}: the target's hour '{self.target.hour}' must be computed from columns other than '{self.hour}', which "
                "such a table does not have"
            )
        if lacking := [name for name in used if name not in self.key]:
            raise SpecError(
                f"{self}: the target's hour is computed from {', '.join(lacking)}, which must be part of the key: rows of "
                "several hours would collapse into one otherwise"
            )

    def __str__(self) -> str:
        return f"{self.layer}/{self.name}"

    @property
    def path(self) -> tuple[str, str]:
        """(layer, name): the asset key, the lake identifier and the ClickHouse database and table."""
        return (str(self.layer), self.name)

    @property
    def stored_in(self) -> tuple[str, str]:
        """The database and the name of its table in ClickHouse."""
        return (self.target.database or str(self.layer), self.target.name or self.name)

    @property
    def collapses(self) -> bool:
        """Whether its ClickHouse table holds states and cancels, which a sign tells apart."""
        return self.target.engine == TargetEngine.COLLAPSING

    @property
    def sign(self) -> str:
        """The column that says whether a row is a state or a cancel: of its ClickHouse table, or else of the delta alone."""
        return self.target.sign if self.collapses else "__sign"

    @property
    def stored_columns(self) -> tuple[Column, ...]:
        """The columns that its ClickHouse table has, in declared order: all, or all but the hour."""
        return tuple(column for column in self.columns if not self.target.hour or column.name != self.hour)

    @property
    def stored_names(self) -> tuple[str, ...]:
        """The names of the columns that its ClickHouse table has, in declared order."""
        return tuple(column.name for column in self.stored_columns)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns, in declared order."""
        return tuple(column.name for column in self.columns)

    def partition_hours(self, hours: Collection[datetime]) -> tuple[datetime, ...]:
        """The given hours and all others in the same partitions of the ClickHouse table, in order."""
        found: set[datetime] = set()
        for hour in sorted(hours):
            if hour not in found:
                start, end = _partition(self.partitioning, hour)
                found.update(start + number * HOUR for number in range((end - start) // HOUR))
        return tuple(sorted(found))

    def column(self, name: str) -> Column:
        """The column of that name. Raises KeyError."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


def _partition(how: Partitioning, hour: datetime) -> tuple[datetime, datetime]:
    """The first hour of the partition of an hour, and the end of its last one."""
    day = hour.replace(hour=0)
    match how:
        case Partitioning.HOUR:
            return hour, hour + HOUR
        case Partitioning.DAY:
            return day, day + timedelta(days=1)
        case Partitioning.WEEK:
            monday = day - timedelta(days=day.weekday())
            return monday, monday + timedelta(days=7)
        case Partitioning.MONTH:
            first = day.replace(day=1)
            return first, (first + timedelta(days=31)).replace(day=1)


def check_storable(table: Table) -> None:
    """Raise SpecError naming the first column that ClickHouse cannot store."""
    for column in table.columns:
        try:
            _ = column.limit
        except SpecError as error:
            raise SpecError(f"{table}: column '{column.name}': {error}") from None
