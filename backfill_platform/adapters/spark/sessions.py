"""Sessions by inactivity, with one shuffle by key."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from backfill_platform.domain.windows import UntilClosed

SESSION_START = "session_started_at"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def with_session_start(events: DataFrame, sessions: UntilClosed, time: str, *, then: Sequence[str] = ()) -> DataFrame:
    """The events with `session_started_at`: the time of the first event of their session.

    An event continues the session when it comes less than the gap after its key's previous event; see `domain.windows`.
    Events of one instant are ordered by the columns of `then`. That does not change the sessions, but where rows already are
    in that order, Spark does not sort.
    """
    in_order = Window.partitionBy(sessions.key).orderBy(time, *then)
    silence = micros(F.col(time)) - micros(F.lag(time).over(in_order))
    gap = int(sessions.gap.total_seconds() * 1_000_000)
    starts = F.when(F.coalesce(silence >= gap, F.lit(True)), F.col(time))
    # The latest start so far. Of rows of one instant only the first can start a session, and the others come after it.
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    marked = events.withColumn("_starts", starts)
    return marked.withColumn(SESSION_START, F.max("_starts").over(so_far)).drop("_starts")


def within_cap(time: str, cap: timedelta) -> Column:
    """Whether an event with `session_started_at` comes before the cap of its session, counted from its owning hour's end."""
    until = micros(F.date_trunc("hour", SESSION_START)) + int((cap.total_seconds() + 3600) * 1_000_000)
    return micros(F.col(time)) < until


def moment_number(moment: datetime) -> int:
    """A moment as `micros` gives it."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def micros(moment: Column) -> Column:
    """Microseconds since 1970 of a timestamp: exact, unlike a cast to double."""
    return F.unix_micros(moment)
