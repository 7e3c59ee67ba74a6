"""Dagster shows what is true: hours that were damaged or undone are failed until they are right, and no longer than that."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.domain.hours import HourRange, partition_key
from backfill_platform.orchestration.assets import pipeline_assets
from backfill_platform.orchestration.checks.gaps import gap_checks
from backfill_platform.orchestration.dagster_overrides.damaged_hours import DAMAGE_TAG
from backfill_platform.orchestration.damage_reporting import repair_link
from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.orchestration.jobs.undo import undo_job
from backfill_platform.orchestration.partitions import partitions_of, range_tags
from backfill_platform.orchestration.run_request import REPAIR_TAG
from backfill_platform.repair.outcomes import NO_GAP, NO_PENDING_APPROVAL
from backfill_platform.repair.publish import MATCHES_LAKE
from backfill_platform.settings import Settings
from backfill_platform_tests.events import hour, random_clicks
from backfill_platform_tests.orchestration.holders import Opened, SparkHolder
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore::dagster.PreviewWarning", "ignore::dagster.BetaWarning")]

PROJECT = Path(__file__).parents[2]
HOURS = 4
_EVALUATION = dg.DagsterEventType.ASSET_CHECK_EVALUATION


@dataclass
class Shown:
    """A world that Dagster has published, and what Dagster shows of it."""

    world: World
    instance: dg.DagsterInstance

    @property
    def copy(self) -> dg.AssetKey:
        return dg.AssetKey(["warehouse", self.world.sessions])

    def job(self, name: str, tags: dict[str, str], **how: object) -> dg.ExecuteInProcessResult:
        pipeline = self.world.pipeline
        partitions = partitions_of(pipeline)
        assets, checks = pipeline_assets(pipeline, partitions), gap_checks(pipeline, partitions)
        definitions = dg.Definitions(
            assets=[assets],
            asset_checks=[checks],
            jobs=[
                dg.define_asset_job("clickstream_repair", dg.AssetSelection.assets(assets)),
                dg.define_asset_job("clickstream_gap_evaluation", dg.AssetSelection.checks(checks)),
                undo_job(pipeline),
            ],
            resources={
                "spark": SparkHolder(self.world.spark),
                "connections": Opened(self.world),
                "listener": lambda event: None,
            },
            executor=dg.in_process_executor,
        )
        job = definitions.resolve_job_def(name)
        return job.execute_in_process(instance=self.instance, tags=tags, **how)  # type: ignore[arg-type]

    def publish(self, first: int = 0, end: int = HOURS) -> str:
        """Publish hours of the sessions again; the name of the repair."""
        done = self.job("clickstream_repair", range_tags(HourRange(hour(first), hour(end))), asset_selection=[self.copy])
        return self.repair_of(done)

    def undo(self, repair: str) -> str:
        config = {"ops": {"clickstream_undo_op": {"config": {"repair": repair}}}}
        return self.repair_of(self.job("clickstream_undo", {}, run_config=config))

    def look(self) -> None:
        assert self.job("clickstream_gap_evaluation", range_tags(HourRange(hour(0), hour(HOURS)))).success

    def repair_of(self, done: dg.ExecuteInProcessResult) -> str:
        run = self.instance.get_run_by_id(done.run_id)
        assert run is not None
        return run.tags[REPAIR_TAG]

    @property
    def states(self) -> list[str]:
        """Whether each hour of the sessions in the warehouse is green or failed, as Dagster's pages compute it."""
        partitions = partitions_of(self.world.pipeline)
        value = get_and_update_asset_status_cache_value(self.instance, self.copy, partitions)
        assert value is not None
        green = value.deserialize_materialized_partition_subsets(partitions).get_partition_keys()
        failed = set(value.deserialize_failed_partition_subsets(partitions).get_partition_keys())
        keys = [partition_key(at) for at in self.world.hours]
        return ["failed" if key in failed else "green" if key in green else "missing" for key in keys]

    def check(self, name: str, at: int) -> dg.AssetCheckEvaluation:
        """The newest evaluation of a check of an hour; it judges the newest materialization, else pages leave it out."""
        key = dg.AssetCheckKey(self.copy, name)
        records = self.instance.event_log_storage.get_asset_check_execution_history(
            key, limit=100, partition_filter=PartitionKeyFilter(key=partition_key(hour(at)))
        )
        events = [record.event.dagster_event for record in records if record.event and record.event.dagster_event]
        evaluations = [event.asset_check_evaluation_data for event in events if event.event_type == _EVALUATION]
        evaluation = next(one for one in evaluations if one.partition == partition_key(hour(at)))
        judged = evaluation.target_materialization_data
        ids = self.instance.event_log_storage.get_latest_storage_id_by_partition(
            self.copy, dg.DagsterEventType.ASSET_MATERIALIZATION, {partition_key(hour(at))}
        )
        assert judged is not None
        assert judged.storage_id == ids[partition_key(hour(at))]
        return evaluation

    def verdicts(self, at: int) -> list[bool]:
        return [self.check(name, at).passed for name in (NO_GAP, NO_PENDING_APPROVAL, MATCHES_LAKE)]

    @property
    def reasons(self) -> list[str]:
        """What the runs that show damage say, the newest first."""
        runs = self.instance.get_runs(dg.RunsFilter(tags={DAMAGE_TAG: "true"}))
        assert {run.status for run in runs} <= {dg.DagsterRunStatus.FAILURE}
        logs = [self.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE) for run in runs]
        return [entry.dagster_event.message or "" for (entry,) in logs if entry.dagster_event]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    lines = [click.line for click in random_clicks(12, hours=HOURS, clients=30)]
    found = World.over(tmp_path_factory.mktemp("shown"), spark, warehouse, lines, HOURS)
    found.run(found.everything)
    yield found
    found.drop()


@pytest.fixture
def shown(world: World, tmp_path: Path) -> Iterator[Shown]:
    with dagster_instance(Settings(home=tmp_path, project=PROJECT)) as instance:
        found = Shown(world, instance)
        found.publish()
        yield found
        found.publish()


def test_damaged_hours_are_failed_until_they_are_published_again(shown: Shown) -> None:
    assert shown.states == ["green"] * HOURS
    shown.world.damage(shown.world.sessions, "DELETE", hour(1))
    shown.world.damage(shown.world.sessions, "UPDATE bytes = bytes + 1", hour(3))
    shown.look()
    assert shown.states == ["green", "failed", "green", "failed"]
    assert len(shown.reasons) == 1
    assert "2 hours of" in shown.reasons[0]
    facts = shown.check(NO_GAP, 1).metadata
    assert (facts["rows_found"].value, facts["share"].value) == (0, 0.0)
    assert isinstance(facts["rows_expected"].value, int)
    assert facts["rows_expected"].value > 0
    shown.look()
    assert len(shown.reasons) == 1, "what is shown already is not shown again"
    shown.publish(1, 2)
    after = shown.check(MATCHES_LAKE, 1).metadata
    assert [after[name].value for name in ("rows_found", "share")] == [facts["rows_expected"].value, 1.0]
    assert shown.states == ["green", "green", "green", "failed"]


def test_an_hour_that_somebody_else_has_mended_is_green_again(shown: Shown) -> None:
    shown.world.damage(shown.world.sessions, "DELETE", hour(2))
    shown.look()
    assert shown.states[2] == "failed"
    shown.world.run([("warehouse", shown.world.sessions)])
    shown.look()
    assert shown.states == ["green"] * HOURS
    assert shown.check(NO_GAP, 2).passed


def test_hours_that_were_never_published_stay_missing(world: World, tmp_path: Path) -> None:
    with dagster_instance(Settings(home=tmp_path, project=PROJECT)) as instance:
        shown = Shown(world, instance)
        shown.publish(0, 1)
        world.damage(world.sessions, "DELETE", hour(2))
        shown.look()
        assert shown.states == ["green", "missing", "missing", "missing"]
        assert shown.reasons == []
        shown.publish()


def test_an_undone_hour_is_failed_with_its_checks_until_somebody_decides(shown: Shown) -> None:
    shown.world.damage(shown.world.sessions, "UPDATE bytes = bytes + 1", hour(1))
    repair = shown.publish()
    assert shown.states == ["green"] * HOURS
    undo = shown.undo(repair)
    assert shown.states == ["green", "failed", "green", "green"], "an hour that the repair has not changed is not undone"
    assert shown.verdicts(1) == [False, False, False]
    said = str(shown.check(NO_PENDING_APPROVAL, 1).description)
    assert f"{undo} has taken back what {repair} published" in said
    assert "drifted" in said
    shown.look()
    assert len(shown.reasons) == 1, "a look finds the same, and adds nothing"
    again = shown.publish()
    assert (shown.states, shown.verdicts(1)) == (["green"] * HOURS, [True, True, True])
    # Taken back and back again, it is what the lake has.
    shown.undo(shown.undo(again))
    assert (shown.states, shown.verdicts(1)) == (["green"] * HOURS, [True, True, True])


def test_a_link_opens_the_page_with_the_hours_chosen() -> None:
    text = repair_link(dg.AssetKey(["warehouse", "sessions"]), [hour(1), hour(2), hour(5)])
    assert "/assets/warehouse/sessions?view=partitions&default_range=%5B1998-04-30-23%3A00...1998-05-01-00%3A00%5D" in text
    assert text.endswith("`[1998-04-30-23:00...1998-05-01-00:00], [1998-05-01-03:00...1998-05-01-03:00]`")
