from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.windows import ContiguousRun, UntilClosed, Window, contiguous_runs
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
    margins = [read_end - RANGE.end for read_end in window.read_ends(RANGE, ORIGIN + 100 * HOUR)]
    assert margins == [GAP, 3 * GAP, timedelta(hours=3)]


def test_reading_ahead_stops_at_what_has_landed() -> None:
    window = Window(lookahead=UntilClosed(key="k", gap=GAP, cap=timedelta(hours=24)))
    assert list(window.read_ends(RANGE, RANGE.end)) == [RANGE.end]
    assert list(window.read_ends(RANGE, RANGE.end + 2 * GAP))[-1] == RANGE.end + 2 * GAP


@given(st.integers(1, 200), st.integers(0, 400))
def test_read_ends_grow_up_to_the_cap_or_the_end_of_what_has_landed(cap_minutes: int, landed_minutes: int) -> None:
    ahead = UntilClosed(key="k", gap=timedelta(minutes=1), cap=timedelta(minutes=cap_minutes))
    available_until = RANGE.end + timedelta(minutes=landed_minutes)
    read_ends = list(Window(lookahead=ahead).read_ends(RANGE, available_until))
    assert read_ends == sorted(set(read_ends))
    assert read_ends[-1] == min(RANGE.end + ahead.cap, available_until)


def test_an_hour_needs_the_hours_of_its_fixed_margins() -> None:
    sessions = Window(lookback=GAP, lookahead=UntilClosed(key="k", gap=GAP))
    ten = ORIGIN + 10 * HOUR
    assert list(sessions.needs(ten, ORIGIN)) == [ten - HOUR, ten]
    assert list(sessions.needs(ORIGIN, ORIGIN)) == [ORIGIN]
    assert list(Window().needs(ten, ORIGIN)) == [ten]
    assert list(Window(lookahead=timedelta(hours=2)).needs(ten, ORIGIN)) == [ten, ten + HOUR, ten + 2 * HOUR]


def test_nothing_is_built_across_a_hole_in_the_source() -> None:
    window = Window(lookback=GAP, lookahead=UntilClosed(key="k", gap=GAP))
    hours = [ORIGIN + n * HOUR for n in range(8)]
    landed = {hour for n, hour in enumerate(hours) if n not in (3, 7)}
    parts, missing_input = contiguous_runs(hours, landed, window, ORIGIN, None)
    assert parts == [ContiguousRun(tuple(hours[:3]), hours[3]), ContiguousRun((hours[5], hours[6]), hours[7])]
    assert missing_input == {hours[3]: hours[3], hours[4]: hours[3], hours[7]: hours[7]}


@given(st.sets(st.integers(0, 12)), st.sets(st.integers(0, 12)))
def test_each_hour_is_built_once_or_reported_with_the_source_hour_it_lacks(requested: set[int], landed: set[int]) -> None:
    hours_to_build, source_hours = ({ORIGIN + n * HOUR for n in chosen} for chosen in (requested, landed))
    window = Window(lookback=GAP, lookahead=timedelta(minutes=90))
    parts, missing_input = contiguous_runs(hours_to_build, source_hours, window, ORIGIN, ORIGIN + 13 * HOUR)
    built = [hour for part in parts for hour in part.hours]
    assert sorted([*built, *missing_input]) == sorted(hours_to_build)
    assert not set(missing_input.values()) & source_hours
    for part in parts:
        assert part.available_until not in source_hours
        assert set(HourRange(part.hours[0], part.available_until)) <= source_hours


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
