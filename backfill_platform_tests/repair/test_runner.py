"""Whole repairs on real engines: Spark, Iceberg and a ClickHouse, over random clicks and their pure reference."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse import fingerprints
from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.adapters.iceberg.lake import quarantine_of
from backfill_platform.adapters.spark.checks import HourRule, RowRule
from backfill_platform.domain.change_limits import ChangeLimits
from backfill_platform.domain.fingerprint import EMPTY
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.uris import local_uri
from backfill_platform.errors import UsageError
from backfill_platform.examples.clickstream_reference import Request
from backfill_platform.repair.outcomes import StepFinished
from backfill_platform.repair.runner import PartLimits
from backfill_platform.repair.undo import UndoScope
from backfill_platform.reports.facts import facts_of, step_facts, tables_of
from backfill_platform_tests.events import Click, hour, random_clicks, write_lines
from backfill_platform_tests.fixtures_world import CLICKS, HOURS, MALFORMED
from backfill_platform_tests.world import World, warehouse_asset, with_rule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def requests(clicks: list[Click]) -> list[Request]:
    return [Request(c.client, c.at, c.url, int(c.status), int(c.bytes)) for c in clicks]


def test_a_first_run_publishes_what_the_reference_computes(published: World) -> None:
    assert published.net() == published.wanted(requests(CLICKS))


def test_lines_in_are_rows_landed_plus_quarantined(published: World) -> None:
    raw = published.pipeline.raw.table
    landed, rejected = published.lake.rows_by_hour(raw), published.lake.rows_by_hour(quarantine_of(raw))
    assert sum(landed.values()) == len(CLICKS)
    assert rejected == {hour(0): len(MALFORMED)}
    files = [file.uri for file in published.lake.files(quarantine_of(raw))]
    kept = {row["payload"]: row["reason"] for row in published.spark.read.parquet(*files).collect()}
    assert set(kept) == set(MALFORMED)
    assert kept[MALFORMED[2]] == "status: missing"
    assert kept[MALFORMED[3]] == "event_time: not within the hours of its file"
    assert "event_time: missing" in kept[""]


@pytest.mark.whole
def test_running_again_changes_nothing(published: World) -> None:
    before = published.net()
    outcomes = published.run(published.derived)
    facts = [facts_of(o) for name in (published.sessions, published.hourly) for o in outcomes[warehouse_asset(name)].values()]
    assert {fact["status"] for fact in facts} == {"unchanged"}
    assert sum(int(fact["cancels"]) + int(fact["states"]) for fact in facts) == 0
    assert published.net() == before


@pytest.mark.whole
def test_hours_built_one_by_one_in_any_order_are_the_same(published: World) -> None:
    wanted = published.net()
    for number in (3, 0, 1, 2):
        one = HourRange(hour(number), hour(number + 1))
        published.lake.remove_hours(published.pipeline.derived[0].table, list(one))
        outcomes = published.run([published.pipeline.derived[0].table.path, warehouse_asset(published.sessions)], one)
        assert list(outcomes[warehouse_asset(published.sessions)]) == [hour(number)]
        assert facts_of(outcomes[warehouse_asset(published.sessions)][hour(number)])["status"] == "unchanged"
    assert published.net() == wanted


@pytest.mark.whole
def test_a_repair_writes_only_what_changed_and_nothing_outside_its_range(published: World) -> None:
    wanted = published.net()
    published.damage(published.sessions, "UPDATE bytes = bytes + 1", hour(1))
    published.damage(published.sessions, "UPDATE bytes = bytes + 1", hour(3))
    outside = published.net()[published.sessions][hour(3)]
    outcomes = published.run(published.derived, HourRange(hour(0), hour(3)))[warehouse_asset(published.sessions)]
    changed = outcomes[hour(1)]
    rows = wanted[published.sessions][hour(1)].rows
    assert (facts_of(changed)["cancels"], facts_of(changed)["states"], facts_of(changed)["untouched"]) == (rows, rows, 0)
    assert [facts_of(outcomes[hour(n)])["status"] for n in (0, 1, 2)] == ["unchanged", "published", "unchanged"]
    found = published.net()
    assert found[published.sessions][hour(3)] == outside != wanted[published.sessions][hour(3)]
    published.run(published.derived, HourRange(hour(3), hour(4)))
    assert published.net() == wanted


@pytest.mark.whole
def test_a_dry_run_reports_the_difference_and_changes_nothing(published: World) -> None:
    wanted = published.net()
    published.damage(published.sessions, "UPDATE bytes = bytes + 1", hour(2))
    published.damage(published.hourly, "DELETE", hour(3))
    published.lake.remove_hours(published.pipeline.derived[0].table, [hour(1)])
    tables = [kept for table in published.pipeline.tables for kept in (table, quarantine_of(table))]
    before = (published.net(), [published.lake.snapshot(table) for table in tables])
    files = sorted(path for path in (published.folder / "lake" / "data").rglob("*.parquet"))

    outcomes = published.run(published.dry_runs)

    assert (published.net(), [published.lake.snapshot(table) for table in tables]) == before
    assert sorted(path for path in (published.folder / "lake" / "data").rglob("*.parquet")) == files
    found = outcomes[("dry_run", published.sessions)]
    rows = wanted[published.sessions][hour(2)].rows
    assert [facts_of(found[hour(n)])["rows_changed"] for n in range(HOURS)] == [0, 0, rows, 0]
    sessions = published.pipeline.published[0]
    titles = {rows.title: rows for rows in tables_of(found[hour(2)], sessions)}
    assert titles["changed columns"].rows == (("bytes", rows),)
    assert len(titles["samples"].rows) > 0
    hourly = outcomes[("dry_run", published.hourly)][hour(3)]
    assert (facts_of(hourly)["rows_only_in_lake"], facts_of(hourly)["rows_only_in_warehouse"]) == (1, 0)
    modes = {entry.mode for entry in Ledger(published.warehouse).read(hours=[hour(2)], limit=1)}
    assert modes == {"dry-run"}

    published.run(published.derived)
    assert published.net() == wanted


@pytest.mark.whole
def test_an_hour_that_the_lake_has_lost_is_not_deleted_from_the_warehouse(published: World) -> None:
    wanted = published.net()
    sessions = published.pipeline.derived[0].table
    published.lake.remove_hours(sessions, [hour(2)])
    outcomes = published.run([warehouse_asset(published.sessions)])[warehouse_asset(published.sessions)]
    assert "never built, or is lost" in outcomes[hour(2)].error
    assert [n for n in range(HOURS) if outcomes[hour(n)].error] == [2]
    assert published.net() == wanted
    published.run([sessions.path, warehouse_asset(published.sessions)])
    assert published.net() == wanted
    assert published.lake.rows_by_hour(sessions)[hour(2)] == wanted[published.sessions][hour(2)].rows


@pytest.mark.whole
def test_an_hour_that_fails_a_check_is_named_and_the_others_go_on(published: World) -> None:
    wanted = published.net()
    for name in (published.sessions, published.hourly):
        for number in range(HOURS):
            published.damage(name, "UPDATE bytes = bytes + 1", hour(number))
    damaged = published.net()
    bad = HourRule("not this hour", lambda: F.max("hour") != F.lit(hour(2)), "for the test")
    outcomes = published.run(published.derived, pipeline=with_rule(published.pipeline, published.sessions, bad))

    built = outcomes[("transformed", published.sessions)]
    assert built[hour(2)].error == "failed not this hour"
    failed = {check.name: check.passed for check in built[hour(2)].checks}
    assert failed == {"rows_valid": True, "rows_add_up": True, "events_within_cap": True, "not_this_hour": False}
    for asset in (*published.derived[1:],):
        errors = {n for n in range(HOURS) if outcomes[asset][hour(n)].error}
        assert errors == {2}, asset
        assert "it needs transformed/" in outcomes[asset][hour(2)].error
    found = published.net()
    for name in (published.sessions, published.hourly):
        assert found[name] == {**wanted[name], hour(2): damaged[name][hour(2)]}

    published.run(published.derived)
    assert published.net() == wanted


@pytest.mark.whole
def test_a_difference_outside_the_change_limits_is_reported_by_a_dry_run_and_not_published(published: World) -> None:
    wanted = published.net()
    published.damage(published.sessions, "UPDATE bytes = bytes + 1", hour(1))
    published.damage(published.sessions, "UPDATE errors = errors + 1", hour(2))
    published.damage(published.sessions, "DELETE", hour(3))
    damaged = published.net()
    change_limits = ChangeLimits(columns=frozenset({"bytes"}), rows=frozenset({"added"}))

    rehearsed = published.run(published.dry_runs, change_limits=change_limits)[("dry_run", published.sessions)]
    verdicts = [{check.name: check.passed for check in rehearsed[hour(n)].checks}["within_change_limits"] for n in range(HOURS)]
    assert verdicts == [True, True, False, True]
    outcomes = published.run(published.derived, change_limits=change_limits)[warehouse_asset(published.sessions)]
    assert [n for n in range(HOURS) if outcomes[hour(n)].error] == [2]
    assert "errors would change, the change limits allow bytes" in outcomes[hour(2)].error
    found = published.net()[published.sessions]
    assert found == {**wanted[published.sessions], hour(2): damaged[published.sessions][hour(2)]}

    published.run(published.derived)
    assert published.net() == wanted


@pytest.mark.whole
def test_a_repair_can_be_undone_and_the_undo_as_well(published: World) -> None:
    wanted = published.net()
    published.damage(published.sessions, "UPDATE bytes = bytes + 1", hour(1))
    published.damage(published.hourly, "DELETE", hour(2))
    damaged = published.net()
    published.run(published.derived)
    repair = f"r{published.repairs}"
    assert published.net() == wanted

    undone = published.undo(UndoScope(repair))
    again = f"r{published.repairs}"
    assert published.net() == damaged
    assert [one.undoable.conflicts for one in undone] == [0, 0]
    entries = Ledger(published.warehouse).read(hours=[hour(2)], limit=1)
    assert (entries[0].mode, entries[0].status, entries[0].cancels) == ("undo", "published", 1)
    published.undo(UndoScope(again, HourRange(hour(2), hour(3))))
    assert published.net() == {**damaged, published.hourly: wanted[published.hourly]}
    with pytest.raises(UsageError, match="changed nothing"):
        published.undo(UndoScope("r999"))
    published.run(published.derived)
    assert published.net() == wanted


@pytest.mark.whole
def test_rows_that_fail_a_check_are_set_aside_and_do_not_stop_the_good_ones(published: World) -> None:
    wanted = published.net()
    table = published.pipeline.derived[0].table
    odd = RowRule("an even client", lambda: F.col("client_id") % 2 == 0)
    outcomes = published.run([table.path], pipeline=with_rule(published.pipeline, published.sessions, odd))[table.path]
    for outcome in outcomes.values():
        assert outcome.error == ""
        kept, rejected = int(facts_of(outcome)["rows"]), int(facts_of(outcome)["quarantined"])
        assert kept + rejected == wanted[published.sessions][outcome.hour].rows
        assert rejected > 0
    rejects = published.lake.rows_by_hour(quarantine_of(table))
    assert rejects == {found.hour: int(facts_of(found)["quarantined"]) for found in outcomes.values()}
    published.run(published.derived)
    assert published.lake.rows_by_hour(quarantine_of(table)) == {}
    assert published.net() == wanted


@pytest.mark.whole
@pytest.mark.parametrize("last", [1, 2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_a_repair_that_dies_after_any_step_is_completed_by_running_it_again(published: World, last: int) -> None:
    wanted = published.net()
    for name in (published.sessions, published.hourly):
        published.damage(name, "UPDATE bytes = bytes + 1", hour(1))
    plan = published.plan(published.derived, HourRange(hour(1), hour(2)))
    for event in published.events(plan):
        if isinstance(event, StepFinished) and event.step == plan.steps[last - 1]:
            break
    published.run(published.derived, plan.hours)
    assert published.net() == wanted


@pytest.mark.whole
def test_proof_of_closure_is_among_the_facts_of_the_range(published: World) -> None:
    sessions = published.pipeline.derived[0].table
    one = HourRange(hour(0), hour(1))
    events = list(published.events(published.plan([sessions.path], one)))
    facts = next(step_facts(event) for event in events if isinstance(event, StepFinished))
    assert facts["sessions_cut_at_first_read_end"] > 0  # type: ignore[operator]
    assert facts["margin_hours"] > 0.5  # type: ignore[operator]
    assert facts["stopped_at"] == "end of the landed hours"  # the proxy that never idles
    assert facts["open_at_end"] == 1


@pytest.mark.whole
def test_late_events_reach_the_hours_that_own_them(tmp_path: Path, spark: "SparkSession", warehouse: Warehouse) -> None:
    world = World.over(tmp_path, spark, warehouse, [], 3)
    source = HourlyFiles(local_uri(tmp_path) + "/%Y-%m-%dT%H.csv", encoding="ISO-8859-1")
    world.pipeline = replace(world.pipeline, source=source)
    on_time = [Click(1, 600), Click(2, 4000)]
    late = [Click(1, 1200), Click(3, 1300)]
    for number, clicks in enumerate(([on_time[0]], [on_time[1]], late)):
        write_lines(tmp_path / f"{hour(number):%Y-%m-%dT%H}.csv", [click.line for click in clicks])
    try:
        world.run(world.everything, HourRange(hour(0), hour(2)))
        assert world.net()[world.sessions][hour(0)].rows == 1
        world.run([world.pipeline.raw.table.path], HourRange(hour(2), hour(3)))
        world.run(world.derived, HourRange(hour(0), hour(1)))
        wanted = world.wanted(requests([*on_time, *late]))
        assert world.net()[world.sessions][hour(0)] == wanted[world.sessions][hour(0)]
        assert world.net()[world.sessions][hour(0)].rows == 2
        assert world.net()[world.sessions][hour(2)] == EMPTY
    finally:
        world.drop()


@pytest.fixture
def unpublished(tmp_path: Path, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    world = World.over(tmp_path, spark, warehouse, [click.line for click in random_clicks(4, hours=4, clients=15)], 4)
    yield world
    world.drop()


@pytest.mark.whole
def test_a_step_in_parts_does_the_same_and_what_was_finished_stays_when_the_rest_dies(
    unpublished: World,
) -> None:
    world, hours = unpublished, list(unpublished.hours)
    parts: list[tuple[str, HourRange]] = []
    events = world.events(world.plan(world.everything), limits=PartLimits(hours=2))
    for event in events:
        if isinstance(event, StepFinished):
            parts.append(("/".join(event.step.asset), event.step.hours))
            if event.step.asset == ("warehouse", world.sessions):
                events.close()  # the process dies between two parts of a publish
                break
    halves = [HourRange(hours[0], hours[2]), HourRange(hours[2], hours[3] + HOUR)]
    raw, sessions = str(world.pipeline.raw.table), f"transformed/{world.sessions}"
    assert parts[:5] == [(raw, halves[0]), (raw, halves[1]), (sessions, halves[0]), (sessions, halves[1]), parts[4]]
    half = fingerprints.net(world.warehouse, world.pipeline.published[0], hours)
    assert {hour for hour in hours if half[hour] != EMPTY} == set(halves[0])
    outcomes = world.run(world.derived)
    assert not [one.error for by_hour in outcomes.values() for one in by_hour.values() if one.error]
    wanted = world.wanted(requests(random_clicks(4, hours=4, clients=15)))
    assert world.net() == wanted
    assert all(half[hour] == wanted[world.sessions][hour] for hour in halves[0])


def test_parts_hold_no_more_rows_than_fit(published: World) -> None:
    rows = published.lake.rows_by_hour(published.pipeline.published[0])
    limits = PartLimits(rows_staged=max(rows.values()))
    steps = {
        event.step.hours
        for event in published.events(published.plan([warehouse_asset(published.sessions)]), limits=limits)
        if isinstance(event, StepFinished)
    }
    assert len(steps) > 1
    assert sum(len(hours) for hours in steps) == len(published.hours)
    assert all(len(hours) == 1 or sum(rows[hour] for hour in hours) <= max(rows.values()) for hours in steps)
