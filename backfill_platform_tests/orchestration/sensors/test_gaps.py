"""The gap sensor against a real instance: what it shows, what it asks for, and what the runs it asks for do."""

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.delivery.channel import AppriseChannel
from backfill_platform.adapters.delivery.dispatcher import Patience, Recipient
from backfill_platform.detection.survey import survey
from backfill_platform.domain.gap_policy import GapPolicy, OnGap
from backfill_platform.domain.hours import HourRange, partition_key
from backfill_platform.domain.notification import NotificationKind
from backfill_platform.notifications.recipients import Audience
from backfill_platform.orchestration.assets import pipeline_assets
from backfill_platform.orchestration.checks.gaps import gap_checks
from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.orchestration.notifications import SILENT, Notifier
from backfill_platform.orchestration.partitions import partitions_of, range_tags
from backfill_platform.orchestration.sensors.gaps import gap_sensor
from backfill_platform.settings import Settings
from backfill_platform_tests.adapters.delivery.servers import Answer, Hook, hook_server
from backfill_platform_tests.events import hour, random_clicks
from backfill_platform_tests.orchestration.holders import Opened, SparkHolder
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore::dagster.PreviewWarning", "ignore::dagster.BetaWarning")]

PROJECT = Path(__file__).parents[3]
HOURS = 6
PUBLISH = GapPolicy(OnGap.PUBLISH, runs_per_tick=3)


@dataclass
class Tick:
    """What a tick asked for, and what it said when it asked for no repair."""

    repairs: list[dg.RunRequest]
    looks: int
    said: str

    @property
    def ranges(self) -> list[tuple[str, str]]:
        tags = [one.tags for one in self.repairs]
        return [(one["dagster/asset_partition_range_start"], one["dagster/asset_partition_range_end"]) for one in tags]


@dataclass
class Watched:
    """A published world, the instance that knows of it, and the cursor of its sensor."""

    world: World
    instance: dg.DagsterInstance
    spark: "SparkSession"
    cursor: str | None = None
    notifier: Notifier = SILENT

    def definitions(self, policy: GapPolicy | None) -> dg.Definitions:
        pipeline = replace(self.world.pipeline, on_gaps=policy)
        partitions = partitions_of(pipeline)
        assets, checks = pipeline_assets(pipeline, partitions), gap_checks(pipeline, partitions)
        repair = dg.define_asset_job("clickstream_repair", dg.AssetSelection.assets(assets))
        look = dg.define_asset_job("clickstream_gap_evaluation", dg.AssetSelection.checks(checks))
        return dg.Definitions(
            assets=[assets],
            asset_checks=[checks],
            jobs=[repair, look],
            sensors=[gap_sensor(pipeline, repair, look, self.notifier)],
            resources={"spark": SparkHolder(self.spark), "connections": Opened(self.world), "listener": lambda event: None},
            executor=dg.in_process_executor,
        )

    def tick(self, policy: GapPolicy | None = PUBLISH) -> Tick:
        """One tick with the cursor of the last; looks that it asks for are run at once."""
        definitions = self.definitions(policy)
        sensor = definitions.get_repository_def().get_sensor_def("clickstream_gaps")
        with dg.build_sensor_context(
            self.instance,
            self.cursor,
            repository_def=definitions.get_repository_def(),
            resources={"connections": Opened(self.world)},
        ) as context:
            result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        looks = [one for one in result.run_requests or [] if one.job_name == "clickstream_gap_evaluation"]
        assert looks == (result.run_requests or [])[: len(looks)], "a repair is launched after the look that it waits for"
        for one in looks:
            job = definitions.resolve_job_def("clickstream_gap_evaluation")
            assert job.execute_in_process(instance=self.instance, tags=dict(one.tags)).success
        repairs = [one for one in result.run_requests or [] if one.job_name == "clickstream_repair"]
        return Tick(repairs, len(looks), str(result.skip_reason.skip_message if result.skip_reason else ""))

    def run(self, request: dg.RunRequest, policy: GapPolicy | None = PUBLISH) -> bool:
        job = self.definitions(policy).resolve_job_def("clickstream_repair")
        done = job.execute_in_process(
            instance=self.instance, tags=dict(request.tags), asset_selection=request.asset_selection, raise_on_error=False
        )
        return done.success

    def check(self, asset: str, name: str, at: int) -> bool | None:
        """How the newest evaluation of a check of an hour ended; None where it was never evaluated."""
        evaluation = self.evaluation(asset, name, at)
        return None if evaluation is None else bool(evaluation.passed)

    def evaluation(self, asset: str, name: str, at: int) -> dg.AssetCheckEvaluation | None:
        records = self.instance.event_log_storage.get_asset_check_execution_history(
            dg.AssetCheckKey(dg.AssetKey(asset.split("/")), name),
            limit=100,
            partition_filter=PartitionKeyFilter(key=partition_key(hour(at))),
        )
        for record in records:
            event = record.event.dagster_event if record.event else None
            if event is not None and event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
                evaluation = event.asset_check_evaluation_data
                if evaluation.partition == partition_key(hour(at)):
                    return evaluation
        return None

    @property
    def gaps(self) -> list[tuple[str, int]]:
        found = survey(self.world.pipeline, self.world.hours, self.world.lake, self.world.warehouse).gaps
        return [(gap.table, (gap.hour - hour(0)).seconds // 3600) for gap in found]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession", warehouse: Warehouse) -> Iterator[World]:
    lines = [click.line for click in random_clicks(11, hours=HOURS, clients=30)]
    world = World.over(tmp_path_factory.mktemp("watched"), spark, warehouse, lines, HOURS)
    world.run(world.everything)
    yield world
    world.drop()


@pytest.fixture
def watched(world: World, tmp_path: Path) -> Iterator[Watched]:
    """The world and an instance that knows of no gap yet; what a test leaves damaged is repaired."""
    with dagster_instance(Settings(home=tmp_path, project=PROJECT)) as instance:
        found = Watched(world, instance, world.spark)
        yield found
    if found.gaps:
        world.run(world.everything)


def test_gaps_are_asked_for_once_repaired_and_shown_as_gone(watched: Watched) -> None:
    world, copy = watched.world, f"warehouse/{watched.world.sessions}"
    assert watched.tick().repairs == []
    for number in (1, 2, 4):
        world.damage(world.sessions, "DELETE", hour(number))
    found = watched.tick()
    one, two, four = (partition_key(hour(number)) for number in (1, 2, 4))
    assert found.ranges == [(four, four), (one, two)]
    assert watched.check(copy, "no_gap", 1) is False
    assert watched.check(copy, "no_gap", 3) is True
    assert watched.check(copy, "no_gap", 5) is None
    assert watched.tick().repairs == []
    for request in found.repairs:
        assert watched.run(request)
    assert watched.gaps == []
    assert watched.check(copy, "no_gap", 1) is True
    world.damage(world.sessions, "DELETE", hour(1))
    assert watched.tick().ranges == []  # as before, but nobody has looked in between
    world.run([("warehouse", world.sessions)])
    watched.tick()
    world.damage(world.sessions, "DELETE", hour(1))
    again = watched.tick()
    assert again.ranges == [(one, one)]
    assert again.repairs[0].run_key not in [request.run_key for request in found.repairs]


def test_a_lost_raw_hour_is_landed_again_with_all_that_is_computed_from_it(watched: Watched) -> None:
    world = watched.world
    world.lake.remove_hours(world.pipeline.raw.table, [hour(3)])
    (request,) = watched.tick().repairs
    chosen = {key.to_user_string() for key in request.asset_selection or ()}
    assert {"raw/clickstream", f"transformed/{world.sessions}", f"warehouse/{world.sessions}"} <= chosen
    assert watched.run(request)
    assert watched.gaps == []


def test_hours_in_work_are_left_to_whoever_works_on_them(watched: Watched) -> None:
    world = watched.world
    world.damage(world.sessions, "DELETE", hour(2))
    other = watched.instance.create_run_for_job(
        watched.definitions(PUBLISH).resolve_job_def("clickstream_repair"),
        tags=range_tags(HourRange(hour(2), hour(4))),
        asset_selection={dg.AssetKey(["warehouse", world.sessions])},
    )
    assert watched.tick().repairs == []
    watched.instance.report_run_failed(other)
    origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("here"), "there")
    waiting = watched.instance.create_run_for_job(
        watched.definitions(PUBLISH).resolve_job_def("clickstream_repair"),
        tags=range_tags(HourRange(hour(2), hour(4))),
        asset_selection={dg.AssetKey(["warehouse", world.sessions])},
        status=dg.DagsterRunStatus.QUEUED,
        remote_job_origin=RemoteJobOrigin(origin, "clickstream_repair"),
    )
    assert watched.tick().repairs == []
    watched.instance.report_run_failed(waiting)
    assert len(watched.tick().repairs) == 1


@pytest.mark.parametrize(("tick", "waits"), [("7", True), ("8", False)], ids=["of its own tick", "of another tick"])
def test_a_repair_waits_until_the_look_has_shown_what_it_mends(watched: Watched, tick: str, waits: bool) -> None:
    world = watched.world
    world.damage(world.sessions, "DELETE", hour(2))
    (request,) = watched.tick().repairs
    look = watched.instance.create_run_for_job(
        watched.definitions(PUBLISH).resolve_job_def("clickstream_gap_evaluation"),
        status=dg.DagsterRunStatus.STARTED,
        tags=request.tags,
    )
    watched.instance.add_run_tags(look.run_id, {"dagster/tick": "7"})
    ending = threading.Timer(3, lambda: watched.instance.report_run_failed(look))
    ending.start()
    assert watched.run(request.with_replaced_attrs(tags={**request.tags, "dagster/tick": tick}))
    ending.join()
    (repair,) = watched.instance.get_runs(dg.RunsFilter(job_name="clickstream_repair"))
    said = [entry.user_message for entry in watched.instance.all_logs(repair.run_id)]
    assert any(line.startswith(f"waiting for run {look.run_id[:8]}") for line in said) is waits
    assert watched.gaps == []


def test_a_policy_of_reports_asks_for_nothing_and_shows_what_is_wrong(watched: Watched) -> None:
    world = watched.world
    world.damage(world.hourly, "UPDATE errors = errors + 1", hour(2))
    found = watched.tick(GapPolicy())
    assert (found.repairs, found.looks) == ([], 1)
    again = watched.tick(GapPolicy())
    assert (again.repairs, again.looks) == ([], 0)
    assert "1 gaps" in again.said
    assert "drifted" in again.said
    assert watched.check(f"warehouse/{world.hourly}", "no_gap", 2) is False


def test_a_reported_gap_is_repaired_when_the_policy_becomes_publish(watched: Watched) -> None:
    world = watched.world
    world.damage(world.hourly, "UPDATE errors = errors + 1", hour(2))
    assert watched.tick(GapPolicy()).repairs == []
    rehearsal = watched.tick(GapPolicy(OnGap.DRY_RUN)).repairs
    assert [one.asset_selection for one in rehearsal] == [[dg.AssetKey(["dry_run", world.hourly])]]
    (request,) = watched.tick(PUBLISH).repairs
    assert request.run_key != rehearsal[0].run_key
    assert watched.run(request)
    assert watched.gaps == []


@pytest.fixture
def hook(watched: Watched) -> Iterator[Hook]:
    """Where a recipient of the world is told by webhook."""
    with hook_server() as hook:
        recipient = Recipient("web-team", (AppriseChannel(hook.address()),), frozenset({NotificationKind.WAITING}))
        watched.notifier = Notifier(Audience((recipient,), patience=Patience(2, 0.05)), lambda: "https://dagster.example")
        yield hook


def test_recipients_hear_of_reported_gaps_once_for_their_evidence_and_what_to_run(watched: Watched, hook: Hook) -> None:
    world = watched.world
    assert watched.tick(GapPolicy()).looks == 0
    assert hook.texts == []
    for number in (1, 2, 4):
        world.damage(world.sessions, "UPDATE bytes = bytes + 1", hour(number))
    watched.tick(GapPolicy())
    (told,) = hook.texts
    subject, _, text = told.partition("\n")
    assert subject == "[backfill] clickstream: 3 hours damaged, and the repair waits for you"
    assert f"warehouse/{world.sessions} drifted: 1998-04-30 23:00 to 1998-05-01 01:00, 1998-05-01 02:00 to 03:00 UTC" in text
    assert "as many as the lake has, with other values" in text
    assert "Tenants whose rows differ: " in text
    assert f"readers of transformed.{world.sessions} in ClickHouse" in text
    watched.tick(GapPolicy())
    assert len(hook.texts) == 1
    world.damage(world.hourly, "DELETE", hour(0))
    watched.tick(GapPolicy())
    assert "[backfill] clickstream: 1 hour damaged" in hook.texts[1]
    for start, end in re.findall(r"backfill run clickstream --from (\S+) --to (\S+) --reason", "".join(hook.texts)):
        world.run(world.everything, HourRange.parse(start, end))
    assert watched.gaps == []


@pytest.mark.parametrize("answer", [Answer(404), Answer(after=60)], ids=["refuses", "hangs"])
def test_a_recipient_that_cannot_be_told_costs_no_look(watched: Watched, hook: Hook, answer: Answer) -> None:
    hook.answers.append(answer)
    watched.world.damage(watched.world.hourly, "DELETE", hour(2))
    assert watched.tick(GapPolicy()).looks == 1
    assert watched.check(f"warehouse/{watched.world.hourly}", "no_gap", 2) is False


def test_gaps_that_runs_will_tell_of_are_not_told_of_before(watched: Watched, hook: Hook) -> None:
    watched.world.damage(watched.world.hourly, "DELETE", hour(2))
    assert len(watched.tick(PUBLISH).repairs) == 1
    assert hook.requests == []


def test_a_rehearsal_waits_for_a_person_who_publishes_it_by_materializing_the_hour(watched: Watched) -> None:
    world, copy = watched.world, f"warehouse/{watched.world.sessions}"
    policy = GapPolicy(OnGap.DRY_RUN)
    damaged = world.net()
    world.damage(world.sessions, "UPDATE bytes = bytes + 1", hour(2))
    spoilt = world.net()
    (request,) = watched.tick(policy).repairs
    assert watched.run(request, policy)
    assert world.net() == spoilt
    assert watched.check(copy, "no_pending_approval", 2) is False
    tags = range_tags(HourRange(hour(2), hour(3)))
    assert watched.run(dg.RunRequest(tags=tags, asset_selection=[dg.AssetKey(copy.split("/"))]), policy)
    assert world.net() == damaged
    assert watched.check(copy, "no_pending_approval", 2) is True


def test_a_repair_outside_the_change_limits_waits_with_its_difference(watched: Watched) -> None:
    world, copy = watched.world, f"warehouse/{watched.world.sessions}"
    world.damage(world.sessions, "UPDATE bytes = bytes + 1", hour(2))
    policy = GapPolicy(OnGap.PUBLISH, change_limits={"columns": ["errors"]})
    (request,) = watched.tick(policy).repairs
    assert not watched.run(request, policy)
    assert watched.check(copy, "no_pending_approval", 2) is False
    evaluation = watched.evaluation(copy, "no_pending_approval", 2)
    assert evaluation is not None
    assert "beyond the change limits" in str(evaluation.description)
    assert "bytes" in str(evaluation.metadata["samples"].value)
    assert watched.tick(policy).repairs == []


def test_without_a_policy_the_sensor_is_there_to_be_switched_on(watched: Watched) -> None:
    status = dg.DefaultSensorStatus
    repositories = [watched.definitions(policy).get_repository_def() for policy in (None, PUBLISH)]
    off, on = (repository.get_sensor_def("clickstream_gaps") for repository in repositories)
    assert (off.default_status, on.default_status) == (status.STOPPED, status.RUNNING)
