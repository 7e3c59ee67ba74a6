"""Dagster's storage in PostgreSQL, with an event log that is written in batches, as the embedded one is.

Named in dagster.yaml as `storage: {custom: ...}` (docs/operations/topology.md); needs the extra `postgres` of this package.
Private parts of the pinned Dagster are overridden here: docs/decisions/0013 says which.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg
import sqlalchemy as db
from dagster._core.events import ASSET_EVENTS
from dagster._serdes import ConfigurableClassData
from dagster_postgres import DagsterPostgresStorage, PostgresEventLogStorage
from dagster_postgres.utils import (
    create_pg_connection,
    create_pg_engine,
    get_token_provider_from_config,
    pg_url_from_config,
)

from backfill_platform.orchestration.dagster_overrides.hourly_event_log import HourlyEventLog

_MOST_CONNECTIONS = 10  # of a process; all but one are closed after use
_LARGE = ("event_logs", "asset_check_executions")
# Advisory locks of the database: while tables are made, and while events of assets are written.
_CREATING = 4_119_900_001
WRITING = 4_119_900_002


class PostgresStorage(DagsterPostgresStorage):
    """Dagster's PostgreSQL storage, with the event log of this module."""

    def __init__(
        self,
        postgres_url: str,
        should_autocreate_tables: bool = True,
        inst_data: ConfigurableClassData | None = None,
        token_provider: Any = None,
    ) -> None:
        with _alone(postgres_url, token_provider, should_autocreate_tables):
            super().__init__(postgres_url, should_autocreate_tables, inst_data, token_provider)
        self._event_log_storage = PostgresEventLog(postgres_url, False, token_provider=token_provider)

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> "PostgresStorage":
        """Called by Dagster with the `config` of dagster.yaml."""
        return cls(
            pg_url_from_config(config_value),
            config_value.get("should_autocreate_tables", True),
            inst_data,
            get_token_provider_from_config(config_value),
        )


class PostgresEventLog(HourlyEventLog, PostgresEventLogStorage):
    """Dagster's event log in PostgreSQL, written in batches."""

    def __init__(self, postgres_url: str, should_autocreate_tables: bool = True, token_provider: Any = None) -> None:
        self.begin_batching()
        super().__init__(postgres_url, should_autocreate_tables, token_provider=token_provider)
        # Dagster's own opens a connection for everything that it asks. One is kept here, and tried before it is used again.
        self._engine = create_pg_engine(
            postgres_url,
            token_provider,
            isolation_level="AUTOCOMMIT",
            pool_size=1,
            max_overflow=_MOST_CONNECTIONS - 1,
            pool_pre_ping=True,
        )

    def size(self) -> int:
        """The bytes of the tables of events and of check executions, with their indexes."""
        query = db.select(*(db.func.pg_total_relation_size(table) for table in _LARGE))
        with self.index_connection() as connection:
            return sum(connection.execute(query).one())

    def forget_logs(self, run_ids: Sequence[str]) -> None:
        """Nothing to do: what is stored of runs is in the tables."""

    def give_back_space(self) -> None:
        """Let new rows take the space of removed ones: the tables stay as large, and nobody waits."""
        with self.index_connection() as connection:
            for table in _LARGE:
                connection.execute(db.text(f"VACUUM (ANALYZE) {table}"))

    def dispose(self) -> None:
        """Close what is open."""
        super().dispose()
        self._engine.dispose()

    def _store(self, events: Sequence[dg.EventLogEntry]) -> None:
        """Write events in one transaction."""
        rows = [(event, self._event_to_row(event)) for event in events]
        with self.transaction() as connection:
            if any(event.dagster_event_type in ASSET_EVENTS for event in events):
                # One writer at a time, as in SQLite: Dagster reads on from the newest number that it has seen of an asset, and
                # would never see smaller ones that another transaction makes visible later.
                connection.execute(db.select(db.func.pg_advisory_xact_lock(WRITING)))
            self._insert(connection, rows)


@contextmanager
def _alone(postgres_url: str, token_provider: Any, wanted: bool) -> Iterator[None]:
    """Let one process at a time make the tables: PostgreSQL fails `CREATE TABLE IF NOT EXISTS` when two do it at once."""
    if not wanted:
        yield
        return
    engine = create_pg_engine(postgres_url, token_provider, isolation_level="AUTOCOMMIT", poolclass=db.pool.NullPool)
    with create_pg_connection(engine) as connection:
        connection.execute(db.select(db.func.pg_advisory_lock(_CREATING)))
        yield  # the lock ends with the connection
