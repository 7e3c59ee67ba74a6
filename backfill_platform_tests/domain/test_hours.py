from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill_platform.domain.hours import (
    HOUR,
    HourRange,
    format_hour,
    hour_of,
    merge_hours,
    parse_hour,
    partition_key,
)
from backfill_platform.errors import HourError

ORIGIN = datetime(1998, 4, 30, 22, tzinfo=UTC)
hours = st.integers(0, 60).map(lambda n: ORIGIN + n * HOUR)


@pytest.mark.parametrize(
    "text",
    [
        "1998-04-30T22",
        "1998-04-30T22:00",
        "1998-04-30 22:00:00",
        "1998-04-30T22:00Z",
        "1998-05-01T00:00+02:00",
        "1998-04-30-22:00",
        " 1998-04-30T22 ",
    ],
)
def test_every_usual_way_to_write_an_hour_is_read(text: str) -> None:
    assert parse_hour(text) == ORIGIN


def test_a_day_is_its_midnight() -> None:
    assert parse_hour("1998-05-01") == ORIGIN + 2 * HOUR


@pytest.mark.parametrize("text", ["", "yesterday", "1998-13-01T00", "1998-04-30T22:30", "1998-04-30T22:00+05:30"])
def test_what_is_no_hour_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(HourError, match="write it like"):
        parse_hour(text)


@given(hours)
def test_hours_survive_being_written_and_read(hour: datetime) -> None:
    assert parse_hour(format_hour(hour)) == parse_hour(partition_key(hour)) == hour


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])))
def test_a_moment_lies_in_its_hour(moment: datetime) -> None:
    hour = hour_of(moment)
    assert hour <= moment < hour + HOUR


def test_a_moment_without_a_time_zone_has_no_hour() -> None:
    with pytest.raises(HourError, match="no time zone"):
        hour_of(datetime(1998, 4, 30, 22))  # noqa: DTZ001


def test_a_range_is_half_open_and_counts_its_hours() -> None:
    parsed = HourRange.parse("1998-04-30T22", "1998-05-01T00")
    assert list(parsed) == [ORIGIN, ORIGIN + HOUR]
    assert len(parsed) == 2
    assert ORIGIN + timedelta(minutes=119) in parsed
    assert parsed.end not in parsed


@pytest.mark.parametrize(("start", "end"), [("1998-04-30T22", "1998-04-30T22"), ("1998-04-30T22", "1998-04-30T21")])
def test_an_empty_range_is_refused_with_the_range_of_one_hour(start: str, end: str) -> None:
    with pytest.raises(HourError, match="--to 1998-04-30T23"):
        HourRange.parse(start, end)


@given(st.sets(hours, min_size=1))
def test_merged_ranges_hold_exactly_the_hours_and_are_the_fewest(chosen: set[datetime]) -> None:
    merged = merge_hours(chosen)
    assert [hour for hour_range in merged for hour in hour_range] == sorted(chosen)
    assert all(left.end < right.start for left, right in pairwise(merged))
    assert HourRange.covering(chosen) == HourRange(merged[0].start, merged[-1].end)


@given(hours, hours, hours, hours)
def test_an_intersection_holds_the_hours_of_both(a: datetime, b: datetime, c: datetime, d: datetime) -> None:
    first, second = HourRange(min(a, b), max(a, b) + HOUR), HourRange(min(c, d), max(c, d) + HOUR)
    common = first.intersect(second)
    assert (set(common) if common else set()) == set(first) & set(second)
