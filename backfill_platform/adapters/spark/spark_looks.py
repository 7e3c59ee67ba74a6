"""Looking at sessions by Spark: each look is one action over two columns, whose few rows come back as Arrow."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backfill_platform.adapters.spark.looks import LAST, STARTED, Across, Wanted
from backfill_platform.adapters.spark.sessions import SESSION_START, micros, moment_number, with_session_start

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from backfill_platform.domain.windows import UntilClosed

Read = Callable[[datetime, datetime], "DataFrame"]


class SparkLooks:
    """See `Looks`. `read` gives the events of a span of time."""

    def __init__(self, spark: SparkSession, read: Read, ahead: UntilClosed, time: str) -> None:
        self._spark, self._read, self._ahead, self._time = spark, read, ahead, time

    def sessions(self, keys: Across | pa.Table, begin: datetime, end: datetime, wanted: Wanted) -> pa.Table:
        """As `Looks.sessions`."""
        key, time = self._ahead.key, self._time
        asked = self._across(keys) if isinstance(keys, Across) else self._spark.createDataFrame(keys)
        events = self._read(begin, end).select(key, time).join(F.broadcast(asked), key, "left_semi")
        started = F.col(SESSION_START)
        found = self._sessions_of(events).where(
            (started >= F.lit(wanted.started_from))
            & (started < F.lit(wanted.started_before))
            & (F.col(LAST) >= moment_number(wanted.last_from))
        )
        return found.select(key, micros(started).alias(STARTED), LAST).toArrow()

    def go_on(self, open_sessions: pa.Table, begin: datetime, end: datetime) -> pa.Table:
        """As `Looks.go_on`."""
        key, time = self._ahead.key, self._time
        known = self._spark.createDataFrame(open_sessions)
        events = self._read(begin, end).select(key, time).join(F.broadcast(known.select(key)), key, "left_semi")
        ends = known.select(key, F.timestamp_micros(LAST).alias(time))
        sessions = self._sessions_of(ends.unionByName(events))
        return sessions.groupBy(key).agg(F.min_by(LAST, SESSION_START).alias(LAST)).toArrow()

    def _across(self, keys: Across) -> DataFrame:
        key, time = self._ahead.key, self._time
        bounds = self._read(keys.begin, keys.end).groupBy(key).agg(F.min(time).alias("_first"), F.max(time).alias("_end"))
        return bounds.where((F.col("_first") < F.lit(keys.before)) & (F.col("_end") >= F.lit(keys.since))).select(key)

    def _sessions_of(self, events: DataFrame) -> DataFrame:
        started = with_session_start(events, self._ahead, self._time)
        return started.groupBy(self._ahead.key, SESSION_START).agg(F.max(micros(F.col(self._time))).alias(LAST))
