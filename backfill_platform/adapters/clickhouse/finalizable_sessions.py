"""Sessions that were published as open and could be closed now, because more hours have landed."""

from collections.abc import Collection
from datetime import datetime, timedelta

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.sql import hour_from, hour_number, identifier, seen, within
from backfill_platform.domain.tables import Table


def finalizable_sessions(
    warehouse: Warehouse,
    table: Table,
    hours: Collection[datetime],
    *,
    ended: str,
    gap: timedelta,
    cap: timedelta,
    available_until: datetime,
) -> dict[datetime, int]:
    """How many rows of each hour say `is_open` although a gap after their end lies before `available_until` and their cap.

    `available_until` is the end of what has landed after these hours. Built again, such a session is closed or longer.
    """
    if not hours:
        return {}
    where, hour = within(table, hours), hour_number(table)
    until = f"least(toInt64({{available_until:Int64}}), (toInt64({hour}) + 3600 + {{cap:Int64}}) * 1000000)"
    rows = warehouse.rows(
        f"SELECT {hour} AS __hour, count() FROM {seen(table)} WHERE {where.sql} AND is_open "
        f"AND toUnixTimestamp64Micro(toDateTime64({identifier(ended)}, 6, 'UTC')) + {{gap:Int64}} <= {until} GROUP BY __hour",
        parameters={
            **where.parameters,
            "available_until": int(available_until.timestamp()) * 1_000_000,
            "cap": int(cap.total_seconds()),
            "gap": int(gap.total_seconds() * 1_000_000),
        },
        doing=f"looking for outdated rows of {table}",
    )
    return {hour_from(number): count for number, count in rows}
