"""`backfill quarantine` and `backfill requeue` as people use them: a parser is corrected, and the lines go through it again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from backfill_platform_tests.fixtures_stack import ROOT, environment

pytestmark = pytest.mark.whole

PIPELINE = """
from dataclasses import replace
from pathlib import Path

from pyspark.sql import functions as F

from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.examples import clickstream

EVENTS = Path(__file__).parent / "events"


def parse(lines):
    {body}


pipeline = replace(
    clickstream.pipeline,
    source=HourlyFiles(f"file://{{EVENTS}}/%Y-%m-%dT%H.csv"),
    raw=replace(clickstream.pipeline.raw, parse=parse),
)
"""
YESTERDAY = "return clickstream.parse(lines)"
TODAY = """
    mended = lines.withColumn("came", F.col("line")).withColumn("line", F.regexp_replace("line", ",-,", ",200,"))
    return clickstream.parse(mended).withColumn("line", F.col("came")).drop("came")
"""
LINES = ["1,30/Apr/1998,22:01:00,/,200,1", "2,30/Apr/1998,22:02:00,/,-,1", "no commas"]
RANGE = ("clickstream", "--from", "1998-04-30T22", "--to", "1998-04-30T23")


def test_a_corrected_parser_gets_the_lines_again(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    file = tmp_path / "events" / "1998-04-30T22.csv"
    file.write_text("".join(f"{line}\n" for line in LINES))
    (tmp_path / "corrected.py").write_text(PIPELINE.format(body=YESTERDAY))

    def backfill(*arguments: str, code: int = 0) -> str:
        ours = environment(tmp_path / "home", ["corrected"])
        ours["PYTHONPATH"] = f"{tmp_path}:{ours['PYTHONPATH']}"
        command = [sys.executable, "-m", "backfill_platform.cli", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=ours, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + (done.stderr if code else "")

    assert "nothing is in quarantine" in backfill("quarantine", "clickstream")
    backfill("run", *RANGE, "--select", "raw/clickstream")
    listed = {one["check"]: one for one in json.loads(backfill("quarantine", *RANGE, "--output", "json"))}
    assert listed["status: missing"]["rows"] == 2
    assert listed["status: missing"]["sample"] in LINES

    refused = backfill("requeue", *RANGE, "--rejected-for", "nothing like it", code=2)
    assert "was rejected for 'nothing like it'" in refused
    assert "'status: missing'" in refused

    (tmp_path / "corrected.py").write_text(PIPELINE.format(body=TODAY))
    file.unlink()
    told = backfill("requeue", *RANGE, "--dry-run")
    assert "1 of 2 lines would move to raw/clickstream; nothing was written" in told
    told = backfill("requeue", *RANGE, "--rejected-for", "status: missing", "--reason", "parser fixed")
    assert "1 lines moved to raw/clickstream, 1 are in quarantine" in told
    assert "what is computed from these hours is stale: backfill gaps clickstream" in told
    again = backfill("requeue", *RANGE)
    assert "0 lines moved to raw/clickstream, 1 are in quarantine" in again
    (newest, *_) = json.loads(backfill("ledger", *RANGE, "--output", "json"))
    assert (newest["mode"], newest["status"], newest["rows_kept"], newest["rows_quarantined"]) == ("requeue", "done", 2, 1)
