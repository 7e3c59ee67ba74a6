"""Instances of Dagster with our storages: each test of both is one test body."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.settings import Settings
from backfill_platform_tests.fixtures_stack import ROOT

POSTGRES = """
storage:
  custom:
    module: backfill_platform.orchestration.dagster_overrides.postgres
    class: PostgresStorage
    config: {{postgres_url: "{url}"}}
"""


@pytest.fixture(params=["sqlite", "postgres"])
def ours(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance with one of our storages."""
    if request.param == "sqlite":
        with dagster_instance(Settings(home=tmp_path / "ours", project=ROOT)) as instance:
            yield instance
        return
    home = tmp_path / "postgres"
    home.mkdir()
    (home / "dagster.yaml").write_text(POSTGRES.format(url=request.getfixturevalue("postgres_url")))
    with dg.DagsterInstance.from_config(str(home)) as instance:
        yield instance
