"""The states of checks that pages show are those that Dagster makes, hour by hour, whatever became of each hour."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionResolvedStatus as Status
from dagster._core.storage.asset_check_state import AssetCheckState, bulk_update_asset_check_state

from backfill_platform.orchestration.dagster_overrides.event_log import BatchingEventLog
from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.settings import Settings
from backfill_platform_tests.fixtures_stack import ROOT
from backfill_platform_tests.orchestration.dagster_overrides.check_histories import CHECKS, KEYS, write_history


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dagster_instance(Settings(home=tmp_path / "home", project=ROOT)) as found:
        yield found


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(4))
def test_the_states_are_those_of_dagster(instance: dg.DagsterInstance, seed: int) -> None:
    write_history(instance, seed)
    log = instance.event_log_storage
    assert isinstance(log, BatchingEventLog)
    empty = {key: AssetCheckState.empty() for key, _ in KEYS}
    wanted = bulk_update_asset_check_state(instance, KEYS, empty)
    found = log.get_asset_check_state(KEYS)
    assert set(found) == set(wanted)
    for key, _ in KEYS:
        assert found[key].subsets == wanted[key].subsets, key
        assert found[key].in_progress_runs == wanted[key].in_progress_runs, key
        assert found[key].latest_storage_id == wanted[key].latest_storage_id, key
    sizes = {status: subset.size for status, subset in found[CHECKS[0]].subsets.items()}
    assert sizes[Status.SUCCEEDED], sizes
    assert sizes[Status.FAILED], sizes
