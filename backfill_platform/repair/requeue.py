"""Requeue: quarantined lines go through the parser of today; those that pass become rows of the same raw hour.

Each hour is written anew as a whole, the rows that it has and the lines that are taken, and both tables change in one commit.
So a line is a row or in quarantine at every moment, never both and never neither, whenever a process is killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backfill_platform.adapters.clickhouse.state.ledger import Ledger
from backfill_platform.adapters.files.formats import Text
from backfill_platform.adapters.files.hourly import HourlyFiles
from backfill_platform.adapters.iceberg.inventory import LakeFile
from backfill_platform.adapters.iceberg.lake import Lake, quarantine_of
from backfill_platform.adapters.kafka.payload import Text as TextMessage
from backfill_platform.adapters.kafka.rejects import messages_of
from backfill_platform.adapters.kafka.topic import KafkaTopic, TopicReader
from backfill_platform.adapters.spark.checks import FAILED, RowRule, Rules, is_good, mark_failures, require_columns
from backfill_platform.adapters.spark.reader import spark_schema, stored_rows
from backfill_platform.adapters.spark.session import sized_for
from backfill_platform.domain.gaps import Written
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.offsets import Spans
from backfill_platform.domain.plan import RequeueHours
from backfill_platform.domain.tables import Table
from backfill_platform.errors import PreconditionError, SpecError
from backfill_platform.pipelines.spec import Pipeline
from backfill_platform.repair.job import RepairJob
from backfill_platform.repair.land import measures_of
from backfill_platform.repair.ports import MadeOf
from backfill_platform.repair.write_audit_promote import HourAudit, WriteOptions, write_and_audit

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PAYLOAD, _BETWEEN = "_payload", "; "


@dataclass(frozen=True)
class Requeued:
    """What becomes of the lines that are taken from the quarantine of an hour: each moves, or stays for a reason."""

    taken: int = 0
    moved: int = 0
    stayed: Mapping[str, int] = field(default_factory=dict)


def check_requeue(pipeline: Pipeline) -> str:
    """The reason of lines of the pipeline that cannot be decoded, which stay. Raises PreconditionError for other sources.

    Records and archives are left out: of a record that does not fit, quarantine has what was read of it, not what there was;
    and a line of an archive may belong to another hour once its time can be read.
    """
    source = pipeline.source
    if isinstance(source, HourlyFiles) and isinstance(source.format, Text):
        return source.undecodable
    if isinstance(source, KafkaTopic) and isinstance(source.value, TextMessage):
        return TopicReader.undecodable
    raise PreconditionError(
        f"the quarantine of {pipeline.raw.table} holds neither lines of hourly files nor text messages, which is what can be "
        f"requeued: land the hours again from their source, by `backfill run {pipeline.name} --select raw/{pipeline.raw.name}`"
    )


def requeue(
    spark: SparkSession, lake: Lake, pipeline: Pipeline, hours: Collection[datetime], reasons: Collection[str], repair: str
) -> tuple[dict[datetime, HourAudit], MadeOf]:
    """Stage the hours anew on the branch of the repair: the rows that they have, and quarantined lines parsed again.

    Only lines rejected for one of `reasons` are taken, all without any; the others stay as they are. The audit of an hour says
    whether all its rows and lines are accounted for, by the counts of the lake's files before and after.
    """
    raw, rules, taken = pipeline.raw, _rules(pipeline), _taken(reasons)
    made_of = MadeOf(tuple(lake.files(raw.table, hours)), tuple(lake.files(quarantine_of(raw.table), hours)))
    rejects = _rows(spark, quarantine_of(raw.table), made_of.rejects)
    parsed, left = _parse(rejects.where(taken), pipeline, rules), _left(rejects.where(~taken), pipeline)
    marked = _good(_rows(spark, raw.table, made_of.rows)).unionByName(parsed).unionByName(left)
    options = WriteOptions(F.col(_PAYLOAD), measures_of(raw), sort_by=(raw.event_time,))
    audits = write_and_audit(marked, lake, raw.table, rules, hours, repair, options)
    rows, set_aside = _by_hour(made_of.rows), _by_hour(made_of.rejects)
    return {hour: _accounted(audit, rows[hour], set_aside[hour]) for hour, audit in audits.items()}, made_of


def rehearse_requeue(
    spark: SparkSession, lake: Lake, pipeline: Pipeline, hours: Collection[datetime], reasons: Collection[str]
) -> dict[datetime, Requeued]:
    """What requeueing would do to each hour that has lines to take; nothing is written."""
    table = quarantine_of(pipeline.raw.table)
    rejects = _rows(spark, table, lake.files(table, hours))
    parsed = _parse(rejects.where(_taken(reasons)), pipeline, _rules(pipeline))
    why = F.when(~is_good(), F.concat_ws(_BETWEEN, FAILED)).alias("reason")
    # Collected as numbers: PySpark turns timestamps into the machine's local time.
    counted = parsed.groupBy(F.unix_seconds(pipeline.raw.table.hour).alias("epoch"), why).count().collect()
    found: dict[datetime, Counter[str | None]] = {}
    for row in counted:
        found.setdefault(datetime.fromtimestamp(row["epoch"], UTC), Counter())[row["reason"]] = row["count"]
    return {
        hour: Requeued(counts.total(), counts[None], {why: rows for why, rows in sorted(counts.items(), key=str) if why})
        for hour, counts in sorted(found.items())
    }


def hours_with_rejects(lake: Lake, pipeline: Pipeline, hours: HourRange, reasons: Collection[str] = ()) -> set[datetime]:
    """The hours that have lines in quarantine, rejected for one of the reasons where there are some."""
    table = quarantine_of(pipeline.raw.table)
    found = set(lake.rows_by_hour(table, hours))
    if not reasons or not found:
        return found
    within = f"hour >= '{hours.start.isoformat()}' and hour < '{hours.end.isoformat()}'"
    kinds = lake.read(table, ("hour", "reason"), within).group_by(["hour", "reason"]).aggregate([]).to_pylist()
    return {kind["hour"] for kind in kinds if set(reasons).intersection(kind["reason"].split(_BETWEEN))}


class SparkRequeuer:
    """The requeueing of one repair, by Spark and the lake; Spark and the ledger are opened when they are first needed."""

    def __init__(self, job: RepairJob, lake: Lake, spark: Callable[[], SparkSession], ledger: Callable[[], Ledger]) -> None:
        self._job, self._lake, self._spark, self._ledger = job, lake, spark, ledger

    def hours(self, step: RequeueHours) -> set[datetime]:
        """The hours to requeue: those with lines to take, and those that one has written and not noted before it died."""
        pipeline = self._job.pipeline
        rows = self._lake.rows_by_hour(pipeline.raw.table, step.hours)
        noted = {hour: last.rows for hour, last in self._last(step.hours).items() if last.rows is not None}
        not_noted = {hour for hour, kept in noted.items() if hour in rows and rows[hour] != kept}
        return hours_with_rejects(self._lake, pipeline, step.hours, step.reasons) | not_noted

    def unreadable(self, hours: Collection[datetime]) -> set[datetime]:
        """The hours whose quarantine has files that are gone from the storage."""
        files = self._lake.files(quarantine_of(self._job.pipeline.raw.table), hours)
        gone = self._lake.gone(files)
        return {file.hour for file in files if file.uri in gone}

    def versions(self, hours: Collection[datetime]) -> dict[datetime, str]:
        """Of which version of the source each hour is: what is requeued came with it."""
        return {hour: last.source_version for hour, last in self._last(HourRange.covering(hours)).items()}

    def offsets(self, hours: Collection[datetime]) -> dict[datetime, Spans]:
        """The offsets of a topic that each hour was landed from; hours of files are absent."""
        return self._ledger().offsets(str(self._job.pipeline.raw.table), hours)

    def requeue(self, step: RequeueHours, hours: Collection[datetime]) -> tuple[dict[datetime, HourAudit], MadeOf]:
        """Stage the hours anew on the branch of the repair, as `requeue` says."""
        spark, job = self._spark(), self._job
        rows = sum(self._lake.rows_by_hour(job.pipeline.raw.table, HourRange.covering(hours)).values())
        with sized_for(spark, rows):
            return requeue(spark, self._lake, job.pipeline, hours, step.reasons, job.repair_id)

    def _last(self, hours: HourRange) -> dict[datetime, Written]:
        raw = self._job.pipeline.raw.table
        history, ours = self._ledger().lake_history(str(raw)), ("", self._lake.table_id(raw))
        known = {hour: [one for one in history[hour] if one.lake_table in ours] for hour in history if hour in hours}
        return {hour: written[-1] for hour, written in known.items() if written}


def _rules(pipeline: Pipeline) -> Rules:
    """The rules of landing. That a line could not be decoded stays so: its bytes are not kept."""
    rules = pipeline.rules(pipeline.raw.name)
    decoded = RowRule(check_requeue(pipeline), lambda: ~F.col("undecodable"))
    return replace(rules, rows=(*rules.rows, decoded))


def _good(rows: DataFrame) -> DataFrame:
    """Rows of the raw table, marked as good ones: they were checked when they were landed."""
    return rows.select("*", F.array().cast("array<string>").alias(FAILED), F.lit(None).cast("string").alias(_PAYLOAD))


def _rows(spark: SparkSession, table: Table, files: Collection[LakeFile]) -> DataFrame:
    return stored_rows(spark, table, [file.uri for file in files])


def _by_hour(files: Collection[LakeFile]) -> Counter[datetime]:
    rows: Counter[datetime] = Counter()
    for file in files:
        rows[file.hour] += file.rows
    return rows


def _taken(reasons: Collection[str]) -> Column:
    """Whether a quarantined line was rejected for one of the reasons, among others."""
    if not reasons:
        return F.lit(True)
    return F.arrays_overlap(F.split("reason", _BETWEEN), F.array(*map(F.lit, sorted(reasons))))


def _parse(rejects: DataFrame, pipeline: Pipeline, rules: Rules) -> DataFrame:
    """The lines as landing would mark them today."""
    raw, lines = pipeline.raw, _lines(rejects, pipeline)
    if raw.parse is None:
        raise SpecError(f"{raw.table} has no parser")
    parsed = raw.parse(lines)
    if dropped := [name for name in lines.columns if name not in parsed.columns]:
        raise SpecError(f"{raw.table}: the parser must keep the columns it is given; it drops {', '.join(dropped)}")
    parsed = parsed.withColumn(raw.table.hour, F.col("file_hour"))
    given_only = [name for name in lines.columns if name not in raw.table.column_names]
    require_columns(parsed.drop(*given_only), rules, str(raw.table))
    return mark_failures(parsed, rules).select(*raw.table.column_names, FAILED, _PAYLOAD)


def _lines(rejects: DataFrame, pipeline: Pipeline) -> DataFrame:
    """The rejects as landing gives lines to the parser, with what quarantine has of them."""
    if isinstance(pipeline.source, KafkaTopic):
        return messages_of(rejects).withColumnRenamed("payload", _PAYLOAD)
    return rejects.select(
        F.col("payload").alias("line"),
        F.array_contains(F.split("reason", _BETWEEN), check_requeue(pipeline)).alias("undecodable"),
        F.col("hour").alias("file_hour"),
        F.col("payload").alias(_PAYLOAD),
    )


def _left(rejects: DataFrame, pipeline: Pipeline) -> DataFrame:
    """Rejects that are not taken, as they are."""
    table = pipeline.raw.table
    kinds = {field.name: field.dataType for field in spark_schema(table).fields}
    columns = [
        F.col("hour").alias(name) if name == table.hour else F.lit(None).cast(kind).alias(name) for name, kind in kinds.items()
    ]
    return rejects.select(*columns, F.split("reason", _BETWEEN).alias(FAILED), F.col("payload").alias(_PAYLOAD))


def _accounted(audit: HourAudit, rows: int, set_aside: int) -> HourAudit:
    """The audit of an hour that had so many rows and quarantined lines: each of them is there, and no row is lost."""
    before, moved = rows + set_aside, audit.written - rows
    lost = f"{before} rows and quarantined lines before, {audit.computed} now: the parser must return each line once"
    audit = audit.having_read(before, miscount="" if audit.computed == before else lost).keeping(rows)
    return replace(audit, measures={**audit.measures, "requeued": moved})
