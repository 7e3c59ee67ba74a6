"""What a repair writes to the ledger: what was asked for, what lake steps did, and what was done to a target, hour by hour."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.prepare import HourPublish, Status
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.schema import schema_hash
from backfill_platform.adapters.clickhouse.state.ledger import PUBLISHING, Ledger, LedgerEntry, Repair
from backfill_platform.adapters.clickhouse.target import Mode
from backfill_platform.adapters.iceberg.inventory import LakeFile
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.offsets import encode
from backfill_platform.domain.plan import Branch, LakeStep, Plan, RehearseBuild, RequeueHours
from backfill_platform.domain.tables import Table
from backfill_platform.repair.job import RepairJob
from backfill_platform.repair.outcomes import HourOutcome
from backfill_platform.repair.ports import LakeContents

_MOST_ENTRIES = 10  # of an hour's history
_DRY_RUN = "dry-run"

SnapshotOf = Callable[[Table, Branch], tuple[str, int | None]]


class AuditLog:
    """The ledger's account of a repair: the request, and what landing and building did."""

    def __init__(self, job: RepairJob, warehouse: Callable[[], Warehouse], snapshot_of: SnapshotOf) -> None:
        """`snapshot_of` gives the id of a lake table, and that of the newest snapshot of its branch."""
        self._job, self._warehouse, self._snapshot_of = job, warehouse, snapshot_of

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of the warehouse."""
        return Ledger(self._warehouse())

    def begin(self, plan: Plan) -> None:
        """Note what is asked for, with the plan itself."""
        job = self._job
        limits = job.request.change_limits.to_document()
        self.ledger.begin(
            Repair(
                job.repair_id,
                plan.pipeline,
                plan.hours.start,
                plan.hours.end,
                tuple("/".join(step.asset) for step in plan.steps),
                job.request.reason,
                job.request.requester,
                json.dumps(limits) if limits else "",
                json.dumps(plan.to_document()),
                job.identity.code_version,
                job.clock(),
            )
        )

    def lake_step(self, step: LakeStep, outcomes: Iterable[HourOutcome], started: datetime) -> None:
        """Note what landing or building did to each hour, with its counts."""
        table, request = step.node.table, self._job.request
        rehearsed = isinstance(step, RehearseBuild)
        lake_table, snapshot = self._snapshot_of(table, Branch.REPAIR if rehearsed else Branch.MAIN)
        # The rows of other tenants stay as other code may have built them: such an hour has no one version.
        version = "" if request.tenants and table.tenant else self._job.pipeline.code_version(table.name)
        common = {**_common(self._job, self._warehouse(), table), "code_version": version}
        self.ledger.append(
            LedgerEntry(
                attempt_id=self._job.repair_id,
                target=str(table),
                hour=outcome.hour,
                mode=_mode(step),
                status="refused" if outcome.error else "done",
                desired=outcome.lake.content if outcome.lake else None,
                rows_read=outcome.lake.rows_read if outcome.lake else None,
                rows_deduplicated=outcome.lake.deduplicated if outcome.lake else None,
                rows_kept=outcome.lake.rows if outcome.lake else None,
                rows_quarantined=outcome.lake.quarantined if outcome.lake else None,
                snapshot_id=snapshot,
                lake_table=lake_table,
                input_digest=outcome.lake.source_version if outcome.lake else "",
                offsets=encode(outcome.lake.offsets) if outcome.lake and outcome.lake.offsets else "",
                reason="; ".join(filter(None, (request.reason, outcome.error))),
                started_at=started,
                **common,
            )
            for outcome in outcomes
        )


def _mode(step: LakeStep) -> str:
    """The ledger's word: what a dry run builds never gets to `main`, and margins are landed like other hours."""
    if isinstance(step, RehearseBuild):
        return _DRY_RUN
    if isinstance(step, RequeueHours):
        return step.verb
    return "land" if step.node.reads is None else "build"


class TargetLog:
    """The ledger's account of one attempt at one target. `verb` is what is done: publish, dry-run or undo."""

    def __init__(self, job: RepairJob, staging: Staging, verb: str, started: datetime) -> None:
        self._job, self._staging, self._verb, self._started = job, staging, verb, started
        self._ledger = Ledger(staging.warehouse)

    def suspect_views(self, hours: Collection[datetime]) -> dict[datetime, str]:
        """For hours that an attempt died in after its first insert: the views that may lack rows since."""
        views = self._staging.target.views
        unfinished = self._ledger.unfinished(str(self._staging.table), hours) if views else {}
        return {
            hour: f"{', '.join(views)} may lack rows of this hour that attempt {attempt} inserted before it died: rebuild them"
            for hour, attempt in unfinished.items()
        }

    def views_to_rebuild(self, results: Iterable[HourPublish]) -> dict[datetime, str]:
        """For hours whose partition was written anew: the views that have counted what is gone now."""
        views, replaced = ", ".join(self._staging.target.views), self._staging.target.mode is Mode.REPLACE
        text = f"{views} did not see the partition of this hour being rewritten: rebuild them for it"
        return {
            result.hour: text
            for result in results
            if views and (replaced or result.inconsistency) and result.status is Status.PUBLISHED
        }

    def announce(self, results: Iterable[HourPublish]) -> None:
        """Note hours as publishing just before their first insert, where views read the target."""
        if self._staging.target.mode is Mode.INSERT and self._staging.target.views:
            self._ledger.append(self._entry(result, PUBLISHING) for result in results)

    def close(
        self, results: Sequence[HourPublish], lake: LakeContents | None = None, suspect: Mapping[datetime, str] | None = None
    ) -> None:
        """Note the result of every hour, and that dead attempts whose views are named in `suspect` are dealt with.

        `lake` is what the rows were taken from; None for an undo, which reads no lake.
        """
        by_hour: dict[datetime, list[LakeFile]] = {result.hour: [] for result in results}
        for file in lake.files if lake else ():
            by_hour[file.hour].append(file)
        tenants = self._job.request.tenants if self._staging.table.tenant else ()
        whose = f"only rows of {', '.join(tenants)}" if tenants else ""
        suspect = suspect or {}
        self._ledger.append(
            self._entry(
                result,
                str(result.status),
                rows_kept=None if lake is None else sum(file.rows for file in by_hour[result.hour]),
                rows_quarantined=None if lake is None else lake.quarantined.get(result.hour),
                # With tenants, what is desired is not what the files hold: the others' rows are the warehouse's own.
                input_digest="" if tenants else input_digest(by_hour[result.hour]),
                snapshot_id=None if lake is None else lake.snapshot_id,
                note="; ".join(filter(None, (whose, result.inconsistency, suspect.get(result.hour, "")))),
            )
            for result in results
        )
        self._ledger.abandon(str(self._staging.table), list(suspect), self._job.clock())

    def history(self, hours: Collection[datetime]) -> dict[datetime, tuple[LedgerEntry, ...]]:
        """What the ledger has of each hour, newest first."""
        table = str(self._staging.table)
        by_hour: dict[datetime, list[LedgerEntry]] = {}
        for entry in self._ledger.read(target=table, hours=hours, limit=_MOST_ENTRIES * len(hours), each=_MOST_ENTRIES):
            by_hour.setdefault(entry.hour, []).append(entry)
        return {hour: tuple(entries) for hour, entries in by_hour.items()}

    def _entry(self, result: HourPublish, status: str, **more: Any) -> LedgerEntry:
        table = self._staging.table
        return LedgerEntry(
            attempt_id=self._staging.lease.holder,
            target=str(table),
            hour=result.hour,
            mode=self._verb,
            status=status,
            before=result.before,
            desired=result.desired,
            after=result.after,
            cancels=result.cancels,
            states=result.states,
            untouched=result.untouched,
            rows_staged=result.desired.rows,
            publish_mode=str(self._staging.target.mode),
            reason="; ".join(filter(None, (self._job.request.reason, result.reason))),
            started_at=self._started,
            **more,
            **_common(self._job, self._staging.warehouse, table),
        )


def _common(job: RepairJob, warehouse: Warehouse, table: Table) -> dict[str, Any]:
    return {
        "repair_id": job.repair_id,
        "pipeline": job.pipeline.name,
        "requester": job.request.requester,
        "code_version": job.identity.code_version,
        "server_version": warehouse.server_version,
        "schema_hash": schema_hash(table),
        "finished_at": job.clock(),
    }


def check_claims(warehouse: Warehouse, table: Table, net: Mapping[datetime, Fingerprint]) -> dict[datetime, str]:
    """Whether each hour still is what the last repair of it left, in words; hours that the ledger does not know are absent."""
    claims = {}
    for hour, entry in Ledger(warehouse).last_published(str(table), list(net)).items():
        if (entry.server_version, entry.schema_hash) != (warehouse.server_version, schema_hash(table)):
            claims[hour] = f"{entry.repair_id}: not comparable, another server version or schema"
        elif entry.after == net[hour]:
            claims[hour] = f"{entry.repair_id}: holds"
        else:
            claims[hour] = f"{entry.repair_id}: changed since, it left {entry.after}"
    return claims


def input_digest(files: Iterable[LakeFile]) -> str:
    """Identifies the input of an hour: lake files are never changed, so their names and sizes do."""
    listed = sorted((file.uri, file.rows, file.bytes) for file in files)
    if not listed:
        return ""
    text = json.dumps(listed)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
