"""Undoing a repair: the inverse of what it wrote to the warehouse, where that still is there. The lake stays as it is."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.patches import Undoable, load_undone, patched_hours, undoable
from backfill_platform.adapters.clickhouse.publishing.prepare import HourPublish, Status, prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.domain.hours import HourRange, format_hour
from backfill_platform.domain.tables import Table
from backfill_platform.errors import PreconditionError, UsageError
from backfill_platform.repair.audit_log import TargetLog
from backfill_platform.repair.job import RepairJob

_VERB = "undo"


@dataclass(frozen=True)
class UndoScope:
    """Which repair to undo, and of it the hours `[start, end)` and the rows of a tenant; None for all."""

    repair_id: str
    hours: HourRange | None = None
    tenant: str | None = None

    def __str__(self) -> str:
        return (f" within {self.hours}" if self.hours else "") + (f" for {self.tenant}" if self.tenant is not None else "")


@dataclass(frozen=True)
class UndoneTable:
    """What became of one table: what could be taken back, what was in conflict, and the result of every hour."""

    table: str
    undoable: Undoable
    results: tuple[HourPublish, ...]

    @property
    def failed(self) -> tuple[HourPublish, ...]:
        """Hours that were refused or did not verify; their error says why."""
        return tuple(result for result in self.results if result.error)


def undo_repair(job: RepairJob, scope: UndoScope, warehouse: Warehouse) -> Iterator[UndoneTable]:
    """Take back what the repair published to the tables of the pipeline, within the scope.

    With a tenant only its rows are taken back, and tables whose rows belong to all tenants stay as they are. The undo is a
    repair itself: its patch is kept, and it can be undone. A row that is no longer what the repair wrote is a conflict and
    stays. Raises UsageError when there is nothing that could be undone.
    """
    patched = [
        (table, hours)
        for table in job.pipeline.published
        if (scope.tenant is None or table.tenant) and (hours := _patched_hours(warehouse, table, scope, unsure=True))
    ]
    if not patched:
        raise UsageError(
            f"repair {scope.repair_id} changed nothing of {job.pipeline.name}{scope} that could be undone: see "
            f"`backfill ledger {job.pipeline.name}`; what a repair wrote is kept for BACKFILL_PATCH_DAYS"
        )
    for table, hours in patched:
        yield _undo_table(job, scope, warehouse, table, hours)


def changed_hours(undone: UndoneTable) -> tuple[datetime, ...]:
    """The hours of the table that hold other rows than before, or may."""
    written = (Status.PUBLISHED, Status.UNVERIFIED)
    return tuple(one.hour for one in undone.results if one.status in written and (one.cancels or one.states))


def describe(undone: UndoneTable) -> str:
    """One line per table for logs."""
    rows, hours = sum(undone.undoable.rows.values()), len(undone.undoable.rows)
    text = f"{undone.table}: {rows} row{'s' * (rows != 1)} taken back in {hours} hour{'s' * (hours != 1)}"
    if conflicts := undone.undoable.conflicts:
        text += f", {conflicts} row{'s' * (conflicts != 1)} left alone because they have changed since"
    for result in undone.failed:
        text += f"; {format_hour(result.hour)}: {result.reason}"
    return text


def _patched_hours(warehouse: Warehouse, table: Table, scope: UndoScope, *, unsure: bool = False) -> tuple[datetime, ...]:
    try:
        hours = patched_hours(warehouse, table, scope.repair_id, scope.tenant, unsure=unsure)
    except PreconditionError:
        return ()
    return tuple(hour for hour in hours if scope.hours is None or hour in scope.hours)


def _undo_table(
    job: RepairJob, scope: UndoScope, warehouse: Warehouse, table: Table, hours: tuple[datetime, ...]
) -> UndoneTable:
    started = job.clock()
    stored_before = fingerprints.net(warehouse, table, hours)
    with Staging(warehouse, table, job.repair_id, hours) as staging:
        # A process of the repair that died is settled by now: only here it is known which hours it had published.
        hours = _patched_hours(warehouse, table, scope)
        if not hours:
            return UndoneTable(str(table), Undoable({}, 0, ()), ())
        found = undoable(warehouse, table, scope.repair_id, hours, scope.tenant)
        load_undone(staging, scope.repair_id, hours, scope.tenant)
        log = TargetLog(job, staging, _VERB, started)
        results = publish(prepare(staging, hours, since=stored_before), before_inserts=log.announce)
    log.close(results)
    return UndoneTable(str(table), found, results)
