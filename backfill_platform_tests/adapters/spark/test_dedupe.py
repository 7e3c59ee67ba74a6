from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.dedupe import without_duplicates
from backfill_platform.adapters.spark.sessions import SESSION_START
from backfill_platform.domain.windows import UntilClosed
from backfill_platform.examples.session_rule import sessionize
from backfill_platform_tests.events import T0, hour

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES = "at timestamp, client long, note string, ingested long"
TWICE = (T0, 1, None, 1)
LATE_COPY = (T0, 1, None, 2)
ONCE = (T0 + timedelta(minutes=59), 1, None, 1)
NEXT_HOUR = (hour(1), 2, "a", 1)
OUTSIDE = (hour(5), 3, "a", 1)
EVENTS = [TWICE, LATE_COPY, ONCE, NEXT_HOUR, NEXT_HOUR, NEXT_HOUR, OUTSIDE]
KEY = ("at", "client", "note")


GAP = timedelta(minutes=61)


def by(key: str) -> UntilClosed | None:
    return UntilClosed(key, GAP) if key else None


@pytest.mark.parametrize("key", ["", "client", "note", "ingested"])
def test_each_event_is_kept_once_and_events_read_and_kept_are_counted_by_hour(spark: "SparkSession", key: str) -> None:
    hours = [hour(0), hour(1), hour(2)]
    deduplicated = without_duplicates(spark.createDataFrame(EVENTS, TYPES), KEY, "at", hours, sessions=by(key))
    started = ["session_started_at"] if key else []
    assert deduplicated.rows.columns == ["at", "client", "note", "ingested", *started]
    kept = Counter((row["client"], row["note"]) for row in deduplicated.rows.collect())
    assert kept == {(1, None): 2, (2, "a"): 1, (3, "a"): 1}
    counts = deduplicated.counts({hour(0): 3, hour(1): 3})
    assert counts is not None
    assert counts.kept == {hour(0): 2, hour(1): 1}
    assert (counts.events, counts.accounted_for) == (6, 6), "one is outside"


@pytest.mark.parametrize("key", ["", "client"])
@pytest.mark.parametrize("turn", [1, -1])
def test_the_copy_that_is_kept_is_the_smallest_whatever_came_first(spark: "SparkSession", turn: int, key: str) -> None:
    frame = spark.createDataFrame([TWICE, LATE_COPY, (T0, 1, "b", 0)][::turn], TYPES).coalesce(1)
    deduplicated = without_duplicates(frame, KEY, "at", [hour(0)], sessions=by(key))
    assert Counter((row["note"], row["ingested"]) for row in deduplicated.rows.collect()) == {(None, 1): 1, ("b", 0): 1}


@pytest.mark.whole
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from([None, "a", "b"])), max_size=30), st.booleans())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_session_key_does_not_change_which_events_are_kept(
    spark: "SparkSession", events: list[tuple[int, int, str | None]], by_client: bool
) -> None:
    rows = [(hour(at), client, note, n) for n, (at, client, note) in enumerate(events)]
    frame = spark.createDataFrame(rows, TYPES).repartition(3)
    deduplicated = without_duplicates(frame, KEY, "at", [hour(0), hour(1)], sessions=by("client") if by_client else None)
    assert Counter((row["client"], row["note"], row["ingested"]) for row in deduplicated.rows.collect()) == Counter(
        (client, note, events.index((at, client, note))) for at, client, note in set(events)
    )
    read = Counter(at for at, _, _ in events)
    counts = deduplicated.counts({hour(at): read[at] for at in (0, 1) if read[at]})
    assert counts is not None
    kept = Counter(at for at, _, _ in set(events))
    assert counts.kept == {hour(at): kept[at] for at in (0, 1) if kept[at]}
    assert counts.events == counts.accounted_for == read[0] + read[1]
    if by_client:
        sessions = sessionize(
            set(events), key=lambda e: e[1], time=lambda e: hour(e[0]), gap=GAP, cap=GAP, available_until=hour(9)
        )
        starts = {
            (session.key, hour(at).timestamp()): session.started_at.timestamp()
            for session in sessions
            for at, _, _ in session.events
        }
        started = deduplicated.rows.select(
            "client", F.unix_seconds("at").alias("at"), F.unix_seconds(SESSION_START).alias("start")
        )
        assert {(row["client"], row["at"]): row["start"] for row in started.collect()} == starts


def test_copies_and_sessions_are_found_by_one_shuffle_and_one_sort(
    spark: "SparkSession", capsys: pytest.CaptureFixture[str]
) -> None:
    deduplicated = without_duplicates(spark.createDataFrame(EVENTS, TYPES), KEY, "at", [hour(0)], sessions=by("client"))
    deduplicated.rows.explain()
    plan = capsys.readouterr().out
    assert [plan.count(f"{what} ") for what in ("Exchange", "Sort", "Window")] == [1, 1, 2]


def test_many_hours_are_counted_exactly_over_many_partitions(spark: "SparkSession") -> None:
    hours = [hour(n) for n in range(48)]
    rows = [(hour(n % 48), n, "", 0) for n in range(3000)] * 2
    deduplicated = without_duplicates(spark.createDataFrame(rows, TYPES).repartition(7), KEY, "at", hours)
    deduplicated.rows.count()
    once = Counter(hour(n % 48) for n in range(3000))
    counts = deduplicated.counts({at: 2 * rows for at, rows in once.items()})
    assert counts is not None
    assert counts.kept == once
    assert counts.accounted_for == 6000


def test_no_count_is_given_where_the_rows_were_not_read(spark: "SparkSession") -> None:
    deduplicated = without_duplicates(spark.createDataFrame(EVENTS, TYPES), KEY, "at", [hour(0)])
    nobody = spark.createDataFrame([], "client long")
    joined = deduplicated.rows.join(nobody, "client").persist()
    assert joined.agg(F.count("*")).collect()[0][0] == 0
    joined.unpersist()
    assert deduplicated.counts({hour(0): 3}) is None
