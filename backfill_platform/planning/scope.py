"""What a repair takes when nobody names it: the assets of a range, and the raw hours around it that have not landed."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.domain.hours import HourRange, merge_hours
from backfill_platform.domain.plan import DRY_RUN, AssetPath, BuildHours, LandHours, LandMargin, Plan
from backfill_platform.pipelines.spec import Pipeline


def repair_assets(pipeline: Pipeline, lake: Lake, hours: HourRange) -> tuple[AssetPath, ...]:
    """The derived tables and their warehouse copies; and the raw table, where an hour of the range has not landed or is lost.

    Landed hours are left alone: they are closed, and everything else is computed from them.
    """
    assets = [asset for node in pipeline.nodes[1:] for asset in node.assets if asset[0] != DRY_RUN]
    raw = pipeline.raw.table
    if not set(hours) <= lake.built_hours(raw) or lake.gone(lake.files(raw, hours)):
        assets.insert(0, pipeline.raw.table.path)
    return tuple(assets)


def with_margins(plans: Sequence[Plan], pipeline: Pipeline, lake: Lake, now: datetime) -> tuple[Plan, ...]:
    """The plans, each with first steps that land the raw hours which the windows of its builds need and nobody has landed.

    A dry run lands nothing. Hours that are not over at `now`, or that the pipeline does not have, are left out. The plans are
    walked in this order: what an earlier one lands, a later one has.
    """
    raw = pipeline.nodes[0]
    there = lake.built_hours(raw.table)
    found = []
    for plan in plans:
        there |= {hour for step in plan.steps if isinstance(step, LandHours) for hour in step.hours}
        reads = [
            (window, hour)
            for step in plan.steps
            if isinstance(step, BuildHours)
            for window in step.node.windows_on(raw.table)
            for hour in step.hours
        ]
        needed = {one for window, hour in reads for one in window.needs(hour, pipeline.start)}
        missing = needed.intersection(pipeline.hours_until(now)) - there
        there |= missing
        margins = tuple(LandMargin(raw, span) for span in merge_hours(missing))
        found.append(replace(plan, steps=(*margins, *plan.steps)))
    return tuple(found)


def dry_run_assets(pipeline: Pipeline) -> tuple[AssetPath, ...]:
    """The dry runs of all published tables."""
    return tuple((DRY_RUN, table.name) for table in pipeline.published)
