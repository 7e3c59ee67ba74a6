"""Building derived tables: read the window of a range, transform, keep the owned rows, audit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backfill_platform.core.hours import HourRange
from backfill_platform.core.plan import Step
from backfill_platform.core.windows import UntilClosed
from backfill_platform.lake.tables import MAIN, Lake
from backfill_platform.pipelines.spec import DerivedTable, Pipeline
from backfill_platform.repair.audit import HourAudit, write_and_audit
from backfill_platform.repair.land import without_duplicates
from backfill_platform.repair.outcomes import Fact
from backfill_platform.spark.checks import mark_failures, require_columns
from backfill_platform.spark.reader import RangeRead, read_range, within
from backfill_platform.spark.sessions import micros

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_HOUR_MICROS = 3_600_000_000
_END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Built:
    """The audits of the hours, and how the range was read."""

    hours: dict[datetime, HourAudit]
    read: RangeRead
    files_in_table: int

    @property
    def facts(self) -> dict[str, Fact]:
        """How far reading went, what was pruned, and the proof of closure."""
        closure = self.read.closure
        facts: dict[str, Fact] = {
            "read_from": self.read.start.isoformat(),
            "read_to": self.read.end.isoformat(),
            "files_read": self.read.files,
            "files_pruned": self.files_in_table - self.read.files,
        }
        if closure.open_at:
            margins = ", ".join(f"{count} at {_hours(margin)}" for margin, count in closure.open_at)
            facts |= {
                "sessions_cut_at_first_edge": closure.cut_at_first_edge,
                "margin_hours": closure.margin / timedelta(hours=1),
                "open_sessions_by_margin": margins,
                "open_at_end": closure.still_open,
                "stopped_at": closure.limit or "all closed",
            }
        return facts


def build(spark: SparkSession, lake: Lake, pipeline: Pipeline, step: Step, hours: Collection[datetime], repair: str) -> Built:
    """Compute the given hours of the step's table and stage them on the branch of the repair.

    The rows are the same whichever other hours are computed with them: what they need is read by event time, and only rows
    owned by the hours are kept.
    """
    declared = pipeline.declared(step.node.table.name)
    source = step.node.reads
    if not isinstance(declared, DerivedTable) or source is None:
        raise TypeError(f"{step.node.table} is landed, not built")
    table = step.node.table
    from_raw = source == pipeline.raw.table
    branch = repair if step.from_branch else MAIN
    time = pipeline.raw.event_time if from_raw else source.hour
    horizon = (lake.horizon(source) or pipeline.start) if from_raw else _END_OF_TIME
    covering = HourRange.covering(hours)
    read = read_range(
        spark,
        source,
        lambda start, end: [file.uri for file in lake.files_between(source, time, start, end, branch=branch)],
        time=time,
        hours=covering,
        window=declared.window,
        origin=pipeline.start,
        horizon=horizon,
    )
    rows = without_duplicates(read.rows, pipeline.raw.same_event) if from_raw else read.rows
    built = _owned(declared.build(rows), covering, hours)
    measures: dict[str, Column] = {}
    if isinstance(declared.window.lookahead, UntilClosed):
        built = _with_is_open(built, declared.window.lookahead, horizon)
        ended = micros(F.col(declared.window.lookahead.ended))
        measures = {
            "sessions_extended": F.count_if(ended >= micros(F.col(table.hour)) + _HOUR_MICROS),
            "sessions_open": F.count_if("is_open"),
        }
    rules = pipeline.rules(table.name)
    marked = mark_failures(require_columns(built, rules, str(table)), rules)
    payload = F.to_json(F.struct(*table.column_names))
    sort_by = (table.hour, *table.key)
    try:
        audits = write_and_audit(marked, lake, table, rules, hours, repair, payload=payload, measures=measures, sort_by=sort_by)
    finally:
        read.release()
    return Built(audits, read, len(lake.files(source, branch=branch)))


def _owned(rows: DataFrame, covering: HourRange, hours: Collection[datetime]) -> DataFrame:
    rows = rows.where(within("hour", covering))
    if len(hours) < len(covering):
        rows = rows.where(F.col("hour").isin([F.lit(hour) for hour in sorted(hours)]))
    return rows


def _with_is_open(rows: DataFrame, ahead: UntilClosed, horizon: datetime) -> DataFrame:
    """Flag the sessions that may go on: silence was not seen before their cap or the end of what has landed."""
    cap = F.unix_micros(F.date_trunc("hour", ahead.started)) + int((ahead.cap.total_seconds() + 3600) * 1_000_000)
    until = F.least(cap, F.unix_micros(F.lit(horizon)))
    return rows.withColumn("is_open", micros(F.col(ahead.ended)) + int(ahead.gap.total_seconds() * 1_000_000) > until)


def _hours(span: timedelta) -> str:
    return f"{span / timedelta(hours=1):g} h"
