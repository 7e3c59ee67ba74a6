"""Histories of checks and materializations by the hour, as runs leave them, written into an instance of Dagster."""

import random
from typing import Any

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationPlanned,
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.events import DagsterEvent, StepMaterializationData
from dagster._core.test_utils import create_run_for_test

from backfill_platform.domain.hours import HOUR, parse_hour, partition_key
from backfill_platform.orchestration.dagster_overrides.hourly_event_log import batched

START = parse_hour("2025-01-01T00")
HOURS = [START + number * HOUR for number in range(60)]
PARTITIONS = dg.HourlyPartitionsDefinition(START, end_date=START + 50 * HOUR)  # ten hours are no longer its own
ASSET = dg.AssetKey(["raw", "clicks"])
CHECKS = [dg.AssetCheckKey(ASSET, name) for name in ("one", "other", "never")]
DAILY = dg.DailyPartitionsDefinition("2025-01-01", end_date="2025-01-05")
BY_DAY = dg.AssetCheckKey(ASSET, "by_day")
WHOLE = dg.AssetCheckKey(ASSET, "whole")
KEYS = [*((check, PARTITIONS) for check in CHECKS), (BY_DAY, DAILY), (WHOLE, None)]
ENDS = {
    dg.DagsterRunStatus.SUCCESS: dg.DagsterEventType.RUN_SUCCESS,
    dg.DagsterRunStatus.FAILURE: dg.DagsterEventType.RUN_FAILURE,
    dg.DagsterRunStatus.CANCELED: dg.DagsterEventType.RUN_CANCELED,
}


def write_history(instance: dg.DagsterInstance, seed: int, *, planned: bool = True) -> list[str]:
    """Four runs one after the other, each with another end; the names of the runs, which differ between instances.

    Without `planned`, nobody says before which checks a run is going to evaluate.
    """
    chance = random.Random(seed)
    runs = []
    for end in chance.sample((dg.DagsterRunStatus.STARTED, *ENDS), 4):
        run = create_run_for_test(instance, "job", status=dg.DagsterRunStatus.STARTED)
        runs.append(run.run_id)
        first = chance.randrange(len(HOURS) - 40)
        names = sorted(partition_key(hour) for hour in chance.sample(HOURS[first : first + 40], 37))
        for check in CHECKS[:2] if planned else ():
            plan(instance, run, check, names)
        made = [name for name in names if chance.random() < 0.85]
        with batched(instance):
            for name in made:
                report(instance, run, dg.AssetMaterialization(ASSET, partition=name))
        verdicts = [
            verdict(instance, check, name, chance.random() < 0.9)
            for name in names
            for check in CHECKS[:2]
            if name in made or chance.random() < 0.1
        ]
        with batched(instance):
            for one in verdicts:
                report(instance, run, one)
        for name in chance.sample(names, 8):  # after its verdicts, which are about another one then, or judged once more
            if chance.random() < 0.5:
                report(instance, run, dg.AssetMaterialization(ASSET, partition=name))
            else:
                report(instance, run, verdict(instance, CHECKS[0], name, chance.random() < 0.5))
        report(instance, run, verdict(instance, BY_DAY, chance.choice(["2025-01-01", "2025-01-03"]), True))
        report(instance, run, verdict(instance, WHOLE, None, False))
        if end in ENDS:
            instance.run_storage.handle_run_event(run.run_id, DagsterEvent(ENDS[end].value, "job"))
    return runs


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
        data = StepMaterializationData(event)
    instance.report_dagster_event(DagsterEvent(kind.value, run.job_name, event_specific_data=data), run.run_id)


def verdict(instance: dg.DagsterInstance, check: dg.AssetCheckKey, name: str | None, passed: bool) -> dg.AssetCheckEvaluation:
    """An evaluation that is about the newest materialization there is."""
    records = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=ASSET, asset_partitions=[name] if name else None), limit=1
    ).records
    facts: dict[str, Any] = {"same": True, "rows": sum(map(ord, str(name))), "share": 0.5, "print": f"{name}:ü"}
    facts["table"] = dg.MetadataValue.md(str(name))
    target = None
    if records:
        (one,) = records
        target = AssetCheckEvaluationTargetMaterializationData(
            storage_id=one.storage_id, run_id=one.run_id, timestamp=one.timestamp
        )
    return dg.AssetCheckEvaluation(
        asset_key=check.asset_key,
        check_name=check.name,
        passed=passed,
        partition=name,
        description="as it should be" if passed else f"wrong in {name}",
        metadata=facts if passed else {"hour": str(name)},
        target_materialization_data=target,
    )
