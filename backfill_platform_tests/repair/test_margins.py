"""Ranges in the middle of a pipeline: their margins are landed, and hours whose window is not over wait without failing."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.plan import Landing, LandMargin
from backfill_platform.examples import playbacks
from backfill_platform.planning.scope import repair_assets, with_margins
from backfill_platform_tests.repair.test_reference_pipelines import world_of
from backfill_platform_tests.world import World, warehouse_asset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.whole

START = playbacks.HOURS.start
NOW = START + 1000 * HOUR


@pytest.fixture
def world(tmp_path: Path, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    """The shipped evening of impressions and plays, which look ahead four hours; nothing has landed."""
    yield from world_of(playbacks.pipeline, tmp_path, spark, warehouse)


def span(first: int, last: int) -> HourRange:
    return HourRange(START + first * HOUR, START + last * HOUR)


def test_a_range_in_the_middle_of_what_has_never_landed_lands_its_margins_and_no_more(world: World) -> None:
    raw, middle = world.pipeline.raw.table, span(4, 5)
    plan = world.plan(repair_assets(world.pipeline, world.lake, middle), middle)
    (whole,) = with_margins([plan], world.pipeline, world.lake, NOW)
    assert whole.steps == (LandMargin(world.pipeline.nodes[0], span(5, 9)), *plan.steps)
    assert (whole.hours, whole.assets) == (plan.hours, plan.assets)

    outcomes = world.walk([whole])

    assert not [found.error for by_hour in outcomes.values() for found in by_hour.values() if found.error]
    assert world.lake.built_hours(raw) == set(span(4, 9))
    assert world.lake.built_hours(world.pipeline.derived[0].table) == set(middle)
    assert with_margins([plan], world.pipeline, world.lake, NOW) == (plan,)


def test_margins_end_with_the_pipeline_and_with_what_is_over(world: World) -> None:
    def landed(first: int, last: int, now: int) -> list[HourRange]:
        plan = world.plan(world.everything, span(first, last))
        (whole,) = with_margins([plan], live, world.lake, START + now * HOUR)
        return [step.hours for step in whole.steps if isinstance(step, LandMargin)]

    live = world.pipeline
    assert landed(10, 11, 1000) == [span(11, 12)]
    assert landed(11, 12, 1000) == []
    live = replace(world.pipeline, end=None)
    assert landed(2, 3, 5) == [span(3, 5)]


def test_hours_whose_window_is_not_over_wait_and_do_not_fail(world: World) -> None:
    live, now = replace(world.pipeline, end=None), START + 6 * HOUR
    attribution = world.pipeline.derived[0].table
    outcomes = world.run(world.everything, span(0, 6), pipeline=live, clock=lambda: now)
    assert not [found for by_hour in outcomes.values() for found in by_hour.values() if found.failed]
    for asset in (attribution.path, world.pipeline.derived[1].table.path, warehouse_asset(world.hourly)):
        due = {hour: found.due for hour, found in outcomes[asset].items()}
        assert due == {START + n * HOUR: START + (n + 5) * HOUR if n > 1 else None for n in range(6)}
    third = outcomes[attribution.path][START + 2 * HOUR]
    assert third.error == "not yet due: it needs raw/playbacks of 2017-06-02T00, which is not over; due at 2017-06-02T01 UTC"
    told = Ledger(world.warehouse).read(pipeline=world.pipeline.name, hours=[START + 2 * HOUR], limit=1000)
    assert str(attribution) not in {entry.target for entry in told}

    # What should be there by now and is not, is lost: that is a failure.
    world.lake.remove_hours(world.pipeline.raw.table, [START + 3 * HOUR])
    again = world.run([attribution.path], span(0, 3), pipeline=live, clock=lambda: now, landing=Landing.MISSING)[
        attribution.path
    ]
    assert [found.failed for _, found in sorted(again.items())] == [True, True, True]
    assert "never built, or is lost" in again[START + 2 * HOUR].error
