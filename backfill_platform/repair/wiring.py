"""The engines of a repair, put together: Iceberg, Spark and ClickHouse behind the runner's ports."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.kafka.cluster import OpenCluster, no_cluster
from backfill_platform.adapters.records.connections import Connect, no_connections
from backfill_platform.repair.audit_log import AuditLog
from backfill_platform.repair.iceberg_lake import IcebergLake
from backfill_platform.repair.job import RepairJob
from backfill_platform.repair.ports import RepairServices
from backfill_platform.repair.publish import ClickHousePublisher, Publishing
from backfill_platform.repair.requeue import SparkRequeuer
from backfill_platform.repair.sources import OutsideWorld
from backfill_platform.repair.spark_builder import SparkBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Services:
    """What a deployment has: its lake, Spark, warehouse, Kafka and clock. Spark, warehouse and Kafka are opened when needed.

    `replayed` has pipelines that read a topic land what was replayed instead of what is live. `connect` gives the properties
    of a connection that a source names.
    """

    lake: Lake
    spark: Callable[[], SparkSession]
    warehouse: Callable[[], Warehouse]
    clock: Callable[[], datetime]
    kafka: OpenCluster = no_cluster
    publishing: Publishing = field(default_factory=Publishing)
    replayed: bool = False
    connect: Connect = no_connections


def repair_services(
    job: RepairJob, services: Services, live_repairs: Callable[[], Collection[str]] | None = None
) -> RepairServices:
    """The engines of one repair. `live_repairs` names the other repairs that may be under way, on other hours.

    With it, what dead repairs have left is swept; who does not know what is alive leaves it out.
    """
    lake = IcebergLake(services.lake, job.repair_id, live_repairs)
    ledger = cache(lambda: Ledger(services.warehouse()))
    world = OutsideWorld(services.kafka, services.connect, services.replayed)
    return RepairServices(
        lake,
        SparkBuilder(job, services.lake, services.spark, world, ledger),
        SparkRequeuer(job, services.lake, services.spark, ledger),
        ClickHousePublisher(job, services.warehouse, services.publishing),
        AuditLog(job, services.warehouse, lake.version),
    )
