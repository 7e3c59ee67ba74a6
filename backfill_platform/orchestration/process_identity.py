"""Which process a run of the command line belongs to, written into a tag of the run, and whether it lives."""

import os
import socket
from pathlib import Path

import dagster as dg

PROCESS_TAG = "backfill/process"  # written by us, never by people


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
