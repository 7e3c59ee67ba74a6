"""Walking a plan: every step over every hour it may touch, reporting the outcome of each.

An hour that fails a step is named and left as it was; later steps skip what depends on that hour and go on with the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.hours import HOUR, HourRange, format_hour
from backfill_platform.domain.offsets import Spans
from backfill_platform.domain.plan import (
    AssetPath,
    Branch,
    BuildHours,
    BuildStep,
    CompareHours,
    Input,
    LakeStep,
    LandHours,
    Landing,
    LandMargin,
    LandStep,
    Plan,
    PublishHours,
    RehearseBuild,
    RequeueHours,
    Step,
    TargetStep,
    branch_of,
    source_of,
)
from backfill_platform.domain.tables import Table
from backfill_platform.domain.windows import contiguous_runs, first_missing
from backfill_platform.errors import UsageError
from backfill_platform.repair.job import RepairJob
from backfill_platform.repair.outcomes import (
    NEEDS,
    Event,
    HourOutcome,
    HoursCommitted,
    LakeHour,
    Reading,
    StepFinished,
    StepStarted,
)
from backfill_platform.repair.ports import MadeOf, RepairServices, TargetTask
from backfill_platform.repair.write_audit_promote import HourAudit

_NEVER_BUILT = (
    "the hour was never built, so the rows of its other tenants are not known; build it for all tenants first (without tenants)"
)


@dataclass(frozen=True)
class PartLimits:
    """How much a step does at a time: rows read to build hours, rows staged beside a table (1 kB of memory each), hours."""

    rows_built: int = 50_000_000
    rows_staged: int = 3_000_000
    hours: int = 720


USUAL_PARTS = PartLimits()


@dataclass
class _Progress:
    """What later steps have to know: the hours that failed, by asset, and what the targets held when the repair began."""

    failed: dict[AssetPath, dict[datetime, HourOutcome]] = field(default_factory=dict)
    stored_before: dict[AssetPath, Mapping[datetime, Fingerprint]] = field(default_factory=dict)

    def failed_hours(self, path: AssetPath) -> Mapping[datetime, HourOutcome]:
        return self.failed.get(path, {})

    def note(self, finished: StepFinished) -> None:
        bad = {outcome.hour: outcome for outcome in finished.outcomes if outcome.error}
        self.failed.setdefault(finished.step.asset, {}).update(bad)


def run_plan(plan: Plan, job: RepairJob, services: RepairServices, limits: PartLimits = USUAL_PARTS) -> Iterator[Event]:
    """Walk the plan and yield what happens. Running it again, after whatever end, completes what is missing.

    Raises BackfillError for what makes every hour of a step impossible, such as a warehouse that does not answer, and
    UsageError when it is limited to tenants and nothing of the plan can be.
    """
    pipeline, request = job.pipeline, job.request
    pipeline.check_tenants(request.tenants)
    pipeline.check_change_limits(request.change_limits)
    if request.tenants and request.rewrite_inconsistent:
        raise UsageError(
            "rewriting inconsistent partitions concerns the rows of all tenants: do it without tenants, then repair the tenants"
        )
    services.lake.prepare(pipeline.tables)
    services.audit_log.begin(plan)
    progress = _Progress()
    for step in plan.steps:
        # Before the lake is read: what is written to a target later is not known to the rows we compute.
        if isinstance(step, PublishHours):
            progress.stored_before[step.asset] = services.publisher.stored(step.node.table, list(step.hours))
    try:
        for number, step in enumerate(plan.steps, 1):
            yield StepStarted(step, number, len(plan.steps))
            for part in _parts(step, services, limits):
                yield from _run_part(part, progress, job, services)
    finally:
        for step in plan.steps:
            if isinstance(step, RehearseBuild):
                services.lake.discard(step.node.table)


def _parts(step: Step, services: RepairServices, limits: PartLimits) -> Iterator[Step]:
    """The step over as many hours at a time as fit in memory: what is finished stays finished if the rest fails or dies.

    What a dry run builds stays on one branch, which is made anew by each step: it is done as a whole.
    """
    match step:
        case RehearseBuild() | CompareHours(source=Branch.REPAIR):
            yield step
            return
        case LandMargin() | LandHours():
            rows, most = dict[datetime, int](), 0
        case RequeueHours():
            rows, most = services.lake.row_counts(step.node.table, step.hours), limits.rows_built
        case BuildHours():
            rows, most = _rows_read(step, services), limits.rows_built
        case CompareHours() | PublishHours():
            rows, most = services.lake.row_counts(step.node.table, step.hours), limits.rows_staged
    first, held = step.hours.start, 0
    for hour in step.hours:
        held += rows.get(hour, 0)
        if hour > first and (held > most or hour - first >= limits.hours * HOUR):
            yield replace(step, hours=HourRange(first, hour))
            first, held = hour, rows.get(hour, 0)
    yield replace(step, hours=HourRange(first, step.hours.end))


def _rows_read(step: BuildHours, services: RepairServices) -> dict[datetime, int]:
    rows: Counter[datetime] = Counter()
    for source in step.node.inputs:
        rows.update(services.lake.row_counts(source.table, step.hours))
    return rows


def _run_part(part: Step, progress: _Progress, job: RepairJob, services: RepairServices) -> Iterator[Event]:
    """Do a part of a step for the hours that have what they need; the others are named with what they wait for."""
    if isinstance(part, CompareHours | PublishHours):
        finished = _compare_or_publish(part, progress, services)
    else:
        started = job.clock()
        written = _write(part, progress, job, services)
        if written.to_commit is not None:
            services.lake.promote(part.node.table, written.to_commit, written.made_of)
        finished = written.finished
        services.audit_log.lake_step(part, [outcome for outcome in finished.outcomes if outcome.due is None], started)
        if written.to_commit:  # told when it is in the ledger: whoever listens may stop us
            yield HoursCommitted(part, written.to_commit)
    progress.note(finished)
    yield from finished.outcomes
    yield finished


@dataclass(frozen=True)
class _Written:
    """What a lake step has written to the repair's branch, and the hours to commit to `main`; None where it stays there.

    `made_of` are files of `main` that must not have been replaced meanwhile.
    """

    finished: StepFinished
    to_commit: tuple[datetime, ...] | None = None
    made_of: MadeOf | None = None


def _write(step: LakeStep, progress: _Progress, job: RepairJob, services: RepairServices) -> _Written:
    match step:
        case LandMargin() | LandHours():
            return _land(step, job, services)
        case RequeueHours():
            return _requeue(step, job, services)
        case BuildHours() | RehearseBuild():
            return _build(step, progress, job, services)


def _land(step: LandStep, job: RepairJob, services: RepairServices) -> _Written:
    table, landing = step.node.table, step.landing if isinstance(step, LandHours) else Landing.MISSING
    lake = services.lake.contents(table, list(step.hours))
    hours = [hour for hour in step.hours if landing is not Landing.MISSING or hour not in lake.built - lake.unreadable]
    absent = services.builder.absent(hours)
    outcomes = _failed_hours(step, absent)
    present = [hour for hour in hours if hour not in absent]
    audits: dict[datetime, HourAudit] = {}
    if present:
        versions = services.builder.versions(present)  # before they are read: what is written meanwhile is another version
        audits = services.builder.land(step, present)
        if landing is not Landing.REPLACE:
            audits = {hour: audit.keeping(lake.rows.get(hour, 0)) for hour, audit in audits.items()}
        outcomes += [
            _from_source(outcome, services.builder.offsets(outcome.hour) if outcome.lake else (), versions)
            for outcome in _lake_outcomes(step, audits, job)
        ]
    finished = StepFinished(step, outcomes, already_landed=len(step.hours) - len(hours))
    return _Written(finished, _sound(audits) if audits else None)


def _requeue(step: RequeueHours, job: RepairJob, services: RepairServices) -> _Written:
    table, requeuer = step.node.table, services.requeuer
    hours = sorted(requeuer.hours(step))
    lake = services.lake.contents(table, hours)
    broken = lake.unreadable | requeuer.unreadable(hours)
    outcomes = _failed_hours(step, {hour: _unreadable(table, hour) for hour in broken})
    outcomes += _failed_hours(step, {hour: _lost(table, hour) for hour in hours if hour not in lake.built | broken})
    present = [hour for hour in hours if hour in lake.built and hour not in broken]
    if not present:
        return _Written(StepFinished(step, outcomes))
    # What was quarantined came with the rest of its hour: from the same offsets, or the same version of the source.
    versions, offsets = requeuer.versions(present), requeuer.offsets(present)
    audits, made_of = requeuer.requeue(step, present)
    outcomes += [
        _from_source(outcome, offsets.get(outcome.hour, ()), versions) for outcome in _lake_outcomes(step, audits, job)
    ]
    return _Written(StepFinished(step, outcomes), _sound(audits), made_of)


def _build(step: BuildStep, progress: _Progress, job: RepairJob, services: RepairServices) -> _Written:
    pipeline, table = job.pipeline, step.node.table
    outcomes: list[HourOutcome] = []
    never_built: set[datetime] = set()
    if job.request.tenants and table.tenant:
        never_built = set(step.hours) - services.lake.contents(table, list(step.hours)).built
        outcomes += _failed_hours(step, dict.fromkeys(never_built, _NEVER_BUILT))
    hours = [hour for hour in step.hours if hour not in never_built]
    first, *beside = step.node.inputs
    for source in beside:
        held, bounds = _held(source, step, progress, services), source.bounds(pipeline.start, pipeline.end)
        missing = first_missing(hours, held.sound, source.window, *bounds)
        outcomes += [_missing(source, step, hour, at, held, job) for hour, at in missing.items()]
        hours = [hour for hour in hours if hour not in missing]
    held = _held(first, step, progress, services)
    runs, missing_input = contiguous_runs(hours, held.sound, first.window, pipeline.start, pipeline.end)
    outcomes += [_missing(first, step, hour, at, held, job) for hour, at in missing_input.items()]
    reading: Reading | None = None
    audits: Mapping[datetime, HourAudit] = {}
    if runs:
        built = services.builder.build(step, runs)
        reading, audits = built.reading, built.audits
        outcomes += _lake_outcomes(step, audits, job)
    finished = StepFinished(step, outcomes, reading)
    return _Written(finished, _sound(audits) if audits and isinstance(step, BuildHours) else None)


@dataclass(frozen=True)
class _Held:
    """The hours of an input that a step can read, those whose files are damaged, and those that failed in this repair."""

    sound: set[datetime]
    unreadable: frozenset[datetime]
    failed: Mapping[datetime, HourOutcome]


def _held(source: Input, step: BuildStep, progress: _Progress, services: RepairServices) -> _Held:
    bad = progress.failed_hours(source.table.path)
    if branch_of(source, step) is Branch.REPAIR:
        return _Held(set(step.hours) - set(bad), frozenset(), bad)
    around = source.window.around(step.hours)
    # An hour more tells a read that was capped from one that reached the end of what has landed.
    lake = services.lake.contents(source.table, [*around, around.end])
    return _Held(set(lake.built - lake.unreadable) - set(bad), lake.unreadable, bad)


def _missing(source: Input, step: BuildStep, hour: datetime, at: datetime, held: _Held, job: RepairJob) -> HourOutcome:
    """The outcome of an hour that cannot be built, because its input lacks the hour `at`."""
    if at in held.failed:
        return _waiting(step, hour, source.table, held.failed[at])
    if at in held.unreadable:
        return HourOutcome(step.asset, hour, _unreadable(source, at))
    if at + HOUR > job.clock():
        due = source.window.needs(hour, source.bounds(job.pipeline.start, job.pipeline.end)[0]).end
        return HourOutcome(step.asset, hour, _not_due(source, at, due), due=due)
    return HourOutcome(step.asset, hour, _lost(source, at))


def _compare_or_publish(step: TargetStep, progress: _Progress, services: RepairServices) -> StepFinished:
    table, source = step.node.table, source_of(step)
    failed = {hour: outcome for hour, outcome in progress.failed_hours(table.path).items() if hour in step.hours}
    outcomes = [_waiting(step, hour, table, because) for hour, because in failed.items()]
    hours = [hour for hour in step.hours if hour not in failed]
    lake = services.lake.contents(table, hours, source)
    if source is Branch.MAIN:
        outcomes += _failed_hours(step, {hour: _lost(table, hour) for hour in hours if hour not in lake.built})
        hours = [hour for hour in hours if hour in lake.built]
    outcomes += _failed_hours(step, {hour: _unreadable(table, hour) for hour in hours if hour in lake.unreadable})
    hours = [hour for hour in hours if hour not in lake.unreadable]
    published_by = ""
    if hours:
        lake = replace(lake, files=tuple(file for file in lake.files if file.hour in set(hours)))
        task = TargetTask(step, tuple(hours), lake, progress.stored_before.get(step.asset, {}))
        do = services.publisher.publish if isinstance(step, PublishHours) else services.publisher.compare
        done, published_by = do(task)
        outcomes += done
    return StepFinished(step, outcomes, published_by=published_by)


def _sound(audits: Mapping[datetime, HourAudit]) -> tuple[datetime, ...]:
    return tuple(sorted(hour for hour, audit in audits.items() if not audit.error))


def _from_source(outcome: HourOutcome, offsets: Spans, versions: Mapping[datetime, str]) -> HourOutcome:
    if outcome.lake is None:
        return outcome
    return replace(outcome, lake=replace(outcome.lake, offsets=offsets, source_version=versions.get(outcome.hour, "")))


def _failed_hours(step: Step, errors: Mapping[datetime, str]) -> list[HourOutcome]:
    return [HourOutcome(step.asset, hour, error) for hour, error in sorted(errors.items())]


def _waiting(step: Step, hour: datetime, table: Table, because: HourOutcome) -> HourOutcome:
    """An hour that needs another one, with the first cause: texts do not grow along the flow."""
    known = because.due is not None or because.error.startswith(NEEDS)
    cause = because.error if known else f"{NEEDS} {table} of {format_hour(because.hour)}: {because.error}"
    return HourOutcome(step.asset, hour, cause, due=because.due)


def _not_due(source: Input, at: datetime, due: datetime) -> str:
    return f"not yet due: it needs {source} of {format_hour(at)}, which is not over; due at {format_hour(due)} UTC"


def _lost(table: Table | Input, hour: datetime) -> str:
    return (
        f"the lake does not have {table} of {format_hour(hour)}: it was never built, or is lost. Materialize {table} of that "
        "hour first: without it, rows that exist would be taken for missing"
    )


def _unreadable(table: Table | Input, hour: datetime) -> str:
    return (
        f"files of {table} of {format_hour(hour)} are gone from the lake's storage, or damaged; materialize {table} of it again"
    )


def _lake_outcomes(step: LakeStep, audits: Mapping[datetime, HourAudit], job: RepairJob) -> list[HourOutcome]:
    rules = job.pipeline.rules(step.node.table.name)
    outcomes = []
    for hour, audit in sorted(audits.items()):
        lake = LakeHour(
            rows=audit.written,
            quarantined=audit.quarantined,
            content=Fingerprint(audit.written, audit.content),
            rows_read=audit.rows_read,
            deduplicated=audit.deduplicated,
            measures={**audit.measures, **({"events_beyond_cap": audit.beyond_cap} if audit.beyond_cap else {})},
        )
        outcomes.append(HourOutcome(step.asset, hour, audit.error, audit.checks(rules), lake=lake))
    return outcomes
