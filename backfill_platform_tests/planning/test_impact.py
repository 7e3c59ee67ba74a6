"""Damaged events, looked up in the lake and repaired: exactly the hours that they may have changed, and the reference after."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.adapters.spark.checks import RowRule
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.impact import Damage, Impact
from backfill_platform.domain.uris import local_uri
from backfill_platform.errors import UsageError
from backfill_platform.planning.impact import find_impact
from backfill_platform.planning.scope import with_margins
from backfill_platform_tests.events import Click, hour, write_lines
from backfill_platform_tests.repair.test_runner import requests
from backfill_platform_tests.world import World, warehouse_asset, with_rule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.whole

HOURS = 9
NOW = hour(1000)


def at(number: int, minute: int = 0) -> int:
    return number * 3600 + minute * 60


# Between 5:00 and 5:40, the events of `lost` are missing at first.
DAMAGE = Damage(hour(5), hour(5) + timedelta(minutes=40))
long_visit = [Click(1, at(1, 50) + 1200 * n) for n in range(10)]  # 1:50 to 4:50
comes_back = [Click(2, at(6, 5)), Click(2, at(6, 20))]
elsewhere = [Click(3, at(3)), Click(3, at(7)), Click(3, at(8, 59))]
lost = [Click(1, at(5, 10)), Click(1, at(5, 30)), Click(2, at(5, 38))]
BROKEN = long_visit + comes_back + elsewhere
WHOLE = BROKEN + lost


@pytest.fixture
def world(tmp_path: Path, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    """A world that was published from the broken source, which is whole by now."""
    found = World.over(tmp_path, spark, warehouse, [click.line for click in BROKEN], HOURS)
    found.run(found.everything)
    assert found.net() == found.wanted(requests(BROKEN))
    write_lines(tmp_path / "requests.csv", [click.line for click in WHOLE])
    yield found
    found.drop()


def look(world: World, damage: Damage = DAMAGE) -> Impact:
    return find_impact(world.pipeline, world.lake, damage, NOW)


def numbers(hours: tuple[datetime, ...] | HourRange) -> list[int]:
    return [int((one - hour(0)).total_seconds() // 3600) for one in hours]


def test_damage_is_repaired_in_exactly_the_hours_that_it_may_have_changed(world: World) -> None:
    impact = look(world)
    raw, sessions, hourly = impact.tables
    assert (numbers(raw.hours), numbers(sessions.hours), numbers(hourly.hours)) == ([5], [1, 5, 6], [1, 5, 6])
    assert "1 sessions begin here and reach the interval" in sessions.why[hour(1)]
    plans = with_margins(impact.plans(), world.pipeline, world.lake, NOW)
    assert [numbers(plan.hours) for plan in plans] == [[5], [1], [5, 6]]

    before = world.net()
    outcomes = world.walk(plans)
    after = world.net()

    assert after == world.wanted(requests(WHOLE))
    for name in (world.sessions, world.hourly):
        assert numbers(tuple(outcomes[warehouse_asset(name)])) == [1, 5, 6]
        assert [n for n in range(HOURS) if before[name].get(hour(n)) != after[name].get(hour(n))] == [1, 5, 6]
    # The set does not depend on which side of the repair it is looked up from.
    assert [numbers(table.hours) for table in look(world).tables] == [[5], [1, 5, 6], [1, 5, 6]]


def test_damage_of_a_tenant_spreads_by_its_own_rows_only(world: World) -> None:
    def spread(*tenants: str) -> list[int]:
        return numbers(look(world, Damage(DAMAGE.start, DAMAGE.end, tenants)).tables[1].hours)

    assert (spread("1"), spread("2"), spread("3"), spread("1", "2")) == ([1, 5], [5, 6], [5], [1, 5, 6])
    with pytest.raises(UsageError, match="'somebody' cannot be a tenant"):
        spread("somebody")


def test_what_the_lake_cannot_tell_is_taken_for_changed(world: World) -> None:
    rejecting = with_rule(world.pipeline, world.sessions, RowRule("not 3", lambda: F.col("client_id") != 3))
    before_three = HourRange(hour(1), hour(4))  # an hour whose rows all fail is refused: client 1 starts in the first of them
    outcomes = world.run([world.pipeline.derived[0].table.path], before_three, pipeline=rejecting)
    assert [bool(o.error) for o in outcomes[world.pipeline.derived[0].table.path].values()] == [False, False, True]
    world.lake.remove_hours(world.pipeline.derived[0].table, [hour(0), hour(3), hour(7)])
    sessions = look(world).tables[1]
    assert numbers(sessions.hours) == [0, 1, 3, 5, 6]
    assert sessions.why[hour(0)] == sessions.why[hour(3)] == "not built, so nobody can tell"


def test_sessions_in_quarantine_may_be_among_the_changed(world: World) -> None:
    rejecting = with_rule(world.pipeline, world.sessions, RowRule("more than one", lambda: F.col("requests") != 1))
    write_lines(world.folder / "requests.csv", [click.line for click in [*WHOLE, Click(4, at(3, 1)), Click(4, at(3, 2))]])
    world.run(
        [world.pipeline.raw.table.path, world.pipeline.derived[0].table.path], HourRange(hour(3), hour(4)), pipeline=rejecting
    )
    sessions = look(world).tables[1]
    assert numbers(sessions.hours) == [1, 3, 5, 6]
    assert sessions.why[hour(3)] == "1 rows of it are in quarantine"


def test_sessions_that_were_open_when_they_were_built_may_have_gone_on(world: World) -> None:
    raw, sessions = world.pipeline.raw.table, world.pipeline.derived[0].table
    world.lake.remove_hours(raw, [hour(n) for n in range(2, HOURS)])
    world.run([sessions.path], HourRange(hour(1), hour(2)))
    world.run([raw.path])
    assert numbers(look(world).tables[1].hours) == [1, 5, 6]


def test_an_hour_that_is_lost_is_damaged_as_a_whole_and_landed(world: World) -> None:
    world.lake.remove_hours(world.pipeline.raw.table, [hour(5)])
    impact = look(world, Damage(hour(5) + timedelta(minutes=50), hour(5) + timedelta(minutes=55)))
    assert (impact.damage.start, impact.damage.end) == (hour(5), hour(6))
    assert impact.tables[0].why == {hour(5): "has not landed, or is lost"}
    # Client 2 comes back at 6:05, less than a gap after the end of the lost hour.
    assert numbers(impact.tables[1].hours) == [1, 5, 6]
    world.walk(impact.plans())
    assert world.net() == world.wanted(requests(WHOLE))


def test_damage_outside_the_pipeline_is_refused(world: World) -> None:
    with pytest.raises(UsageError, match="is not within them"):
        look(world, Damage(hour(HOURS), hour(HOURS + 1)))


def test_hours_in_which_events_of_the_interval_arrived_late_are_landed_again(
    tmp_path: Path, spark: "SparkSession", warehouse: Warehouse
) -> None:
    world = World.over(tmp_path, spark, warehouse, [], 4)
    source = HourlyFiles(local_uri(tmp_path) + "/%Y-%m-%dT%H.csv", encoding="ISO-8859-1")
    world.pipeline = replace(world.pipeline, source=source)
    arrived = {0: [Click(1, at(0, 5))], 1: [Click(1, at(1, 5))], 2: [Click(2, at(0, 20)), Click(1, at(2, 1))], 3: []}
    for number, clicks in arrived.items():
        write_lines(tmp_path / f"{hour(number):%Y-%m-%dT%H}.csv", [click.line for click in clicks])
    world.run([world.pipeline.raw.table.path])
    raw = look(world, Damage(hour(0) + timedelta(minutes=15), hour(0) + timedelta(minutes=25))).tables[0]
    assert raw.why == {hour(0): "holds the interval", hour(2): "events of the interval arrived in it"}
