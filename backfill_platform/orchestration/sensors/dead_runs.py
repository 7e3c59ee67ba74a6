"""The sensor of runs that ended without telling anybody: their process was killed, so the run could not."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from backfill_platform.orchestration.dagster_overrides.damaged_hours import DAMAGE_TAG
from backfill_platform.orchestration.notifications import Notifier, tell_of_dead_run
from backfill_platform.orchestration.partitions import hours_of_tags
from backfill_platform.orchestration.range_concurrency import repair_job, undo_job_name
from backfill_platform.orchestration.run_request import NOTIFIED_TAG, REPAIR_TAG, readable_request
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.reports.repair_report import RunSubject

_WILL_RETRY = "dagster/will_retry"


def dead_run_sensor(pipeline: Pipeline, notifier: Notifier) -> dg.SensorDefinition:
    """The sensor `<pipeline>_dead_runs`: tells the recipients of failed runs that they have not heard of."""

    @dg.run_failure_sensor(
        name=f"{pipeline.name}_dead_runs",
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Tells the recipients of {pipeline.name} of runs whose process was killed before it could tell them.",
    )
    def watch_dead_runs(context: dg.RunFailureSensorContext) -> None:
        run = context.dagster_run
        if DAMAGE_TAG in run.tags:
            return  # nothing has run: it shows damaged hours
        if not _is_of(run, pipeline) or run.tags.get(NOTIFIED_TAG) == run.run_id or run.tags.get(_WILL_RETRY) == "true":
            return  # of one that is launched again, the last try is told
        subject = RunSubject(
            pipeline,
            hours_of_tags(run.tags),
            tuple((key.path[0], key.path[1]) for key in run.asset_selection or ()),
            run.tags.get(REPAIR_TAG, ""),
            readable_request(run.tags),
            undoes=_undone_repair(run, pipeline),
            run_url=notifier.run_url(run.run_id),
        )
        tell_of_dead_run(context.log, notifier, subject, context.failure_event.message or "the process of the run ended")

    return watch_dead_runs


def _is_of(run: dg.DagsterRun, pipeline: Pipeline) -> bool:
    """Whether the run repairs or undoes something of the pipeline; runs of the web page have a job of Dagster's own."""
    paths = {asset for node in pipeline.nodes for asset in node.assets}
    selected = {tuple(key.path) for key in run.asset_selection or ()}
    return run.job_name in (repair_job(pipeline.name), undo_job_name(pipeline.name)) or bool(selected & paths)


def _undone_repair(run: dg.DagsterRun, pipeline: Pipeline) -> str:
    if run.job_name != undo_job_name(pipeline.name):
        return ""
    found: Any = run.run_config
    for name in ("ops", f"{undo_job_name(pipeline.name)}_op", "config", "repair"):
        found = found.get(name, {}) if isinstance(found, Mapping) else {}
    return found if isinstance(found, str) else "a repair"
