from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.events import events_for
from backfill_platform.adapters.spark.sessions import SESSION_START
from backfill_platform.domain.hours import HOUR, hour_of
from backfill_platform.domain.windows import NO_MARGIN, UntilClosed, Window
from backfill_platform_tests.events import T0

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOMENTS = [T0 + n * timedelta(minutes=20) for n in range(12)]
TYPES = "client long, at timestamp"


@pytest.mark.parametrize("same_event", [(), ("client", "at")])
def test_events_have_the_start_of_their_session_and_end_at_its_cap(spark: "SparkSession", same_event: tuple[str, ...]) -> None:
    frame = spark.createDataFrame([(1, at) for at in MOMENTS] * (2 if same_event else 1), TYPES)
    window = Window(lookahead=UntilClosed("client", gap=timedelta(minutes=30), cap=HOUR))
    events, deduplicated = events_for(window, frame, same_event, "at", [T0])
    rows = events.select(F.unix_seconds("at").alias("at"), F.unix_seconds(SESSION_START).alias("start")).collect()
    end = hour_of(T0) + 2 * HOUR
    assert sorted(rows) == [(at.timestamp(), T0.timestamp()) for at in MOMENTS if at < end]
    assert len(rows) < len(MOMENTS)
    assert deduplicated is not None


def test_events_of_other_tables_are_as_they_are(spark: "SparkSession") -> None:
    events, _ = events_for(NO_MARGIN, spark.createDataFrame([(1, T0)], TYPES), (), "at", [T0])
    assert events.columns == ["client", "at"]
