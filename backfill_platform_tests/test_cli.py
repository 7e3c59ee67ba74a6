"""The command line without its engines: help, wrong use, and what can be said before anything has run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from backfill_platform.cli import main

ONE_HOUR = ("--from", "1998-04-30T22", "--to", "1998-04-30T23")


@pytest.fixture
def backfill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Runs a command on a fresh home and returns its result."""
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path / "home"))

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments)

    return run


def test_help_names_every_command_and_is_quick(backfill) -> None:  # type: ignore[no-untyped-def]
    text = backfill("--help").output
    for name in ("up", "demo", "plan", "dry-run", "run", "verify", "gaps", "ledger"):
        assert f"\n  {name} " in text
    code = "import sys; import backfill_platform.cli; print(*(m for m in ('dagster', 'pyspark', 'pandas') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("plan", "clickstream", "--from", "yesterday", "--to", "1998-04-30T23"), "'yesterday' is not an hour"),
        (("plan", "clickstream", "--from", "1998-04-30T22:30", "--to", "1998-04-30T23"), "does not lie on a full hour"),
        (("run", "clickstream", "--from", "1998-04-30T23", "--to", "1998-04-30T23"), "is empty; ranges are half-open"),
        (("dry-run", "clickstream", "--from", "1998-04-30T21", "--to", "1998-04-30T23"), "has the hours [1998-04-30T22"),
        (("gaps", "nobody"), "there is no pipeline 'nobody'; there are: clickstream"),
        (("run", "clickstream", *ONE_HOUR, "--select", "sessions"), "'sessions' names no asset"),
        (("run", "clickstream", *ONE_HOUR, "--select", "warehouse/nobody"), "has no asset warehouse/nobody; it has"),
        (("plan", "clickstream"), "Missing option '--from'"),
        (("ledger", "clickstream", "--limit", "0"), "Invalid value for '--limit'"),
        (("verify", "clickstream", "--output", "xml"), "Invalid value for '--output'"),
    ],
)
def test_wrong_use_is_one_clear_line_and_exit_code_2(backfill, arguments: tuple[str, ...], says: str) -> None:  # type: ignore[no-untyped-def]
    result = backfill(*arguments)
    assert result.exit_code == 2, result.output
    error = result.stderr.strip().splitlines()[-1]
    assert says in error, result.stderr
    assert "Traceback" not in result.output


def test_wrong_settings_are_named(backfill, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("BACKFILL_WEB_PORT", "eighty")
    result = backfill("gaps", "clickstream")
    assert result.exit_code == 2
    assert "BACKFILL_WEB_PORT" in result.stderr


def test_the_demo_refuses_to_damage_a_real_server(backfill, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("BACKFILL_CLICKHOUSE_URL", "http://somebody:secret@clickhouse.example:8123")
    result = backfill("demo")
    assert result.exit_code == 2
    assert "embedded warehouse only" in result.stderr
    assert "secret" not in result.output + result.stderr


def test_a_plan_needs_nothing_to_run_and_lands_what_has_not_landed(backfill) -> None:  # type: ignore[no-untyped-def]
    result = backfill("plan", "clickstream", "--from", "1998-04-30T22", "--to", "1998-05-01T00", "--output", "json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert (plan["from"], plan["to"]) == ("1998-04-30T22:00:00Z", "1998-05-01T00:00:00Z")
    assert [(step["action"], step["asset"]) for step in plan["steps"]] == [
        ("land", "raw/clickstream"),
        ("build", "transformed/sessions"),
        ("publish", "warehouse/sessions"),
        ("build", "aggregated/site_hourly"),
        ("publish", "warehouse/site_hourly"),
    ]
    assert plan["steps"][0]["reads"].endswith("requests.csv.gz")
    assert plan["steps"][1]["reads"] == "raw/clickstream: none of the hours is there yet"
    assert "30 min before" in plan["steps"][1]["explanation"]
    assert "transformed/sessions" in backfill("plan", "clickstream", *ONE_HOUR).stdout
