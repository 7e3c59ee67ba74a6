"""The embedded Dagster storage, with an event log that is written in batches.

Dagster's own SQLite event log opens a new engine and two or three transactions for every event, 12 to 16 ms each, and a range
run has several events per asset and hour. This one keeps connections open and writes any number of events in one transaction
for the run's file and one for the index. The run and schedule storages are Dagster's.

Private parts of the pinned Dagster are overridden here: docs/decisions/0013 and
`orchestration/dagster_overrides/test_event_log.py` say which.
"""

import sqlite3
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import dagster as dg
import sqlalchemy as db
from dagster._core.events import ASSET_CHECK_EVENTS, ASSET_EVENTS, EVENT_TYPE_TO_PIPELINE_RUN_STATUS
from dagster._core.storage.event_log.schema import AssetEventTagsTable, SqlEventLogStorageMetadata, SqlEventLogStorageTable
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME, SqliteEventLogStorage
from dagster._core.storage.sql import get_alembic_config, stamp_alembic_rev
from dagster._core.storage.sqlite_storage import DagsterSqliteStorage, _event_logs_directory
from dagster._serdes import ConfigurableClassData

from backfill_platform.orchestration.dagster_overrides.hourly_event_log import HourlyEventLog

_OPEN = 32  # files of runs that are kept open
_BUSY_SECONDS = 30
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


class BatchingEventLog(HourlyEventLog, SqliteEventLogStorage):
    """Dagster's event log in one SQLite file per run and an index of them."""

    def __init__(self, base_dir: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._engines: OrderedDict[str, db.Engine] = OrderedDict()
        self.begin_batching()
        super().__init__(base_dir, inst_data)

    def _store(self, events: Sequence[dg.EventLogEntry]) -> None:
        """Write events in one transaction for each run's file, and one for the index."""
        rows = [self._event_to_row(event) for event in events]
        for run_id in dict.fromkeys(event.run_id for event in events):
            with self.run_connection(run_id) as connection:
                connection.execute(SqlEventLogStorageTable.insert(), [row for row in rows if row["run_id"] == run_id])
        mirrored = [pair for pair in zip(events, rows, strict=True) if pair[0].dagster_event_type in _MIRRORED]
        if mirrored:
            with self.transaction() as connection:
                self._insert(connection, mirrored)

    @contextmanager
    def _connect(self, shard: str) -> Iterator[db.Connection]:
        with self._db_lock, self._engine(shard).begin() as connection:
            yield connection

    def _engine(self, shard: str) -> db.Engine:
        engine = self._engines.pop(shard, None)
        if engine is not None and not Path(self.path_for_shard(shard)).exists():  # another process has pruned the run
            engine.dispose()
            self._initialized_dbs.discard(shard)
            engine = None
        if engine is None:
            url = self.conn_string_for_shard(shard)
            engine = db.create_engine(url, pool_size=1, max_overflow=4, connect_args={"timeout": _BUSY_SECONDS})
            db.event.listen(engine, "connect", _tune)
            if shard not in self._initialized_dbs:
                if not Path(self.path_for_shard(shard)).exists():
                    # Where another process makes the file at this moment, one of the two fails; Dagster's way does the rest.
                    with suppress(db.exc.DatabaseError):
                        _make_file_of_run(engine)
                self._initdb(engine)
                self._initialized_dbs.add(shard)
        self._engines[shard] = engine
        if len(self._engines) > _OPEN:
            self._engines.popitem(last=False)[1].dispose()
        return engine

    def size(self) -> int:
        """The bytes of the files of all runs, and of the index."""
        return sum(file.stat().st_size for file in Path(self._base_dir).glob("*.db*"))

    def forget_logs(self, run_ids: Sequence[str]) -> None:
        """Delete the files of these runs."""
        for run_id in run_ids:
            with self._db_lock:
                engine = self._engines.pop(run_id, None)
                self._initialized_dbs.discard(run_id)
            if engine is not None:
                engine.dispose()
            for file in Path(self._base_dir).glob(f"{run_id}.db*"):
                file.unlink(missing_ok=True)

    def give_back_space(self) -> None:
        """Write the index anew without its free pages; left for the next time where somebody is reading or writing it."""
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(self.path_for_shard(INDEX_SHARD_NAME))) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

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


def _tune(connection: Any, _record: object) -> None:
    # With a write-ahead log nothing is lost when a process is killed; a power failure may take the last events, and only them.
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def _make_file_of_run(engine: db.Engine) -> None:
    # Only what is read in the file of a run: Dagster's has all tables of the index, 140 kB before the first event. It is read
    # from end to end or by the numbers of its rows: its events need no further indexes.
    SqlEventLogStorageMetadata.create_all(engine, tables=[SqlEventLogStorageTable, AssetEventTagsTable])
    with engine.begin() as connection:
        for index in SqlEventLogStorageTable.indexes:
            connection.execute(db.text(f"DROP INDEX {index.name}"))
        stamp_alembic_rev(get_alembic_config(sqlite_event_log.__file__), connection, rev="head")
