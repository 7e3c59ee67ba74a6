"""What landing asks of a source, and how the source of a pipeline is opened."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from backfill_platform.adapters.files.hourly import ArchiveFile, HourlyFiles
from backfill_platform.adapters.kafka.cluster import OpenCluster, no_cluster
from backfill_platform.adapters.kafka.topic import KafkaTopic, LandedTo
from backfill_platform.adapters.records.connections import Connect, no_connections
from backfill_platform.adapters.records.inspection import Inspection
from backfill_platform.adapters.records.taking import Taken
from backfill_platform.domain.offsets import Spans

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from backfill_platform.pipelines.spec import DeclaredSource


class Source(Protocol):
    """A source that is open: the same hour gives the same lines each time, and each line is in exactly one hour.

    `missing_place` and `undecodable` are the reasons of rows that have no place, or a text that cannot be decoded.
    """

    missing_place: str
    undecodable: str

    def inspect(self, hours: Collection[datetime], taken: Taken) -> Inspection:
        """Look at what there is of the hours, and count it. `taken` are the columns that records must have."""
        ...

    def lines(self, spark: SparkSession, hours: Collection[datetime], taken: Taken) -> DataFrame:
        """Columns `line`, `undecodable` and `file_hour` of the hours; of records, also their columns and `_unfit`."""
        ...

    def ingestion_hour(self, event_time: Column) -> Column:
        """The ingestion hour of a row with the given event time."""
        ...

    def payload(self, given: Collection[str]) -> Column:
        """What a quarantine row keeps of a row with the columns `given`."""
        ...

    def versions(self, hours: Iterable[datetime]) -> dict[datetime, str]:
        """What tells the state of each hour from others; hours of which nothing does are left out."""
        ...

    def spans(self, hour: datetime) -> Spans:
        """The offsets of an hour; none for what has no offsets."""
        ...


@dataclass(frozen=True)
class OutsideWorld:
    """Where sources are: a Kafka cluster, or the replays of its topics with `replayed`, and named connections."""

    kafka: OpenCluster = no_cluster
    connect: Connect = no_connections
    replayed: bool = False


def open_source(declared: DeclaredSource, world: OutsideWorld, clock: Callable[[], datetime], landed_to: LandedTo) -> Source:
    """The source of a pipeline. `landed_to` is as in `KafkaTopic.open`."""
    if isinstance(declared, KafkaTopic):
        return declared.open(world.kafka, clock, landed_to, backfill=world.replayed)
    if isinstance(declared, ArchiveFile | HourlyFiles):
        return declared
    return declared.open(world.connect, clock)


def versions_of(
    declared: DeclaredSource, connect: Connect, clock: Callable[[], datetime], hours: Collection[datetime]
) -> dict[datetime, str]:
    """The versions of the hours of a source by now; none of a topic, whose messages never change."""
    if isinstance(declared, KafkaTopic) or not hours:
        return {}
    return open_source(declared, OutsideWorld(connect=connect), clock, lambda end: {}).versions(hours)
