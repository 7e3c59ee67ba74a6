"""The job `history_pruning` and its schedule: once a day, detail of old runs is removed from Dagster's history."""

from datetime import timedelta

import dagster as dg
from pydantic import Field

from backfill_platform.errors import BackfillError
from backfill_platform.orchestration.dagster_overrides.history_pruning import prune_history
from backfill_platform.orchestration.job_services import now
from backfill_platform.orchestration.recovery import NEVER_RETRIED
from backfill_platform.orchestration.turns import AT_THE_END

HISTORY_JOB = "history_pruning"
_CRON = "47 3 * * *"


class PruningConfig(dg.Config):
    """How Dagster's history is pruned."""

    keep_days: int | None = Field(
        None, ge=0, description="days for which the detail of runs is kept after they end; without, BACKFILL_HISTORY_DAYS"
    )


def history_job(days: int) -> dg.JobDefinition:
    """The job that prunes the history of the whole instance; `days` are those of the settings."""

    @dg.op(description="Removes the logs of old runs, and what newer events have replaced. What an hour shows stays.")
    def prune(context: dg.OpExecutionContext, config: PruningConfig) -> None:
        until = now() - timedelta(days=days if config.keep_days is None else config.keep_days)
        try:
            pruned = prune_history(context.instance, until)
        except BackfillError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        context.log.info(
            f"runs that ended before {until:%Y-%m-%d %H:%M}: the logs of {pruned.runs} runs and {pruned.events:,} events "
            f"removed, {pruned.bytes:,} bytes given back"
        )

    @dg.job(
        name=HISTORY_JOB, tags={**NEVER_RETRIED, **AT_THE_END}, description="Remove detail of old runs from Dagster's history."
    )
    def pruning() -> None:
        prune()

    return pruning


def history_schedule(job: dg.JobDefinition) -> dg.ScheduleDefinition:
    """Prunes the history every night, UTC."""
    return dg.ScheduleDefinition(
        name=HISTORY_JOB,
        job=job,
        cron_schedule=_CRON,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description="Remove detail of old runs from Dagster's history.",
    )
