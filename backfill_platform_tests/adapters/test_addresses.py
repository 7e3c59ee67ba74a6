"""Addresses that fail are told without their passwords, in whatever way they fail."""

import traceback
from pathlib import Path

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.connections import Connections
from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.domain.uris import without_password
from backfill_platform.errors import BackfillError, SettingsError, UsageError
from backfill_platform.settings import load_settings

CATALOGS = (
    "postgresql+psycopg2://ada:hunter2@127.0.0.1:1/lake",
    "postgresql://ada:hun/ter2@127.0.0.1:1/lake",
    "mysql://ada:hunter2@127.0.0.1:port/lake",
    "nonsense://ada:hunter2@host/lake?password=hunter2",
    "sqlite:////dev/null/x/catalog.db?password=hunter2",
    "sqlite://ada:hunter2@host/x",
    "sqlite+pysqlcipher://:hunter2@/x",
    "ada:hunter2@host",
    "",
)
SERVERS = (
    "http://ada:hunter2@127.0.0.1:1",
    "http://ada:hunter2@[bad",
    "http://ada:hunter2@127.0.0.1:hunter2",
    "http://ada:hunter2/x@127.0.0.1:1",
    "http://ada:x/hunter2@127.0.0.1:1",
    "http://ada:8123/hunter2@127.0.0.1:1",
    "http://ada:x#hunter2@127.0.0.1:1",
    "http://ada:x?hunter2@127.0.0.1:1",
    "http://ada:x@hunter2@127.0.0.1:1",
    "ftp://ada:hunter2@host",
    "ada:hunter2@host",
)


def told(raised: "pytest.ExceptionInfo[BaseException]") -> str:
    """All that a log or a page shows of an error: its words, and those of its causes."""
    lines = traceback.format_exception(raised.value)
    # The lines of our own sources name the addresses of this test; only what was raised is looked at.
    return "".join(line for line in lines if not line.startswith("  File"))


@pytest.mark.parametrize("uri", CATALOGS)
def test_a_catalog_that_cannot_be_opened_is_told_without_its_password(tmp_path: Path, uri: str) -> None:
    connections = Connections(load_settings(home=tmp_path, lake_catalog_uri=uri or "://"))
    with pytest.raises(SettingsError, match=r"the lake's catalog .* cannot be opened: .+") as raised:
        connections.lake()
    assert "hun" not in told(raised)
    assert "ter2" not in told(raised)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("url", SERVERS)
def test_a_warehouse_that_cannot_be_reached_is_told_without_its_password(url: str) -> None:
    with pytest.raises(BackfillError) as raised:
        Warehouse(url)
    assert "hunter2" not in told(raised)
    if url.startswith("http://") and url != SERVERS[0] and "x@" not in url:
        assert isinstance(raised.value, UsageError)
        assert "%2F" in str(raised.value)


def test_kafka_is_told_without_its_password() -> None:
    wrong = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "sasl.password=hunter2"}
    with pytest.raises(BackfillError) as raised:
        Cluster(wrong).topics()
    assert "hunter2" not in str(raised.value)


def test_an_address_for_people() -> None:
    assert without_password("postgresql://ada:p@ss/w@db:5432/lake?sslpassword=x") == "postgresql://***@db:5432/lake"
    assert without_password("sqlite:////home/lake/catalog.db") == "sqlite:////home/lake/catalog.db"
    assert without_password("secret") == "(no URI)"
