"""Sessions by inactivity, as one shuffle by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import Column, DataFrame

SESSION_START = "session_started_at"


def with_session_start(events: DataFrame, *, key: str, time: str, gap: timedelta, cap: timedelta | None = None) -> DataFrame:
    """The events with `session_started_at`: the time of the first event of their session.

    An event continues the session when it comes less than `gap` after its key's previous event; see `core.windows`.
    With a cap, events later than `cap` after the end of the session's owning hour are left out.
    """
    in_order = Window.partitionBy(key).orderBy(time)
    silence = micros(F.col(time)) - micros(F.lag(time).over(in_order))
    starts = F.when(F.coalesce(silence >= int(gap.total_seconds() * 1_000_000), F.lit(True)), F.col(time))
    # The latest start so far. Of rows of one instant only the first can start a session, and the others come after it.
    marked = events.withColumn("_starts", starts)
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    sessions = marked.withColumn(SESSION_START, F.max("_starts").over(so_far)).drop("_starts")
    if cap is None:
        return sessions
    until = micros(F.date_trunc("hour", SESSION_START)) + int((cap.total_seconds() + 3600) * 1_000_000)
    return sessions.where(micros(F.col(time)) < until)


def micros(moment: Column) -> Column:
    """Microseconds since 1970 of a timestamp: exact, unlike a cast to double."""
    return F.unix_micros(moment)
