"""A repair in this process, as the benchmarks time it: plan, engines and events, without Dagster."""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.kafka.cluster import OpenCluster, no_cluster
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.plan import AssetPath, Landing, make_plan
from backfill_platform.domain.request import RepairRequest
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.job import RepairIdentity, RepairJob
from backfill_platform.repair.outcomes import Event, HourOutcome
from backfill_platform.repair.runner import run_plan
from backfill_platform.repair.wiring import Services, repair_services

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WHY = "benchmark"


def services(lake: Lake, spark: "SparkSession", warehouse: Warehouse, kafka: OpenCluster = no_cluster) -> Services:
    """The engines of a benchmark."""
    return Services(lake, lambda: spark, lambda: warehouse, lambda: datetime.now(UTC), kafka)


def repair(
    pipeline: Pipeline,
    engines: Services,
    span: HourRange,
    assets: Collection[AssetPath],
    name: str,
    landing: Landing = Landing.SAFE,
) -> Iterator[Event]:
    """Walk a plan for the assets. Raises SystemExit for an hour that fails: nothing is reported of such a run."""
    job = RepairJob(pipeline, RepairRequest(reason=WHY, requester=WHY), RepairIdentity(name, WHY), engines.clock)
    plan = make_plan(pipeline.name, pipeline.nodes, span, assets, landing)
    for event in run_plan(plan, job, repair_services(job, engines)):
        if isinstance(event, HourOutcome) and event.error:
            raise SystemExit(f"{event.asset} {event.hour}: {event.error}")
        yield event
