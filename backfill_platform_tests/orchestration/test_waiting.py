"""A live pipeline whose newest hours cannot be built yet: the run is green, and tells what it waits for."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.domain.hours import HOUR, HourRange, hour_of, partition_key
from backfill_platform.domain.uris import local_uri
from backfill_platform.examples import playbacks
from backfill_platform.orchestration.assets import pipeline_assets
from backfill_platform.orchestration.in_process import dagster_instance
from backfill_platform.orchestration.partitions import partitions_of, range_tags
from backfill_platform.settings import Settings
from backfill_platform_tests.orchestration.holders import Opened, SparkHolder
from backfill_platform_tests.orchestration.test_assets import PROJECT
from backfill_platform_tests.repair.test_reference_pipelines import world_of
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.filterwarnings("ignore::dagster.PreviewWarning", "ignore::dagster.BetaWarning")


@pytest.fixture
def live(tmp_path: Path, spark: "SparkSession", warehouse_url: str) -> Iterator[World]:
    """Six hours up to now, in which nothing happened; an hour looks ahead four."""
    start = hour_of(datetime.now(UTC)) - 6 * HOUR
    for number in range(8):  # the clock may strike while the test runs
        (tmp_path / f"{start + number * HOUR:%Y-%m-%dT%H}.jsonl").touch()
    source = HourlyFiles(local_uri(tmp_path) + "/%Y-%m-%dT%H.jsonl")
    with closing(Warehouse(warehouse_url)) as warehouse:
        pipeline = replace(playbacks.pipeline, start=start, end=None, source=source)
        yield from world_of(pipeline, tmp_path, spark, warehouse)


@pytest.mark.whole
def test_hours_that_are_not_yet_due_leave_the_run_green_and_are_not_materialized(live: World) -> None:
    asked = HourRange(live.pipeline.start, live.pipeline.start + 6 * HOUR)
    assets = pipeline_assets(live.pipeline, partitions_of(live.pipeline))
    resources = {"spark": SparkHolder(live.spark), "connections": Opened(live), "listener": lambda event: None}
    definitions = dg.Definitions(assets=[assets], resources=resources, jobs=[dg.define_asset_job("everything", [assets])])
    attribution = live.pipeline.derived[0].table
    with dagster_instance(Settings(home=live.folder / "home", project=PROJECT)) as instance:
        result = definitions.resolve_job_def("everything").execute_in_process(
            instance=instance,
            asset_selection=[dg.AssetKey(["raw", "playbacks"]), dg.AssetKey(list(attribution.path))],
            tags=range_tags(asked),
            raise_on_error=False,
        )
        assert result.success
        done = instance.get_materialized_partitions(dg.AssetKey(list(attribution.path)))
        assert {partition_key(hour) for hour in list(asked)[:2]} <= done
        assert partition_key(list(asked)[5]) not in done
        (overview,) = instance.fetch_observations(dg.AssetKey(list(attribution.path)), limit=5).records
        assert overview.asset_observation is not None
        assert "not yet due" in str(overview.asset_observation.metadata["hours"].value)
