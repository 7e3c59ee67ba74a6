"""The detector: every damage is found and rightly named, from data, and nothing is invented."""

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.detection.survey import Survey, survey
from backfill_platform.domain.expected_empty_hours import ExpectedEmptyHours
from backfill_platform.domain.gaps import Gap, GapKind, Place, RowCounts
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import Landing
from backfill_platform.domain.uris import local_path, local_uri
from backfill_platform.examples.clickstream import build_site_hourly
from backfill_platform_tests.events import T0, Click, hour, write_lines
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.whole

DAYS = 30
MONTH = HourRange(hour(0), hour(24 * DAYS))
NIGHT = (3, 4, 5)  # hours of the day in which nobody comes
OF_EACH = 17


def look(world: World) -> Survey:
    return survey(world.pipeline, world.hours, world.lake, world.warehouse)


def seconds(at: datetime) -> int:
    return int((at - T0).total_seconds())


class Month:
    """A month of sessions of one minute in the middle of their hours, so that each damage concerns one hour alone."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        days = [at for at in MONTH if at.hour not in NIGHT and at not in (MONTH.start, MONTH.end - HOUR)]
        self.chance.shuffle(days)
        self.free = days
        self.outages = self.take()
        self.lines = [
            click.line
            for at in MONTH
            if at.hour not in NIGHT and at not in self.outages
            for client in range(self.chance.randint(10, 14))
            for click in self.session(client, at)
        ]

    def take(self) -> list[datetime]:
        taken, self.free = self.free[:OF_EACH], self.free[OF_EACH:]
        return taken

    def session(self, client: int, at: datetime) -> Iterator[Click]:
        start = seconds(at) + 1500 + 30 * client
        for number in range(self.chance.randint(1, 3)):
            yield Click(client, start + 20 * number)


@pytest.fixture(scope="module")
def spoilt(
    tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession", warehouse: Warehouse
) -> Iterator[tuple[World, set[tuple[str, datetime, GapKind]]]]:
    """The month with its damages, and what the detector has to say of it."""
    folder, month = tmp_path_factory.mktemp("month"), Month(1)
    world = World.over(folder, spark, warehouse, month.lines, len(MONTH))
    outcomes = world.run(world.everything)
    assert not [o.error for by_hour in outcomes.values() for o in by_hour.values() if o.error]
    assert {gap.hour for gap in look(world).gaps} == set(month.outages)
    raw, sessions, hourly = world.pipeline.tables
    expected = {(str(raw), at, GapKind.MISSING) for at in month.outages}

    def expect(table: object, hours: list[datetime], kind: GapKind) -> list[datetime]:
        expected.update((str(table), at, kind) for at in hours)
        return hours

    def sql(statement: str) -> None:
        settings = {"mutations_sync": 2, "optimize_on_insert": 0}
        warehouse.command(statement, settings=settings, doing="damaging a table")

    def where(hours: list[datetime]) -> str:
        return f"hour IN ({', '.join(f'toDateTime({int(at.timestamp())})' for at in hours)})"

    stored = f"transformed.{sessions.name}"
    columns = ", ".join(sessions.column_names)
    for table in (raw, sessions, hourly):
        world.lake.remove_hours(table, expect(table, month.take(), GapKind.MISSING))
    for file in world.lake.files(sessions, expect(sessions, month.take(), GapKind.MISSING)):
        Path(local_path(file.uri) or "").unlink()
    for file in world.lake.files(raw, expect(raw, month.take(), GapKind.MISSING)):
        Path(local_path(file.uri) or "").write_bytes(b"PAR1 cut off")
    copy = f"warehouse/{sessions.name}"
    sql(f"ALTER TABLE {stored} DELETE WHERE {where(expect(copy, month.take(), GapKind.MISSING))}")
    sql(f"ALTER TABLE {stored} DELETE WHERE client_id < 5 AND {where(expect(copy, month.take(), GapKind.SHORT))}")
    # The smallest and the largest row of the hour stay, one between them goes.
    sql(f"ALTER TABLE {stored} DELETE WHERE client_id = 6 AND {where(expect(copy, month.take(), GapKind.SHORT))}")
    changed = where(expect(copy, month.take(), GapKind.DRIFTED))
    sql(f"ALTER TABLE {stored} UPDATE bytes = bytes + 1 WHERE client_id = 3 AND {changed}")
    # A cancel without its state; states that are there twice are healthy again after a merge.
    lone = f"SELECT {columns.replace('client_id', 'client_id + 2000')}, -1 FROM {stored} FINAL WHERE client_id = 4"
    sql(f"INSERT INTO {stored} {lone} AND {where(expect(copy, month.take(), GapKind.INCONSISTENT))}")
    changed = where(expect(f"warehouse/{hourly.name}", month.take(), GapKind.DRIFTED))
    sql(f"ALTER TABLE aggregated.{hourly.name} UPDATE errors = 1, error_rate = 0.5 WHERE {changed}")
    # Rows and their cancels that no merge has brought together yet are no damage.
    passing = f"SELECT {columns.replace('client_id', 'client_id + 1000')}, {{}} FROM {stored} FINAL"
    fine = f"client_id < 1000 AND {where(month.take())}"
    for sign in (1, -1):
        sql(f"INSERT INTO {stored} {passing.format(sign)} WHERE {fine}")

    # Sessions at the end of the month were open when they were built; what lands next decides them.
    expect(sessions, [MONTH.end - HOUR], GapKind.STALE)
    late = expect(sessions, month.take(), GapKind.STALE)
    expect(hourly, late, GapKind.STALE)
    newcomers = [Click(5000, seconds(at) + 1800) for at in late] + [Click(1, seconds(MONTH.end) + 1800 + n) for n in range(20)]
    write_lines(folder / f"{MONTH.end:%Y-%m-%d-%H}.csv", [click.line for click in newcomers])
    source = HourlyFiles(local_uri(folder) + "/%Y-%m-%d-%H.csv", encoding="ISO-8859-1")
    world.pipeline = replace(world.pipeline, source=source, end=MONTH.end + HOUR)
    last = HourRange(MONTH.end, MONTH.end + HOUR)
    outcomes = world.run(world.everything, last)
    assert not [o.error for by_hour in outcomes.values() for o in by_hour.values() if o.error]
    yield world, expected
    world.drop()


def test_two_hundred_damages_of_every_kind_are_found_and_named_and_none_is_invented(
    spoilt: tuple[World, set[tuple[str, datetime, GapKind]]],
) -> None:
    world, expected = spoilt
    assert len(expected) >= 200
    assert {kind for _, _, kind in expected} == set(GapKind)
    found = look(world).gaps
    assert {(gap.table, gap.hour, gap.kind) for gap in found} == expected
    assert len(found) == len(expected)


def test_the_tenants_whose_rows_differ_are_named(spoilt: tuple[World, set[tuple[str, datetime, GapKind]]]) -> None:
    world, _ = spoilt
    by_kind: dict[GapKind, set[tuple[str, ...]]] = {}
    for gap in look(world).gaps:
        if gap.table == f"warehouse/{world.sessions}":
            by_kind.setdefault(gap.kind, set()).add(gap.tenants)
    assert by_kind[GapKind.DRIFTED] == {("3",)}
    assert by_kind[GapKind.INCONSISTENT] == {("2004",)}
    assert by_kind[GapKind.SHORT] == {("0", "1", "2", "3", "4"), ("6",)}


@pytest.fixture
def small(tmp_path: Path, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    """Four hours in a file each, landed, built and published; a client comes to each hour, and to the edge of the first two."""
    world = World.over(tmp_path, spark, warehouse, [], 4)
    for number in range(4):
        arrive(world, number, [Click(client, 3600 * number + 1800) for client in range(12)])
    source = HourlyFiles(local_uri(tmp_path) + "/%Y-%m-%d-%H.csv", encoding="ISO-8859-1")
    world.pipeline = replace(world.pipeline, source=source)
    world.run(world.everything)
    assert look(world).gaps == ()
    yield world
    world.drop()


def arrive(world: World, number: int, clicks: list[Click]) -> None:
    write_lines(world.folder / f"{hour(number):%Y-%m-%d-%H}.csv", [click.line for click in clicks])


def stale(world: World) -> list[tuple[str, int]]:
    found = [(gap.table, (gap.hour - T0) // HOUR) for gap in look(world).gaps if gap.kind is GapKind.STALE]
    return sorted(found)


def test_landing_the_same_events_again_makes_nothing_stale(small: World) -> None:
    small.run([small.pipeline.raw.table.path], landing=Landing.REPLACE)
    assert look(small).gaps == ()


def test_landing_other_events_makes_what_they_reach_stale_until_it_is_built(small: World) -> None:
    arrive(small, 2, [Click(client, 3600 * 2 + 1900) for client in range(12)])
    small.run([small.pipeline.raw.table.path], landing=Landing.REPLACE)
    sessions, hourly = f"transformed/{small.sessions}", f"aggregated/{small.hourly}"
    # The sessions of the first client before and after come within half an hour of the damaged hour.
    assert {(sessions, 2), (hourly, 2)} <= set(stale(small))
    assert {number for _, number in stale(small)} <= {1, 2, 3}
    small.run(small.derived)
    assert look(small).gaps == ()


def test_a_source_that_was_built_again_with_other_rows_makes_its_aggregates_stale(small: World) -> None:
    arrive(small, 1, [Click(client, 3600 + 1900) for client in range(11)])
    one = HourRange(hour(1), hour(2))
    small.run([small.pipeline.raw.table.path, ("transformed", small.sessions)], landing=Landing.REPLACE)
    assert (f"aggregated/{small.hourly}", 1) in stale(small)
    small.run([("aggregated", small.hourly)], one)
    assert stale(small) == []


def test_hours_that_other_code_has_built_are_stale(small: World) -> None:
    def otherwise(sessions: DataFrame) -> DataFrame:
        return build_site_hourly(sessions.where("requests > 0"))

    first, second = small.pipeline.derived
    small.pipeline = replace(small.pipeline, derived=(first, replace(second, build=otherwise)))
    assert stale(small) == [(f"aggregated/{small.hourly}", number) for number in range(4)]
    assert "by now" in look(small).gaps[0].evidence


def test_an_hour_declared_quiet_may_be_empty(small: World) -> None:
    arrive(small, 2, [])
    small.run(small.everything, landing=Landing.REPLACE, allow_open_hours=True)
    raw = str(small.pipeline.raw.table)
    assert [(gap.table, gap.hour) for gap in look(small).gaps if gap.kind is GapKind.MISSING] == [(raw, hour(2))]
    small.pipeline = replace(small.pipeline, expected_empty_hours=(ExpectedEmptyHours(hour(2).hour, hour(3).hour),))
    assert look(small).gaps == ()


def test_a_damaged_lake_hour_is_not_held_against_the_warehouse(small: World) -> None:
    table = small.pipeline.published[0]
    small.lake.remove_hours(table, [hour(1)])
    evidence = f"not built, or lost; {small.pipeline.raw.table} has the hour"
    assert look(small).gaps == (Gap(str(table), hour(1), Place.LAKE, GapKind.MISSING, evidence),)


def test_rows_expected_and_found_are_counted_for_every_hour(small: World) -> None:
    raw, sessions = str(small.pipeline.raw.table), f"transformed/{small.sessions}"
    copy = f"warehouse/{small.sessions}"
    small.damage(small.sessions, "DELETE", hour(2))
    small.lake.remove_hours(small.pipeline.raw.table, [hour(3)])
    counts = look(small).rows
    assert [counts[copy, at] for at in small.hours] == [RowCounts(12, found) for found in (12, 12, 0, 12)]
    assert [counts[raw, at] for at in small.hours] == [RowCounts(12, found) for found in (12, 12, 12, 0)]
    assert counts[sessions, hour(3)] == RowCounts(12, 12)
    assert [counts[copy, hour(number)].share for number in (1, 2)] == [1.0, 0.0]


def test_nobody_knows_the_rows_of_an_hour_that_has_other_events_by_now_or_was_never_built(small: World) -> None:
    arrive(small, 2, [Click(client, 3600 * 2 + 1900) for client in range(11)])
    small.run([small.pipeline.raw.table.path], landing=Landing.REPLACE)
    small.pipeline = replace(small.pipeline, end=hour(5))
    counts = look(small).rows
    assert counts[f"transformed/{small.sessions}", hour(2)] == RowCounts(None, 12)
    assert counts[str(small.pipeline.raw.table), hour(4)] == RowCounts(None, 0)


def test_a_file_that_changed_or_shrank_after_it_landed_is_found_until_it_is_landed_again(small: World) -> None:
    raw = str(small.pipeline.raw.table)
    arrive(small, 1, [Click(client, 3600 + 1800) for client in range(5)])
    (small.folder / f"{hour(3):%Y-%m-%d-%H}.csv").unlink()  # raw files may go once they have landed
    (gap,) = look(small).gaps
    assert (gap.table, gap.hour, gap.kind) == (raw, hour(1), GapKind.STALE)
    assert "when it landed, and has" in gap.evidence
    small.run([small.pipeline.raw.table.path], HourRange(hour(1), hour(2)), landing=Landing.REPLACE)
    assert (raw, hour(1)) not in {(gap.table, gap.hour) for gap in look(small).gaps}
