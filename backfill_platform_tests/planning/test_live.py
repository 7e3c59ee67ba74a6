"""The live path: after every hour, lake and warehouse are what plain Python makes of the events that have arrived so far."""

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.uris import local_uri
from backfill_platform.domain.windows import UntilClosed, Window
from backfill_platform.examples import clickstream_reference as reference
from backfill_platform.planning.live import next_hour, plans_after
from backfill_platform.reports.facts import facts_of
from backfill_platform_tests.events import Click, hour, random_clicks, write_lines
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.whole

HOURS = 6


@pytest.fixture
def world(tmp_path: Path, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    world = World.over(tmp_path, spark, warehouse, [], HOURS)
    source = HourlyFiles(local_uri(tmp_path) + "/%Y-%m-%d-%H.csv", encoding="ISO-8859-1")
    world.pipeline = replace(world.pipeline, source=source)
    yield world
    world.drop()


def arrivals(seed: int) -> list[list[Click]]:
    """Clicks by the hour in which they arrive: most when they happen, some later, some twice, an hour empty."""
    chance = random.Random(seed)
    arriving: list[list[Click]] = [[] for _ in range(HOURS)]
    quiet = chance.randrange(1, HOURS)
    delays = [chance.choice([1, 2, 2, 3]) for _ in range(HOURS)]
    for click in random_clicks(seed, hours=HOURS, clients=12):
        own = click.seconds // 3600
        late = own + delays[own] * (chance.random() < 0.1)
        for at in {late, own + delays[own]} if chance.random() < 0.1 else {late}:
            if at < HOURS and at != quiet:
                arriving[at].append(click)
    return arriving


def follow(world: World) -> list[int]:
    """Land the next hour and do what the live path does after it; the number of hours each table's plans had."""
    now = world.pipeline.end
    assert now is not None
    at = next_hour(world.pipeline, world.lake, None, now)
    assert at is not None
    outcomes = world.walk([world.plan([world.pipeline.raw.table.path], HourRange(at, at + HOUR))])
    plans = plans_after(world.pipeline, world.lake, at, now)
    for done in (outcomes, *(world.walk([plan], world.job(allow_open_hours=True)) for plan in plans)):
        assert not [one.error for by_hour in done.values() for one in by_hour.values() if one.error]
    return [len(plan.hours) for plan in plans]


def parity(world: World, seed: int) -> None:
    arriving = arrivals(seed)
    so_far: list[reference.Request] = []
    for number, clicks in enumerate(arriving):
        path = world.folder / f"{hour(number):%Y-%m-%d-%H}.csv"
        write_lines(path, [click.line for click in clicks])
        so_far += [reference.Request(one.client, one.at, one.url, int(one.status), int(one.bytes)) for one in clicks]
        follow(world)
        assert world.net() == world.wanted(so_far), f"seed {seed}, after hour {number}"
    # A backfill of all hours finds nothing to change.
    for by_hour in world.run(world.derived).values():
        assert not [one for one in by_hour.values() if facts_of(one).get("cancels") or facts_of(one).get("states")]


def test_after_every_hour_the_tables_are_what_plain_python_makes_of_what_has_arrived(world: World) -> None:
    parity(world, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_live_and_backfill_agree_for_many_streams(world: World, seed: int) -> None:
    parity(world, seed)


def test_an_event_that_is_very_late_has_only_its_own_hours_built_again(world: World) -> None:
    for number in range(5):
        late = [Click(2, 600).line] if number == 4 else []
        write_lines(world.folder / f"{hour(number):%Y-%m-%d-%H}.csv", [Click(1, number * 3600 + 60).line, *late])
        done = follow(world)
    # The hour of the event and the one that may begin with what it began; the new hour. Not the two between.
    assert done == [2, 1]


def test_doing_an_hour_again_changes_nothing(world: World) -> None:
    for number in range(2):
        path = world.folder / f"{hour(number):%Y-%m-%d-%H}.csv"
        write_lines(path, [Click(1, number * 3600 + 3000).line])
        follow(world)
    before = world.net()
    again = plans_after(world.pipeline, world.lake, hour(1), hour(2))
    for by_hour in world.walk(again, world.job(allow_open_hours=True)).values():
        assert not [one for one in by_hour.values() if one.error or facts_of(one).get("cancels") or facts_of(one).get("states")]
    assert world.net() == before
    assert next_hour(world.pipeline, world.lake, None, hour(2)) is None
    assert next_hour(world.pipeline, world.lake, None, hour(3)) == hour(2)
    assert next_hour(world.pipeline, world.lake, hour(4), hour(5)) == hour(4)


def test_hours_that_look_ahead_are_built_when_what_they_need_has_landed(world: World) -> None:
    sessions, hourly = world.pipeline.derived
    ahead = sessions.window.lookahead
    assert isinstance(ahead, UntilClosed)
    world.pipeline = replace(
        world.pipeline, derived=(sessions, replace(hourly, window=Window(lookback=timedelta(0), lookahead=2 * HOUR)))
    )
    found = []
    for number in range(4):
        path = world.folder / f"{hour(number):%Y-%m-%d-%H}.csv"
        write_lines(path, [Click(1, number * 3600 + 60).line])
        follow(world)
        found.append(sorted(world.lake.built_hours(hourly.table)))
    assert found == [[], [], [hour(0)], [hour(0), hour(1)]]
