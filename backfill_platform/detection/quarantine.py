"""What lies in the quarantine of a pipeline, by table and by the check that rejected it."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

import pyarrow.compute as pc

from backfill_platform.adapters.iceberg.lake import Lake, quarantine_of
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.tables import Table
from backfill_platform.errors import UsageError
from backfill_platform.pipelines.spec import Pipeline

_BETWEEN = "; "
_LETTERS = 200


@dataclass(frozen=True)
class Rejected:
    """Rows of a table that a check has rejected. A row that failed several checks counts for each of them.

    `sample` is the start of one of them, of the first hour.
    """

    table: str
    check: str
    rows: int
    hours: int
    first_hour: datetime
    last_hour: datetime
    sample: str


def rejected(pipeline: Pipeline, lake: Lake, hours: HourRange) -> tuple[Rejected, ...]:
    """What the quarantines of the tables hold of the hours, in the order of the flow, the most frequent check first."""
    return tuple(one for table in pipeline.tables for one in _of_table(table, lake, hours))


def check_reasons(pipeline: Pipeline, lake: Lake, hours: HourRange, reasons: Collection[str]) -> None:
    """Raise UsageError with the checks that there are, when no raw line of the hours was rejected for one of the `reasons`."""
    known = {one.check for one in _of_table(pipeline.raw.table, lake, hours)}
    if absent := sorted(set(reasons) - known):
        there = ", ".join(f"'{name}'" for name in sorted(known)) or "none"
        raise UsageError(
            f"no line of {pipeline.raw.table} in {hours} was rejected for '{absent[0]}'; lines were rejected for: {there}"
        )


def _of_table(table: Table, lake: Lake, hours: HourRange) -> list[Rejected]:
    within = f"hour >= '{hours.start.isoformat()}' and hour < '{hours.end.isoformat()}'"
    quarantine = quarantine_of(table)
    rows = lake.read(quarantine, ("hour", "reason"), within).group_by(["hour", "reason"]).aggregate([([], "count_all")])
    by_check: dict[str, Counter[datetime]] = {}
    first: dict[str, tuple[datetime, str]] = {}
    for row in rows.to_pylist():
        for check in row["reason"].split(_BETWEEN):
            by_check.setdefault(check, Counter())[row["hour"]] += row["count_all"]
            first[check] = min(first.get(check, (row["hour"], row["reason"])), (row["hour"], row["reason"]))
    samples = _samples(quarantine, lake, set(first.values()))
    return [
        Rejected(str(table), check, counts.total(), len(counts), min(counts), max(counts), samples[first[check]])
        for check, counts in sorted(by_check.items(), key=lambda one: (-one[1].total(), one[0]))
    ]


def _samples(quarantine: Table, lake: Lake, wanted: set[tuple[datetime, str]]) -> dict[tuple[datetime, str], str]:
    """The start of the first payload of an hour and its reasons."""
    found = {}
    for hour in {hour for hour, _ in wanted}:
        rows = lake.read(quarantine, ("reason", "payload"), f"hour = '{hour.isoformat()}'")
        for reason in {reason for at, reason in wanted if at == hour}:
            payloads = rows.filter(pc.equal(rows.column("reason"), reason)).column("payload")
            found[hour, reason] = (pc.min(payloads).as_py() or "")[:_LETTERS]
    return found
