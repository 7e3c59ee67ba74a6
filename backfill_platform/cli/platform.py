"""Repairs in this process, as the command line and the demo run them: through Dagster, so that the UI shows them too."""

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.connections import Connections
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.spark.session import open_session, use_this_interpreter
from backfill_platform.adapters.spark.stopping import stoppable
from backfill_platform.definitions import pipeline_definitions
from backfill_platform.devstack.embedded_clickhouse.server import connect_or_start
from backfill_platform.devstack.stack import Services, running_services
from backfill_platform.domain.plan import Plan
from backfill_platform.domain.request import RepairRequest
from backfill_platform.errors import BackfillError, PermanentError
from backfill_platform.orchestration.dagster_overrides.history_pruning import Pruned, prune_history
from backfill_platform.orchestration.in_process import dagster_instance, run_in_process, run_undo
from backfill_platform.orchestration.job_services import begin_migration, now
from backfill_platform.orchestration.jobs.maintenance import keeping, maintenance_asset_key, maintenance_metadata
from backfill_platform.orchestration.range_concurrency import refuse_runs_at_work
from backfill_platform.orchestration.recovery import fail_dead_runs
from backfill_platform.orchestration.resources import ignore
from backfill_platform.orchestration.run_request import REPAIR_TAG, RunRequest
from backfill_platform.pipelines.registry import load_pipelines
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.maintain import MaintainedTable, maintain
from backfill_platform.repair.migrate import Migration, migrate, plan_migration
from backfill_platform.repair.outcomes import Event, HourOutcome, StepFinished
from backfill_platform.repair.undo import UndoScope
from backfill_platform.reports.repair_report import RepairReport, RunSubject
from backfill_platform.settings import Settings, use_spark_token

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class RunResult:
    """How a run ended: its report, the outcome of every hour of every asset, and Dagster's error where it failed as a whole.

    `interrupted` is a run that somebody stopped: Dagster makes a failed run of Ctrl-C, and nothing may follow it.
    """

    success: bool
    run_id: str
    plan: Plan
    report: RepairReport
    outcomes: tuple[HourOutcome, ...]
    steps: tuple[StepFinished, ...]
    error: str = ""
    interrupted: bool = False

    @property
    def failed(self) -> tuple[HourOutcome, ...]:
        """The hours that were not materialized, though they were due."""
        return tuple(outcome for outcome in self.outcomes if outcome.failed)


@dataclass
class Platform:
    """The lake, the warehouse and Dagster of the settings, open. `listen` is told what happens while a run goes on."""

    settings: Settings
    pipelines: dict[str, Pipeline]
    instance: dg.DagsterInstance
    lake: Lake
    warehouse: Warehouse
    listen: Callable[[Event], None] = field(default=lambda event: None)

    def run(self, pipeline: Pipeline, plan: Plan, request: RepairRequest) -> RunResult:
        """Walk the plan in one Dagster run."""
        events: list[Event] = []
        report = RepairReport(RunSubject(pipeline, plan.hours, plan.assets, request=request), plan)

        def listener(event: Event) -> None:
            events.append(event)
            report.take(event)
            self.listen(event)

        result = run_in_process(
            self._definitions(pipeline, listener), self.instance, pipeline=pipeline, plan=plan, request=RunRequest(request)
        )
        interrupted = _interrupted(result)
        run = self.instance.get_run_by_id(result.run_id)
        report.subject = replace(report.subject, repair_id=run.tags.get(REPAIR_TAG, "") if run else "")
        outcomes = tuple(event for event in events if isinstance(event, HourOutcome))
        error = "interrupted; what was published stays, and running it again does the rest" if interrupted else _error(result)
        report.error = "" if any(outcome.failed for outcome in outcomes) else error
        return RunResult(
            result.success,
            result.run_id,
            plan,
            report,
            outcomes,
            tuple(event for event in events if isinstance(event, StepFinished)),
            error,
            interrupted,
        )

    def undo(self, pipeline: Pipeline, scope: UndoScope) -> dict[str, Any]:
        """Undo a repair, in one Dagster run; what was taken back, table by table. Raises PermanentError when it failed."""
        result = run_undo(
            self._definitions(pipeline, ignore), self.instance, pipeline=pipeline, scope=scope, requester="command line"
        )
        if _interrupted(result):
            raise PermanentError(f"interrupted; `backfill ledger {pipeline.name}` tells what was taken back before")
        if not result.success:
            raise PermanentError(_error(result))
        done: dict[str, Any] = result.output_for_node(f"{pipeline.name}_undo_op")
        return done

    def plan_migration(self, pipeline: Pipeline, drops: Collection[str]) -> Migration:
        """What would make the tables of the pipeline as they are declared. Raises UsageError for drops that are declared."""
        return plan_migration(pipeline, self.lake, self.warehouse, now(), drops)

    def migrate(self, pipeline: Pipeline, drops: Collection[str]) -> Migration:
        """Make the tables of the pipeline as they are declared, and note it in the ledger; what was done.

        Raises HourLeased while a run of the pipeline is at work, PreconditionError when something is refused.
        """
        refuse_runs_at_work(self.instance, pipeline)
        return migrate(begin_migration(pipeline, requester="command line"), self.lake, self.warehouse, drops)

    def maintain(self, pipeline: Pipeline, *, rehearsal: bool, keep_days: int | None) -> list[MaintainedTable]:
        """Remove what the lake tables of the pipeline no longer need, and note it in Dagster; a rehearsal does neither."""
        keep = keeping(Connections(self.settings), self.instance, rehearsal=rehearsal, keep_days=keep_days)
        done = list(maintain(pipeline, self.lake, self.warehouse, keep))
        if not rehearsal:
            noted = dg.AssetMaterialization(maintenance_asset_key(pipeline.name), metadata=maintenance_metadata(done))
            self.instance.report_runless_asset_event(noted)
        return done

    def prune_history(self) -> Pruned:
        """Remove detail of runs that are older than the settings say from Dagster's history."""
        return prune_history(self.instance, now() - timedelta(days=self.settings.history_days))

    def _definitions(self, pipeline: Pipeline, listener: Callable[[Event], None]) -> dg.Definitions:
        return pipeline_definitions(self.settings, [pipeline], overrides={"listener": listener})


@contextmanager
def open_platform(settings: Settings) -> Iterator[Platform]:
    """Everything that `backfill up` has started if it is running, else an embedded warehouse for the while of the block."""
    services = running_services(settings)
    settings = _with_spark(settings, services)
    pipelines = load_pipelines(settings.pipelines)
    with open_warehouse(settings) as warehouse, dagster_instance(settings) as instance:
        fail_dead_runs(instance, workers_too=services is None)
        yield Platform(settings, pipelines, instance, Connections(settings).lake(), warehouse)


@contextmanager
def open_warehouse(settings: Settings) -> Iterator[Warehouse]:
    """A client of the warehouse of the settings; an embedded one is started for the block unless it is running."""
    settings.make_home()
    embedded = nullcontext() if settings.clickhouse_url is not None else connect_or_start(settings.warehouse_dir)
    with embedded, closing(Connections(settings).warehouse()) as warehouse:
        yield warehouse


@contextmanager
def open_spark(settings: Settings) -> Iterator["SparkSession"]:
    """A Spark session: on the server of `backfill up` if that is running, else in this process; ended with the block."""
    settings = _with_spark(settings, running_services(settings))
    use_this_interpreter()
    options = Connections(settings).spark_options()
    with stoppable(lambda: open_session(options, settings.spark_log)) as opened:
        session = opened()
        try:
            yield session
        finally:
            session.stop()


def _with_spark(settings: Settings, services: Services | None) -> Settings:
    """The settings with the Spark server of `backfill up`, if that is running and the settings name no other."""
    if services is None or settings.spark_remote is not None:
        return settings
    if services.spark_token:
        use_spark_token(services.spark_token)
    return settings.model_copy(update={"spark_remote": services.spark_remote})


def _step_errors(result: dg.ExecuteInProcessResult) -> list[Any]:
    failures = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    return [failure.error for failure in failures if failure.error]


def _interrupted(result: dg.ExecuteInProcessResult) -> bool:
    return any(error.cls_name == dg.DagsterExecutionInterruptedError.__name__ for error in _step_errors(result))


def _error(result: dg.ExecuteInProcessResult) -> str:
    for error in _step_errors(result):
        message = (error.cause or error).message.strip()
        # Dagster puts the class before the words; ours say all by themselves.
        return re.sub(rf"\A{re.escape(BackfillError.__module__)}\.\w+: ", "", message)
    return "" if result.success else "the run failed before its first step; see its page in Dagster"
