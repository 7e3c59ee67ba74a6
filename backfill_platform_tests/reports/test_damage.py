"""Damaged hours in few lines."""

from datetime import UTC, datetime

from backfill_platform.domain.gaps import Gap, GapKind, Place, RowCounts
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.reports.damage import AlikeHours, alike

T0 = datetime(2026, 3, 2, tzinfo=UTC)


def test_hours_of_a_table_that_are_damaged_alike_are_ranges_with_their_totals() -> None:
    def gap(table: str, number: int, kind: GapKind) -> Gap:
        return Gap(table, T0 + number * HOUR, Place.WAREHOUSE, kind, f"evidence of {number}")

    gaps = [
        *(gap("a", number, GapKind.MISSING) for number in (0, 1, 5)),
        gap("a", 2, GapKind.SHORT),
        gap("b", 0, GapKind.STALE),
    ]
    counts = {(one.table, one.hour): RowCounts(None if one.table == "b" else 10, 3) for one in gaps}
    missing = (HourRange(T0, T0 + 2 * HOUR), HourRange(T0 + 5 * HOUR, T0 + 6 * HOUR))
    found = alike(gaps, counts)
    assert found == [
        AlikeHours("a", "missing", missing, 30, 9, "evidence of 0"),
        AlikeHours("a", "short", (HourRange(T0 + 2 * HOUR, T0 + 3 * HOUR),), 10, 3, "evidence of 2"),
        AlikeHours("b", "stale", (HourRange(T0, T0 + HOUR),), None, 3, "evidence of 0"),
    ]
    assert [one.hours for one in found] == [3, 1, 1]
