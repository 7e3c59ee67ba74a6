"""A requeue is killed at every point: no line is lost or doubled, and running it again does what is left."""

import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.staging import Loading
from backfill_platform.adapters.iceberg.lake import quarantine_of
from backfill_platform.detection.survey import survey
from backfill_platform.domain.plan import requeue_plan
from backfill_platform_tests.crash.requeuer import POINTS
from backfill_platform_tests.events import hour
from backfill_platform_tests.fixtures_stack import ROOT
from backfill_platform_tests.repair.requeue_world import CLICKS, HOPELESS, MENDED, hourly_world, of_today
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.whole

MOVED = sum(map(len, MENDED.values()))
LEFT = Counter(line for lines in HOPELESS.values() for line in lines)


def counts(world: World) -> tuple[int, Counter[str]]:
    """How many rows have landed, and the lines in quarantine."""
    raw = world.pipeline.raw.table
    rejects = world.lake.read(quarantine_of(raw), ("payload",), "payload is not null").column("payload").to_pylist()
    return sum(world.lake.rows_by_hour(raw, world.hours).values()), Counter(rejects)


@pytest.mark.parametrize("point", POINTS)
def test_no_line_is_lost_or_doubled(
    point: str, tmp_path: Path, spark: "SparkSession", warehouse: Warehouse, warehouse_url: str
) -> None:
    suffix = uuid.uuid4().hex[:8]
    world = hourly_world(tmp_path, spark, warehouse, suffix)
    world.run(world.everything)
    before = counts(world)
    assert before == (len(CLICKS), LEFT + Counter(line for lines in MENDED.values() for line in lines))
    after = (len(CLICKS) + MOVED, LEFT)

    command = [sys.executable, "-m", "backfill_platform_tests.crash.requeuer", str(tmp_path), suffix, warehouse_url, point]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == (0 if point == "none" else -signal.SIGKILL), done.stderr[-3000:]
    assert counts(world) == (after if point in ("committed", "none") else before), "all of it is visible, or nothing"

    plan = requeue_plan(world.pipeline.name, world.pipeline.nodes[0], world.hours)
    outcomes = world.walk([plan], world.job(of_today(world.pipeline)))
    assert not [one.error for by_hour in outcomes.values() for one in by_hour.values() if one.error]
    assert counts(world) == after
    assert not [name for name in branches(world) if name != "main"], "what the dead one has left is swept"

    found = survey(world.pipeline, world.hours, world.lake, world.warehouse, Loading.PULL)
    stale = {gap.hour for gap in found.gaps if gap.kind == "stale"}
    assert {hour(0), hour(1)} <= stale, "whoever died before the ledger knew, what is computed from the lines is found"
    world.drop()


def branches(world: World) -> set[str]:
    raw = world.pipeline.raw.table
    tables = [world.lake.load(table) for table in (raw, quarantine_of(raw))]
    return {name for table in tables if table is not None for name in table.refs()}
