"""Warming a Spark server."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backfill_platform.devstack.warm import warm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.whole


def test_warming_builds_sessions_and_leaves_nothing_behind(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert warm(spark) == 3 * (50 + 1), "in turns: a session for each client, and the row of their hour"
    assert list(tmp_path.iterdir()) == []
