"""Undoing a publish: exactly what it wrote, only where it still is there."""

from collections.abc import Collection
from datetime import datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.patches import (
    Undoable,
    drop_patches,
    load_undone,
    patched_hours,
    undoable,
)
from backfill_platform.adapters.clickhouse.publishing.prepare import HourPublish, prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.staging import Staging
from backfill_platform.adapters.clickhouse.schema import create_target
from backfill_platform.domain.tables import Table
from backfill_platform.errors import PreconditionError
from backfill_platform_tests.adapters.clickhouse.conftest import MakeTable
from backfill_platform_tests.adapters.clickhouse.visits import (
    ELEVEN,
    LATE,
    MIDNIGHT,
    PARTITIONINGS,
    TEN,
    Row,
    as_counter,
    assert_holds,
    attempt,
    counts,
    net_rows,
    outside,
    visit,
    write_live,
)

HOURS = (TEN, ELEVEN, MIDNIGHT)
BEFORE = [visit(TEN, "same"), visit(TEN, "changed"), visit(TEN, "removed"), visit(MIDNIGHT, "moved"), visit(LATE, "far")]
AFTER = [visit(TEN, "same"), visit(TEN, "changed", pages=9, country=None), visit(ELEVEN, "added"), visit(ELEVEN, "moved")]


def published(warehouse: Warehouse, table: Table, rows: list[Row], hours: Collection[datetime] = HOURS) -> str:
    """Publish the rows and return the name of the attempt."""
    name = attempt()
    with Staging(warehouse, table, name, hours) as staging:
        staging.load_rows(rows, counts(rows))
        publish(prepare(staging, hours))
    return name


def undo(warehouse: Warehouse, table: Table, name: str, hours: Collection[datetime]) -> tuple[Undoable, str, list[HourPublish]]:
    reversal = undoable(warehouse, table, name, hours)
    own = attempt()
    with Staging(warehouse, table, own, hours) as staging:
        load_undone(staging, name, hours)
        return reversal, own, list(publish(prepare(staging, hours)))


@pytest.fixture(params=PARTITIONINGS)
def repaired(request: pytest.FixtureRequest, warehouse: Warehouse, declared: MakeTable) -> tuple[Table, str]:
    """A table that held BEFORE and was made to hold AFTER, and the attempt that did it."""
    table = declared(request.param)
    create_target(warehouse, table)
    write_live(warehouse, table, BEFORE)
    return table, published(warehouse, table, AFTER)


def test_an_undo_restores_the_fingerprints_before(warehouse: Warehouse, declared: MakeTable) -> None:
    table = declared()
    create_target(warehouse, table)
    write_live(warehouse, table, BEFORE)
    before = fingerprints.net(warehouse, table, HOURS)
    name = published(warehouse, table, AFTER)
    assert fingerprints.net(warehouse, table, HOURS) != before
    reversal, _, _ = undo(warehouse, table, name, patched_hours(warehouse, table, name))
    assert (reversal.conflicts, sum(reversal.rows.values())) == (0, 5)
    assert fingerprints.net(warehouse, table, HOURS) == before == fingerprints.final(warehouse, table, HOURS)


def test_an_undo_can_be_undone(warehouse: Warehouse, repaired: tuple[Table, str]) -> None:
    table, name = repaired
    far = outside(warehouse, table, HOURS)
    _, undone, _ = undo(warehouse, table, name, HOURS)
    assert_holds(warehouse, table, BEFORE)
    undo(warehouse, table, undone, HOURS)
    assert_holds(warehouse, table, [*AFTER, BEFORE[-1]])
    assert outside(warehouse, table, HOURS) == far


def test_only_the_given_hours_are_undone(warehouse: Warehouse, repaired: tuple[Table, str]) -> None:
    table, name = repaired
    undo(warehouse, table, name, [TEN])
    assert_holds(warehouse, table, [*BEFORE[:3], *AFTER[2:], BEFORE[-1]])


def test_rows_that_somebody_changed_since_are_conflicts_and_stay(warehouse: Warehouse, repaired: tuple[Table, str]) -> None:
    table, name = repaired
    theirs = visit(TEN, "changed", pages=10)
    write_live(warehouse, table, [AFTER[1]], sign=-1)
    write_live(warehouse, table, [theirs, visit(TEN, "removed", pages=77)])
    reversal, _, _ = undo(warehouse, table, name, HOURS)
    assert reversal.conflicts == 2
    assert [(conflict.hour, "changed" in conflict.key or "removed" in conflict.key) for conflict in reversal.shown] == [
        (TEN, True)
    ] * 2
    expected = [BEFORE[0], theirs, visit(TEN, "removed", pages=77), BEFORE[3], BEFORE[4]]
    assert_holds(warehouse, table, expected)


def test_live_writes_to_other_rows_survive_an_undo(warehouse: Warehouse, repaired: tuple[Table, str]) -> None:
    table, name = repaired
    new = visit(TEN, "live")
    write_live(warehouse, table, [new])
    reversal, _, _ = undo(warehouse, table, name, HOURS)
    assert reversal.conflicts == 0
    assert_holds(warehouse, table, [*BEFORE, new])


def test_undoing_twice_changes_nothing_more(warehouse: Warehouse, repaired: tuple[Table, str]) -> None:
    table, name = repaired
    undo(warehouse, table, name, HOURS)
    reversal, _, results = undo(warehouse, table, name, HOURS)
    assert (sum(reversal.rows.values()), reversal.conflicts) == (0, 5)
    assert {str(result.status) for result in results} == {"unchanged"}
    assert_holds(warehouse, table, BEFORE)


def test_a_publish_that_changed_nothing_leaves_no_patch(warehouse: Warehouse, repaired: tuple[Table, str]) -> None:
    table, _ = repaired
    again = published(warehouse, table, AFTER)
    with pytest.raises(PreconditionError, match="published nothing, or its retention is over"):
        patched_hours(warehouse, table, again)


def test_patches_are_dropped_after_their_retention(warehouse: Warehouse, repaired: tuple[Table, str]) -> None:
    table, name = repaired
    assert drop_patches(warehouse, table, older_than_days=1) == 0
    assert patched_hours(warehouse, table, name) == HOURS
    assert drop_patches(warehouse, table, older_than_days=0) == 1
    with pytest.raises(PreconditionError):
        patched_hours(warehouse, table, name)


rows = st.lists(
    st.tuples(st.sampled_from(HOURS), st.sampled_from("abcd"), st.integers(0, 2), st.sampled_from([None, "", "fr"])),
    unique_by=lambda row: row[:2],
    max_size=8,
).map(lambda drawn: [visit(hour, who, pages=pages, country=country) for hour, who, pages, country in drawn])


@pytest.mark.whole
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=rows, after=rows)
def test_an_undo_takes_back_any_publish(warehouse: Warehouse, declared: MakeTable, before: list[Row], after: list[Row]) -> None:
    table = declared()
    create_target(warehouse, table)
    write_live(warehouse, table, before)
    name = published(warehouse, table, after)
    if as_counter(before) != as_counter(after):
        reversal, _, _ = undo(warehouse, table, name, patched_hours(warehouse, table, name))
        assert reversal.conflicts == 0
    assert net_rows(warehouse, table) == as_counter(before)


def test_a_repair_that_wrote_nothing_cannot_be_undone(warehouse: Warehouse, visits: Table) -> None:
    """Somebody else made the same change just before: it is not ours to take back."""
    write_live(warehouse, visits, [visit(TEN, "ada", pages=1)])
    name, new = attempt(), [visit(TEN, "ada", pages=2)]

    def interfere(step: str) -> None:
        if step == "kept":
            write_live(warehouse, visits, [visit(TEN, "ada", pages=1)], sign=-1)
            write_live(warehouse, visits, new)

    with Staging(warehouse, visits, name, [TEN]) as staging:
        staging.load_rows(new, counts(new))
        (result,) = publish(prepare(staging, [TEN]), on_step=interfere)
    assert str(result.status) == "unchanged"
    with pytest.raises(PreconditionError, match="published nothing"):
        patched_hours(warehouse, visits, name)


def test_a_repair_that_died_before_it_published_cannot_be_undone(warehouse: Warehouse, visits: Table) -> None:
    name, new = attempt(), [visit(TEN, "ada")]

    def die(step: str) -> None:
        if step == "rechecked":
            raise InterruptedError

    staging = Staging(warehouse, visits, name, [TEN])
    staging.open()
    staging.load_rows(new, counts(new))
    with pytest.raises(InterruptedError):
        publish(prepare(staging, [TEN]), on_step=die)
    staging.lease.release()  # instead of waiting until it runs out
    published(warehouse, visits, new, [TEN])
    with pytest.raises(PreconditionError, match="published nothing"):
        patched_hours(warehouse, visits, name)


def test_a_repair_that_was_resumed_is_undone_as_one(warehouse: Warehouse, visits: Table) -> None:
    write_live(warehouse, visits, BEFORE)
    name = attempt()
    for hours in ([TEN], [ELEVEN, MIDNIGHT]):
        rows = [row for row in AFTER if row["hour"] in hours]
        with Staging(warehouse, visits, name, hours) as staging:
            staging.load_rows(rows, counts(rows))
            publish(prepare(staging, hours))
    reversal, _, _ = undo(warehouse, visits, name, HOURS)
    assert reversal.conflicts == 0
    assert_holds(warehouse, visits, BEFORE)
