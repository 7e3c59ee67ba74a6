"""Migration: lake and ClickHouse follow a pipeline's declaration whose columns have changed; no row is rewritten.

First ClickHouse, target by target with the copies of it, then all lake tables in one commit. Until that commit the lake differs
from the declaration, so no run begins; and since the lake says what is still to be done, a migration that died is planned and
done again. Hours that were built before are stale then, because their code is another, and the ordinary run rebuilds them.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.evolution import StoredTable, alter, stored_tables
from backfill_platform.adapters.clickhouse.publishing.leases import Lease, create_leases, live_holders
from backfill_platform.adapters.clickhouse.schema import schema_hash
from backfill_platform.adapters.clickhouse.state.ledger import Ledger, LedgerEntry, Repair
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.domain.column_changes import ColumnChange, Kind
from backfill_platform.domain.gaps import code_changed
from backfill_platform.domain.tables import Table
from backfill_platform.errors import HourLeased, PreconditionError, UsageError
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.job import RepairJob

OnStep = Callable[[str], None]

_SECONDS_PATIENT = 5.0


@dataclass(frozen=True)
class TableMigration:
    """What becomes of one table: of its lake table, and of the tables that ClickHouse has of it, the target first.

    `stale` are the hours that were built by other code than is declared by now, and `to_land` those of a raw table that have no
    value for a new column until they land again.
    """

    table: Table
    lake: tuple[ColumnChange, ...]
    warehouse: tuple[StoredTable, ...]
    stale: tuple[datetime, ...] = ()
    to_land: tuple[datetime, ...] = ()

    @property
    def changes(self) -> tuple[ColumnChange, ...]:
        """All changes and refusals, each once."""
        return tuple(dict.fromkeys([*self.lake, *(one for stored in self.warehouse for one in stored.changes)]))


@dataclass(frozen=True)
class Migration:
    """What would make all tables of a pipeline as they are declared."""

    pipeline: str
    tables: tuple[TableMigration, ...]

    @property
    def refused(self) -> tuple[str, ...]:
        """What cannot be done, each with the table and the reason."""
        return tuple(f"{one.table}: {c}" for one in self.tables for c in one.changes if c.kind is Kind.REFUSE)

    @property
    def is_needed(self) -> bool:
        """Whether anything differs."""
        return any(one.changes for one in self.tables)

    def __str__(self) -> str:
        return "; ".join(f"{one.table}: {', '.join(map(str, one.changes))}" for one in self.tables if one.changes)


def plan_migration(
    pipeline: Pipeline, lake: Lake, warehouse: Warehouse, now: datetime, drops: Collection[str] = ()
) -> Migration:
    """Compare what is stored with what is declared; nothing is changed. `drops` names the columns that may be dropped.

    Raises UsageError for a column to drop that is declared.
    """
    for table in pipeline.tables:
        if declared := sorted(set(drops) & set(table.column_names)):
            raise UsageError(f"{', '.join(declared)} cannot be dropped: {table} declares it; take it out of the schema first")
    ledger, hours = Ledger(warehouse), pipeline.hours_until(now)
    published = set(pipeline.published)
    found = []
    for table in pipeline.tables:
        changes = tuple(lake.column_changes(table, drops))
        stored = tuple(stored_tables(warehouse, table, drops)) if table in published else ()
        stale: dict[datetime, str] = {}
        if table != pipeline.raw.table:
            last = {hour: claims[-1] for hour, claims in ledger.lake_history(str(table)).items() if hour in hours}
            stale = code_changed(last, pipeline.code_version(table.name))
        adds = table == pipeline.raw.table and any(one.kind is Kind.ADD for one in changes)
        landed = lake.built_hours(table) if adds else set()
        found.append(TableMigration(table, changes, stored, tuple(sorted(stale)), tuple(sorted(landed))))
    return Migration(pipeline.name, tuple(found))


def migrate(
    job: RepairJob, lake: Lake, warehouse: Warehouse, drops: Collection[str] = (), on_step: OnStep = lambda step: None
) -> Migration:
    """Make all tables of the pipeline as they are declared, and return what was done.

    It may be killed at any point and done again. Raises PreconditionError, and changes nothing, when something is refused;
    HourLeased while a repair is at work on one of the targets.
    """
    pipeline = job.pipeline
    with _leased(job, warehouse):
        on_step("leased")
        migration = plan_migration(pipeline, lake, warehouse, job.clock(), drops)
        if migration.refused:
            raise PreconditionError(f"{pipeline.name} cannot be migrated: {'; '.join(migration.refused)}; nothing was changed")
        if not migration.is_needed:
            return migration
        started = job.clock()
        _begin(job, warehouse, migration)
        on_step("noted")
        for one in migration.tables:
            for stored in one.warehouse:
                for change in stored.changes:
                    alter(warehouse, one.table, stored, change)
                    on_step(f"{stored}: {change}")
        lake.evolve({one.table: one.lake for one in migration.tables if one.lake})
        on_step("lake")
        Ledger(warehouse).append(_entries(job, warehouse, migration, started))
    return migration


@contextmanager
def _leased(job: RepairJob, warehouse: Warehouse) -> Iterator[None]:
    """Lease all hours of all targets. Raises HourLeased where somebody is at work, be it a dry run."""
    hours = list(job.pipeline.hours_until(job.clock()))
    create_leases(warehouse)
    with ExitStack() as held:
        for table in job.pipeline.published:
            if others := live_holders(warehouse, table):
                raise HourLeased(
                    f"{table} is being repaired by {', '.join(sorted(others))}; wait for it or stop it, then migrate again"
                )
            lease = Lease(
                warehouse, table, hours, attempt=job.repair_id, token="migrate", exclusive=True, patience=_SECONDS_PATIENT
            )
            lease.take()
            held.callback(lease.release)
            held.enter_context(lease.renewed())
        yield


def _begin(job: RepairJob, warehouse: Warehouse, migration: Migration) -> None:
    """Note what is about to be done: should this process die, the ledger has it."""
    hours = job.pipeline.hours_until(job.clock())
    Ledger(warehouse).begin(
        Repair(
            job.repair_id,
            job.pipeline.name,
            hours.start,
            hours.end,
            tuple(str(one.table) for one in migration.tables if one.changes),
            f"migrate: {migration}",
            job.request.requester,
            "",
            "",
            job.identity.code_version,
            job.clock(),
        )
    )


def _entries(job: RepairJob, warehouse: Warehouse, migration: Migration, started: datetime) -> Iterator[LedgerEntry]:
    """One entry for each table, at the first hour of the pipeline: what was done concerns all of them."""
    for one in migration.tables:
        if one.changes:
            yield LedgerEntry(
                repair_id=job.repair_id,
                attempt_id=job.repair_id,
                pipeline=job.pipeline.name,
                target=str(one.table),
                hour=job.pipeline.start,
                mode="migrate",
                status="done",
                requester=job.request.requester,
                code_version=job.pipeline.code_version(one.table.name),
                server_version=warehouse.server_version,
                schema_hash=schema_hash(one.table),
                started_at=started,
                finished_at=job.clock(),
                reason=", ".join(map(str, one.changes)),
            )
