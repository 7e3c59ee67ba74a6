"""The exact difference between what is stored and what is desired: written as a delta, then described for people.

The delta has a cancel (a full copy of the stored row) for each stored row that is not desired as it is, and a state for each
desired row that is not stored as it is. Rows are compared by 128 bits of two hashes of all their values, in the types of the
target; only rows that differ are copied. All reported numbers are counted from the delta, so a dry run reports exactly what a
publish would write.

All cancels are written before all states, in separate statements and therefore in separate parts. Within one part, or in one
statement with optimize_on_insert, ClickHouse collapses `+new, -old` of one key to nothing, and the old row silently stays.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from backfill_platform.adapters.clickhouse.column_types import hashed, total
from backfill_platform.adapters.clickhouse.publishing.staging import OWNER, Staging
from backfill_platform.adapters.clickhouse.publishing.versions import next_version
from backfill_platform.adapters.clickhouse.schema import STAGING_DATABASE
from backfill_platform.adapters.clickhouse.sql import (
    hour_from,
    hour_number,
    hour_of,
    hour_start,
    identifier,
    names,
    of_tenants,
    qualified,
    row_identity,
    sign_of,
    sorting_key,
    target_name,
    within,
)
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.tables import Column, Table
from backfill_platform.errors import WarehouseError

# One INSERT, one block, one part per partition; nothing collapsed, delayed or reordered on the way.
DELTA_SETTINGS: Mapping[str, str | int] = {
    # A table that deduplicates inserts would take a delta that is written again for a repetition, and drop it.
    "insert_deduplicate": 0,
    "optimize_on_insert": 0,
    "async_insert": 0,
    "max_insert_threads": 1,
    "min_insert_block_size_rows": 1 << 30,
    "min_insert_block_size_bytes": 0,
    "max_partitions_per_insert_block": 0,
}
_MERGES = 5
_IN_ORDER = {"optimize_aggregation_in_order": 1}  # the delta is sorted by hour and key


@dataclass(frozen=True)
class ColumnChange:
    """The number of changed rows in which a column differs, bit by bit: NULL, NaN and -0.0 count as ordinary values."""

    column: str
    rows: int


@dataclass(frozen=True)
class Sample:
    """A row as it is stored and as it should be; None where there is no such row."""

    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None


@dataclass(frozen=True)
class Effect:
    """The total of a numeric column over the hour, before and after; of a boolean column, how many values are true.

    Reported for columns with changed values, or for all where rows come or go. Totals of floats and decimals are rounded: no
    proof.
    """

    column: str
    before: int | float
    after: int | float


@dataclass(frozen=True)
class HourDiff:
    """What a repair would do to an hour.

    `matched` rows are stored as they should be, `changed` have another value, `only_there` are stored and not desired,
    `only_here` are desired and not stored. `samples` holds some of each kind. Details are empty for an hour without changes.
    """

    hour: datetime
    matched: int
    changed: int = 0
    only_there: int = 0
    only_here: int = 0
    columns: tuple[ColumnChange, ...] = ()
    samples: tuple[Sample, ...] = ()
    effects: tuple[Effect, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether the repair would change any row."""
        return bool(self.changed or self.only_there or self.only_here)


def find_differences(staging: Staging, hours: Collection[datetime]) -> None:
    """Record the rows of the hours that only one side has. The hours must be consistent, so that no row is stored twice."""
    table = staging.table
    where, identity, hour = within(table, hours), row_identity(table), hour_of(table)
    sides = (
        f"SELECT {hour} AS __hour, {identity} AS __row, 1 AS __side FROM {staging.desired} WHERE {where.sql} UNION ALL "
        f"SELECT {hour}, {identity}, -1 FROM ({staging.target.stored(where.sql)})"
    )
    staging.warehouse.command(
        f"INSERT INTO {staging.differing} SELECT any(__hour), __row.1, __row.2 FROM ({sides}) "
        "GROUP BY __row HAVING sum(__side) != 0",
        parameters=where.parameters,
        settings=DELTA_SETTINGS,
        query_id=staging.query_id("compare"),
        doing=f"comparing what is stored with what is desired of {table}",
    )


def write_cancels(staging: Staging, hours: Collection[datetime]) -> None:
    """Write a cancel for each stored row of the hours that differs.

    FINAL returns rows as they are stored, so a cancel is a full copy, and sums over uncollapsed rows stay right.
    """
    table = staging.table
    where = within(table, hours)
    columns = names(staging.target.copied)
    staging.warehouse.command(
        f"INSERT INTO {staging.delta} ({columns}, {sign_of(table)}) "
        f"SELECT {columns}, -1 FROM ({staging.target.stored(where.sql)}) WHERE {_differs(staging, hours)}",
        parameters=where.parameters,
        settings={**DELTA_SETTINGS, **staging.target.settings},
        query_id=staging.query_id("cancels"),
        doing=f"writing the cancels for {table}",
    )


def write_states(staging: Staging, hours: Collection[datetime]) -> None:
    """Write each desired row of the hours that differs. Call it only after all cancels are written.

    In a versioned table a state gets a version after all stored ones of its key, cancelled ones included: a state with an
    existing version would vanish together with the cancel.
    """
    table, version = staging.table, staging.target.version
    where = within(table, hours)
    columns, keys = names(table.stored_names), names(sorting_key(table))
    desired, into = f"{staging.desired} AS __desired", columns
    if version:
        latest = f"max({identifier(version)}) AS __latest"
        stored = f"SELECT {keys}, {latest} FROM {target_name(table)} WHERE {where.sql} GROUP BY {keys}"
        desired += f" LEFT JOIN ({stored}) AS __stored USING ({keys})"
        columns, into = f"{columns}, {next_version(staging.target, '__latest')}", f"{columns}, {identifier(version)}"
    staging.warehouse.command(
        f"INSERT INTO {staging.delta} ({into}, {sign_of(table)}) SELECT {columns}, 1 FROM {desired} WHERE {where.sql} "
        f"AND {_differs(staging, hours)}",
        parameters=where.parameters,
        settings=DELTA_SETTINGS,
        query_id=staging.query_id("states"),
        doing=f"writing the states for {table}",
    )


def _differs(staging: Staging, hours: Collection[datetime]) -> str:
    where = within(staging.table, hours, on=OWNER)
    return f"{row_identity(staging.table)} IN (SELECT city, xxh3 FROM {staging.differing} WHERE {where.sql})"


def foreign_tenants(staging: Staging, tenants: Collection[str]) -> dict[datetime, tuple[int, str]]:
    """For each hour with rows of other tenants in the delta: how many rows, and one of these tenants."""
    table = staging.table
    whose = of_tenants(table, tenants)
    rows = staging.warehouse.rows(
        f"SELECT {hour_number(table)} AS __hour, count(), min(toString({identifier(table.tenant)})) FROM {staging.delta} "
        f"WHERE NOT {whose.sql} GROUP BY __hour",
        parameters=whose.parameters,
        doing=f"looking for rows of other tenants in the delta for {table}",
    )
    return {hour_from(number): (count, example) for number, count, example in rows}


def merge_parts(staging: Staging, name: str) -> None:
    """Make each partition of a staging table one part, which a publish takes over with one rename.

    Merges take parts in the order they were written, so cancels stay before the states of their keys. Where a TTL may drop
    rows, a single part is merged, too, so that rows vanish before the proof and not after the publish. Raises WarehouseError
    when a partition keeps several parts.
    """
    scattered, due = _scattered(staging, name), staging.target.expires
    for _ in range(_MERGES):
        if not scattered and not due:
            return
        staging.warehouse.command(
            f"OPTIMIZE TABLE {qualified(STAGING_DATABASE, name)} FINAL",
            settings={"optimize_skip_merged_partitions": 1},
            query_id=staging.query_id("merge"),
            doing=f"merging what is staged for {staging.table}",
        )
        scattered, due = _scattered(staging, name), False
    if scattered:
        raise WarehouseError(
            f"{staging.table}: {scattered} staged partitions stay in several parts after OPTIMIZE, so a crash could "
            "publish half of them; nothing was published. Are merges stopped (SYSTEM STOP MERGES) or is the disk full?"
        )


def _scattered(staging: Staging, name: str) -> int:
    """How many partitions of a staging table have several parts."""
    rows = staging.warehouse.rows(
        "SELECT partition_id FROM system.parts WHERE database = {database:String} AND table = {table:String} AND active "
        "GROUP BY partition_id HAVING count() > 1",
        parameters={"database": STAGING_DATABASE, "table": name},
        doing=f"counting the parts of what is staged for {staging.table}",
    )
    return len(rows)


def describe(
    staging: Staging, before: Mapping[datetime, Fingerprint], delta: Mapping[datetime, tuple[int, int]], *, samples: int
) -> dict[datetime, HourDiff]:
    """The difference of each hour of `before` (its net state); `delta` has the cancels and states of the hours that change.

    `samples` is the most rows shown for each hour.
    """
    result = {hour: HourDiff(hour, matched=stored.rows) for hour, stored in before.items()}
    if not delta:
        return result
    samples_by_hour = _samples(staging, samples) if samples else {}
    effects = _effects(staging, delta)
    changes = _changes(staging, [hour for hour, (cancels, states) in delta.items() if cancels and states])
    for hour, (cancels, states) in delta.items():
        changed, columns = changes.get(hour, (0, ()))
        come_or_go = cancels + states - 2 * changed
        result[hour] = HourDiff(
            hour,
            matched=before[hour].rows - cancels,
            changed=changed,
            only_there=cancels - changed,
            only_here=states - changed,
            columns=columns,
            samples=samples_by_hour.get(hour, ()),
            effects=tuple(effect for effect in effects.get(hour, ()) if _may_differ(effect, come_or_go, columns)),
        )
    return result


def _changes(staging: Staging, hours: Collection[datetime]) -> dict[datetime, tuple[int, tuple[ColumnChange, ...]]]:
    """How many keys of each hour have both a cancel and a state, and in how many of them each column differs."""
    if not hours:
        return {}
    table, where = staging.table, within(staging.table, hours)
    sign = sign_of(table)
    values = [name for name in table.stored_names if name not in sorting_key(table)]
    differs = [
        f"anyIf({_value(table, name)}, {sign} = -1) != anyIf({_value(table, name)}, {sign} = 1) AS __differs_{number}"
        for number, name in enumerate(values)
    ]
    keys = names(sorting_key(table))
    counts = ["count()", *(f"countIf(__differs_{number})" for number in range(len(values)))]
    rows = staging.warehouse.rows(
        f"SELECT {hour_number(table)} AS __hour, {', '.join(counts)} FROM ("
        f"SELECT {', '.join([keys, *differs])} FROM {staging.delta} WHERE {where.sql} "
        f"GROUP BY {keys} HAVING min({sign}) != max({sign})) GROUP BY __hour",
        parameters=where.parameters,
        settings=_IN_ORDER,
        doing=f"counting the differences of {table}",
    )
    return {
        hour_from(number): (
            changed,
            tuple(ColumnChange(name, count) for name, count in zip(values, differing, strict=True) if count),
        )
        for number, changed, *differing in rows
    }


def _value(table: Table, name: str) -> str:
    return f"cityHash64(tuple({hashed(table.column(name))}))"  # bit by bit, and never NULL


def _samples(staging: Staging, most: int) -> dict[datetime, tuple[Sample, ...]]:
    """Some rows of each kind for each hour, the lowest keys first, so that two dry runs show the same."""
    table = staging.table
    keys = names(sorting_key(table))
    sign = sign_of(table)
    # First the lowest keys of each kind, then their full rows: an hour of new rows never passes through memory.
    chosen = (
        f"SELECT {keys} FROM (SELECT {keys}, min({sign}) + max({sign}) AS __kind FROM {staging.delta} GROUP BY {keys}) "
        f"ORDER BY {keys} LIMIT {{most:UInt32}} BY {hour_start(table)}, __kind"
    )
    rows = staging.warehouse.rows(
        f"SELECT {hour_number(table)} AS __hour, {sign}, {names(table.stored_names)} FROM {staging.delta} "
        f"WHERE ({keys}) IN ({chosen}) ORDER BY {keys}, {sign}",
        parameters={"most": most},
        settings=_IN_ORDER,
        doing=f"reading samples of the differences of {table}",
    )
    rows_by_key: dict[datetime, dict[tuple[Any, ...], dict[int, Mapping[str, Any]]]] = {}
    for number, its_sign, *values in rows:
        row = dict(zip(table.stored_names, values, strict=True))
        key = tuple(row[name] for name in sorting_key(table))
        rows_by_key.setdefault(hour_from(number), {}).setdefault(key, {})[its_sign] = row
    return {
        hour: _mixed([Sample(row.get(-1), row.get(1)) for row in pairs.values()], most) for hour, pairs in rows_by_key.items()
    }


def _mixed(samples: list[Sample], most: int) -> tuple[Sample, ...]:
    """At most `most` samples, taken in turn from changed, only stored and only desired rows."""
    kinds = (
        [sample for sample in samples if sample.old and sample.new],
        [sample for sample in samples if not sample.new],
        [sample for sample in samples if not sample.old],
    )
    turns = [kind[turn] for turn in range(most) for kind in kinds if turn < len(kind)]
    return tuple(turns[:most])


def _effects(staging: Staging, hours: Collection[datetime]) -> dict[datetime, tuple[Effect, ...]]:
    table = staging.table
    numeric = _numeric(table)
    if not numeric:
        return {}
    sources = (f"({staging.target.stored(within(table, hours).sql)})", staging.desired)
    before, after = ({row[0]: row[1:] for row in _sums(staging, hours, source)} for source in sources)
    nothing = (0,) * len(numeric)
    return {
        hour_from(number): tuple(
            Effect(column.name, _number(old), _number(new))
            for column, old, new in zip(numeric, before.get(number, nothing), after.get(number, nothing), strict=True)
        )
        for number in before.keys() | after.keys()
    }


def _number(value: int | float | Decimal) -> int | float:
    return float(value) if isinstance(value, Decimal) else value


def _may_differ(effect: Effect, rows_come_or_go: int, changes: tuple[ColumnChange, ...]) -> bool:
    # Sums of the same floats in another order differ slightly: do not report what cannot have changed.
    return rows_come_or_go > 0 or any(change.column == effect.column for change in changes)


def _numeric(table: Table) -> list[Column]:
    return [column for column in table.stored_columns if column.name not in sorting_key(table) and column.type.is_numeric]


def _sums(staging: Staging, hours: Collection[datetime], source: str) -> list[tuple[Any, ...]]:
    table, where = staging.table, within(staging.table, hours)
    sums = [total(column) for column in _numeric(table)]
    return staging.warehouse.rows(
        f"SELECT {hour_number(table)} AS __hour, {', '.join(sums)} FROM {source} WHERE {where.sql} GROUP BY __hour",
        parameters=where.parameters,
        doing=f"adding up the numbers of {table}",
    )
