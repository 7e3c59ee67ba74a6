"""Runs whose process is gone: told from those that live, and reported failed so that Dagster goes on with them.

Dagster's retry of crashed runs does the rest: the failed run is launched again, over the same hours, and its backfill waits for
that. Hours that were done are done again, which is cheap where it counts: publishing an equal hour writes nothing.
"""

import os
import socket
from pathlib import Path

import dagster as dg
from dagster._daemon.auto_run_reexecution.event_log_consumer import DAGSTER_EVENT_TYPES, _create_cursor_key

from backfill_platform.orchestration.request import PROCESS_TAG

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
    _remember_failures(instance)
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


def this_process() -> str:
    """Names this process on this machine, across restarts of either."""
    return f"{socket.gethostname()}:{os.getpid()}:{_started(os.getpid())}"


def is_alive(run: dg.DagsterRun) -> bool:
    """Whether the process of a command line's run lives; taken for granted on another machine."""
    host, pid, started = run.tags[PROCESS_TAG].rsplit(":", 2)
    return host != socket.gethostname() or _started(int(pid)) == started


def _started(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty where there is none, or no /proc to ask."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""


def _remember_failures(instance: dg.DagsterInstance) -> None:
    """Let a daemon that has never run yet see the failures from here on: by itself it ignores what is older than its start."""
    keys = {_create_cursor_key(kind) for kind in DAGSTER_EVENT_TYPES}
    missing = keys - instance.daemon_cursor_storage.get_cursor_values(keys).keys()
    if missing:
        newest = instance.event_log_storage.get_maximum_record_id() or 0
        instance.daemon_cursor_storage.set_cursor_values(dict.fromkeys(missing, str(newest)))
