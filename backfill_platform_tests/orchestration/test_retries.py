"""What is tried again, and what is not: transient failures with backoff inside of a run, permanent ones never and nowhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.tags import RUN_FAILURE_REASON_TAG, WILL_RETRY_TAG

from backfill_platform.adapters.connections import Connections
from backfill_platform.domain.hours import HourRange
from backfill_platform.errors import (
    BackfillError,
    ChangeLimitsExceeded,
    LakeConflict,
    UsageError,
    WarehouseLocked,
    WarehouseUnavailable,
)
from backfill_platform.examples import clickstream
from backfill_platform.orchestration.assets import pipeline_assets
from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.orchestration.partitions import partitions_of, range_tags
from backfill_platform.settings import Settings
from backfill_platform_tests.fixtures_stack import ROOT

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore::dagster.PreviewWarning", "ignore::dagster.BetaWarning")]

HOURS = HourRange.parse("1998-04-30T22", "1998-05-01T00")


class Failing(Connections):
    """Connections whose lake cannot be opened, each time for the next reason, and the last one for ever."""

    def __init__(self, settings: Settings, *reasons: BaseException) -> None:
        super().__init__(settings)
        self.reasons = list(reasons)
        self.opened = 0

    def lake(self) -> Any:
        self.opened += 1
        raise self.reasons.pop(0) if len(self.reasons) > 1 else self.reasons[0]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, project=ROOT)


@pytest.fixture
def instance(settings: Settings) -> Iterator[dg.DagsterInstance]:
    """The instance of the shipped dagster.yaml."""
    with dagster_instance(settings) as found:
        yield found


def run(instance: dg.DagsterInstance, connections: Connections, **tags: str) -> dg.ExecuteInProcessResult:
    assets = pipeline_assets(clickstream.pipeline, partitions_of(clickstream.pipeline))
    definitions = dg.Definitions(
        assets=[assets],
        jobs=[dg.define_asset_job("job", [assets])],
        resources={"spark": dg.ResourceDefinition.none_resource(), "connections": connections, "listener": lambda event: None},
        executor=dg.in_process_executor,
    )
    return definitions.resolve_job_def("job").execute_in_process(
        instance=instance, tags={**range_tags(HOURS), **tags}, raise_on_error=False
    )


def waits(result: dg.ExecuteInProcessResult) -> list[float | None]:
    """The pauses before the retries."""
    return [
        event.step_retry_data.seconds_to_wait
        for event in result.all_events
        if event.event_type is dg.DagsterEventType.STEP_UP_FOR_RETRY
    ]


def test_transient_failures_are_tried_again_with_backoff(instance: dg.DagsterInstance, settings: Settings) -> None:
    connections = Failing(settings, WarehouseUnavailable("no answer"), WarehouseLocked("taken"), LakeConflict("a faster one"))
    result = run(instance, connections)
    assert (connections.opened, waits(result)) == (3, [5, 10])
    assert_it_ends_there(instance, result, "a faster one")


@pytest.mark.parametrize("error", [ChangeLimitsExceeded("too much"), UsageError("no such thing"), ZeroDivisionError("a bug")])
def test_permanent_failures_are_not(instance: dg.DagsterInstance, settings: Settings, error: Exception) -> None:
    connections = Failing(settings, error)
    result = run(instance, connections)
    assert (connections.opened, waits(result)) == (1, [])
    assert_it_ends_there(instance, result, str(error))


def test_tags_that_cannot_be_read_are_not(instance: dg.DagsterInstance, settings: Settings) -> None:
    result = run(
        instance, Failing(settings, BackfillError("nobody comes here")), **{"backfill/rewrite_inconsistent": "perhaps"}
    )
    assert waits(result) == []
    assert_it_ends_there(instance, result, "backfill/rewrite_inconsistent is true or false")


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), dg.DagsterExecutionInterruptedError()], ids=type)
def test_a_run_that_is_stopped_is_not(instance: dg.DagsterInstance, settings: Settings, interrupt: BaseException) -> None:
    """Dagster applies an op's RetryPolicy to interrupts, so that a run that was stopped would begin again."""
    connections = Failing(settings, interrupt)
    result = run(instance, connections)
    assert (connections.opened, waits(result)) == (1, [])


def assert_it_ends_there(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult, said: str) -> None:
    failures = [event for event in result.all_events if event.is_step_failure]
    assert len(failures) == 1
    error = failures[0].step_failure_data.error
    assert error is not None
    assert said in error.message
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags[RUN_FAILURE_REASON_TAG] == "STEP_FAILURE"
    assert run.tags[WILL_RETRY_TAG] == "false", "the daemon launches only what has crashed again"
