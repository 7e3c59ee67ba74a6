"""What Dagster's history no longer needs, removed: logs of old runs, and what newer events have replaced.

Kept is whatever a page says of an hour as it is: the newest materialization, the newest plan where nothing was materialized
since (such an hour is failed, or damaged), the newest evaluation of each check; the newest report of each asset; all of runs
that have not ended, or belong to a backfill that has not; and the runs that any of these belong to. The tables are Dagster's
private ones.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import dagster as dg
import sqlalchemy as db
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, AssetEventTagsTable, SqlEventLogStorageTable

from backfill_platform.domain.hours import partition_key
from backfill_platform.errors import UsageError
from backfill_platform.orchestration.dagster_overrides.check_ranges import hours_of_text
from backfill_platform.orchestration.dagster_overrides.hourly_event_log import HourlyEventLog
from backfill_platform.orchestration.dagster_overrides.private_names import active_backfills

_RUNS = 200  # of one transaction: others wait meanwhile
_ROWS = 500  # that are deleted by one statement
_MATERIALIZED = dg.DagsterEventType.ASSET_MATERIALIZATION.value
_PLANNED = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED.value
_NEWEST_STAYS = (_MATERIALIZED, _PLANNED, dg.DagsterEventType.ASSET_OBSERVATION.value)
_BACKFILL = "dagster/backfill"
_ASKED_ONCE = "dagster/run_key"  # a sensor never asks twice for what has such a run

_events = SqlEventLogStorageTable
_checks = AssetCheckExecutionsTable


@dataclass(frozen=True)
class Pruned:
    """What was removed: the logs of `runs`, rows about `events` and checks, and the `bytes` that the disk got back."""

    runs: int
    events: int
    bytes: int


def prune_history(instance: dg.DagsterInstance, until: datetime) -> Pruned:
    """Remove the detail of runs that ended before `until` (aware). May run beside others; running it again does what is left.

    PostgreSQL keeps the space for what is written next. Raises UsageError for a storage that is not one of ours.
    """
    log = instance.event_log_storage
    if not isinstance(log, HourlyEventLog):
        raise UsageError("Dagster's history is pruned in the storages of this platform only: see `storage` in dagster.yaml")
    size, removed = log.size(), 0
    old = _old_runs(instance, until)
    if not old:
        return Pruned(0, 0, 0)
    superseded = list(_superseded_checks(log, {run.run_id for run in old}))
    for numbers in _parts(superseded, _ROWS):
        with log.transaction() as connection:
            removed += connection.execute(_checks.delete().where(_checks.c.id.in_(numbers))).rowcount
    for runs in _parts(old, _RUNS):
        names = [run.run_id for run in runs]
        with log.transaction() as connection:
            removed += connection.execute(_events.delete().where(_not_needed(names))).rowcount
            needed = set(
                connection.execute(db.select(_events.c.run_id).where(_events.c.run_id.in_(names)).distinct()).scalars()
            )
            needed |= set(
                connection.execute(db.select(_checks.c.run_id).where(_checks.c.run_id.in_(names)).distinct()).scalars()
            )
        log.forget_logs(names)
        for run in runs:
            instance.compute_log_manager.delete_logs(prefix=[run.run_id])
            if run.run_id not in needed and _ASKED_ONCE not in run.tags:
                instance.run_storage.delete_run(run.run_id)
    with log.transaction() as connection:
        gone = ~db.exists().where(_events.c.id == AssetEventTagsTable.c.event_id)
        connection.execute(AssetEventTagsTable.delete().where(gone))
    log.give_back_space()
    return Pruned(len(old), removed, max(0, size - log.size()))


def _old_runs(instance: dg.DagsterInstance, until: datetime) -> list[dg.DagsterRun]:
    """The runs that ended before, without those of backfills that go on."""
    going_on = {backfill.backfill_id for backfill in active_backfills(instance)}
    found = instance.get_run_records(dg.RunsFilter(statuses=FINISHED_STATUSES, updated_before=until.astimezone(UTC)))
    return [record.dagster_run for record in found if record.dagster_run.tags.get(_BACKFILL) not in going_on]


def _not_needed(runs: Sequence[str]) -> db.ColumnElement[bool]:
    """The events of these runs that nothing shows any more. The newest of all stays: its number must not be given again."""
    newer = _events.alias()
    kind = db.func.coalesce(_events.c.dagster_event_type, "")
    after = db.and_(newer.c.asset_key == _events.c.asset_key, newer.c.id > _events.c.id)
    same_hour = newer.c.partition == _events.c.partition
    neither_has_one = db.and_(newer.c.partition.is_(None), _events.c.partition.is_(None))
    same_kind = newer.c.dagster_event_type == _events.c.dagster_event_type
    made = newer.c.dagster_event_type == _MATERIALIZED
    return db.and_(
        _events.c.run_id.in_(runs),
        _events.c.id < db.select(db.func.max(newer.c.id)).scalar_subquery(),
        db.or_(
            kind.not_in(_NEWEST_STAYS),
            db.exists().where(after, same_kind, same_hour),
            db.exists().where(after, same_kind, neither_has_one),
            # A plan that was carried out; of each asset the newest stays, from which Dagster reads on.
            db.and_(kind == _PLANNED, db.exists().where(after, made, same_hour), db.exists().where(after, same_kind)),
        ),
    )


def _superseded_checks(log: HourlyEventLog, old: Collection[str]) -> Iterator[int]:
    """The rows of old runs about checks of which newer ones say more, for each of their hours."""
    column = _checks.c
    query = db.select(
        column.asset_key, column.check_name, column.id, column.partition, column.run_id, column.execution_status
    ).order_by(column.asset_key, column.check_name, column.id.desc())
    with log.index_connection() as connection:
        rows: list[Any] = connection.execute(query).all()
    for _, of_check in groupby(rows, key=lambda row: (row.asset_key, row.check_name)):
        known: set[str | None] = set()
        judged: set[str | None] = set()
        for row in of_check:
            hours = hours_of_text(row.partition)
            parts = {row.partition} if hours is None else set(map(partition_key, hours))
            only_planned = row.execution_status == AssetCheckExecutionRecordStatus.PLANNED.value
            if parts <= known and (only_planned or parts <= judged) and row.run_id in old:
                yield row.id
            known |= parts
            judged |= set() if only_planned else parts


def _parts(whole: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(whole), size):
        yield whole[start : start + size]
