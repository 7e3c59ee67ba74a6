"""An existing Iceberg table as the source of a pipeline: the rows whose time lies in the ingestion hour.

The table is read at one snapshot for a whole repair. What an hour is made of is known by the data files that may hold its rows,
and their deletes: a change of them is found without reading a row.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import load_catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import FileScanTask
from pyiceberg.types import TimestampNanoType, TimestampType, TimestamptzNanoType, TimestamptzType

from backfill_platform.adapters.iceberg import source_rows
from backfill_platform.adapters.iceberg.source_rows import TableReading, batches_of, condition
from backfill_platform.adapters.records.by_hour import RecordsByHour
from backfill_platform.adapters.records.connections import Connect
from backfill_platform.adapters.records.fitting import kind_of
from backfill_platform.adapters.records.frames import let_travel, rows_of
from backfill_platform.adapters.records.inspection import Inspection
from backfill_platform.adapters.records.taking import Taken
from backfill_platform.domain.hours import HOUR, HourRange, format_hour
from backfill_platform.domain.notification import redact
from backfill_platform.errors import PreconditionError, SpecError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EVER = 1 << 63
_NOTHING: Taken = {}
_SECRET = ("password", "secret", "token", "credential", "key", "uri", "url")


@dataclass(frozen=True)
class IcebergTable:
    """A table of another catalog; rows are in the ingestion hour in which their `time` lies. Rows without a time are in none.

    `connection` names properties in the setting BACKFILL_CONNECTIONS, as pyiceberg takes them (SQL, REST, Glue), and `name` for
    the name of the catalog where that is another one. `table` is its name with its namespace, and `where` a filter as pyiceberg
    writes it, such as `country = 'de'`. An hour without rows has not landed, unless it `may_be_empty`.
    """

    connection: str
    table: str
    time: str
    where: str = ""
    may_be_empty: bool = False

    def files(self, hours: HourRange) -> tuple[str, ...]:
        """The source of the hours, as text."""
        return (f"Iceberg table {self.table} of {self.connection}",)

    def open(self, connect: Connect, clock: Callable[[], datetime]) -> IcebergReader:
        """A reader of the table, which is opened when it is first needed."""
        return IcebergReader(self, connect, clock)


class IcebergReader(RecordsByHour):
    """A table as landing reads it, at the snapshot that it had when it was first asked."""

    def __init__(self, declared: IcebergTable, connect: Connect, clock: Callable[[], datetime]) -> None:
        self._declared, self._connect, self._clock = declared, connect, clock

    def inspect(self, hours: Iterable[datetime], taken: Taken) -> Inspection:
        """Count the rows of the hours, from metadata where all rows of a file are theirs.

        Hours are absent that are not over, or that have no rows and may not be empty. Raises PreconditionError where the table
        cannot be opened or has deletes that pyiceberg does not read, and SpecError where it lacks a column.
        """
        hours = list(hours)
        reading, absent = self._reading(taken), self._not_over(hours)
        rows = {}
        for hour, tasks in self._tasks([hour for hour in hours if hour not in absent]).items():
            rows[hour] = sum(self._count(task, reading, hour) for task in tasks)
            if not rows[hour] and not self._declared.may_be_empty:
                absent[hour] = (
                    f"{self._declared.table} has no rows of {format_hour(hour)}; may_be_empty=True takes it for empty"
                )
        return Inspection(absent, {hour: count for hour, count in rows.items() if hour not in absent})

    def lines(self, spark: SparkSession, hours: Collection[datetime], taken: Taken = _NOTHING) -> DataFrame:
        """The rows of the hours with the columns `taken`, or all columns of the table, and those that records have."""
        taken = taken or self._own_columns()
        let_travel(source_rows)
        found = self._tasks(hours)
        places = [(pickle.dumps(task), int(hour.timestamp())) for hour, tasks in found.items() for task in tasks]
        read = source_rows.task_reader(self._reading(taken))
        return rows_of(spark, places, "_task binary, _epoch bigint", read, taken)

    def versions(self, hours: Iterable[datetime]) -> dict[datetime, str]:
        """The data files that may hold rows of each hour, with their deletes. A compaction of them is a change."""
        return {hour: _version(tasks) for hour, tasks in self._tasks(hours).items()}

    @cached_property
    def _table(self) -> Any:
        declared = self._declared
        properties = self._connect(declared.connection)
        try:
            name = properties.get("name", declared.connection)
            return load_catalog(name, **properties).load_table(declared.table)
        except Exception as error:  # noqa: BLE001 - each kind of catalog raises its own
            text = (str(error).strip() or type(error).__name__).partition("\n")[0]
            secrets = {value for name, value in properties.items() if any(part in name.lower() for part in _SECRET)}
            raise PreconditionError(
                f"the Iceberg table {declared.table} of {declared.connection} cannot be opened: {redact(text, secrets)}"
            ) from None

    def _own_columns(self) -> dict[str, str]:
        return {field.name: kind_of(field.type) for field in schema_to_pyarrow(self._table.schema())}

    def _reading(self, taken: Taken) -> TableReading:
        declared, schema = self._declared, self._table.schema()
        there = {field.name: field.field_type for field in schema.fields}
        for name in (*taken, declared.time):
            if name not in there:
                have = ", ".join(there)
                raise SpecError(f"the Iceberg table {declared.table} has no column '{name}'; it has {have}")
        kind = there[declared.time]
        if not isinstance(kind, TimestampType | TimestamptzType | TimestampNanoType | TimestamptzNanoType):
            raise SpecError(f"the column '{declared.time}' of the Iceberg table {declared.table} is a {kind}, not a timestamp")
        zoned = isinstance(kind, TimestamptzType | TimestamptzNanoType)
        table, columns = self._table, tuple(taken) or (declared.time,)
        properties = dict(table.io.properties)
        return TableReading(table.metadata, table.metadata_location, properties, columns, declared.time, zoned, declared.where)

    def _tasks(self, hours: Iterable[datetime]) -> dict[datetime, list[FileScanTask]]:
        """For each hour the data files that may hold its rows, by their bounds."""
        hours = list(hours)
        if not hours:
            return {}
        found: dict[datetime, list[FileScanTask]] = {hour: [] for hour in hours}
        covering = HourRange.covering(hours)
        scan = self._table.scan(row_filter=condition(self._reading({}), covering.start, covering.end))
        try:
            planned = list(scan.plan_files())
        except ValueError as error:  # deletes that pyiceberg cannot read
            text = str(error).partition("\n")[0]
            raise PreconditionError(f"the Iceberg table {self._declared.table} cannot be read: {text}") from None
        for task in planned:
            first, last = self._bounds(task)
            for hour in hours:
                if first < _micros(hour + HOUR) and last >= _micros(hour):
                    found[hour].append(task)
        return found

    def _bounds(self, task: FileScanTask) -> tuple[int, int]:
        """The first and the last time that a data file may hold, in microseconds since 1970."""
        field = self._table.schema().find_field(self._declared.time)
        unit = 1000 if isinstance(field.field_type, TimestampNanoType | TimestamptzNanoType) else 1

        def of(bounds: Mapping[int, bytes] | None, unknown: int) -> int:
            value = (bounds or {}).get(field.field_id)
            return unknown if value is None else int(from_bytes(field.field_type, value)) // unit

        return of(task.file.lower_bounds, -_EVER), of(task.file.upper_bounds, _EVER)

    def _count(self, task: FileScanTask, reading: TableReading, hour: datetime) -> int:
        field = self._table.schema().find_field(self._declared.time)
        first, last = self._bounds(task)
        timeless = 0 if field.required else (task.file.null_value_counts or {}).get(field.field_id)
        inside = _micros(hour) <= first and last < _micros(hour + HOUR)
        if inside and timeless == 0 and not task.delete_files and not reading.where:
            return int(task.file.record_count)
        return sum(len(batch) for batch in batches_of(task, _only_time(reading), hour))


def _only_time(reading: TableReading) -> TableReading:
    return replace(reading, columns=(reading.time,))


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _version(tasks: Collection[FileScanTask]) -> str:
    if not tasks:
        return "no files"
    each = sorted("\0".join([task.file.file_path, *sorted(one.file_path for one in task.delete_files)]) for task in tasks)
    rows = sum(task.file.record_count for task in tasks)
    digest = hashlib.blake2b("\n".join(each).encode(), digest_size=4).hexdigest()
    files = f"{len(tasks)} data file{'s' if len(tasks) != 1 else ''}"
    return f"{files} with {rows:,} rows ({digest})"
