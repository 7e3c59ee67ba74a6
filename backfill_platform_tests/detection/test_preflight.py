"""What an installation needs is tried with the real thing, and what is missing is said with what to do."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.connections import Connections
from backfill_platform.detection import preflight
from backfill_platform.detection.preflight import Finding, examine
from backfill_platform.domain.tables import TargetTable
from backfill_platform.examples import clickstream
from backfill_platform.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Examine = Callable[..., dict[str, Finding]]


@pytest.fixture
def examined(tmp_path: Path, warehouse_url: str, warehouse_database: str, spark: "SparkSession") -> Examine:
    """The findings for a pipeline whose targets are in a database of their own."""
    target = TargetTable(database=warehouse_database)
    pipeline = replace(clickstream.pipeline, derived=tuple(replace(one, target=target) for one in clickstream.pipeline.derived))

    def run(session: Callable[[], "SparkSession"] = lambda: spark, **settings: object) -> dict[str, Finding]:
        given = {"home": tmp_path, "clickhouse_url": warehouse_url, "loading": "pull", **settings}
        found = examine([pipeline], Connections(Settings(**given)), session)  # type: ignore[arg-type]
        return {f"{one.part}, {one.need}": one for one in found}

    return run


def missing(found: dict[str, Finding]) -> list[str]:
    return [name for name, one in found.items() if not one.good]


def test_where_all_is_there_nothing_is_missing_and_nothing_is_left(examined: Examine, tmp_path: Path) -> None:
    found = examined()
    assert missing(found) == []
    assert {"ClickHouse, route", "ClickHouse, clock", "Spark, write", "lake, files", "ClickHouse, pull"} <= found.keys()
    assert len([name for name in found if "rights on" in name]) == 4
    assert not list((tmp_path / "lake").glob("doctor-*"))


def test_a_warehouse_that_does_not_answer_ends_only_what_needs_it(examined: Examine) -> None:
    found = examined(clickhouse_url="http://127.0.0.1:9", loading="push")
    assert missing(found) == ["ClickHouse, route"]
    assert "Spark, write" in found


def test_a_right_that_is_missing_is_named_as_a_grant(
    examined: Examine, warehouse_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded engine has one user with all rights, so the answer of another one is put in its place."""
    rows = Warehouse.rows

    def without_delete(warehouse: Warehouse, sql: str, **others: object) -> list[tuple[object, ...]]:
        answer = rows(warehouse, sql, **others)  # type: ignore[arg-type]
        return [(0,)] if sql.startswith("CHECK GRANT ALTER DELETE") else answer

    monkeypatch.setattr(Warehouse, "rows", without_delete)
    found = examined()
    name = f"ClickHouse, rights on {warehouse_database}"
    assert missing(found) == [name]
    assert f"GRANT ALTER DELETE ON `{warehouse_database}`.*" in found[name].text


def test_clocks_that_differ_are_told(examined: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "MOST_SKEW", -preflight.MOST_SKEW)
    assert missing(examined()) == ["ClickHouse, clock"]


def test_a_spark_that_fails_is_told_in_one_line_and_the_rest_goes_on(examined: Examine) -> None:
    def no_spark() -> "SparkSession":
        raise ConnectionError("sc://spark:15002 does not answer\nand a page of Java")

    found = examined(no_spark)
    assert missing(found) == ["Spark, write"]
    assert found["Spark, write"].text == "sc://spark:15002 does not answer"
    assert found["lake, delete"].good


def test_a_target_that_cannot_be_repaired_is_told(examined: Examine, warehouse: Warehouse, warehouse_database: str) -> None:
    warehouse.command(f"CREATE TABLE {warehouse_database}.sessions (n UInt8) ENGINE = Log", doing="testing")
    assert missing(examined()) == ["ClickHouse, target transformed/sessions"]
