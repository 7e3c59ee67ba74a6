"""What is wrong with an hour whose net state and FINAL disagree, and how its partition is rewritten.

States may be doubled, cancels may have no state. Signs do not tell which row is the right one, so nothing is guessed: the
partition is written anew with the rows that FINAL shows and replaced in one step; the repair then compares these with the lake.
"""

from collections.abc import Collection
from datetime import datetime

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.preconditions import REPLACED_IS_GONE_SINCE
from backfill_platform.adapters.clickhouse.publishing.diff import DELTA_SETTINGS, merge_parts
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.sql import (
    hour_from,
    hour_number,
    literal,
    names,
    row_identity,
    sign_of,
    sorting_key,
    target_name,
    within,
)
from backfill_platform.adapters.clickhouse.target import Target
from backfill_platform.domain.fingerprint import EMPTY
from backfill_platform.domain.hours import format_hour
from backfill_platform.domain.tables import Table
from backfill_platform.errors import ConcurrentWriter, InconsistentHour, ProofFailed


def inconsistencies(warehouse: Warehouse, target: Target, hours: Collection[datetime]) -> dict[datetime, InconsistentHour]:
    """The hours that hold a row more than once, or a cancel without its state, or several states of one key."""
    if not hours:
        return {}
    table, keys = target.table, names(sorting_key(target.table))
    sign = sign_of(table)
    where = within(table, hours)
    rows = f"SELECT {keys}, sum(toInt64({sign})) AS __net FROM {target_name(table)} WHERE {where.sql} GROUP BY {keys}, "
    counts = warehouse.rows(
        f"SELECT {hour_number(table)} AS __hour, sum(__doubled), sum(__orphans), countIf(__states > 1) FROM ("
        f"SELECT {keys}, sumIf(__net - 1, __net > 1) AS __doubled, sumIf(-__net, __net < 0) AS __orphans, "
        f"countIf(__net > 0) AS __states FROM ({rows}{row_identity(table)}) GROUP BY {keys}) GROUP BY __hour "
        "HAVING sum(__doubled) + sum(__orphans) + countIf(__states > 1) > 0",
        parameters=where.parameters,
        doing=f"looking what is wrong with {table}",
    )
    return {
        hour_from(number): disagreement(
            table,
            hour_from(number),
            f"{doubled} states are stored more than once, {orphans} cancels have no state, {several} keys have several states",
        )
        for number, doubled, orphans, several in counts
    }


def disagreement(
    table: Table, hour: datetime, problem: str = "cancels were written after the state of another row"
) -> InconsistentHour:
    """The refusal of an inconsistent hour, with the problem."""
    return InconsistentHour(
        f"{table} {format_hour(hour)}: {problem}; net state and FINAL disagree, and a repair on top would show wrong rows. "
        "Nothing was published for this hour; allow the repair to rewrite inconsistent partitions: it replaces the "
        "partition by what FINAL shows and then repairs that"
    )


def rewrite_partitions(staging: Staging, hours: Collection[datetime]) -> None:
    """Replace the partitions of the hours by the rows that FINAL shows. The old parts stay as long as patches do.

    Each new partition is one part, so it is replaced as a whole or not at all. Other hours of a partition are rewritten with
    the rows they have, and must be consistent.

    Raises:
        InconsistentHour: another hour of a partition is inconsistent, too, or the server cannot replace partitions for good.
        ConcurrentWriter: somebody writes to the partitions meanwhile.
        ProofFailed: the rewritten rows differ from what FINAL shows.
    """
    warehouse, table = staging.warehouse, staging.table
    if not staging.target.replaces:
        raise InconsistentHour(
            f"{table}: ClickHouse {warehouse.server_version} may bring replaced partitions back when it starts again, so none "
            f"is rewritten; nothing was changed. Use a server of {'.'.join(map(str, REPLACED_IS_GONE_SINCE))} or later"
        )
    if not staging.target.rewritable:
        raise InconsistentHour(
            f"{table}: its PARTITION BY is {staging.target.partition or 'missing'}, and not by {table.partitioning} in UTC, so "
            "it is unknown which hours share a partition; none is rewritten, nothing was changed. Declare its partitioning if "
            "that is by hour, day, week or month; else write the states or cancels that these hours lack yourself"
        )
    partitions = _partitions(staging, hours)
    fingerprints_before = fingerprints.partitions(warehouse, table, partitions)
    all_hours = _hours_of(staging, partitions)
    net_before = fingerprints.net(warehouse, table, all_hours)
    final_before = fingerprints.final(warehouse, table, all_hours, staging.target)
    if sum(net_before.values(), EMPTY) != sum(fingerprints_before.values(), EMPTY):
        raise ConcurrentWriter(
            f"{table}: the partitions to be rewritten are being written to, or hold rows of hours before 1970; "
            "nothing was changed"
        )
    differing = [hour for hour in all_hours if hour not in hours and net_before[hour] != final_before[hour]]
    if inconsistent := inconsistencies(warehouse, staging.target, differing):
        raise InconsistentHour(
            f"{table}: {', '.join(map(format_hour, sorted(inconsistent)))} share a partition with the hours to "
            "rewrite and are inconsistent themselves; nothing was changed, repair them together"
        )
    _write_clean(staging, all_hours)
    clean = fingerprints.net(warehouse, table, all_hours, source=staging.rewritten)
    if clean != final_before:
        raise ProofFailed(f"{table}: the rewritten partitions are not what FINAL shows; nothing was changed")
    keep_old_parts(staging, partitions)
    staging.lease.check()
    rows = warehouse.rows(f"SELECT DISTINCT _partition_id FROM {staging.rewritten}", doing=f"rewriting partitions of {table}")
    filled_partitions = {partition for (partition,) in rows}
    for number, partition in enumerate(partitions):
        if fingerprints.partitions(warehouse, table, [partition])[partition] != fingerprints_before[partition]:
            done = "nothing was changed" if not number else "other partitions are rewritten, this one was not changed"
            raise ConcurrentWriter(f"{table}: somebody wrote to a partition that was to be rewritten; {done}")
        # Both statements name a staging table, so a fenced attempt fails here. REPLACE refuses a partition without rows.
        change = f"REPLACE PARTITION ID {literal(partition)} FROM {staging.rewritten}"
        if partition not in filled_partitions:
            change = f"MOVE PARTITION ID {literal(partition)} TO TABLE {staging.rewritten}"
        warehouse.command(
            f"ALTER TABLE {target_name(table)} {change}",
            query_id=staging.query_id(f"rewrite-{partition}"),
            doing=f"rewriting partitions of {table}",
        )


def keep_old_parts(staging: Staging, partitions: list[str]) -> None:
    """Keep the parts of the partitions in a table beside the patches, before they are replaced."""
    warehouse, old_parts = staging.warehouse, staging.inconsistent
    staging.create_like_target(old_parts, again=True)
    for partition in partitions:
        # The parts themselves: a copy of their rows would collapse what a person may want to examine.
        warehouse.command(
            f"ALTER TABLE {old_parts} ATTACH PARTITION ID {literal(partition)} FROM {target_name(staging.table)}",
            doing=f"keeping the old parts of {staging.table}",
        )


def _partitions(staging: Staging, hours: Collection[datetime]) -> list[str]:
    where = within(staging.table, hours)
    rows = staging.warehouse.rows(
        f"SELECT DISTINCT _partition_id AS __id FROM {target_name(staging.table)} WHERE {where.sql} ORDER BY __id",
        parameters=where.parameters,
        doing=f"looking for the partitions of {staging.table}",
    )
    return [partition for (partition,) in rows]


def _hours_of(staging: Staging, partitions: list[str]) -> list[datetime]:
    rows = staging.warehouse.rows(
        f"SELECT DISTINCT {hour_number(staging.table)} AS __hour FROM {target_name(staging.table)} "
        "WHERE _partition_id IN {ids:Array(String)} ORDER BY __hour",
        parameters={"ids": partitions},
        doing=f"looking for the hours that share a partition of {staging.table}",
    )
    return [hour_from(number) for (number,) in rows]


def _write_clean(staging: Staging, hours: Collection[datetime]) -> None:
    warehouse, table = staging.warehouse, staging.table
    where = within(table, hours)
    columns = names(staging.target.copied)
    warehouse.empty(staging.rewritten, doing=f"emptying a staging table of {table}")
    warehouse.command(
        f"INSERT INTO {staging.rewritten} ({columns}, {sign_of(table)}) "
        f"SELECT {columns}, 1 FROM ({staging.target.stored(where.sql)})",
        parameters=where.parameters,
        settings={**DELTA_SETTINGS, **staging.target.settings},
        query_id=staging.query_id("clean"),
        doing=f"writing what FINAL shows of {table}",
    )
    merge_parts(staging, staging.rewritten_name)
