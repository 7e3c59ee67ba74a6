"""Events beyond the cap of their session are counted in their hour, and the counts do not depend on how a range is cut."""

from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from backfill_platform.adapters.spark.events import events_for
from backfill_platform.adapters.spark.hours import within
from backfill_platform.adapters.spark.reader import RangeRead, read_range
from backfill_platform.adapters.spark.sessions import SESSION_START
from backfill_platform.domain.hours import HourRange, hour_of
from backfill_platform.domain.windows import UntilClosed, Window
from backfill_platform.examples.session_rule import sessionize
from backfill_platform_tests.adapters.spark.test_reader import EVENTS, GAP, Files
from backfill_platform_tests.events import T0, Click, hour

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CAP = timedelta(hours=2)
HOURS = 9
MINUTE = 60
CLICKS = [
    # One that never idles, one that begins in the middle of an hour, one that idles once, and visitors.
    *(Click(1, second) for second in range(0, HOURS * 3600, 20 * MINUTE)),
    *(Click(2, second) for second in range(90 * MINUTE, 8 * 3600, 25 * MINUTE)),
    *(Click(3, second) for second in range(0, HOURS * 3600, 10 * MINUTE) if not 5 * 3600 <= second < 6 * 3600),
    *(Click(client, second) for client in (4, 5) for second in range(client * MINUTE, HOURS * 3600, 55 * MINUTE)),
]
WINDOW = Window(lookback=GAP, lookahead=UntilClosed(key="client", gap=GAP, cap=CAP))


def of(click: Click) -> datetime:
    return click.at


def reference() -> tuple[dict[datetime, int], int]:
    """By hour the events that are in no session, and the number of those that are in one."""
    sessions = sessionize(CLICKS, key=lambda c: c.client, time=of, gap=GAP, cap=CAP, available_until=hour(HOURS))
    inside = Counter((session.key, click.at) for session in sessions for click in session.events)
    beyond = [click for click in CLICKS if (click.client, click.at) not in inside]
    return Counter(click.at.replace(minute=0, second=0) for click in beyond), inside.total()


def events_of(hours: HourRange, clicks: list[Click]) -> Counter[datetime]:
    """How many clicks each of the hours has."""
    return Counter(at for click in clicks if (at := hour_of(click.at)) in hours)


@pytest.fixture(scope="module")
def files(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(spark, tmp_path_factory.mktemp("clicks") / "events", CLICKS)


def read(spark: "SparkSession", files: Files, hours: HourRange, window: Window = WINDOW) -> RangeRead:
    return read_range(spark, EVENTS, files.plan, time="at", hours=hours, window=window, origin=T0, available_until=hour(HOURS))


@pytest.mark.parametrize("size", [HOURS, 4, pytest.param(1, marks=pytest.mark.whole)])
def test_every_event_is_in_one_session_or_counted_beyond_the_cap_in_whatever_chunks(
    spark: "SparkSession", files: Files, size: int
) -> None:
    expected, inside = reference()
    assert sum(expected.values()) == len(CLICKS) - inside > 20
    beyond: Counter[datetime] = Counter()
    in_sessions = 0
    for first in range(0, HOURS, size):
        hours = HourRange(hour(first), hour(min(first + size, HOURS)))
        got = read(spark, files, hours)
        events, deduplicated = events_for(WINDOW, got.rows, (), "at", list(hours), earlier=got.earlier)
        in_sessions += events.where(within(SESSION_START, hours)).count()
        assert deduplicated is not None
        events.write.format("noop").mode("overwrite").save()  # what a build does with them
        counts = deduplicated.counts(events_of(hours, CLICKS))
        assert counts is not None
        beyond.update(counts.beyond_cap)
        assert sum(counts.read.values()) == counts.in_sessions + sum(counts.beyond_cap.values())
    assert beyond == expected
    assert in_sessions == inside


def test_duplicates_are_not_counted_beyond_the_cap_as_well(spark: "SparkSession", files: Files) -> None:
    hours = HourRange(hour(6), hour(8))
    got = read(spark, files, hours)
    twice = got.rows.unionByName(got.rows)
    events, deduplicated = events_for(WINDOW, twice, ("client", "at"), "at", list(hours), earlier=got.earlier)
    events.write.format("noop").mode("overwrite").save()
    assert deduplicated is not None
    counts = deduplicated.counts(events_of(hours, CLICKS * 2))
    assert counts is not None
    expected, _ = reference()
    assert counts.beyond_cap == {at: expected[at] for at in hours}
    assert {at: 2 * counts.kept[at] for at in hours} == dict(counts.read)


def test_nothing_is_read_further_back_where_no_session_can_be_beyond_its_cap(spark: "SparkSession", files: Files) -> None:
    """The first hours of a pipeline, and ranges whose events can all belong to sessions that began less than the cap ago."""
    long_cap = Window(lookback=GAP, lookahead=UntilClosed(key="client", gap=GAP, cap=timedelta(days=1)))
    assert read(spark, files, HourRange(hour(0), hour(3))).earlier is None
    assert read(spark, files, HourRange(hour(6), hour(8)), long_cap).earlier is None
    assert read(spark, files, HourRange(hour(6), hour(8))).earlier is not None


def test_only_keys_that_never_idle_are_followed_back_and_no_further_than_the_cap(spark: "SparkSession", files: Files) -> None:
    got = read(spark, files, HourRange(hour(8), hour(9)))
    assert got.earlier is not None
    starts = got.earlier.to_pydict()
    assert sorted(starts["client"]) == [1]
    assert 2 not in starts["client"], "it ended before"
