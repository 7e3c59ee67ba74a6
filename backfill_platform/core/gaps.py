"""Which hours are not what they should be, judged from counts and fingerprints alone."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from backfill_platform.core.hours import HourRange
from backfill_platform.core.identity import EMPTY, Fingerprint


class GapKind(StrEnum):
    """What is wrong with an hour of a table."""

    MISSING = "missing"
    SHORT = "short"
    STALE = "stale"
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


def lake_gaps(table: str, upstream: str, hours: HourRange, built: Container[datetime], above: Container[datetime]) -> list[Gap]:
    """Hours that were never built, or were lost, although the layer above has them. Hours known to be empty are built."""
    evidence = f"not built, or lost; {upstream} has the hour"
    return [Gap(table, hour, Place.LAKE, GapKind.MISSING, evidence) for hour in hours if hour not in built and hour in above]


def landing_gaps(table: str, hours: HourRange, landed: Container[datetime]) -> list[Gap]:
    """Hours that have not landed, or were lost."""
    return [Gap(table, hour, Place.LAKE, GapKind.MISSING, "not landed, or lost") for hour in hours if hour not in landed]


def stale_gaps(table: str, outdated: Mapping[datetime, int]) -> list[Gap]:
    """Hours with rows that were open when they were built and would be decided by what has landed since."""
    return [
        Gap(table, hour, Place.LAKE, GapKind.STALE, f"{rows} open sessions are known to be closed, or longer, by now")
        for hour, rows in outdated.items()
        if rows
    ]


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
