"""Runs of one pipeline take turns at the hours they share, and work side by side on others.

Dagster's pools and tag limits know names, not ranges: with them either everything of a pipeline waits, or nothing does. So each
run waits at its start for the runs that started before it and share hours with it. Dagster notes that a run has started before
the run does anything, so of two runs one always comes first, and nobody waits in a circle. Runs that die are reported failed
(`run_launcher`, `recovery`), and nobody waits for them any more. Should two runs on machines whose clocks differ both take
themselves for the first, the leases of the warehouse and the lake's commits still keep them from harming each other.
"""

import time
from collections.abc import Collection
from dataclasses import dataclass

import dagster as dg

from backfill_platform.domain.hours import HourRange
from backfill_platform.errors import HourLeased
from backfill_platform.orchestration.partitions import hours_of_tags
from backfill_platform.orchestration.process_identity import PROCESS_TAG, is_alive
from backfill_platform.orchestration.recovery import UNFINISHED
from backfill_platform.pipelines.spec import Pipeline

_SECONDS = 1
_TICK_TAG = "dagster/tick"
# Not those that are queued: were they behind runs that wait for them, nobody would go on.
_ABOUT_TO_START = (dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING)
_LAUNCHED = (dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)


def repair_job(pipeline: str) -> str:
    """The name of the job that holds all assets of a pipeline."""
    return f"{pipeline}_repair"


def gap_evaluation_job_name(pipeline: str) -> str:
    """The name of the job that evaluates `no_gap` for a range of hours."""
    return f"{pipeline}_gap_evaluation"


def undo_job_name(pipeline: str) -> str:
    """The name of the job that undoes repairs of a pipeline."""
    return f"{pipeline}_undo"


def wait_for_hours(context: dg.OpExecutionContext | dg.AssetExecutionContext, pipeline: Pipeline) -> None:
    """Return when no run that started earlier is at work on an hour of this one. An undo shares all hours of its pipeline.

    A run that the gap sensor asked for waits for the look of the same tick, too: else it would mend what was to be shown.
    """
    told: set[str] = set()
    while before := _before(context, pipeline):
        for run in before:
            # Of one that is about to start, nobody knows yet which of the two waits.
            if run.run_id not in told and run.status not in _ABOUT_TO_START:
                context.log.info(f"waiting for run {run.run_id[:8]}, which works on {_hours(run) or 'all hours'}")
                told.add(run.run_id)
        time.sleep(_SECONDS)


def refuse_runs_at_work(instance: dg.DagsterInstance, pipeline: Pipeline) -> None:
    """Raise HourLeased while a run is at work on a table of the pipeline."""
    assets = {dg.AssetKey(list(path)) for node in pipeline.nodes for path in node.assets}
    for run in instance.get_runs(dg.RunsFilter(statuses=UNFINISHED)):
        if (PROCESS_TAG not in run.tags or is_alive(run)) and _of_pipeline(run, pipeline.name, assets):
            raise HourLeased(
                f"run {run.run_id[:8]} is at work on {_hours(run) or 'all hours'} of {pipeline.name}; wait for it or stop it, "
                "then migrate again"
            )


@dataclass(frozen=True)
class _Turn:
    """When a run started, and its number for two that did so at the same moment."""

    started: float
    number: int

    def comes_after(self, other: "_Turn") -> bool:
        return (self.started, self.number) > (other.started, other.number)


def _before(context: dg.OpExecutionContext | dg.AssetExecutionContext, pipeline: Pipeline) -> list[dg.DagsterRun]:
    assets = {dg.AssetKey(list(path)) for node in pipeline.nodes for path in node.assets}
    # Read first: a run that is seen queued below then starts after this one, for both of them.
    mine = context.instance.get_run_record_by_id(context.run.run_id)
    if mine is None or mine.start_time is None:
        return []
    turn = _Turn(mine.start_time, mine.storage_id)
    found = []
    for record in context.instance.get_run_records(dg.RunsFilter(statuses=UNFINISHED)):
        run = record.dagster_run
        if _shows(run, mine.dagster_run, pipeline.name):
            found.append(run)
        if run.run_id == context.run.run_id or not _shares(run, mine.dagster_run, pipeline.name, assets):
            continue
        if PROCESS_TAG in run.tags and not is_alive(run):
            continue
        if record.start_time is not None:
            if turn.comes_after(_Turn(record.start_time, record.storage_id)):
                found.append(run)
        elif run.status is dg.DagsterRunStatus.STARTING or PROCESS_TAG in run.tags:
            # About to start: whether before or after this one is known in a moment.
            found.append(run)
    return found


def _shows(run: dg.DagsterRun, mine: dg.DagsterRun, pipeline: str) -> bool:
    tick = mine.tags.get(_TICK_TAG)
    same = tick is not None and run.tags.get(_TICK_TAG) == tick
    return same and run.job_name == gap_evaluation_job_name(pipeline) and run.status in _LAUNCHED


def _shares(run: dg.DagsterRun, mine: dg.DagsterRun, pipeline: str, assets: Collection[dg.AssetKey]) -> bool:
    if not _of_pipeline(run, pipeline, assets):
        return False
    theirs, ours = _hours(run), _hours(mine)
    return theirs is None or ours is None or (theirs.start < ours.end and ours.start < theirs.end)


def _of_pipeline(run: dg.DagsterRun, pipeline: str, assets: Collection[dg.AssetKey]) -> bool:
    if run.asset_selection:
        return not run.asset_selection.isdisjoint(assets)
    return run.job_name in (repair_job(pipeline), undo_job_name(pipeline))


def _hours(run: dg.DagsterRun) -> HourRange | None:
    return hours_of_tags(run.tags)
