"""Both event logs of ours answer as Dagster's own, whatever happened to the hours, though they keep ranges instead of hours."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.events import DagsterEvent
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
    AssetCheckExecutionResolvedStatus,
)
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.test_utils import create_run_for_test
from sqlalchemy import func, select

from backfill_platform.domain.hours import partition_key
from backfill_platform.orchestration.dagster_overrides.hourly_event_log import HourlyEventLog
from backfill_platform_tests.orchestration.dagster_overrides.check_histories import (
    CHECKS,
    HOURS,
    KEYS,
    plan,
    report,
    verdict,
    write_history,
)

DONE = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}


@pytest.fixture
def stock(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance with Dagster's own storage."""
    (tmp_path / "stock").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "stock")) as instance:
        assert type(instance.event_log_storage) is SqliteEventLogStorage
        yield instance


def answers(instance: dg.DagsterInstance, runs: list[str]) -> dict[str, Any]:
    """What pages and automation ask, without the numbers that differ between storages."""
    log = instance.event_log_storage
    names = [partition_key(hour) for hour in HOURS]
    infos = log.get_asset_check_partition_info([key for key, _ in KEYS])
    some = log.get_asset_check_partition_info([CHECKS[0]], partition_keys=names[10:20])
    made = log.get_latest_storage_id_by_partition(CHECKS[0].asset_key, dg.DagsterEventType.ASSET_MATERIALIZATION)
    late = log.get_asset_check_partition_info([CHECKS[0]], after_storage_id=max(made.values()))

    def shown(record: AssetCheckExecutionRecord) -> tuple[Any, ...]:
        evaluation: Any = None if record.status is AssetCheckExecutionRecordStatus.PLANNED else record.evaluation
        judged = evaluation and evaluation.target_materialization_data
        said = evaluation and (evaluation.description, evaluation.passed, dict(evaluation.metadata), evaluation.partition)
        return record.status, runs.index(record.run_id), record.partition, said, judged and runs.index(judged.run_id)

    history: dict[Any, Any] = {}
    completed: dict[Any, Any] = {}
    latest: dict[Any, Any] = {}
    for name in names[::4]:
        chosen = PartitionKeyFilter(key=name)
        for check in CHECKS:
            records = log.get_asset_check_execution_history(check, 10, partition_filter=chosen)
            paged: list[AssetCheckExecutionRecord] = []
            while page := log.get_asset_check_execution_history(
                check, 1, cursor=paged[-1].id if paged else None, partition_filter=chosen
            ):
                paged += page
            assert [one.id for one in paged] == [one.id for one in records]
            history[check, name] = [shown(record) for record in records]
            done = log.get_asset_check_execution_history(check, 1, status=DONE, partition_filter=chosen)
            completed[check, name] = [shown(record) for record in done]
        found = log.get_latest_asset_check_execution_by_key(CHECKS, chosen)
        latest[name] = {check: shown(record) for check, record in found.items()}
    states = log.get_asset_check_state(KEYS)
    return {
        "infos": {
            (one.check_key, one.partition_key): (
                one.latest_execution_status,
                runs.index(one.latest_planned_run_id),
                one.is_current,
            )
            for one in infos
        },
        "some": {(one.partition_key, one.latest_execution_status, one.is_current) for one in some},
        "late": {(one.partition_key, one.latest_execution_status, one.is_current) for one in late},
        "history": history,
        "completed": completed,
        "latest": latest,
        "states": {key: state.subsets for key, state in states.items()},
        "materialized": instance.get_materialized_partitions(CHECKS[0].asset_key),
    }


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.whole if seed else ()) for seed in range(4)])
def test_answers_are_those_of_dagster(ours: dg.DagsterInstance, stock: dg.DagsterInstance, seed: int) -> None:
    found = answers(ours, write_history(ours, seed))
    # What is planned for hours, ours does not note: a run that is stopped must not take back what was said of them.
    wanted = answers(stock, write_history(stock, seed, planned=False))
    for question, answer in wanted.items():
        assert found[question] == answer, question
    assert rows_of_checks(ours) < rows_of_checks(stock) / 2, "ranges are one row"


def test_a_run_that_is_stopped_takes_back_nothing(ours: dg.DagsterInstance) -> None:
    """An hour is materialized and its check has passed; a run is launched over it, and stopped before it comes to the hour."""
    name = partition_key(HOURS[3])
    run = create_run_for_test(ours, "job", status=dg.DagsterRunStatus.STARTED)
    plan(ours, run, CHECKS[0], [name])
    report(ours, run, dg.AssetMaterialization(CHECKS[0].asset_key, partition=name))
    report(ours, run, verdict(ours, CHECKS[0], name, True))
    stopped = create_run_for_test(ours, "job", status=dg.DagsterRunStatus.STARTED)
    plan(ours, stopped, CHECKS[0], [name])
    during = ours.event_log_storage.get_asset_check_state(KEYS)[CHECKS[0]]
    ours.run_storage.handle_run_event(stopped.run_id, DagsterEvent(dg.DagsterEventType.RUN_CANCELED.value, "job"))
    after = ours.event_log_storage.get_asset_check_state(KEYS)[CHECKS[0]]
    for state in (during, after):
        sizes = {status: subset.size for status, subset in state.subsets.items() if subset.size}
        assert sizes == {AssetCheckExecutionResolvedStatus.SUCCEEDED: 1}


def rows_of_checks(instance: dg.DagsterInstance) -> int:
    log: Any = instance.event_log_storage
    with log.index_connection() as connection:
        return int(connection.execute(select(func.count()).select_from(AssetCheckExecutionsTable)).scalar_one())


def test_the_storage_is_ours(ours: dg.DagsterInstance) -> None:
    assert isinstance(ours.event_log_storage, HourlyEventLog)
