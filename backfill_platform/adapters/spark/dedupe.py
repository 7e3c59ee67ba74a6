"""Events without further deliveries of the same event, and the counts of events before and after.

The count after is observed on the pass that uses the events anyway; the count before comes from an extra pass over one column,
so that a disagreement between the two can be noticed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import Observation, Window
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.hours import within
from backfill_platform.adapters.spark.observed import by_hour, counted_by_hour, hour_number, observed
from backfill_platform.adapters.spark.sessions import SESSION_START, with_session_start
from backfill_platform.domain.hours import HourRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from backfill_platform.domain.windows import UntilClosed

_COPY = "_copy"


@dataclass(frozen=True)
class Counts:
    """Events read and kept, by event hour; `events` counts all, `accounted_for` those that were seen kept or left out."""

    read: Mapping[datetime, int]
    kept: Mapping[datetime, int]
    events: int
    accounted_for: int


@dataclass(frozen=True)
class Deduplicated:
    """The events, each once; `counts` is known after an action over them."""

    rows: DataFrame
    _all: DataFrame
    _time: str
    _hours: HourRange
    _seen: Observation

    def counts(self) -> Counts | None:
        """The counts, after an action over the rows; None where Spark did not need to read all of them."""
        seen = observed(self._seen)
        if seen is None:
            return None
        copies = by_hour(seen["copies"], self._hours)
        number = hour_number(self._time, self._hours).alias("number")
        rows_by_number = {row["number"]: row["count"] for row in self._all.groupBy(number).count().collect()}
        read = {hour: rows_by_number[n] for n, hour in enumerate(self._hours) if n in rows_by_number}
        kept = {hour: rows - copies[hour] for hour, rows in read.items()}
        return Counts(read, kept, sum(rows_by_number.values()), seen["events"])


def without_duplicates(
    rows: DataFrame,
    same_event: tuple[str, ...],
    time: str,
    hours: Collection[datetime],
    *,
    sessions: UntilClosed | None = None,
) -> Deduplicated:
    """The events, each once, counted by the hours of `time` among `hours`.

    Of several copies the one that is smallest in its other columns stays. With `sessions` each event also has the start of its
    session. Where their key is among the columns of `same_event`, that takes no further shuffle and no further sort.
    """
    covering, seen = HourRange.covering(hours), Observation()
    by = [sessions.key] if sessions and sessions.key in same_event else list(same_event)
    rest = sorted((name for name in same_event if name not in by), key=lambda name: name != time)
    others = [name for name in rows.columns if name not in same_event]
    order = rest + others or by
    in_order = Window.partitionBy(*by).orderBy(*order)
    copy = F.row_number().over(in_order) > 1
    for name in rest:
        copy = copy & F.col(name).eqNullSafe(F.lag(name).over(in_order))
    marked, names = rows.withColumn(_COPY, copy), rows.columns
    if sessions:
        # A copy has the time of its event, so that it neither starts a session nor ends one.
        marked = with_session_start(marked, sessions, time, then=order[1:] if order[0] == time else ())
        names = [*names, SESSION_START]
    copies = F.when(F.col(_COPY) & within(time, covering), hour_number(time, covering))
    by_number = counted_by_hour(copies, covering).alias("copies")
    counted = marked.observe(seen, F.count("*").alias("events"), by_number)
    return Deduplicated(counted.where(~F.col(_COPY)).select(*names), rows, time, covering, seen)
