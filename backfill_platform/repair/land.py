"""Landing: the lines of ingestion hours become rows of the raw table, or quarantine rows with a reason."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backfill_platform.core.hours import HourRange
from backfill_platform.lake.tables import Lake
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.audit import HourAudit, write_and_audit
from backfill_platform.spark.checks import RowRule, mark_failures, require_columns
from backfill_platform.spark.reader import within

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

UNPLACED = "event_time: not within the hours of its file"


def land(spark: SparkSession, lake: Lake, pipeline: Pipeline, hours: HourRange, repair: str) -> dict[datetime, HourAudit]:
    """Stage the lines of `hours` on the branch of the repair: as rows where they pass all checks, else in quarantine.

    Each line of the source belongs to exactly one ingestion hour, so landing hours together or apart gives the same rows.
    """
    raw = pipeline.raw
    table = raw.table
    rules = pipeline.rules(raw.name)
    parsed = raw.parse(pipeline.source.lines(spark, hours))
    placed = pipeline.source.ingestion_hour(F.col(raw.event_time))
    parsed = parsed.withColumn(table.hour, F.coalesce(placed, F.col("file_hour")))
    parsed = parsed.withColumn("_unplaced", placed.isNull() & F.col(raw.event_time).isNotNull())
    parsed = parsed.where(within(table.hour, hours))
    require_columns(parsed.drop("line", "file_hour", "_unplaced"), rules, str(table))
    rules = replace(rules, rows=(*rules.rows, RowRule(UNPLACED, lambda: ~F.col("_unplaced"))))
    marked = mark_failures(parsed, rules)
    measures = {"duplicates": _duplicates(raw.same_event)} if raw.same_event else {}
    return write_and_audit(
        marked, lake, table, rules, set(hours), repair, payload=F.col("line"), measures=measures, sort_by=(raw.event_time,)
    )


def without_duplicates(events: DataFrame, same_event: tuple[str, ...]) -> DataFrame:
    """The events, each once however often it was delivered."""
    return events.dropDuplicates(list(same_event)) if same_event else events


def _duplicates(same_event: tuple[str, ...]) -> Column:
    return F.count("*") - F.count_distinct(F.struct(*same_event))
