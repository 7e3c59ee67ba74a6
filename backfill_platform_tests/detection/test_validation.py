"""`backfill check`: every check of every table is evaluated on what is there, and says what is wrong with it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pandera.pyspark import dataframe_check
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.spark.checks import RowRule
from backfill_platform.detection.validation import Checked, Verdict, check_pipeline
from backfill_platform.domain.change_limits import ChangeLimits
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.uris import local_path
from backfill_platform.examples.clickstream import Sessions
from backfill_platform.orchestration.assets import check_specs
from backfill_platform.orchestration.checks.gaps import gap_checks
from backfill_platform.orchestration.partitions import partitions_of
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.topics.delivery_counts import DELIVERY_COUNTS
from backfill_platform_tests.events import hour, random_clicks
from backfill_platform_tests.world import World, with_rule

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.whole

HOURS = 3
SPAN = HourRange(hour(0), hour(HOURS))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    """Three published hours; one line of the second is malformed."""
    lines = [click.line for click in random_clicks(8, hours=HOURS, clients=20)] + ["1,30/Apr/1998,23:10:00,/x,-,0"]
    world = World.over(tmp_path_factory.mktemp("checked"), spark, warehouse, lines, HOURS)
    world.run(world.everything)
    yield world
    world.drop()


def checked(
    world: World, pipeline: Pipeline | None = None, change_limits: ChangeLimits | None = None
) -> dict[tuple[str, str], Checked]:
    job = world.job(pipeline, **({} if change_limits is None else {"change_limits": change_limits}))
    found = check_pipeline(job, world.services, SPAN)
    # Other tests may have replayed these hours: the ledger is shared, and so is the name of this pipeline.
    return {("/".join(one.asset), one.check): one for one in found if one.check != DELIVERY_COUNTS}


def verdicts(found: dict[tuple[str, str], Checked], wanted: Verdict) -> dict[tuple[str, str], list[int]]:
    by_check = {
        name: [(at - SPAN.start) // HOUR for at, (verdict, _) in one.hours.items() if verdict is wanted]
        for name, one in found.items()
    }
    return {name: hours for name, hours in by_check.items() if hours}


def test_every_check_that_dagster_shows_is_evaluated_for_every_hour(world: World) -> None:
    found = checked(world)
    partitions = partitions_of(world.pipeline)
    declared = [*check_specs(world.pipeline, partitions), *gap_checks(world.pipeline, partitions).check_specs]
    names = {(spec.asset_key.to_user_string(), spec.name) for spec in declared}
    # Change limits is held against a difference, which the dry run makes; what is beyond a cap is counted by a build.
    unasked = {(f"warehouse/{table.name}", "within_change_limits") for table in world.pipeline.published}
    assert names - set(found) == unasked | {(f"transformed/{world.sessions}", "events_within_cap")}
    assert set(found) <= names
    assert all(list(one.hours) == list(SPAN) for one in found.values())
    assert verdicts(found, Verdict.FAILED) == verdicts(found, Verdict.SKIPPED) == {}
    assert verdicts(found, Verdict.WARNED) == {("raw/clickstream", "rows_valid"): [1]}


def test_nothing_is_changed_by_checking(world: World) -> None:
    before = (world.net(), [world.lake.snapshot(table) for table in world.pipeline.tables])
    checked(world)
    assert (world.net(), [world.lake.snapshot(table) for table in world.pipeline.tables]) == before


def test_an_altered_warehouse_hour_fails_what_looks_at_it(world: World) -> None:
    world.damage(world.sessions, "UPDATE bytes = bytes + 1", hour(2))
    copy = f"warehouse/{world.sessions}"
    failed = {(copy, "matches_lake"): [2], (copy, "no_pending_approval"): [2], (copy, "no_gap"): [2]}
    try:
        assert verdicts(checked(world), Verdict.FAILED) == failed
        limited = checked(world, change_limits=ChangeLimits(columns=frozenset({"errors"})))
        dry_run = (f"dry_run/{world.sessions}", "within_change_limits")
        assert verdicts(limited, Verdict.FAILED) == {**failed, dry_run: [2]}
    finally:
        world.run([("warehouse", world.sessions)])


def test_rows_that_meet_the_rules_no_longer_fail_their_hour(world: World) -> None:
    stricter = RowRule("no long sessions", lambda: F.col("requests") < 2)
    found = checked(world, with_rule(world.pipeline, world.sessions, stricter))
    name = (f"transformed/{world.sessions}", "rows_valid")
    assert verdicts(found, Verdict.FAILED)[name] == [0, 1, 2]
    assert "no long sessions" in found[name].hours[hour(0)][1]


class FewSessions(Sessions):
    """Sessions, of which an hour may have two: only pandera can tell."""

    @dataframe_check
    @classmethod
    def _two_at_most(cls, frame: "DataFrame") -> bool:
        return bool(frame.count() <= 2)


def test_a_check_that_only_pandera_can_run_is_run(world: World) -> None:
    sessions, hourly = world.pipeline.derived
    found = checked(world, replace(world.pipeline, derived=(replace(sessions, schema=FewSessions), hourly)))
    rows = world.lake.rows_by_hour(sessions.table)
    assert min(rows.values()) > 2
    assert verdicts(found, Verdict.FAILED)[f"transformed/{world.sessions}", "_two_at_most"] == [0, 1, 2]


def test_lost_hours_and_files_fail_one_check_and_skip_the_others(world: World) -> None:
    sessions = world.pipeline.published[0]
    world.lake.remove_hours(sessions, [hour(0)])
    (file,) = world.lake.files(sessions, [hour(1)])
    Path(local_path(file.uri) or "").unlink()
    try:
        found = checked(world)
        assert verdicts(found, Verdict.FAILED)[str(sessions), "no_gap"] == [0, 1]
        assert verdicts(found, Verdict.SKIPPED)[str(sessions), "rows_valid"] == [0, 1]
    finally:
        world.run(world.everything)
