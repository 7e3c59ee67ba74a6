"""Versions of rows: the one that comes next, and hours in which none can, or in which a stored one outranks the lake's."""

from collections.abc import Collection
from datetime import datetime

from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.sql import (
    hour_from,
    hour_number,
    identifier,
    key_text,
    literal,
    sign_of,
    target_name,
    within,
)
from backfill_platform.adapters.clickhouse.target import Target
from backfill_platform.domain.hours import format_hour
from backfill_platform.errors import PreconditionError


def next_version(target: Target, latest: str) -> str:
    """SQL for the version that comes after `latest`, which is not the highest one; a time is not before now.

    A time in the future would outrank what others write with theirs.
    """
    kind = target.version_type
    if "Int" in kind:
        return f"accurateCast(toInt128({latest}) + 1, {literal(kind)})"
    if not kind.startswith("DateTime64"):
        return f"greatest({latest} + 1, CAST(now(), {literal(kind)}))"
    ticks = {"3": "Milli", "6": "Micro", "9": "Nano"}[kind[len("DateTime64(")]]
    later = f"toUnixTimestamp64{ticks}({latest}) + 1"
    now = f"toUnixTimestamp64{ticks}(now64({kind[len('DateTime64(')]}))"
    return f"CAST(fromUnixTimestamp64{ticks}(greatest({later}, {now})), {literal(kind)})"


def outdated(staging: Staging, hours: Collection[datetime]) -> dict[datetime, PreconditionError]:
    """The hours of which a row is stored with a later version than the desired one has, with the refusal.

    Readers with FINAL would go on seeing the stored one. It matters where the lake has the version, and newer rows are added.
    """
    table, version = staging.table, identifier(staging.target.declared_version or "")
    where, place = within(table, hours), f"cityHash64(tuple({staging.target.order}))"
    latest = (
        f"SELECT {place} AS __place, max({version}) AS __latest FROM {target_name(table)} WHERE {where.sql} GROUP BY __place"
    )
    wanted = f"SELECT *, {place} AS __place FROM {staging.delta} WHERE {sign_of(table)} = 1"
    rows = staging.warehouse.rows(
        f"SELECT {hour_number(table)} AS __hour, count(), min({key_text(table)}) FROM ({wanted}) AS __delta "
        f"INNER JOIN ({latest}) AS __stored USING (__place) WHERE {version} < __latest GROUP BY __hour",
        parameters=where.parameters,
        doing=f"comparing versions of {table}",
    )
    return {
        hour_from(number): PreconditionError(
            f"{table} {format_hour(hour_from(number))}: {count} rows, such as {example}, are or were stored with a later "
            f"{staging.target.declared_version} than they should have, and readers with FINAL would go on seeing that; nothing "
            "was published for this hour. Land the later version, or delete the stored rows"
        )
        for number, count, example in rows
    }


def exhausted(staging: Staging, hours: Collection[datetime]) -> dict[datetime, PreconditionError]:
    """The hours of a versioned target that hold the highest version of its type, with the refusal: no version comes next."""
    table, version = staging.table, identifier(staging.target.version or "")
    where, kind = within(table, hours), staging.target.version_type
    if kind.startswith("DateTime64"):  # its last one is centuries away
        return {}
    bits, signed = int(kind.partition("Int")[2] or 32), kind.startswith("Int")
    rows = staging.warehouse.rows(
        f"SELECT {hour_number(table)} AS __hour FROM {target_name(table)} WHERE {where.sql} GROUP BY __hour "
        f"HAVING toInt128(max({version})) = {2 ** (bits - signed) - 1}",
        parameters=where.parameters,
        doing=f"looking for the last version of {table}",
    )
    return {
        hour_from(number): PreconditionError(
            f"{table} {format_hour(hour_from(number))}: a row has the highest {kind} as its version, so "
            "no state can come after it; write that row again with a lower version"
        )
        for (number,) in rows
    }
