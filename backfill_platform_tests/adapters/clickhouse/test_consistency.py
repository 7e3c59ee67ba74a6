"""Inconsistent hours: reported with the problem, and rewritten only on request, without guessing."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill_platform.adapters.clickhouse import consistency, fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.leases import Lease
from backfill_platform.adapters.clickhouse.publishing.patches import drop_patches
from backfill_platform.adapters.clickhouse.publishing.prepare import Status
from backfill_platform.adapters.clickhouse.publishing.staging import Staging, fence
from backfill_platform.adapters.clickhouse.schema import PATCHES_DATABASE, create_target
from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.domain.tables import Table
from backfill_platform.errors import ConcurrentWriter, HourLeased, InconsistentHour, WarehouseError
from backfill_platform_tests.adapters.clickhouse.conftest import MakeTable
from backfill_platform_tests.adapters.clickhouse.visits import (
    ELEVEN,
    LATE,
    MIDNIGHT,
    PARTITIONINGS,
    TEN,
    TWELVE,
    as_counter,
    assert_holds,
    attempt,
    create_kind,
    dry_run,
    net_rows,
    outside,
    repair,
    statuses,
    visit,
    write_live,
)

ADA, BOB = visit(TEN, "ada", pages=1), visit(TEN, "bob", pages=1)
NEW = [ADA | {"pages": 2}, BOB]
Damage = Callable[[Warehouse, Table], None]


def doubled(warehouse: Warehouse, table: Table) -> None:
    write_live(warehouse, table, [ADA])


def orphaned(warehouse: Warehouse, table: Table) -> None:
    write_live(warehouse, table, [visit(TEN, "nobody")], sign=-1)


def cancelled_twice(warehouse: Warehouse, table: Table) -> None:
    for _ in range(2):
        write_live(warehouse, table, [ADA], sign=-1)


def two_states(warehouse: Warehouse, table: Table) -> None:
    write_live(warehouse, table, [ADA | {"pages": 7}])


def out_of_order(warehouse: Warehouse, table: Table) -> None:
    for sign in (1, -1):
        write_live(warehouse, table, [ADA | {"pages": 9}], sign=sign)


DAMAGES = {
    doubled: "1 states are stored more than once, 0 cancels have no state, 0 keys have several states",
    orphaned: "0 states are stored more than once, 1 cancels have no state",
    cancelled_twice: "1 cancels have no state",
    two_states: "1 keys have several states",
}


@pytest.fixture(params=PARTITIONINGS)
def table(request: pytest.FixtureRequest, warehouse: Warehouse, declared: MakeTable) -> Table:
    target = declared(request.param)
    create_target(warehouse, target)
    warehouse.command(f"SYSTEM STOP MERGES {target_name(target)}", doing="preparing")
    write_live(warehouse, target, [ADA, BOB, visit(ELEVEN, "cyd"), visit(MIDNIGHT, "dan")])
    write_live(warehouse, target, [visit(ELEVEN, "gone")])
    write_live(warehouse, target, [visit(ELEVEN, "gone")], sign=-1)
    return target


def merging(warehouse: Warehouse, table: Table) -> None:
    warehouse.command(f"SYSTEM START MERGES {target_name(table)}", doing="preparing")


@pytest.mark.parametrize(("damage", "said"), DAMAGES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_an_inconsistent_hour_is_refused_with_the_problem_and_not_changed(
    warehouse: Warehouse, table: Table, damage: Damage, said: str
) -> None:
    damage(warehouse, table)
    inconsistent = net_rows(warehouse, table)
    results = repair(warehouse, table, [TEN], NEW)
    assert isinstance(results[TEN].error, InconsistentHour)
    assert said in results[TEN].reason
    assert "rewrite inconsistent partitions" in results[TEN].reason
    assert net_rows(warehouse, table) == inconsistent


@pytest.mark.parametrize("damage", [*DAMAGES, out_of_order], ids=lambda damage: damage.__name__)
def test_a_repair_that_rewrites_partitions_ends_with_exactly_the_desired_rows(
    warehouse: Warehouse, table: Table, damage: Damage
) -> None:
    damage(warehouse, table)
    results = repair(warehouse, table, [TEN], NEW, rewrite_inconsistent=True)
    assert results[TEN].status is Status.PUBLISHED
    assert results[TEN].inconsistency
    merging(warehouse, table)
    assert_holds(warehouse, table, [*NEW, visit(ELEVEN, "cyd"), visit(MIDNIGHT, "dan")])


def test_a_dry_run_shows_what_a_rewrite_would_change_and_changes_nothing(warehouse: Warehouse, table: Table) -> None:
    two_states(warehouse, table)
    inconsistent = net_rows(warehouse, table)
    prepared = dry_run(warehouse, table, [TEN], NEW, rewrite_inconsistent=True)
    assert (prepared.hours[TEN].status, prepared.diffs[TEN].changed) == (Status.PROVEN, 1)
    assert net_rows(warehouse, table) == inconsistent


def test_an_hour_that_is_right_once_it_is_rewritten_is_repaired(warehouse: Warehouse, table: Table) -> None:
    doubled(warehouse, table)
    results = repair(warehouse, table, [TEN], [ADA, BOB], rewrite_inconsistent=True)
    assert (results[TEN].status, results[TEN].cancels, results[TEN].states) == (Status.PUBLISHED, 0, 0)
    merging(warehouse, table)
    assert_holds(warehouse, table, [ADA, BOB, visit(ELEVEN, "cyd"), visit(MIDNIGHT, "dan")])


def test_consistent_partitions_are_not_rewritten(warehouse: Warehouse, table: Table) -> None:
    doubled(warehouse, table)
    far = outside(warehouse, table, [TEN, ELEVEN, TWELVE, LATE])
    results = repair(warehouse, table, [TEN, ELEVEN], [*NEW, visit(ELEVEN, "cyd")], rewrite_inconsistent=True)
    assert statuses(results) == {TEN: "published", ELEVEN: "unchanged"}
    assert outside(warehouse, table, [TEN, ELEVEN, TWELVE, LATE]) == far


def test_another_inconsistent_hour_of_the_partition_is_left_alone(warehouse: Warehouse, declared: MakeTable) -> None:
    table = declared()
    create_target(warehouse, table)
    warehouse.command(f"SYSTEM STOP MERGES {target_name(table)}", doing="preparing")
    for _ in range(2):
        write_live(warehouse, table, [ADA, visit(ELEVEN, "cyd")])
    inconsistent = net_rows(warehouse, table)
    results = repair(warehouse, table, [TEN, TWELVE], [ADA, visit(TWELVE, "new")], rewrite_inconsistent=True)
    assert statuses(results) == {TEN: "refused", TWELVE: "published"}
    assert "1998-04-30T11 share a partition" in results[TEN].reason
    assert net_rows(warehouse, table) == inconsistent + as_counter([visit(TWELVE, "new")])
    assert set(
        statuses(repair(warehouse, table, [TEN, ELEVEN], [ADA, visit(ELEVEN, "cyd")], rewrite_inconsistent=True)).values()
    ) == {"published"}


def test_a_writer_to_the_partition_stops_the_rewrite(
    warehouse: Warehouse, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubled(warehouse, table)
    keep, written = consistency.keep_old_parts, visit(TEN, "live")

    def interfere(*arguments: object) -> None:
        keep(*arguments)  # type: ignore[arg-type]
        write_live(warehouse, table, [written])

    monkeypatch.setattr(consistency, "keep_old_parts", interfere)
    results = repair(warehouse, table, [TEN], NEW, rewrite_inconsistent=True)
    assert isinstance(results[TEN].error, ConcurrentWriter)
    assert (10, "live") in {(row[0].hour, row[1]) for row in net_rows(warehouse, table)}


def test_the_old_parts_are_kept_as_long_as_patches(warehouse: Warehouse, table: Table) -> None:
    doubled(warehouse, table)
    inconsistent = net_rows(warehouse, table)
    repair(warehouse, table, [TEN], NEW, rewrite_inconsistent=True)
    ((name,),) = warehouse.rows(
        "SELECT name FROM system.tables WHERE database = {db:String} AND comment = {target:String} "
        "AND endsWith(name, '_replaced')",
        parameters={"db": PATCHES_DATABASE, "target": str(table)},
        doing="looking",
    )
    old_rows = net_rows(warehouse, table, f"{PATCHES_DATABASE}.`{name}`")
    assert {row: net for row, net in inconsistent.items() if row[0] == TEN} == {
        row: net for row, net in old_rows.items() if row[0] == TEN
    }
    assert drop_patches(warehouse, table, older_than_days=0) == 2


@pytest.mark.parametrize("sign_", [1, -1])
def test_a_versioned_hour_with_two_versions_or_an_orphan_is_rewritten(
    warehouse: Warehouse, declared: MakeTable, sign_: int
) -> None:
    table = declared()
    create_kind(warehouse, table, "attach, versioned")
    write_live(warehouse, table, [ADA, BOB], version=1)
    write_live(warehouse, table, [ADA], sign=sign_, version=2)
    assert isinstance(repair(warehouse, table, [TEN], NEW)[TEN].error, InconsistentHour)
    assert repair(warehouse, table, [TEN], NEW, rewrite_inconsistent=True)[TEN].status is Status.PUBLISHED
    assert_holds(warehouse, table, NEW)


@pytest.mark.whole
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    writes=st.lists(
        st.tuples(st.sampled_from([TEN, ELEVEN]), st.sampled_from("abc"), st.integers(0, 2), st.sampled_from([1, -1])),
        max_size=8,
    )
)
def test_a_rewrite_ends_with_the_desired_rows_after_any_writes(
    warehouse: Warehouse, visits: Table, writes: list[tuple[object, str, int, int]]
) -> None:
    warehouse.command(f"TRUNCATE TABLE {target_name(visits)}", doing="preparing")
    for hour, who, pages, sign in writes:
        write_live(warehouse, visits, [visit(hour, who, pages=pages)], sign=sign)  # type: ignore[arg-type]
    rows = [visit(TEN, "a", pages=5), visit(ELEVEN, "d")]
    results = repair(warehouse, visits, [TEN, ELEVEN], rows, rewrite_inconsistent=True)
    assert set(statuses(results).values()) <= {"published", "unchanged"}
    assert_holds(warehouse, visits, rows)


# --- rewriting partitions while others write ---


def test_a_fenced_attempt_does_not_drop_a_partition_of_which_final_showed_nothing(
    warehouse: Warehouse, visits: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes to sleep just before; somebody else repairs the hour; it wakes up."""
    orphaned(warehouse, visits)
    check, calls = fingerprints.partitions, []

    def sleep(*arguments: Any) -> Any:
        fingerprints_ = check(*arguments)
        calls.append(1)
        if len(calls) == 2:
            fence(warehouse, visits)
            warehouse.command(f"TRUNCATE TABLE {target_name(visits)}", doing="what the other one does")
            write_live(warehouse, visits, NEW)
        return fingerprints_

    monkeypatch.setattr(fingerprints, "partitions", sleep)
    with pytest.raises(WarehouseError):
        repair(warehouse, visits, [TEN], NEW, rewrite_inconsistent=True)
    assert len(calls) == 2
    assert net_rows(warehouse, visits) == as_counter(NEW)


def test_a_rewrite_leases_the_whole_day(warehouse: Warehouse, visits: Table) -> None:
    with Staging(warehouse, visits, attempt(), [TEN], rewrites_partitions=True) as staging:
        assert staging.hours == (TEN,)
        with pytest.raises(HourLeased):
            Lease(warehouse, visits, [LATE], attempt="x", token="y", exclusive=True, patience=0).take()
        Lease(warehouse, visits, [MIDNIGHT], attempt="x", token="y", exclusive=True, patience=0).take()


def test_an_hour_that_is_filled_while_its_day_is_rewritten_is_not_lost(
    warehouse: Warehouse, visits: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse.command(f"SYSTEM STOP MERGES {target_name(visits)}", doing="preparing")
    for _ in range(2):
        write_live(warehouse, visits, [ADA])
    keep = consistency.keep_old_parts

    def fill(*arguments: Any) -> None:
        keep(*arguments)
        write_live(warehouse, visits, [visit(TWELVE, "new")])

    monkeypatch.setattr(consistency, "keep_old_parts", fill)
    results = repair(warehouse, visits, [TEN], [ADA], rewrite_inconsistent=True)
    assert isinstance(results[TEN].error, ConcurrentWriter)
    assert as_counter([visit(TWELVE, "new")]) <= net_rows(warehouse, visits)


def test_a_row_written_between_two_readings_of_an_inconsistent_hour_is_not_cancelled(
    warehouse: Warehouse, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubled(warehouse, table)
    read = fingerprints.final
    written: list[int] = []

    def late(*arguments: Any) -> Any:
        if not written:
            written.append(1)
            write_live(warehouse, table, [visit(TEN, "live")])
        return read(*arguments)

    since = fingerprints.net(warehouse, table, [TEN])
    monkeypatch.setattr(fingerprints, "final", late)
    results = repair(warehouse, table, [TEN], NEW, rewrite_inconsistent=True, since=since)
    assert isinstance(results[TEN].error, ConcurrentWriter)
    assert as_counter([visit(TEN, "live")]) <= net_rows(warehouse, table)


def test_no_partition_is_rewritten_on_a_server_that_may_bring_the_old_one_back(
    warehouse: Warehouse, visits: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backfill_platform.adapters.clickhouse.preconditions.REPLACED_IS_GONE_SINCE", (999,))
    write_live(warehouse, visits, [ADA, BOB, ADA])
    stored = net_rows(warehouse, visits)
    results = repair(warehouse, visits, [TEN], NEW, rewrite_inconsistent=True)
    assert statuses(results) == {TEN: "refused"}
    assert "may bring replaced partitions back when it starts again" in results[TEN].reason
    assert net_rows(warehouse, visits) == stored
