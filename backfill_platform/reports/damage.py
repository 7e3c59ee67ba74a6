"""Damaged hours in few lines: what is alike is one line, with the ranges of its hours and the sums of its rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from backfill_platform.domain.gaps import Gap, RowCounts
from backfill_platform.domain.hours import HourRange, merge_hours

Counts = Mapping[tuple[str, datetime], RowCounts]


@dataclass(frozen=True)
class AlikeHours:
    """The hours of a table with one kind of gap, as ranges, with the evidence of the first.

    `rows_expected` is None where it is not known for each of them.
    """

    table: str
    kind: str
    ranges: tuple[HourRange, ...]
    rows_expected: int | None
    rows_found: int
    evidence: str

    @property
    def hours(self) -> int:
        """How many hours they are."""
        return sum(map(len, self.ranges))


def alike(gaps: Sequence[Gap], counts: Counts) -> list[AlikeHours]:
    """The gaps by table and kind, in the order in which these first appear."""
    groups: dict[tuple[str, str], list[Gap]] = {}
    for gap in gaps:
        groups.setdefault((gap.table, str(gap.kind)), []).append(gap)
    found = []
    for (table, kind), group in groups.items():
        rows = [counts[table, gap.hour] for gap in group]
        expected = [one.expected for one in rows if one.expected is not None]
        found.append(
            AlikeHours(
                table,
                kind,
                merge_hours(gap.hour for gap in group),
                sum(expected) if len(expected) == len(rows) else None,
                sum(one.found for one in rows),
                group[0].evidence,
            )
        )
    return found
