from datetime import UTC, datetime

from backfill_platform.core.gaps import GapKind, lake_gaps, landing_gaps, stale_gaps, warehouse_gaps
from backfill_platform.core.hours import HOUR, HourRange
from backfill_platform.core.identity import Fingerprint

T0 = datetime(1998, 4, 30, 22, tzinfo=UTC)
HOURS = HourRange(T0, T0 + 6 * HOUR)


def at(*numbers: int) -> list[datetime]:
    return [T0 + n * HOUR for n in numbers]


def test_an_hour_is_missing_where_only_the_layer_above_has_it() -> None:
    assert [gap.hour for gap in lake_gaps("t", "above", HOURS, set(at(0, 2)), set(at(0, 1, 2, 4)))] == at(1, 4)


def test_hours_that_have_not_landed_are_missing_wherever_they_lie() -> None:
    assert [gap.hour for gap in landing_gaps("raw", HOURS, set(at(1, 4)))] == at(0, 2, 3, 5)
    assert landing_gaps("raw", HOURS, set(HOURS)) == []


def test_hours_with_rows_that_are_decided_by_now_are_stale() -> None:
    assert [(gap.hour, gap.kind) for gap in stale_gaps("t", {T0: 2, T0 + HOUR: 0})] == [(T0, GapKind.STALE)]


def test_warehouse_hours_are_judged_by_fingerprint_not_by_count() -> None:
    fine, other = Fingerprint(5, 1), Fingerprint(5, 2)
    lake = dict.fromkeys(at(0, 1, 2, 3, 4), fine)
    net = {T0: fine, T0 + 1 * HOUR: other, T0 + 2 * HOUR: Fingerprint(3, 9), T0 + 4 * HOUR: fine}
    final = {**net, T0 + 4 * HOUR: other}
    gaps = {gap.hour: gap.kind for gap in warehouse_gaps("t", HOURS, lake, net, final)}
    assert gaps == dict(zip(at(1, 2, 3, 4), [GapKind.DRIFTED, GapKind.SHORT, GapKind.MISSING, GapKind.UNHEALTHY], strict=True))


def test_rows_that_the_lake_does_not_have_are_drift() -> None:
    net = {T0: Fingerprint(5, 1)}
    assert [gap.kind for gap in warehouse_gaps("t", HOURS, {}, net, net)] == [GapKind.DRIFTED]
