"""Undoing a repair: the inverse of what it wrote to the warehouse, where that still is there. The lake stays as it is."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.publishing.patches import Undoable, load_undone, patched_hours, undoable
from backfill_platform.adapters.clickhouse.publishing.prepare import HourPublish, prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.domain.hours import HourRange, format_hour
from backfill_platform.errors import PreconditionError, UsageError
from backfill_platform.repair.audit_log import AuditLog
from backfill_platform.repair.runner import Context


@dataclass(frozen=True)
class Undone:
    """What became of one table: the hours, and what was and what could not be taken back."""

    table: str
    found: Undoable
    results: tuple[HourPublish, ...]

    @property
    def failed(self) -> tuple[HourPublish, ...]:
        """Hours that were refused or did not verify; their error says why."""
        return tuple(result for result in self.results if result.error)


def undo(context: Context, repair: str, hours: HourRange | None = None, tenant: str | None = None) -> Iterator[Undone]:
    """Take back what `repair` published to the tables of the pipeline, of the given hours or of all it changed.

    With a tenant only its rows are taken back, and tables whose rows belong to all tenants stay as they are.

    The undo is a repair itself: its patch is kept, and it can be undone. A row that is no longer what the repair wrote is a
    conflict and stays. Raises UsageError when there is nothing that could be undone.
    """
    patches: dict[str, tuple[datetime, ...]] = {}
    warehouse = context.warehouse()
    for table in context.pipeline.published:
        if tenant is not None and not table.tenant:
            continue
        try:
            patched = patched_hours(warehouse, table, repair, tenant)
        except PreconditionError:
            continue
        if chosen := tuple(hour for hour in patched if hours is None or hour in hours):
            patches[table.name] = chosen
    if not patches:
        within = (f" within {hours}" if hours else "") + (f" for {tenant}" if tenant is not None else "")
        raise UsageError(
            f"repair {repair} changed nothing of {context.pipeline.name}{within} that could be undone: see `backfill ledger "
            f"{context.pipeline.name}`; patches are kept for {context.patch_days} days"
        )
    for table in context.pipeline.published:
        if table.name not in patches:
            continue
        started = context.clock()
        since = fingerprints.net(warehouse, table, patches[table.name])
        found = undoable(warehouse, table, repair, patches[table.name], tenant)
        with Staging(warehouse, table, context.repair_id, patches[table.name]) as staging:
            load_undone(staging, repair, patches[table.name], tenant)
            audit_log = AuditLog(context, staging, None, started)
            prepared = prepare(staging, patches[table.name], since=since)
            results = publish(prepared, on_step=audit_log.before_inserts(prepared))
        audit_log.close(results)
        yield Undone(str(table), found, results)


def describe(undone: Undone) -> str:
    """One line per table for logs."""
    text = f"{undone.table}: {sum(undone.found.rows.values())} rows taken back in {len(undone.found.rows)} hours"
    if undone.found.conflicts:
        text += f", {undone.found.conflicts} rows left alone because they have changed since"
    for result in undone.failed:
        text += f"; {format_hour(result.hour)}: {result.reason}"
    return text
