"""Clients for the contract tests of a warehouse server."""

from collections.abc import Callable, Iterator
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client

from backfill_platform_tests.contracts.sample import TABLE


@pytest.fixture
def connect(warehouse_url: str, warehouse_database: str) -> Iterator[Callable[..., Client]]:
    """Makes clients of the test's database."""
    clients: list[Client] = []

    def make(**options: Any) -> Client:
        client = clickhouse_connect.get_client(dsn=warehouse_url, database=warehouse_database, **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture(scope="module")
def reader(warehouse_url: str) -> Iterator[Client]:
    """A client with the default options, for statements that leave nothing behind: tests share it."""
    with clickhouse_connect.get_client(dsn=warehouse_url) as client:
        yield client


@pytest.fixture
def client(reader: Client, warehouse_database: str) -> Iterator[Client]:
    """The same client, in the test's database."""
    before, reader.database = reader.database, warehouse_database
    yield reader
    reader.database = before


@pytest.fixture
def table(client: Client) -> str:
    """An empty table of ROWS."""
    client.command(f"CREATE TABLE t {TABLE}")
    return "t"
