"""Targets: created as declared, and refused when they are anything else."""

from dataclasses import replace

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.preconditions import check_target
from backfill_platform.adapters.clickhouse.schema import create_target, schema_hash
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.domain.column_types import ColumnType
from backfill_platform.domain.tables import Column, Layer, Partitioning, Table
from backfill_platform.errors import PreconditionError, WarehouseError
from backfill_platform_tests.adapters.clickhouse.conftest import MakeTable
from backfill_platform_tests.adapters.clickhouse.visits import PARTITIONINGS, TEN, VISITS, create_as, visit, write_live


@pytest.mark.parametrize("partitioning", PARTITIONINGS)
def test_a_target_is_created_once_and_recognised_afterwards(
    warehouse: Warehouse, declared: MakeTable, partitioning: Partitioning
) -> None:
    table = declared(partitioning)
    create_target(warehouse, table)
    write_live(warehouse, table, [visit(TEN, "ada")])
    create_target(warehouse, table)
    ((engine, partition, key, rows),) = warehouse.rows(
        "SELECT engine, partition_key, sorting_key, total_rows FROM system.tables WHERE name = {name:String}",
        parameters={"name": table.name},
        doing="looking",
    )
    function = {"day": "toYYYYMMDD", "hour": "toStartOfHour", "week": "toMonday", "month": "toYYYYMM"}[partitioning]
    assert (engine, partition, key, rows) == ("CollapsingMergeTree", f"{function}(hour)", "hour, visitor", 1)


def test_columns_carry_their_types_and_descriptions(warehouse: Warehouse, visits: Table) -> None:
    columns = warehouse.rows(
        "SELECT name, type, comment FROM system.columns WHERE database = {database:String} AND table = {name:String} "
        "ORDER BY position",
        parameters={"database": "transformed", "name": visits.name},
        doing="looking",
    )
    assert columns == [
        ("hour", "DateTime64(6, 'UTC')", "the hour the visit's owner began in"),
        ("visitor", "String", ""),
        ("pages", "Int32", ""),
        ("revenue", "Nullable(Int64)", ""),
        ("score", "Nullable(Float64)", ""),
        ("country", "Nullable(String)", ""),
        ("is_open", "Bool", ""),
        ("seen_at", "Nullable(DateTime64(6, 'UTC'))", ""),
        ("sign", "Int8", "1 for a state, -1 for its cancel"),
    ]


def test_a_sign_of_two_is_not_stored(warehouse: Warehouse, visits: Table) -> None:
    with pytest.raises(WarehouseError, match="sign_is_plus_or_minus_one"):
        warehouse.command(f"INSERT INTO {target_name(visits)} (sign) SELECT 2", doing="writing nonsense")


def test_a_table_with_one_row_for_each_hour_needs_no_key(warehouse: Warehouse, declared: MakeTable) -> None:
    table = replace(declared(), key=())
    create_target(warehouse, table)
    create_target(warehouse, table)


def test_raw_is_never_published(warehouse: Warehouse) -> None:
    with pytest.raises(PreconditionError, match="raw/visits: rows of raw have no key"):
        create_target(warehouse, replace(VISITS, layer=Layer.RAW, key=()))


def test_an_absent_target_is_named(warehouse: Warehouse) -> None:
    with pytest.raises(PreconditionError, match="transformed/never_created does not exist"):
        check_target(warehouse, replace(VISITS, name="never_created"))


def test_an_existing_table_with_other_columns_is_refused_with_all_of_them_named(
    warehouse: Warehouse, declared: MakeTable
) -> None:
    table = declared()
    create_as(
        warehouse,
        table,
        ("`pages` Int32", "`pages` Int64"),
        ("`country` Nullable(String)", "`land` String"),
        ("`is_open` Bool", "`is_open` Nullable(Bool)"),
    )
    with pytest.raises(PreconditionError) as refusal:
        create_target(warehouse, table)
    said = str(refusal.value)
    assert "column pages is Int64, declared is Int32" in said
    assert "column country Nullable(String) is missing" in said
    assert "column is_open is Nullable(Bool), declared is Bool; declare stored_as={'is_open': 'Nullable(Bool)'}" in said
    assert "column land is not declared" in said
    assert "revenue" not in said


WRONG_TABLES = {
    "merge tree": (("CollapsingMergeTree(`sign`)", "MergeTree"), "its engine is MergeTree"),
    "part of the key": (("ORDER BY (`hour`, `visitor`)", "ORDER BY (`hour`)"), r"ORDER BY is \(hour\) and lacks visitor"),
    "no hour in the key": (("ORDER BY (`hour`, `visitor`)", "ORDER BY (`visitor`)"), r"ORDER BY is \(visitor\) and lacks hour"),
    "hour in a function": (
        ("ORDER BY (`hour`,", "ORDER BY (toStartOfDay(`hour`),"),
        r"\(toStartOfDay\(hour\), visitor\) and lacks",
    ),
    "no order": (
        ("ORDER BY (`hour`, `visitor`)", "ORDER BY tuple()"),
        r"lacks hour, visitor.* with ORDER BY \(hour, visitor\)",
    ),
    "an order of floats": (
        ("ORDER BY (`hour`, `visitor`)", "ORDER BY (`hour`, `visitor`, `score`) SETTINGS allow_nullable_key = 1"),
        r"ORDER BY has floats \(score\)",
    ),
    "partitions of a value": (
        ("toYYYYMMDD(`hour`)", "(toYYYYMMDD(`hour`), `pages`)"),
        r"pages is not in its ORDER BY: .* with ORDER BY \(hour, visitor, pages\)",
    ),
    "materialized": (("`country` Nullable(String)", "`country` Nullable(String) MATERIALIZED 'x'"), "country is MATERIALIZED"),
    "declared alias": (("`is_open` Bool", "`is_open` Bool ALIAS true"), "is_open is ALIAS, so ClickHouse computes"),
    "ephemeral": (("`sign` Int8", "`e` Int8 EPHEMERAL, `sign` Int8"), "e is EPHEMERAL"),
    "another sign": (("`sign` Int8", "`s` Int8, `sign` Int8"), r"column s is not declared.* MODIFY COLUMN s Int8 DEFAULT"),
    "collapses by another": (
        ("CollapsingMergeTree(`sign`)", "CollapsingMergeTree(`other`)"),
        r"collapses by a column other than sign; declare target=TargetTable\(sign='other'\)",
    ),
}


@pytest.mark.parametrize("case", WRONG_TABLES)
def test_a_table_that_cannot_be_repaired_is_refused(warehouse: Warehouse, declared: MakeTable, case: str) -> None:
    table = declared()
    replacement, said = WRONG_TABLES[case]
    extra = [("`sign` Int8", "`other` Int8, `sign` Int8")] if case == "collapses by another" else []
    create_as(warehouse, table, replacement, *extra)
    with pytest.raises(PreconditionError, match=said):
        create_target(warehouse, table)


def test_the_schema_hash_follows_everything_that_fingerprints_depend_on() -> None:
    flipped = replace(VISITS, columns=(VISITS.columns[0], *reversed(VISITS.columns[1:])))
    retyped = replace(VISITS, columns=(*VISITS.columns, Column("added", ColumnType.INT32)))
    described = replace(VISITS, columns=(*VISITS.columns[:-1], replace(VISITS.columns[-1], description="new words")))
    assert len({schema_hash(table) for table in (VISITS, flipped, retyped)}) == 3
    assert schema_hash(described) == schema_hash(VISITS)
