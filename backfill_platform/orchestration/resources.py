"""The resources of a run: Spark, and the lake and warehouse of the settings.

Nothing is opened before a step asks for it, so that loading definitions starts neither Spark nor a connection.
"""

from pathlib import Path
from typing import Any

from dagster_pyspark import LazyPySparkResource

from backfill_platform.adapters.connections import Connections
from backfill_platform.adapters.spark.session import open_session, use_this_interpreter
from backfill_platform.repair.outcomes import Event
from backfill_platform.settings import Settings


class QuietSparkResource(LazyPySparkResource):
    """Spark, opened when a step first asks for it; what its JVM prints goes to the file `log`."""

    log: str

    @property
    def spark_session(self) -> Any:
        """The session of this process."""
        if self._spark_session is None:
            self._spark_session = open_session(self.spark_config, Path(self.log))
        return self._spark_session


def build_resources(settings: Settings) -> dict[str, Any]:
    """`spark`, `connections` and a `listener` for the assets; `s3` where the settings name an object store.

    The listener is told every event of a repair as it happens; the command line puts its progress display there.
    """
    use_this_interpreter()
    connections = Connections(settings)
    resources: dict[str, Any] = {
        "spark": QuietSparkResource(spark_config=connections.spark_options(), log=str(settings.spark_log)),
        "connections": connections,
        "listener": ignore,
    }
    if settings.s3_endpoint_url or settings.s3_region:
        # Imported here because boto3 adds two seconds to every start, and most installations need none of it.
        from dagster_aws.s3 import S3Resource

        resources["s3"] = S3Resource(endpoint_url=settings.s3_endpoint_url, region_name=settings.s3_region)
    return resources


def ignore(event: Event) -> None:
    """The listener of runs that nobody watches from the inside."""
