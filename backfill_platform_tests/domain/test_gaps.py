from dataclasses import replace
from datetime import UTC, datetime, timedelta

from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.gaps import (
    GapKind,
    RowCounts,
    Written,
    code_changed,
    count_gaps,
    has_changed,
    lake_gaps,
    landing_gaps,
    source_gaps,
    stale_gaps,
    warehouse_gaps,
)
from backfill_platform.domain.hours import HOUR, HourRange

T0 = datetime(1998, 4, 30, 22, tzinfo=UTC)
HOURS = HourRange(T0, T0 + 6 * HOUR)


def at(*numbers: int) -> list[datetime]:
    return [T0 + n * HOUR for n in numbers]


def test_an_hour_is_missing_where_only_its_upstream_table_has_it() -> None:
    assert [gap.hour for gap in lake_gaps("t", ["above"], HOURS, set(at(0, 2)), set(at(0, 1, 2, 4)))] == at(1, 4)


def written(number: int, rows: int | None, content: int = 0, code: str = "v1") -> Written:
    """What a repair wrote in the minute of that number."""
    at = T0 + timedelta(minutes=number)
    return Written(f"r{number}", at, at, rows, Fingerprint(rows or 0, content), code)


def test_hours_that_have_not_landed_are_missing_wherever_they_lie() -> None:
    assert [gap.hour for gap in landing_gaps("raw", HOURS, set(at(1, 4)), {})] == at(0, 2, 3, 5)
    assert landing_gaps("raw", HOURS, set(HOURS), {}) == []


def test_an_hour_that_landed_empty_is_missing_between_hours_with_rows_unless_it_is_expected_empty() -> None:
    rows = dict.fromkeys(at(0, 1, 4, 5), 100)
    assert [gap.hour for gap in landing_gaps("raw", HOURS, set(HOURS), rows)] == at(2, 3)
    assert [gap.hour for gap in landing_gaps("raw", HOURS, set(HOURS), rows, expected_empty_hours=set(at(2)))] == at(3)
    far = {hour - timedelta(days=2): 100 for hour in HOURS}
    assert landing_gaps("raw", HOURS, set(HOURS), far) == []


def test_an_hour_with_other_row_counts_than_were_written_is_damaged() -> None:
    claims = dict(zip(at(0, 1, 2, 3, 4), [written(n, 5) for n in range(4)] + [written(4, None)], strict=True))
    rows = dict(zip(at(0, 1, 2, 4), [5, 3, 7, 9], strict=True))
    kinds = {gap.hour: gap.kind for gap in count_gaps("t", at(0, 1, 2, 3, 4, 5), rows, claims)}
    assert kinds == dict(zip(at(1, 2, 3), [GapKind.SHORT, GapKind.DRIFTED, GapKind.MISSING], strict=True))


def test_a_source_has_changed_only_if_its_content_did_since_it_was_read() -> None:
    build = written(10, 1)
    assert not has_changed(build, [written(1, 5, 7)])
    assert not has_changed(build, [written(1, 5, 7), written(11, 5, 7)])
    assert has_changed(build, [written(1, 5, 7), written(11, 5, 8)])
    assert has_changed(build, [written(1, 5, 7), written(11, 6, 7)])
    assert not has_changed(build, [written(11, 5, 8)])


def test_hours_that_other_code_has_built_are_stale_and_unknown_code_is_not_judged() -> None:
    claims = {T0: written(0, 1, code="v1"), T0 + HOUR: written(0, 1, code="v2"), T0 + 2 * HOUR: written(0, 1, code="")}
    assert list(code_changed(claims, "v2")) == [T0]


def test_stale_hours_keep_their_reasons() -> None:
    assert [(gap.hour, gap.kind, gap.evidence) for gap in stale_gaps("t", {T0: "late"})] == [(T0, GapKind.STALE, "late")]


def test_warehouse_hours_are_judged_by_fingerprint_not_by_count() -> None:
    fine, other = Fingerprint(5, 1), Fingerprint(5, 2)
    lake = dict.fromkeys(at(0, 1, 2, 3, 4), fine)
    net = {T0: fine, T0 + 1 * HOUR: other, T0 + 2 * HOUR: Fingerprint(3, 9), T0 + 4 * HOUR: fine}
    final = {**net, T0 + 4 * HOUR: other}
    gaps = {gap.hour: gap.kind for gap in warehouse_gaps("t", HOURS, lake, net, final)}
    assert gaps == dict(
        zip(at(1, 2, 3, 4), [GapKind.DRIFTED, GapKind.SHORT, GapKind.MISSING, GapKind.INCONSISTENT], strict=True)
    )


def test_rows_that_the_lake_does_not_have_are_drift() -> None:
    net = {T0: Fingerprint(5, 1)}
    assert [gap.kind for gap in warehouse_gaps("t", HOURS, {}, net, net)] == [GapKind.DRIFTED]


def test_hours_that_the_lake_has_lost_are_only_checked_for_consistency() -> None:
    net = {T0: Fingerprint(5, 1), T0 + HOUR: Fingerprint(5, 1)}
    final = {**net, T0 + HOUR: Fingerprint(4, 1)}
    assert [gap.kind for gap in warehouse_gaps("t", HOURS, {}, net, final, comparable=set())] == [GapKind.INCONSISTENT]


def test_the_evidence_does_not_say_that_all_rows_differ_where_only_their_number_is_known() -> None:
    lake = dict.fromkeys(at(0, 1), Fingerprint(13, 1))
    net = {T0: Fingerprint(13, 2), T0 + HOUR: Fingerprint(15, 2)}
    assert [gap.evidence for gap in warehouse_gaps("t", at(0, 1), lake, net, net)] == [
        "13 rows, as many as the lake has, with other values",
        "15 rows, but the lake has 13",
    ]


def test_the_share_of_the_rows_is_told_where_it_means_something() -> None:
    shares = [RowCounts(10, 4).share, RowCounts(0, 0).share, RowCounts(0, 3).share, RowCounts(None, 3).share]
    assert shares == [0.4, 1.0, None, None]


def test_a_landed_hour_is_stale_when_its_file_has_another_version_and_not_when_the_file_is_gone() -> None:
    noted = {hour: replace(written(1, 5), source_version="9 bytes") for hour in at(0, 1, 2)} | {at(3)[0]: written(1, 5)}
    now = dict(zip(at(0, 1, 2, 3), ("9 bytes", "7 bytes", "", "7 bytes"), strict=True))
    (gap,) = source_gaps("raw", now, noted)
    assert (gap.hour, gap.kind) == (at(1)[0], "stale")
    assert gap.evidence == "its file had 9 bytes when it landed, and has 7 bytes now"
