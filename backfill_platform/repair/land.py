"""Landing: the lines of ingestion hours become rows of the raw table, or quarantine rows with a reason."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backfill_platform.errors import CheckFailed, SpecError
from backfill_platform.lake.tables import Lake
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.audit import HourAudit, owned, write_and_audit
from backfill_platform.spark.checks import RowRule, mark_failures, require_columns
from backfill_platform.streams.files import ArchiveFile, HourlyFiles
from backfill_platform.streams.topic import TopicReader

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Source = ArchiveFile | HourlyFiles | TopicReader


def land(
    spark: SparkSession, lake: Lake, pipeline: Pipeline, source: Source, hours: Collection[datetime], repair: str
) -> dict[datetime, HourAudit]:
    """Stage the lines of `hours` on the branch of the repair: as rows where they pass all checks, else in quarantine.

    Each line of the source belongs to exactly one ingestion hour, so landing hours together or apart gives the same rows.
    Raises CheckFailed when the parser does not return each line once, SpecError when it drops the columns it was given.
    """
    lines = source.lines(spark, hours)
    if source.cheap_to_read:
        return _land(lines, lake, pipeline, source, hours, repair)
    lines = lines.persist()
    try:
        return _land(lines, lake, pipeline, source, hours, repair)
    finally:
        lines.unpersist()


def _land(
    lines: DataFrame, lake: Lake, pipeline: Pipeline, source: Source, hours: Collection[datetime], repair: str
) -> dict[datetime, HourAudit]:
    raw = pipeline.raw
    table = raw.table
    parsed = raw.parse(lines)
    if dropped := [name for name in lines.columns if name not in parsed.columns]:
        raise SpecError(f"{table}: the parser must keep the columns it is given; it drops {', '.join(dropped)}")
    placed = source.ingestion_hour(F.col(raw.event_time))
    parsed = parsed.withColumn(table.hour, F.coalesce(placed, F.col("file_hour")))
    given, read = lines.count(), _lines_by_hour(parsed, table.hour)
    if given != (returned := sum(read.values())):
        raise CheckFailed(f"{table}: the parser made {returned} rows of {given} lines; it must return each line once")
    parsed = parsed.withColumn("_unplaced", placed.isNull() & F.col(raw.event_time).isNotNull())
    parsed = owned(parsed, table.hour, hours)
    rules = pipeline.rules(raw.name)
    given_only = [name for name in lines.columns if name not in table.column_names]
    require_columns(parsed.drop(*given_only, "_unplaced"), rules, str(table))
    own = (
        RowRule(source.missing_place, lambda: ~F.col("_unplaced")),
        RowRule(source.undecodable, lambda: ~F.col("undecodable")),
    )
    rules = replace(rules, rows=(*rules.rows, *own))
    marked = mark_failures(parsed, rules)
    measures = {"duplicates": _duplicates(raw.same_event)} if raw.same_event else {}
    audits = write_and_audit(
        marked, lake, table, rules, hours, repair, payload=source.payload(), measures=measures, sort_by=(raw.event_time,)
    )
    return {hour: _all_lines(audit, read.get(hour, 0)) for hour, audit in audits.items()}


def _all_lines(audit: HourAudit, lines: int) -> HourAudit:
    """The audit of an hour that had so many lines when they were counted. The lines were read again to land them."""
    same = lines == audit.computed
    return audit.having_read(lines, miscount="" if same else f"{lines} lines counted, but {audit.computed} landed")


def _lines_by_hour(parsed: DataFrame, hour: str) -> dict[datetime, int]:
    """How many lines each ingestion hour has. Collected as numbers: PySpark turns timestamps into the machine's local time."""
    found = parsed.groupBy(F.unix_seconds(hour).alias("epoch")).count().collect()
    return {datetime.fromtimestamp(row["epoch"], UTC): row["count"] for row in found}


def _duplicates(same_event: tuple[str, ...]) -> Column:
    return F.count("*") - F.count_distinct(F.struct(*same_event))
