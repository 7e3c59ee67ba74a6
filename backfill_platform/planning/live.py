"""The live path: hour by hour as events arrive, with the same plans and the same transforms as a repair.

An ingestion hour that has just landed is taken for damage: its events were missing before. The impact of their event
times is what has to be built, so that late events, sessions that go on and windows that look ahead need no rules of their own.
"""

from dataclasses import replace
from datetime import datetime, timedelta

import pyarrow.compute as pc

from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.domain.hours import HOUR, HourRange, hour_of, merge_hours
from backfill_platform.domain.impact import Affected, Damage
from backfill_platform.domain.plan import DRY_RUN, Plan
from backfill_platform.domain.windows import UntilClosed, first_missing
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.planning.impact import find_impact


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
    raw, landed = pipeline.raw.table, lake.built_hours(pipeline.raw.table)
    # An event from the future is used when its own hour lands.
    changed = {one for one in _event_hours(pipeline, lake, hour) if pipeline.start <= one <= max(landed)} | {hour}
    impacts = [find_impact(pipeline, lake, Damage(one.start, one.end), now) for one in apart(pipeline, changed)]
    there = {table.path: landed if table == raw else lake.built_hours(table) for table in pipeline.tables}
    tables = []
    for node in pipeline.nodes:
        why: dict[datetime, str] = {}
        if node.reads is not None:
            for impact in impacts:
                why |= next(dict(one.why) for one in impact.tables if one.node == node)
            for source in node.inputs:
                if source.table.path not in there:
                    there[source.table.path] = lake.built_hours(source.table)
                bounds = source.bounds(pipeline.start, pipeline.end)
                waiting = first_missing(why, there[source.table.path], source.window, *bounds)
                why = {one: reason for one, reason in why.items() if one not in waiting}
            there[node.table.path] |= set(why)
        tables.append(Affected(node, why))
    chosen = [asset for node in pipeline.nodes[1:] for asset in node.assets if asset[0] != DRY_RUN]
    return replace(impacts[0], tables=tuple(tables)).plans(chosen)


def _event_hours(pipeline: Pipeline, lake: Lake, hour: datetime) -> set[datetime]:
    raw, time = pipeline.raw.table, pipeline.raw.event_time
    rows = lake.read(raw, (time,), f"{raw.hour} = '{hour.isoformat()}'")
    return {hour_of(moment) for moment in pc.unique(pc.floor_temporal(rows.column(time), unit="hour")).to_pylist()}


def apart(pipeline: Pipeline, hours: set[datetime]) -> list[HourRange]:
    """The hours as ranges so far apart that what one changes does not depend on what changes in another.

    Then the radii add up: a session that both reach begins in an hour that the earlier one names. One event that is a month
    late does not have the month built again.
    """
    windows = [one.window.lookahead for node in pipeline.nodes for one in node.inputs]
    gap = max((one.gap for one in windows if isinstance(one, UntilClosed)), default=timedelta(0))
    found: list[HourRange] = []
    for span in merge_hours(hours):
        if found and span.start - found[-1].end < gap:
            found[-1] = HourRange(found[-1].start, span.end)
        else:
            found.append(span)
    return found
