"""Building derived tables: read the window of a range, transform, keep the owned rows, audit."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backfill_platform.adapters.iceberg.changes import MAIN
from backfill_platform.adapters.iceberg.event_counts import events_by_hour
from backfill_platform.adapters.iceberg.lake import Lake
from backfill_platform.adapters.spark.checks import FAILED, is_good, mark_failures, require_columns
from backfill_platform.adapters.spark.dedupe import Counts, Deduplicated
from backfill_platform.adapters.spark.events import events_for
from backfill_platform.adapters.spark.reader import RangeRead, read_range, stored_rows
from backfill_platform.adapters.spark.sessions import micros
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.plan import Branch, BuildStep, Input, branch_of, in_words
from backfill_platform.domain.tables import Table
from backfill_platform.domain.windows import ContiguousRun, UntilClosed
from backfill_platform.pipelines.spec import DerivedTable
from backfill_platform.repair.job import RepairJob
from backfill_platform.repair.outcomes import Closure, Fact, Reading
from backfill_platform.repair.ports import BuiltHours
from backfill_platform.repair.write_audit_promote import HourAudit, WriteOptions, owned, write_and_audit

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_BAR = 40
_HOUR_MICROS = 3_600_000_000
_END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)


def build(spark: SparkSession, lake: Lake, job: RepairJob, step: BuildStep, parts: Sequence[ContiguousRun]) -> BuiltHours:
    """Compute the hours of the runs and stage them on the branch of the repair; with tenants, only their rows are new.

    The rows are the same whichever other hours are computed with them: what they need is read by event time, and only rows
    owned by the hours are kept.
    """
    pipeline, repair, tenants = job.pipeline, job.repair_id, job.request.tenants
    declared = pipeline.declared(step.node.table.name)
    if not isinstance(declared, DerivedTable):
        raise TypeError(f"{step.node.table} is landed, not built")
    table, ahead = step.node.table, declared.window.lookahead
    first, *beside = (_Readable(spark, lake, job, step, one) for one in step.node.inputs)
    source = first.source.table
    reads, frames = [], []
    once: list[tuple[ContiguousRun, RangeRead, Deduplicated]] = []
    for part in parts:
        read, events, deduplicated = first.rows(part)
        if deduplicated is not None:
            once.append((part, read, deduplicated))
        others = [other.rows(part) for other in beside]
        built = owned(declared.build(events, *(rows for _, rows, _ in others)), table.hour, part.hours)
        frames.append(_with_is_open(built, ahead, part.available_until) if isinstance(ahead, UntilClosed) else built)
        reads += [read, *(other for other, _, _ in others)]
    measures: dict[str, Column] = {}
    if isinstance(ahead, UntilClosed):
        ended = micros(F.col(ahead.ended))
        measures = {
            "sessions_extended": F.count_if(ended >= micros(F.col(table.hour)) + _HOUR_MICROS),
            "sessions_open": F.count_if("is_open"),
        }
    rules = pipeline.rules(table.name)
    frames = [require_columns(frame, rules, str(table)) for frame in frames]
    marked = mark_failures(reduce(lambda one, other: one.unionByName(other), frames), rules)
    hours = [hour for part in parts for hour in part.hours]
    if tenants and table.tenant:
        mine = F.coalesce(F.col(table.tenant).cast("string").isin(*tenants), F.lit(False))
        marked = _with_others(spark, lake, table, hours, marked, mine)
        measures["rows_of_other_tenants"] = F.count_if(~mine)
    options = WriteOptions(F.to_json(F.struct(*table.column_names)), measures, sort_by=(table.hour, *table.key))
    audits = write_and_audit(marked, lake, table, rules, hours, repair, options)
    for part, read, deduplicated in once:
        counts = deduplicated.counts(events_by_hour(lake, source, first.time, read.paths, HourRange.covering(part.hours)))
        sessions = isinstance(ahead, UntilClosed)
        audits |= {hour: _with_intake(audits[hour], hour, counts, sessions=sessions) for hour in part.hours}
    if not first.is_raw:
        there = lake.rows_by_hour(source, HourRange.covering(hours), branch=first.branch)
        audits = {hour: audit.having_read(there.get(hour, 0)) for hour, audit in audits.items()}
    files = sum(len(lake.files(one.source.table, branch=one.branch)) for one in (first, *beside))
    return BuiltHours(audits, _reading(reads, audits, files))


class _Readable:
    """One input of a step, as a range of hours needs it."""

    def __init__(self, spark: SparkSession, lake: Lake, job: RepairJob, step: BuildStep, source: Input) -> None:
        self._spark, self._lake, self._pipeline, self.source = spark, lake, job.pipeline, source
        raw = job.pipeline.raw
        self.is_raw = source.table == raw.table
        self.branch = job.repair_id if branch_of(source, step) is Branch.REPAIR else MAIN
        self.time = raw.event_time if self.is_raw else source.table.hour
        self._same_event = raw.same_event if self.is_raw else ()

    def rows(self, part: ContiguousRun) -> tuple[RangeRead, DataFrame, Deduplicated | None]:
        """What was read, the rows for the transform, and what counts those left out of them."""
        table, window = self.source.table, self.source.window
        read = read_range(
            self._spark,
            table,
            lambda start, end: [
                file.uri for file in self._lake.files_between(table, self.time, start, end, branch=self.branch)
            ],
            time=self.time,
            hours=HourRange.covering(part.hours),
            window=window,
            origin=self.source.bounds(self._pipeline.start, self._pipeline.end)[0],
            available_until=part.available_until if self.is_raw else _END_OF_TIME,
        )
        events, deduplicated = events_for(window, read.rows, self._same_event, self.time, part.hours, earlier=read.earlier)
        return read, events, deduplicated


def _reading(reads: Sequence[RangeRead], audits: Mapping[datetime, HourAudit], files_in_tables: int) -> Reading:
    """How far reading went, what was pruned, and the proof of closure; each run and each input was read by itself."""
    files = sum(read.files for read in reads)
    closures = [read.closure for read in reads if read.closure.open_at]
    sessions = sum(audit.computed for audit in audits.values())
    closure = None
    if closures:
        closure = Closure(
            cut_at_first_read_end=sum(one.cut_at_first_read_end for one in closures),
            margin=max(one.margin for one in closures),
            open_at_end=sum(one.still_open for one in closures),
            stopped_at=", ".join(sorted({one.limit or "all closed" for one in closures})),
        )
    return Reading(
        start=min(read.start for read in reads),
        end=max(read.end for read in reads),
        files=files,
        files_pruned=max(files_in_tables - files, 0),
        closure=closure,
        closed_by_margin=coverage([read.closure.open_at for read in reads], sessions),
    )


def _with_others(
    spark: SparkSession, lake: Lake, table: Table, hours: Collection[datetime], marked: DataFrame, mine: Column
) -> DataFrame:
    """The marked rows that are `mine`, and those of others as the lake has them. Rejects of all are computed anew."""
    stored = stored_rows(spark, table, [file.uri for file in lake.files(table, hours)])
    others = stored.where(~mine).withColumn(FAILED, F.array().cast("array<string>"))
    return marked.where(mine | ~is_good()).unionByName(others)


def _with_intake(audit: HourAudit, hour: datetime, counts: Counts | None, *, sessions: bool) -> HourAudit:
    """The audit with the events of the hour: read, dropped as duplicates, and beyond the cap of their session.

    Nothing is said of what was read where Spark did not read all, because there was nothing.
    """
    if counts is None:
        return replace(audit, beyond_cap=0) if sessions else audit
    read, kept = counts.read.get(hour, 0), counts.kept.get(hour, 0)
    beyond, miscount = sum(counts.beyond_cap.values()), ""
    if counts.events != counts.accounted_for:
        miscount = f"{counts.events} events counted, but {counts.accounted_for} kept or left out as duplicates"
    elif sessions and (once := sum(counts.kept.values())) != counts.in_sessions + beyond:
        miscount = f"{once} events kept, but {counts.in_sessions} in sessions and {beyond} beyond the cap of theirs"
    audit = audit.having_read(read, deduplicated=read - kept, miscount=miscount)
    return replace(audit, beyond_cap=counts.beyond_cap.get(hour, 0)) if sessions else audit


def _with_is_open(rows: DataFrame, ahead: UntilClosed, available_until: datetime) -> DataFrame:
    """Flag the sessions that may go on: silence was not seen before their cap or the end of what has landed."""
    cap = F.unix_micros(F.date_trunc("hour", ahead.started)) + int((ahead.cap.total_seconds() + 3600) * 1_000_000)
    until = F.least(cap, F.unix_micros(F.lit(available_until)))
    return rows.withColumn("is_open", micros(F.col(ahead.ended)) + int(ahead.gap.total_seconds() * 1_000_000) > until)


def coverage(closures: Sequence[Sequence[tuple[timedelta, int]]], sessions: int) -> tuple[tuple[Fact, ...], ...]:
    """Per margin: how many of the sessions are not known to be closed there, the share that is, and a bar of it.

    `closures` pairs, for each stretch that was read by itself, margins beyond its end with open sessions (`Closure.open_at`).
    A stretch that did not need a margin stays at what it had last.
    """
    margins = sorted({margin for open_at in closures for margin, _ in open_at})
    rows = []
    for margin in margins if sessions else ():
        open_there = 0
        for open_at in closures:
            reached = [count for at, count in open_at if at <= margin] or [count for _, count in open_at[:1]]
            open_there += reached[-1] if reached else 0
        share = max(sessions - open_there, 0) / sessions
        # Rounded down, so that a full bar and 100 % are said of nothing less.
        rows.append((in_words(margin), open_there, f"{math.floor(share * 10_000) / 100:.2f} %", _bar(share)))
    return tuple(rows)


def _bar(share: float) -> str:
    whole, eighths = divmod(math.floor(share * _BAR * 8), 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[eighths].strip()
