from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.sessions import SESSION_START, with_session_start, within_cap
from backfill_platform.domain.windows import UntilClosed
from backfill_platform.examples.session_rule import sessionize
from backfill_platform_tests.events import T0, random_clicks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GAP = timedelta(minutes=30)
Rows = list[tuple[int, datetime]]


def by_spark(spark: "SparkSession", rows: Rows, cap: timedelta) -> Counter[tuple[int, datetime, datetime, int]]:
    frame = spark.createDataFrame(rows, "client long, at timestamp")
    sessions = (
        with_session_start(frame, UntilClosed("client", GAP, cap), "at")
        .where(within_cap("at", cap))
        .groupBy("client", SESSION_START)
        .agg(F.unix_seconds(SESSION_START).alias("a"), F.unix_seconds(F.max("at")).alias("b"), F.count("*").alias("n"))
        .collect()
    )
    return Counter(
        (r["client"], datetime.fromtimestamp(r["a"], UTC), datetime.fromtimestamp(r["b"], UTC), r["n"]) for r in sessions
    )


def by_reference(rows: Rows, cap: timedelta) -> Counter[tuple[int, datetime, datetime, int]]:
    available_until = T0 + timedelta(days=400)
    sessions = sessionize(rows, key=lambda r: r[0], time=lambda r: r[1], gap=GAP, cap=cap, available_until=available_until)
    return Counter((s.key, s.started_at, s.ended_at, len(s.events)) for s in sessions)  # type: ignore[misc]


def test_a_day_of_random_clicks_gives_the_sessions_of_the_reference(spark: "SparkSession") -> None:
    rows = [(click.client, click.at) for click in random_clicks(7, hours=24, clients=400)]
    for cap in (timedelta(hours=2), timedelta(days=10)):
        assert by_spark(spark, rows, cap) == by_reference(rows, cap)


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 900, 1799, 1800, 1801, 3600, 5400, 7200, 9000])), min_size=1)
)
def test_any_small_stream_gives_the_sessions_of_the_reference(spark: "SparkSession", stream: list[tuple[int, int]]) -> None:
    rows = [(client, T0 + timedelta(seconds=second)) for client, second in stream]
    assert by_spark(spark, rows, timedelta(hours=1)) == by_reference(rows, timedelta(hours=1))
