"""What becomes of runs whose process is gone, before a daemon starts: whatever Dagster would drop, it goes on with."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.launcher.base import LaunchRunContext, WorkerStatus
from dagster._core.storage.tags import MAX_RETRIES_TAG, WILL_RETRY_TAG
from dagster._daemon.auto_run_reexecution.event_log_consumer import EventLogConsumerDaemon

from backfill_platform.orchestration.dagster_overrides.run_launcher import CheckedRunLauncher
from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.orchestration.process_identity import HOME_TAG, PROCESS_TAG, home_id, this_process
from backfill_platform.orchestration.recovery import NEVER_RETRIED, fail_dead_runs
from backfill_platform.settings import Settings
from backfill_platform_tests.fixtures_stack import ROOT

LIVE = {PROCESS_TAG: this_process(), **NEVER_RETRIED}
DEAD = {PROCESS_TAG: this_process().rsplit(":", 1)[0] + ":1", **NEVER_RETRIED}


@dg.job
def empty() -> None:
    """A job for runs to be of."""


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """The instance of the shipped dagster.yaml, new."""
    with dagster_instance(Settings(home=tmp_path, project=ROOT)) as instance:
        yield instance


def unfinished(instance: dg.DagsterInstance, tags: dict[str, str], status: dg.DagsterRunStatus) -> str:
    run = instance.create_run_for_job(empty, tags=tags, status=status)
    return str(run.run_id)


def found(instance: dg.DagsterInstance, run_id: str) -> tuple[dg.DagsterRunStatus, str | None]:
    """The status of a run, and whether Dagster will launch it again."""
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status, run.tags.get(WILL_RETRY_TAG)


def test_a_worker_that_died_is_launched_again_and_a_command_line_is_not(instance: dg.DagsterInstance) -> None:
    started = dg.DagsterRunStatus.STARTED
    worker, live, dead = (unfinished(instance, tags, started) for tags in ({}, LIVE, DEAD))
    canceling = unfinished(instance, {}, dg.DagsterRunStatus.CANCELING)
    assert sorted(fail_dead_runs(instance, workers_too=True)) == sorted([worker, dead, canceling])
    assert found(instance, worker) == (dg.DagsterRunStatus.FAILURE, "true")
    assert found(instance, dead) == (dg.DagsterRunStatus.FAILURE, "false")
    assert found(instance, live) == (started, None)
    assert found(instance, canceling) == (dg.DagsterRunStatus.CANCELED, None), "somebody wanted it to end"
    assert fail_dead_runs(instance, workers_too=True) == []


def test_workers_are_left_alone_where_a_daemon_runs(instance: dg.DagsterInstance) -> None:
    worker = unfinished(instance, {}, dg.DagsterRunStatus.STARTED)
    assert fail_dead_runs(instance) == []
    assert found(instance, worker)[0] is dg.DagsterRunStatus.STARTED


def test_runs_of_another_home_are_left_alone(instance: dg.DagsterInstance) -> None:
    started = dg.DagsterRunStatus.STARTED
    mine, other = (unfinished(instance, {HOME_TAG: home}, started) for home in (home_id(instance), "another"))
    assert fail_dead_runs(instance, workers_too=True) == [mine]
    assert found(instance, other) == (started, None)
    run = instance.get_run_by_id(other)
    assert run is not None
    assert instance.run_launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING


def test_a_launched_run_names_its_home(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dg.DefaultRunLauncher, "launch_run", lambda *_: None)
    run = instance.get_run_by_id(unfinished(instance, {}, dg.DagsterRunStatus.STARTING))
    assert run is not None
    instance.run_launcher.launch_run(LaunchRunContext(run, None))
    launched = instance.get_run_by_id(run.run_id)
    assert launched is not None
    assert launched.tags[HOME_TAG] == home_id(instance)
    assert len(launched.tags[HOME_TAG]) == 32


def test_a_daemon_that_has_never_run_sees_the_failure(instance: dg.DagsterInstance) -> None:
    """It takes its first position from the newest event, so that the failure of a run before its start would be ignored."""
    worker = unfinished(instance, {}, dg.DagsterRunStatus.STARTED)
    fail_dead_runs(instance, workers_too=True)
    seen: list[str] = []

    class Consumer(EventLogConsumerDaemon):
        @property
        def handle_updated_runs_fns(self):  # type: ignore[no-untyped-def]
            def note(_context, records, _logger):  # type: ignore[no-untyped-def]
                seen.extend(record.dagster_run.run_id for record in records)
                yield

            return [note]

    class Process:
        def __init__(self, instance: dg.DagsterInstance) -> None:
            self.instance = instance

    list(Consumer().run_iteration(Process(instance)))  # type: ignore[arg-type]
    assert seen == [worker]


def test_a_run_without_a_process_is_not_healthy(instance: dg.DagsterInstance) -> None:
    launcher = instance.run_launcher
    assert isinstance(launcher, CheckedRunLauncher), "dagster.yaml names it"
    assert instance.run_monitoring_enabled
    assert launcher.supports_check_run_worker_health

    def health(tags: dict[str, str]) -> WorkerStatus:
        run = instance.get_run_by_id(unfinished(instance, tags, dg.DagsterRunStatus.STARTED))
        assert run is not None
        return launcher.check_run_worker_health(run).status

    assert health(LIVE) is WorkerStatus.RUNNING
    assert health(DEAD) is WorkerStatus.NOT_FOUND
    assert health({}) is WorkerStatus.NOT_FOUND
    assert health({".dagster/grpc_info": '{"host": "localhost", "socket": "/nowhere"}'}) is WorkerStatus.NOT_FOUND


def test_failures_of_the_work_itself_are_not_launched_again(instance: dg.DagsterInstance) -> None:
    assert instance.run_retries_enabled
    assert not instance.run_retries_retry_on_asset_or_op_failure
    assert {MAX_RETRIES_TAG: "0"} == NEVER_RETRIED
