"""The daemon's quick tick rests on a constant of Dagster."""

import inspect
import subprocess
import sys

import pytest
from dagster._daemon import backfill, controller

from backfill_platform_tests.fixtures_stack import ROOT


def test_the_backfill_daemon_reads_the_constant_when_it_starts() -> None:
    """Without it backfills are looked at every 30 seconds again."""
    assert isinstance(controller.DEFAULT_DAEMON_INTERVAL_SECONDS, int)
    source = inspect.getsource(backfill.execute_backfill_iteration_loop)
    assert "from dagster._daemon.controller import DEFAULT_DAEMON_INTERVAL_SECONDS" in source


@pytest.mark.whole
def test_it_takes_the_arguments_of_dagsters_daemon() -> None:
    command = [sys.executable, "-m", "backfill_platform.orchestration.dagster_overrides.daemon", "run", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "--workspace" in done.stdout
