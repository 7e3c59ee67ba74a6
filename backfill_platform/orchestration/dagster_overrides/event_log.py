"""The embedded Dagster storage, with an event log that is written in batches.

Dagster's own SQLite event log opens a new engine and two or three transactions for every event, 12 to 16 ms each, and a range
run has several events per asset and hour. This one keeps connections open and writes any number of events in one transaction
for the run's file and one for the index; what is stored, and where, is the same. The run and schedule storages are Dagster's.

Private parts of the pinned Dagster are overridden here: docs/decisions/0013 and
`orchestration/dagster_overrides/test_event_log.py` say which.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any, cast

import dagster as dg
import sqlalchemy as db
from dagster._core.events import ASSET_CHECK_EVENTS, ASSET_EVENTS, EVENT_TYPE_TO_PIPELINE_RUN_STATUS
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.asset_check_state import AssetCheckState
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME, SqliteEventLogStorage
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage, _event_logs_directory
from dagster._serdes import ConfigurableClassData, serialize_value

from backfill_platform.orchestration.dagster_overrides.check_states import check_states, is_hourly

_BATCH = 500  # events of one transaction: others wait for the index meanwhile
_OPEN = 32  # files of runs that are kept open
_BUSY_SECONDS = 30
# Read by Dagster at each event: how many it hands over at once where it knows that more follow, as when a run is created.
_BATCH_SIZE = "DAGSTER_EVENT_BATCH_SIZE"
_MIRRORED = ASSET_EVENTS | ASSET_CHECK_EVENTS | set(EVENT_TYPE_TO_PIPELINE_RUN_STATUS)


class EmbeddedStorage(DagsterSqliteStorage):
    """Dagster's SQLite storage below `base_dir`, with the event log of this module."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        super().__init__(base_dir, inst_data)
        self._event_log_storage = BatchingEventLog(_event_logs_directory(base_dir))

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Any) -> "EmbeddedStorage":
        """Called by Dagster with the `config` of dagster.yaml."""
        return cls.from_local(inst_data=inst_data, **config_value)


class BatchingEventLog(SqliteEventLogStorage):
    """Dagster's event log in one SQLite file per run and an index of them."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._engines: OrderedDict[str, db.Engine] = OrderedDict()
        self._here = threading.local()
        self._tables: set[str] = set()
        os.environ.setdefault(_BATCH_SIZE, str(_BATCH))
        super().__init__(base_dir, inst_data)

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
        if len(kept) >= _BATCH:
            self._here.batch = []
            self.store_event_batch(kept)

    def store_event_batch(self, events: Sequence[dg.EventLogEntry]) -> None:
        """Store events in one transaction for each run's file, and one for the index."""
        rows = [self._event_to_row(event) for event in events]
        for run_id in dict.fromkeys(event.run_id for event in events):
            with self.run_connection(run_id) as connection:
                connection.execute(SqlEventLogStorageTable.insert(), [row for row in rows if row["run_id"] == run_id])
        mirrored = [pair for pair in zip(events, rows, strict=True) if pair[0].dagster_event_type in _MIRRORED]
        if mirrored:
            with self._index_transaction() as connection:
                self._mirror(connection, mirrored)

    def _mirror(self, connection: db.Connection, events: Sequence[tuple[dg.EventLogEntry, Mapping[str, Any]]]) -> None:
        """Write what queries over many runs need: assets, checks and the states of runs."""
        newest: dict[tuple[Any, Any], tuple[dg.EventLogEntry, int]] = {}
        insert = SqlEventLogStorageTable.insert()
        for event, row in events:
            event_id = cast(int, cast(Any, connection.execute(insert, row).inserted_primary_key)[0])
            if event.dagster_event_type in ASSET_EVENTS and row["asset_key"]:
                self._store_asset_event_tags(connection, [event], [event_id])
                newest[row["asset_key"], event.dagster_event_type] = event, event_id
            elif event.dagster_event_type in ASSET_CHECK_EVENTS:
                self.store_asset_check_event(event, event_id)
        # An asset's row says what came last; Dagster writes it for every event.
        for event, event_id in newest.values():
            self._store_asset_event(connection, event, event_id)

    def _store_asset_check_evaluation_planned(self, event: dg.EventLogEntry, event_id: int | None) -> None:
        """Dagster's binds all partitions into one statement, more than SQLite may bear, and makes the text anew for each."""
        planned = cast(Any, event.get_dagster_event().event_specific_data)
        common = {
            "asset_key": planned.asset_key.to_string(),
            "check_name": planned.check_name,
            "run_id": event.run_id,
            "execution_status": AssetCheckExecutionRecordStatus.PLANNED.value,
            "evaluation_event": serialize_value(event),
            "evaluation_event_timestamp": datetime.fromtimestamp(event.timestamp, UTC).replace(tzinfo=None),
            "evaluation_event_storage_id": event_id,
        }
        keys = planned.partitions_subset.get_partition_keys() if planned.partitions_subset else [None]
        with self.index_connection() as connection:
            connection.execute(AssetCheckExecutionsTable.insert(), [{**common, "partition": key} for key in keys])

    def get_asset_check_state(
        self, keys: Sequence[tuple[dg.AssetCheckKey, dg.PartitionsDefinition[str] | None]]
    ) -> Mapping[dg.AssetCheckKey, AssetCheckState]:
        """The states of checks, for pages that show them."""
        hourly = [(key, partitions) for key, partitions in keys if is_hourly(partitions)]
        others = [(key, partitions) for key, partitions in keys if not is_hourly(partitions)]
        return {**check_states(self._instance, hourly), **(super().get_asset_check_state(others) if others else {})}

    @contextmanager
    def _index_transaction(self) -> Iterator[db.Connection]:
        """A transaction of the index that whatever this thread calls inside the block takes part in."""
        with self.index_connection() as connection:
            self._here.index = connection
            try:
                yield connection
            finally:
                self._here.index = None

    def index_connection(self) -> Any:
        """A connection to the index in a transaction: the one that this thread has open, or a new one."""
        opened = getattr(self._here, "index", None)
        return self._connect(INDEX_SHARD_NAME) if opened is None else nullcontext(opened)

    @contextmanager
    def _connect(self, shard: str) -> Iterator[db.Connection]:
        with self._db_lock, self._engine(shard).begin() as connection:
            yield connection

    def _engine(self, shard: str) -> db.Engine:
        engine = self._engines.pop(shard, None)
        if engine is None:
            url = self.conn_string_for_shard(shard)
            engine = db.create_engine(url, pool_size=1, max_overflow=4, connect_args={"timeout": _BUSY_SECONDS})
            db.event.listen(engine, "connect", _tune)
            if shard not in self._initialized_dbs:
                self._initdb(engine)
                self._initialized_dbs.add(shard)
        self._engines[shard] = engine
        if len(self._engines) > _OPEN:
            self._engines.popitem(last=False)[1].dispose()
        return engine

    def has_table(self, table_name: str) -> bool:
        """Whether the index has a table; asked for every check evaluation."""
        if table_name not in self._tables and super().has_table(table_name):
            self._tables.add(table_name)
        return table_name in self._tables

    def wipe(self) -> None:
        """Forget all runs, whose files go."""
        self._close()
        super().wipe()

    def dispose(self) -> None:
        """Close what is open."""
        super().dispose()
        self._close()

    def _close(self) -> None:
        with self._db_lock:
            while self._engines:
                self._engines.popitem()[1].dispose()


@contextmanager
def batched(instance: dg.DagsterInstance) -> Iterator[None]:
    """Write the events that this thread logs inside the block together, where the storage of the instance is ours."""
    storage = instance.event_log_storage
    with storage.batch() if isinstance(storage, BatchingEventLog) else nullcontext():
        yield


def _tune(connection: Any, _record: object) -> None:
    # With a write-ahead log nothing is lost when a process is killed; a power failure may take the last events, and only them.
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
