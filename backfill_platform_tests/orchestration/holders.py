"""What the assets of a test are given instead of the resources of the product: the engines that all tests share."""

from typing import TYPE_CHECKING, Any

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.staging import Loading
from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.adapters.records.connections import no_connections
from backfill_platform_tests.world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkHolder:
    """Gives the session of the test run to assets that expect dagster-pyspark's resource."""

    def __init__(self, session: "SparkSession") -> None:
        self.spark_session = session


class Opened:
    """Gives the lake and the warehouse of a test's world to the assets."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.patch_days = 30
        self.lake_days = 2
        self.loading = Loading.PULL
        self.replayed = False
        self.named = no_connections

    def lake(self) -> Any:
        return self.world.lake

    def warehouse(self) -> Warehouse:
        return self.world.warehouse

    def cluster(self) -> Cluster:
        return self.world.kafka()
