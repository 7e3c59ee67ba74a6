"""Landing: the lines of ingestion hours become rows of the raw table, or quarantine rows with a reason."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as F

from backfill_platform.adapters.files.hourly import ArchiveFile
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.kafka.rows import error_of_task
from backfill_platform.adapters.records.frames import UNFIT
from backfill_platform.adapters.spark.checks import FAILED, RowRule, is_good, mark_failures, require_columns
from backfill_platform.adapters.spark.observed import observed
from backfill_platform.adapters.sql.query_rows import SourceFailed
from backfill_platform.domain.tables import Table
from backfill_platform.errors import CheckFailed, PreconditionError, SpecError
from backfill_platform.pipelines.spec import Pipeline, RawTable
from backfill_platform.repair.sources import Source
from backfill_platform.repair.write_audit_promote import HourAudit, WriteOptions, owned, write_and_audit

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PAYLOAD = "_payload"


@dataclass(frozen=True)
class OpenSource:
    """A source, and the lines that a look at it has counted; None for a topic, which is counted as it is read."""

    source: Source
    lines: Mapping[datetime, int] | None = None


def land(
    spark: SparkSession, lake: Lake, pipeline: Pipeline, opened: OpenSource, hours: Collection[datetime], repair: str
) -> dict[datetime, HourAudit]:
    """Stage the lines of `hours` on the branch of the repair: as rows where they pass all checks, else in quarantine.

    Each line of the source belongs to exactly one ingestion hour, so landing hours together or apart gives the same rows.
    Raises CheckFailed when the parser does not return each line once, SpecError when it drops the columns it was given, and
    KafkaUnavailable or PreconditionError for what happens while a topic or a database is read.
    """
    try:
        return _land(spark, lake, pipeline, opened, hours, repair)
    except Exception as error:
        if told := error_of_task(error) or _refusal_of(error):
            raise told from error
        raise


def _land(
    spark: SparkSession, lake: Lake, pipeline: Pipeline, opened: OpenSource, hours: Collection[datetime], repair: str
) -> dict[datetime, HourAudit]:
    raw, rules = pipeline.raw, pipeline.rules(pipeline.raw.name)
    table, source, read = raw.table, opened.source, opened.lines
    lines, seen = source.lines(spark, hours, raw.taken), Observation()
    given = lines if read is not None else lines.observe(seen, F.count("*").alias("lines"))
    parsed = raw.parse(given) if raw.parse else given
    if dropped := [name for name in lines.columns if name not in parsed.columns]:
        raise SpecError(f"{table}: the parser must keep the columns it is given; it drops {', '.join(dropped)}")
    placed = source.ingestion_hour(F.col(raw.event_time))
    parsed = parsed.withColumn(table.hour, F.coalesce(placed, F.col("file_hour")))
    given_only = [name for name in lines.columns if name not in table.column_names]
    require_columns(parsed.drop(*given_only), rules, str(table))
    if isinstance(source, ArchiveFile) and read is not None:
        # Which hour a line belongs to is known when it is parsed, so its hours are counted by a pass of their own.
        counted_before, read = sum(read.values()), _lines_by_hour(parsed, table.hour)
        _each_once(table, counted_before, sum(read.values()))
    own = (
        RowRule(source.missing_place, lambda: ~F.col("_unplaced")),
        RowRule(source.undecodable, lambda: ~F.col("undecodable")),
    )
    judged = _unless_unfit(rules.rows, raw.taken) if UNFIT in lines.columns else rules.rows
    rules = replace(rules, rows=(*judged, *own))
    parsed = parsed.withColumn("_unplaced", placed.isNull() & F.col(raw.event_time).isNotNull())
    # What is kept in memory are the rows; the lines only of those that go to quarantine.
    payload = F.when(~is_good(), source.payload(lines.columns)).alias(_PAYLOAD)
    marked = mark_failures(owned(parsed, table.hour, hours), rules).select(*table.column_names, FAILED, payload)
    options = WriteOptions(F.col(_PAYLOAD), measures_of(raw), sort_by=(raw.event_time,))
    audits = write_and_audit(marked, lake, table, rules, hours, repair, options)
    if read is None:
        read = {hour: audit.computed for hour, audit in audits.items()}
        counted, returned = observed(seen), sum(read.values())
        if counted is None or counted["lines"] != returned:  # a task that Spark has run twice was seen twice
            _each_once(table, lines.count(), returned)
    return {hour: _all_lines(audit, read.get(hour, 0)) for hour, audit in audits.items()}


def _refusal_of(error: Exception) -> PreconditionError | None:
    """What a database has said to a task, from Spark's report of it; None where it is another error."""
    _, separator, text = str(error).partition(f"{SourceFailed.__name__}: ")
    return PreconditionError(f"the query of the source failed: {text.splitlines()[0]}") if separator else None


def _unless_unfit(rules: tuple[RowRule, ...], taken: Mapping[str, str]) -> tuple[RowRule, ...]:
    """The rules of the schema for rows of records that could be read and fit, and rules that name what does not.

    A value that does not fit is NULL in the row: that it is missing would be the wrong reason.
    """
    unfit = F.col(UNFIT)

    def unless(rule: RowRule) -> RowRule:
        return replace(rule, holds=lambda: unfit.isNotNull() | F.col("undecodable") | rule.holds())

    def fits(reason: str, name: str) -> RowRule:
        return RowRule(reason, lambda: unfit.isNull() | ~F.array_contains(unfit, name))

    own = [fits(f"{name}: does not fit {kind}", name) for name, kind in taken.items()]
    return (*map(unless, rules), fits("record: cannot be read", ""), *own)


def _each_once(table: Table, given: int, returned: int) -> None:
    if given != returned:
        raise CheckFailed(f"{table}: the parser made {returned} rows of {given} lines; it must return each line once")


def _all_lines(audit: HourAudit, lines: int) -> HourAudit:
    """The audit of an hour that had so many lines when they were counted. The lines were read again to land them."""
    if lines == audit.computed:
        return audit.having_read(lines)
    why = "its files have changed meanwhile, or the parser does not return each line once"
    return audit.having_read(lines, miscount=f"{lines} lines counted, but {audit.computed} landed: {why}")


def _lines_by_hour(parsed: DataFrame, hour: str) -> dict[datetime, int]:
    """How many lines each ingestion hour has. Collected as numbers: PySpark turns timestamps into the machine's local time."""
    found = parsed.groupBy(F.unix_seconds(hour).alias("epoch")).count().collect()
    return {datetime.fromtimestamp(row["epoch"], UTC): row["count"] for row in found}


def measures_of(raw: RawTable) -> dict[str, Column]:
    """What is counted of a raw hour besides its rows: how many are further deliveries of an event."""
    if not raw.same_event:
        return {}
    return {"duplicates": F.count("*") - F.count_distinct(F.struct(*raw.same_event))}
