"""Write, audit, promote: rows go to the branch of the repair with their rejects beside them, and are counted at both ends.

Rows that fail a row rule are quarantined and hold nobody back; an hour that breaks an hour rule, or whose counts do not add up,
is not promoted.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from backfill_platform.adapters.iceberg.lake import Lake, quarantine_of
from backfill_platform.adapters.spark.checks import EVENTS_WITHIN_CAP, FAILED, ROWS_ADD_UP, ROWS_VALID, Rules, check_name
from backfill_platform.adapters.spark.column_types import as_written, hashable
from backfill_platform.adapters.spark.hours import within
from backfill_platform.adapters.spark.reader import stored_rows
from backfill_platform.adapters.spark.split_rejects import EPOCH, PAYLOAD, RejectSplit
from backfill_platform.adapters.spark.writer import write_by_hour
from backfill_platform.domain.hours import HourRange, format_hour
from backfill_platform.domain.tables import Table
from backfill_platform.errors import CheckFailed
from backfill_platform.repair.outcomes import CheckResult, Fact, Rows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SAMPLES = "samples of what failed"
CAP_TEXT = "every event is in a session; those beyond the cap of theirs are counted here"
_SAMPLE_ROWS = 3
_SAMPLE_LETTERS = 500

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HourAudit:
    """What was computed for an hour and what became of it.

    `failures` counts rows by the row rule that they failed, and `samples` shows a few of them; `broken` names the rules that
    the hour as a whole does not meet, with what is known of why. `content` is a hash of the rows, in whatever order.
    `rows_read` and `deduplicated` count what was read, None where nobody counted, and `miscount` says what of it is not
    accounted for. `beyond_cap` counts the events of the hour that are in no session, because theirs began longer ago than its
    cap allows; None for tables that are not read until sessions are closed.
    """

    computed: int = 0
    written: int = 0
    quarantined: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    samples: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    measures: Mapping[str, int] = field(default_factory=dict)
    content: int = 0
    rows_read: int | None = None
    deduplicated: int | None = None
    beyond_cap: int | None = None
    miscount: str = ""

    @property
    def adds_up(self) -> bool:
        """Rows in = rows out + quarantined, the right side counted from the files written; and all that was read is in."""
        return not self.miscount and self.computed == self.written + self.quarantined

    @property
    def error(self) -> str:
        """Why the hour must not be promoted, or nothing."""
        if self.miscount:
            return self.miscount
        if self.broken:
            return f"failed {', '.join(self.broken)}"
        if self.computed and self.computed == self.quarantined:
            reasons = ", ".join(f"{name} ({rows})" for name, rows in self.failures.items())
            return f"all {self.computed} rows failed a check: {reasons}"
        if not self.adds_up:
            return f"{self.computed} rows computed, but {self.written} written and {self.quarantined} quarantined"
        return ""

    def keeping(self, rows: int) -> HourAudit:
        """The audit of an hour that must keep at least so many rows; one that would lose some is broken."""
        if self.written >= rows:
            return self
        what = f"keeping its rows: {rows} rows have landed, and the source now gives {self.written}"
        return replace(
            self,
            broken={
                **self.broken,
                f"{what} (a run that is launched with `landing: replace`, and without a plan, allows it)": "",
            },
        )

    def having_read(self, rows: int, *, deduplicated: int | None = None, miscount: str = "") -> HourAudit:
        """The audit with what was read for the hour, and why that does not add up if it does not."""
        return replace(self, rows_read=rows, deduplicated=deduplicated, miscount=miscount)

    def checks(self, rules: Rules) -> tuple[CheckResult, ...]:
        """The verdicts of the hour: all row rules together, each hour rule, and the counts."""
        rows = CheckResult(
            ROWS_VALID,
            not self.quarantined,
            blocking=False,
            description=f"{self.quarantined} rows do not meet the schema; they are in quarantine with the reason"
            if self.quarantined
            else "every row meets the schema; the others are in quarantine with the reason",
            facts={"quarantined": self.quarantined, **self.failures},
            tables=self._sample_rows(),
        )
        hours = tuple(
            CheckResult(
                check_name(rule.name),
                rule.name not in self.broken,
                blocking=True,
                description=rule.description,
                facts={"found": found} if (found := self.broken.get(rule.name)) else {},
            )
            for rule in rules.blocking
        )
        counts = CheckResult(
            ROWS_ADD_UP,
            self.adds_up,
            blocking=True,
            description="what was read is kept, a duplicate or beyond its cap; rows computed = written + quarantined",
            facts={**self._intake(), "computed": self.computed, "written": self.written, "quarantined": self.quarantined},
        )
        return (rows, counts, *self._cap(), *hours)

    def _cap(self) -> tuple[CheckResult, ...]:
        if self.beyond_cap is None:
            return ()
        events = f"{self.beyond_cap} event{'s are' if self.beyond_cap != 1 else ' is'} in no session, because theirs began"
        text = f"{events} longer ago than its cap allows; a larger cap takes them in" if self.beyond_cap else CAP_TEXT
        facts: dict[str, Fact] = {"events_beyond_cap": self.beyond_cap}
        return (CheckResult(EVENTS_WITHIN_CAP, not self.beyond_cap, blocking=False, description=text, facts=facts),)

    def _intake(self) -> dict[str, int]:
        counts = {"rows_read": self.rows_read, "deduplicated": self.deduplicated, "events_beyond_cap": self.beyond_cap}
        return {name: count for name, count in counts.items() if count is not None}

    def _sample_rows(self) -> tuple[Rows, ...]:
        shown = tuple((rule, row) for rule, rows in self.samples.items() for row in rows)
        return (Rows(SAMPLES, ("check", "row"), shown),) if shown else ()


def owned(rows: DataFrame, hour: str, hours: Collection[datetime]) -> DataFrame:
    """The rows of the given hours. Rows without an hour stay in, so that the audit refuses them instead of losing them."""
    covering = HourRange.covering(hours)
    mine = within(hour, covering)
    if len(set(hours)) < len(covering):
        mine = mine & F.date_trunc("hour", hour).isin([F.lit(one) for one in sorted(hours)])
    return rows.where(F.col(hour).isNull() | mine)


@dataclass(frozen=True)
class WriteOptions:
    """How marked rows are written and measured.

    `payload` is what a quarantine row keeps of a rejected one; `measures` are integer aggregates over the good rows of an hour.
    """

    payload: Column
    measures: Mapping[str, Column]
    sort_by: tuple[str, ...]


def write_and_audit(
    marked: DataFrame,
    lake: Lake,
    table: Table,
    rules: Rules,
    hours: Collection[datetime],
    repair: str,
    options: WriteOptions,
) -> dict[datetime, HourAudit]:
    """Stage the marked rows of `hours` on the branch `repair`, good ones and rejects, and audit every hour.

    What is judged are the files that were written. Raises CheckFailed when a row has no hour.
    """
    spark, rejects = marked.sparkSession, quarantine_of(table)
    with RejectSplit(marked, table.hour, options.payload) as split:
        files = _write(split.good.select(*table.column_names), lake, table, hours, repair, options.sort_by)
        uris = [uri for written in files.values() for uri in written]
        stored = stored_rows(spark, table, uris)
        judged = judge(split, stored, table, rules, options.measures)
        lake.stage(table, repair, hours, files)
        reason = F.concat_ws("; ", FAILED).alias("reason")
        set_aside = {}
        if (rejected := split.rejects()) is not None:
            rows = rejected.select(F.timestamp_seconds(EPOCH).alias(rejects.hour), reason, PAYLOAD)
            set_aside = _write(rows, lake, rejects, hours, repair, ())
        lake.stage(rejects, repair, hours, set_aside)
    return _with_files(judged, lake, table, hours, repair)


def _with_files(
    judged: Mapping[datetime, HourAudit], lake: Lake, table: Table, hours: Collection[datetime], repair: str
) -> dict[datetime, HourAudit]:
    """The audits with the rows that the files of the branch have, by the lake's metadata."""
    covering = HourRange.covering(hours)
    written = lake.rows_by_hour(table, covering, branch=repair)
    quarantined = lake.rows_by_hour(quarantine_of(table), covering, branch=repair)
    return {
        hour: replace(judged.get(hour, HourAudit()), written=written.get(hour, 0), quarantined=quarantined.get(hour, 0))
        for hour in hours
    }


def _write(
    rows: DataFrame, lake: Lake, table: Table, hours: Collection[datetime], repair: str, sort_by: tuple[str, ...]
) -> dict[datetime, list[str]]:
    # A repair may write a table several times, each time other hours.
    folder = f"{lake.data_uri(table, repair)}/{format_hour(min(hours))}"
    return write_by_hour(as_written(rows, table), folder, hour=table.hour, sort_by=sort_by)


def judge(
    split: RejectSplit, good: DataFrame, table: Table, rules: Rules, measures: Mapping[str, Column]
) -> dict[datetime, HourAudit]:
    """Counts, failures with samples, hour rules and measures of each hour.

    `good` are the good rows as they were written, or as they come. Where they and the rejects are not as many as the action has
    seen, the rows are counted by a pass of their own. Raises CheckFailed when a row has no hour.
    """
    aggregates = [F.coalesce(rule.holds(), F.lit(False)).alias(f"rule_{n}") for n, rule in enumerate(rules.hours)]
    aggregates += [measure.alias(f"measure_{name}") for name, measure in measures.items()]
    # 32 bits of each hash, so that the sum of two billion rows is still a bigint.
    aggregates.append(F.sum(F.xxhash64(*map(hashable, table.columns)).bitwiseAND(F.lit(0xFFFFFFFF))).alias("content"))
    by_hour = good.groupBy(F.unix_seconds(table.hour).alias(EPOCH)).agg(F.count("*").alias("rows"), *aggregates)
    verdicts = {_utc(row): row for row in by_hour.collect()}
    rejects = rejects_by_hour(split.rejects())
    counts = Counter({hour: row["rows"] for hour, row in verdicts.items()})
    counts.update({hour: of_hour.rows for hour, of_hour in rejects.items()})
    if counts.total() != split.rows:
        counts, homeless = split.count_anew()
        if homeless:
            raise CheckFailed(f"{table}: {homeless} rows have no {table.hour}; nothing was published")
        rejects = rejects_by_hour(split.rejects())
    audits = {}
    for hour, computed in counts.items():
        found, failed = verdicts.get(hour), rejects[hour]
        audits[hour] = HourAudit(
            computed=computed,
            failures={rule.name: failed.by_rule[rule.name] for rule in rules.rows if rule.name in failed.by_rule},
            samples={rule.name: failed.samples[rule.name] for rule in rules.rows if rule.name in failed.samples},
            # An hour without a good row has no verdict; it is refused as a whole.
            broken={rule.name: "" for n, rule in enumerate(rules.hours) if found is None or not found[f"rule_{n}"]},
            measures={name: 0 if found is None else int(found[f"measure_{name}"]) for name in measures},
            content=0 if found is None or found["content"] is None else found["content"],
        )
    return _ask_pandera(good, table, rules, audits)


@dataclass
class HourRejects:
    """How many rows of an hour failed a row rule, how many each rule, and the first few of these."""

    rows: int = 0
    by_rule: dict[str, int] = field(default_factory=dict)
    samples: dict[str, tuple[str, ...]] = field(default_factory=dict)


def rejects_by_hour(rejects: DataFrame | None) -> defaultdict[datetime, HourRejects]:
    """The rejects of each hour, summed up; the samples are the same ones whoever computes them."""
    found: defaultdict[datetime, HourRejects] = defaultdict(HourRejects)
    if rejects is None:
        return found
    # Once for the row itself, without a rule, and once for each rule that it failed.
    each = rejects.select(EPOCH, F.explode(F.concat(F.array(F.lit(None)), FAILED)).alias("rule"), PAYLOAD)
    first = F.min_by(F.left(PAYLOAD, F.lit(_SAMPLE_LETTERS)), PAYLOAD, _SAMPLE_ROWS)
    grouped = (
        each.where(F.col(EPOCH).isNotNull()).groupBy(EPOCH, "rule").agg(F.count("*").alias("rows"), first.alias("samples"))
    )
    for row in grouped.collect():
        of_hour = found[_utc(row)]
        if row["rule"] is None:
            of_hour.rows = row["rows"]
        else:
            of_hour.by_rule[row["rule"]], of_hour.samples[row["rule"]] = row["rows"], tuple(row["samples"])
    return found


def _ask_pandera(
    good: DataFrame, table: Table, rules: Rules, judged: Mapping[datetime, HourAudit]
) -> dict[datetime, HourAudit]:
    """The audits with the verdicts of pandera on the good rows of each hour: no chunking of a range changes them."""
    if not rules.by_pandera:
        return dict(judged)
    names = ", ".join(rule.name for rule in rules.by_pandera)
    _log.warning("%s: %s: checked by pandera, in %d extra passes", table, names, len(rules.by_pandera) * len(judged))
    found = {}
    for hour, audit in judged.items():
        rows = good.where(F.col(table.hour) == F.lit(hour)).select(*table.column_names)
        errors = {rule.name: rule.find_error(rows)[:_SAMPLE_LETTERS] for rule in rules.by_pandera}
        found[hour] = replace(audit, broken={**audit.broken, **{name: error for name, error in errors.items() if error}})
    return found


def _utc(row: Any) -> datetime:
    # Collected as a number: PySpark turns collected timestamps into the machine's local time.
    return datetime.fromtimestamp(row[EPOCH], UTC)
