"""Runs whose process is gone: told from those that live, and reported failed so that Dagster goes on with them.

Dagster's retry of crashed runs does the rest: the failed run is launched again, over the same hours, and its backfill waits for
that. Hours that were done are done again, which is cheap where it counts: publishing an equal hour writes nothing.
"""

import dagster as dg

from backfill_platform.orchestration.dagster_overrides.private_names import let_the_daemon_see_failures
from backfill_platform.orchestration.process_identity import PROCESS_TAG, is_alive

UNFINISHED = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]
# Says to Dagster how often it may launch a crashed run again; for runs in which a person waits for the end.
NEVER_RETRIED = {"dagster/max_retries": "0"}


def fail_dead_runs(instance: dg.DagsterInstance, *, workers_too: bool = False) -> list[str]:
    """Report the runs failed whose process was killed, or canceled where that was asked for. Returns their ids.

    Runs of a command line carry their process in a tag. `workers_too` takes all other unfinished runs for dead as well, which
    is true while no daemon of the instance is running; a daemon that is started afterwards launches them again.
    """
    let_the_daemon_see_failures(instance)
    dead = []
    for run in instance.get_runs(dg.RunsFilter(statuses=UNFINISHED)):
        if is_alive(run) if PROCESS_TAG in run.tags else not workers_too:
            continue
        if run.status is dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, "The process of this run was killed after it was asked to stop.")
        else:
            instance.report_run_failed(run, "The process of this run was killed.")
        dead.append(run.run_id)
    return dead
