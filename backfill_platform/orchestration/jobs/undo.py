"""The job that undoes a repair, for the launchpad and the command line."""

from collections.abc import Sequence
from contextlib import ExitStack, closing

import dagster as dg
from pydantic import Field

from backfill_platform.adapters.connections import Connections
from backfill_platform.detection.survey import survey
from backfill_platform.domain.hours import HourRange
from backfill_platform.errors import BackfillError, UsageError
from backfill_platform.orchestration.damage_reporting import report_undone
from backfill_platform.orchestration.job_services import begin_job
from backfill_platform.orchestration.notifications import SILENT, Notifier, notifying
from backfill_platform.orchestration.range_concurrency import undo_job_name, wait_for_hours
from backfill_platform.orchestration.recovery import NEVER_RETRIED
from backfill_platform.orchestration.run_request import RunRequest, readable_request
from backfill_platform.orchestration.turns import AT_THE_HEAD
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.job import RepairJob
from backfill_platform.repair.undo import UndoneTable, UndoScope, changed_hours, describe, undo_repair
from backfill_platform.reports.repair_report import RunSubject


class UndoConfig(dg.Config):
    """Which repair to undo, and which of its hours."""

    repair: str = Field(description="name of the repair, as the ledger and every hour's metadata have it")
    start: str = Field("", description="first hour to undo, UTC, such as 1998-04-30T22; with `end`, else all hours")
    end: str = Field("", description="end of the hours to undo, not included")
    tenant: str | None = Field(None, description="undo the rows of this tenant only; tables without a tenant column stay")

    def hours(self) -> HourRange | None:
        """The chosen hours, None for all. Raises UsageError when only one end is given."""
        if bool(self.start) != bool(self.end):
            raise UsageError("give both ends of the hours to undo, or none of them")
        return HourRange.parse(self.start, self.end) if self.start else None


def undo_job(pipeline: Pipeline, notifier: Notifier = SILENT) -> dg.JobDefinition:
    """A job of one op that waits for all repairs of the pipeline that started before it."""

    @dg.op(name=f"{pipeline.name}_undo_op")
    def take_back(
        context: dg.OpExecutionContext, config: UndoConfig, connections: dg.ResourceParam[Connections]
    ) -> dict[str, object]:
        try:
            with ExitStack() as stack:
                subject = RunSubject(pipeline, request=readable_request(context.run.tags), undoes=config.repair)
                told = stack.enter_context(notifying(context, notifier, subject))
                scope = UndoScope(config.repair, config.hours(), config.tenant)
                asked = RunRequest.from_tags(context.run.tags).repair
                reason = f"undo of {config.repair}" + (f": {asked.reason}" if asked.reason else "")
                request = asked.model_copy(update={"reason": reason})
                wait_for_hours(context, pipeline)
                warehouse = stack.enter_context(closing(connections.warehouse()))
                job = begin_job(context, pipeline, request)
                report = told.begin(job)
                tables = []
                for undone in undo_repair(job, scope, warehouse):
                    tables.append(undone)
                    report.add_undone(undone)
                _report(context, job, config.repair, tables, connections)
        except BackfillError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        for undone in tables:
            context.log.info(describe(undone))
        if failed := [undone for undone in tables if undone.failed]:
            raise dg.Failure("; ".join(map(describe, failed)), allow_retries=False)
        return {"repair": job.repair_id, "tables": [_plain(undone) for undone in tables]}

    @dg.job(
        name=undo_job_name(pipeline.name),
        description=f"Take back what a repair of {pipeline.name} published.",
        tags={**NEVER_RETRIED, **AT_THE_HEAD},
    )
    def job() -> None:
        take_back()

    return job


def _report(
    context: dg.OpExecutionContext, job: RepairJob, undone: str, tables: Sequence[UndoneTable], connections: Connections
) -> None:
    """Tell Dagster which hours have changed. The undo is done, whatever becomes of this."""
    done = {one.table.rpartition("/")[2]: changed_hours(one) for one in tables}
    hours = [hour for changed in done.values() for hour in changed]
    if not hours:
        return
    try:
        with closing(connections.warehouse()) as warehouse:
            covered = HourRange.covering(hours)
            found = survey(
                job.pipeline,
                covered,
                connections.lake(),
                warehouse,
                connections.loading,
                now=job.clock(),
                connect=connections.named,
            )
        report_undone(context, found, undone, job.repair_id, done)
    except BackfillError as error:
        context.log.warning(f"undone, but the hours cannot be compared with the lake, and so not be shown as they are: {error}")


def _plain(undone: UndoneTable) -> dict[str, object]:
    found = undone.undoable
    return {
        "table": undone.table,
        "rows": sum(found.rows.values()),
        "hours": [hour.isoformat() for hour in sorted(found.rows)],
        "conflicts": found.conflicts,
        "shown": [{"hour": conflict.hour.isoformat(), "key": conflict.key} for conflict in found.shown],
    }
