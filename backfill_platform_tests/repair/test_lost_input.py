"""What must not happen when input is missing: rows deleted, sessions cut and called closed, hours landed away."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.files.hourly import ArchiveFile, HourlyFiles
from backfill_platform.adapters.spark.checks import RowRule
from backfill_platform.detection.survey import survey
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.gaps import GapKind
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.plan import Landing
from backfill_platform.domain.uris import local_uri
from backfill_platform.errors import CheckFailed
from backfill_platform.repair.outcomes import HourOutcome
from backfill_platform_tests.events import Click, hour, write_lines
from backfill_platform_tests.repair.test_runner import requests
from backfill_platform_tests.world import World, warehouse_asset, with_rule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.whole

# One client clicks every 20 minutes for four hours; another comes once an hour.
CLICKS = [Click(1, second) for second in range(0, 4 * 3600, 1200)] + [Click(2, 3600 * n + 60) for n in range(4)]


@pytest.fixture
def world(tmp_path: Path, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    """A world over hourly files, nothing landed yet."""
    found = World.over(tmp_path, spark, warehouse, [], 4)
    source = HourlyFiles(local_uri(tmp_path) + "/%Y-%m-%dT%H.csv", encoding="ISO-8859-1")
    found.pipeline = replace(found.pipeline, source=source)
    for number in range(4):
        write_hour(found, number, CLICKS)
    yield found
    found.drop()


def write_hour(world: World, number: int, clicks: list[Click]) -> None:
    lines = [click.line for click in clicks if click.at.replace(minute=0, second=0) == hour(number)]
    write_lines(world.folder / f"{hour(number):%Y-%m-%dT%H}.csv", lines)


def span(start: int, end: int) -> HourRange:
    return HourRange(hour(start), hour(end))


def kinds(world: World) -> dict[tuple[str, int], GapKind]:
    found = survey(world.pipeline, world.hours, world.lake, world.warehouse).gaps
    return {(gap.table.split("/")[0], int((gap.hour - hour(0)).total_seconds() // 3600)): gap.kind for gap in found}


def test_hours_that_come_one_by_one_are_found_stale_and_end_as_the_reference(world: World) -> None:
    for number in range(4):
        world.run(world.everything, span(number, number + 1))
    assert kinds(world) == {("transformed", 0): GapKind.STALE}
    assert world.net() != world.wanted(requests(CLICKS))
    world.run(world.derived, span(0, 1))
    assert world.net() == world.wanted(requests(CLICKS))
    # Hours in which no session of client 1 starts are built all the same, and nothing of them is missing.
    assert kinds(world) == {}


def test_an_hour_is_not_built_before_what_it_looks_back_on(world: World) -> None:
    outcomes = world.run(world.everything, span(2, 3))
    built = outcomes[("transformed", world.sessions)]
    assert "does not have raw/clickstream of 1998-04-30T23" in built[hour(2)].error
    assert outcomes[warehouse_asset(world.sessions)][hour(2)].error
    world.run(world.everything, span(0, 2))
    world.run(world.derived, span(0, 3))
    assert world.net() == world.wanted(requests([click for click in CLICKS if click.at < hour(3)]))


def test_lost_input_is_named_and_deletes_nothing(world: World) -> None:
    world.run(world.everything)
    wanted = world.net()
    sessions = world.pipeline.derived[0].table
    world.lake.remove_hours(sessions, [hour(2)])
    both = world.run([("dry_run", world.sessions), warehouse_asset(world.sessions)])
    assert not both[("dry_run", world.sessions)][hour(2)].error
    assert "never built, or is lost" in both[warehouse_asset(world.sessions)][hour(2)].error
    hourly = world.run([("aggregated", world.hourly), warehouse_asset(world.hourly)], span(2, 3))
    assert "does not have transformed/" in hourly[("aggregated", world.hourly)][hour(2)].error
    world.lake.remove_hours(world.pipeline.raw.table, [hour(2)])
    again = world.run([sessions.path, warehouse_asset(world.sessions)], span(2, 4))
    errors = [again[sessions.path][hour(n)].error for n in (2, 3)]
    assert all("does not have raw/clickstream of 1998-05-01T00" in error for error in errors)
    assert world.net() == wanted
    assert kinds(world) == {("raw", 2): GapKind.MISSING}


def test_landed_hours_are_not_replaced_by_fewer_rows_unless_asked_for(world: World) -> None:
    raw = world.pipeline.raw.table
    world.run([raw.path])
    rows = world.lake.rows_by_hour(raw)
    for number in (0, 1):
        write_hour(world, number, CLICKS[:1])
    world.lake.remove_hours(raw, [hour(3)])
    (world.folder / f"{hour(2):%Y-%m-%dT%H}.csv").unlink()

    outcomes = world.run([raw.path])[raw.path]
    assert "keeping its rows: 4 rows have landed, and the source now gives 1" in outcomes[hour(0)].error
    assert "there is no file" in outcomes[hour(2)].error
    assert outcomes[hour(3)].error == ""
    assert world.lake.rows_by_hour(raw) == rows
    world.lake.remove_hours(raw, [hour(3)])
    assert list(world.run([raw.path], landing=Landing.MISSING)[raw.path]) == [hour(3)]
    assert world.run([raw.path], span(0, 1), landing=Landing.REPLACE)[raw.path][hour(0)].error == ""
    assert world.lake.rows_by_hour(raw)[hour(0)] == 1


def test_an_hour_whose_rows_all_fail_is_refused_and_not_emptied(world: World) -> None:
    world.run(world.everything)
    wanted = world.net()
    wrong = RowRule("no sessions", lambda: F.col("sessions") < 0)
    outcomes = world.run(world.derived, pipeline=with_rule(world.pipeline, world.hourly, wrong))
    built = outcomes[("aggregated", world.hourly)]
    assert {outcome.error for outcome in built.values()} == {"failed one row, clients within sessions"}
    assert world.net() == wanted


def test_a_parser_that_loses_lines_is_found_out(world: World) -> None:
    raw = world.pipeline.raw
    parse = raw.parse
    assert parse
    halved = replace(world.pipeline, raw=replace(raw, parse=lambda lines: parse(lines).where("client_id = 1")))
    found = world.run([raw.table.path], pipeline=halved)[raw.table.path]
    assert ["the parser does not return each line once" in outcome.error for outcome in found.values()] == [True] * 4
    assert world.lake.built_hours(raw.table) == set()
    (world.folder / "all.csv").write_text("".join(f"{click.line}\n" for click in CLICKS))
    archive = ArchiveFile(local_uri(world.folder / "all.csv"), world.hours, encoding="ISO-8859-1")
    with pytest.raises(CheckFailed, match="it must return each line once"):
        world.run([raw.table.path], pipeline=replace(halved, source=archive))


def test_an_hour_may_have_many_files_in_folders_by_client_and_they_land_as_one_would(world: World) -> None:
    raw = world.pipeline.raw.table.path
    one = world.run([raw])[raw]
    for click in CLICKS:
        folder = world.folder / "parts" / f"{click.at:%Y/%m/%d/%H}" / f"client={click.client}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{click.at:%M%S}.csv").write_text(f"{click.line}\n")
    source = HourlyFiles(local_uri(world.folder) + "/parts/%Y/%m/%d/%H/**/*.csv", encoding="ISO-8859-1")
    found = world.run([raw], pipeline=replace(world.pipeline, source=source), landing=Landing.REPLACE)[raw]
    assert [outcome.error for outcome in found.values()] == [""] * 4
    assert {at: stored(outcome) for at, outcome in found.items()} == {at: stored(outcome) for at, outcome in one.items()}
    assert sum(stored(outcome).rows for outcome in one.values()) == len(CLICKS)


def stored(outcome: HourOutcome) -> Fingerprint:
    assert outcome.lake is not None
    assert outcome.lake.content is not None
    return outcome.lake.content
