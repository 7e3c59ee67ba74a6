"""What a repair takes when nobody names it: the assets of a range, and the raw hours around it that have not landed."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.domain.hours import HourRange, merge_hours
from backfill_platform.domain.plan import DRY_RUN, WAREHOUSE, Action, AssetPath, Plan, make_plan
from backfill_platform.errors import UsageError
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
    """The plans, after plans that land the raw hours which the windows of their builds need and nobody has landed.

    A dry run lands nothing. Hours that are not over at `now`, or that the pipeline does not have, are left out. One plan per
    contiguous range.
    """
    raw = pipeline.raw.table
    steps = [step for plan in plans for step in plan.steps]
    built = [step for step in steps if step.action is Action.BUILD and step.node.reads == raw and step.promote]
    needed = {one for step in built for hour in step.hours for one in step.node.window.needs(hour, pipeline.start)}
    there = lake.built_hours(raw) | {hour for step in steps if step.action is Action.LAND for hour in step.hours}
    missing = needed.intersection(pipeline.hours_until(now)) - there
    margins = (make_plan(pipeline.name, pipeline.nodes, span, [raw.path]) for span in merge_hours(missing))
    return (*margins, *plans)


def dry_run_assets(pipeline: Pipeline) -> tuple[AssetPath, ...]:
    """The dry runs of all published tables."""
    return tuple((DRY_RUN, table.name) for table in pipeline.published)


def named_assets(names: Iterable[str]) -> tuple[AssetPath, ...]:
    """Assets from texts such as `warehouse/sessions`. Raises UsageError for a text that names none."""
    found = []
    for name in names:
        prefix, slash, table = name.partition("/")
        if not (prefix and slash and table):
            raise UsageError(f"'{name}' names no asset; write it like transformed/sessions or {WAREHOUSE}/sessions")
        found.append((prefix, table))
    return tuple(found)
