"""What an attempt that died left behind: whether its delta was published, and what others wrote while it was.

The next attempt that may publish settles it, under its own lease and before it publishes anything itself: at that moment only
the dead attempt and live writers can have written its hours. A patch that was published can then be undone. Rows that live
writers wrote between the last look and the publish are kept as `foreign`, so that no later repair removes them unasked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.schema import (
    PATCHES_DATABASE,
    STAGING_DATABASE,
    column_definitions,
)
from backfill_platform.adapters.clickhouse.sql import (
    hour_from,
    hour_number,
    identifier,
    key_text,
    literal,
    names,
    net_rows,
    qualified,
    row_hash,
    row_identity,
    sign_of,
    signed,
    sorting_key,
    within,
)
from backfill_platform.domain.hours import format_hour
from backfill_platform.domain.tables import Table
from backfill_platform.errors import OpenHour, WarehouseError

if TYPE_CHECKING:
    from backfill_platform.adapters.clickhouse.publishing.staging import Staging

_PENDING, _FOREIGN = "_pending", "_foreign"
_SETTLING = "_settling_"


def settle(staging: Staging, alive: Collection[str]) -> None:
    """Settle what dead attempts at the target left: those whose holder is not in `alive`. May be called twice."""
    warehouse, table = staging.warehouse, staging.table
    for name, holder in _unsettled_patches(warehouse, table):
        if holder not in alive:
            _settle_patch(staging, name, f"{table.layer}_{table.name}_{holder}")
    prefix, published = f"__bf_{table.layer}_{table.name}_", set(_tables(warehouse, table, PATCHES_DATABASE))
    for name in _tables(warehouse, table, STAGING_DATABASE):
        patch = name.removeprefix("__bf_").removesuffix("_desired")
        if name.endswith("_desired") and patch in published and name.removeprefix(prefix).rpartition("_")[0] not in alive:
            _keep_foreign_of_dead(staging, qualified(STAGING_DATABASE, name), patch)


def began_to_publish(warehouse: Warehouse, table: Table) -> set[str]:
    """The holders of all attempts at the target that have a patch, published or not."""
    prefix = f"{table.layer}_{table.name}_"
    patches = _tables(warehouse, table, PATCHES_DATABASE)
    return {name.removeprefix(prefix).partition(_SETTLING)[0].removesuffix(_PENDING) for name in patches}


def unsettled(warehouse: Warehouse, table: Table, attempt: str) -> list[str]:
    """The quoted patches of an attempt that may have been published; the next attempt at their hours finds out."""
    patches = _unsettled_patches(warehouse, table)
    return [qualified(PATCHES_DATABASE, name) for name, holder in patches if holder.rpartition("_")[0] == attempt]


def keep_foreign_rows(staging: Staging, hours: Collection[datetime], *, desired: str, patch_name: str) -> None:
    """Note what somebody else must have written in hours that were just published.

    Rows that are stored and not desired get the sign 1; rows that are desired and gone, and cancels without a state, the sign
    -1. `desired` is the quoted table of what should be there.
    """
    warehouse, table = staging.warehouse, staging.table
    where, columns = within(table, hours), names(table.stored_names)
    foreign = qualified(PATCHES_DATABASE, f"{patch_name}{_FOREIGN}")
    warehouse.command(
        f"CREATE TABLE IF NOT EXISTS {foreign} ({', '.join(column_definitions(table))}, {sign_of(table)} Int8) "
        f"ENGINE = MergeTree ORDER BY ({names(sorting_key(table))}) COMMENT {literal(str(table))}",
        doing=f"keeping what live writers wrote to {table}",
    )
    # What is there counts once, what is desired is taken away: rows that are as desired vanish.
    row = row_identity(table)
    sides = (
        f"SELECT {columns}, {row} AS __row, {signed(table)} AS __net FROM {net_rows(table)} WHERE {where.sql} "
        f"UNION ALL SELECT {columns}, {row}, -1 FROM {desired} WHERE {where.sql}"
    )
    any_of = ", ".join(f"any({identifier(name)})" for name in table.stored_names)
    warehouse.command(
        f"INSERT INTO {foreign} ({columns}, {sign_of(table)}) SELECT {any_of}, toInt8(sign(sum(__net))) FROM ({sides}) "
        "GROUP BY __row HAVING sum(__net) != 0",
        parameters=where.parameters,
        doing=f"keeping what live writers wrote to {table}",
    )


def foreign_rows(staging: Staging, hours: Collection[datetime]) -> Mapping[datetime, OpenHour]:
    """The hours in which the loaded rows would remove, or write again, what a live writer did during an earlier publish.

    Where the lake has the writer's rows by now, nothing of theirs would be lost, and the hour is left out.
    """
    warehouse, table = staging.warehouse, staging.table
    found: dict[datetime, OpenHour] = {}
    kept = [name for name in _tables(warehouse, table, PATCHES_DATABASE) if name.endswith(_FOREIGN)]
    if not kept:
        return found
    where, keys, identity = within(table, hours), names(sorting_key(table)), row_identity(table)
    sign = sign_of(table)
    net = f"SELECT {identity} FROM {net_rows(table)} WHERE {where.sql} GROUP BY {identity} HAVING sum({signed(table)})"
    desired = f"{identity} IN (SELECT {identity} FROM {staging.desired})"
    removed = f"{sign} = 1 AND {identity} IN ({net} > 0) AND NOT {desired}"
    # A cancel without a state: its key would be written again, whatever the row.
    orphan = f"{identity} IN ({net} < 0) AND ({keys}) IN (SELECT {keys} FROM {staging.desired})"
    again = f"{sign} = -1 AND {identity} NOT IN ({net} > 0) AND ({desired} OR ({orphan}))"
    key = key_text(table)
    for name in kept:
        rows = warehouse.rows(
            f"SELECT {hour_number(table)} AS __hour, uniqExact({keys}), min({key}) "
            f"FROM {qualified(PATCHES_DATABASE, name)} WHERE {where.sql} AND (({removed}) OR ({again})) GROUP BY __hour",
            parameters=where.parameters,
            doing=f"looking for rows that live writers wrote to {table} during a publish",
        )
        found |= {hour_from(number): _left_to_a_person(table, hour_from(number), *facts) for number, *facts in rows}
    return found


def _left_to_a_person(table: Table, hour: datetime, rows: int, example: str) -> OpenHour:
    return OpenHour(
        f"{table} {format_hour(hour)}: during the publish of an earlier repair a live writer wrote or removed {rows} of its "
        f"rows, such as {example}, and the lake does not have that; nothing was published. Land the hour again when its source "
        "has it, or allow open hours: then the lake's rows take the place of the writer's"
    )


def _tables(warehouse: Warehouse, table: Table, database: str) -> list[str]:
    """The tables of a database that attempts at the target made."""
    rows = warehouse.rows(
        "SELECT name FROM system.tables WHERE database = {database:String} AND comment = {target:String} ORDER BY name",
        parameters={"database": database, "target": str(table)},
        doing=f"looking what attempts at {table} left",
    )
    return [name for (name,) in rows]


def _unsettled_patches(warehouse: Warehouse, table: Table) -> list[tuple[str, str]]:
    """Patches that were not confirmed, and one that somebody began to settle and did not: each with its holder."""
    prefix = f"{table.layer}_{table.name}_"
    return [
        (name, name.removeprefix(prefix).partition(_SETTLING)[0].removesuffix(_PENDING))
        for name in _tables(warehouse, table, PATCHES_DATABASE)
        if name.endswith(_PENDING) or _SETTLING in name
    ]


def _settle_patch(staging: Staging, name: str, patch_name: str) -> None:
    """Keep of a patch the partitions that were published, and drop the rest."""
    warehouse, table = staging.warehouse, staging.table
    claimed = qualified(PATCHES_DATABASE, f"{patch_name}{_SETTLING}{staging.token}")
    try:
        # Of two attempts at different hours of the dead one only one can rename it.
        warehouse.command(f"RENAME TABLE {qualified(PATCHES_DATABASE, name)} TO {claimed}", doing="settling a patch")
    except WarehouseError:
        return
    patch = qualified(PATCHES_DATABASE, patch_name)
    for partition, cancels_only in _published_partitions(staging, claimed).items():
        if cancels_only:
            warehouse.command(
                f"ALTER TABLE {claimed} DELETE WHERE _partition_id = {literal(partition)} AND {sign_of(table)} = 1",
                settings={"mutations_sync": 2},
                doing=f"settling a patch of {table}",
            )
        staging.create_delta(patch, if_absent=True)
        warehouse.command(
            f"ALTER TABLE {claimed} MOVE PARTITION ID {literal(partition)} TO TABLE {patch}",
            doing=f"settling a patch of {table}",
        )
    warehouse.drop(claimed, doing=f"settling a patch of {table}")


def _published_partitions(staging: Staging, patch: str) -> dict[str, bool]:
    """The partitions of a patch that were published, each with whether only its cancels were.

    A partition is published at once, or its cancels are and then its states. So most of its keys are as the patch left them,
    or as they were before; the few others are a live writer's.
    """
    warehouse, table = staging.warehouse, staging.table
    rows = warehouse.rows(f"SELECT DISTINCT {hour_number(table)} FROM {patch}", doing=f"reading a patch of {table}")
    if not rows:
        return {}
    where = within(table, [hour_from(number) for (number,) in rows])
    keys, hash_ = names(sorting_key(table)), row_hash(table)
    sign = sign_of(table)
    changes = (
        f"SELECT _partition_id AS __partition, {keys}, countIf({sign} = 1) AS __writes, countIf({sign} = -1) AS __cancels, "
        f"anyIf({hash_}, {sign} = 1) AS __written, anyIf({hash_}, {sign} = -1) AS __cancelled "
        f"FROM {patch} GROUP BY __partition, {keys}"
    )
    stored = f"SELECT {keys}, 1 AS __there, {hash_} AS __stored FROM ({staging.target.stored(where.sql)})"
    published = "if(__writes > 0, __there = 1 AND __stored = __written, __there = 0)"
    unpublished = "if(__cancels > 0, __there = 1 AND __stored = __cancelled, __there = 0)"
    cancelled = "__cancels > 0 AND __there = 0"
    counts = warehouse.rows(
        f"SELECT __partition, countIf({published}), countIf({unpublished}), countIf({cancelled}) "
        f"FROM ({changes}) AS __patch LEFT JOIN ({stored}) AS __now USING ({keys}) GROUP BY __partition",
        parameters=where.parameters,
        doing=f"comparing a patch with {table}",
    )
    found = {}
    for partition, after, before, gone in counts:
        if after > before and after >= gone:
            found[partition] = False
        elif gone > before and not staging.target.one_block:
            found[partition] = True
    return found


def _keep_foreign_of_dead(staging: Staging, desired: str, patch_name: str) -> None:
    """Compare the hours that a dead attempt published with what it wanted; note what others wrote."""
    warehouse, table, patch = staging.warehouse, staging.table, qualified(PATCHES_DATABASE, patch_name)
    with suppress(WarehouseError):  # somebody else settles the same attempt, and has dropped its tables by now
        rows = warehouse.rows(f"SELECT DISTINCT {hour_number(table)} FROM {patch}", doing=f"reading a patch of {table}")
        hours = [hour_from(number) for (number,) in rows]
        wanted = fingerprints.states(warehouse, table, hours, source=desired)
        stored = fingerprints.net(warehouse, table, hours)
        if differing := [hour for hour in hours if stored[hour] != wanted[hour]]:
            keep_foreign_rows(staging, differing, desired=desired, patch_name=patch_name)
