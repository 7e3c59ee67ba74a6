"""The runner's engines in memory: rows are counts, a table is a dictionary of hours. A walk takes milliseconds."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from backfill_platform.adapters.clickhouse.publishing.prepare import HourPublish, Status
from backfill_platform.adapters.iceberg.inventory import LakeFile
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.offsets import Spans
from backfill_platform.domain.plan import (
    AssetPath,
    Branch,
    BuildStep,
    LakeStep,
    LandStep,
    Plan,
    RequeueHours,
    branch_of,
    make_plan,
)
from backfill_platform.domain.request import RepairRequest
from backfill_platform.domain.tables import Table
from backfill_platform.domain.windows import ContiguousRun
from backfill_platform.errors import ChangeLimitsExceeded
from backfill_platform.examples import clickstream
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.job import RepairIdentity, RepairJob
from backfill_platform.repair.outcomes import Event, HourOutcome, Reading, TargetHour
from backfill_platform.repair.ports import BuiltHours, LakeContents, MadeOf, RepairServices, TargetTask
from backfill_platform.repair.runner import USUAL_PARTS, PartLimits, run_plan
from backfill_platform.repair.write_audit_promote import HourAudit

Rows = dict[datetime, int]


@dataclass
class InMemoryLake:
    """Row counts by table, branch and hour. `unreadable` names hours whose files are gone."""

    branches: dict[tuple[AssetPath, Branch], Rows] = field(default_factory=dict)
    unreadable: set[tuple[AssetPath, datetime]] = field(default_factory=set)
    prepared: list[str] = field(default_factory=list)

    def rows(self, table: Table, branch: Branch = Branch.MAIN) -> Rows:
        return self.branches.setdefault((table.path, branch), {})

    def stage(self, table: Table, rows: Mapping[datetime, int]) -> None:
        """As a builder writes: the branch begins anew each time."""
        self.branches[table.path, Branch.REPAIR] = dict(rows)

    def prepare(self, tables: Iterable[Table]) -> None:
        self.prepared += map(str, tables)

    def contents(self, table: Table, hours: Collection[datetime], branch: Branch = Branch.MAIN) -> LakeContents:
        rows = self.rows(table, branch)
        files = [LakeFile(f"memory:{table}/{hour:%H}", hour, rows[hour], rows[hour]) for hour in hours if rows.get(hour)]
        return LakeContents(
            tuple(files),
            frozenset(self.rows(table).keys() & set(hours)),
            frozenset(hour for hour in hours if (table.path, hour) in self.unreadable),
            dict.fromkeys(hours, 0),
            len(rows),
        )

    def row_counts(self, table: Table, hours: HourRange) -> dict[datetime, int]:
        return {hour: count for hour, count in self.rows(table).items() if hour in hours and count}

    def promote(self, table: Table, hours: Collection[datetime], made_of: MadeOf | None = None) -> None:
        staged = self.branches.pop((table.path, Branch.REPAIR))
        self.rows(table).update({hour: staged.get(hour, 0) for hour in hours})
        self.unreadable -= {(table.path, hour) for hour in hours}

    def discard(self, table: Table) -> None:
        self.branches.pop((table.path, Branch.REPAIR), None)


@dataclass
class CountingBuilder:
    """Lands `source` and builds a row for each row of the source. Hours in `broken` fail a check of their table."""

    lake: InMemoryLake
    source: Rows
    broken: set[tuple[str, datetime]] = field(default_factory=set)
    built: list[tuple[str, tuple[datetime, ...]]] = field(default_factory=list)
    runs: list[ContiguousRun] = field(default_factory=list)

    def absent(self, hours: Collection[datetime]) -> dict[datetime, str]:
        return {hour: "there is no file" for hour in hours if hour not in self.source}

    def land(self, step: LandStep, hours: Collection[datetime]) -> dict[datetime, HourAudit]:
        return self._write(step.node.table, {hour: self.source[hour] for hour in hours})

    def versions(self, hours: Collection[datetime]) -> dict[datetime, str]:
        return {}

    def offsets(self, hour: datetime) -> Spans:
        return ()

    def build(self, step: BuildStep, runs: Collection[ContiguousRun]) -> BuiltHours:
        assert step.node.reads is not None
        self.runs += runs
        rows = self.lake.rows(step.node.reads, branch_of(step.node.inputs[0], step))
        hours = sorted(hour for run in runs for hour in run.hours)
        audits = self._write(step.node.table, {hour: rows.get(hour, 0) for hour in hours})
        return BuiltHours(audits, Reading(hours[0], hours[-1] + HOUR, files=len(hours), files_pruned=0))

    def _write(self, table: Table, rows: Rows) -> dict[datetime, HourAudit]:
        self.lake.stage(table, rows)
        self.built.append((str(table), tuple(rows)))
        return {
            hour: HourAudit(
                computed=count,
                written=count,
                rows_read=count,
                content=count,
                broken={"odd": ""} if (str(table), hour) in self.broken else {},
            )
            for hour, count in rows.items()
        }


@dataclass
class InMemoryRequeuer:
    """Rejects as row counts, all of which pass by now. Hours in `gone` have lost their quarantine."""

    lake: InMemoryLake
    rejects: Rows = field(default_factory=dict)
    gone: set[datetime] = field(default_factory=set)

    def hours(self, step: RequeueHours) -> set[datetime]:
        return {hour for hour in self.rejects if hour in step.hours}

    def unreadable(self, hours: Collection[datetime]) -> set[datetime]:
        return self.gone & set(hours)

    def versions(self, hours: Collection[datetime]) -> dict[datetime, str]:
        return dict.fromkeys(hours, "version 1")

    def offsets(self, hours: Collection[datetime]) -> dict[datetime, Spans]:
        return {}

    def requeue(self, step: RequeueHours, hours: Collection[datetime]) -> tuple[dict[datetime, HourAudit], MadeOf]:
        rows = {hour: self.lake.rows(step.node.table).get(hour, 0) + self.rejects.pop(hour) for hour in hours}
        self.lake.stage(step.node.table, rows)
        audits = {hour: HourAudit(computed=count, written=count, rows_read=count) for hour, count in rows.items()}
        return audits, MadeOf((), ())


@dataclass
class InMemoryPublisher:
    """Warehouse tables as row counts. Hours in `refused` exceed the change limits."""

    tables: dict[AssetPath, Rows] = field(default_factory=dict)
    refused: set[datetime] = field(default_factory=set)
    tasks: list[TargetTask] = field(default_factory=list)

    def stored(self, table: Table, hours: Collection[datetime]) -> Mapping[datetime, Fingerprint]:
        return {hour: Fingerprint(self.tables.get(table.path, {}).get(hour, 0)) for hour in hours}

    def compare(self, task: TargetTask) -> tuple[list[HourOutcome], str]:
        return self._results(task, Status.PROVEN), "memory"

    def publish(self, task: TargetTask) -> tuple[list[HourOutcome], str]:
        outcomes = self._results(task, Status.PUBLISHED)
        rows = self.tables.setdefault(task.step.node.table.path, {})
        rows.update({one.hour: one.target.result.desired.rows for one in outcomes if one.target and not one.error})
        return outcomes, "memory"

    def _results(self, task: TargetTask, changed: Status) -> list[HourOutcome]:
        self.tasks.append(task)
        stored = self.stored(task.step.node.table, task.hours)
        outcomes = []
        for hour in task.hours:
            before, desired = stored[hour], Fingerprint(task.lake.rows.get(hour, 0))
            status = Status.UNCHANGED if before == desired else changed
            error = ChangeLimitsExceeded("beyond the change limits") if hour in self.refused else None
            result = HourPublish(hour, Status.REFUSED if error else status, before, desired, error=error)
            outcomes.append(
                HourOutcome(task.step.asset, hour, result.reason, target=TargetHour(result), refused=error is not None)
            )
        return outcomes


@dataclass
class ListedAuditLog:
    """What was noted, in order."""

    plans: list[Plan] = field(default_factory=list)
    steps: list[tuple[str, tuple[datetime, ...]]] = field(default_factory=list)

    def begin(self, plan: Plan) -> None:
        self.plans.append(plan)

    def lake_step(self, step: LakeStep, outcomes: Iterable[HourOutcome], started: datetime) -> None:
        self.steps.append((step.verb, tuple(outcome.hour for outcome in outcomes)))


class SmallWorld:
    """The clickstream pipeline over engines in memory: four hours, of which the source has ten rows each."""

    def __init__(self, pipeline: Pipeline = clickstream.pipeline) -> None:
        self.pipeline = pipeline
        self.hours = HourRange(pipeline.start, pipeline.start + 4 * HOUR)
        self.lake = InMemoryLake()
        self.builder = CountingBuilder(self.lake, dict.fromkeys(self.hours, 10))
        self.requeuer = InMemoryRequeuer(self.lake)
        self.publisher = InMemoryPublisher()
        self.audit_log = ListedAuditLog()
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    @property
    def services(self) -> RepairServices:
        return RepairServices(self.lake, self.builder, self.requeuer, self.publisher, self.audit_log)

    def plan(self, *assets: str, hours: HourRange | None = None) -> Plan:
        paths = [(asset.split("/")[0], asset.split("/")[1]) for asset in assets]
        return make_plan(self.pipeline.name, self.pipeline.nodes, hours or self.hours, paths)

    @property
    def everything(self) -> tuple[str, ...]:
        return tuple("/".join(asset) for node in self.pipeline.nodes for asset in node.assets if asset[0] != "dry_run")

    def stream(self, plan: Plan, limits: PartLimits = USUAL_PARTS, **request: Any) -> Iterator[Event]:
        """The walk as its caller sees it, event by event."""
        job = RepairJob(self.pipeline, RepairRequest(**request), RepairIdentity("r1", "0"), lambda: self.now)
        return run_plan(plan, job, self.services, limits)

    def events(self, plan: Plan, limits: PartLimits = USUAL_PARTS, **request: Any) -> list[Event]:
        return list(self.stream(plan, limits, **request))

    def run(self, *assets: str, hours: HourRange | None = None, **request: Any) -> dict[str, dict[datetime, HourOutcome]]:
        """The outcomes by asset and hour."""
        found: dict[str, dict[datetime, HourOutcome]] = {}
        for event in self.events(self.plan(*assets, hours=hours), **request):
            if isinstance(event, HourOutcome):
                found.setdefault("/".join(event.asset), {})[event.hour] = event
        return found
