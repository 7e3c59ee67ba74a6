"""The plans of a repair: one place that makes them, for `plan` to explain and for `run` and `dry-run` to walk."""

from dataclasses import dataclass
from datetime import datetime

from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.impact import Damage, Impact
from backfill_platform.domain.plan import AssetPath, Landing, Plan, make_plan
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.planning.impact import find_impact
from backfill_platform.planning.scope import dry_run_assets, repair_assets, with_margins


@dataclass(frozen=True)
class Scope:
    """What to repair: the hours `[start, end)`, or all hours that damaged events may have changed; `assets` limits it."""

    hours: HourRange
    damage: Damage | None = None
    assets: tuple[AssetPath, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True)
class RepairPlans:
    """One plan per contiguous range of hours, in the order of their runs, and the impact of the damage if there is any."""

    plans: tuple[Plan, ...]
    impact: Impact | None = None


def plan_repair(pipeline: Pipeline, lake: Lake, scope: Scope, now: datetime) -> RepairPlans:
    """What a repair of the scope does. Nothing is written.

    Without assets it is all that the hours need, with the raw hours of their margins; who names assets gets these and nothing
    else. Hours that have landed are closed: they are landed again only when they are damaged, or the raw table is named.
    Raises UsageError for assets that the pipeline does not have.
    """
    make_plan(pipeline.name, pipeline.nodes, scope.hours, scope.assets)  # refuses assets that are not there
    impact = None if scope.damage is None else find_impact(pipeline, lake, scope.damage, now)
    landing = Landing.MISSING if impact is None and not scope.assets else Landing.SAFE
    if impact is not None:
        plans = impact.plans(scope.assets, dry_run=scope.dry_run, landing=landing)
    else:
        named = scope.assets or (dry_run_assets(pipeline) if scope.dry_run else repair_assets(pipeline, lake, scope.hours))
        plans = (make_plan(pipeline.name, pipeline.nodes, scope.hours, named, landing),)
    if not scope.assets and not scope.dry_run:
        plans = with_margins(plans, pipeline, lake, now)
    return RepairPlans(plans, impact)
