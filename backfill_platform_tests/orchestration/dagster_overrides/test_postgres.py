"""What PostgreSQL alone needs: first starts side by side, and writers that take turns."""

import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as db
import yaml

from backfill_platform.orchestration.dagster_overrides.postgres import WRITING
from backfill_platform.orchestration.dagster_overrides.shared_storage import is_shared
from backfill_platform.orchestration.process_identity import HOME_TAG, home_id
from backfill_platform.orchestration.recovery import fail_dead_runs
from backfill_platform_tests.fixtures_stack import ROOT
from backfill_platform_tests.orchestration.dagster_overrides.conftest import POSTGRES

STARTER = """
import sys, time, dagster as dg
import backfill_platform.orchestration.dagster_overrides.postgres
time.sleep(max(0, float(sys.argv[2]) - time.time()))
with dg.DagsterInstance.from_config(sys.argv[1]) as instance:
    instance.report_runless_asset_event(dg.AssetMaterialization("a", partition=sys.argv[3]))
"""


@dg.job
def empty() -> None:
    """A job for runs to be of."""


@pytest.fixture
def home(tmp_path: Path, postgres_url: str) -> Path:
    (tmp_path / "dagster.yaml").write_text(POSTGRES.format(url=postgres_url))
    return tmp_path


@pytest.mark.whole
def test_first_starts_side_by_side_make_the_tables_once(home: Path) -> None:
    at = str(time.time() + 12)
    command = [sys.executable, "-c", STARTER, str(home), at]
    starters = [subprocess.Popen([*command, str(n)], cwd=ROOT, stderr=subprocess.PIPE, text=True) for n in range(5)]
    said = [starter.communicate(timeout=120)[1] for starter in starters]
    assert [starter.returncode for starter in starters] == [0] * 5, said
    assert not any("Retrying failed database creation" in text for text in said), said
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert instance.get_materialized_partitions(dg.AssetKey("a")) == set("01234")


def test_writers_take_turns(home: Path, postgres_url: str) -> None:
    """Else a reader that goes on from the newest number it saw would miss smaller ones that become visible later."""
    engine = db.create_engine(postgres_url, poolclass=db.NullPool)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        event = dg.AssetMaterialization("a", partition="1")
        writer = threading.Thread(target=instance.report_runless_asset_event, args=(event,))
        with engine.begin() as other:
            other.execute(db.select(db.func.pg_advisory_xact_lock(WRITING)))
            writer.start()
            writer.join(1)
            assert writer.is_alive()
            assert instance.get_materialized_partitions(dg.AssetKey("a")) == set()
        writer.join(30)
        assert instance.get_materialized_partitions(dg.AssetKey("a")) == {"1"}


def test_the_shipped_instance_is_the_usual_one_but_for_its_storage(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, shipped = (yaml.safe_load((ROOT / name).read_text()) for name in ("dagster.yaml", "deploy/postgres/dagster.yaml"))
    assert shipped.pop("storage") != usual.pop("storage")
    assert shipped == usual
    (tmp_path / "dagster.yaml").write_text((ROOT / "deploy/postgres/dagster.yaml").read_text())
    monkeypatch.setenv("DAGSTER_POSTGRES_URL", postgres_url)
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert is_shared(instance)
        instance.report_runless_asset_event(dg.AssetMaterialization("a", partition="1"))
        assert instance.get_materialized_partitions(dg.AssetKey("a")) == {"1"}


def test_two_hosts_with_one_database_leave_each_others_runs_alone(
    tmp_path_factory: pytest.TempPathFactory, postgres_url: str
) -> None:
    """A command line where no daemon runs takes the runs of its own home for dead; it took those of the other one, too."""
    with ExitStack() as stack:
        homes = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
        for one in homes:
            (one / "dagster.yaml").write_text(POSTGRES.format(url=postgres_url))
        first, second = (stack.enter_context(dg.DagsterInstance.from_config(str(one))) for one in homes)
        started = dg.DagsterRunStatus.STARTED
        run = first.create_run_for_job(empty, tags={HOME_TAG: home_id(first)}, status=started)
        unnamed = first.create_run_for_job(empty, status=started)
        assert fail_dead_runs(second, workers_too=True) == []
        assert [one.run_id for one in second.get_runs(dg.RunsFilter(statuses=[started]))] == [unnamed.run_id, run.run_id]
        assert fail_dead_runs(first, workers_too=True) == [run.run_id]
