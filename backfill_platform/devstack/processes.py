"""The child processes of `backfill up`: starting, awaiting and stopping them, and what keeps them from outliving it.

Each child has a log file and is the leader of a process group that contains whatever it starts: code servers, runs. A guard
process stops these groups when this process is killed.
"""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.error import URLError

from backfill_platform.errors import TransientError

GUARD_SECONDS = 10  # how long the guard waits between asking a group to stop and killing it
_START_SECONDS = 120
_STOP_SECONDS = 20

# A separate program on the standard library alone: it must outlive this process and start at once. It reads the ids of process
# groups until its input ends, which is when this process ends, asks them to stop, and then kills them. It keeps the lock of the
# home until it is done, so that the next `backfill up` waits for it.
_GUARD = f"""
import os, signal, sys, time

def send(groups, number):
    left = []
    for group in groups:
        try:
            os.killpg(group, number)
            left.append(group)
        except OSError:
            pass
    return left

left = send([int(line) for line in sys.stdin], signal.SIGTERM)
deadline = time.monotonic() + {GUARD_SECONDS}
while left and time.monotonic() < deadline:
    time.sleep(0.1)
    left = send(left, 0)
send(left, signal.SIGKILL)
"""


@dataclass
class Child:
    """A child process that leads its own process group, with its log file and the command that started it."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    command: tuple[str, ...] = ()

    def stop(self) -> None:
        """Ask the whole group to stop, wait, then kill it: a run that is asked has time to record that it was interrupted."""
        deadline = time.monotonic() + _STOP_SECONDS
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
            while time.monotonic() < deadline:
                if self.process.poll() is not None:
                    # As process 1 of a container we inherit its orphans: unreaped, they would keep the group alive.
                    with suppress(ChildProcessError):
                        os.waitpid(-self.process.pid, os.WNOHANG)
                os.killpg(self.process.pid, 0)
                time.sleep(0.05)
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def check(self) -> None:
        """Raise TransientError with the end of the log when the process has ended."""
        if self.process.poll() is not None:
            raise TransientError(self._problem())

    def wait_until(self, is_ready: Callable[[], bool], stop_requested: Sequence[int]) -> None:
        """Wait until the child is ready or a stop is requested. Raises TransientError when it ends, or takes too long."""
        deadline = time.monotonic() + _START_SECONDS
        while not stop_requested and not is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise TransientError(self._problem())
            time.sleep(0.2)

    def _problem(self) -> str:
        state = "does not answer" if self.process.poll() is None else f"ended with code {self.process.returncode}"
        last = self.log.read_text(errors="replace").strip().splitlines()[-5:]
        return f"{self.name} {state}; the end of {self.log}:\n" + "\n".join(last)


def start_child(
    name: str, command: list[str], *, log: Path, folder: Path, environment: dict[str, str], stdin: int = subprocess.DEVNULL
) -> Child:
    """Start a command in `folder`, as leader of its own process group; its output is appended to `log`."""
    log.parent.mkdir(exist_ok=True)
    with open(log, "ab") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=stdin,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Child(name, process, log, tuple(command))


def stop_children(children: list[Child]) -> None:
    """Stop the children, the last one first."""
    for child in reversed(children):
        child.stop()


def try_lock(file: IO[str]) -> bool:
    """Lock the file for as long as this process, or one that inherits it, has it open; False when another process did."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def guard(lock: IO[str]) -> Iterator[Callable[[int], None]]:
    """Run a process that ends process groups when this process is killed; yields the function that adds a group to them.

    The guard inherits `lock`, so the file stays locked until the groups have ended.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD],
        stdin=subprocess.PIPE,
        pass_fds=[lock.fileno()],
        start_new_session=True,
        text=True,
    )
    groups = process.stdin
    assert groups is not None

    def watch(group: int) -> None:
        print(group, file=groups, flush=True)

    try:
        yield watch
    finally:
        process.kill()
        process.wait()
        groups.close()


def free_port() -> int:
    """A port of the loopback address on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers_http(url: str) -> bool:
    """Whether the URL answers with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (URLError, OSError):
        return False
