"""Maintenance between repairs: nothing that they, an undo or the detector need is lost, and Dagster shows what was freed."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.detection.survey import survey
from backfill_platform.examples import clickstream
from backfill_platform.orchestration.jobs.maintenance import (
    maintenance_asset,
    maintenance_asset_key,
    maintenance_metadata,
    maintenance_schedule,
)
from backfill_platform.orchestration.run_request import REPAIR_TAG
from backfill_platform.repair.maintain import Keep, maintain
from backfill_platform.repair.undo import UndoScope
from backfill_platform_tests.events import hour, random_clicks
from backfill_platform_tests.orchestration.holders import Opened
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore::dagster.PreviewWarning", "ignore::dagster.BetaWarning")

LATER = timedelta(days=1)


@pytest.fixture
def world(tmp_path: Path, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    """Three published hours, one of them damaged and repaired."""
    found = World.over(tmp_path, spark, warehouse, [click.line for click in random_clicks(9, hours=3, clients=20)], 3)
    found.run(found.everything)
    found.damage(found.sessions, "UPDATE bytes = bytes + 1", hour(1))
    found.run(found.derived)
    yield found
    found.drop()


def clean(world: World, *at_work: str, rehearsal: bool = False) -> dict[str, int]:
    """Maintain as if everything were old; the number of files that went, by table."""
    keep = Keep(datetime.now(UTC) + LATER, 30, lambda: at_work, rehearsal)
    return {one.table: len(one.lake.files) for one in maintain(world.pipeline, world.lake, world.warehouse, keep)}


@pytest.mark.whole
def test_after_maintenance_the_detector_finds_nothing_and_repairs_and_undo_go_on(world: World) -> None:
    repair, before = f"r{world.repairs}", world.net()
    rehearsed = clean(world, rehearsal=True)
    done = clean(world)
    assert done.keys() == rehearsed.keys()
    assert sum(done.values()) >= sum(rehearsed.values()) > 0
    assert survey(world.pipeline, world.hours, world.lake, world.warehouse).gaps == ()
    world.undo(UndoScope(repair))
    assert world.net() != before, "the patch was kept"
    world.run(world.derived)
    assert world.net() == before
    assert survey(world.pipeline, world.hours, world.lake, world.warehouse).gaps == ()


def test_dagster_shows_what_was_freed_and_repairs_that_are_at_work_are_spared(world: World) -> None:
    opened = Opened(world)
    asset = maintenance_asset(world.pipeline)
    table = world.pipeline.raw.table
    world.lake.stage(table, "alive", [hour(0)], {})
    world.lake.stage(table, "dead", [hour(0)], {})
    with dg.instance_for_test() as instance:
        instance.add_run(dg.DagsterRun(job_name="other", status=dg.DagsterRunStatus.STARTED, tags={REPAIR_TAG: "alive"}))
        result = dg.materialize([asset], instance=instance, resources={"connections": opened})
        assert result.success
        event = instance.get_latest_materialization_event(maintenance_asset_key(world.pipeline.name))
        assert event is not None
        assert event.asset_materialization is not None
        metadata = event.asset_materialization.metadata
    loaded = world.lake.load(table)
    assert loaded is not None
    assert set(loaded.refs()) == {"main", "alive"}
    assert {"bytes_freed", "bytes_of_data", "bytes_of_metadata", "tables"} <= metadata.keys()
    tables = metadata["tables"]
    assert isinstance(tables, dg.TableMetadataValue)
    first = tables.records[0].data
    assert (first["lake table"], first["branches"]) == (str(table), "1")


def test_a_rehearsal_says_what_would_go_and_frees_nothing(world: World) -> None:
    now = datetime.now(UTC)
    keep = {way: Keep(now + LATER, 0, tuple, rehearsal=way) for way in (True, False)}

    def patches(way: bool) -> int:
        return sum(one.patches for one in maintain(world.pipeline, world.lake, world.warehouse, keep[way]))

    assert patches(True) == patches(True) == patches(False) == 3, "of two tables published at first, and of the repair"
    assert patches(True) == 0
    names = maintenance_metadata([], rehearsal=True).keys()
    assert "bytes_not_needed" in names
    assert "bytes_freed" not in names


def test_it_is_scheduled_for_every_night() -> None:
    schedule = maintenance_schedule(clickstream.pipeline, maintenance_asset(clickstream.pipeline))
    assert schedule.cron_schedule == "17 3 * * *"
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING
