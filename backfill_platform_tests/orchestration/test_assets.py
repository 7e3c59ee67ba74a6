"""The assets in Dagster: the truth per hour of a range run, in the event log that the UI reads."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.spark.checks import HourRule
from backfill_platform.definitions import build_definitions
from backfill_platform.domain.hours import HourRange, partition_key
from backfill_platform.examples import clickstream
from backfill_platform.orchestration.assets import asset_specs, pipeline_assets
from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.orchestration.partitions import partitions_of, range_tags
from backfill_platform.settings import Settings
from backfill_platform_tests.events import hour, random_clicks
from backfill_platform_tests.orchestration.holders import Opened, SparkHolder
from backfill_platform_tests.world import World, with_rule

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore::dagster.PreviewWarning", "ignore::dagster.BetaWarning")

HOURS = HourRange(hour(0), hour(3))
PROJECT = Path(__file__).parents[2]


@dataclass
class Ran:
    """A range run with one failing hour, and the instance it was recorded in."""

    world: World
    result: dg.ExecuteInProcessResult
    instance: dg.DagsterInstance


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, spark: "SparkSession", warehouse_url: str) -> Iterator[Ran]:
    folder = tmp_path_factory.mktemp("dagster")
    with closing(Warehouse(warehouse_url)) as warehouse:
        lines = [click.line for click in random_clicks(9, hours=3, clients=20)]
        world = World.over(folder, spark, warehouse, lines, 3)
        bad = HourRule("not this hour", lambda: F.max("hour") != F.lit(hour(1)), "for the test")
        pipeline = with_rule(world.pipeline, world.sessions, bad)
        assets = pipeline_assets(pipeline, partitions_of(pipeline))
        resources = {"spark": SparkHolder(spark), "connections": Opened(world), "listener": lambda event: None}
        definitions = dg.Definitions(
            assets=[assets],
            jobs=[dg.define_asset_job("job", dg.AssetSelection.assets(assets))],
            resources=resources,
            executor=dg.in_process_executor,
        )
        with dagster_instance(Settings(home=folder, project=PROJECT)) as instance:
            tags = {**range_tags(HOURS), "backfill/reason": "a test"}
            chosen = [dg.AssetKey(list(path)) for path in world.everything]
            result = definitions.resolve_job_def("job").execute_in_process(
                instance=instance, tags=tags, asset_selection=chosen, raise_on_error=False
            )
            yield Ran(world, result, instance)
        world.drop()


def materialized(ran: Ran, *path: str) -> set[str]:
    return ran.instance.get_materialized_partitions(dg.AssetKey(list(path)))


def test_good_hours_are_materialized_and_the_failed_one_is_not(ran: Ran) -> None:
    every = {partition_key(one) for one in HOURS}
    good = every - {partition_key(hour(1))}
    assert materialized(ran, "raw", "clickstream") == every
    for prefix, name in (
        ("transformed", ran.world.sessions),
        ("warehouse", ran.world.sessions),
        ("aggregated", ran.world.hourly),
        ("warehouse", ran.world.hourly),
    ):
        assert materialized(ran, prefix, name) == good, (prefix, name)


def test_the_run_fails_for_good_and_names_the_hour(ran: Ran) -> None:
    assert not ran.result.success
    failure = next(event for event in ran.result.all_events if event.is_step_failure)
    error = failure.step_failure_data.error
    assert error is not None
    assert "1998-04-30T23: failed not this hour" in error.message
    retries = [event for event in ran.result.all_events if event.event_type == dg.DagsterEventType.STEP_UP_FOR_RETRY]
    assert retries == []


def test_each_hour_has_its_own_metadata(ran: Ran) -> None:
    key = dg.AssetKey(["warehouse", ran.world.sessions])
    records = ran.instance.fetch_materializations(key, limit=10).records
    found = {record.partition_key: record.asset_materialization for record in records}
    assert len(records) == len(found) == 2
    wanted = ran.world.net()[ran.world.sessions]
    for one in (hour(0), hour(2)):
        materialization = found[partition_key(one)]
        assert materialization is not None
        metadata = {name: value.value for name, value in materialization.metadata.items()}
        assert metadata["rows"] == metadata["states"] == wanted[one].rows
        assert metadata["fingerprint_after"] == str(wanted[one])
        assert (metadata["status"], metadata["cancels"]) == ("published", 0)
        assert str(metadata["repair"]).startswith("r")


def test_checks_are_evaluated_per_hour(ran: Ran) -> None:
    def evaluated(asset: list[str], check: str) -> dict[str, bool]:
        infos = ran.instance.event_log_storage.get_asset_check_partition_info([dg.AssetCheckKey(dg.AssetKey(asset), check)])
        judged = {AssetCheckExecutionRecordStatus.SUCCEEDED: True, AssetCheckExecutionRecordStatus.FAILED: False}
        return {
            str(one.partition_key): judged[one.latest_execution_status]
            for one in infos
            if one.latest_execution_status in judged
        }

    hours = [partition_key(one) for one in HOURS]
    sessions = ["transformed", ran.world.sessions]
    assert evaluated(sessions, "not_this_hour") == dict(zip(hours, (True, False, True), strict=True))
    assert evaluated(sessions, "rows_add_up") == dict.fromkeys(hours, True)
    assert evaluated(["warehouse", ran.world.sessions], "matches_lake") == {hours[0]: True, hours[2]: True}


def test_a_range_has_an_overview_with_the_proof_of_closure(ran: Ran) -> None:
    records = ran.instance.fetch_observations(dg.AssetKey(["transformed", ran.world.sessions]), limit=5).records
    assert len(records) == 1
    observation = records[0].asset_observation
    assert observation is not None
    metadata = {name: value.value for name, value in observation.metadata.items()}
    assert "open_at_end" in metadata
    assert str(metadata["sessions closed by margin"]).startswith("| margin | not closed | closed |")
    assert "failed not this hour" in str(metadata["hours"])
    assert "█" in str(metadata["hours"])


def test_every_asset_has_the_report_of_the_repair(ran: Ran) -> None:
    texts = set()
    for asset in ran.world.everything:
        record = ran.instance.fetch_observations(dg.AssetKey(list(asset)), limit=1).records[0]
        assert record.asset_observation is not None
        texts.add(str(record.asset_observation.metadata["repair report"].value))
    (text,) = texts
    wanted = ran.world.net()[ran.world.sessions]
    states = sum(found.rows for found in wanted.values())
    assert f"| warehouse/{ran.world.sessions} | 2 | 1 | {states:,} |" in text
    assert f"| transformed/{ran.world.sessions} | not_this_hour | 2 | 1 | \\[1998-04-30T23, 1998-05-01T00) |" in text
    assert "failed not this hour" in text
    assert "backfill undo clickstream r2" in text
    assert "a test" in text


def test_columns_come_from_where_the_pipeline_says() -> None:
    specs = {spec.key.to_user_string(): spec for spec in asset_specs(clickstream.pipeline, partitions_of(clickstream.pipeline))}
    lineage = specs["transformed/sessions"].metadata["dagster/column_lineage"].deps_by_column
    assert {dep.column_name for dep in lineage["entry_url"]} == {"url", "event_time"}
    assert [(dep.asset_key.to_user_string(), dep.column_name) for dep in lineage["bytes"]] == [("raw/clickstream", "bytes")]
    assert "requests" not in lineage
    copy = specs["warehouse/sessions"].metadata["dagster/column_lineage"].deps_by_column
    assert [dep.asset_key.to_user_string() for dep in copy["bytes"]] == ["transformed/sessions"]
    assert specs["raw/clickstream"].code_version
    assert specs["raw/clickstream"].tags["backfill/layer"] == "raw"


def test_only_maintenance_has_no_hours() -> None:
    definitions = build_definitions(Settings(project=PROJECT, pipelines=(clickstream.__name__,)))
    specs = [spec for asset in definitions.assets or [] for spec in asset.specs]  # type: ignore[union-attr]
    assert [spec.key.to_user_string() for spec in specs if spec.partitions_def is None] == ["maintenance/clickstream"]


def test_a_table_is_owned_by_whom_it_names_else_by_the_owners_of_the_pipeline() -> None:
    sessions, hourly = clickstream.pipeline.derived
    pipeline = replace(
        clickstream.pipeline, owners=("team:web",), derived=(sessions, replace(hourly, owners=("ada@example.org",)))
    )
    specs = {spec.key.to_user_string(): list(spec.owners) for spec in asset_specs(pipeline, partitions_of(pipeline))}
    assert specs["raw/clickstream"] == specs["transformed/sessions"] == specs["warehouse/sessions"] == ["team:web"]
    assert specs["aggregated/site_hourly"] == specs["warehouse/site_hourly"] == ["ada@example.org"]


def test_definitions_load_in_a_fresh_interpreter_without_spark_or_network(tmp_path: Path) -> None:
    code = """
import json, socket, sys
def refuse(*_): raise OSError("no network while loading")
socket.socket.connect = refuse
socket.socket.bind = refuse
import dagster as dg
from backfill_platform.definitions import defs
loaded = defs() if callable(defs) else defs.load_fn()
keys = sorted(key.to_user_string() for key in loaded.resolve_asset_graph().get_all_asset_keys())
from pyspark import SparkContext
from pyspark.sql import SparkSession
started = SparkContext._active_spark_context is not None or SparkSession.getActiveSession() is not None
print(json.dumps([keys, started]))
"""
    pipelines = json.dumps([clickstream.__name__])
    environment = {"BACKFILL_HOME": str(tmp_path), "BACKFILL_PIPELINES": pipelines, "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    keys, started = json.loads(done.stdout.splitlines()[-1])
    assert not started
    assert keys == sorted(
        ["raw/clickstream", "transformed/sessions", "aggregated/site_hourly", "maintenance/clickstream"]
        + [f"{prefix}/{name}" for prefix in ("dry_run", "warehouse") for name in ("sessions", "site_hourly")]
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.whole
def test_the_workspace_loads() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_shipped_hours_are_those_of_the_pipeline() -> None:
    partitions = partitions_of(clickstream.pipeline)
    keys = partitions.get_partition_keys()
    assert (len(keys), keys[0], keys[-1]) == (24, "1998-04-30-22:00", "1998-05-01-21:00")
