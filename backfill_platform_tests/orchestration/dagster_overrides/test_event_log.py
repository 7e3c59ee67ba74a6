"""The event log that writes batches: the same truth as Dagster's own, in far fewer transactions.

These tests also say when a new Dagster no longer calls what is overridden.
"""

import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as db
from dagster._core.storage.event_log.schema import AssetKeyTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage

from backfill_platform.domain.hours import HOUR, HourRange, parse_hour, partition_key
from backfill_platform.orchestration.dagster_overrides.hourly_event_log import batched
from backfill_platform.orchestration.partitions import range_tags
from backfill_platform_tests.fixtures_stack import ROOT

pytestmark = pytest.mark.filterwarnings("ignore::dagster.PreviewWarning", "ignore::dagster.BetaWarning")

START = parse_hour("2025-01-01T00")
PARTITIONS = dg.HourlyPartitionsDefinition(START, end_date=START + 100 * HOUR)
KEY = dg.AssetKey("built")
CHECK = dg.AssetCheckKey(KEY, "good")
BAD = partition_key(START + 2 * HOUR)


def job(hours: HourRange) -> dg.JobDefinition:
    """Reports hours and their checks as the platform's op does; one hour fails its check and is not materialized."""

    @dg.multi_asset(
        specs=[dg.AssetSpec(KEY, partitions_def=PARTITIONS)],
        check_specs=[dg.AssetCheckSpec("good", asset=KEY, partitions_def=PARTITIONS)],
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def op(context: dg.AssetExecutionContext):  # type: ignore[no-untyped-def]
        keys = [partition_key(hour) for hour in hours]
        with batched(context.instance):
            for key in keys:
                if key != BAD:
                    context.log_event(dg.AssetMaterialization(KEY, partition=key, metadata={"key": key}, tags={"batch": "1"}))
            context.log_event(dg.AssetObservation(KEY, description="overview"))
        with batched(context.instance):
            for key in keys:
                context.log_event(
                    dg.AssetCheckEvaluation(asset_key=KEY, check_name="good", passed=key != BAD, partition=key, metadata={})
                )
        yield from ()
        raise dg.Failure("one hour", allow_retries=False)

    return dg.Definitions(
        assets=[op], jobs=[dg.define_asset_job("job", [op])], executor=dg.in_process_executor
    ).resolve_job_def("job")


def stored(instance: dg.DagsterInstance, run_id: str) -> dict[str, object]:
    """What the pages read, without what differs from run to run."""
    log: Any = instance.event_log_storage
    assert isinstance(log, SqlEventLogStorage)
    with log.index_connection() as connection:
        index = connection.execute(
            db.select(SqlEventLogStorageTable.c.dagster_event_type, SqlEventLogStorageTable.c.partition).where(
                SqlEventLogStorageTable.c.asset_key.is_not(None)
            )
        ).fetchall()
        ((last_run, last),) = connection.execute(
            db.select(AssetKeyTable.c.last_run_id, AssetKeyTable.c.last_materialization)
        ).fetchall()
    kinds = Counter((row.dagster_event_type, row.partition) for row in index)
    events = Counter(
        record.event_log_entry.dagster_event_type
        for record in instance.get_records_for_run(run_id).records
        if record.event_log_entry.dagster_event_type is not dg.DagsterEventType.ENGINE_EVENT
    )
    newest = instance.get_latest_materialization_event(KEY)
    assert newest is not None
    assert newest.asset_materialization is not None
    return {
        "index": kinds,
        "run": events,
        "checks": {(one.partition_key, one.latest_execution_status) for one in log.get_asset_check_partition_info([CHECK])},
        "materialized": instance.get_materialized_partitions(KEY),
        "failed": instance.get_status_by_partition(KEY, [BAD], PARTITIONS),
        "newest": (newest.asset_materialization.partition, last_run == run_id, "storage_id" in str(last)),
        "run status": str(instance.get_run_by_id(run_id).status),  # type: ignore[union-attr]
    }


def run(instance: dg.DagsterInstance, hours: HourRange) -> str:
    result = job(hours).execute_in_process(instance=instance, tags=range_tags(hours), raise_on_error=False)
    return str(result.run_id)


@pytest.mark.whole
def test_the_log_is_that_of_dagster_itself(ours: dg.DagsterInstance, tmp_path: Path) -> None:
    hours = HourRange(START, START + 5 * HOUR)
    (tmp_path / "stock").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "stock")) as stock:
        assert stored(ours, run(ours, hours)) == stored(stock, run(stock, hours))


def counted_connections(log: Any) -> list[str]:
    """Grows by one with each transaction that is begun."""
    begun: list[str] = []
    connect = log._connect

    def counted(*shard: str) -> Any:
        begun.append(*shard or ("all",))
        return connect(*shard)

    log._connect = counted
    return begun


def test_hours_share_transactions(ours: dg.DagsterInstance) -> None:
    """Without the batches of the storage, or Dagster's own when it makes a run, there are several for every hour."""
    counts = []
    for number in (10, 60):
        begun = counted_connections(ours.event_log_storage)
        run(ours, HourRange(START, START + number * HOUR))
        counts.append(len(begun))
    assert counts[1] - counts[0] < 20, "transactions grow with hours"


def test_events_of_a_batch_are_written_when_it_ends_with_an_error(ours: dg.DagsterInstance) -> None:
    def log_and_fail() -> None:
        with batched(ours):
            ours.report_runless_asset_event(dg.AssetMaterialization(KEY, partition=BAD))
            assert ours.get_materialized_partitions(KEY) == set()
            raise ValueError("meanwhile")

    with pytest.raises(ValueError, match="meanwhile"):
        log_and_fail()
    assert ours.get_materialized_partitions(KEY) == {BAD}


def test_a_batch_is_that_of_its_thread(ours: dg.DagsterInstance) -> None:
    with batched(ours):
        event = dg.AssetMaterialization(KEY, partition=BAD)
        other = threading.Thread(target=ours.report_runless_asset_event, args=(event,))
        other.start()
        other.join()
        assert ours.get_materialized_partitions(KEY) == {BAD}


WRITER = """
import sys, dagster as dg
from backfill_platform.orchestration.dagster_overrides.hourly_event_log import batched
with dg.DagsterInstance.get() as instance:
    for number in range(20):
        with batched(instance):
            for event in range(10):
                key = dg.AssetKey(["many", sys.argv[1]])
                instance.report_runless_asset_event(dg.AssetMaterialization(key, partition=f"{number}-{event}"))
"""


@pytest.mark.whole
def test_processes_write_side_by_side(ours: dg.DagsterInstance) -> None:
    environment = {**os.environ, "DAGSTER_HOME": ours.root_directory, "PYTHONPATH": str(ROOT)}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(n)], env=environment) for n in range(3)]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    for number in range(3):
        assert len(ours.get_materialized_partitions(dg.AssetKey(["many", str(number)]))) == 200
