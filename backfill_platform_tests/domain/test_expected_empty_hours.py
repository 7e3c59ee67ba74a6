from datetime import UTC, datetime, timedelta

import pytest

from backfill_platform.domain.expected_empty_hours import ExpectedEmptyHours, expected_empty_hours
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.errors import SpecError

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
TWO_WEEKS = HourRange(MONDAY, MONDAY + timedelta(days=14))


def empty_of_two_weeks(rows: dict[datetime, int], *declared: ExpectedEmptyHours) -> set[datetime]:
    return expected_empty_hours(TWO_WEEKS, declared, rows, set(TWO_WEEKS))


def test_hours_that_are_empty_on_most_days_are_expected_empty_and_one_outage_is_not() -> None:
    rows = {hour: 100 for hour in TWO_WEEKS if hour.hour >= 5}
    outage = MONDAY + timedelta(days=5, hours=12)
    del rows[outage]
    assert empty_of_two_weeks(rows) == {hour for hour in TWO_WEEKS if hour.hour < 5}


def test_weekends_are_learned_when_there_are_enough_of_them() -> None:
    four_weeks = HourRange(MONDAY, MONDAY + timedelta(days=28))
    rows = {hour: 100 for hour in four_weeks if hour.weekday() < 5}
    assert expected_empty_hours(four_weeks, (), rows, set(four_weeks)) == {hour for hour in four_weeks if hour.weekday() >= 5}


def test_a_stream_of_a_few_rows_an_hour_may_have_none() -> None:
    rows = {hour: 3 for hour in TWO_WEEKS if (hour - MONDAY) // HOUR % 7}
    assert empty_of_two_weeks(rows) == {hour for hour in TWO_WEEKS if hour not in rows}


def test_nothing_is_learned_from_a_single_day() -> None:
    day = HourRange(MONDAY, MONDAY + timedelta(days=1))
    assert expected_empty_hours(day, (), {MONDAY: 100}, set(day)) == set()


def test_declared_hours_are_expected_empty_and_may_go_over_midnight() -> None:
    day = HourRange(MONDAY, MONDAY + timedelta(days=1))
    night = {hour.hour for hour in expected_empty_hours(day, (ExpectedEmptyHours(22, 4),), {}, set(day))}
    assert night == {22, 23, 0, 1, 2, 3}
    assert expected_empty_hours(day, (ExpectedEmptyHours(0, 24, weekdays=(6,)),), {}, set(day)) == set()


@pytest.mark.parametrize("wrong", [(5, 5), (-1, 3), (3, 25)])
def test_expected_empty_hours_outside_the_day_are_refused(wrong: tuple[int, int]) -> None:
    with pytest.raises(SpecError):
        ExpectedEmptyHours(*wrong)
    with pytest.raises(SpecError):
        ExpectedEmptyHours(1, 2, weekdays=(7,))
