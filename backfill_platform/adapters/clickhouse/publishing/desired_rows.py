"""Whether the desired rows of an attempt can be published: they lie in its hours, and each has a key of its own."""

from collections.abc import Collection
from datetime import datetime

from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.sql import hour_from, hour_number, hour_of, hour_start, names, sorting_key, within
from backfill_platform.domain.hours import format_hour
from backfill_platform.errors import CheckFailed


def validate(staging: Staging, hours: Collection[datetime]) -> dict[datetime, CheckFailed]:
    """The hours whose desired rows cannot be published, because two of them have the same key.

    Raises CheckFailed when rows lie outside the hours or not on the full hour: then the whole load is wrong.
    """
    table = staging.table
    hour, where = hour_of(table), within(table, hours)
    # A table without the hour has the time that it is computed from.
    off = "0" if table.target.hour else f"countIf({hour} != {hour_start(table)})"
    ((outside, beside, first, last),) = staging.warehouse.rows(
        f"SELECT countIf(NOT {where.sql}), {off}, toString(min({hour})), toString(max({hour})) FROM {staging.desired}",
        parameters=where.parameters,
        doing=f"checking the hours of the desired rows of {table}",
    )
    if outside or beside:
        problem = (
            f"{outside} desired rows lie outside the hours of the repair"
            if outside
            else f"the hour of {beside} desired rows is not on the full hour"
        )
        raise CheckFailed(
            f"{table}: {problem} (the column {table.hour} runs from {first} to {last}); nothing was published. "
            "Rows must be owned by the hours that are repaired"
        )
    keys = names(sorting_key(table))
    suspects = staging.warehouse.rows(
        f"SELECT {hour_number(table)} AS __hour FROM {staging.desired} "
        f"GROUP BY __hour HAVING count() != uniqExact(cityHash64(tuple({keys})))",
        doing=f"looking for repeated keys in the desired rows of {table}",
    )
    if not suspects:
        return {}
    suspected = within(table, [hour_from(number) for (number,) in suspects])
    repeated = staging.warehouse.rows(
        f"SELECT {hour_number(table)} AS __hour, sum(__rows - 1) FROM (SELECT {keys}, count() AS __rows "
        f"FROM {staging.desired} WHERE {suspected.sql} GROUP BY {keys} HAVING __rows > 1) GROUP BY __hour",
        parameters=suspected.parameters,
        settings={"optimize_aggregation_in_order": 1},  # rows are sorted by the key: memory does not grow with them
        doing=f"counting repeated keys in the desired rows of {table}",
    )
    return {
        hour_from(number): CheckFailed(
            f"{table} {format_hour(hour_from(number))}: {rows} desired rows repeat a key "
            f"({', '.join(sorting_key(table))}); the transform must give one row for each key"
        )
        for number, rows in repeated
    }
