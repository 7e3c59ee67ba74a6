"""`backfill demo` as a person runs it, and the other commands on what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.whole

RANGE = ("--from", "1998-05-01T03", "--to", "1998-05-01T06")


class Home:
    """Runs `backfill` on a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.environment = {**os.environ, "BACKFILL_HOME": str(folder)}
        self.command = [sys.executable, "-m", "backfill_platform.cli"]

    def __call__(self, *arguments: str) -> tuple[int, Any]:
        done = subprocess.run(
            [*self.command, *arguments, "--output", "json"], env=self.environment, capture_output=True, text=True, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([*self.command, *arguments], env=self.environment, start_new_session=True, **quiet)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, int, Any]:
    home = Home(tmp_path_factory.mktemp("demo"))
    return (home, *home("demo"))


def check(code: int, summary: Any) -> None:
    assert code == 0, summary
    sessions, hourly = summary
    assert (sessions["table"], hourly["table"]) == ("warehouse/sessions", "warehouse/site_hourly")
    assert (sessions["hours_repaired"], hourly["hours_repaired"]) == (6, 5)
    assert (sessions["verified_hours"], hourly["verified_hours"]) == (24, 24)
    assert sessions["rows_inserted"] > sessions["rows_cancelled"] > 0
    assert sessions["rows_untouched"] + sessions["rows_inserted"] == sessions["repaired"]["rows"] == 22_531
    for one in summary:
        assert one["proven"]
        assert one["damaged"] != one["repaired"] == one["recomputed"]


def test_the_demo_repairs_the_disaster_and_proves_it(demo: tuple[Home, int, Any]) -> None:
    _, code, summary = demo
    check(code, summary)


def test_afterwards_there_are_no_gaps_and_every_hour_verifies(demo: tuple[Home, int, Any]) -> None:
    home, *_ = demo
    assert home("gaps", "clickstream") == (0, [])
    code, hours = home("verify", "clickstream")
    assert (code, len(hours)) == (0, 48)
    assert all(hour["equal"] and hour["lake"] == hour["FINAL"] for hour in hours)


def test_the_ledger_tells_what_was_done_and_why(demo: tuple[Home, int, Any]) -> None:
    home, *_ = demo
    code, entries = home("ledger", "clickstream", "--from", "1998-05-01T03", "--to", "1998-05-01T04", "--limit", "6")
    assert code == 0
    told = [(entry["mode"], entry["status"], entry["target"], entry["reason"]) for entry in entries]
    assert told[:4] == [
        ("publish", "published", "aggregated/site_hourly", "demo: the repair"),
        ("build", "done", "aggregated/site_hourly", "demo: the repair"),
        ("publish", "published", "transformed/sessions", "demo: the repair"),
        ("build", "done", "transformed/sessions", "demo: the repair"),
    ]
    assert ("dry-run", "proven") in [one[:2] for one in told[4:]]


def test_a_plan_after_landing_reads_only_what_the_range_needs(demo: tuple[Home, int, Any]) -> None:
    home, *_ = demo
    code, plan = home("plan", "clickstream", *RANGE)
    assert code == 0
    sessions = plan["steps"][0]
    assert (sessions["asset"], sessions["files"], sessions["pruned"]) == ("transformed/sessions", 5, 19)
    assert sessions["rows_now"] > 0
    assert 0 < sessions["bytes"] < sessions["bytes_pruned"]


@pytest.mark.slow
def test_damage_is_found_rehearsed_repaired_and_undone_from_the_command_line(demo: tuple[Home, int, Any]) -> None:
    home, *_ = demo
    code = (
        "from backfill_platform.cli.platform import open_warehouse; from backfill_platform.settings import load_settings\n"
        "with open_warehouse(load_settings()) as w: w.command('ALTER TABLE transformed.sessions DELETE WHERE "
        "toHour(hour) = 4', settings={'mutations_sync': 2}, doing='damaging')"
    )
    subprocess.run([sys.executable, "-c", code], env=home.environment, check=True)
    status, gaps = home("gaps", "clickstream")
    assert (status, [(gap["table"], gap["kind"]) for gap in gaps]) == (1, [("warehouse/sessions", "missing")])
    assert home("verify", "clickstream", *RANGE)[0] == 1
    status, report = home("dry-run", "clickstream", *RANGE)
    assert status == 1
    assert {hour["status"] for hour in report["hours"] if hour["asset"] == "dry_run/sessions"} == {"unchanged", "proven"}
    assert home("gaps", "clickstream")[0] == 1
    status, report = home("run", "clickstream", *RANGE, "--reason", "hour 4 is gone")
    assert (status, report["success"]) == (0, True)
    assert home("gaps", "clickstream") == (0, [])
    assert home("dry-run", "clickstream", *RANGE)[0] == 0

    repair = home("ledger", "clickstream", "--from", "1998-05-01T04", "--to", "1998-05-01T05")[1]
    name = next(entry["repair_id"] for entry in repair if entry["reason"] == "hour 4 is gone" and entry["states"])
    status, undone = home("undo", "clickstream", name)
    assert (status, [(one["table"], one["conflicts"]) for one in undone["tables"]]) == (0, [("transformed/sessions", 0)])
    assert home("gaps", "clickstream")[0] == 1
    assert home("undo", "clickstream", undone["repair"])[0] == 0
    assert home("gaps", "clickstream") == (0, [])
    assert home("undo", "clickstream", "r-nobody")[0] == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seconds", [12, 30, 45])
def test_a_demo_that_is_killed_ends_the_same_when_it_is_run_again(tmp_path: Path, seconds: int) -> None:
    home = Home(tmp_path)
    first = home.start("demo")
    deadline = time.monotonic() + seconds
    while first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    check(*home("demo"))
    check(*home("demo"))
