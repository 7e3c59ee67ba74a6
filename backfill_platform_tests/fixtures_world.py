"""A world that is landed, built and published once, for the tests that look at it or change it a little."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform_tests.events import random_clicks
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOURS = 4
CLICKS = random_clicks(5, hours=HOURS, clients=40)
MALFORMED = ["", "no commas here", "1,30/Apr/1998,22:10:00,/x,-,0", "1,01/Jan/2001,00:00:00,/far,200,1"]


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    """A world whose four hours are landed, built and published. A test that changes it repairs it."""
    lines = [click.line for click in CLICKS] + MALFORMED
    world = World.over(tmp_path_factory.mktemp("a world with spaces"), spark, warehouse, lines, HOURS)
    outcomes = world.run(world.everything)
    assert not [o.error for by_hour in outcomes.values() for o in by_hour.values() if o.error]
    yield world
    world.drop()
