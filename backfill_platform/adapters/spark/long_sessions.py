"""Sessions that began long before a range and go on into it: are events of the range beyond the cap of their session?

A range is read from one gap before its first hour, which tells that such an event starts no session, but not when its session
started. How far back that matters is bounded by the cap; only keys without a silence are followed, so hardly any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.closure import FURTHER_BACK, GAPS_BACK, LAST, sessions_of
from backfill_platform.adapters.spark.sessions import SESSION_START, micros, moment_number
from backfill_platform.domain.hours import HOUR, hour_after

if TYPE_CHECKING:
    from datetime import datetime

    from backfill_platform.adapters.spark.closure import Read
    from backfill_platform.domain.hours import HourRange
    from backfill_platform.domain.windows import UntilClosed

STARTED = "_started"


def started_long_before(read: Read, ahead: UntilClosed, *, time: str, hours: HourRange, origin: datetime) -> pa.Table | None:
    """The sessions that go on into `hours` and may have events there that are beyond their cap; None when there are none.

    One row of key and start (microseconds since 1970) for each. A start earlier than the cap and an hour before the range is
    given as some moment before that: all their events of the range are beyond the cap. `read` gives the events of a span of
    time, and `origin` is where the events of the pipeline begin.
    """
    latest = min(hour_after(hours.end - ahead.cap - HOUR), hours.start)
    if latest <= origin:
        return None
    earliest = max(origin, hours.start - ahead.cap - HOUR - ahead.gap)
    near = read(max(origin, hours.start - ahead.gap), hours.start + ahead.gap)
    ends = near.groupBy(ahead.key).agg(F.min(time).alias("_first"), F.max(time).alias(LAST))
    keys = ends.where((F.col("_first") < F.lit(hours.start)) & (F.col(LAST) >= F.lit(hours.start))).select(ahead.key)
    found, back = [], GAPS_BACK
    while True:
        begin = max(earliest, hours.start - back * ahead.gap)
        events = read(begin, hours.start + ahead.gap).select(ahead.key, time).join(F.broadcast(keys), ahead.key, "left_semi")
        sessions = sessions_of(events, ahead, time).where(
            (F.col(SESSION_START) < F.lit(hours.start)) & (F.col(LAST) >= moment_number(hours.start))
        )
        # Where reading began less than a gap before a session's first event, it may have begun before.
        doubtful = begin if begin == earliest else begin + ahead.gap
        matters = sessions.where(F.col(SESSION_START) < F.lit(max(latest, doubtful)))
        table = matters.select(ahead.key, micros(F.col(SESSION_START)).alias(STARTED)).toArrow()
        certain = pa.compute.greater_equal(table[STARTED], moment_number(doubtful))
        found.append(table.filter(certain))
        rest = table.filter(pa.compute.invert(certain))
        if not rest.num_rows:
            sessions_found = pa.concat_tables(found)
            return sessions_found if sessions_found.num_rows else None
        keys, back = events.sparkSession.createDataFrame(rest.select([ahead.key])), back * FURTHER_BACK
