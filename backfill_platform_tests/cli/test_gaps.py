"""`backfill gaps` as people use it: it says in few lines what is wrong, and each command that it prints repairs something."""

import json
import re
import shlex
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from backfill_platform.adapters.connections import Connections
from backfill_platform.cli.platform import open_warehouse
from backfill_platform.domain.hours import HOUR
from backfill_platform.examples import clickstream
from backfill_platform.settings import Settings
from backfill_platform_tests.fixtures_stack import ROOT, environment

pytestmark = pytest.mark.whole

START = datetime(1998, 4, 30, 22, tzinfo=UTC)
RANGE = ("clickstream", "--from", "1998-04-30T22", "--to", "1998-05-01T08")
SESSIONS = clickstream.pipeline.published[0]


@dataclass
class Home:
    """A home of its own, with the first ten hours of the example published and then damaged."""

    path: Path

    def backfill(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "backfill_platform.cli", *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment(self.path), capture_output=True, text=True, check=False)

    def damage(self) -> None:
        settings = Settings(home=self.path)
        Connections(settings).lake().remove_hours(clickstream.pipeline.raw.table, [START + 9 * HOUR])
        columns = ", ".join(SESSIONS.column_names)
        stored = "transformed.sessions"
        with open_warehouse(settings) as warehouse, closing(warehouse):
            for statement in (
                f"ALTER TABLE {stored} DELETE WHERE {_at(0)}",
                f"ALTER TABLE {stored} DELETE WHERE {_at(1)}",
                f"ALTER TABLE {stored} UPDATE bytes = bytes + 1 WHERE {_at(2)}",
                f"INSERT INTO {stored} SELECT {columns.replace('client_id', 'client_id + 900000')}, -1"
                f" FROM {stored} FINAL WHERE {_at(3)} LIMIT 1",
            ):
                warehouse.command(statement, settings={"mutations_sync": 2, "optimize_on_insert": 0}, doing="damaging")


def _at(number: int) -> str:
    return f"hour = toDateTime({int((START + number * HOUR).timestamp())})"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    found = Home(tmp_path_factory.mktemp("gaps"))
    run = found.backfill("run", *RANGE, "--reason", "a test")
    assert run.returncode == 0, run.stderr
    assert "WARN" not in run.stdout + run.stderr, "what Spark's JVM prints is in its log"
    assert "Setting default log level" in (found.path / "spark.log").read_text()
    assert found.backfill("gaps", *RANGE).returncode == 0
    found.damage()
    return found


def test_what_is_wrong_is_told_in_few_lines_and_by_hour_if_asked(home: Home) -> None:
    few = home.backfill("gaps", *RANGE)
    assert few.returncode == 1, few.stderr
    assert "clickstream [1998-04-30T22, 1998-05-01T08): 5 of 10 hours are damaged" in few.stdout
    assert "with other values" in few.stdout
    lines = [line.split("│")[1:-1] for line in few.stdout.splitlines() if line.startswith("│")]
    lines = [line for line in lines if line[0].strip()]  # without what is left of a long cell
    cells = [tuple(cell.strip() for cell in line[:4]) for line in lines]
    assert cells == [
        ("raw/clickstream", "missing", "[1998-05-01T07, 1998-05-01T08)", "1"),
        ("warehouse/sessions", "missing", "[1998-04-30T22, 1998-05-01T00)", "2"),
        ("warehouse/sessions", "drifted", "[1998-05-01T00, 1998-05-01T01)", "1"),
        ("warehouse/sessions", "inconsistent", "[1998-05-01T01, 1998-05-01T02)", "1"),
    ]
    assert lines[1][5].strip() == "0", "rows found"
    assert int(lines[1][4].replace(",", "")) > 0, "rows expected"
    page = home.path / "gaps.html"
    assert home.backfill("gaps", *RANGE, "--html", str(page)).stdout == few.stdout
    assert page.read_text().count('class="hour"') == 5 * 2 * 24, "five tables and two days"
    assert "--rewrite-inconsistent" in page.read_text()
    each = home.backfill("gaps", *RANGE, "--hours")
    assert len([line for line in each.stdout.splitlines() if line.startswith("│")]) == 5
    facts = json.loads(home.backfill("gaps", *RANGE, "--output", "json").stdout)
    assert [(one["kind"], one["rows_found"], one["share"]) for one in facts if one["kind"] == "missing"] == [
        ("missing", 0, 0.0)
    ] * 3
    assert sum(one["rows_expected"] for one in facts[1:3]) == int(lines[1][4].replace(",", ""))


@pytest.mark.slow
def test_every_command_that_is_printed_repairs_its_hours_and_together_they_repair_all(home: Home) -> None:
    printed = re.findall(r"^    (backfill run .*)$", home.backfill("gaps", *RANGE).stdout, re.MULTILINE)
    assert printed[0] == "backfill run clickstream --damaged-from 1998-05-01T07 --damaged-to 1998-05-01T08"
    assert "backfill run clickstream --from 1998-05-01T01 --to 1998-05-01T02 --rewrite-inconsistent" in printed
    flagged = [command for command in printed if "--rewrite-inconsistent" in command]
    assert len(flagged) == 1, "only the hour that needs it is written anew"
    damaged = _damaged(home)
    for command in printed:
        done = home.backfill(*shlex.split(command)[1:])
        assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr}"
        left = _damaged(home)
        assert left < damaged, f"{command} has repaired nothing"
        damaged = left
    assert not damaged


def _damaged(home: Home) -> set[tuple[str, str]]:
    found = json.loads(home.backfill("gaps", *RANGE, "--output", "json").stdout)
    return {(one["table"], one["hour"]) for one in found}
