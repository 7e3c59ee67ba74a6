"""Publishing to tables that do not collapse: newer rows and deleted ones, or whole partitions.

A ReplacingMergeTree that marks deleted rows takes the states of the delta, and for each row that goes a copy that is marked as
deleted. Other tables have no row that takes another one back: each partition of the delta is written anew, with the rows that
stay, and replaced in one step. It is one part, so that a crash leaves it as before or as after.

What somebody else writes to a partition while it is written anew would be replaced as well. So what the server knows of its
parts is compared right before, and the partition is written again, or refused. What is written in the milliseconds between
that and the replacement is lost; it can still be seen that there was something, and the hours are reported as unverified.
"""

from collections.abc import Collection, Mapping
from datetime import datetime

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Row
from backfill_platform.adapters.clickhouse.publishing.diff import DELTA_SETTINGS, merge_parts
from backfill_platform.adapters.clickhouse.publishing.patches import confirm_partition, forget_patch
from backfill_platform.adapters.clickhouse.publishing.prepare import ROUNDS, HourPublish, raced, refused, to_publish
from backfill_platform.adapters.clickhouse.publishing.staging import OnStep, Staging
from backfill_platform.adapters.clickhouse.publishing.versions import next_version
from backfill_platform.adapters.clickhouse.sql import (
    hour_from,
    hour_number,
    identifier,
    literal,
    names,
    net_rows,
    row_identity,
    sign_of,
    target_name,
)
from backfill_platform.domain.fingerprint import EMPTY, Fingerprint
from backfill_platform.domain.hours import format_hour
from backfill_platform.errors import ProofFailed

# Whole partitions, which need not be one block.
_COPY_SETTINGS = {name: value for name, value in DELTA_SETTINGS.items() if not name.startswith("min_insert_block")}


def write_newer_rows(staging: Staging) -> None:
    """Write what the delta comes to in a table that marks deleted rows: each state, and each row that goes, marked.

    A row goes when no state has its place in the order of the table. Raises ProofFailed when the states are not all there.
    """
    table, target = staging.table, staging.target
    sign, deleted = sign_of(table), identifier(table.target.deleted)
    columns = names([name for name in target.copied if name != target.version])
    own = f", {identifier(target.version)}" if target.version else ""
    newer = f", {next_version(target, identifier(target.version))}" if target.version else ""
    place = f"cityHash64(tuple({target.order}))"  # never NULL
    staging.warehouse.empty(staging.rewritten, doing=f"emptying a staging table of {table}")
    staging.warehouse.command(
        f"INSERT INTO {staging.rewritten} ({columns}{own}, {deleted}) "
        f"SELECT {columns}{own}, 0 FROM {staging.delta} WHERE {sign} = 1 UNION ALL "
        f"SELECT {columns}{newer}, 1 FROM {staging.delta} WHERE {sign} = -1 "
        f"AND {place} NOT IN (SELECT {place} FROM {staging.delta} WHERE {sign} = 1)",
        settings={**DELTA_SETTINGS, **target.settings},
        query_id=staging.query_id("newer"),
        doing=f"writing the newer rows of {table}",
    )
    merge_parts(staging, staging.rewritten_name)
    hash_ = f"sum(reinterpretAsInt64(cityHash64({row_identity(table)})))"
    ((written, wanted),) = staging.warehouse.rows(
        f"SELECT (SELECT (count(), {hash_}) FROM {staging.rewritten} WHERE {deleted} = 0), "
        f"(SELECT (count(), {hash_}) FROM {staging.delta} WHERE {sign} = 1)",
        doing=f"proving the newer rows of {table}",
    )
    if written != wanted:
        raise ProofFailed(f"{table}: the rows to be published are not those of the delta; nothing was published")


def replace_partitions(
    staging: Staging, results: Mapping[datetime, HourPublish], on_step: OnStep
) -> tuple[dict[datetime, HourPublish], dict[datetime, ProofFailed]]:
    """Replace one partition of the delta after the other; those that somebody keeps writing are left out.

    Returns the results, and the hours of partitions to which somebody wrote in the last instant, with what to do.
    """
    results, lost = dict(results), dict[datetime, ProofFailed]()
    rows = staging.warehouse.rows(
        f"SELECT _partition_id AS __id, groupUniqArray({hour_number(staging.table)}) FROM {staging.delta} "
        "GROUP BY __id ORDER BY __id",
        doing=f"looking for the partitions of the delta for {staging.table}",
    )
    partitions = {partition: sorted(map(hour_from, numbers)) for partition, numbers in rows}
    before = {partition: _rows_of(staging, partition, hours) for partition, hours in partitions.items()}
    net = fingerprints.net(staging.warehouse, staging.table, to_publish(results))
    written = {hour for hour, one in net.items() if one != results[hour].before}
    for partition, hours in partitions.items():
        seen = None if written & set(hours) else _written_anew(staging, partition, before[partition], on_step)
        if seen is None:
            results |= {hour: refused(results[hour], raced(staging.table, hour)) for hour in hours}
            continue
        _replace(staging, partition)
        on_step("replaced")
        if late := _inserted_since(staging, partition, seen):
            lost |= {hour: _lost(staging, hour, partition, late) for hour in hours}
        confirm_partition(staging, partition)
    forget_patch(staging)
    return results, lost


def _rows_of(staging: Staging, partition: str, hours: Collection[datetime]) -> fingerprints.Fingerprints:
    """The fingerprints of the hours' rows in a partition."""
    source = f"(SELECT * FROM {net_rows(staging.table)} WHERE _partition_id = {literal(partition)})"
    return fingerprints.states(staging.warehouse, staging.table, hours, source=source)


def _written_anew(
    staging: Staging, partition: str, before: fingerprints.Fingerprints, on_step: OnStep
) -> tuple[Row, ...] | None:
    """Write the partition as it should be; what was known of its parts, or None when somebody keeps writing to it."""
    for _ in range(ROUNDS):
        seen = _parts(staging, partition)
        if _rows_of(staging, partition, before) != before:
            return None
        if _copy(staging, partition):
            on_step("rewritten")
            staging.lease.check()
            if _parts(staging, partition) == seen:
                return seen
    return None


def _copy(staging: Staging, partition: str) -> bool:
    """Write the rows of the partition that stay, and its states; whether they are what they should be."""
    warehouse, table, target = staging.warehouse, staging.table, staging.target
    columns, sign, identity = names(target.copied), sign_of(table), row_identity(table)
    here = f"_partition_id = {literal(partition)}"
    stays = f"{here} AND {identity} NOT IN (SELECT {identity} FROM {staging.delta} WHERE {here} AND {sign} = -1)"
    warehouse.empty(staging.rewritten, doing=f"emptying a staging table of {table}")
    warehouse.command(
        f"INSERT INTO {staging.rewritten} ({columns}) SELECT {columns} FROM ({target.stored(stays)}) "
        f"UNION ALL SELECT {columns} FROM {staging.delta} WHERE {here} AND {sign} = 1",
        settings={**_COPY_SETTINGS, **target.settings},
        query_id=staging.query_id(f"copy-{partition}"),
        doing=f"writing a partition of {table} anew",
    )
    merge_parts(staging, staging.rewritten_name)
    copied = fingerprints.partitions(warehouse, table, [partition], source=staging.rewritten)[partition]
    stored = fingerprints.partitions(warehouse, table, [partition])[partition]
    wanted: Fingerprint = stored + _change(staging, here)
    return copied == wanted


def _change(staging: Staging, here: str) -> Fingerprint:
    """The fingerprint of what the delta adds to a partition."""
    hours = staging.warehouse.rows(
        f"SELECT DISTINCT {hour_number(staging.table)} FROM {staging.delta} WHERE {here}",
        doing=f"reading the delta for {staging.table}",
    )
    source = f"(SELECT * FROM {staging.delta} WHERE {here})"
    change = fingerprints.net(staging.warehouse, staging.table, [hour_from(number) for (number,) in hours], source=source)
    return sum(change.values(), EMPTY)


def _replace(staging: Staging, partition: str) -> None:
    # Both statements name a staging table, so a fenced attempt fails here. REPLACE refuses a partition without rows.
    ((filled,),) = staging.warehouse.rows(f"SELECT count() > 0 FROM {staging.rewritten}", doing="looking for rows to publish")
    change = f"REPLACE PARTITION ID {literal(partition)} FROM {staging.rewritten}"
    if not filled:
        change = f"MOVE PARTITION ID {literal(partition)} TO TABLE {staging.rewritten}"
    staging.warehouse.command(
        f"ALTER TABLE {target_name(staging.table)} {change}",
        query_id=staging.query_id(f"replace-{partition}"),
        doing=f"publishing to {staging.table} (when the staging table is gone, a newer attempt has taken over)",
    )


def _parts(staging: Staging, partition: str) -> tuple[Row, ...]:
    """What changes when somebody writes to the partition; merges change none of it."""
    database, name = staging.table.stored_in
    parameters = {"database": database, "table": name, "id": partition}
    parts = staging.warehouse.rows(
        "SELECT max(max_block_number) FROM system.parts WHERE database = {database:String} AND table = {table:String} "
        "AND active AND partition_id = {id:String}",
        parameters=parameters,
        doing=f"looking for new parts of {staging.table}",
    )
    mutations = staging.warehouse.rows(
        "SELECT count() FROM system.mutations WHERE database = {database:String} AND table = {table:String}",
        parameters=parameters,
        doing=f"looking for mutations of {staging.table}",
    )
    return (*parts, *mutations)


def _inserted_since(staging: Staging, partition: str, seen: Collection[Row]) -> int:
    """How many rows of the replaced partition came after what was `seen` of it."""
    database, name = staging.table.stored_in
    ((newest,), *_) = seen
    ((rows,),) = staging.warehouse.rows(
        "SELECT sum(rows) FROM system.parts WHERE database = {database:String} AND table = {table:String} AND NOT active "
        "AND partition_id = {id:String} AND min_block_number > {newest:Int64} AND max_block_number < (SELECT "
        "min(min_block_number) FROM system.parts WHERE database = {database:String} AND table = {table:String} AND active "
        "AND partition_id = {id:String})",
        parameters={"database": database, "table": name, "id": partition, "newest": newest},
        doing=f"looking for rows that came while {staging.table} was published",
    )
    return int(rows)


def _lost(staging: Staging, hour: datetime, partition: str, rows: int) -> ProofFailed:
    return ProofFailed(
        f"{staging.table} {format_hour(hour)}: somebody inserted {rows} rows into partition {partition} in the instant in "
        "which it was replaced, and they are gone with it; the writer has to write them again. Repair when nobody writes it"
    )
