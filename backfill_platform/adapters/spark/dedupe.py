"""Events without further deliveries of the same event and without those beyond the cap of their session, and the counts.

The count after is observed on the pass that uses the events anyway; the count before is not Spark's, so that a disagreement
between the two can be noticed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import Observation, Window
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.hours import within
from backfill_platform.adapters.spark.looks import STARTED
from backfill_platform.adapters.spark.observed import by_hour, counted_by_hour, hour_number, observed
from backfill_platform.adapters.spark.sessions import SESSION_START, with_session_start, within_cap
from backfill_platform.domain.hours import HourRange

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from backfill_platform.domain.windows import UntilClosed

_COPY = "_copy"


@dataclass(frozen=True)
class Counts:
    """Events read, kept once, and of these beyond the cap of their session, by event hour.

    `events` counts those of the hours, `accounted_for` those that were seen kept or left out. `in_sessions` counts those that
    went on to the transform: read = duplicates + in sessions + beyond the cap.
    """

    read: Mapping[datetime, int]
    kept: Mapping[datetime, int]
    beyond_cap: Mapping[datetime, int]
    in_sessions: int
    events: int
    accounted_for: int


@dataclass(frozen=True)
class Deduplicated:
    """The events, each once; `counts` is known after an action over them."""

    rows: DataFrame
    _hours: HourRange
    _seen: Observation
    _went_on: Observation

    def counts(self, read: Mapping[datetime, int]) -> Counts | None:
        """The counts, after an action over the rows; None where Spark did not need to read all of them.

        `read` are the events that the hours have, counted by somebody else.
        """
        seen, went_on = observed(self._seen), observed(self._went_on)
        if seen is None or went_on is None:
            return None
        copies, beyond = by_hour(seen["copies"], self._hours), by_hour(seen["beyond"], self._hours)
        kept = {hour: rows - copies[hour] for hour, rows in read.items()}
        return Counts(read, kept, beyond, went_on["events"], sum(read.values()), seen["events"])


def without_duplicates(
    rows: DataFrame,
    same_event: tuple[str, ...],
    time: str,
    hours: Collection[datetime],
    *,
    sessions: UntilClosed | None = None,
    earlier: DataFrame | None = None,
) -> Deduplicated:
    """The events, each once, counted by the hours of `time` among `hours`.

    Of several copies the one that is smallest in its other columns stays; without `same_event` no two are the same. With
    `sessions` each event also has the start of its session, and events beyond the cap of theirs are left out; `earlier` gives
    the starts of sessions that began before the rows. Where the key of sessions is among the columns of `same_event`, that
    takes no further shuffle and no further sort.
    """
    covering, seen, went_on = HourRange.covering(hours), Observation(), Observation()
    copy, order = _copies(rows, same_event, time, sessions) if same_event else (F.lit(False), ())
    marked, names = rows.withColumn(_COPY, copy), rows.columns
    beyond = F.lit(False)
    if sessions:
        # A copy has the time of its event, so that it neither starts a session nor ends one.
        marked = with_session_start(marked, sessions, time, then=order[1:] if order[:1] == (time,) else ())
        if earlier is not None:
            marked = _with_earlier_starts(marked, sessions.key, earlier, covering.start)
        names = [*names, SESSION_START]
        beyond = ~within_cap(time, sessions.cap)
    mine, number = within(time, covering), hour_number(time, covering)
    counted = marked.observe(
        seen,
        F.count_if(mine).alias("events"),
        counted_by_hour(F.when(F.col(_COPY) & mine, number), covering).alias("copies"),
        counted_by_hour(F.when(~F.col(_COPY) & beyond & mine, number), covering).alias("beyond"),
    )
    kept = counted.where(~F.col(_COPY) & ~beyond).select(*names).observe(went_on, F.count_if(mine).alias("events"))
    return Deduplicated(kept, covering, seen, went_on)


def _copies(
    rows: DataFrame, same_event: tuple[str, ...], time: str, sessions: UntilClosed | None
) -> tuple[Column, tuple[str, ...]]:
    """Whether a row is a copy of the one before it, and the order of the rows in which that is asked."""
    by = [sessions.key] if sessions and sessions.key in same_event else list(same_event)
    rest = sorted((name for name in same_event if name not in by), key=lambda name: name != time)
    others = [name for name in rows.columns if name not in same_event]
    order = rest + others or by
    in_order = Window.partitionBy(*by).orderBy(*order)
    copy = F.row_number().over(in_order) > 1
    for name in rest:
        copy = copy & F.col(name).eqNullSafe(F.lag(name).over(in_order))
    return copy, tuple(order)


def _with_earlier_starts(events: DataFrame, key: str, earlier: DataFrame, start: datetime) -> DataFrame:
    """The events with the right start of sessions that began before `start` and before the rows."""
    starts = earlier.select(F.col(key).alias("_key"), F.timestamp_micros(STARTED).alias(STARTED))
    joined = events.join(F.broadcast(starts), F.col(key) == F.col("_key"), "left").drop("_key")
    began_before = F.col(STARTED).isNotNull() & (F.col(SESSION_START) < F.lit(start))
    right = F.when(began_before, F.col(STARTED)).otherwise(F.col(SESSION_START))
    return joined.withColumn(SESSION_START, right).drop(STARTED)
