"""The publish protocol: all or nothing for readers, hour by hour for whoever asks, and any crash can be run again."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing import prepare as protocol
from backfill_platform.adapters.clickhouse.publishing.prepare import Status, prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.schema import STAGING_DATABASE, create_target
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.domain.fingerprint import EMPTY
from backfill_platform.domain.tables import Partitioning, Table
from backfill_platform.errors import (
    CheckFailed,
    InconsistentHour,
    ProofFailed,
)
from backfill_platform_tests.adapters.clickhouse.conftest import MakeTable
from backfill_platform_tests.adapters.clickhouse.visits import (
    ELEVEN,
    LATE,
    MIDNIGHT,
    OTHER_ENGINES,
    PARTITIONINGS,
    TEN,
    TWELVE,
    Row,
    as_counter,
    assert_holds,
    attempt,
    counts,
    dry_run,
    final_rows,
    net_rows,
    outside,
    repair,
    staged,
    statuses,
    visit,
    write_live,
)

NAN = float("nan")


# --- what is published ---


def test_a_first_publish_fills_an_empty_table(warehouse: Warehouse, visits: Table) -> None:
    rows = [visit(TEN, "ada", country=None), visit(ELEVEN, "ada"), visit(MIDNIGHT, "bob", score=NAN)]
    results = repair(warehouse, visits, [TEN, ELEVEN, MIDNIGHT], rows)
    assert statuses(results) == {TEN: "published", ELEVEN: "published", MIDNIGHT: "published"}
    assert {(result.cancels, result.states, result.untouched) for result in results.values()} == {(0, 1, 0)}
    assert_holds(warehouse, visits, rows)


@pytest.mark.parametrize("partitioning", PARTITIONINGS)
def test_only_what_differs_is_written(warehouse: Warehouse, declared: MakeTable, partitioning: Partitioning) -> None:
    table = declared(partitioning)
    create_target(warehouse, table)
    unchanged = [visit(hour, f"visitor {number}", country=None) for hour in (TEN, LATE) for number in range(20)]
    wrong, doomed = visit(TEN, "wrong", pages=1), visit(LATE, "doomed")
    right, late = visit(TEN, "wrong", pages=2), visit(LATE, "late")
    write_live(warehouse, table, [*unchanged, wrong, doomed])
    results = repair(warehouse, table, [TEN, LATE], [*unchanged, right, late])
    assert {(result.cancels, result.states, result.untouched) for result in results.values()} == {(1, 1, 20)}
    for result in results.values():
        assert result.status is Status.PUBLISHED
        assert result.after == result.desired != result.before
    assert_holds(warehouse, table, [*unchanged, right, late])


def test_every_updated_row_survives_the_merges(warehouse: Warehouse, visits: Table) -> None:
    """With optimize_on_insert, or with states before cancels, ClickHouse collapses such updates to nothing."""
    old = [visit(TEN, f"visitor {number}", pages=1) for number in range(2000)]
    new = [row | {"pages": 2} for row in old]
    write_live(warehouse, visits, old)
    assert statuses(repair(warehouse, visits, [TEN], new)) == {TEN: "published"}
    assert_holds(warehouse, visits, new)


def test_hours_are_compared_in_portions(warehouse: Warehouse, visits: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A portion is one INSERT; still all cancels come before all states, and each partition is one part."""
    monkeypatch.setattr(protocol, "ROWS_PER_INSERT", 50)
    hours = [TEN, ELEVEN, TWELVE, LATE, MIDNIGHT]
    old = [visit(hour, f"visitor {number}", pages=1) for hour in hours for number in range(15)]
    new = [row | {"pages": 2} for row in old]
    write_live(warehouse, visits, old)
    warehouse.command(f"SYSTEM STOP MERGES {target_name(visits)}", doing="preparing")
    before = parts(warehouse, "transformed", visits.name)
    assert set(statuses(repair(warehouse, visits, hours, new)).values()) == {"published"}
    published = parts(warehouse, "transformed", visits.name).keys() - before.keys()
    assert sorted(part.split("_")[0] for part in published) == ["19980430", "19980501"]
    warehouse.command(f"SYSTEM START MERGES {target_name(visits)}", doing="merging")
    assert_holds(warehouse, visits, new)


def test_a_delta_of_one_part_is_not_written_a_second_time(warehouse: Warehouse, visits: Table) -> None:
    staging = staged(warehouse, visits, [visit(TEN, "ada"), visit(ELEVEN, "bob")])
    prepare(staging, [TEN, ELEVEN])
    assert list(parts(warehouse, STAGING_DATABASE, staging.delta_name).values()) == [0]


def parts(warehouse: Warehouse, database: str, name: str) -> dict[str, int]:
    """The active parts of a table, and how often the rows of each were merged."""
    return dict(
        warehouse.rows(
            "SELECT name, level FROM system.parts WHERE database = {database:String} AND table = {name:String} AND active",
            parameters={"database": database, "name": name},
            doing="looking for parts",
        )
    )


def test_a_table_with_one_row_for_each_hour_has_no_key(warehouse: Warehouse, declared: MakeTable) -> None:
    totals = replace(declared(), key=())
    create_target(warehouse, totals)
    write_live(warehouse, totals, [visit(TEN, "all", pages=1), visit(ELEVEN, "all")])
    rows = [visit(TEN, "all", pages=2), visit(ELEVEN, "all")]
    assert statuses(repair(warehouse, totals, [TEN, ELEVEN], rows)) == {TEN: "published", ELEVEN: "unchanged"}
    assert_holds(warehouse, totals, rows)
    assert dry_run(warehouse, totals, [TEN], [*rows[:1], *rows[:1]]).hours[TEN].status is Status.REFUSED


def test_an_hour_without_desired_rows_is_emptied(warehouse: Warehouse, visits: Table) -> None:
    write_live(warehouse, visits, [visit(TEN, "ada"), visit(TEN, "bob"), visit(ELEVEN, "cyd")])
    results = repair(warehouse, visits, [TEN], [])
    assert (results[TEN].status, results[TEN].cancels, results[TEN].after) == (Status.PUBLISHED, 2, EMPTY)
    assert_holds(warehouse, visits, [visit(ELEVEN, "cyd")])


def test_a_row_that_moves_over_midnight_is_neither_lost_nor_doubled(warehouse: Warehouse, visits: Table) -> None:
    write_live(warehouse, visits, [visit(LATE, "ada")])
    repair(warehouse, visits, [LATE, MIDNIGHT], [visit(MIDNIGHT, "ada")])
    assert_holds(warehouse, visits, [visit(MIDNIGHT, "ada")])


@pytest.mark.parametrize(("old", "new"), [(0.0, -0.0), (NAN, 1.0), (1.0, NAN), (NAN, None), (-0.0, NAN)])
def test_odd_floats_are_stored_as_they_are(warehouse: Warehouse, visits: Table, old: float, new: float | None) -> None:
    write_live(warehouse, visits, [visit(TEN, "ada", score=old)])
    rows = [visit(TEN, "ada", score=new)]
    assert statuses(repair(warehouse, visits, [TEN], rows)) == {TEN: "published"}
    assert_holds(warehouse, visits, rows)
    assert statuses(repair(warehouse, visits, [TEN], rows)) == {TEN: "unchanged"}


def test_nothing_outside_the_hours_is_touched(warehouse: Warehouse, visits: Table) -> None:
    others = [visit(hour, f"visitor {number}") for hour in (TEN, TWELVE, LATE, MIDNIGHT) for number in range(5)]
    beside = [visit(ELEVEN - timedelta(microseconds=1), "just before"), visit(TWELVE, "just after")]
    write_live(warehouse, visits, [*others, *beside, visit(ELEVEN, "ada")])
    write_live(warehouse, visits, others[:2], sign=-1)
    warehouse.command(f"SYSTEM STOP MERGES {target_name(visits)}", doing="preparing")
    before = outside(warehouse, visits, [ELEVEN])
    results = repair(warehouse, visits, [ELEVEN], [visit(ELEVEN, "bob")])
    assert statuses(results) == {ELEVEN: "published"}
    assert outside(warehouse, visits, [ELEVEN]) == before


def test_hours_that_are_as_desired_are_not_written(warehouse: Warehouse, visits: Table) -> None:
    rows = [visit(TEN, "ada"), visit(ELEVEN, "bob", country=None)]
    write_live(warehouse, visits, rows)
    results = repair(warehouse, visits, [TEN, ELEVEN, TWELVE], [rows[0], rows[1] | {"pages": 9}])
    assert statuses(results) == {TEN: "unchanged", ELEVEN: "published", TWELVE: "unchanged"}
    assert results[TEN].before == results[TEN].desired == results[TEN].after


# --- once or twice ---


def test_publishing_again_changes_nothing(warehouse: Warehouse, visits: Table) -> None:
    write_live(warehouse, visits, [visit(TEN, "ada", pages=1)])
    rows = [visit(TEN, "ada", pages=2, country=None), visit(TEN, "bob")]
    assert statuses(repair(warehouse, visits, [TEN], rows)) == {TEN: "published"}
    assert statuses(repair(warehouse, visits, [TEN], rows)) == {TEN: "unchanged"}
    assert_holds(warehouse, visits, rows)


def test_publishing_a_change_and_its_reverse_restores_the_hour(warehouse: Warehouse, visits: Table) -> None:
    """Deduplication of inserts by content would drop the third of these silently."""
    first, second = [visit(TEN, "ada", pages=1)], [visit(TEN, "ada", pages=2)]
    for rows in (first, second, first, second):
        assert statuses(repair(warehouse, visits, [TEN], rows)) == {TEN: "published"}
    assert_holds(warehouse, visits, second)


def test_a_delta_is_not_published_twice(warehouse: Warehouse, visits: Table) -> None:
    write_live(warehouse, visits, [visit(TEN, "ada", pages=1)])
    prepared = prepare(staged(warehouse, visits, [visit(TEN, "ada", pages=2)]), [TEN])
    assert publish(prepared)[0].status is Status.PUBLISHED
    (again,) = publish(prepared)
    assert again.status is Status.UNCHANGED
    assert_holds(warehouse, visits, [visit(TEN, "ada", pages=2)])


def test_attaching_twice_is_what_makes_an_hour_inconsistent(warehouse: Warehouse, visits: Table) -> None:
    """The trap itself: ATTACH doubles without complaint, and only the consistency check notices it."""
    warehouse.command(f"SYSTEM STOP MERGES {target_name(visits)}", doing="preparing")
    prepared = prepare(staged(warehouse, visits, [visit(TEN, "ada")]), [TEN])
    publish(prepared)
    warehouse.command(f"ALTER TABLE {target_name(visits)} ATTACH PARTITION ALL FROM {prepared.staging.delta}", doing="doubling")
    assert net_rows(warehouse, visits).total() == 2
    results = repair(warehouse, visits, [TEN], [visit(TEN, "ada")])
    assert isinstance(results[TEN].error, InconsistentHour)


# --- hours that must not be published do not hold back the others ---


def doubled(warehouse: Warehouse, table: Table) -> None:
    write_live(warehouse, table, [visit(TEN, "ada")])


def orphaned(warehouse: Warehouse, table: Table) -> None:
    write_live(warehouse, table, [visit(TEN, "nobody")], sign=-1)


@pytest.mark.parametrize("damage", [doubled, orphaned])
def test_an_inconsistent_hour_is_refused_and_the_others_of_its_day_are_published(
    warehouse: Warehouse, visits: Table, damage: Callable[[Warehouse, Table], None]
) -> None:
    warehouse.command(f"SYSTEM STOP MERGES {target_name(visits)}", doing="preparing")
    write_live(warehouse, visits, [visit(TEN, "ada"), visit(ELEVEN, "bob")])
    damage(warehouse, visits)
    inconsistent = fingerprints.net(warehouse, visits, [TEN])
    results = repair(warehouse, visits, [TEN, ELEVEN], [visit(TEN, "ada", pages=9), visit(ELEVEN, "bob", pages=9)])
    assert statuses(results) == {TEN: "refused", ELEVEN: "published"}
    assert isinstance(results[TEN].error, InconsistentHour)
    assert "1998-04-30T10" in results[TEN].reason
    assert fingerprints.net(warehouse, visits, [TEN]) == inconsistent


def test_an_inconsistent_hour_is_refused_even_when_its_net_state_is_right(warehouse: Warehouse, visits: Table) -> None:
    """FINAL shows the state that was written last, even though its cancel came after it."""
    warehouse.command(f"SYSTEM STOP MERGES {target_name(visits)}", doing="preparing")
    right, wrong = visit(TEN, "ada", pages=1), visit(TEN, "ada", pages=2)
    for row, sign in ((right, 1), (wrong, 1), (wrong, -1)):
        write_live(warehouse, visits, [row], sign)
    assert (net_rows(warehouse, visits), final_rows(warehouse, visits)) == (as_counter([right]), as_counter([wrong]))
    prepared = dry_run(warehouse, visits, [TEN], [right])
    assert isinstance(prepared.hours[TEN].error, InconsistentHour)
    assert prepared.diffs == {}


def test_an_hour_with_a_repeated_key_is_refused_and_the_others_are_published(warehouse: Warehouse, visits: Table) -> None:
    rows = [visit(TEN, "ada", pages=1), visit(TEN, "ada", pages=2), visit(ELEVEN, "bob")]
    results = repair(warehouse, visits, [TEN, ELEVEN], rows)
    assert statuses(results) == {TEN: "refused", ELEVEN: "published"}
    assert isinstance(results[TEN].error, CheckFailed)
    assert_holds(warehouse, visits, [visit(ELEVEN, "bob")])


def test_rows_outside_the_hours_publish_nothing(warehouse: Warehouse, visits: Table) -> None:
    with pytest.raises(CheckFailed, match="lie outside the hours"):
        repair(warehouse, visits, [TEN], [visit(TEN, "ada"), visit(ELEVEN, "bob")])
    assert_holds(warehouse, visits, [])


def test_change_limits_may_refuse_hours(warehouse: Warehouse, visits: Table) -> None:
    prepared = prepare(staged(warehouse, visits, [visit(TEN, "ada"), visit(ELEVEN, "bob")]), [TEN, ELEVEN])
    objection = CheckFailed("too much would change")
    results = {result.hour: result for result in publish(prepared, refuse=lambda prepared: {TEN: objection})}
    assert statuses(results) == {TEN: "refused", ELEVEN: "published"}
    assert results[TEN].error is objection
    assert_holds(warehouse, visits, [visit(ELEVEN, "bob")])


@pytest.mark.parametrize(
    "ttl",
    [
        "MODIFY TTL toDateTime(hour) + INTERVAL 1 SECOND DELETE WHERE visitor = 'expired'",
        "MODIFY COLUMN country Nullable(String) TTL toDateTime(hour) + INTERVAL if(visitor = 'expired', 1, 3153600000) SECOND",
    ],
    ids=["rows", "values"],
)
def test_an_hour_whose_rows_a_ttl_drops_fails_its_proof_and_others_are_published(
    warehouse: Warehouse, visits: Table, ttl: str
) -> None:
    """A TTL takes rows or values out of the delta while it is merged; nothing may depend on merges in the background."""
    for change in (ttl, "MODIFY SETTING max_number_of_merges_with_ttl_in_pool = 0"):
        warehouse.command(f"ALTER TABLE {target_name(visits)} {change}", doing="preparing")
    results = repair(warehouse, visits, [TEN, ELEVEN], [visit(TEN, "expired"), visit(ELEVEN, "bob")])
    assert statuses(results) == {TEN: "refused", ELEVEN: "published"}
    assert isinstance(results[TEN].error, ProofFailed)
    assert_holds(warehouse, visits, [visit(ELEVEN, "bob")])


# --- anything to anything ---

ROWS = st.dictionaries(
    st.tuples(st.sampled_from([TEN, ELEVEN, TWELVE, LATE, MIDNIGHT]), st.sampled_from(["ada", "bob", "cyd", ""])),
    st.fixed_dictionaries(
        {
            "pages": st.integers(-(2**31), 2**31 - 1),
            "revenue": st.none() | st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63)]),
            "score": st.none() | st.sampled_from([0.0, -0.0, NAN, 1.5, float("inf")]),
            "country": st.none() | st.sampled_from(["", "fr", "\x00\n'\\", "ü"]),
            "is_open": st.booleans(),
            "seen_at": st.none() | st.sampled_from([TEN, TEN + timedelta(microseconds=1)]),
        }
    ),
).map(lambda cells: [{"hour": hour, "visitor": visitor} | values for (hour, visitor), values in cells.items()])


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["collapsing", *OTHER_ENGINES])
@given(stored=ROWS, desired=ROWS, requested=st.sets(st.sampled_from([TEN, ELEVEN, TWELVE, LATE, MIDNIGHT]), min_size=1))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_stored_rows_become_any_desired_rows(
    warehouse: Warehouse, visits: Table, kind: str, stored: list[Row], desired: list[Row], requested: set[datetime]
) -> None:
    if kind in OTHER_ENGINES:
        visits = replace(visits, name=f"{visits.name}_other", target=OTHER_ENGINES[kind])
        create_target(warehouse, visits)
    if kind == "plain":
        stored += stored[:1]
    warehouse.command(f"TRUNCATE TABLE {target_name(visits)}", doing="preparing")
    write_live(warehouse, visits, stored)
    hours = sorted(requested)
    rows = [row for row in desired if row["hour"] in requested]
    expected = as_counter(rows) + as_counter(row for row in stored if row["hour"] not in requested)
    with Staging(warehouse, visits, attempt(), hours) as staging:
        staging.load_rows(rows, counts(rows))
        prepared = prepare(staging, hours)
        delta = fingerprints.net(warehouse, visits, hours, source=staging.delta)
        for result in prepared.hours.values():
            assert result.before + delta[result.hour] == result.desired
            diff = prepared.diffs[result.hour]
            assert (diff.changed + diff.only_there, diff.changed + diff.only_here) == (result.cancels, result.states)
            assert diff.matched == result.untouched
        assert {str(result.status) for result in publish(prepared)} <= {"published", "unchanged"}
    assert net_rows(warehouse, visits) == expected == final_rows(warehouse, visits)
    assert set(statuses(repair(warehouse, visits, hours, rows)).values()) == {"unchanged"}
