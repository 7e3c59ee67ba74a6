"""Evaluating every check of every table over hours that are there, without building or publishing anything.

The rules of a schema are judged on the rows that the lake has; what a repair would be checked for before it publishes is judged
by a dry run of the lake's rows against the warehouse; the rest is what the detector finds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.iceberg.lake import quarantine_of
from backfill_platform.adapters.spark.checks import ROWS_VALID, mark_failures
from backfill_platform.adapters.spark.reader import stored_rows
from backfill_platform.adapters.spark.split_rejects import RejectSplit
from backfill_platform.detection.survey import TableState, survey
from backfill_platform.domain.gaps import Gap
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.plan import DRY_RUN, WAREHOUSE, AssetPath, CompareHours, Node, Plan
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.job import RepairJob
from backfill_platform.repair.outcomes import NO_GAP, NO_PENDING_APPROVAL, CheckResult, HourOutcome
from backfill_platform.repair.publish import MATCHES_LAKE
from backfill_platform.repair.runner import run_plan
from backfill_platform.repair.wiring import Services, repair_services
from backfill_platform.repair.write_audit_promote import HourAudit, judge
from backfill_platform.topics.delivery_counts import DELIVERY_COUNTS, newest_delivery_counts

if TYPE_CHECKING:
    from collections.abc import Mapping


class Verdict(StrEnum):
    """How a check of an hour ended."""

    PASSED = "passed"
    WARNED = "warned"  # failed, and holds nothing back
    FAILED = "failed"
    SKIPPED = "skipped"  # there is no hour to check; `no_gap` says why


@dataclass(frozen=True)
class Checked:
    """One check of one asset over the range: the verdict of each hour, with what there is to say about it."""

    asset: AssetPath
    check: str
    hours: Mapping[datetime, tuple[Verdict, str]] = field(default_factory=dict)

    def count(self, verdict: Verdict) -> int:
        """How many hours ended so."""
        return sum(found is verdict for found, _ in self.hours.values())


def check_pipeline(job: RepairJob, services: Services, hours: HourRange) -> Iterator[Checked]:
    """Evaluate all checks of the pipeline over the half-open range; table by table in the order of the flow.

    Nothing is written but the ledger's note of the dry runs. Raises BackfillError where nothing can be looked at.
    """
    pipeline, warehouse = job.pipeline, services.warehouse()
    surveyed = survey(
        pipeline, hours, services.lake, warehouse, services.publishing.loading, now=job.clock(), connect=services.connect
    )
    gaps = {(gap.table, gap.hour): gap for gap in surveyed.gaps}
    rehearsed = _rehearse(job, services, hours, {state.table.path: state for state in surveyed.tables})
    yield from _replays(pipeline, Ledger(warehouse), hours)
    for node, state in zip(pipeline.nodes, surveyed.tables, strict=True):
        there = [hour for hour in hours if hour in state.built]
        yield from _rules(pipeline, services, node, hours, there)
        yield _gaps(node.table.path, hours, gaps)
        if node.published:
            name = node.table.name
            yield from _collect((DRY_RUN, name), hours, rehearsed.get((DRY_RUN, name), []))
            yield _matches(state, hours)
            yield _waits((WAREHOUSE, name), hours, rehearsed.get((DRY_RUN, name), []))
            yield _gaps((WAREHOUSE, name), hours, gaps)


def _replays(pipeline: Pipeline, ledger: Ledger, hours: HourRange) -> Iterator[Checked]:
    """Whether the hours that were replayed have the same counts at all their points; nothing where none was."""
    if counts := newest_delivery_counts(ledger, pipeline.name, list(hours)):
        verdicts = dict.fromkeys(hours, (Verdict.SKIPPED, "the hour was not replayed"))
        for hour, one in counts.items():
            verdicts[hour] = (Verdict.PASSED if one.agree else Verdict.FAILED, f"{one.replay}: {one}")
        yield Checked(pipeline.raw.table.path, DELIVERY_COUNTS, verdicts)


def _rules(pipeline: Pipeline, services: Services, node: Node, hours: HourRange, there: list[datetime]) -> Iterator[Checked]:
    """The rules of the table on its rows, and whether its rows are as many as its metadata says."""
    table, rules, lake = node.table, pipeline.rules(node.table.name), services.lake
    audits: dict[datetime, HourAudit] = {}
    files = lake.files(table, there)
    gone = lake.gone(files)
    lost = {file.hour for file in files if file.uri in gone}
    there = [hour for hour in there if hour not in lost]
    if files := [file for file in files if file.hour not in lost]:
        rows = stored_rows(services.spark(), table, [file.uri for file in files])
        marked = mark_failures(rows, rules)
        with RejectSplit(marked, table.hour, F.to_json(F.struct(*table.column_names))) as split:
            audits = judge(split, split.good, table, rules, {})
    rejects = lake.rows_by_hour(quarantine_of(table), hours)
    written = lake.rows_by_hour(table, hours)
    outcomes = []
    for hour in there:
        audit = audits.get(hour, HourAudit())
        set_aside = rejects.get(hour, 0)
        full = replace(audit, computed=audit.computed + set_aside, written=written.get(hour, 0), quarantined=set_aside)
        checks = [_honest(one, audit) for one in full.checks(rules)]
        outcomes.append(HourOutcome(table.path, hour, checks=tuple(checks)))
    names = [one.name for one in HourAudit().checks(rules)]
    yield from _collect(table.path, hours, outcomes, names)


def _honest(one: CheckResult, audit: HourAudit) -> CheckResult:
    """Rows that are in the table and meet its rules no longer are a failure of their own: nobody has set them aside."""
    if one.name != ROWS_VALID or not audit.failures:
        return one
    found = ", ".join(f"{name} ({rows} rows)" for name, rows in audit.failures.items())
    return replace(one, passed=False, blocking=True, description=f"rows of the table fail {found}")


def _rehearse(
    job: RepairJob, services: Services, hours: HourRange, states: Mapping[AssetPath, TableState]
) -> dict[AssetPath, list[HourOutcome]]:
    """Compare the rows that the lake has with the warehouse; publish nothing."""
    steps = tuple(
        CompareHours(node, hours)
        for node in job.pipeline.nodes
        if node.published and states[node.table.path].built.intersection(hours)
    )
    found: dict[AssetPath, list[HourOutcome]] = {}
    if steps:
        for event in run_plan(Plan(job.pipeline.name, hours, steps), job, repair_services(job, services)):
            if isinstance(event, HourOutcome) and event.hour in states[_source_of(event, steps)].built:
                found.setdefault(event.asset, []).append(event)
    return found


def _source_of(event: HourOutcome, steps: tuple[CompareHours, ...]) -> AssetPath:
    """The lake table that a dry run has compared."""
    return next(step.node.table.path for step in steps if step.asset == event.asset)


def _collect(
    asset: AssetPath, hours: HourRange, outcomes: list[HourOutcome], names: list[str] | None = None
) -> Iterator[Checked]:
    by_hour = {outcome.hour: {one.name: one for one in outcome.checks} for outcome in outcomes}
    every = names or list(dict.fromkeys(name for checks in by_hour.values() for name in checks))
    for name in every:
        verdicts = {}
        for hour in hours:
            one = by_hour.get(hour, {}).get(name)
            verdicts[hour] = (Verdict.SKIPPED, "the hour is not there") if one is None else _verdict(one)
        yield Checked(asset, name, verdicts)


def _verdict(one: CheckResult) -> tuple[Verdict, str]:
    facts = ", ".join(f"{name}: {value}" for name, value in one.facts.items())
    text = "; ".join(filter(None, (one.description, facts)))
    if one.passed:
        return Verdict.PASSED, text
    return (Verdict.FAILED if one.blocking else Verdict.WARNED), text


def _matches(state: TableState, hours: HourRange) -> Checked:
    verdicts = {}
    for hour in hours:
        prints = f"lake {state.lake[hour]}, net state {state.net[hour]}, FINAL {state.final[hour]}"
        equal = state.lake[hour] == state.net[hour] == state.final[hour]
        if hour not in state.built:
            verdicts[hour] = (Verdict.SKIPPED, "the lake does not have the hour")
        else:
            verdicts[hour] = (Verdict.PASSED if equal else Verdict.FAILED, prints)
    return Checked((WAREHOUSE, state.table.name), MATCHES_LAKE, verdicts)


def _waits(asset: AssetPath, hours: HourRange, outcomes: list[HourOutcome]) -> Checked:
    verdicts = dict.fromkeys(hours, (Verdict.SKIPPED, "the hour is not there"))
    for outcome in outcomes:
        difference = outcome.target.difference if outcome.target else None
        differing = 0 if difference is None else difference.changed + difference.only_here + difference.only_there
        text = f"{differing} rows would change" if differing else outcome.error
        verdicts[outcome.hour] = (Verdict.FAILED, text) if text else (Verdict.PASSED, "")
    return Checked(asset, NO_PENDING_APPROVAL, verdicts)


def _gaps(asset: AssetPath, hours: HourRange, gaps: Mapping[tuple[str, datetime], Gap]) -> Checked:
    name = "/".join(asset)
    verdicts = {}
    for hour in hours:
        gap = gaps.get((name, hour))
        verdicts[hour] = (Verdict.PASSED, "") if gap is None else (Verdict.FAILED, f"{gap.kind}: {gap.evidence}")
    return Checked(asset, NO_GAP, verdicts)
