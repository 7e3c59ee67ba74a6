"""Following a pipeline from the command line, killed in between."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backfill_platform_tests.fixtures_stack import ROOT, environment

BACKFILL = [sys.executable, "-m", "backfill_platform.cli"]


@pytest.mark.slow
def test_a_pipeline_is_followed_and_taken_up_again_after_a_kill(tmp_path: Path) -> None:
    env = environment(tmp_path)
    follow = subprocess.Popen(
        [*BACKFILL, "live", "clickstream", "--to", "1998-05-01T04"],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert follow.stdout is not None
    assert follow.stdout.readline().startswith("1998-04-30T22: landed")
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


def ask(env: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*BACKFILL, *arguments], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
