"""Dagster's own launcher of runs in processes, which also knows whether they live.

Without that a run whose process is gone together with its code server stays STARTED for ever, and with it its backfill.
"""

from typing import Any, cast

from dagster import DagsterRun, DefaultRunLauncher
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.launcher.base import CheckRunHealthResult, LaunchRunContext, WorkerStatus
from dagster._grpc.types import CanCancelExecutionRequest, CanCancelExecutionResult
from dagster._serdes import deserialize_value

from backfill_platform.orchestration.process_identity import HOME_TAG, PROCESS_TAG, home_id, is_alive

_SECONDS = 10


class CheckedRunLauncher(DefaultRunLauncher):
    """Asks the code server that started a run; for runs of a command line, looks for their process."""

    def launch_run(self, context: LaunchRunContext) -> None:
        """As Dagster, with the home in a tag of the run: other hosts with the same database leave it alone."""
        self._instance.add_run_tags(context.dagster_run.run_id, {HOME_TAG: home_id(self._instance)})
        super().launch_run(context)

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Lets Dagster's run monitoring ask."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """RUNNING, or NOT_FOUND with the reason; run monitoring then reports the run failed."""
        if PROCESS_TAG in run.tags:
            return _running() if is_alive(run) else _gone("its process is gone")
        home = run.tags.get(HOME_TAG)
        if home and home != home_id(self._instance):
            return CheckRunHealthResult(WorkerStatus.RUNNING, "the daemon of another home has launched it, and knows")
        client = cast(Any, self)._get_grpc_client_for_termination(run.run_id)
        if client is None:
            return _gone("it names no code server")
        try:
            answer = client.can_cancel_execution(CanCancelExecutionRequest(run_id=run.run_id), timeout=_SECONDS)
        except DagsterUserCodeUnreachableError as error:
            # A busy machine is no proof of death; a server that is gone refuses at once.
            if "UNAVAILABLE" in str(error.__cause__):
                return _gone("its code server is gone")
            return CheckRunHealthResult(WorkerStatus.RUNNING, f"its code server does not answer: {error.__cause__}")
        alive = deserialize_value(answer, CanCancelExecutionResult).can_cancel
        return _running() if alive else _gone("its code server has no process for it")


def _running() -> CheckRunHealthResult:
    return CheckRunHealthResult(WorkerStatus.RUNNING)


def _gone(why: str) -> CheckRunHealthResult:
    return CheckRunHealthResult(WorkerStatus.NOT_FOUND, why)
