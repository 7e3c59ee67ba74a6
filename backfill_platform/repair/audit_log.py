"""What a repair writes to the ledger: what was asked for, what lake steps did, and what was done to a target, hour by hour."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.preconditions import Mode
from backfill_platform.adapters.clickhouse.publishing.prepare import HourPublish, Prepared, Status
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.schema import schema_hash
from backfill_platform.adapters.clickhouse.state.ledger import PUBLISHING, Ledger, LedgerEntry, Repair
from backfill_platform.adapters.iceberg.inventory import LakeFile
from backfill_platform.adapters.iceberg.lake import MAIN
from backfill_platform.domain.change_limits import NO_LIMITS
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.plan import Action, Plan, Step
from backfill_platform.domain.tables import Table
from backfill_platform.repair.outcomes import OFFSETS, Fact, HourOutcome, Rows

if TYPE_CHECKING:
    from backfill_platform.repair.runner import Context


_SHOWN = 10


def begin(plan: Plan, context: Context) -> None:
    """Note what is asked for."""
    change_limits = "" if context.change_limits == NO_LIMITS else json.dumps(asdict(context.change_limits), default=_plain)
    context.ledger.begin(
        Repair(
            context.repair_id,
            plan.pipeline,
            plan.hours.start,
            plan.hours.end,
            tuple("/".join(step.asset) for step in plan.steps),
            context.reason,
            context.requester,
            change_limits,
            context.code_version,
            context.clock(),
        )
    )


def lake_step(step: Step, outcomes: Iterable[HourOutcome], context: Context, started: datetime) -> None:
    """Note what landing or building did to each hour, with its counts."""
    table = step.node.table
    snapshot = context.lake.snapshot(table, branch=MAIN if step.promote else context.repair_id)
    # The rows of other tenants stay as other code may have built them: such an hour has no one version.
    version = "" if context.tenants and table.tenant else context.pipeline.code_version(table.name)
    context.ledger.append(
        LedgerEntry(
            attempt_id=context.repair_id,
            target=str(table),
            hour=outcome.hour,
            # What a dry run builds never gets to `main`.
            mode=str(step.action if step.promote else Action.DRY_RUN),
            status="refused" if outcome.error else "done",
            desired=outcome.content,
            rows_read=_count(outcome, "rows_read"),
            rows_deduplicated=_count(outcome, "deduplicated"),
            rows_kept=_count(outcome, "rows"),
            rows_quarantined=_count(outcome, "quarantined"),
            snapshot_id=snapshot,
            offsets=str(outcome.facts.get(OFFSETS, "")),
            reason="; ".join(filter(None, (context.reason, outcome.error))),
            started_at=started,
            **{**_common(context, table), "code_version": version},
        )
        for outcome in outcomes
    )


def check_claims(warehouse: Warehouse, table: Table, net: Mapping[datetime, Fingerprint]) -> dict[datetime, str]:
    """Whether each hour still is what the last repair of it left, in words; hours that the ledger does not know are absent."""
    told = {}
    for hour, entry in Ledger(warehouse).last_published(str(table), list(net)).items():
        if (entry.server_version, entry.schema_hash) != (warehouse.server_version, schema_hash(table)):
            told[hour] = f"{entry.repair_id}: not comparable, another server version or schema"
        elif entry.after == net[hour]:
            told[hour] = f"{entry.repair_id}: holds"
        else:
            told[hour] = f"{entry.repair_id}: changed since, it left {entry.after}"
    return told


class AuditLog:
    """The ledger's pages of one attempt at one target."""

    def __init__(self, context: Context, staging: Staging, step: Step | None, started: datetime) -> None:
        """`step` is None for an undo, which reads no lake."""
        self._context = context
        self._staging = staging
        self._step = step
        self._started = started
        self._ledger = context.ledger

    def suspect_views(self, hours: Collection[datetime]) -> dict[datetime, str]:
        """For hours that an attempt died in after its first insert: the views that may lack rows since."""
        views = self._staging.target.views
        unfinished = self._ledger.unfinished(str(self._staging.table), hours) if views else {}
        return {
            hour: f"{', '.join(views)} may lack rows of this hour that attempt {attempt} inserted before it died: rebuild them"
            for hour, attempt in unfinished.items()
        }

    def views_to_rebuild(self, results: Iterable[HourPublish]) -> dict[datetime, str]:
        """For hours whose partition was rewritten: the views that have counted what is gone now."""
        views = ", ".join(self._staging.target.views)
        text = f"{views} did not see the partition of this hour being rewritten: rebuild them for it"
        return {result.hour: text for result in results if views and result.inconsistency and result.status is Status.PUBLISHED}

    def before_inserts(self, prepared: Prepared) -> Callable[[str], None]:
        """A listener that notes hours as publishing just before the first insert, where views read the target."""

        def on_step(name: str) -> None:
            if name == "rechecked" and self._staging.target.mode is Mode.INSERT and self._staging.target.views:
                hours = [result for result in prepared.hours.values() if result.status is Status.PROVEN]
                self._ledger.append(self._entry(result, PUBLISHING) for result in hours)

        return on_step

    def close(
        self,
        results: Sequence[HourPublish],
        files: Iterable[LakeFile] = (),
        quarantined: Mapping[datetime, int] | None = None,
        notes: Mapping[datetime, str] | None = None,
    ) -> None:
        """Note the result of every hour, and that dead attempts whose views are named in `notes` are dealt with."""
        by_hour: dict[datetime, list[LakeFile]] = {result.hour: [] for result in results}
        for file in files:
            by_hour[file.hour].append(file)
        snapshot = None
        if self._step is not None:
            branch = self._context.repair_id if self._step.from_branch else MAIN
            snapshot = self._context.lake.snapshot(self._staging.table, branch=branch)
        tenants = self._context.tenants if self._staging.table.tenant else ()
        whose = f"only rows of {', '.join(tenants)}" if tenants else ""
        entries = []
        for result in results:
            found = by_hour[result.hour]
            entries.append(
                self._entry(
                    result,
                    str(result.status),
                    rows_kept=None if self._step is None else sum(file.rows for file in found),
                    rows_quarantined=(quarantined or {}).get(result.hour),
                    # With tenants, what is desired is not what the files hold: the others' rows are the warehouse's own.
                    input_digest="" if tenants else input_digest(found),
                    snapshot_id=snapshot,
                    note="; ".join(filter(None, (whose, result.inconsistency, (notes or {}).get(result.hour, "")))),
                )
            )
        self._ledger.append(entries)
        self._ledger.abandon(str(self._staging.table), list(notes or {}), self._context.clock())

    def history(self, hours: Collection[datetime]) -> dict[datetime, tuple[Rows, ...]]:
        """What the ledger knows of each hour, newest first, as a table for people."""
        found: dict[datetime, list[tuple[Fact, ...]]] = {}
        for entry in self._ledger.read(target=str(self._staging.table), hours=hours, limit=_SHOWN * len(hours), each=_SHOWN):
            did = f"{entry.mode}: {entry.status}"
            line = (f"{entry.finished_at:%Y-%m-%d %H:%M}", entry.repair_id, did, entry.cancels, entry.states, entry.reason)
            found.setdefault(entry.hour, []).append(line)
        columns = ("finished (UTC)", "repair", "did", "cancels", "states", "reason")
        return {hour: (Rows("ledger", columns, tuple(lines)),) for hour, lines in found.items()}

    def _entry(self, result: HourPublish, status: str, **more: Any) -> LedgerEntry:
        table = self._staging.table
        return LedgerEntry(
            attempt_id=self._staging.lease.holder,
            target=str(table),
            hour=result.hour,
            mode="undo" if self._step is None else str(self._step.action),
            status=status,
            before=result.before,
            desired=result.desired,
            after=result.after,
            cancels=result.cancels,
            states=result.states,
            untouched=result.untouched,
            rows_staged=result.desired.rows,
            publish_mode=str(self._staging.target.mode),
            reason="; ".join(filter(None, (self._context.reason, result.reason))),
            started_at=self._started,
            **more,
            **_common(self._context, table),
        )


def _common(context: Context, table: Table) -> dict[str, Any]:
    return {
        "repair_id": context.repair_id,
        "pipeline": context.pipeline.name,
        "requester": context.requester,
        "code_version": context.code_version,
        "server_version": context.warehouse().server_version,
        "schema_hash": schema_hash(table),
        "finished_at": context.clock(),
    }


def input_digest(files: Iterable[LakeFile]) -> str:
    """Identifies the input of an hour: lake files are never changed, so their names and sizes do."""
    listed = sorted((file.uri, file.rows, file.bytes) for file in files)
    if not listed:
        return ""
    text = json.dumps(listed)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _count(outcome: HourOutcome, name: str) -> int | None:
    value = outcome.facts.get(name)
    return value if isinstance(value, int) else None


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, frozenset) else str(value)
