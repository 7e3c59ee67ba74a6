"""Patches: the deltas of publishes, stored so that they can be undone, and the undo.

A patch is stored just before it is published, by attaching the delta's parts to a separate table: no rows are copied. An undo
writes the inverse, but only for rows that are still stored as the patch wrote them; other rows are conflicts and stay.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.diff import DELTA_SETTINGS
from backfill_platform.adapters.clickhouse.publishing.leftovers import unsettled
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.schema import PATCHES_DATABASE
from backfill_platform.adapters.clickhouse.sql import (
    Condition,
    hour_from,
    hour_number,
    key_text,
    literal,
    names,
    of_tenants,
    qualified,
    row_hash,
    seen,
    sign_of,
    sorting_key,
    within,
)
from backfill_platform.domain.tables import Table
from backfill_platform.errors import PreconditionError

_SHOWN = 20


@dataclass(frozen=True)
class Conflict:
    """A row that an undo leaves as it is, because it has changed since the patch: its hour, and its key as text."""

    hour: datetime
    key: str


@dataclass(frozen=True)
class Undoable:
    """What an undo of a patch would take back: rows by hour; the number of conflicts, and some of them in `shown`."""

    rows: Mapping[datetime, int]
    conflicts: int
    shown: tuple[Conflict, ...]


def keep_patch(staging: Staging) -> None:
    """Store the delta of an attempt that is about to be published, in place of an earlier one of the same staging.

    It cannot be undone before `confirm_patch`: if this publish fails, somebody else may publish the same rows.
    """
    warehouse, table = staging.warehouse, staging.table
    patch = staging.pending_patch
    staging.create_delta(patch, again=True)
    warehouse.command(
        f"ALTER TABLE {patch} ATTACH PARTITION ALL FROM {staging.delta}",
        doing=f"keeping the patch of {table} (when the staging table is gone, a newer attempt has taken over)",
    )


def confirm_patch(staging: Staging) -> None:
    """Make the stored delta a patch, now that all of it is published.

    Where a process dies between publish and confirmation, the next attempt finds out what was published (`leftovers`).
    """
    staging.warehouse.command(
        f"RENAME TABLE {staging.pending_patch} TO {staging.patch}", doing=f"confirming the patch of {staging.table}"
    )


def confirm_partition(staging: Staging, partition: str) -> None:
    """Make one partition of the stored delta part of the patch, now that it is published."""
    staging.create_delta(staging.patch, if_absent=True)
    staging.warehouse.command(
        f"ALTER TABLE {staging.pending_patch} MOVE PARTITION ID {literal(partition)} TO TABLE {staging.patch}",
        doing=f"confirming the patch of {staging.table}",
    )


def forget_patch(staging: Staging) -> None:
    """Drop the stored delta of a publish that does not happen."""
    staging.warehouse.drop(staging.pending_patch, doing=f"forgetting the patch of {staging.table}")


def old_patches(warehouse: Warehouse, table: Table, *, older_than_days: int) -> list[str]:
    """The names of the patches of a table that are older."""
    rows = warehouse.rows(
        "SELECT name FROM system.tables WHERE database = {database:String} AND comment = {target:String} "
        "AND metadata_modification_time <= now() - toIntervalDay({days:UInt32})",
        parameters={"database": PATCHES_DATABASE, "target": str(table), "days": older_than_days},
        doing=f"looking for old patches of {table}",
    )
    return [name for (name,) in rows]


def drop_patches(warehouse: Warehouse, table: Table, *, older_than_days: int) -> int:
    """Drop the patches of a table that are older; returns how many. They can no longer be undone."""
    names_ = old_patches(warehouse, table, older_than_days=older_than_days)
    for name in names_:
        warehouse.drop(qualified(PATCHES_DATABASE, name), doing="dropping an old patch")
    return len(names_)


def patched_hours(
    warehouse: Warehouse, table: Table, attempt: str, tenant: str | None = None, *, unsure: bool = False
) -> tuple[datetime, ...]:
    """The hours that a patch changed, for one tenant or all; with `unsure` also those it may have changed before it died.

    Raises PreconditionError when there is no patch, or no longer; UsageError when the table has no tenants.
    """
    whose, doubtful = _of(table, tenant), unsettled(warehouse, table, attempt) if unsure else []
    try:
        patches = [_patch(warehouse, table, attempt)]
    except PreconditionError:
        if not doubtful:
            raise
        patches = []
    hours = " UNION ALL ".join(
        f"SELECT {hour_number(table)} AS __hour FROM {patch} WHERE {whose.sql}" for patch in [*patches, *doubtful]
    )
    rows = warehouse.rows(f"SELECT DISTINCT __hour FROM ({hours})", parameters=whose.parameters, doing="reading a patch")
    return tuple(sorted(hour_from(number) for (number,) in rows))


def undoable(
    warehouse: Warehouse, table: Table, attempt: str, hours: Collection[datetime], tenant: str | None = None
) -> Undoable:
    """What an undo of the given hours, and of one tenant if it is given, would take back, and what it must leave."""
    where, keys, patch = _of_tenant(table, hours, tenant), names(sorting_key(table)), _patch(warehouse, table, attempt)
    ours = _ours(table, patch, where.sql)
    changed = f"SELECT DISTINCT {keys} FROM {patch} WHERE {where.sql}"
    rows = warehouse.rows(
        f"SELECT {hour_number(table)} AS __hour, count() FROM ({ours}) GROUP BY __hour",
        parameters=where.parameters,
        doing=f"comparing a patch with {table}",
    )
    lost = f"SELECT {keys} FROM ({changed}) WHERE ({keys}) NOT IN ({ours})"
    ((count,),) = warehouse.rows(f"SELECT count() FROM ({lost})", parameters=where.parameters, doing="counting conflicts")
    text = key_text(table)
    shown = warehouse.rows(
        f"SELECT {hour_number(table)} AS __hour, {text} FROM ({lost}) ORDER BY {keys} LIMIT {_SHOWN}",
        parameters=where.parameters,
        doing="reading conflicts",
    )
    return Undoable(
        {hour_from(number): rows_ for number, rows_ in rows},
        count,
        tuple(Conflict(hour_from(number), key) for number, key in shown),
    )


def load_undone(staging: Staging, attempt: str, hours: Collection[datetime], tenant: str | None = None) -> None:
    """Fill the desired rows of a staging with the hours as they should be after the undo of `attempt`, for one tenant or all.

    These are the stored rows without those that the patch wrote and that are unchanged, plus the rows that it cancelled; of
    rows that a table without keys had twice, one.
    """
    table = staging.table
    where, columns, keys = within(table, hours), names(table.stored_names), names(sorting_key(table))
    patch = _patch(staging.warehouse, table, attempt)
    undone = _of_tenant(table, hours, tenant)
    ours = _ours(table, patch, undone.sql)
    staging.warehouse.command(
        f"INSERT INTO {staging.desired} ({columns}) "
        f"SELECT {columns} FROM ({staging.target.stored(where.sql)}) WHERE ({keys}) NOT IN ({ours}) "
        f"UNION ALL SELECT {'' if table.collapses else 'DISTINCT '}{columns} FROM {patch} "
        f"WHERE {where.sql} AND {sign_of(table)} = -1 AND ({keys}) IN ({ours})",
        parameters=undone.parameters,
        settings=DELTA_SETTINGS,
        query_id=staging.query_id("undo"),
        doing=f"computing {table} without the patch {attempt}",
    )


def _of_tenant(table: Table, hours: Collection[datetime], tenant: str | None) -> Condition:
    where, whose = within(table, hours), _of(table, tenant)
    return Condition(f"{where.sql} AND {whose.sql}", {**where.parameters, **whose.parameters})


def _of(table: Table, tenant: str | None) -> Condition:
    return Condition("true") if tenant is None else of_tenants(table, [tenant])


def _ours(table: Table, patch: str, where: str) -> str:
    """The keys of the patch that are stored as the patch left them: the row it wrote, or no row where it removed one."""
    keys, hash_ = names(sorting_key(table)), row_hash(table)
    written = (
        f"SELECT {keys}, countIf({sign_of(table)} = 1) AS __writes, anyIf({hash_}, {sign_of(table)} = 1) AS __written "
        f"FROM {patch} WHERE {where} GROUP BY {keys}"
    )
    stored = f"SELECT {keys}, 1 AS __there, {hash_} AS __stored FROM {seen(table)} WHERE {where}"
    return (
        f"SELECT {keys} FROM ({written}) AS __patch LEFT JOIN ({stored}) AS __now USING ({keys}) "
        "WHERE (__writes > 0 AND __there = 1 AND __written = __stored) OR (__writes = 0 AND __there = 0)"
    )


def _patch(warehouse: Warehouse, table: Table, attempt: str) -> str:
    """SQL for the rows of a repair's patches: there is one patch for each of its processes that has published."""
    prefix = f"{table.layer}_{table.name}_{attempt}_"
    rows = warehouse.rows(
        "SELECT name FROM system.tables WHERE database = {database:String} AND comment = {target:String} "
        "AND startsWith(name, {prefix:String}) AND position(substring(name, length({prefix:String}) + 1), '_') = 0 "
        "AND total_rows > 0 ORDER BY metadata_modification_time, name",
        parameters={"database": PATCHES_DATABASE, "target": str(table), "prefix": prefix},
        doing=f"looking for the patch {attempt} of {table}",
    )
    if not rows:
        raise PreconditionError(
            f"there is no patch of repair {attempt} for {table}: it published nothing, or its retention is over"
        )
    return _in_one(table, [qualified(PATCHES_DATABASE, name) for (name,) in rows])


def _in_one(table: Table, patches: Sequence[str]) -> str:
    """SQL for what several patches of a repair, in their order, come to: for each key the row before and the row after.

    The row after is the one that the last of them wrote. The row before is the one that they first replaced; but where somebody
    else has written the key between two of them, it is that other row: theirs is not ours to take back.
    """
    if len(patches) == 1:
        return patches[0]
    keys, columns, sign = names(sorting_key(table)), names(table.stored_names), sign_of(table)
    rows = " UNION ALL ".join(
        f"SELECT DISTINCT {columns}, {sign}, {number} AS __number FROM {patch}" for number, patch in enumerate(patches, 1)
    )
    # A tuple of a count and a hash: no row differs from every row.
    ours = (
        f"SELECT {keys}, __number, (countIf({sign} = -1), anyIf({row_hash(table)}, {sign} = -1)) AS __before, "
        f"(countIf({sign} = 1), anyIf({row_hash(table)}, {sign} = 1)) AS __after FROM ({rows}) GROUP BY {keys}, __number"
    )
    earlier = f"OVER (PARTITION BY {keys} ORDER BY __number ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING)"
    chained = f"SELECT *, count() {earlier} AS __known, any(__after) {earlier} AS __left FROM ({ours})"
    ends = (
        f"SELECT {keys}, max(__number) AS __last, maxIf(__number, __known = 0 OR __before != __left) AS __first, "
        f"argMax(__after, __number) != argMaxIf(__before, __number, __known = 0 OR __before != __left) AS __differs "
        f"FROM ({chained}) GROUP BY {keys}"
    )
    return (
        f"(SELECT {columns}, {sign} FROM ({rows}) AS __rows INNER JOIN ({ends}) AS __ends USING ({keys}) WHERE __differs "
        f"AND (({sign} = 1 AND __number = __last) OR ({sign} = -1 AND __number = __first)))"
    )
