"""Walking a plan: every step over every hour it may touch, telling the outcome of each.

An hour that fails a step is named and left as it was; later steps skip what depends on that hour and go on with the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.fingerprints import Fingerprints
from backfill_platform.adapters.clickhouse.preconditions import target_exists
from backfill_platform.adapters.clickhouse.publishing.staging import Loading
from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.iceberg.inventory import LakeFile
from backfill_platform.adapters.iceberg.lake import MAIN, Lake, quarantine_of
from backfill_platform.adapters.kafka.cluster import OpenCluster, no_cluster
from backfill_platform.adapters.kafka.topic import KafkaTopic
from backfill_platform.domain.change_limits import NO_LIMITS, ChangeLimits
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.hours import HOUR, HourRange, format_hour
from backfill_platform.domain.offsets import Spans, encode
from backfill_platform.domain.plan import Action, AssetPath, Plan, Step
from backfill_platform.domain.tables import Table
from backfill_platform.domain.windows import contiguous_runs
from backfill_platform.errors import UsageError
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.audit_log import begin, lake_step
from backfill_platform.repair.build import build
from backfill_platform.repair.land import Source, land
from backfill_platform.repair.outcomes import OFFSETS, Event, Fact, HourOutcome, StepFinished, StepStarted
from backfill_platform.repair.publish import publish_step
from backfill_platform.repair.write_audit_promote import HourAudit, promote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_ALONE = (
    "the hour was never built, so the rows of its other tenants are not known; build it for all tenants first (without tenants)"
)

# At a time: rows read to build hours, and rows staged beside a table to compare them (about 1 kB of memory each).
_MOST_ROWS = {Action.LAND: 0, Action.BUILD: 50_000_000, Action.DRY_RUN: 3_000_000, Action.PUBLISH: 3_000_000}
_MOST_HOURS = 720

Failed = Mapping[AssetPath, Mapping[datetime, HourOutcome]]


class Landing(StrEnum):
    """What landing does with hours that have landed already."""

    SAFE = "safe"  # land them again, but never keep fewer rows than there are
    MISSING = "missing"  # leave them alone
    REPLACE = "replace"  # land them again, whatever comes of it


@dataclass(frozen=True)
class Context:
    """What a repair works with and on whose behalf. Spark is opened when a step first needs it.

    `rewrite_inconsistent` rewrites partitions of inconsistent hours, `allow_open_hours` publishes to hours that live writers
    may still write. With `tenants`, tables whose rows belong to tenants keep the rows of all others as they are, in the lake
    and in the warehouse. `at_work` names the other repairs that may be under way, on other hours. `kafka` opens the cluster of
    pipelines that read a topic; `replayed` has them read what was replayed instead of what is live.
    """

    pipeline: Pipeline
    lake: Lake
    spark: Callable[[], SparkSession]
    warehouse: Callable[[], Warehouse]
    clock: Callable[[], datetime]
    repair_id: str
    reason: str
    requester: str
    code_version: str
    change_limits: ChangeLimits = NO_LIMITS
    patch_days: int = 30
    landing: Landing = Landing.SAFE
    loading: Loading = Loading.PULL
    rewrite_inconsistent: bool = False
    allow_open_hours: bool = False
    tenants: tuple[str, ...] = ()
    at_work: Callable[[], Collection[str]] = tuple
    kafka: OpenCluster = no_cluster
    replayed: bool = False

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of the warehouse."""
        return Ledger(self.warehouse())

    @cached_property
    def source(self) -> Source:
        """What the pipeline is landed from: its files, or its topic, ready to be read."""
        declared = self.pipeline.source
        if not isinstance(declared, KafkaTopic):
            return declared
        return declared.open(self.kafka, self.clock, self._landed_to, backfill=self.replayed)

    def _landed_to(self, end: datetime) -> dict[int, int]:
        """The offsets that the hour before `end` was landed up to, by partition."""
        landed = self.ledger.offsets(str(self.pipeline.raw.table), [end - HOUR])
        return {span.partition: span.end for spans in landed.values() for span in spans}


def run(plan: Plan, context: Context) -> Iterator[Event]:
    """Walk the plan and yield what happens. Running it again, after whatever end, completes what is missing.

    Raises BackfillError for what makes every hour of a step impossible, such as a warehouse that does not answer, and
    UsageError when it is limited to tenants and nothing of the plan can be.
    """
    lake, pipeline = context.lake, context.pipeline
    pipeline.check_tenants(context.tenants)
    if context.tenants and context.rewrite_inconsistent:
        raise UsageError(
            "rewriting inconsistent partitions concerns the rows of all tenants: do it without tenants, then repair the tenants"
        )
    failed: dict[AssetPath, dict[datetime, HourOutcome]] = {}
    for table in pipeline.tables:
        for kept in (table, quarantine_of(table)):
            lake.ensure(kept)
            lake.sweep(kept, context.at_work)
    begin(plan, context)
    since = _net_states(plan, context)
    try:
        for number, step in enumerate(plan.steps, 1):
            yield StepStarted(step, number, len(plan.steps))
            for part in _parts(step, context):
                started = context.clock()
                finished = _walk(part, failed, since.get(step.asset, {}), context)
                if step.action in (Action.LAND, Action.BUILD):
                    lake_step(step, [outcome for outcome in finished.outcomes if outcome.due is None], context, started)
                bad = {outcome.hour: outcome for outcome in finished.outcomes if outcome.error}
                failed.setdefault(step.asset, {}).update(bad)
                yield from finished.outcomes
                yield finished
    finally:
        for step in plan.steps:
            if step.action in (Action.LAND, Action.BUILD) and not step.promote:
                for table in (step.node.table, quarantine_of(step.node.table)):
                    lake.discard(table, context.repair_id, context.repair_id)


def _net_states(plan: Plan, context: Context) -> dict[AssetPath, Fingerprints]:
    """What the targets hold before the lake is read: what is written to them later is not known to the rows we compute."""
    found = {}
    for step in plan.steps:
        if step.action is Action.PUBLISH and target_exists(context.warehouse(), step.node.table):
            found[step.asset] = fingerprints.net(context.warehouse(), step.node.table, list(step.hours))
    return found


def _parts(step: Step, context: Context) -> Iterator[Step]:
    """The step over as many hours at a time as fit in memory: what is finished stays finished if the rest fails or dies.

    What a dry run builds stays on one branch, which is made anew by each step: it is done as a whole.
    """
    source = step.node.table if step.action in (Action.DRY_RUN, Action.PUBLISH) else step.node.reads
    if step.from_branch or (step.action is Action.BUILD and not step.promote):
        yield step
        return
    most = _MOST_ROWS[step.action]
    rows = {} if source is None else context.lake.rows_by_hour(source, step.hours)
    first, held = step.hours.start, 0
    for hour in step.hours:
        held += rows.get(hour, 0)
        if hour > first and (held > most or hour - first >= _MOST_HOURS * HOUR):
            yield replace(step, hours=HourRange(first, hour))
            first, held = hour, rows.get(hour, 0)
    yield replace(step, hours=HourRange(first, step.hours.end))


def _walk(step: Step, failed: Failed, since: Fingerprints, context: Context) -> StepFinished:
    """Do one step for the hours that have what they need; the others are named with what they wait for."""
    if step.action is Action.LAND:
        return _land(step, context)
    if step.action is Action.BUILD:
        return _build(step, failed, context)
    table = step.node.table
    lake = context.lake
    here = {hour: outcome for hour, outcome in failed.get(table.path, {}).items() if hour in step.hours}
    outcomes = [_waiting(step, hour, table, because) for hour, because in here.items()]
    if not step.from_branch:
        built = lake.built_hours(table)
        outcomes += _named(step, {hour: _lost(table, hour) for hour in step.hours if hour not in built and hour not in here})
    waiting = {outcome.hour for outcome in outcomes}
    hours = [hour for hour in step.hours if hour not in waiting]
    facts: Mapping[str, Fact] = {}
    if hours:
        files = lake.files(table, hours, branch=context.repair_id if step.from_branch else MAIN)
        if gone := _hours_of(files, lake.gone(files)):
            outcomes += _named(step, {hour: _unreadable(table, hour) for hour in gone})
            hours = [hour for hour in hours if hour not in gone]
            files = [file for file in files if file.hour not in gone]
    if hours:
        published, facts = publish_step(step, hours, files, since, context)
        outcomes += published
    return StepFinished(step, facts, outcomes)


def _land(step: Step, context: Context) -> StepFinished:
    table, source = step.node.table, context.source
    landed = context.lake.rows_by_hour(table, step.hours)
    files = context.lake.files(table, step.hours)
    known = context.lake.built_hours(table) - _hours_of(files, context.lake.gone(files))
    hours = [hour for hour in step.hours if context.landing is not Landing.MISSING or hour not in known]
    absent = source.absent(hours)
    present = [hour for hour in hours if hour not in absent]
    outcomes = _named(step, absent)
    if present:
        audits = land(context.spark(), context.lake, context.pipeline, source, present, context.repair_id)
        if context.landing is not Landing.REPLACE:
            audits = {hour: audit.keeping(landed.get(hour, 0)) for hour, audit in audits.items()}
        outcomes += [_with_offsets(outcome, source.spans(outcome.hour)) for outcome in _lake_outcomes(step, audits, context)]
    return StepFinished(step, {"hours_already_landed": len(step.hours) - len(hours)}, outcomes)


def _with_offsets(outcome: HourOutcome, spans: Spans) -> HourOutcome:
    return replace(outcome, facts={**outcome.facts, OFFSETS: encode(spans)}) if spans else outcome


def _build(step: Step, failed: Failed, context: Context) -> StepFinished:
    source, pipeline = step.node.reads, context.pipeline
    if source is None:
        raise TypeError(f"{step.node.table} is landed, not built")
    bad = failed.get(source.path, {})
    outcomes = []
    alone: set[datetime] = set()
    if context.tenants and step.node.table.tenant:
        alone = set(step.hours) - context.lake.built_hours(step.node.table)
        outcomes += _named(step, dict.fromkeys(alone, _ALONE))
    there = set(step.hours) if step.from_branch else context.lake.built_hours(source)
    near = [] if step.from_branch else context.lake.files(source, step.node.window.around(step.hours))
    gone = _hours_of(near, context.lake.gone(near))
    hours = [hour for hour in step.hours if hour not in alone]
    parts, missing_input = contiguous_runs(hours, there - set(bad) - gone, step.node.window, pipeline.start, pipeline.end)
    for hour, at in missing_input.items():
        if at in bad:
            outcomes.append(_waiting(step, hour, source, bad[at]))
        elif at in gone:
            outcomes.append(HourOutcome(step.asset, hour, _unreadable(source, at)))
        elif at + HOUR > context.clock():
            due = step.node.window.needs(hour, pipeline.start).end
            outcomes.append(HourOutcome(step.asset, hour, _not_due(source, at, due), due=due))
        else:
            outcomes.append(HourOutcome(step.asset, hour, _lost(source, at)))
    if not parts:
        return StepFinished(step, {}, outcomes)
    built = build(context.spark(), context.lake, pipeline, step, parts, context.repair_id, context.tenants)
    return StepFinished(step, built.facts, outcomes + _lake_outcomes(step, built.hours, context), built.tables)


def _named(step: Step, errors: Mapping[datetime, str]) -> list[HourOutcome]:
    return [HourOutcome(step.asset, hour, error) for hour, error in sorted(errors.items())]


def _waiting(step: Step, hour: datetime, table: Table, because: HourOutcome) -> HourOutcome:
    error = f"waits for {table} of {format_hour(because.hour)}: {because.error}"
    return HourOutcome(step.asset, hour, error, due=because.due)


def _not_due(source: Table, at: datetime, due: datetime) -> str:
    return f"not yet due: it needs {source} of {format_hour(at)}, which is not over; due at {format_hour(due)} UTC"


def _lost(table: Table, hour: datetime) -> str:
    return (
        f"the lake does not have {table} of {format_hour(hour)}: it was never built, or is lost. Materialize {table} of that "
        "hour first, so that nothing is taken for missing that merely cannot be seen"
    )


def _unreadable(table: Table, hour: datetime) -> str:
    return (
        f"files of {table} of {format_hour(hour)} are gone from the lake's storage, or damaged; materialize {table} of it again"
    )


def _hours_of(files: Iterable[LakeFile], uris: Collection[str]) -> set[datetime]:
    return {file.hour for file in files if file.uri in uris}


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
            **audit.intake,
            "quarantined": audit.quarantined,
            **audit.measures,
        }
        content = Fingerprint(audit.written, audit.content)
        outcomes.append(HourOutcome(step.asset, hour, audit.error, facts, audit.checks(rules), content=content))
    return outcomes
