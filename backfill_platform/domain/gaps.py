"""Which hours differ from what they should be, judged from counts and fingerprints alone."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from backfill_platform.domain.fingerprint import EMPTY, Fingerprint
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.offsets import Spans, holes

_NEAR = 24  # hours: a neighbour with rows within this distance makes an hour without rows suspicious


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
    """One damaged hour of one table, with the evidence as text; `tenants` are those whose rows differ, where that is known."""

    table: str
    hour: datetime
    place: Place
    kind: GapKind
    evidence: str
    tenants: tuple[str, ...] = ()


@dataclass(frozen=True)
class RowCounts:
    """How many rows an hour of a table should have and has. `expected` is None where nobody can know before it is repaired."""

    expected: int | None
    found: int

    @property
    def share(self) -> float | None:
        """The rows found as a share of those expected; None where that says nothing."""
        if self.expected == 0:
            return None if self.found else 1.0
        return None if self.expected is None else self.found / self.expected


@dataclass(frozen=True)
class Written:
    """What a promoted landing or build wrote of an hour, by the ledger. Unknown counts and contents are None.

    `lake_table` is the id of the lake table, empty in entries of earlier versions. `source_version` is the version of the
    files that a landing has read, empty where that is not known.
    """

    repair_id: str
    started_at: datetime
    finished_at: datetime
    rows: int | None
    content: Fingerprint | None
    code_version: str
    snapshot_id: int | None = None
    lake_table: str = ""
    source_version: str = ""


def landing_gaps(
    table: str,
    hours: HourRange,
    landed: Container[datetime],
    rows: Mapping[datetime, int],
    expected_empty_hours: Container[datetime] = (),
    written: Mapping[datetime, Written] | None = None,
) -> list[Gap]:
    """Hours that have not landed or were lost, and hours that landed empty near hours with rows, unless expected to be empty.

    `rows` covers the hours around the range, too. `written` is what the ledger has: it tells how many rows a lost hour had.
    """
    gaps = []
    for hour in hours:
        if hour not in landed:
            claim = (written or {}).get(hour)
            lost = f"; {claim.repair_id} had landed {claim.rows} rows" if claim and claim.rows else ""
            gaps.append(Gap(table, hour, Place.LAKE, GapKind.MISSING, f"not landed, or lost{lost}"))
        elif not rows.get(hour) and hour not in expected_empty_hours and (beside := _neighbour(hour, rows)):
            evidence = f"landed without rows, but {beside} rows landed in an hour next to it"
            gaps.append(Gap(table, hour, Place.LAKE, GapKind.MISSING, evidence))
    return gaps


def offset_gaps(table: str, hours: HourRange, landed: Mapping[datetime, Spans]) -> list[Gap]:
    """Hours of a topic that lack messages sent later with old timestamps: their offsets have landed with no hour."""
    gaps = []
    for hour, spans in sorted(holes(landed).items()):
        if hour in hours:
            ranges = ", ".join(f"{span.start} to {span.end - 1} of partition {span.partition}" for span in spans)
            evidence = f"offsets {ranges} lie between it and the hour after it, and have landed with neither"
            gaps.append(Gap(table, hour, Place.LAKE, GapKind.SHORT, evidence))
    return gaps


def source_gaps(table: str, versions: Mapping[datetime, str], written: Mapping[datetime, Written]) -> list[Gap]:
    """Landed hours whose files have another version by now. `versions` is empty for files that are gone: raw files may go."""
    gaps = []
    for hour, version in sorted(versions.items()):
        landed = written[hour].source_version if hour in written else ""
        if version and landed and version != landed:
            evidence = f"its file had {landed} when it landed, and has {version} now"
            gaps.append(Gap(table, hour, Place.LAKE, GapKind.STALE, evidence))
    return gaps


def lake_gaps(
    table: str, upstream: Sequence[str], hours: HourRange, built: Container[datetime], above: Container[datetime]
) -> list[Gap]:
    """Hours that were never built, or were lost, although all of `upstream` have them (`above`). Empty hours count as built."""
    evidence = f"not built, or lost; {' and '.join(upstream)} {'have' if len(upstream) > 1 else 'has'} the hour"
    return [Gap(table, hour, Place.LAKE, GapKind.MISSING, evidence) for hour in hours if hour not in built and hour in above]


def count_gaps(
    table: str, hours: Iterable[datetime], rows: Mapping[datetime, int], written: Mapping[datetime, Written]
) -> list[Gap]:
    """Hours of the lake whose row count differs from what the ledger says was written. `rows` are those that can be read."""
    gaps = []
    for hour in hours:
        claim, stored = written.get(hour), rows.get(hour, 0)
        if claim is None or claim.rows is None or stored == claim.rows:
            continue
        fewer = GapKind.SHORT if stored else GapKind.MISSING
        kind = fewer if stored < claim.rows else GapKind.DRIFTED
        gaps.append(Gap(table, hour, Place.LAKE, kind, f"{stored} rows, but {claim.repair_id} wrote {claim.rows}"))
    return gaps


def stale_gaps(table: str, why: Mapping[datetime, str]) -> list[Gap]:
    """Hours that a build would write differently now; `why` has the reason for each."""
    return [Gap(table, hour, Place.LAKE, GapKind.STALE, evidence) for hour, evidence in sorted(why.items())]


def code_changed(written: Mapping[datetime, Written], version: str) -> dict[datetime, str]:
    """The hours that code other than `version` (not empty) built, with the reason; hours of unknown code are left out."""
    return {
        hour: f"built by code {claim.code_version}, which is {version} by now"
        for hour, claim in written.items()
        if claim.code_version and claim.code_version != version
    }


def seen_by(claim: Written, versions: Iterable[Written]) -> Written | None:
    """The version of a source hour that the build `claim` has read, None where there was none yet.

    `versions` are ordered, the oldest first. What was written while the build ran counts as not read.
    """
    seen = [version for version in versions if version.finished_at <= claim.started_at]
    return seen[-1] if seen else None


def has_changed(claim: Written, versions: list[Written]) -> bool:
    """Whether a source hour holds other rows than the build `claim` has read; False where that is not known."""
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

    Hours outside `comparable` are not compared with the lake, because the lake itself is damaged there; None compares all.
    """
    gaps = []
    for hour in hours:
        desired, stored, shown = (fingerprints.get(hour, EMPTY) for fingerprints in (lake, net, final))
        if stored != shown:
            kind, evidence = GapKind.INCONSISTENT, f"net state {stored}, but FINAL {shown}"
        elif stored == desired or (comparable is not None and hour not in comparable):
            continue
        elif stored == EMPTY:
            kind, evidence = GapKind.MISSING, f"no rows, but the lake has {desired.rows}"
        elif stored.rows < desired.rows:
            kind, evidence = GapKind.SHORT, f"{stored.rows} rows, but the lake has {desired.rows}"
        elif stored.rows > desired.rows:
            kind, evidence = GapKind.DRIFTED, f"{stored.rows} rows, but the lake has {desired.rows}"
        else:
            kind, evidence = GapKind.DRIFTED, f"{stored.rows} rows, as many as the lake has, with other values"
        gaps.append(Gap(table, hour, Place.WAREHOUSE, kind, evidence))
    return gaps


def _neighbour(hour: datetime, rows: Mapping[datetime, int]) -> int:
    """The row count of the nearest hour with rows, 0 where none is near."""
    for distance in range(1, _NEAR + 1):
        if beside := max(rows.get(hour - distance * HOUR, 0), rows.get(hour + distance * HOUR, 0)):
            return beside
    return 0
