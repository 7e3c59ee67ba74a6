"""The live path: hour by hour as events arrive, with the same plans and the same transforms as a repair.

An ingestion hour that has just landed is taken for damage: its events were missing before. The blast radius of their event
times is what has to be built, so that late events, sessions that go on and windows that look ahead need no rules of their own.
"""

from dataclasses import replace
from datetime import datetime

import pyarrow.compute as pc

from backfill_platform.core.blast import Affected, Damage
from backfill_platform.core.hours import HOUR, hour_after, hour_of
from backfill_platform.core.plan import DRY_RUN, Plan
from backfill_platform.core.windows import stretches
from backfill_platform.lake.tables import Lake
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.blast import find_blast_radius


def next_hour(pipeline: Pipeline, lake: Lake, start: datetime | None, now: datetime) -> datetime | None:
    """The first ingestion hour from `start` on that has not landed and is over; None where there is none yet.

    Without a start it follows the newest landed hour, or begins with the pipeline.
    """
    landed = lake.built_hours(pipeline.raw.table)
    begin = start or (max(landed) + HOUR if landed else pipeline.start)
    ended = (hour for hour in pipeline.hours_until(now) if hour + HOUR <= now)
    return next((hour for hour in ended if hour >= begin and hour not in landed), None)


def plans_after(pipeline: Pipeline, lake: Lake, hour: datetime, now: datetime) -> tuple[Plan, ...]:
    """The plans that bring lake and warehouse up to date after an ingestion hour has landed: sources first.

    They do everything that its events change, and build the hours that were waiting for it. Hours whose windows have not landed
    are left for later. Doing them again changes nothing.
    """
    raw = pipeline.raw
    times = lake.read(raw.table, (raw.event_time,), f"{raw.table.hour} = '{hour.isoformat()}'").column(raw.event_time)
    landed = lake.built_hours(raw.table)
    bounds = pc.min_max(times).as_py()
    start = min(hour, hour_of(bounds["min"])) if bounds["min"] else hour
    # An event from the future is used when its own hour lands.
    end = min(max(hour + HOUR, hour_after(bounds["max"])), max(landed) + HOUR) if bounds["max"] else hour + HOUR
    radius = find_blast_radius(pipeline, lake, Damage(max(start, pipeline.start), end), now)
    there = {raw.table.path: landed} | {table.path: lake.built_hours(table) for table in pipeline.tables if table != raw.table}
    tables = []
    for affected in radius.tables:
        node, why = affected.node, dict(affected.why)
        if node.reads is None:
            tables.append(Affected(node, {}))
            continue
        _, lacking = stretches(affected.hours, there[node.reads.path], node.window, pipeline.start, pipeline.end)
        kept = {one: reason for one, reason in why.items() if one not in lacking}
        there[node.table.path] |= set(kept)
        tables.append(Affected(node, kept))
    chosen = [asset for node in pipeline.nodes[1:] for asset in node.assets if asset[0] != DRY_RUN]
    return replace(radius, tables=tuple(tables)).plans(chosen)
