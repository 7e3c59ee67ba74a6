"""Fingerprints of the lake's files, which the warehouse computes on values of the target's types."""

import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.column_types import converted, file_structure, needs_conversion
from backfill_platform.adapters.clickhouse.publishing.push import push_files
from backfill_platform.adapters.clickhouse.publishing.staging import INSERT_SETTINGS, REMEMBERED_INSERTS, Loading
from backfill_platform.adapters.clickhouse.schema import STAGING_DATABASE, column_definitions, database_statement
from backfill_platform.adapters.clickhouse.sql import file_settings, files_source, qualified
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.tables import Table


def file_fingerprints(
    warehouse: Warehouse, table: Table, hours: Collection[datetime], uris: Sequence[str], loading: Loading
) -> fingerprints.Fingerprints:
    """Fingerprints of the lake's files, with their values in the types of the target. Rows of other hours do not count.

    Files that are pushed go through a table that is dropped afterwards. Raises what `Staging.load_files` raises.
    """
    if loading is Loading.PULL or not uris:
        return fingerprints.files(warehouse, table, hours, uris)
    with _pushed(warehouse, table, uris) as scratch:
        return fingerprints.states(warehouse, table, hours, source=scratch)


def file_tenants(
    warehouse: Warehouse, table: Table, hours: Collection[datetime], uris: Sequence[str], loading: Loading
) -> dict[datetime, dict[str, Fingerprint]]:
    """The same as `file_fingerprints`, for each tenant with rows."""
    if not uris:
        return {}
    if loading is Loading.PULL:
        source = f"({files_source(table, uris)})"
        return fingerprints.by_tenant(warehouse, table, hours, source=source, settings=file_settings(table))
    with _pushed(warehouse, table, uris) as scratch:
        return fingerprints.by_tenant(warehouse, table, hours, source=scratch)


@contextmanager
def _pushed(warehouse: Warehouse, table: Table, uris: Sequence[str]) -> Iterator[str]:
    """SQL for a table with the rows of the files; it exists within the block."""
    converts = needs_conversion(table)
    columns = file_structure(table) if converts else ", ".join(column_definitions(table))
    warehouse.command(database_statement(STAGING_DATABASE), doing="creating the staging database")
    scratch = qualified(STAGING_DATABASE, f"__bf_scratch_{uuid.uuid4().hex}")
    warehouse.command(
        f"CREATE TABLE {scratch} ({columns}) ENGINE = MergeTree ORDER BY tuple() "
        f"SETTINGS non_replicated_deduplication_window = {REMEMBERED_INSERTS}",
        doing=f"creating a table to read {table} of the lake",
    )
    try:
        push_files(warehouse, scratch, table, uris, token=uuid.uuid4().hex, settings=INSERT_SETTINGS)
        yield f"({converted(table, scratch)})" if converts else scratch
    finally:
        warehouse.drop(scratch, doing=f"dropping {scratch}")
