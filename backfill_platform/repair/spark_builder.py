"""What lands and builds hours by Spark, onto the branch of the repair."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.spark.session import FEW_ROWS, sized_for
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.offsets import Spans
from backfill_platform.domain.plan import Branch, BuildStep, LandStep, branch_of
from backfill_platform.domain.windows import ContiguousRun
from backfill_platform.repair.build import build
from backfill_platform.repair.job import RepairJob
from backfill_platform.repair.land import OpenSource, land
from backfill_platform.repair.ports import BuiltHours
from backfill_platform.repair.sources import OutsideWorld, Source, open_source
from backfill_platform.repair.write_audit_promote import HourAudit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkBuilder:
    """Spark and the source are opened when a step first needs them."""

    def __init__(
        self,
        job: RepairJob,
        lake: Lake,
        spark: Callable[[], SparkSession],
        world: OutsideWorld,
        ledger: Callable[[], Ledger],
    ) -> None:
        self._job, self._lake, self._spark = job, lake, spark
        self._world, self._ledger = world, ledger
        self._lines: Mapping[datetime, int] | None = None

    def absent(self, hours: Collection[datetime]) -> dict[datetime, str]:
        """The raw hours that cannot be landed now, each with the reason."""
        inspection = self._source.inspect(hours, self._job.pipeline.raw.taken)
        self._lines = inspection.lines
        return dict(inspection.absent)

    def land(self, step: LandStep, hours: Collection[datetime]) -> dict[datetime, HourAudit]:
        """Land the hours from the source; `absent` was asked before."""
        opened, spark = OpenSource(self._source, self._lines), self._spark()
        rows = FEW_ROWS + 1 if self._lines is None else sum(self._lines.values())
        with sized_for(spark, rows):
            return land(spark, self._lake, self._job.pipeline, opened, hours, self._job.repair_id)

    def versions(self, hours: Collection[datetime]) -> dict[datetime, str]:
        """The versions of what the raw hours are made of; messages of a topic never change."""
        return self._source.versions(hours)

    def offsets(self, hour: datetime) -> Spans:
        """The offsets of a topic that a raw hour is made of; none for files."""
        return self._source.spans(hour)

    def build(self, step: BuildStep, runs: Collection[ContiguousRun]) -> BuiltHours:
        """Compute the hours of the runs."""
        spark, rows = self._spark(), self._rows_around(step, runs)
        with sized_for(spark, rows):
            return build(spark, self._lake, self._job, step, tuple(runs))

    def _rows_around(self, step: BuildStep, runs: Collection[ContiguousRun]) -> int:
        """How many rows the lake has in the hours that are built and those around them that their window needs."""
        hours = HourRange.covering([hour for run in runs for hour in run.hours])
        if any(branch_of(source, step) is Branch.REPAIR for source in step.node.inputs):
            return FEW_ROWS + 1
        return sum(
            rows
            for source in step.node.inputs
            for rows in self._lake.rows_by_hour(source.table, source.window.around(hours)).values()
        )

    @cached_property
    def _source(self) -> Source:
        return open_source(self._job.pipeline.source, self._world, self._job.clock, self._landed_to)

    def _landed_to(self, end: datetime) -> dict[int, int]:
        """The offsets that the hour before `end` was landed up to, by partition."""
        landed = self._ledger().offsets(str(self._job.pipeline.raw.table), [end - HOUR])
        return {span.partition: span.end for spans in landed.values() for span in spans}
