"""Fingerprints: what they tell apart, what they do not depend on, and that they can be added."""

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.schema import create_target
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.domain.fingerprint import EMPTY, Fingerprint
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.tables import Partitioning, Table
from backfill_platform.errors import UsageError
from backfill_platform_tests.adapters.clickhouse.conftest import MakeTable
from backfill_platform_tests.adapters.clickhouse.visits import (
    ELEVEN,
    LATE,
    MIDNIGHT,
    PARTITIONINGS,
    TEN,
    TWELVE,
    Row,
    staged,
    visit,
    write_live,
    write_parquet,
)

NAN = float("nan")


def test_only_given_hours_have_fingerprints_and_those_without_rows_are_empty(warehouse: Warehouse, visits: Table) -> None:
    write_live(warehouse, visits, [visit(TEN, "ada"), visit(TWELVE, "bob")])
    by_hour = fingerprints.net(warehouse, visits, [TEN, ELEVEN])
    assert list(by_hour) == [TEN, ELEVEN]
    assert by_hour[TEN].rows == 1
    assert by_hour[ELEVEN] == EMPTY


@pytest.mark.parametrize("partitioning", PARTITIONINGS)
def test_hours_are_half_open_and_need_not_be_neighbours(
    warehouse: Warehouse, declared: MakeTable, partitioning: Partitioning
) -> None:
    table = declared(partitioning)
    create_target(warehouse, table)
    beside = [TEN, TEN + timedelta(minutes=30), ELEVEN - timedelta(microseconds=1), ELEVEN, LATE, MIDNIGHT]
    write_live(warehouse, table, [visit(hour, "ada") for hour in beside])
    by_hour = fingerprints.net(warehouse, table, [MIDNIGHT, TEN, TWELVE])
    assert {hour: print_.rows for hour, print_ in by_hour.items()} == {TEN: 3, TWELVE: 0, MIDNIGHT: 1}
    alone = fingerprints.net(warehouse, table, [TEN]) | fingerprints.net(warehouse, table, [MIDNIGHT])
    assert alone == {TEN: by_hour[TEN], MIDNIGHT: by_hour[MIDNIGHT]}


def test_a_year_of_hours_with_holes_fits_into_a_request(warehouse: Warehouse, visits: Table) -> None:
    write_live(warehouse, visits, [visit(TEN, "ada")])
    year = [hour for number, hour in enumerate(HourRange(TEN, TEN + 365 * 24 * HOUR)) if number % 5]
    by_hour = fingerprints.net(warehouse, visits, [TEN, *year])
    assert len(by_hour) == len(year) + 1
    assert [hour for hour, print_ in by_hour.items() if print_ != EMPTY] == [TEN]


@pytest.mark.parametrize("hour", [TEN.replace(year=1969), TEN.replace(year=2106, month=2, day=8)])
def test_hours_that_clickhouse_would_wrap_around_are_refused(warehouse: Warehouse, visits: Table, hour: datetime) -> None:
    with pytest.raises(UsageError, match="from 1970-01-01T00 to 2106-02-07T05"):
        fingerprints.net(warehouse, visits, [TEN, hour])


def only(warehouse: Warehouse, table: Table, row: Row) -> Fingerprint:
    """The fingerprint of a table that holds one row."""
    warehouse.command(f"TRUNCATE TABLE {target_name(table)}", doing="preparing")
    write_live(warehouse, table, [row])
    return fingerprints.net(warehouse, table, [TEN])[TEN]


def test_a_null_does_not_hide_other_values_of_the_row(warehouse: Warehouse, visits: Table) -> None:
    few, many = (only(warehouse, visits, visit(TEN, "ada", country=None, pages=pages)) for pages in (3, 4))
    assert few != many
    assert few.hash != 0


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"revenue": None}, {"revenue": 0}),
        ({"country": None}, {"country": ""}),
        ({"revenue": None, "country": "1"}, {"revenue": 1, "country": None}),
        ({"score": 0.0}, {"score": -0.0}),
        ({"score": NAN}, {"score": None}),
        ({"seen_at": TEN}, {"seen_at": TEN + timedelta(microseconds=1)}),
        ({"is_open": True}, {"is_open": False}),
    ],
)
def test_rows_that_differ_in_any_bit_differ(warehouse: Warehouse, visits: Table, left: Row, right: Row) -> None:
    assert only(warehouse, visits, visit(TEN, "ada", **left)) != only(warehouse, visits, visit(TEN, "ada", **right))


def test_nan_equals_itself(warehouse: Warehouse, visits: Table) -> None:
    assert only(warehouse, visits, visit(TEN, "ada", score=NAN)) == only(warehouse, visits, visit(TEN, "ada", score=NAN))


def test_cancels_take_their_states_away_whether_merged_or_not(warehouse: Warehouse, visits: Table) -> None:
    old, new, unchanged = visit(TEN, "ada"), visit(TEN, "ada", pages=9), visit(TEN, "bob", country=None)
    write_live(warehouse, visits, [unchanged, new])
    want = fingerprints.net(warehouse, visits, [TEN])
    warehouse.command(f"TRUNCATE TABLE {target_name(visits)}", doing="preparing")
    write_live(warehouse, visits, [old, unchanged])
    write_live(warehouse, visits, [old], sign=-1)
    write_live(warehouse, visits, [new])
    assert fingerprints.net(warehouse, visits, [TEN]) == want == fingerprints.final(warehouse, visits, [TEN])
    warehouse.command(f"OPTIMIZE TABLE {target_name(visits)} FINAL", doing="merging")
    assert fingerprints.net(warehouse, visits, [TEN]) == want == fingerprints.final(warehouse, visits, [TEN])


def damage_by_doubling(warehouse: Warehouse, table: Table) -> None:
    write_live(warehouse, table, [visit(TEN, "ada")])


def damage_by_an_orphan_cancel(warehouse: Warehouse, table: Table) -> None:
    write_live(warehouse, table, [visit(TEN, "nobody")], sign=-1)


def damage_by_two_writers(warehouse: Warehouse, table: Table) -> None:
    """Both cancelled the same row and wrote their own: signs still add up to one for the key."""
    write_live(warehouse, table, [visit(TEN, "ada")], sign=-1)
    write_live(warehouse, table, [visit(TEN, "ada", pages=11)])
    write_live(warehouse, table, [visit(TEN, "ada")], sign=-1)
    write_live(warehouse, table, [visit(TEN, "ada", pages=20)])


@pytest.mark.parametrize("damage", [damage_by_doubling, damage_by_an_orphan_cancel, damage_by_two_writers])
def test_net_state_and_final_disagree_about_a_damaged_hour(
    warehouse: Warehouse, warehouse_url: str, visits: Table, damage: Callable[[Warehouse, Table], None]
) -> None:
    warehouse.command(f"SYSTEM STOP MERGES {target_name(visits)}", doing="preparing")
    write_live(warehouse, visits, [visit(TEN, "ada"), visit(ELEVEN, "bob")])
    damage(warehouse, visits)
    # A user whose profile reads everything with FINAL must see the damage too.
    profiled = Warehouse(warehouse_url, settings={"final": 1})
    for connection in (warehouse, profiled):
        net = fingerprints.net(connection, visits, [TEN, ELEVEN])
        final = fingerprints.final(connection, visits, [TEN, ELEVEN])
        assert net[TEN] != final[TEN]
        assert net[ELEVEN] == final[ELEVEN]
    profiled.close()


def test_files_have_the_fingerprints_of_the_rows_they_hold(warehouse: Warehouse, visits: Table, tmp_path: Path) -> None:
    rows = [
        visit(TEN, "ada", country=None),
        visit(TEN, "bob", score=NAN, revenue=None),
        visit(ELEVEN, "cyd", score=-0.0, seen_at=None),
    ]
    path = write_parquet(tmp_path / "part-0.parquet", rows)
    staging = staged(warehouse, visits, rows)
    desired = fingerprints.states(warehouse, visits, [TEN, ELEVEN, TWELVE], source=staging.desired)
    assert fingerprints.files(warehouse, visits, [TEN, ELEVEN, TWELVE], [path]) == desired
    assert fingerprints.files(warehouse, visits, [ELEVEN], [f"file://{path}"]) == {ELEVEN: desired[ELEVEN]}
    write_live(warehouse, visits, rows)
    assert fingerprints.net(warehouse, visits, [TEN, ELEVEN, TWELVE]) == desired
    assert fingerprints.files(warehouse, visits, [TEN], []) == {TEN: EMPTY}
