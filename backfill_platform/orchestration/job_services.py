"""What a run works with: the services of the settings, opened for as long as it needs them, and the identity of its repair."""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.connections import Connections
from backfill_platform.adapters.kafka.cluster import Cluster
from backfill_platform.adapters.spark.stopping import stoppable
from backfill_platform.domain.fingerprint import repair_id
from backfill_platform.domain.request import RepairRequest
from backfill_platform.orchestration.recovery import UNFINISHED
from backfill_platform.orchestration.run_request import REPAIR_TAG
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.job import RepairIdentity, RepairJob
from backfill_platform.repair.publish import Publishing
from backfill_platform.repair.wiring import Services

RunContext = dg.OpExecutionContext | dg.AssetExecutionContext


def now() -> datetime:
    """The clock of all runs: this machine's, in UTC."""
    return datetime.now(UTC)


@contextmanager
def open_services(connections: Connections, spark: Callable[[], Any]) -> Iterator[Services]:
    """The services of the settings; the warehouse and Kafka are opened once, when they are first needed."""
    with ExitStack() as stack:

        @cache
        def warehouse() -> Warehouse:
            return stack.enter_context(closing(connections.warehouse()))

        @cache
        def cluster() -> Cluster:
            return stack.enter_context(closing(connections.cluster()))

        publishing = Publishing(connections.loading, connections.patch_days)
        yield Services(connections.lake(), spark, warehouse, now, cluster, publishing, connections.replayed, connections.named)


def stoppable_spark(stack: ExitStack, spark: LazyPySparkResource) -> Callable[[], Any]:
    """Opens Spark when a step first needs it; its jobs end when the run is stopped."""
    return stack.enter_context(stoppable(lambda: spark.spark_session))


def begin_job(context: RunContext, pipeline: Pipeline, request: RepairRequest) -> RepairJob:
    """The repair of this run, under a new name. By the tag that holds it, other runs know that it is alive."""
    name = repair_id(now(), os.urandom(3))
    # Before it stages anything: others leave alone what is named after a live repair.
    context.instance.add_run_tags(context.run.run_id, {REPAIR_TAG: name})
    return RepairJob(pipeline, request, RepairIdentity(name, version("backfill-platform")), now)


def begin_migration(pipeline: Pipeline, *, requester: str) -> RepairJob:
    """A migration of the pipeline, under a new name. It is no run of Dagster: it is done while no run is at work."""
    identity = RepairIdentity(repair_id(now(), os.urandom(3)), version("backfill-platform"))
    return RepairJob(pipeline, RepairRequest(requester=requester), identity, now)


def live_repairs(context: RunContext) -> Callable[[], Collection[str]]:
    """Asks for the names of the repairs of all other runs that have not ended: what they have staged is not to be touched."""
    return lambda: repairs_at_work(context.instance, but=context.run.run_id)


def repairs_at_work(instance: dg.DagsterInstance, *, but: str = "") -> set[str]:
    """The names of the repairs of all runs that have not ended; `but` is the id of a run that does not count."""
    runs = instance.get_runs(dg.RunsFilter(statuses=UNFINISHED))
    return {run.tags[REPAIR_TAG] for run in runs if REPAIR_TAG in run.tags and run.run_id != but}
