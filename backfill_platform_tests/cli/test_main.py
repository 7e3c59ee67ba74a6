"""The command line without its engines: help, wrong use, and what can be said before anything has run."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from backfill_platform.cli.main import main

Backfill = Callable[..., Result]
ONE_HOUR = ("--from", "1998-04-30T22", "--to", "1998-04-30T23")


def damaged(start: str, end: str) -> tuple[str, ...]:
    return ("--damaged-from", start, "--damaged-to", end)


@pytest.fixture
def backfill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backfill:
    """Runs a command on a fresh home and returns its result."""
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path / "home"))

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments)

    return run


def test_help_names_every_command_and_is_quick(backfill: Backfill) -> None:
    text = backfill("--help").output
    for name in ("up", "demo", "plan", "dry-run", "run", "check", "live", "verify", "gaps", "ledger", "recipients"):
        assert f"\n  {name} " in text
    code = (
        "import sys; import backfill_platform.cli.main; "
        "print(*(m for m in ('dagster', 'pyspark', 'pandas') if m in sys.modules))"
    )
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
        (("plan", "clickstream"), "Missing option '--from'; or give --damaged-from and --damaged-to instead of a range"),
        (("run", "clickstream", "--from", "1998-04-30T22"), "Missing option '--to'"),
        (("check", "clickstream"), "Missing option '--from'"),
        (("check", "clickstream", *ONE_HOUR, "--select", "raw/nobody"), "has no asset raw/nobody; it has"),
        (("live", "nobody"), "there is no pipeline 'nobody'; there are: clickstream"),
        (("live", "clickstream", "--from", "now"), "'now' is not an hour"),
        (("run", "clickstream", *ONE_HOUR, "--damaged-from", "1998-04-30T22"), "not both"),
        (("plan", "clickstream", "--damaged-to", "1998-04-30T22:10"), "give both --damaged-from and --damaged-to"),
        (("plan", "clickstream", *damaged("1998-04-30T22:10", "1998-04-30T22:10")), "is empty; it is half-open"),
        (("plan", "clickstream", *damaged("1998-04-29T22:10", "1998-04-29T22:20")), "is not within them"),
        (("run", "clickstream", *damaged("soon", "later")), "'soon' is not"),
        (("plan", "clickstream", *damaged("1998-05-01", "1998-05-02"), "--select", "raw/nobody"), "has no asset raw/nobody"),
        (("ledger", "clickstream", "--limit", "0"), "Invalid value for '--limit'"),
        (("verify", "clickstream", "--output", "xml"), "Invalid value for '--output'"),
    ],
)
def test_wrong_use_is_one_clear_line_and_exit_code_2(backfill: Backfill, arguments: tuple[str, ...], says: str) -> None:
    result = backfill(*arguments)
    assert result.exit_code == 2, result.output
    error = result.stderr.strip().splitlines()[-1]
    assert says in error, result.stderr
    assert "Traceback" not in result.output


def test_wrong_settings_are_named(backfill: Backfill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_WEB_PORT", "eighty")
    result = backfill("gaps", "clickstream")
    assert result.exit_code == 2
    assert "BACKFILL_WEB_PORT" in result.stderr


def test_the_demo_refuses_to_damage_a_real_server(backfill: Backfill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_CLICKHOUSE_URL", "http://somebody:secret@clickhouse.example:8123")
    result = backfill("demo")
    assert result.exit_code == 2
    assert "embedded warehouse only" in result.stderr
    assert "secret" not in result.output + result.stderr


def test_a_plan_needs_nothing_to_run_and_lands_what_has_not_landed(backfill: Backfill) -> None:
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


def test_a_plan_for_one_tenant_says_so(backfill: Backfill) -> None:
    assert "only rows of 17505" in backfill("plan", "clickstream", *ONE_HOUR, "--tenant", "17505").stdout
    found = backfill("plan", "clickstream", *ONE_HOUR, "--tenant", "17505", "--output", "json")
    assert json.loads(found.stdout)["tenants"] == ["17505"]


def test_tenants_of_a_pipeline_without_tenants_are_wrong_use(backfill: Backfill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_PIPELINES", '["backfill_platform.examples.payments"]')
    hour = ("--from", "2017-01-01T00", "--to", "2017-01-01T01")
    for command in ("plan", "run", "dry-run"):
        result = backfill(command, "payments", *hour, "--tenant", "5")
        assert result.exit_code == 2
        assert "payments declares no tenant column" in result.stderr


def test_a_plan_lands_the_margins_of_a_range_in_the_middle_first(backfill: Backfill) -> None:
    found = backfill("plan", "clickstream", "--from", "1998-05-01T02", "--to", "1998-05-01T04", "--output", "json")
    plan = json.loads(found.stdout)
    assert plan["runs"] == 1
    landed = [(step["action"], step["reads"]) for step in plan["steps"] if step["action"].startswith("land")]
    assert [action for action, _ in landed] == ["land-margin", "land"]
    (steps,) = [one["steps"] for one in plan["plans"]]
    assert [(step["do"], step["from"][11:13], step["to"][11:13]) for step in steps[:2]] == [
        ("land-margin", "01", "02"),
        ("land", "02", "04"),
    ]


def test_a_plan_over_damage_names_every_hour_with_its_reason(backfill: Backfill) -> None:
    found = backfill("plan", "clickstream", *damaged("1998-05-01T05:50", "1998-05-01T05:55"), "--output", "json")
    plan = json.loads(found.stdout)
    assert [(one["table"], one["hour"][11:13], one["why"]) for one in plan["affected"]] == [
        ("raw/clickstream", "05", "has not landed, or is lost"),
        ("transformed/sessions", "05", "events of the interval are its own"),
        ("aggregated/site_hourly", "05", "computed from transformed/sessions of 1998-05-01T05"),
    ]
    assert (plan["damaged_from"], plan["damaged_to"]) == ("1998-05-01T05:00:00Z", "1998-05-01T06:00:00Z")
    assert [step["action"] for step in plan["steps"]] == ["land-margin", "land", "build", "publish", "build", "publish"]
    assert "events of the interval" in backfill("plan", "clickstream", *damaged("1998-05-01T05", "1998-05-01T06")).stdout


def test_a_plan_over_long_damage_names_ranges_and_not_each_hour(backfill: Backfill) -> None:
    lines = backfill("plan", "clickstream", *damaged("1998-05-01T02", "1998-05-01T20")).stdout.splitlines()
    found = [[cell.strip() for cell in line.split("│")[1:4]] for line in lines]
    assert [cells for cells in found if cells and cells[0]][:3] == [
        [table, "[1998-05-01T02, 1998-05-01T20)", "18"]
        for table in ("raw/clickstream", "transformed/sessions", "aggregated/site_hourly")
    ]
