"""Running a range in this process, against the instance that the UI shows."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from backfill_platform.domain.hours import format_hour
from backfill_platform.domain.plan import Plan
from backfill_platform.domain.request import RepairRequest
from backfill_platform.orchestration.partitions import range_tags
from backfill_platform.orchestration.process_identity import PROCESS_TAG, this_process
from backfill_platform.orchestration.range_concurrency import repair_job, undo_job_name
from backfill_platform.orchestration.recovery import NEVER_RETRIED, fail_dead_runs
from backfill_platform.orchestration.run_request import RunRequest, plan_config
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.undo import UndoScope
from backfill_platform.settings import Settings

_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def prepare_instance(settings: Settings) -> None:
    """Make the Dagster home of the settings, with the project's dagster.yaml or the one that comes with the package."""
    settings.make_home()
    settings.dagster_home.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(settings.project_file("dagster.yaml"), settings.dagster_home / "dagster.yaml")


@contextmanager
def dagster_instance(settings: Settings) -> Iterator[dg.DagsterInstance]:
    """The instance of the settings: the one that `backfill up` serves."""
    prepare_instance(settings)
    with _dagster_home(str(settings.dagster_home)) as home, dg.DagsterInstance.from_config(home) as instance:
        yield instance


@contextmanager
def _dagster_home(home: str) -> Iterator[str]:
    """dagster.yaml names its storage by the variable that Dagster's own commands require."""
    before = os.environ.get("DAGSTER_HOME")
    os.environ["DAGSTER_HOME"] = home
    try:
        yield home
    finally:
        os.environ.pop("DAGSTER_HOME")
        if before is not None:
            os.environ["DAGSTER_HOME"] = before


def run_in_process(
    definitions: dg.Definitions, instance: dg.DagsterInstance, *, pipeline: Pipeline, plan: Plan, request: RunRequest
) -> dg.ExecuteInProcessResult:
    """Walk the plan in one run in this process; the UI shows it like any other.

    Hours that fail do not raise: the result says so, and the listener of the definitions was told each outcome.
    """
    fail_dead_runs(instance)
    return definitions.resolve_job_def(repair_job(pipeline.name)).execute_in_process(
        instance=instance,
        asset_selection=[dg.AssetKey(list(path)) for path in plan.assets],
        tags={**range_tags(plan.hours), **request.to_tags(), **NEVER_RETRIED, PROCESS_TAG: this_process()},
        run_config={**_QUIET, **plan_config(pipeline, plan)},
        raise_on_error=False,
    )


def run_undo(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    *,
    pipeline: Pipeline,
    scope: UndoScope,
    requester: str,
) -> dg.ExecuteInProcessResult:
    """Undo a repair in one run in this process; the result's output says what was taken back."""
    fail_dead_runs(instance)
    hours = scope.hours
    bounds = {} if hours is None else {"start": format_hour(hours.start), "end": format_hour(hours.end)}
    whose = {} if scope.tenant is None else {"tenant": scope.tenant}
    config = {"repair": scope.repair_id, **bounds, **whose}
    request = RunRequest(RepairRequest(requester=requester))
    return definitions.resolve_job_def(undo_job_name(pipeline.name)).execute_in_process(
        instance=instance,
        tags={**request.to_tags(), PROCESS_TAG: this_process()},
        run_config={**_QUIET, "ops": {f"{pipeline.name}_undo_op": {"config": config}}},
        raise_on_error=False,
    )
