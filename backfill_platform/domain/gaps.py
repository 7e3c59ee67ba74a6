"""Which hours are not what they should be, judged from counts and fingerprints alone."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from backfill_platform.domain.fingerprint import EMPTY, Fingerprint
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.offsets import Spans, holes

_NEAR = 24  # hours in which a neighbour with rows makes an hour without rows suspicious


class GapKind(StrEnum):
    """What is wrong with an hour of a table."""

    MISSING = "missing"
    SHORT = "short"
    STALE = "stale"
    DRIFTED = "drifted"
    INCONSISTENT = "inconsistent"


class Place(StrEnum):
    """Where the hour is damaged: a lake hour is built again, a warehouse hour is published again."""

    LAKE = "lake"
    WAREHOUSE = "warehouse"


@dataclass(frozen=True, order=True)
class Gap:
    """One damaged hour of one table, with the evidence in words; `tenants` whose rows differ, where that is known."""

    table: str
    hour: datetime
    place: Place
    kind: GapKind
    evidence: str
    tenants: tuple[str, ...] = ()


@dataclass(frozen=True)
class Written:
    """What the ledger says that a promoted landing or build left of an hour. Unknown counts and contents are None."""

    repair_id: str
    started_at: datetime
    finished_at: datetime
    rows: int | None
    content: Fingerprint | None
    code_version: str
    snapshot_id: int | None = None


def landing_gaps(
    table: str,
    hours: HourRange,
    landed: Container[datetime],
    rows: Mapping[datetime, int],
    expected_empty_hours: Container[datetime] = (),
    written: Mapping[datetime, Written] | None = None,
) -> list[Gap]:
    """Hours that have not landed, or were lost; and those that landed empty between hours with rows, unless they are quiet.

    `rows` are those of all hours around, `written` what the ledger has of them: an hour it calls empty was empty at its source.
    """
    found = []
    for hour in hours:
        if hour not in landed:
            claim = (written or {}).get(hour)
            lost = f"; {claim.repair_id} had landed {claim.rows} rows" if claim and claim.rows else ""
            found.append(Gap(table, hour, Place.LAKE, GapKind.MISSING, f"not landed, or lost{lost}"))
        elif not rows.get(hour) and hour not in expected_empty_hours and (beside := _neighbour(hour, rows)):
            evidence = f"landed without rows, but {beside} rows landed in an hour next to it"
            found.append(Gap(table, hour, Place.LAKE, GapKind.MISSING, evidence))
    return found


def offset_gaps(table: str, hours: HourRange, landed: Mapping[datetime, Spans]) -> list[Gap]:
    """Hours of a topic that lack messages which were sent later, with old timestamps: offsets that landed with no hour."""
    found = []
    for hour, spans in sorted(holes(landed).items()):
        if hour in hours:
            told = ", ".join(f"{span.start} to {span.end - 1} of partition {span.partition}" for span in spans)
            evidence = f"offsets {told} lie between it and the hour after it, and have landed with neither"
            found.append(Gap(table, hour, Place.LAKE, GapKind.SHORT, evidence))
    return found


def lake_gaps(table: str, upstream: str, hours: HourRange, built: Container[datetime], above: Container[datetime]) -> list[Gap]:
    """Hours that were never built, or were lost, although the layer above has them. Hours known to be empty are built."""
    evidence = f"not built, or lost; {upstream} has the hour"
    return [Gap(table, hour, Place.LAKE, GapKind.MISSING, evidence) for hour in hours if hour not in built and hour in above]


def count_gaps(
    table: str, hours: Iterable[datetime], rows: Mapping[datetime, int], written: Mapping[datetime, Written]
) -> list[Gap]:
    """Hours of the lake that have other row counts than the ledger says were written. `rows` are those that can be read."""
    found = []
    for hour in hours:
        claim, have = written.get(hour), rows.get(hour, 0)
        if claim is None or claim.rows is None or have == claim.rows:
            continue
        fewer = GapKind.SHORT if have else GapKind.MISSING
        kind = fewer if have < claim.rows else GapKind.DRIFTED
        found.append(Gap(table, hour, Place.LAKE, kind, f"{have} rows, but {claim.repair_id} wrote {claim.rows}"))
    return found


def stale_gaps(table: str, why: Mapping[datetime, str]) -> list[Gap]:
    """Hours that would be built otherwise by now, with the reasons."""
    return [Gap(table, hour, Place.LAKE, GapKind.STALE, evidence) for hour, evidence in sorted(why.items())]


def code_changed(written: Mapping[datetime, Written], version: str) -> dict[datetime, str]:
    """The hours that were built by code other than `version`, which is not empty; unknown versions are not judged."""
    return {
        hour: f"built by code {claim.code_version}, which is {version} by now"
        for hour, claim in written.items()
        if claim.code_version and claim.code_version != version
    }


def seen_by(claim: Written, versions: Iterable[Written]) -> Written | None:
    """The version of a source hour that a build has read, oldest first given; None where there was none yet.

    What was written while the build was at work counts as not read.
    """
    seen = [one for one in versions if one.finished_at <= claim.started_at]
    return seen[-1] if seen else None


def has_changed(claim: Written, versions: list[Written]) -> bool:
    """Whether a source hour holds other rows than those which a build of it has read; False where nothing is known."""
    seen = seen_by(claim, versions)
    if seen is None or seen.content is None or versions[-1].content is None:
        return False
    return seen.content != versions[-1].content


def warehouse_gaps(
    table: str,
    hours: Iterable[datetime],
    lake: Mapping[datetime, Fingerprint],
    net: Mapping[datetime, Fingerprint],
    final: Mapping[datetime, Fingerprint],
    comparable: Container[datetime] | None = None,
) -> list[Gap]:
    """Hours whose warehouse rows differ from the lake's, or whose net state and FINAL disagree.

    Hours that are not `comparable` are not held against the lake, which is damaged itself there.
    """
    gaps = []
    for hour in hours:
        want, have, read = (found.get(hour, EMPTY) for found in (lake, net, final))
        if have != read:
            kind, evidence = GapKind.INCONSISTENT, f"net state {have}, but FINAL {read}"
        elif have == want or (comparable is not None and hour not in comparable):
            continue
        elif have == EMPTY:
            kind, evidence = GapKind.MISSING, f"no rows, but the lake has {want.rows}"
        elif have.rows < want.rows:
            kind, evidence = GapKind.SHORT, f"{have.rows} rows, but the lake has {want.rows}"
        else:
            kind, evidence = GapKind.DRIFTED, f"{have.rows} rows that differ from the {want.rows} of the lake"
        gaps.append(Gap(table, hour, Place.WAREHOUSE, kind, evidence))
    return gaps


def _neighbour(hour: datetime, rows: Mapping[datetime, int]) -> int:
    """The rows of the nearest hour that has some, 0 where none is near."""
    for distance in range(1, _NEAR + 1):
        if beside := max(rows.get(hour - distance * HOUR, 0), rows.get(hour + distance * HOUR, 0)):
            return beside
    return 0
