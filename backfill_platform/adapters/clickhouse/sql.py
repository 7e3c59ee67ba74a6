"""Fragments of SQL that several modules need: names, types, hours, row hashes, and Parquet files as a source."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from backfill_platform.adapters.clickhouse.column_types import column_type, column_types, converted, file_structure, hashed
from backfill_platform.adapters.clickhouse.quoting import identifier, literal, names, qualified
from backfill_platform.domain.hours import HOUR, HourRange, format_hour, merge_hours
from backfill_platform.domain.tables import Partitioning, Table, TargetEngine
from backfill_platform.errors import PreconditionError, UsageError

__all__ = [
    "EVERY_HOUR",
    "FILE_SETTINGS",
    "Condition",
    "column_type",
    "column_types",
    "file_settings",
    "files_source",
    "hour_from",
    "hour_number",
    "hour_of",
    "hour_start",
    "identifier",
    "key_text",
    "literal",
    "names",
    "net_rows",
    "of_tenants",
    "partition_key",
    "qualified",
    "range_rows",
    "row_hash",
    "row_identity",
    "seen",
    "sign_of",
    "signed",
    "sorting_key",
    "span_rows",
    "target_name",
    "within",
]

# The range of toStartOfHour: it returns a DateTime, which wraps around silently outside of it.
_FIRST_HOUR = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_HOUR = datetime(2106, 2, 7, 5, tzinfo=UTC)
EVERY_HOUR = HourRange(_FIRST_HOUR, _LAST_HOUR + HOUR)


def row_hash(table: Table, function: str = "cityHash64") -> str:
    """A 64-bit hash of all declared columns of a row, in their order.

    The tuple is essential: a hash of bare columns is NULL as soon as one column is, and NULL equals nothing.
    """
    return f"{function}(tuple({', '.join(map(hashed, table.stored_columns))}))"


def row_identity(table: Table) -> str:
    """128 bits of two independent hashes: equal for two rows when all their values are equal, bit by bit.

    Four times faster to compare than the key and one hash, for any key.
    """
    return f"({row_hash(table)}, {row_hash(table, 'xxh3')})"


@dataclass(frozen=True)
class Condition:
    """SQL for a WHERE, and the values of its parameters."""

    sql: str
    parameters: dict[str, Any] = field(default_factory=dict)


def within(table: Table, hours: Iterable[datetime], on: str = "") -> Condition:
    """The condition for rows whose hour column lies in one of the hours, contiguous or not.

    `on` names another column with the hour.
    Half-open bounds and not `hour IN (...)`: a stored row that is not on the full hour belongs to its hour, too.
    Raises UsageError when there are no hours, or hours outside the range of ClickHouse's DateTime.
    """
    ranges = merge_hours(hours)
    if not ranges:
        raise UsageError(f"{table}: no hours were given")
    start, end = ranges[0].start, ranges[-1].end
    if start < _FIRST_HOUR or end - HOUR > _LAST_HOUR:
        raise UsageError(
            f"{table}: ClickHouse can represent the hours from {format_hour(_FIRST_HOUR)} to {format_hour(_LAST_HOUR)} only, "
            f"not {format_hour(start if start < _FIRST_HOUR else end - HOUR)}"
        )
    hour = (on and identifier(on)) or hour_of(table)
    sql = f"{hour} >= toDateTime64({{hours_start:UInt32}}, 6, 'UTC') AND {hour} < toDateTime64({{hours_end:UInt32}}, 6, 'UTC')"
    parameters: dict[str, Any] = {"hours_start": _seconds(start), "hours_end": _seconds(end)}
    if len(ranges) > 1:
        starts = f"SELECT toDateTime(arrayJoin(range(first, last, 3600)), 'UTC') FROM ({range_rows(hours)})"
        sql += f" AND {f'toStartOfHour({hour})' if on else hour_start(table)} IN ({starts})"
    return Condition(f"({sql})", parameters)


def of_tenants(table: Table, tenants: Iterable[str]) -> Condition:
    """The condition for rows of the given tenants. Raises UsageError when the table has no tenant column."""
    if not table.tenant:
        raise UsageError(f"{table} has no tenant column, its rows cannot be told apart by tenant")
    return Condition(f"toString({identifier(table.tenant)}) IN {{tenants:Array(String)}}", {"tenants": sorted(tenants)})


def range_rows(hours: Iterable[datetime]) -> str:
    """A SELECT of the ranges that the hours form, half-open: `first` and `last` in seconds since 1970.

    The numbers are part of the statement: a year of single hours is longer than a bound parameter may be, because these are
    sent in the URL. They are one text, because thousands of numbers would be too many nodes for ClickHouse's parser.
    """
    return span_rows(merge_hours(hours))


def span_rows(spans: Iterable[HourRange]) -> str:
    """A SELECT of ranges, as `range_rows` has them."""
    text = ",".join(f"{_seconds(span.start)}-{_seconds(span.end)}" for span in spans)
    part = "toUInt32(splitByChar('-', range)[{}])"
    each = f"SELECT arrayJoin(splitByChar(',', '{text}')) AS range"
    return f"SELECT {part.format(1)} AS first, {part.format(2)} AS last FROM ({each})"


def hour_of(table: Table) -> str:
    """SQL for the time by which a row belongs to its hour, which compares with a moment in UTC."""
    if not table.target.hour and table.column(table.hour).stored.name in ("DateTime", "DateTime64"):
        return identifier(table.hour)
    return f"toDateTime64({table.target.hour or identifier(table.hour)}, 6, 'UTC')"


def hour_start(table: Table) -> str:
    """SQL for the full hour that owns a row. In other time zones than UTC, hours may start in the middle of ours."""
    hour = hour_of(table)
    zoned = not table.target.hour and table.column(table.hour).stored_as and not hour.startswith("toDateTime64")
    return f"toStartOfHour(toDateTime64({hour}, 6, 'UTC'))" if zoned else f"toStartOfHour({hour})"


def hour_number(table: Table) -> str:
    """SQL for the hour that owns a row, in seconds since 1970: no driver converts a number to another time zone."""
    return f"toUnixTimestamp({hour_start(table)})"


def hour_from(number: int) -> datetime:
    """The hour of a number that `hour_number` selected, in UTC."""
    return datetime.fromtimestamp(number, UTC)


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp())


_PARTITION_FUNCTIONS = {
    Partitioning.HOUR: "toStartOfHour",
    Partitioning.DAY: "toYYYYMMDD",
    Partitioning.WEEK: "toMonday",
    Partitioning.MONTH: "toYYYYMM",
}


def sorting_key(table: Table) -> tuple[str, ...]:
    """The hour, then the key: rows that agree in all of these are one row, of which one state survives."""
    return table.key if table.target.hour else (table.hour, *table.key)


def partition_key(table: Table) -> str:
    """The partition expression."""
    return f"{_PARTITION_FUNCTIONS[table.partitioning]}({hour_of(table)})"


def target_name(table: Table) -> str:
    """The quoted database and table of a target."""
    return qualified(*table.stored_in)


def sign_of(table: Table) -> str:
    """The quoted column of a target that is 1 for a state and -1 for its cancel."""
    return identifier(table.sign)


def signed(table: Table) -> str:
    """SQL for how often a stored row counts: its sign, or once where there is none. Of the rows of `net_rows`."""
    return f"toInt64({sign_of(table)})" if table.collapses else "toInt64(1)"


def seen(table: Table) -> str:
    """The target as its readers should read it, for a FROM: with FINAL, except where every row counts as it is."""
    return target_name(table) if table.target.engine == TargetEngine.PLAIN else f"{target_name(table)} FINAL"


def net_rows(table: Table) -> str:
    """The target for a FROM whose rows, each counted as `signed` says, are its net state."""
    return target_name(table) if table.collapses else seen(table)


def key_text(table: Table) -> str:
    """SQL for the key of a row, for people."""
    return f"toString(tuple({names(table.key) or identifier(table.hour)}))"


# The defaults of the first three replace values silently: by a piece of the file's path (`.../hour=.../`), or by zeros and ''.
FILE_SETTINGS = {
    "use_hive_partitioning": 0,
    "input_format_parquet_allow_missing_columns": 0,  # see file_settings
    "input_format_null_as_default": 0,
    # With these, the reader does not find a value of a tuple that a condition asks for.
    "optimize_move_to_prewhere": 0,
    "optimize_functions_to_subcolumns": 0,
}


def file_settings(table: Table) -> dict[str, int]:
    """The settings for reading the lake's files of a table.

    Files that are older than a column do not have it. Such a column is nullable, and NULL in them; any other one must be there.
    """
    added = any(column.nullable or column.was for column in table.stored_columns)
    return {**FILE_SETTINGS, "input_format_parquet_allow_missing_columns": int(added)}


def files_source(table: Table, paths: Sequence[str]) -> str:
    """A SELECT of the declared columns from Parquet files, cast to the target's types; needs `file_settings`.

    The paths are absolute, on the server's machine, with or without `file://` before them. The list is passed as an array: in
    one `{a,b}` pattern, absolute paths match nothing, and there is no error.
    Raises PreconditionError for paths that `file()` would not read literally.
    """
    files = [path.removeprefix("file://") for path in paths]
    for path in files:
        if not path.startswith("/"):
            raise PreconditionError(
                f"{table}: the warehouse can read local files by absolute paths, object storage not yet; got '{path}'"
            )
        if any(special in path for special in "{}*?"):
            raise PreconditionError(
                f"{table}: '{path}' contains one of {{}}*?, which file() reads as a pattern; rename the file"
            )
    if len(set(files)) != len(files):
        raise PreconditionError(f"{table}: a file is listed twice, its rows would be doubled; list each file once")
    array = ", ".join(literal(path) for path in files)
    source = f"file([{array}], Parquet, {literal(file_structure(table, earlier_names=True))})"
    if any(column.was for column in table.stored_columns):
        # A file has a column under one of its names, so at most one of them is not NULL.
        values = (
            f"coalesce({names((column.name, *column.was))}) AS {identifier(column.name)}"
            if column.was
            else identifier(column.name)
            for column in table.stored_columns
        )
        source = f"(SELECT {', '.join(values)} FROM {source})"
    return converted(table, source)
