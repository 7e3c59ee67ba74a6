"""Commands that are killed, or stopped with Ctrl-C, in the middle of their work."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from backfill_platform_tests.fixtures_stack import ROOT, environment

Begin = Callable[..., "subprocess.Popen[str]"]
BACKFILL = [sys.executable, "-m", "backfill_platform.cli"]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts a command in a session of its own; it ends with the test."""
    begun: list[subprocess.Popen[str]] = []

    def start(env: dict[str, str], *arguments: str) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        command = [*BACKFILL, *arguments]
        begun.append(subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True))
        return begun[-1]

    yield start
    for process in begun:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.slow
def test_a_pipeline_is_followed_and_taken_up_again_after_a_kill(tmp_path: Path, begin: Begin) -> None:
    env = environment(tmp_path)
    follow = begin(env, "live", "clickstream", "--to", "1998-05-01T04")
    next_line(follow.stdout, "1998-04-30T22: landed")
    time.sleep(3)  # in the middle of the next hour
    os.killpg(follow.pid, signal.SIGKILL)
    follow.wait()
    again = ask(env, "live", "clickstream", "--once", "--to", "1998-05-01T01")
    assert again.returncode == 0, again.stderr
    last = again.stdout.splitlines()[-1]
    assert last.startswith("1998-05-01T00: landed; built")
    verified = ask(env, "verify", "clickstream", "--to", "1998-05-01T01")
    assert verified.returncode == 0, verified.stdout
    # Nothing is left to do, and doing the newest hour again changes nothing.
    idle = ask(env, "live", "clickstream", "--once", "--to", "1998-05-01T01")
    assert idle.returncode == 0
    assert "published 0 states and 0 cancels" in idle.stdout


@pytest.mark.slow
def test_ctrl_c_ends_a_repair_of_several_runs_and_the_next_one_does_the_rest(tmp_path: Path, begin: Begin) -> None:
    """Dagster makes a failed run of it, after which the next one must not begin."""
    env = environment(tmp_path)
    hours = ("--from", "1998-04-30T23", "--to", "1998-05-01T02")
    assert ask(env, "run", "clickstream", *hours).returncode == 0
    # Sessions of the hour before go on into the damage: the raw hour is one run, and what is rebuilt another.
    damage = ("--damaged-from", "1998-05-01T00:00", "--damaged-to", "1998-05-01T00:10")
    repair = begin(env, "run", "clickstream", *damage)
    next_line(repair.stderr, "run 1 of ")
    next_line(repair.stderr, "step 1 of 1")
    repair.send_signal(signal.SIGINT)
    _, errors = repair.communicate(timeout=60)
    assert repair.returncode == 1
    assert "error: interrupted; what was published stays, and running it again does the rest" in errors
    assert "error: not begun: [1998-04-30T22, " in errors
    assert "run 2 of " not in errors
    again = ask(env, "run", "clickstream", *damage)
    assert again.returncode == 0, again.stderr
    assert ask(env, "verify", "clickstream", "--from", "1998-04-30T22", "--to", "1998-05-01T02").returncode == 0


@pytest.mark.slow
def test_ctrl_c_ends_the_following_of_a_pipeline(tmp_path: Path, begin: Begin) -> None:
    follow = begin(environment(tmp_path), "live", "clickstream")
    next_line(follow.stdout, "1998-04-30T22: landed")
    time.sleep(1)  # in a run of the next hour
    follow.send_signal(signal.SIGINT)
    told, errors = follow.communicate(timeout=60)
    assert follow.returncode == 1
    assert errors.endswith("Aborted!\n")
    assert told == ""


def next_line(output: "IO[str] | None", start: str) -> None:
    """Wait for a line."""
    assert output is not None
    assert any(line.startswith(start) for line in output), "it has ended"


def ask(env: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*BACKFILL, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
