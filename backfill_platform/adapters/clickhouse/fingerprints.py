"""Fingerprints of hours: of the stored rows, of the desired rows, and of the delta between them.

All use the same hash over the declared columns in their order, on values of the target's types, so they may be compared and
added. Hours without rows are absent from the SQL result and EMPTY in ours.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from backfill_platform.adapters.clickhouse.client import Settings, Warehouse
from backfill_platform.adapters.clickhouse.sql import (
    Condition,
    file_settings,
    files_source,
    hour_from,
    hour_number,
    identifier,
    net_rows,
    of_tenants,
    row_hash,
    seen,
    sign_of,
    signed,
    within,
)
from backfill_platform.adapters.clickhouse.target import Target
from backfill_platform.domain.fingerprint import EMPTY, Fingerprint
from backfill_platform.domain.tables import Table

Fingerprints = dict[datetime, Fingerprint]


def net(
    warehouse: Warehouse,
    table: Table,
    hours: Collection[datetime],
    *,
    source: str | None = None,
    but: Collection[str] = (),
) -> Fingerprints:
    """Fingerprints of the net state: all stored rows with their signs, so that a cancel removes its state, merged or not.

    Where the target has no signs, its net state is what its readers see. `source` is another quoted table with the declared
    columns and a sign, such as a delta; the target by default. Rows of the tenants in `but` do not count.
    """
    sign = f"toInt64({sign_of(table)})" if source else signed(table)
    return _fingerprints(warehouse, table, hours, source or net_rows(table), sign, "the net state", but=but)


def final(warehouse: Warehouse, table: Table, hours: Collection[datetime], target: Target | None = None) -> Fingerprints:
    """Fingerprints of what a reader with FINAL sees in the target. They differ from `net` where the hour is inconsistent.

    `target` describes the table; without it, the table counts as one without versions.
    """
    if not hours:
        return {}
    source = f"({(target or Target(table)).stored(within(table, hours).sql)})"
    return _fingerprints(warehouse, table, hours, source, "toInt64(1)", "FINAL")


def states(warehouse: Warehouse, table: Table, hours: Collection[datetime], *, source: str) -> Fingerprints:
    """Fingerprints of a quoted table of rows without a sign, such as the desired rows."""
    return _fingerprints(warehouse, table, hours, source, "toInt64(1)", "the desired rows")


def files(warehouse: Warehouse, table: Table, hours: Collection[datetime], paths: Sequence[str]) -> Fingerprints:
    """Fingerprints of the lake's Parquet files, cast as `Staging.load_files` casts them. Rows of other hours do not count.

    Raises PreconditionError for paths that cannot be read literally, WarehouseError for a value that does not fit.
    """
    if not paths:
        return dict.fromkeys(hours, EMPTY)
    source = f"({files_source(table, paths)})"
    return _fingerprints(warehouse, table, hours, source, "toInt64(1)", "the lake's files", settings=file_settings(table))


def by_tenant(
    warehouse: Warehouse,
    table: Table,
    hours: Collection[datetime],
    *,
    final: bool = False,
    source: str = "",
    settings: Settings | None = None,
) -> dict[datetime, dict[str, Fingerprint]]:
    """Fingerprints for each hour and tenant with rows: of the net state, of FINAL, or of a `source` of rows without a sign."""
    where = within(table, hours)
    sign = "toInt64(1)" if final or source else signed(table)
    stored = seen(table) if final else net_rows(table)
    rows = warehouse.rows(
        f"SELECT {hour_number(table)} AS __hour, toString({identifier(table.tenant)}) AS __tenant, {_sums(table, sign)} "
        f"FROM {source or stored} WHERE {where.sql} GROUP BY __hour, __tenant",
        parameters=where.parameters,
        settings=settings,
        doing=f"taking the fingerprints of the tenants of {table}",
    )
    fingerprints: dict[datetime, dict[str, Fingerprint]] = {}
    for number, tenant, count, hash_ in rows:
        fingerprints.setdefault(hour_from(number), {})[tenant] = Fingerprint(count, hash_)
    return fingerprints


def partitions(warehouse: Warehouse, table: Table, ids: Sequence[str], *, source: str = "") -> dict[str, Fingerprint]:
    """Fingerprints of the net state of whole partitions of the target, or of a copy in `source`, with all their hours."""
    rows = warehouse.rows(
        f"SELECT _partition_id AS __id, {_sums(table, signed(table))} FROM {source or net_rows(table)} "
        "WHERE _partition_id IN {ids:Array(String)} GROUP BY __id",
        parameters={"ids": ids},
        doing=f"taking the fingerprints of partitions of {table}",
    )
    fingerprints = {name: Fingerprint(count, hash_) for name, count, hash_ in rows}
    return {partition: fingerprints.get(partition, EMPTY) for partition in ids}


def _sums(table: Table, sign: str) -> str:
    """Sums of signs and of signed hashes. Int64 wraps around, so sums do not depend on order and can be added."""
    return f"sum({sign}), sum({sign} * reinterpretAsInt64({row_hash(table)}))"


def _fingerprints(
    warehouse: Warehouse,
    table: Table,
    hours: Collection[datetime],
    source: str,
    sign: str,
    of: str,
    settings: Settings | None = None,
    but: Collection[str] = (),
) -> Fingerprints:
    if not hours:
        return {}
    where = within(table, hours)
    if but:
        whose = of_tenants(table, but)
        where = Condition(f"{where.sql} AND NOT {whose.sql}", where.parameters | whose.parameters)
    sql = f"SELECT {hour_number(table)} AS __hour, {_sums(table, sign)} FROM {source} WHERE {where.sql} GROUP BY __hour"
    rows = warehouse.rows(
        sql,
        parameters=where.parameters,
        settings=settings,
        doing=f"taking the fingerprints of {of} of {table}",
    )
    fingerprints = {hour_from(number): Fingerprint(count, hash_) for number, count, hash_ in rows}
    return {hour: fingerprints.get(hour, EMPTY) for hour in sorted(set(hours))}
