"""What recipients are told by real runs: each thing at its time, once, and never at the cost of the repair."""

import json
import logging
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.delivery.dispatcher import Patience
from backfill_platform.adapters.spark.checks import HourRule
from backfill_platform.definitions import build_definitions
from backfill_platform.domain.change_limits import ChangeLimits
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.plan import WAREHOUSE, AssetPath
from backfill_platform.domain.request import RepairRequest
from backfill_platform.domain.visible_text import JOINER
from backfill_platform.errors import WarehouseUnavailable
from backfill_platform.notifications.recipients import audience_of, unknown_recipients, web_address
from backfill_platform.orchestration.assets import pipeline_assets
from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.orchestration.jobs.undo import undo_job
from backfill_platform.orchestration.notifications import Notifier
from backfill_platform.orchestration.partitions import partitions_of, range_tags
from backfill_platform.orchestration.presentation import run_summary
from backfill_platform.orchestration.run_request import NOTIFIED_TAG, REPAIR_TAG, Mode, RunRequest
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.outcomes import Event, HourOutcome, StepStarted
from backfill_platform.settings import Settings
from backfill_platform_tests.adapters.delivery.servers import Answer, Hook, hook_server
from backfill_platform_tests.events import hour, random_clicks
from backfill_platform_tests.orchestration.holders import Opened, SparkHolder
from backfill_platform_tests.orchestration.test_assets import PROJECT
from backfill_platform_tests.world import World, with_rule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore::dagster.PreviewWarning", "ignore::dagster.BetaWarning")]

HOURS = HourRange(hour(0), hour(3))
PASSWORD = "ch-Pa55word"
TOKEN = "T0KEN/B0SS/xoxSecretPath"
EVERYTHING = ["started", "finished", "waiting", "failed"]


class Closed(Opened):
    """A warehouse that does not answer."""

    def warehouse(self) -> Warehouse:
        raise WarehouseUnavailable(f"nothing answers at http://ada:{PASSWORD}@host:8123")


@dataclass
class Stage:
    """A world with recipients: `hook` gets everything, `usual` what a recipient gets who asks for nothing in particular."""

    world: World
    hook: Hook
    usual: Hook
    instance: dg.DagsterInstance

    @property
    def settings(self) -> Settings:
        recipients = {
            "web-team": {"urls": [self.hook.address(f"/services/{TOKEN}")], "events": EVERYTHING},
            "stakeholders": {"urls": [self.usual.address()]},
        }
        url = f"http://ada:{PASSWORD}@host:8123"
        return Settings(recipients=recipients, web_url="https://dagster.example/", clickhouse_url=url, project=PROJECT)

    @property
    def published(self) -> tuple[AssetPath, ...]:
        """What is compared with the lake as it is, without Spark."""
        return tuple((WAREHOUSE, table.name) for table in self.world.pipeline.published)

    def forget(self) -> None:
        for hook in (self.hook, self.usual):
            hook.requests.clear()
            hook.answers.clear()

    def notifier(self, pipeline: Pipeline, patience: float) -> Notifier:
        return Notifier(audience_of(pipeline, self.settings, Patience(patience, 0.05)), lambda: web_address(self.settings))

    def run(
        self,
        assets: Iterable[AssetPath],
        *,
        pipeline: Pipeline | None = None,
        request: RunRequest = RunRequest(RepairRequest(reason="a broker was down", requester="ada")),  # noqa: B008
        listener: Any = lambda event: None,
        opened: type[Opened] = Opened,
        patience: float = 20.0,
        tags: Mapping[str, str] | None = None,
    ) -> dg.ExecuteInProcessResult:
        pipeline = pipeline or self.world.pipeline
        definition = pipeline_assets(pipeline, partitions_of(pipeline), self.notifier(pipeline, patience))
        resources = {"spark": SparkHolder(self.world.spark), "connections": opened(self.world), "listener": listener}
        job = dg.define_asset_job("job", dg.AssetSelection.assets(definition))
        definitions = dg.Definitions(assets=[definition], jobs=[job], resources=resources, executor=dg.in_process_executor)
        return definitions.resolve_job_def("job").execute_in_process(
            instance=self.instance,
            tags={**range_tags(HOURS), **request.to_tags(), **(tags or {})},
            asset_selection=[dg.AssetKey(list(path)) for path in assets],
            raise_on_error=False,
        )

    @property
    def subjects(self) -> list[str]:
        """What was told to the one who gets everything, without what is in front of every subject."""
        return [text.partition("\n")[0].removeprefix("[backfill] clickstream: ") for text in self.hook.texts]

    @property
    def told(self) -> list[Mapping[str, Any]]:
        """What the other one was told."""
        return [body for _, _, body in self.usual.requests]

    def log(self, result: dg.ExecuteInProcessResult) -> str:
        return "\n".join(entry.user_message for entry in self.instance.all_logs(result.run_id))


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession", warehouse_url: str) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("notices")
    with closing(Warehouse(warehouse_url)) as warehouse, hook_server() as hook, hook_server() as usual:
        world = World.over(folder, spark, warehouse, [click.line for click in random_clicks(9, hours=3, clients=20)], 3)
        world.pipeline = replace(world.pipeline, recipients=("web-team", "stakeholders"))
        with dagster_instance(Settings(home=folder, project=PROJECT)) as instance:
            stage = Stage(world, hook, usual, instance)
            assert stage.run(world.everything).success
            yield stage
        world.drop()


@pytest.fixture
def stage(staged: Stage) -> Iterator[Stage]:
    """The world, landed and published; what a test has broken of it is repaired."""
    staged.forget()
    yield staged
    staged.world.run(staged.published)


def damage(stage: Stage) -> None:
    stage.world.damage(stage.world.sessions, "UPDATE bytes = bytes + 1", hour(1))


def test_a_repair_tells_that_it_starts_and_what_it_has_changed_and_its_undo_too(stage: Stage) -> None:
    damage(stage)
    seen: list[list[str]] = []
    result = stage.run(stage.published, listener=lambda event: seen.append(stage.subjects))
    assert result.success
    assert stage.subjects == ["repair started", "repair finished, 1 hour changed in ClickHouse"]
    assert not any(subject.startswith("repair finished") for subjects in seen for subject in subjects)
    (finished,) = stage.told
    assert finished["type"] == "success"
    assert "What was wrong: a broker was down (asked by ada)" in finished["message"]
    assert "(1998-04-30 23:00 to 00:00 UTC" not in finished["message"]
    assert "1 hour changed (1998-04-30 23:00 to 1998-05-01 00:00 UTC, 1 hour)" in finished["message"]
    assert "columns that differ: bytes in" in finished["message"]
    assert f"https://dagster.example/runs/{result.run_id}" in finished["message"]
    stage.forget()
    repair = finished["message"].partition("backfill undo clickstream ")[2].partition("\n")[0]
    assert f"backfill undo clickstream {repair}" in finished["message"]
    job = undo_job(stage.world.pipeline, stage.notifier(stage.world.pipeline, 20))
    config = {"ops": {"clickstream_undo_op": {"config": {"repair": repair}}}}
    undone = job.execute_in_process(
        instance=stage.instance, run_config=config, resources={"connections": Opened(stage.world)}, raise_on_error=False
    )
    assert undone.success
    assert stage.subjects == [f"undo of {repair} started", f"undo of {repair} finished, 1 hour changed in ClickHouse"]
    assert f"backfill undo clickstream {repair}" not in stage.told[0]["message"]


def test_hours_that_fail_are_told_with_their_error_and_without_secrets_in_it(stage: Stage) -> None:
    name = f"agrees with http://ada:{PASSWORD}@host:8123?token=t0psecret and {TOKEN}"
    rule = HourRule(name, lambda: F.max("hour") != F.lit(hour(1)), "for the test")
    pipeline = with_rule(stage.world.pipeline, stage.world.sessions, rule)
    assert not stage.run(stage.world.derived, pipeline=pipeline).success
    assert stage.subjects == ["repair started", "repair failed for 1 hour (4 in 4 tables)"]
    (failed,) = stage.told
    assert failed["type"] == "failure"
    assert f"1998-04-30T23: failed agrees with http:{JOINER}//***@{JOINER}host:8123?token=*** and ***" in failed["message"]
    told = json.dumps(stage.hook.texts) + json.dumps(stage.told)
    for secret in (PASSWORD, "t0psecret", TOKEN):
        assert secret not in told


@pytest.mark.parametrize("why", ["change limits", "open", "inconsistent"])
def test_hours_that_are_refused_wait_for_a_person(stage: Stage, why: str) -> None:
    pipeline, request = stage.world.pipeline, RunRequest(RepairRequest(reason="a broker was down", requester="ada"))
    if why == "change limits":
        damage(stage)
        limited = request.repair.model_copy(update={"change_limits": ChangeLimits(columns=frozenset({"requests"}))})
        request, says = replace(request, repair=limited), "beyond the change limits: bytes would change"
    elif why == "open":
        damage(stage)
        pipeline, says = replace(pipeline, seal_after=timedelta(days=365 * 100)), "live writers may write it until"
    else:
        name = f"transformed.{stage.world.sessions}"
        lone = "* REPLACE (client_id + 5000 AS client_id, -1 AS sign)"
        cancels = f"INSERT INTO {name} SELECT {lone} FROM {name} FINAL WHERE hour = toDateTime({int(hour(1).timestamp())})"
        stage.world.warehouse.command(cancels, settings={"optimize_on_insert": 0}, doing="writing cancels without a state")
        damage(stage)
        says = "rewrite inconsistent partitions"
    result = stage.run(stage.published, pipeline=pipeline, request=request)
    assert not result.success
    hours = "1 hour refused"
    assert stage.subjects == ["repair started", f"repair waits for you: {hours}"]
    (waiting,) = stage.told
    assert waiting["type"] == "warning"
    assert says in waiting["message"]
    if why == "inconsistent":
        stage.world.run(stage.published, rewrite_inconsistent=True)


def test_a_dry_run_that_found_differences_waits_for_a_person(stage: Stage) -> None:
    assert stage.run(stage.world.dry_runs).success
    assert stage.subjects == ["dry run started", "dry run finished"]
    stage.forget()
    damage(stage)
    assert stage.run(stage.world.dry_runs).success
    assert stage.subjects == ["dry run started", "dry run found differences in 1 hour, and waits for you"]
    assert [one["type"] for one in stage.told] == ["warning"]


def test_a_run_that_fails_as_a_whole_is_told_once_after_its_last_try(stage: Stage) -> None:
    result = stage.run(stage.published, opened=Closed)
    assert not result.success
    retries = [event for event in result.all_events if event.event_type == dg.DagsterEventType.STEP_UP_FOR_RETRY]
    assert len(retries) == 2
    assert stage.subjects == ["repair started", "repair failed"]
    (failed,) = stage.told
    assert f"What went wrong: nothing answers at http:{JOINER}//***@{JOINER}host:8123" in failed["message"]
    assert PASSWORD not in json.dumps(stage.hook.texts) + json.dumps(stage.told)


def test_a_request_that_cannot_be_read_is_told(stage: Stage) -> None:
    assert not stage.run(stage.published, tags={"backfill/change_limits": '{"hour": 1}'}).success
    assert stage.subjects == ["repair failed"]
    assert "change limits: hour: extra inputs" in stage.told[0]["message"]


def test_a_backfill_that_would_leave_its_assets_as_they_are_is_refused_before_any_work(stage: Stage) -> None:
    result = stage.run(stage.published, request=RunRequest(mode=Mode.DRY_RUN), tags={"dagster/backfill": "abcdefgh"})
    assert not result.success
    assert stage.subjects == ["repair failed"]
    assert "launch the backfill for the assets dry_run/* instead, or without the tag" in stage.told[0]["message"]
    run = stage.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert REPAIR_TAG not in run.tags


def test_a_run_that_is_interrupted_is_told(stage: Stage) -> None:
    sent: list[Event] = []

    def interrupt(event: Event) -> None:
        if isinstance(event, HourOutcome) and not sent:
            sent.append(event)
            os.kill(os.getpid(), signal.SIGINT)

    stage.run(stage.published, listener=interrupt)
    assert stage.subjects[:2] == ["repair started", "repair failed"]
    assert "What went wrong: the run was interrupted" in stage.told[0]["message"]
    assert stage.subjects[2:] == []


def test_the_page_of_a_run_that_a_bug_ends_says_that_it_failed(stage: Stage) -> None:
    def break_(event: Event) -> None:
        if isinstance(event, StepStarted) and event.number > 1:
            raise RuntimeError("a bug")

    result = stage.run(stage.published, listener=break_)
    pages = [
        entry.dagster_event.asset_observation_data.asset_observation.metadata["repair report"].value
        for entry in stage.instance.all_logs(result.run_id)
        if entry.dagster_event and entry.dagster_event.event_type is dg.DagsterEventType.ASSET_OBSERVATION
    ]
    assert pages
    assert all("**repair failed**" in str(page) for page in pages)


def test_a_report_or_a_tag_that_cannot_be_written_fails_no_repair(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise RuntimeError("a bug in the page")

    add = stage.instance.add_run_tags

    def locked(run_id: str, tags: Mapping[str, str]) -> None:
        if NOTIFIED_TAG in tags:
            raise OSError("database is locked")
        add(run_id, tags)

    monkeypatch.setattr(run_summary, "page", broken)
    monkeypatch.setattr(stage.instance, "add_run_tags", locked)
    damage(stage)
    result = stage.run(stage.published)
    assert result.success
    assert stage.subjects[-1] == "repair finished, 1 hour changed in ClickHouse"
    log = stage.log(result)
    assert "the report of the run cannot be shown" in log
    assert "cannot be marked as told (OSError)" in log


@pytest.mark.parametrize("trouble", ["refuses", "unavailable", "hangs"])
def test_a_recipient_that_cannot_be_told_costs_the_repair_no_more_than_the_patience(stage: Stage, trouble: str) -> None:
    answer = {"refuses": Answer(404), "unavailable": Answer(500), "hangs": Answer(after=60)}[trouble]
    damage(stage)
    began = time.monotonic()
    ended: list[float] = []
    with hook_server() as hook:  # of its own, because what hangs may still arrive when the test is over
        hook.answers = [answer] * 1000
        stage = replace(stage, hook=hook)
        result = stage.run(stage.published, patience=2, listener=lambda event: ended.append(time.monotonic()))
    assert result.success
    assert time.monotonic() - ended[-1] < 2 + 3
    assert ended[0] - began < 15
    log = stage.log(result)
    assert "web-team was not told by JSON ('[backfill] clickstream: repair finished, 1 hour changed in ClickHouse')" in log
    assert "stakeholders was told by JSON" in log
    assert TOKEN not in log
    assert [one["type"] for one in stage.told] == ["success"]


def test_an_everyday_run_is_told_only_when_something_is_wrong(stage: Stage) -> None:
    damage(stage)
    request = RunRequest(RepairRequest(reason="live", routine=True))
    assert stage.run(stage.published, request=request).success
    assert stage.subjects == []
    assert not stage.run(stage.published, request=request, tags={"backfill/margins": "some"}).success
    assert stage.subjects == ["repair failed"]


def test_recipients_that_the_settings_lack_are_told_of_in_the_log(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = replace(stage.world.pipeline, recipients=("web-team", "stakeholder"))
    result = stage.run(stage.world.dry_runs, pipeline=pipeline)
    assert result.success
    assert "nobody is told as stakeholder: BACKFILL_RECIPIENTS does not have them" in stage.log(result)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            Notifier.of(pipeline, stage.settings)
    assert [record.getMessage() for record in caplog.records] == [
        "pipeline clickstream: nobody is told as stakeholder, because BACKFILL_RECIPIENTS has only web-team, stakeholders"
    ]
    assert unknown_recipients(pipeline, Settings(project=PROJECT)) == ""


def test_definitions_hold_no_secret_in_their_text(stage: Stage) -> None:
    watch = audience_of(stage.world.pipeline, stage.settings)
    assert TOKEN not in repr(watch) + repr(Notifier.of(stage.world.pipeline, stage.settings)) + repr(stage.settings)
    assert build_definitions(stage.settings) is not None


def test_the_address_of_the_page_is_the_one_set_or_the_local_one_while_it_runs(tmp_path: Path) -> None:
    assert web_address(Settings(home=tmp_path)) == ""
    (tmp_path / "services.json").write_text(json.dumps({"pid": 1, "web_url": "http://127.0.0.1:3000", "spark_remote": ""}))
    assert web_address(Settings(home=tmp_path)) == "http://127.0.0.1:3000"
    assert web_address(Settings(home=tmp_path, web_url="https://ui.example/")) == "https://ui.example"
