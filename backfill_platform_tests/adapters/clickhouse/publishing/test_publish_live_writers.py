"""What live writers do to a target while it is repaired is never undone, and it is said which hours had to wait."""

from datetime import timedelta

import pytest

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.domain.tables import Table
from backfill_platform.errors import ConcurrentWriter
from backfill_platform_tests.adapters.clickhouse.visits import (
    ELEVEN,
    TEN,
    TWELVE,
    assert_holds,
    net_rows,
    repair,
    statuses,
    visit,
    write_live,
)


@pytest.mark.parametrize("step", ["fingerprinted", "cancels", "states", "merged", "proven", "kept", "rechecked"])
def test_rows_that_a_live_writer_wrote_after_the_comparison_are_never_undone(
    warehouse: Warehouse, visits: Table, step: str
) -> None:
    """It writes to the hour TEN at the step; ELEVEN, in the same part of the delta, is published without it."""
    write_live(warehouse, visits, [visit(TEN, "ada", pages=1), visit(ELEVEN, "ada", pages=1)])
    written: list[str] = []

    def interfere(name: str) -> None:
        if name == step and not written:
            written.append(name)
            write_live(warehouse, visits, [visit(TEN, "ada", pages=1)], sign=-1)
            write_live(warehouse, visits, [visit(TEN, "ada", pages=7)])

    rows = [visit(TEN, "ada", pages=2), visit(ELEVEN, "ada", pages=2)]
    results = repair(warehouse, visits, [TEN, ELEVEN], rows, on_step=interfere)
    assert statuses(results) == {TEN: "refused", ELEVEN: "published"}
    assert isinstance(results[TEN].error, ConcurrentWriter)
    assert (results[TEN].cancels, results[TEN].states) == (0, 0)
    assert_holds(warehouse, visits, [visit(TEN, "ada", pages=7), visit(ELEVEN, "ada", pages=2)])


def test_rows_that_a_live_writer_wrote_after_the_lake_was_read_are_never_undone(warehouse: Warehouse, visits: Table) -> None:
    write_live(warehouse, visits, [visit(TEN, "ada", pages=1), visit(ELEVEN, "ada", pages=1), visit(TWELVE, "ada")])
    since = fingerprints.net(warehouse, visits, [TEN, ELEVEN, TWELVE])
    write_live(warehouse, visits, [visit(TEN, "live")])
    write_live(warehouse, visits, [visit(TWELVE, "bob")])
    rows = [visit(TEN, "ada", pages=2), visit(ELEVEN, "ada", pages=2), visit(TWELVE, "ada"), visit(TWELVE, "bob")]
    results = repair(warehouse, visits, [TEN, ELEVEN, TWELVE], rows, since=since)
    assert statuses(results) == {TEN: "refused", ELEVEN: "published", TWELVE: "unchanged"}
    assert isinstance(results[TEN].error, ConcurrentWriter)
    assert_holds(warehouse, visits, [visit(TEN, "ada", pages=1), visit(TEN, "live"), *rows[1:]])


def test_a_live_writer_that_does_the_same_as_the_repair_is_no_conflict(warehouse: Warehouse, visits: Table) -> None:
    """The diff is made again, and finds the rest."""
    write_live(warehouse, visits, [visit(TEN, "ada", pages=1), visit(TEN, "bob", pages=1)])
    written: list[str] = []

    def interfere(name: str) -> None:
        if name == "kept" and not written:
            written.append(name)
            write_live(warehouse, visits, [visit(TEN, "ada", pages=1)], sign=-1)
            write_live(warehouse, visits, [visit(TEN, "ada", pages=2)])

    rows = [visit(TEN, "ada", pages=2), visit(TEN, "bob", pages=2)]
    results = repair(warehouse, visits, [TEN], rows, on_step=interfere)
    assert (statuses(results), written) == ({TEN: "published"}, ["kept"])
    assert (results[TEN].cancels, results[TEN].states) == (1, 1)
    assert_holds(warehouse, visits, rows)


def test_a_live_writer_that_never_stops_publishes_nothing(warehouse: Warehouse, visits: Table) -> None:
    hours = [TEN + timedelta(hours=number) for number in range(8)]
    waiting = list(hours)

    def interfere(name: str) -> None:
        if name == "proven" and waiting:
            write_live(warehouse, visits, [visit(waiting.pop(), "live")])

    results = repair(warehouse, visits, hours, [visit(hour, "ada") for hour in hours], on_step=interfere)
    assert set(statuses(results).values()) == {"refused"}
    assert {row[1] for row in net_rows(warehouse, visits)} == {"live"}
