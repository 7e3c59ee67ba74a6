"""Which hours are not what they should be, judged from counts and fingerprints alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from backfill_platform.core.hours import HourRange
from backfill_platform.core.identity import EMPTY, Fingerprint


class GapKind(StrEnum):
    """What is wrong with an hour of a table."""

    MISSING = "missing"
    SHORT = "short"
    DRIFTED = "drifted"
    UNHEALTHY = "unhealthy"


class Place(StrEnum):
    """Where the hour is damaged: a lake hour is built again, a warehouse hour is published again."""

    LAKE = "lake"
    WAREHOUSE = "warehouse"


@dataclass(frozen=True, order=True)
class Gap:
    """One damaged hour of one table, with the evidence in words."""

    table: str
    hour: datetime
    place: Place
    kind: GapKind
    evidence: str


def lake_gaps(
    table: str, upstream: str, hours: HourRange, rows: Mapping[datetime, int], upstream_rows: Mapping[datetime, int]
) -> list[Gap]:
    """Hours without rows where the layer above has some. An hour above without rows accounts for an empty one here."""
    return [
        Gap(table, hour, Place.LAKE, GapKind.MISSING, f"no rows, but {upstream} has {upstream_rows[hour]}")
        for hour in hours
        if not rows.get(hour, 0) and upstream_rows.get(hour, 0)
    ]


def landing_gaps(table: str, hours: HourRange, rows: Mapping[datetime, int]) -> list[Gap]:
    """Hours without rows between hours that have some."""
    landed = [hour for hour in hours if rows.get(hour, 0)]
    if not landed:
        return []
    between = HourRange.covering(landed)
    evidence = "no rows, but hours before and after it have some"
    return [Gap(table, hour, Place.LAKE, GapKind.MISSING, evidence) for hour in between if not rows.get(hour, 0)]


def warehouse_gaps(
    table: str,
    hours: Iterable[datetime],
    lake: Mapping[datetime, Fingerprint],
    net: Mapping[datetime, Fingerprint],
    final: Mapping[datetime, Fingerprint],
) -> list[Gap]:
    """Hours whose warehouse rows differ from the lake's, or whose net state and FINAL disagree."""
    gaps = []
    for hour in hours:
        want, have, read = (found.get(hour, EMPTY) for found in (lake, net, final))
        if have != read:
            kind, evidence = GapKind.UNHEALTHY, f"net state {have}, but FINAL {read}"
        elif have == want:
            continue
        elif have == EMPTY:
            kind, evidence = GapKind.MISSING, f"no rows, but the lake has {want.rows}"
        elif have.rows < want.rows:
            kind, evidence = GapKind.SHORT, f"{have.rows} rows, but the lake has {want.rows}"
        else:
            kind, evidence = GapKind.DRIFTED, f"{have.rows} rows that differ from the {want.rows} of the lake"
        gaps.append(Gap(table, hour, Place.WAREHOUSE, kind, evidence))
    return gaps
