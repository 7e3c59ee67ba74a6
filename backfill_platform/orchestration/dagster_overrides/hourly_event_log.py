"""What our event logs share, in SQLite and in PostgreSQL: batches, packed texts, and checks whose rows are ranges of hours.

Add here: what reads or writes the tables of any SQL storage.
Keep out: connections and transactions, which each storage has of its own.
"""

import os
import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import dagster as dg
import sqlalchemy as db
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.events import ASSET_CHECK_EVENTS, ASSET_EVENTS
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
    AssetCheckPartitionInfo,
)
from dagster._core.storage.asset_check_state import AssetCheckState
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._serdes import deserialize_value

from backfill_platform.domain.hours import partition_key
from backfill_platform.orchestration.dagster_overrides.check_ranges import (
    hour_of_range,
    hours_of_text,
    is_of_hours,
    materializations,
    merged,
)
from backfill_platform.orchestration.dagster_overrides.check_states import check_states, is_hourly
from backfill_platform.orchestration.dagster_overrides.compact_text import store_compactly

BATCH = 500  # events of one transaction: others wait meanwhile
# Read by Dagster at each event: how many it hands over at once where it knows that more follow, as when a run is created.
_BATCH_SIZE = "DAGSTER_EVENT_BATCH_SIZE"
_KEY_LETTERS = 16  # of a partition key; a range is two of them with three dots between
_CHECKS = AssetCheckExecutionsTable.c


class HourlyEventLog(SqlEventLogStorage):
    """A Dagster event log in SQL that writes batches, and one row for a check that says the same of contiguous hours."""

    def begin_batching(self) -> None:
        """Called by the constructor of a storage, before Dagster's."""
        self._here = threading.local()
        self._tables: set[str] = set()
        os.environ.setdefault(_BATCH_SIZE, str(BATCH))
        store_compactly()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Keep the events that this thread stores inside the block, and write them together, at its end at the latest."""
        self._here.batch = []
        try:
            yield
        finally:
            events, self._here.batch = self._here.batch, None
            if events:
                self.store_event_batch(events)

    def store_event(self, event: dg.EventLogEntry) -> None:
        """Store an event, or keep it for the end of the `batch`."""
        kept: list[dg.EventLogEntry] | None = getattr(self._here, "batch", None)
        if kept is None:
            self.store_event_batch([event])
            return
        kept.append(event)
        if len(kept) >= BATCH:
            self._here.batch = []
            self.store_event_batch(kept)

    def store_event_batch(self, events: Sequence[dg.EventLogEntry]) -> None:
        """Store events together; evaluations of a check that say the same of contiguous hours become one."""
        self._store(merged(events))

    @abstractmethod
    def _store(self, events: Sequence[dg.EventLogEntry]) -> None:
        """Write events in as few transactions as the storage can."""

    @abstractmethod
    def size(self) -> int:
        """The bytes of the event log on disk."""

    @abstractmethod
    def forget_logs(self, run_ids: Sequence[str]) -> None:
        """Remove what is stored of these runs outside of the tables of all runs."""

    @abstractmethod
    def give_back_space(self) -> None:
        """Make the space of removed rows free, without making others wait for long."""

    @contextmanager
    def transaction(self) -> Iterator[db.Connection]:
        """A transaction of the tables of all runs that whatever this thread calls inside the block takes part in."""
        with self.index_transaction() as connection:
            self._here.index = connection
            try:
                yield connection
            finally:
                self._here.index = None

    def index_connection(self) -> Any:
        """A connection to the tables of all runs: the one that this thread has a transaction on, or a new one."""
        opened = getattr(self._here, "index", None)
        return super().index_connection() if opened is None else nullcontext(opened)  # type: ignore[safe-super]  # a mixin

    def has_table(self, table_name: str) -> bool:
        """Whether there is a table; asked for every check evaluation."""
        if table_name not in self._tables and super().has_table(table_name):  # type: ignore[safe-super]  # a mixin
            self._tables.add(table_name)
        return table_name in self._tables

    def _insert(self, connection: db.Connection, events: Sequence[tuple[dg.EventLogEntry, Mapping[str, Any]]]) -> None:
        """Write rows of events, and what queries over many runs need: assets and checks."""
        rows = [row for _, row in events]
        insert = SqlEventLogStorageTable.insert().returning(SqlEventLogStorageTable.c.id, sort_by_parameter_order=True)
        numbers = [int(number) for (number,) in connection.execute(insert, rows)]
        newest: dict[tuple[Any, Any], tuple[dg.EventLogEntry, int]] = {}
        tagged: list[tuple[dg.EventLogEntry, int]] = []
        for (event, row), number in zip(events, numbers, strict=True):
            if event.dagster_event_type in ASSET_EVENTS and row["asset_key"]:
                tagged.append((event, number))
                newest[row["asset_key"], event.dagster_event_type] = event, number
            elif event.dagster_event_type in ASSET_CHECK_EVENTS:
                self.store_asset_check_event(event, number)
        if tagged:
            self._store_asset_event_tags(connection, [event for event, _ in tagged], [number for _, number in tagged])
        # An asset's row says what came last; Dagster writes it for every event.
        for event, number in newest.values():
            self._store_asset_event(connection, event, number)

    def _store_asset_check_evaluation_planned(self, event: dg.EventLogEntry, event_id: int | None) -> None:
        """Planned checks of hours leave no row: what was said of an hour last holds until it is judged again.

        With Dagster's rows, a run that is stopped takes back what checks have said of hours that it never came to.
        """
        if not is_of_hours(event):
            super()._store_asset_check_evaluation_planned(event, event_id)

    def _update_asset_check_evaluation(self, event: dg.EventLogEntry, event_id: int | None) -> None:
        """Dagster's changes the row of the same run and partition. That of a range is made anew: the newest row counts."""
        evaluation = cast(dg.AssetCheckEvaluation, event.get_dagster_event().event_specific_data)
        if hours_of_text(evaluation.partition) is not None:
            old = db.and_(
                _of_check(evaluation.asset_check_key),
                _CHECKS.run_id == event.run_id,
                _CHECKS.partition == evaluation.partition,
            )
            with self.index_connection() as connection:
                connection.execute(AssetCheckExecutionsTable.delete().where(old))
        super()._update_asset_check_evaluation(event, event_id)

    def get_asset_check_state(
        self, keys: Sequence[tuple[dg.AssetCheckKey, dg.PartitionsDefinition[str] | None]]
    ) -> Mapping[dg.AssetCheckKey, AssetCheckState]:
        """The states of checks, for pages that show them."""
        hourly = [(key, partitions) for key, partitions in keys if is_hourly(partitions)]
        others = [(key, partitions) for key, partitions in keys if not is_hourly(partitions)]
        return {**check_states(self._instance, hourly), **(super().get_asset_check_state(others) if others else {})}

    def get_asset_check_partition_info(
        self,
        keys: Sequence[dg.AssetCheckKey],
        after_storage_id: int | None = None,
        partition_keys: Sequence[str] | None = None,
    ) -> Sequence[AssetCheckPartitionInfo]:
        """What came last of each check and partition: of rows about one, as Dagster has it, and of rows about ranges."""
        chosen = None if partition_keys is None else set(partition_keys)
        newest: dict[tuple[dg.AssetCheckKey, str | None], AssetCheckPartitionInfo] = {}
        # A range tells later rows by their number from those that it overrules, so older ones must be known, too.
        for info in super().get_asset_check_partition_info(list(keys), None, partition_keys):
            if hours_of_text(info.partition_key) is None:
                newest[info.check_key, info.partition_key] = info
        made: dict[dg.AssetKey, Mapping[str, int]] = {}
        whole = self._get_latest_unpartitioned_materialization_storage_ids(list({key.asset_key for key in keys}))
        for key in keys:
            for info in self._range_infos(key, made, whole.get(key.asset_key)):
                place = key, info.partition_key
                before = newest.get(place)
                if chosen is not None and info.partition_key not in chosen:
                    continue
                if before is None or before.latest_check_event_storage_id < info.latest_check_event_storage_id:
                    newest[place] = info
        return [info for info in newest.values() if after_storage_id is None or _number(info) > after_storage_id]

    def _range_infos(
        self, key: dg.AssetCheckKey, made: dict[dg.AssetKey, Mapping[str, int]], whole: int | None
    ) -> Iterator[AssetCheckPartitionInfo]:
        """What the ranges say of each of their hours, older ones first.

        `made` keeps the materializations of assets by hour, `whole` is the newest of the asset without an hour.
        """
        query = db.select(AssetCheckExecutionsTable).where(_of_check(key), _is_range(_CHECKS.partition)).order_by(_CHECKS.id)
        with self.index_connection() as connection:
            rows = connection.execute(query).mappings().all()
        if rows and key.asset_key not in made:
            kind = dg.DagsterEventType.ASSET_MATERIALIZATION
            made[key.asset_key] = self.get_latest_storage_id_by_partition(key.asset_key, kind)
        for row in rows:
            hours = hours_of_text(row["partition"])
            assert hours is not None
            status = AssetCheckExecutionRecordStatus(row["execution_status"])
            event = deserialize_value(row["evaluation_event"], dg.EventLogEntry)
            judged = [one.storage_id for one in materializations(event)]
            for hour, number in zip(map(partition_key, hours), judged, strict=True):
                yield AssetCheckPartitionInfo(
                    check_key=key,
                    partition_key=hour,
                    latest_execution_status=status,
                    latest_target_materialization_storage_id=number,
                    latest_planned_run_id=row["run_id"],
                    latest_check_event_storage_id=row["evaluation_event_storage_id"],
                    latest_materialization_storage_id=max(filter(None, (made[key.asset_key].get(hour), whole)), default=None),
                )

    def get_asset_check_execution_history(
        self,
        check_key: dg.AssetCheckKey,
        limit: int,
        cursor: int | None = None,
        status: Any = None,
        partition_filter: PartitionKeyFilter | None = None,
    ) -> Sequence[AssetCheckExecutionRecord]:
        """The executions of a check, newest first; those of one hour with what ranges say of it."""
        own = super().get_asset_check_execution_history(check_key, limit, cursor, status, partition_filter)
        if partition_filter is None or partition_filter.key is None:
            return own
        query = self._ranges_with(check_key, partition_filter.key).limit(limit)
        query = query.where(_CHECKS.id < cursor) if cursor else query
        query = query.where(_CHECKS.execution_status.in_([one.value for one in status])) if status else query
        found = [*own, *self._records(query, check_key, partition_filter.key)]
        return sorted(found, key=lambda record: record.id, reverse=True)[:limit]

    def get_latest_asset_check_execution_by_key(
        self, check_keys: Sequence[dg.AssetCheckKey], partition_filter: PartitionKeyFilter | None = None
    ) -> Mapping[dg.AssetCheckKey, AssetCheckExecutionRecord]:
        """The newest execution of each check; of one hour it may be what a range says of it."""
        newest = dict(super().get_latest_asset_check_execution_by_key(check_keys, partition_filter))
        if partition_filter is None or partition_filter.key is None:
            return newest
        for key in check_keys:
            query = self._ranges_with(key, partition_filter.key).limit(1)
            for record in self._records(query, key, partition_filter.key):
                if key not in newest or newest[key].id < record.id:
                    newest[key] = record
        return newest

    def _ranges_with(self, key: dg.AssetCheckKey, hour: str) -> db.Select[Any]:
        """The rows of ranges that hold an hour, newest first, without what the same run has said more of since."""
        said = AssetCheckExecutionsTable.alias()
        more = db.exists().where(
            said.c.asset_key == _CHECKS.asset_key,
            said.c.check_name == _CHECKS.check_name,
            said.c.run_id == _CHECKS.run_id,
            said.c.id > _CHECKS.id,
            db.or_(said.c.partition == hour, _holds(said.c.partition, hour)),
        )
        query = db.select(AssetCheckExecutionsTable).where(_of_check(key), _holds(_CHECKS.partition, hour), ~more)
        return query.order_by(_CHECKS.id.desc())

    def _records(self, query: db.Select[Any], key: dg.AssetCheckKey, hour: str) -> Iterator[AssetCheckExecutionRecord]:
        """What the rows of ranges say of one of their hours."""
        with self.index_connection() as connection:
            rows = connection.execute(query).mappings().all()
        for row in rows:
            record = AssetCheckExecutionRecord.from_db_row(row, key=key)
            yield record._replace(event=hour_of_range(cast(dg.EventLogEntry, record.event), hour), partition=hour)


@contextmanager
def batched(instance: dg.DagsterInstance) -> Iterator[None]:
    """Write the events that this thread logs inside the block together, where the storage of the instance is ours."""
    storage = instance.event_log_storage
    with storage.batch() if isinstance(storage, HourlyEventLog) else nullcontext():
        yield


def _of_check(key: dg.AssetCheckKey) -> db.ColumnElement[bool]:
    return db.and_(_CHECKS.asset_key == key.asset_key.to_string(), _CHECKS.check_name == key.name)


def _is_range(partition: db.ColumnElement[Any]) -> db.ColumnElement[bool]:
    return db.func.substr(partition, _KEY_LETTERS + 1, 3) == "..."


def _holds(partition: db.ColumnElement[Any], hour: str) -> db.ColumnElement[bool]:
    """Whether it is a range that holds the hour: partition keys of hours are ordered as the hours are."""
    first, last = db.func.substr(partition, 1, _KEY_LETTERS), db.func.substr(partition, _KEY_LETTERS + 4)
    return db.and_(_is_range(partition), first <= hour, last >= hour)


def _number(info: AssetCheckPartitionInfo) -> int:
    return max(info.latest_check_event_storage_id, info.latest_materialization_storage_id or 0)
