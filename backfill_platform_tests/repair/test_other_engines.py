"""Tables that take no cancels, from the lake to the survey: published, damaged, found, repaired, undone."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from backfill_platform.adapters.clickhouse.sql import target_name
from backfill_platform.detection.survey import survey
from backfill_platform.domain.tables import TargetTable
from backfill_platform.planning.explain import explain
from backfill_platform.repair.undo import UndoScope
from backfill_platform_tests.events import hour
from backfill_platform_tests.world import World, warehouse_asset

pytestmark = pytest.mark.whole

TARGETS = {
    "marked": TargetTable(name="sessions_marked", engine="ReplacingMergeTree", deleted="gone"),
    "replacing": TargetTable(name="sessions_replacing", engine="ReplacingMergeTree"),
    "plain": TargetTable(name="sessions_plain", engine="MergeTree"),
}


@pytest.fixture(params=TARGETS)
def world(request: pytest.FixtureRequest, published: World) -> Iterator[World]:
    """The published world with its sessions in another table, of each engine."""
    first, *others = published.pipeline.derived
    derived = (replace(first, target=TARGETS[request.param]), *others)
    world = replace(published, pipeline=replace(published.pipeline, derived=derived))
    yield world
    published.repairs = world.repairs
    name = target_name(world.pipeline.published[0])
    published.warehouse.command(f"DROP TABLE IF EXISTS {name} SYNC", doing="cleaning up")


def test_it_is_published_surveyed_repaired_and_undone(world: World) -> None:
    (sessions, _), asset = world.pipeline.published, warehouse_asset(world.sessions)
    world.run([asset])
    assert survey(world.pipeline, world.hours, world.lake, world.warehouse).gaps == ()
    right = world.net()
    world.warehouse.command(
        f"ALTER TABLE {target_name(sessions)} UPDATE bytes = bytes + 1 WHERE hour = toDateTime({int(hour(1).timestamp())})",
        settings={"mutations_sync": 2},
        doing="damaging",
    )
    wrong = world.net()
    found = survey(world.pipeline, world.hours, world.lake, world.warehouse).gaps
    assert [(gap.table, gap.hour) for gap in found] == [("/".join(asset), hour(1))]
    assert not any(outcome.error for outcome in world.run([asset])[asset].values())
    assert world.net() == right
    (undone,) = world.undo(UndoScope(f"r{world.repairs}"))
    assert (undone.undoable.conflicts, undone.failed) == (0, ())
    assert world.net() == wrong


def test_a_partition_that_is_replaced_waits_until_all_its_hours_are_closed(world: World) -> None:
    asset, target = warehouse_asset(world.sessions), world.pipeline.derived[0].target
    end_of_day = hour(0).replace(hour=0) + timedelta(days=1)
    live = replace(world.pipeline, seal_after=datetime.now(UTC) - end_of_day + timedelta(minutes=30))
    error = world.run([asset], pipeline=live)[asset][hour(0)].error
    assert ("live writers may write it until" in error) == target.replaces_partitions
    assert not world.run([asset], pipeline=live, allow_open_hours=True)[asset][hour(0)].error


def test_the_plan_says_what_is_guaranteed(world: World) -> None:
    asset, target = warehouse_asset(world.sessions), world.pipeline.derived[0].target
    (step,) = explain(world.plan([asset]), world.pipeline, world.lake, world.warehouse)
    assert "is created by the first publish" in step.explanation
    world.run([asset])
    (step,) = explain(world.plan([asset]), world.pipeline, world.lake, world.warehouse)
    whole = "each partition" if target.replaces_partitions else "all hours"
    assert f"see{'s' * (target.engine == 'MergeTree')} {whole} as before or as after" in step.explanation
