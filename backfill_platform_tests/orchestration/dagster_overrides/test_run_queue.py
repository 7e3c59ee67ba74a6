"""The queue of the shipped dagster.yaml: whose run is started next, and how many of a pipeline."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME
from dagster._core.test_utils import create_run_for_test
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import ModuleTarget
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon

from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.run_order import FIRST, order_of
from backfill_platform.examples import clickstream, payments
from backfill_platform.orchestration.dagster_overrides.run_queue import (
    ORDER_TAG,
    UNDECLARED,
    PipelineRunQueue,
    limit_tag,
    queue_tags,
)
from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.orchestration.partitions import range_tags
from backfill_platform.orchestration.run_request import RunRequest
from backfill_platform.orchestration.turns import turn_tags
from backfill_platform.pipelines.spec import RUNS_AT_ONCE
from backfill_platform.settings import Settings
from backfill_platform_tests.fixtures_stack import ROOT

NOW = datetime(2026, 11, 24, 12, 30, tzinfo=UTC)
HOURS = HourRange(datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC))


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """The instance of the shipped dagster.yaml."""
    with dagster_instance(Settings(home=tmp_path, project=ROOT)) as opened:
        yield opened


def test_a_run_takes_its_turn_by_the_hours_of_its_range_and_the_priority_of_its_pipeline() -> None:
    pipeline = replace(clickstream.pipeline, priority=2, runs_at_once=1)
    assert queue_tags(range_tags(HOURS), turn_tags(pipeline), NOW) == {
        "backfill/pipeline": "clickstream",
        limit_tag("1"): "clickstream",
        ORDER_TAG: str(order_of(2, HOURS.start)),
    }


def test_a_run_of_one_partition_and_one_without_any_have_their_place_too() -> None:
    assert queue_tags({"dagster/partition": "1998-04-30-22:00"}, {}, NOW) == {
        ORDER_TAG: str(order_of(0, datetime(1998, 4, 30, 22, tzinfo=UTC)))
    }
    assert queue_tags({"dagster/partition": "red"}, {}, NOW) == {ORDER_TAG: str(order_of(0, NOW.replace(minute=0)))}


def test_a_place_that_somebody_gave_a_run_stays() -> None:
    tags = queue_tags({ORDER_TAG: str(FIRST), **range_tags(HOURS)}, turn_tags(clickstream.pipeline), NOW)
    assert tags == {"backfill/pipeline": "clickstream", limit_tag(UNDECLARED): "clickstream"}


def test_runs_may_carry_these_tags() -> None:
    tags = queue_tags(range_tags(HOURS), turn_tags(replace(clickstream.pipeline, runs_at_once=8, priority=-1)), NOW)
    RunRequest.from_tags({**tags, **turn_tags(replace(clickstream.pipeline, runs_at_once=8, priority=-1))})


def test_the_shipped_instance_has_this_queue_and_a_limit_for_whatever_a_pipeline_may_declare(
    instance: dg.DagsterInstance,
) -> None:
    assert isinstance(instance.run_coordinator, PipelineRunQueue)
    queue = instance.get_concurrency_config().run_queue_config
    assert queue is not None
    limits = {one["key"]: one["limit"] for one in queue.tag_concurrency_limits}
    assert {limit_tag(str(limit)): limit for limit in RUNS_AT_ONCE}.items() <= limits.items()
    most = yaml.safe_load((ROOT / "dagster.yaml").read_text())["concurrency"]["runs"]["max_concurrent_runs"]
    assert limits[limit_tag(UNDECLARED)] < most, "another pipeline always finds a place"


LIMITED = """
from dataclasses import replace
from backfill_platform.examples import payments
pipeline = replace(payments.pipeline, runs_at_once=1)
"""


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two pipelines for the code server to load, one of which may run once at a time."""
    (tmp_path / "limited_pipeline.py").write_text(LIMITED)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    monkeypatch.setenv("BACKFILL_PIPELINES", json.dumps(["limited_pipeline", clickstream.__name__]))


@pytest.mark.filterwarnings("ignore::dagster.PreviewWarning", "ignore::dagster.BetaWarning")
def test_the_daemon_starts_the_newest_hours_first_and_no_more_of_a_pipeline_than_it_declares(
    instance: dg.DagsterInstance, limited: None
) -> None:
    target = ModuleTarget("backfill_platform.definitions", None, str(ROOT), "here")
    with WorkspaceProcessContext(instance, target) as process:
        workspace = process.create_request_context()
        (repository,) = workspace.get_code_location("here").get_repositories().values()

        def queue(asset: str, hours: HourRange) -> str:
            """Queue a run of an asset as the web page does, and return its id."""
            key = dg.AssetKey(asset.split("/"))
            job = repository.get_full_job(IMPLICIT_ASSET_JOB_NAME)
            run = create_run_for_test(
                instance,
                job_name=job.name,
                tags=range_tags(hours),
                asset_selection=frozenset({key}),
                remote_job_origin=job.get_remote_origin(),
                job_code_origin=job.get_python_origin(),
            )
            instance.submit_run(run.run_id, workspace)
            return str(run.run_id)

        day = payments.HOURS.start
        old = queue("warehouse/sessions", clickstream.HOURS)
        earlier = queue("warehouse/velocity", HourRange(day, day + 24 * HOUR))
        later = queue("warehouse/velocity", HourRange(day + 24 * HOUR, day + 25 * HOUR))
        daemon = QueuedRunCoordinatorDaemon(1)
        found = [run.run_id for run in daemon._get_runs_to_dequeue(instance, instance.get_concurrency_config(), None)]
    assert found == [later, old], f"{earlier} waits for the limit of its pipeline; the one of 1998 does not"
    run = instance.get_run_by_id(earlier)
    assert run is not None
    assert run.tags[limit_tag("1")] == run.tags["backfill/pipeline"] == "payments"
