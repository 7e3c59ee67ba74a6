"""Which process a run of the command line belongs to, and which home a daemon's: tags of the run, and who lives.

Several hosts may share Dagster's database. Each judges the runs of its own home only.
"""

import os
import socket
import uuid
from contextlib import suppress
from pathlib import Path

import dagster as dg

PROCESS_TAG = "backfill/process"  # written by us, never by people
HOME_TAG = "backfill/home"  # of the daemon that has launched the run


def this_process() -> str:
    """Names this process on this machine, across restarts of either."""
    return f"{socket.gethostname()}:{os.getpid()}:{_started(os.getpid())}"


def is_alive(run: dg.DagsterRun) -> bool:
    """Whether the process of a command line's run lives; taken for granted on another machine."""
    host, pid, started = run.tags[PROCESS_TAG].rsplit(":", 2)
    return host != socket.gethostname() or _started(int(pid)) == started


def home_id(instance: dg.DagsterInstance) -> str:
    """Names the home of an instance, whatever its host is called: a container that starts again has another name."""
    file = Path(instance.root_directory) / "home-id"
    if not file.exists():
        mine = uuid.uuid4().hex
        new = file.with_name(f"{file.name}-{mine}")
        new.write_text(mine)
        # Of several processes that start at the same time one is first, and nobody reads half a name.
        with suppress(FileExistsError):
            os.link(new, file)
        new.unlink()
    return file.read_text()


def _started(pid: int) -> str:
    """When a process started, in the kernel's ticks; empty where there is none, or no /proc to ask."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]
    except OSError:
        return ""
