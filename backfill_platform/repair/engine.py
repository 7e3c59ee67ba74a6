"""Walking a plan: every step over every hour it may touch, telling the outcome of each.

An hour that fails a step is named and left as it was; later steps skip what depends on that hour and go on with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from backfill_platform.core.contract import ANYTHING, Contract
from backfill_platform.core.hours import format_hour
from backfill_platform.core.plan import Action, AssetPath, Plan, Step
from backfill_platform.core.windows import NO_MARGIN
from backfill_platform.lake.tables import MAIN, Lake, quarantine_of
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.audit import HourAudit, promote
from backfill_platform.repair.build import build
from backfill_platform.repair.land import land
from backfill_platform.repair.outcomes import Event, Fact, HourOutcome, StepFinished, StepStarted
from backfill_platform.repair.publish import publish_step
from backfill_platform.warehouse.client import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Context:
    """What a repair works with and on whose behalf. Spark and the warehouse are opened when a step first needs them."""

    pipeline: Pipeline
    lake: Lake
    spark: Callable[[], SparkSession]
    warehouse: Callable[[], Warehouse]
    clock: Callable[[], datetime]
    repair_id: str
    reason: str
    requester: str
    code_version: str
    contract: Contract = ANYTHING
    patch_days: int = 30


def run(plan: Plan, context: Context) -> Iterator[Event]:
    """Walk the plan and yield what happens. Running it again, after whatever end, completes what is missing.

    Raises BackfillError for what makes every hour of a step impossible, such as a warehouse that does not answer.
    """
    lake, pipeline = context.lake, context.pipeline
    failed: dict[AssetPath, dict[datetime, str]] = {}
    for table in pipeline.tables:
        for kept in (table, quarantine_of(table)):
            lake.ensure(kept)
    try:
        for number, step in enumerate(plan.steps, 1):
            yield StepStarted(step, number, len(plan.steps))
            waiting = _waiting(step, failed)
            hours = [hour for hour in step.hours if hour not in waiting]
            outcomes, facts = _walk(step, hours, context) if hours else ([], {})
            outcomes += [HourOutcome(step.asset, hour, error) for hour, error in sorted(waiting.items())]
            failed[step.asset] = {outcome.hour: outcome.error for outcome in outcomes if outcome.error}
            yield from outcomes
            yield StepFinished(step, facts, outcomes)
    finally:
        for step in plan.steps:
            if step.action in (Action.LAND, Action.BUILD) and not step.promote:
                for table in (step.node.table, quarantine_of(step.node.table)):
                    lake.discard(table, context.repair_id, context.repair_id)


def _waiting(step: Step, failed: Mapping[AssetPath, Mapping[datetime, str]]) -> dict[datetime, str]:
    """The hours of the step whose input failed in this repair, with the reason."""
    node = step.node
    if step.action in (Action.DRY_RUN, Action.PUBLISH):
        upstream, window = node.table.path, NO_MARGIN
    elif node.reads is not None:
        upstream, window = node.reads.path, node.window
    else:
        return {}
    waiting: dict[datetime, str] = {}
    for damaged, error in failed.get(upstream, {}).items():
        for hour in step.hours:
            if window.touches(hour, damaged):
                waiting.setdefault(hour, f"waits for {'/'.join(upstream)} of {format_hour(damaged)}: {error}")
    return waiting


def _walk(step: Step, hours: list[datetime], context: Context) -> tuple[list[HourOutcome], Mapping[str, Fact]]:
    if step.action is Action.LAND:
        landed = land(context.spark(), context.lake, context.pipeline, step.hours, context.repair_id)
        return _lake_outcomes(step, landed, context), {}
    if step.action is Action.BUILD:
        built = build(context.spark(), context.lake, context.pipeline, step, hours, context.repair_id)
        return _lake_outcomes(step, built.hours, context), built.facts
    branch = context.repair_id if step.from_branch else MAIN
    files = context.lake.files(step.node.table, hours, branch=branch)
    return publish_step(step, hours, files, context)


def _lake_outcomes(step: Step, audits: Mapping[datetime, HourAudit], context: Context) -> list[HourOutcome]:
    table = step.node.table
    sound = [hour for hour, audit in audits.items() if not audit.error]
    if step.promote:
        promote(context.lake, table, sound, context.repair_id)
    rules = context.pipeline.rules(table.name)
    outcomes = []
    for hour, audit in sorted(audits.items()):
        facts: dict[str, Fact] = {
            "dagster/row_count": audit.written,
            "rows": audit.written,
            "quarantined": audit.quarantined,
            **audit.measures,
        }
        outcomes.append(HourOutcome(step.asset, hour, audit.error, facts, audit.checks(rules)))
    return outcomes
