"""From lake files to the warehouse: dry runs and publishing walk the same steps, and a dry run stops before the last."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.fingerprints import Fingerprints
from backfill_platform.adapters.clickhouse.preconditions import target_exists
from backfill_platform.adapters.clickhouse.publishing.diff import foreign_tenants
from backfill_platform.adapters.clickhouse.publishing.patches import drop_patches
from backfill_platform.adapters.clickhouse.publishing.prepare import HourPublish, Prepared, Status, prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.staging import Loading, Staging
from backfill_platform.adapters.clickhouse.schema import create_target
from backfill_platform.adapters.clickhouse.state.ledger import LedgerEntry
from backfill_platform.adapters.clickhouse.target import Mode
from backfill_platform.domain.change_limits import HourChange
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.gaps import RowCounts
from backfill_platform.domain.hours import HOUR, format_hour
from backfill_platform.domain.plan import PublishHours, TargetStep
from backfill_platform.domain.tables import Table
from backfill_platform.errors import BackfillError, ChangeLimitsExceeded, InconsistentHour, OpenHour
from backfill_platform.repair.audit_log import TargetLog
from backfill_platform.repair.job import RepairJob
from backfill_platform.repair.outcomes import CheckResult, Fact, HourOutcome, TargetHour
from backfill_platform.repair.ports import TargetTask

DELTA_PROVEN = "delta_proven"
MATCHES_LAKE = "matches_lake"
WITHIN_CHANGE_LIMITS = "within_change_limits"
DRY_RUN_CHECKS = (DELTA_PROVEN, WITHIN_CHANGE_LIMITS)
PUBLISH_CHECKS = (MATCHES_LAKE, WITHIN_CHANGE_LIMITS)

# What a person may allow: by other change limits, by waiting or allowing open hours, by rewriting partitions.
REFUSALS = (ChangeLimitsExceeded, OpenHour, InconsistentHour)


@dataclass(frozen=True)
class Publishing:
    """How this deployment publishes: how rows get to the warehouse, and for how many days a publish can be undone."""

    loading: Loading = Loading.PULL
    patch_days: int = 30


class ClickHousePublisher:
    """Compares and publishes hours of warehouse tables; what was done to each is in the ledger."""

    def __init__(self, job: RepairJob, warehouse: Callable[[], Warehouse], how: Publishing) -> None:
        self._job, self._warehouse, self._how = job, warehouse, how

    def stored(self, table: Table, hours: Collection[datetime]) -> Mapping[datetime, Fingerprint]:
        """The net state of the hours; empty where there is no such table yet."""
        warehouse = self._warehouse()
        return fingerprints.net(warehouse, table, hours) if target_exists(warehouse, table) else {}

    def compare(self, task: TargetTask) -> tuple[list[HourOutcome], str]:
        """Stage, compare and prove; publish nothing. The outcomes, and how a publish would be done."""
        started, table = self._job.clock(), task.step.node.table
        with self._staging(task, exclusive=False) as staging:
            prepared = self._prepare(staging, task)
            exceeded = self._exceeding(prepared)
            others = self._others(table, task)
            results = tuple(prepared.hours.values())
        log = TargetLog(self._job, staging, task.step.verb, started)
        log.close(results, task.lake)
        outcomes = [
            _outcome(task.step, result, _target_hour(result, prepared, others, others), exceeded.get(result.hour))
            for result in results
        ]
        return outcomes, staging.target.why

    def publish(self, task: TargetTask) -> tuple[list[HourOutcome], str]:
        """Stage, compare, prove, publish and verify. The outcomes, and how it was published."""
        started, table = self._job.clock(), task.step.node.table
        with self._staging(task, exclusive=True) as staging:
            prepared = self._prepare(staging, task)
            before = self._others(table, task)
            log = TargetLog(self._job, staging, task.step.verb, started)
            suspect = log.suspect_views(task.hours)
            results = publish(prepared, refuse=self._refuse, before_inserts=log.announce)
            suspect = {**suspect, **log.views_to_rebuild(results)}
            after = self._others(table, task)
            if any(result.status is Status.UNVERIFIED for result in results):
                staging.keep()
        drop_patches(staging.warehouse, table, older_than_days=self._how.patch_days)
        log.close(results, task.lake, suspect)
        history = log.history(task.hours)
        outcomes = []
        for result in results:
            target = _target_hour(result, prepared, before, after, suspect.get(result.hour, ""), history.get(result.hour, ()))
            exceeded = result.error if isinstance(result.error, ChangeLimitsExceeded) else None
            outcomes.append(_outcome(task.step, result, target, exceeded))
        return outcomes, staging.target.why

    def _staging(self, task: TargetTask, *, exclusive: bool) -> Staging:
        warehouse, table = self._warehouse(), task.step.node.table
        create_target(warehouse, table)
        return Staging(
            warehouse,
            table,
            self._job.repair_id,
            task.hours,
            exclusive=exclusive,
            rewrites_partitions=self._job.request.rewrite_inconsistent,
        )

    def _prepare(self, staging: Staging, task: TargetTask) -> Prepared:
        """Load the lake's rows, compare them with what is stored, write and prove the delta."""
        rows = task.lake.rows
        expected = {hour: rows.get(hour, 0) for hour in task.hours}
        staging.load_files([file.uri for file in task.lake.files], expected, self._how.loading)
        if tenants := self._tenants(staging.table):
            staging.keep_others(tenants)
        return prepare(
            staging,
            task.hours,
            since=task.stored_before,
            rewrite_inconsistent=self._job.request.rewrite_inconsistent,
            remove_foreign=self._job.request.allow_open_hours,
        )

    def _tenants(self, table: Table) -> tuple[str, ...]:
        return self._job.request.tenants if table.tenant else ()

    def _others(self, table: Table, task: TargetTask) -> Fingerprints:
        """The fingerprints of the rows that a repair of some tenants must leave alone; empty for a repair of all."""
        tenants = self._tenants(table)
        return fingerprints.net(self._warehouse(), table, task.hours, but=tenants) if tenants else {}

    def _refuse(self, prepared: Prepared) -> Mapping[datetime, BackfillError]:
        """The hours that must not be published, with the reason."""
        return {**self._open_hours(prepared), **self._exceeding(prepared)}

    def _open_hours(self, prepared: Prepared) -> dict[datetime, BackfillError]:
        """The hours that live writers may still write, and those that share a partition to be replaced with such hours."""
        if self._job.request.allow_open_hours:
            return {}
        table, after = prepared.staging.table, self._job.pipeline.seal_after
        refused: dict[datetime, BackfillError] = {}
        for hour, result in prepared.hours.items():
            target = prepared.staging.target
            whole = result.inconsistency or (target.mode is Mode.REPLACE and target.rewritable)
            end = HOUR + (table.partition_hours([hour])[-1] if whole else hour)
            if end + after > self._job.clock():
                refused[hour] = OpenHour(
                    f"{table} {format_hour(hour)}: live writers may write it until {end + after:%Y-%m-%d %H:%M} UTC, and a "
                    "repair must not race with them; repair it then, or allow open hours if nobody writes them"
                )
        return refused

    def _exceeding(self, prepared: Prepared) -> dict[datetime, BackfillError]:
        """The hours whose difference exceeds the change limits, with what exceeds them."""
        limits, table = self._job.request.change_limits, prepared.staging.table
        foreign: dict[datetime, tuple[int, str]] | None = None
        if limits.tenants is not None and table.tenant:
            foreign = foreign_tenants(prepared.staging, limits.tenants)
        exceeded: dict[datetime, BackfillError] = {}
        for hour, diff in prepared.diffs.items():
            if not diff.differs:
                continue
            change = HourChange(
                str(table),
                hour,
                stored=prepared.hours[hour].before.rows,
                changed=diff.changed,
                added=diff.only_here,
                removed=diff.only_there,
                columns=frozenset(changed.column for changed in diff.columns),
                totals={effect.column: (effect.before, effect.after) for effect in diff.effects},
                foreign=None if foreign is None else foreign.get(hour, (0, "")),
            )
            if objections := limits.objections(change):
                exceeded[hour] = ChangeLimitsExceeded(f"beyond the change limits: {'; '.join(objections)}")
        return exceeded


def _target_hour(
    result: HourPublish,
    prepared: Prepared,
    others_before: Fingerprints,
    others_after: Fingerprints,
    views_to_rebuild: str = "",
    history: tuple[LedgerEntry, ...] = (),
) -> TargetHour:
    others = (others_before[result.hour], others_after[result.hour]) if others_before else None
    return TargetHour(result, prepared.diffs.get(result.hour), views_to_rebuild, others, history)


def _outcome(step: TargetStep, result: HourPublish, target: TargetHour, exceeded: BackfillError | None) -> HourOutcome:
    good = result.status not in (Status.REFUSED, Status.UNVERIFIED)
    if isinstance(step, PublishHours):
        text = "after the publish, net state, FINAL and the lake have one fingerprint"
        check = CheckResult(
            MATCHES_LAKE, good and result.after == result.desired, True, text, {**_prints(result), **_counts(result)}
        )
    else:
        text = "the fingerprints of the warehouse and of the delta add up to the lake's"
        check = CheckResult(DELTA_PROVEN, good, True, text, _prints(result))
    if not check.passed:
        check = CheckResult(check.name, False, True, result.reason or f"not true: {text}", check.facts)
    limits = CheckResult(
        WITHIN_CHANGE_LIMITS,
        exceeded is None,
        blocking=True,
        description=str(exceeded or "the difference stays within the change limits of the repair"),
    )
    refused = isinstance(result.error, REFUSALS)
    return HourOutcome(step.asset, result.hour, result.reason, (check, limits), target=target, refused=refused)


def _prints(result: HourPublish) -> dict[str, Fact]:
    named: dict[str, Fingerprint | None] = {"before": result.before, "desired": result.desired, "after": result.after}
    return {name: str(value) for name, value in named.items() if value is not None}


def _counts(result: HourPublish) -> dict[str, Fact]:
    """The rows of the lake and of the warehouse as numbers, which can be plotted."""
    counts = RowCounts(result.desired.rows, (result.after or result.before).rows)
    facts: dict[str, Fact] = {"rows_expected": result.desired.rows, "rows_found": counts.found}
    return facts if counts.share is None else {**facts, "share": counts.share}
