"""Fixtures of the warehouse tests: a connection, and tables that are dropped after the test."""

import itertools
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.patches import drop_patches
from backfill_platform.adapters.clickhouse.publishing.staging import fence
from backfill_platform.adapters.clickhouse.schema import create_target
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.domain.tables import Partitioning, Table
from backfill_platform_tests.adapters.clickhouse.visits import VISITS

_numbers = itertools.count()

MakeTable = Callable[..., Table]


@pytest.fixture
def declared(warehouse: Warehouse) -> Iterator[MakeTable]:
    """Declares `visits` under a name of its own; whatever exists under it is dropped after the test."""
    tables: list[Table] = []

    def declare(partitioning: Partitioning = Partitioning.DAY) -> Table:
        name = f"visits_{uuid.uuid4().hex[:8]}_{next(_numbers)}"
        tables.append(replace(VISITS, name=name, partitioning=partitioning))
        return tables[-1]

    yield declare
    for table in tables:
        fence(warehouse, table)
        drop_patches(warehouse, table, older_than_days=0)
        for name in (f"transformed.{table.name}_totals_view", f"transformed.{table.name}_totals", target_name(table)):
            warehouse.command(f"DROP TABLE IF EXISTS {name} SYNC", doing="cleaning up")


@pytest.fixture
def visits(warehouse: Warehouse, declared: MakeTable) -> Table:
    """An empty target with daily partitions."""
    table = declared()
    create_target(warehouse, table)
    return table
