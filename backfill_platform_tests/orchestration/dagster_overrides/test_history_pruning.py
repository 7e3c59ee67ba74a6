"""Pruning takes what nothing shows any more, and nothing that a page says of an hour; in either storage."""

from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.events import DagsterEvent
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.partition_status_cache import get_and_update_asset_status_cache_value
from dagster._core.test_utils import create_run_for_test

from backfill_platform.domain.hours import HOUR, HourRange, partition_key
from backfill_platform.errors import UsageError
from backfill_platform.orchestration.dagster_overrides.damaged_hours import DAMAGE_TAG, show_as_failed, shown_as_failed
from backfill_platform.orchestration.dagster_overrides.history_pruning import Pruned, prune_history
from backfill_platform.orchestration.dagster_overrides.hourly_event_log import batched
from backfill_platform.orchestration.jobs.history import history_job
from backfill_platform_tests.orchestration.dagster_overrides.check_histories import (
    ASSET,
    CHECKS,
    ENDS,
    HOURS,
    plan,
    report,
    verdict,
    write_history,
)
from backfill_platform_tests.orchestration.dagster_overrides.test_event_log import BAD, KEY, PARTITIONS, START, run
from backfill_platform_tests.orchestration.dagster_overrides.test_event_logs_agree import answers, rows_of_checks

pytestmark = [
    pytest.mark.whole,
    pytest.mark.filterwarnings("ignore::dagster.PreviewWarning", "ignore::dagster.BetaWarning"),
]

SOME = HourRange(START, START + 6 * HOUR)


def prune(instance: dg.DagsterInstance) -> Pruned:
    """As if every run that has ended were old."""
    return prune_history(instance, datetime.now(UTC) + timedelta(days=1))


def statuses(instance: dg.DagsterInstance, asset: dg.AssetKey = KEY) -> Any:
    """The colours of the hours, and how the page of the asset counts them."""
    keys = [partition_key(hour) for hour in HourRange(START, START + 8 * HOUR)]
    counted = get_and_update_asset_status_cache_value(instance, asset, PARTITIONS)
    assert counted is not None
    subsets = [
        counted.deserialize_materialized_partition_subsets(PARTITIONS),
        counted.deserialize_failed_partition_subsets(PARTITIONS),
        counted.deserialize_in_progress_partition_subsets(PARTITIONS),
    ]
    return instance.get_status_by_partition(asset, keys, PARTITIONS), [set(one.get_partition_keys()) for one in subsets]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.whole)])
def test_what_pages_say_of_hours_stays(ours: dg.DagsterInstance, seed: int) -> None:
    runs = write_history(ours, seed) + write_history(ours, seed + 10)
    before, rows = answers(ours, runs), rows_of_checks(ours)
    pruned = prune(ours)
    after = answers(ours, runs)
    for question in ("infos", "some", "late", "latest", "completed", "states", "materialized"):
        assert after[question] == before[question], question
    assert rows_of_checks(ours) < rows
    assert pruned.runs == 6
    assert pruned.events > 100
    assert prune(ours).events == 0


def test_old_runs_lose_their_logs_and_what_was_replaced(ours: dg.DagsterInstance) -> None:
    first, second, last = (run(ours, SOME) for _ in range(3))
    running = create_run_for_test(ours, "job", status=dg.DagsterRunStatus.STARTED)
    report(ours, running, dg.AssetMaterialization(ASSET, partition=partition_key(HOURS[0])))
    before = statuses(ours)
    assert before[1][1] == {BAD}
    pruned = prune(ours)
    assert pruned.runs == 3
    assert statuses(ours) == before
    assert [ours.get_run_by_id(one) is None for one in (first, second, last)] == [True, True, False]
    assert len(ours.get_records_for_run(running.run_id).records) == 1
    kept = {dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED}
    kept |= {dg.DagsterEventType.ASSET_OBSERVATION}
    assert {one.event_log_entry.dagster_event_type for one in ours.get_records_for_run(last).records} <= kept
    hour = dg.AssetRecordsFilter(KEY, asset_partitions=[partition_key(START)])
    (record,) = ours.fetch_materializations(hour, limit=9).records
    assert record.asset_materialization is not None
    assert record.asset_materialization.metadata["key"].value == partition_key(START)
    again = run(ours, SOME)
    assert statuses(ours) == before
    assert ours.get_run_by_id(again) is not None


def test_runs_that_ended_since_stay_whole(ours: dg.DagsterInstance) -> None:
    done = run(ours, SOME)
    count = len(ours.get_records_for_run(done).records)
    assert prune_history(ours, datetime.now(UTC) - timedelta(hours=1)) == Pruned(0, 0, 0)
    assert len(ours.get_records_for_run(done).records) == count


def test_damaged_hours_stay_failed_until_they_are_materialized(ours: dg.DagsterInstance) -> None:
    run(ours, SOME)
    damaged = [START, START + HOUR]
    show_as_failed(ours, "damage", {KEY: damaged}, "gone", {})
    before = statuses(ours)
    prune(ours)
    assert statuses(ours) == before
    assert shown_as_failed(ours, KEY) == {partition_key(hour) for hour in damaged}
    run(ours, SOME)
    prune(ours)
    assert shown_as_failed(ours, KEY) == set()
    assert ours.get_runs(dg.RunsFilter(tags={DAMAGE_TAG: "true"})) == []


def test_what_a_check_said_last_stays_behind_runs_that_came_to_nothing(ours: dg.DagsterInstance) -> None:
    names = [partition_key(hour) for hour in HOURS[:4]]
    for end in ENDS:
        one = create_run_for_test(ours, "job", status=dg.DagsterRunStatus.STARTED)
        plan(ours, one, CHECKS[0], names)
        if end is dg.DagsterRunStatus.SUCCESS:
            with batched(ours):
                for name in names:
                    report(ours, one, dg.AssetMaterialization(ASSET, partition=name))
            with batched(ours):
                for name in names:
                    report(ours, one, verdict(ours, CHECKS[0], name, True))
        ours.run_storage.handle_run_event(one.run_id, DagsterEvent(ENDS[end].value, "job"))
    prune(ours)
    history = ours.event_log_storage.get_asset_check_execution_history(
        CHECKS[0], 9, partition_filter=PartitionKeyFilter(key=names[0])
    )
    assert [record.status for record in history] == [AssetCheckExecutionRecordStatus.SUCCEEDED]


def test_the_job_prunes_by_its_days(ours: dg.DagsterInstance) -> None:
    old = run(ours, SOME)
    for days, left in ((None, True), (0, False)):
        config = {"ops": {"prune": {"config": {"keep_days": days}}}}
        done = history_job(90).execute_in_process(instance=ours, run_config=config)
        assert done.success
        assert (
            any("STEP_START" in str(one.event_log_entry.dagster_event) for one in ours.get_records_for_run(old).records) is left
        )


def test_another_storage_is_refused() -> None:
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(UsageError, match=r"dagster\.yaml"):
        prune(instance)
