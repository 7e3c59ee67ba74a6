"""The states of checks that pages show are those that Dagster makes, hour by hour, whatever became of each hour."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationPlanned,
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.events import DagsterEvent
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionResolvedStatus as Status
from dagster._core.storage.asset_check_state import AssetCheckState, bulk_update_asset_check_state
from dagster._core.test_utils import create_run_for_test

from backfill_platform.domain.hours import HOUR, parse_hour, partition_key
from backfill_platform.orchestration.dagster_overrides.event_log import BatchingEventLog
from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.settings import Settings
from backfill_platform_tests.fixtures_stack import ROOT

START = parse_hour("2025-01-01T00")
HOURS = [START + number * HOUR for number in range(60)]
PARTITIONS = dg.HourlyPartitionsDefinition(START, end_date=START + 50 * HOUR)  # ten hours are no longer its own
ASSET = dg.AssetKey(["raw", "clicks"])
CHECKS = [dg.AssetCheckKey(ASSET, name) for name in ("one", "other", "never")]
DAILY = dg.DailyPartitionsDefinition("2025-01-01", end_date="2025-01-05")
BY_DAY = dg.AssetCheckKey(ASSET, "by_day")
WHOLE = dg.AssetCheckKey(ASSET, "whole")
KEYS = [*((check, PARTITIONS) for check in CHECKS), (BY_DAY, DAILY), (WHOLE, None)]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dagster_instance(Settings(home=tmp_path / "home", project=ROOT)) as found:
        yield found


def plan(instance: dg.DagsterInstance, run: dg.DagsterRun, check: dg.AssetCheckKey, names: list[str]) -> None:
    subset = PARTITIONS.subset_with_partition_keys(names).to_serializable_subset()
    planned = AssetCheckEvaluationPlanned(asset_key=check.asset_key, check_name=check.name, partitions_subset=subset)
    event = DagsterEvent(
        event_type_value=dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value,
        job_name=run.job_name,
        event_specific_data=planned,
    )
    instance.report_dagster_event(event, run.run_id)


def report(instance: dg.DagsterInstance, run: dg.DagsterRun, event: dg.AssetCheckEvaluation | dg.AssetMaterialization) -> None:
    kind = (
        dg.DagsterEventType.ASSET_CHECK_EVALUATION
        if isinstance(event, dg.AssetCheckEvaluation)
        else dg.DagsterEventType.ASSET_MATERIALIZATION
    )
    data: Any = event
    if isinstance(event, dg.AssetMaterialization):
        from dagster._core.events import StepMaterializationData

        data = StepMaterializationData(event)
    instance.report_dagster_event(DagsterEvent(kind.value, run.job_name, event_specific_data=data), run.run_id)


def verdict(instance: dg.DagsterInstance, check: dg.AssetCheckKey, name: str | None, passed: bool) -> dg.AssetCheckEvaluation:
    """An evaluation that is about the newest materialization there is."""
    records = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=ASSET, asset_partitions=[name] if name else None), limit=1
    ).records
    target = None
    if records:
        (one,) = records
        target = AssetCheckEvaluationTargetMaterializationData(
            storage_id=one.storage_id, run_id=one.run_id, timestamp=one.timestamp
        )
    return dg.AssetCheckEvaluation(
        asset_key=check.asset_key, check_name=check.name, passed=passed, partition=name, target_materialization_data=target
    )


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(4))
def test_the_states_are_those_of_dagster(instance: dg.DagsterInstance, seed: int) -> None:
    chance = random.Random(seed)
    ends = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
    for end in chance.sample(ends, 4):
        run = create_run_for_test(instance, "job", status=dg.DagsterRunStatus.STARTED)
        names = sorted(partition_key(hour) for hour in chance.sample(HOURS, 30))
        for check in CHECKS[:2]:
            plan(instance, run, check, names)
        for name in names:
            if chance.random() < 0.5:
                report(instance, run, dg.AssetMaterialization(ASSET, partition=name))
            for check in CHECKS[:2]:
                if chance.random() < 0.6:
                    report(instance, run, verdict(instance, check, name, chance.random() < 0.7))
            if chance.random() < 0.2:  # after its verdicts, which are about another one then
                report(instance, run, dg.AssetMaterialization(ASSET, partition=name))
        report(instance, run, verdict(instance, BY_DAY, chance.choice(["2025-01-01", "2025-01-03"]), True))
        report(instance, run, verdict(instance, WHOLE, None, False))
        if end is not dg.DagsterRunStatus.STARTED:
            instance.run_storage.handle_run_event(
                run.run_id,
                DagsterEvent(
                    {
                        dg.DagsterRunStatus.SUCCESS: dg.DagsterEventType.RUN_SUCCESS,
                        dg.DagsterRunStatus.FAILURE: dg.DagsterEventType.RUN_FAILURE,
                        dg.DagsterRunStatus.CANCELED: dg.DagsterEventType.RUN_CANCELED,
                    }[end].value,
                    "job",
                ),
            )
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
    assert all(sizes[one] for one in (Status.IN_PROGRESS, Status.SUCCEEDED, Status.EXECUTION_FAILED, Status.SKIPPED)), sizes
