"""Runs whose process is gone: told from those that live, and reported failed so that Dagster goes on with them.

Dagster's retry of crashed runs does the rest: the failed run is launched again, over the same hours, and its backfill waits for
that. Hours that were done are done again, which is cheap where it counts: publishing an equal hour writes nothing.
"""

import dagster as dg

from backfill_platform.orchestration.dagster_overrides.private_names import let_the_daemon_see_failures
from backfill_platform.orchestration.dagster_overrides.shared_storage import is_shared
from backfill_platform.orchestration.process_identity import HOME_TAG, PROCESS_TAG, home_id, is_alive

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

    Runs of a command line carry their process in a tag, those of a daemon its home. `workers_too` takes all unfinished runs of
    this home's daemon for dead as well, which is true while it is not running; one that is started afterwards launches them
    again. A run that names no home is of this one, unless other hosts share the storage.
    """
    let_the_daemon_see_failures(instance)
    dead, home = [], home_id(instance)
    nobody = "" if is_shared(instance) else home
    for run in instance.get_runs(dg.RunsFilter(statuses=UNFINISHED)):
        ours = workers_too and run.tags.get(HOME_TAG, nobody) == home
        if is_alive(run) if PROCESS_TAG in run.tags else not ours:
            continue
        if run.status is dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, "The process of this run was killed after it was asked to stop.")
        else:
            instance.report_run_failed(run, "The process of this run was killed.")
        dead.append(run.run_id)
    return dead
