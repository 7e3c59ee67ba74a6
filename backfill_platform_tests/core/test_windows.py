from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_platform.core.hours import HOUR, HourRange
from backfill_platform.core.windows import UntilClosed, Window
from backfill_platform.errors import SpecError

ORIGIN = datetime(1998, 4, 30, 22, tzinfo=UTC)
RANGE = HourRange(ORIGIN + 4 * HOUR, ORIGIN + 6 * HOUR)
GAP = timedelta(minutes=30)


def test_lookback_is_clipped_at_the_origin() -> None:
    window = Window(lookback=timedelta(hours=5))
    assert window.read_from(RANGE, ORIGIN) == ORIGIN
    assert Window(lookback=GAP).read_from(RANGE, ORIGIN) == RANGE.start - GAP


def test_reading_ahead_doubles_its_step_up_to_the_cap() -> None:
    window = Window(lookahead=UntilClosed(key="k", gap=GAP, cap=timedelta(hours=3)))
    margins = [edge - RANGE.end for edge in window.edges(RANGE, ORIGIN + 100 * HOUR)]
    assert margins == [GAP, 3 * GAP, timedelta(hours=3)]


def test_reading_ahead_stops_at_what_has_landed() -> None:
    window = Window(lookahead=UntilClosed(key="k", gap=GAP, cap=timedelta(hours=24)))
    assert list(window.edges(RANGE, RANGE.end)) == [RANGE.end]
    assert list(window.edges(RANGE, RANGE.end + 2 * GAP))[-1] == RANGE.end + 2 * GAP


@given(st.integers(1, 200), st.integers(0, 400))
def test_edges_grow_and_end_at_the_cap_or_the_horizon(cap_minutes: int, landed_minutes: int) -> None:
    ahead = UntilClosed(key="k", gap=timedelta(minutes=1), cap=timedelta(minutes=cap_minutes))
    horizon = RANGE.end + timedelta(minutes=landed_minutes)
    edges = list(Window(lookahead=ahead).edges(RANGE, horizon))
    assert edges == sorted(set(edges))
    assert edges[-1] == min(RANGE.end + ahead.cap, horizon)


def test_an_hour_depends_on_the_hours_its_margins_touch() -> None:
    window = Window(lookback=GAP, lookahead=UntilClosed(key="k", gap=GAP))
    damaged = ORIGIN + 10 * HOUR
    assert [n for n in range(20) if window.touches(ORIGIN + n * HOUR, damaged)] == [9, 10, 11]
    assert [n for n in range(20) if Window().touches(ORIGIN + n * HOUR, damaged)] == [10]


@pytest.mark.parametrize(
    "make",
    [
        lambda: UntilClosed(key="k", gap=timedelta(0)),
        lambda: UntilClosed(key="k", gap=timedelta(hours=2), cap=timedelta(hours=1)),
        lambda: Window(lookback=timedelta(seconds=-1)),
        lambda: Window(lookahead=timedelta(seconds=-1)),
    ],
)
def test_windows_that_make_no_sense_are_refused(make: object) -> None:
    with pytest.raises(SpecError):
        make()  # type: ignore[operator]
