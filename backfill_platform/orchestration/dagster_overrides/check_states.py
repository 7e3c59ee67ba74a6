"""What a page of Dagster shows of checks by hour, made from all hours of one verdict at once.

Dagster makes it anew for each page, and merges the hours one by one: 57 to 72 s for a year of hours and the checks of seven
assets, in which the graph of assets shows nothing. What comes out is the same
(`orchestration/dagster_overrides/test_check_states.py`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache

import dagster as dg
from dagster._core.asset_graph_view.serializable_entity_subset import SerializableEntitySubset
from dagster._core.definitions.partitions.subset.time_window import TimeWindowPartitionsSubset
from dagster._core.definitions.partitions.utils.time_window import PersistedTimeWindow
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecordStatus,
    AssetCheckExecutionResolvedStatus,
    AssetCheckPartitionInfo,
)
from dagster._core.storage.asset_check_state import AssetCheckState, _process_run_statuses
from dagster._core.storage.dagster_run import FINISHED_STATUSES

from backfill_platform.domain.hours import PARTITION_KEY_FORMAT, HourRange, merge_hours

Key = tuple[dg.AssetCheckKey, dg.PartitionsDefinition[str] | None]
Subset = SerializableEntitySubset[dg.AssetCheckKey]

_VERDICTS = {
    AssetCheckExecutionRecordStatus.SUCCEEDED: AssetCheckExecutionResolvedStatus.SUCCEEDED,
    AssetCheckExecutionRecordStatus.FAILED: AssetCheckExecutionResolvedStatus.FAILED,
}


def is_hourly(partitions: dg.PartitionsDefinition[str] | None) -> bool:
    """Whether these are hours as this project's assets have them."""
    return (
        isinstance(partitions, dg.TimeWindowPartitionsDefinition)
        and partitions.is_basic_hourly
        and partitions.timezone == "UTC"
        and partitions.fmt == PARTITION_KEY_FORMAT
    )


def check_states(instance: dg.DagsterInstance, keys: Sequence[Key]) -> Mapping[dg.AssetCheckKey, AssetCheckState]:
    """The states of checks whose partitions are hours."""
    infos: dict[dg.AssetCheckKey, list[AssetCheckPartitionInfo]] = defaultdict(list)
    planned = set()
    for info in instance.event_log_storage.get_asset_check_partition_info([key for key, _ in keys], after_storage_id=0):
        infos[info.check_key].append(info)
        if info.latest_execution_status == AssetCheckExecutionRecordStatus.PLANNED:
            planned.add(info.latest_planned_run_id)
    runs = instance.get_runs(dg.RunsFilter(run_ids=list(planned), statuses=FINISHED_STATUSES)) if planned else []
    finished = {run.run_id: run.status for run in runs}
    # Most checks have been evaluated for the same hours.
    merged = cache(_merged)
    return {key: _state(key, partitions, infos[key], finished, merged) for key, partitions in keys if partitions is not None}


def _state(
    key: dg.AssetCheckKey,
    partitions: dg.PartitionsDefinition[str],
    infos: Sequence[AssetCheckPartitionInfo],
    finished: Mapping[str, dg.DagsterRunStatus],
    merged: Callable[[frozenset[str], dg.TimeWindowPartitionsDefinition], tuple[HourRange, ...]],
) -> AssetCheckState:
    assert isinstance(partitions, dg.TimeWindowPartitionsDefinition)
    by_status: dict[AssetCheckExecutionResolvedStatus, set[str]] = defaultdict(set)
    by_run: dict[str, set[str]] = defaultdict(set)
    for info in infos:
        if info.partition_key is None:
            continue
        if info.latest_execution_status == AssetCheckExecutionRecordStatus.PLANNED:
            by_run[info.latest_planned_run_id].add(info.partition_key)
        elif info.is_current:  # else it is about a materialization that is not the newest, and says nothing any more
            by_status[_VERDICTS[info.latest_execution_status]].add(info.partition_key)
    by_status[AssetCheckExecutionResolvedStatus.IN_PROGRESS] = set().union(*by_run.values())

    def subset(names: Iterable[str]) -> Subset:
        hours = merged(frozenset(names), partitions)
        windows = [PersistedTimeWindow.from_public_time_window(dg.TimeWindow(one.start, one.end), "UTC") for one in hours]
        return SerializableEntitySubset(key, TimeWindowPartitionsSubset(partitions, sum(map(len, hours)), windows))

    subsets = {status: subset(by_status[status]) for status in AssetCheckExecutionResolvedStatus}
    in_progress = {run: subset(names) for run, names in by_run.items()}
    resolved, left = _process_run_statuses(key, partitions, subsets, in_progress, finished)
    newest = (max(one.latest_check_event_storage_id, one.latest_materialization_storage_id or 0) for one in infos)
    return AssetCheckState(latest_storage_id=max(newest, default=0), subsets=resolved, in_progress_runs=left)


def _merged(names: frozenset[str], partitions: dg.TimeWindowPartitionsDefinition) -> tuple[HourRange, ...]:
    """The hours of partition keys as ranges, without those that the definition no longer has."""
    first, last = partitions.get_first_partition_window(), partitions.get_last_partition_window()
    if first is None or last is None:
        return ()
    hours = (datetime.strptime(name, PARTITION_KEY_FORMAT).replace(tzinfo=UTC) for name in names)
    return merge_hours(hour for hour in hours if first.start <= hour < last.end)
