"""A catalog in PostgreSQL: first starts side by side, and commits of several writers."""

import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest

from backfill_platform.adapters.iceberg.lake import Lake, quarantine_of
from backfill_platform.domain.uris import local_uri
from backfill_platform_tests.adapters.iceberg.test_lake import TABLE, Writer
from backfill_platform_tests.events import hour
from backfill_platform_tests.fixtures_stack import ROOT

STARTERS = 5
STARTER = """
import sys, time
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform_tests.adapters.iceberg.test_lake import TABLE
time.sleep(max(0, float(sys.argv[3]) - time.time()))
Lake(sys.argv[1], sys.argv[2]).ensure(TABLE)
"""


@pytest.mark.whole
def test_first_starts_side_by_side_make_the_catalog_once(tmp_path: Path, postgres_url: str) -> None:
    root, at = local_uri(tmp_path / "lake"), str(time.time() + 8)
    command = [sys.executable, "-c", STARTER, postgres_url, root, at]
    starters = [subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) for _ in range(STARTERS)]
    said = [starter.communicate(timeout=120)[1] for starter in starters]
    assert [starter.returncode for starter in starters] == [0] * STARTERS, said
    lake = Lake(postgres_url, root)
    assert lake.snapshot(TABLE) is not None
    assert lake.rows_by_hour(TABLE) == {}


def test_writers_of_the_same_table_commit_one_after_the_other(tmp_path: Path, postgres_url: str) -> None:
    lake, write, rejects = Lake(postgres_url, local_uri(tmp_path / "lake")), Writer(tmp_path), quarantine_of(TABLE)
    for table in (TABLE, rejects):
        lake.ensure(table)
    files = {hour(n): write(hour(n), n + 1) for n in range(4)}
    failed: list[BaseException] = []

    def repair(one: datetime) -> None:
        try:
            name = f"r{one:%H}"
            lake.stage(TABLE, name, [one], {one: files[one]})
            lake.stage(rejects, name, [one], {})
            lake.promote(TABLE, name, [one], beside=rejects)
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    writers = [threading.Thread(target=repair, args=(one,)) for one in files]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert failed == []
    assert lake.rows_by_hour(TABLE) == {hour(n): n + 1 for n in range(4)}
    assert lake.built_hours(rejects) == set(files)
