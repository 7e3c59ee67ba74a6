"""A home that was written before texts were packed and checks kept as ranges is opened, shown, added to and pruned.

`data/home_before_packing.tar.xz` is what that version left of two runs over four hours, like those of `test_event_log`. Three
are materialized and judged, the last one has failed.
"""

import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import dagster as dg
import pytest
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionResolvedStatus

from backfill_platform.domain.hours import HOUR, HourRange, partition_key
from backfill_platform.orchestration.dagster_overrides.history_pruning import prune_history
from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.settings import Settings
from backfill_platform_tests.fixtures_stack import ROOT
from backfill_platform_tests.orchestration.dagster_overrides.test_event_log import CHECK, KEY, PARTITIONS, START, run

pytestmark = pytest.mark.filterwarnings("ignore::dagster.PreviewWarning", "ignore::dagster.BetaWarning")

HOME = Path(__file__).parent / "data" / "home_before_packing.tar.xz"
HOURS = HourRange(START, START + 4 * HOUR)
KEYS = [partition_key(hour) for hour in HOURS]


@pytest.fixture
def older(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with tarfile.open(HOME) as archive:
        archive.extractall(tmp_path, filter="data")
    with dagster_instance(Settings(home=tmp_path, project=ROOT)) as instance:
        yield instance


def shown(instance: dg.DagsterInstance) -> tuple[dict[str, str], set[str]]:
    """The colours of the hours, and the hours whose check is green."""
    colours = instance.get_status_by_partition(KEY, KEYS, PARTITIONS)
    state = instance.event_log_storage.get_asset_check_state([(CHECK, PARTITIONS)])[CHECK]
    green: Any = state.subsets[AssetCheckExecutionResolvedStatus.SUCCEEDED]
    return {key: cast(Any, colour).name for key, colour in (colours or {}).items()}, set(green.value.get_partition_keys())


def test_an_older_home_is_shown_added_to_and_pruned(older: dg.DagsterInstance) -> None:
    as_it_was = {**dict.fromkeys(KEYS[:3], "MATERIALIZED"), KEYS[3]: "FAILED"}, set(KEYS[:3])
    assert shown(older) == as_it_was
    history = older.event_log_storage.get_asset_check_execution_history(
        CHECK, 9, partition_filter=PartitionKeyFilter(key=KEYS[1])
    )
    assert [cast(Any, record.evaluation).metadata["key"].value for record in history] == [KEYS[1]] * 2
    for record in older.get_run_records():
        log = older.get_records_for_run(record.dagster_run.run_id).records
        assert dg.DagsterEventType.STEP_FAILURE in {one.event_log_entry.dagster_event_type for one in log}
    pruned = prune_history(older, datetime.now(UTC) + timedelta(days=1))
    assert pruned.runs == 2
    assert pruned.bytes > 0
    assert shown(older) == as_it_was
    again = run(older, HOURS)
    colours, green = shown(older)
    assert colours == {key: "FAILED" if key == KEYS[2] else "MATERIALIZED" for key in KEYS}
    assert green == set(), "the job of today's tests names no materializations"
    assert older.get_records_for_run(again).records
