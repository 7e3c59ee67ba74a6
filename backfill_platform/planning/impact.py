"""Looking up in the lake what damaged raw events may have changed; the rules are in `domain.impact`.

Nothing is run or written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from backfill_platform.adapters.iceberg.lake import Lake, quarantine_of
from backfill_platform.domain.column_types import ColumnType
from backfill_platform.domain.hours import HOUR, HourRange, hour_of
from backfill_platform.domain.impact import Damage, Impact, Neighbourhood, may_start, trace_impact
from backfill_platform.domain.plan import Node
from backfill_platform.domain.tables import Table
from backfill_platform.domain.windows import UntilClosed
from backfill_platform.errors import UsageError
from backfill_platform.pipelines.spec import Pipeline

if TYPE_CHECKING:
    import pyarrow as pa


def find_impact(pipeline: Pipeline, lake: Lake, damage: Damage, now: datetime) -> Impact:
    """The hours of every table that the damage may have changed, as the lake tells. Only events outside it are believed.

    An hour that the interval touches and that has not landed is damaged as a whole. With tenants, each key must belong to one
    tenant. Raises UsageError when the pipeline has none of the hours, or no table has a tenant though one is named.
    """
    hours, raw = pipeline.hours_until(now), pipeline.raw
    pipeline.check_tenants(damage.tenants)
    touched = damage.hours.intersect(hours)
    if touched is None:
        raise UsageError(f"{pipeline.name} has the hours {hours}; the damage {damage} is not within them")
    landed = lake.built_hours(raw.table)
    damage = _whole_where_missing(damage, landed)
    land = {hour: "holds the interval" if hour in landed else "has not landed, or is lost" for hour in touched}
    for file in lake.files_between(raw.table, raw.event_time, damage.start, damage.end):
        land.setdefault(file.hour, "events of the interval arrived in it")

    def look(node: Node, ahead: UntilClosed, reached: HourRange) -> Neighbourhood:
        return Neighbourhood(
            _reaching(lake, node.table, ahead, reached, damage),
            _starting(pipeline, lake, node.table, ahead, damage),
            _untold(lake, node.table, reached, landed),
        )

    return trace_impact(pipeline.name, pipeline.nodes, hours, damage, land, look)


def _whole_where_missing(damage: Damage, landed: set[datetime]) -> Damage:
    first, last = damage.hours.start, damage.hours.end
    start = damage.start if first in landed else first
    end = damage.end if last - HOUR in landed else last
    return Damage(start, end, damage.tenants, damage.keys if (start, end) == (damage.start, damage.end) else None)


def _reaching(lake: Lake, table: Table, ahead: UntilClosed, reached: HourRange, damage: Damage) -> dict[datetime, int]:
    """Sessions that begin before the damage and come near it. One that was open when it was built may have gone on since."""
    near = f"({ahead.ended} > '{(damage.start - ahead.gap).isoformat()}' or is_open = true)"
    begun = f"{ahead.started} < '{damage.start.isoformat()}'"
    hours = f"{table.hour} >= '{reached.start.isoformat()}' and {table.hour} < '{reached.end.isoformat()}'"
    key = ahead.key if ahead.key in table.column_names else ""
    names = tuple(name for name in dict.fromkeys((table.hour, table.tenant, key)) if name)
    rows = _of_tenants(lake.read(table, names, f"{hours} and {begun} and {near}"), table, table.tenant, damage)
    rows = _of_keys(rows, key, damage)
    return dict(Counter(hour_of(hour) for hour in rows.column(table.hour).to_pylist()))


def _starting(pipeline: Pipeline, lake: Lake, table: Table, ahead: UntilClosed, damage: Damage) -> dict[datetime, int]:
    raw, time = pipeline.raw.table, pipeline.raw.event_time
    tenant = table.tenant if table.tenant in raw.column_names else ""

    def by_key(start: datetime, end: datetime, pick: str) -> dict[Hashable, datetime]:
        names = tuple(dict.fromkeys((ahead.key, time, *((tenant,) if tenant else ()))))
        bounds = f"{time} >= '{start.isoformat()}' and {time} < '{end.isoformat()}'"
        rows = _of_keys(_of_tenants(lake.read(raw, names, bounds), raw, tenant, damage), ahead.key, damage)
        # Grouped where the rows are: there may be millions of them, and far fewer keys.
        found = rows.group_by(ahead.key).aggregate([(time, pick)])
        return dict(zip(found.column(ahead.key).to_pylist(), found.column(f"{time}_{pick}").to_pylist(), strict=True))

    after = by_key(damage.end, damage.end + ahead.gap, "min")
    before = by_key(damage.start - ahead.gap, damage.start, "max") if after else {}
    return may_start(before, after, damage, ahead.gap)


def _untold(lake: Lake, table: Table, reached: HourRange, landed: set[datetime]) -> dict[datetime, str]:
    """Hours whose sessions may not all be in the table: those not built though they could be, and those with rejects."""
    built = lake.built_hours(table)
    rejects = lake.rows_by_hour(quarantine_of(table), reached)
    why = {hour: f"{rows} rows of it are in quarantine" for hour, rows in rejects.items()}
    return why | {hour: "not built, so nobody can tell" for hour in reached if hour not in built and hour in landed}


def _of_tenants(rows: pa.Table, table: Table, column: str, damage: Damage) -> pa.Table:
    if not damage.tenants or not column:
        return rows
    return rows.filter(pc.is_in(rows.column(column), value_set=_values(table, column, damage.tenants)))


def _of_keys(rows: pa.Table, column: str, damage: Damage) -> pa.Table:
    if damage.keys is None or not column:
        return rows
    import pyarrow as pa

    return rows.filter(pc.is_in(rows.column(column), value_set=pa.array(list(damage.keys), rows.column(column).type)))


def _values(table: Table, column: str, texts: tuple[str, ...]) -> pa.Array:
    import pyarrow as pa

    kinds: dict[object, pa.DataType] = {ColumnType.INT64: pa.int64(), ColumnType.INT32: pa.int32()}
    kind = kinds.get(table.column(column).type, pa.string())
    found: list[Any] = []
    for text in texts:
        try:
            found.append(text if kind == pa.string() else int(text))
        except ValueError:
            raise UsageError(f"'{text}' cannot be a tenant: the column {column} of {table} holds whole numbers") from None
    return pa.array(found, kind)
