"""The sensor of runs that ended without telling anybody: their process was killed, so the run could not."""

import dagster as dg

from backfill_platform.domain.request import RepairRequest
from backfill_platform.orchestration.dagster_overrides.private_names import Job
from backfill_platform.orchestration.notifications import Notifier, tell_of_dead_run
from backfill_platform.orchestration.partitions import hours_of_tags
from backfill_platform.orchestration.run_request import NOTIFIED_TAG, REASON_TAG, REPAIR_TAG, REQUESTER_TAG
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.reports.repair_report import RunSubject


def dead_run_sensor(pipeline: Pipeline, jobs: list[Job], notifier: Notifier) -> dg.SensorDefinition:
    """The sensor `<pipeline>_dead_runs`: tells the recipients of failed runs that they have not heard of."""

    @dg.run_failure_sensor(
        name=f"{pipeline.name}_dead_runs",
        monitored_jobs=jobs,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Tells the recipients of {pipeline.name} of runs whose process was killed before it could tell them.",
    )
    def watch_dead_runs(context: dg.RunFailureSensorContext) -> dg.SkipReason | None:
        tags = context.dagster_run.tags
        if NOTIFIED_TAG in tags:
            return dg.SkipReason("the run has told its recipients itself")
        subject = RunSubject(
            pipeline,
            hours_of_tags(tags),
            tuple((key.path[0], key.path[1]) for key in context.dagster_run.asset_selection or ()),
            tags.get(REPAIR_TAG, ""),
            RepairRequest(reason=tags.get(REASON_TAG, ""), requester=tags.get(REQUESTER_TAG, "")),
            run_url=notifier.run_url(context.dagster_run.run_id),
        )
        tell_of_dead_run(context.log, notifier, subject, context.failure_event.message or "the process of the run ended")
        return None

    return watch_dead_runs
