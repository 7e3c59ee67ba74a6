"""The difference: exact; reported by kind, by column and by sample; written as a delta that survives every merge."""

from datetime import datetime

import pytest

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.diff import ColumnChange, Effect, HourDiff
from backfill_platform.adapters.clickhouse.publishing.prepare import prepare
from backfill_platform.adapters.clickhouse.schema import create_target
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.domain.fingerprint import EMPTY
from backfill_platform.domain.tables import Partitioning, Table
from backfill_platform_tests.adapters.clickhouse.conftest import MakeTable
from backfill_platform_tests.adapters.clickhouse.visits import (
    ELEVEN,
    LATE,
    MIDNIGHT,
    PARTITIONINGS,
    TEN,
    Row,
    as_counter,
    dry_run,
    net_rows,
    repair,
    staged,
    visit,
    write_live,
)

NAN = float("nan")


def difference(warehouse: Warehouse, table: Table, stored: list[Row], desired: list[Row], **options: int) -> HourDiff:
    """The difference of the hour TEN."""
    write_live(warehouse, table, stored)
    return dry_run(warehouse, table, [TEN], desired, **options).diffs[TEN]


def test_rows_are_counted_by_what_happens_to_them(warehouse: Warehouse, visits: Table) -> None:
    unchanged, edited, dropped, added = (visit(TEN, name) for name in ("kept", "edited", "dropped", "added"))
    diff = difference(
        warehouse, visits, [unchanged, edited, dropped], [unchanged, edited | {"pages": 4, "country": None}, added]
    )
    assert (diff.matched, diff.changed, diff.only_there, diff.only_here) == (1, 1, 1, 1)
    assert diff.differs
    assert diff.columns == (ColumnChange("pages", 1), ColumnChange("country", 1))


def test_equal_hours_have_no_details(warehouse: Warehouse, visits: Table) -> None:
    rows = [visit(TEN, "ada", country=None, score=NAN), visit(TEN, "bob", score=-0.0)]
    assert difference(warehouse, visits, rows, rows) == HourDiff(TEN, matched=2)


def test_a_change_beside_a_null_is_seen(warehouse: Warehouse, visits: Table) -> None:
    stored = [visit(TEN, f"visitor {number}", country=None, pages=1) for number in range(50)]
    diff = difference(warehouse, visits, stored, [row | {"pages": 2} for row in stored])
    assert (diff.matched, diff.changed) == (0, 50)


@pytest.mark.parametrize(
    ("column", "old", "new"),
    [
        ("score", 0.0, -0.0),
        ("score", NAN, None),
        ("score", NAN, 1.0),
        ("revenue", None, 0),
        ("country", "", None),
        ("seen_at", datetime.fromisoformat("1998-04-30T10:00:00.000001+00:00"), TEN),
    ],
)
def test_columns_are_compared_bit_by_bit(warehouse: Warehouse, visits: Table, column: str, old: object, new: object) -> None:
    diff = difference(warehouse, visits, [visit(TEN, "ada", **{column: old})], [visit(TEN, "ada", **{column: new})])
    assert diff.columns == (ColumnChange(column, 1),)


def test_effects_are_totals_of_the_hour_before_and_after(warehouse: Warehouse, visits: Table) -> None:
    large = 2**62
    stored = [visit(TEN, name, pages=10, revenue=large, score=0.1, is_open=True) for name in ("ada", "bob", "cyd")]
    desired = [stored[0], stored[1] | {"pages": 11, "revenue": None}]
    diff = difference(warehouse, visits, stored, desired)
    pages, revenue, score, is_open = diff.effects
    assert (pages, revenue, is_open) == (Effect("pages", 30, 21), Effect("revenue", 3 * large, large), Effect("is_open", 3, 2))
    assert score.before == pytest.approx(0.3)
    assert score.after == pytest.approx(0.2)


def test_columns_that_did_not_change_have_no_effect(warehouse: Warehouse, visits: Table) -> None:
    stored = [visit(TEN, f"visitor {number}", score=1 / (number + 1)) for number in range(100)]
    diff = difference(warehouse, visits, stored, [row | {"pages": 4} for row in stored])
    assert diff.effects == (Effect("pages", 300, 400),)


def test_samples_show_some_of_each_kind_and_no_more_than_requested(warehouse: Warehouse, visits: Table) -> None:
    edited = [visit(TEN, f"edited {number}") for number in range(9)]
    dropped = [visit(TEN, f"dropped {number}") for number in range(9)]
    added = [visit(TEN, f"added {number}") for number in range(9)]
    diff = difference(warehouse, visits, edited + dropped, [row | {"pages": 4} for row in edited] + added, samples=4)
    shown = [(sample.old and sample.old["visitor"], sample.new and sample.new["visitor"]) for sample in diff.samples]
    assert shown == [("edited 0", "edited 0"), ("dropped 0", None), (None, "added 0"), ("edited 1", "edited 1")]
    assert diff.samples[0].old == edited[0]
    assert diff.samples[0].new == edited[0] | {"pages": 4}


def test_no_samples_where_none_are_requested(warehouse: Warehouse, visits: Table) -> None:
    assert difference(warehouse, visits, [], [visit(TEN, "ada")], samples=0).samples == ()


def test_a_row_that_moves_to_another_hour_is_removed_from_one_and_added_to_the_other(
    warehouse: Warehouse, visits: Table
) -> None:
    write_live(warehouse, visits, [visit(LATE, "ada"), visit(LATE, "bob")])
    diffs = dry_run(warehouse, visits, [LATE, MIDNIGHT], [visit(LATE, "bob"), visit(MIDNIGHT, "ada")]).diffs
    assert (diffs[LATE].only_there, diffs[LATE].changed) == (1, 0)
    assert (diffs[MIDNIGHT].only_here, diffs[MIDNIGHT].changed) == (1, 0)


def test_cancels_are_full_copies_of_what_is_stored(warehouse: Warehouse, visits: Table) -> None:
    """ClickHouse matches cancels by the key alone; sums over rows that are not merged yet need the other values too."""
    stored = [visit(TEN, "ada", country=None, pages=17), visit(TEN, "bob", score=NAN), visit(TEN, "cyd")]
    write_live(warehouse, visits, stored)
    staging = staged(warehouse, visits, [stored[0] | {"pages": 1}, stored[1] | {"score": 2.0}])
    prepare(staging, [TEN])
    cancels = net_rows(warehouse, visits, f"(SELECT * FROM {staging.delta} WHERE sign = -1)")
    assert -1 * sum(cancels.values()) == 3
    assert {row for row, count in cancels.items() if count == -1} == set(as_counter(stored))


@pytest.mark.parametrize("partitioning", PARTITIONINGS)
def test_the_delta_is_one_part_for_each_partition(
    warehouse: Warehouse, declared: MakeTable, partitioning: Partitioning
) -> None:
    table = declared(partitioning)
    create_target(warehouse, table)
    hours = [TEN, ELEVEN, LATE, MIDNIGHT]
    write_live(warehouse, table, [visit(hour, "ada") for hour in hours])
    staging = staged(warehouse, table, [visit(hour, "ada", pages=4) for hour in hours])
    prepare(staging, hours)
    parts = warehouse.rows(
        "SELECT partition_id, sum(rows) FROM system.parts WHERE active AND table = {delta:String} "
        "GROUP BY partition_id HAVING count() = 1",
        parameters={"delta": staging.delta_name},
        doing="looking",
    )
    assert len(parts) == {"hour": 4, "day": 2, "week": 1, "month": 2}[partitioning]
    assert sum(rows for _, rows in parts) == 8


def test_a_delta_survives_merges_without_the_rows_it_cancels(warehouse: Warehouse, visits: Table) -> None:
    """Merges choose their parts freely: `+new, -old` of a key in this order would become nothing."""
    stored = [visit(TEN, f"visitor {number}", pages=1) for number in range(200)]
    write_live(warehouse, visits, stored)
    staging = staged(warehouse, visits, [row | {"pages": 2} for row in stored])
    prepare(staging, [TEN])
    desired = fingerprints.net(warehouse, visits, [TEN], source=staging.delta)
    lone = target_name(visits).replace(visits.name, f"{visits.name}_lone")
    warehouse.command(f"CREATE TABLE {lone} AS {target_name(visits)}", doing="preparing")
    try:
        warehouse.command(f"ALTER TABLE {lone} ATTACH PARTITION ALL FROM {staging.delta}", doing="attaching")
        unrelated = f"INSERT INTO {lone} SELECT * REPLACE ('zoe' AS visitor) FROM {target_name(visits)} LIMIT 1"
        warehouse.command(unrelated, doing="adding a neighbour")
        warehouse.command(f"OPTIMIZE TABLE {lone} FINAL", doing="merging")
        warehouse.command(
            f"ALTER TABLE {lone} DELETE WHERE visitor = 'zoe'", settings={"mutations_sync": 2}, doing="removing it"
        )
        ((rows,),) = warehouse.rows(f"SELECT count() FROM {lone}", doing="counting")
        assert rows == 400
        assert fingerprints.net(warehouse, visits, [TEN], source=lone) == desired
    finally:
        warehouse.command(f"DROP TABLE {lone} SYNC", doing="cleaning up")


def test_a_stored_row_beside_the_full_hour_is_part_of_its_hour(warehouse: Warehouse, visits: Table) -> None:
    beside = visit(TEN.replace(minute=30), "ada")
    diff = difference(warehouse, visits, [beside], [visit(TEN, "ada")])
    assert (diff.only_there, diff.only_here, diff.changed) == (1, 1, 0)
    repair(warehouse, visits, [TEN], [visit(TEN, "ada")])
    assert net_rows(warehouse, visits) == as_counter([visit(TEN, "ada")])


def test_a_dry_run_leaves_the_target_as_it_is(warehouse: Warehouse, visits: Table) -> None:
    stored = [visit(TEN, "ada")]
    write_live(warehouse, visits, stored)
    prepared = dry_run(warehouse, visits, [TEN, ELEVEN], [visit(TEN, "ada", pages=4)])
    assert {hour: str(result.status) for hour, result in prepared.hours.items()} == {TEN: "proven", ELEVEN: "unchanged"}
    assert prepared.hours[TEN].after is None
    assert (prepared.hours[ELEVEN].before, prepared.hours[ELEVEN].desired) == (EMPTY, EMPTY)
    assert net_rows(warehouse, visits) == as_counter(stored)
