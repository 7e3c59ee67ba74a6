"""Following the sessions that are open at the end of a range until they are closed, and the proof that they are.

Each look ahead is one action over two columns, and takes in several margins at once: how many sessions each of them would have
left open follows from where the sessions end. The open keys, a few for each moment of a stream, come to this process in
between, so no look repeats the plan of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.hours import within
from backfill_platform.adapters.spark.sessions import SESSION_START, micros, with_session_start
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.windows import UntilClosed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Read = Callable[[datetime, datetime], "DataFrame"]

_EDGES_AT_ONCE = 3  # seven gaps, then as far as sixty-three: few jobs, and a busy stream is not read to its cap for nothing
_GAPS_BACK = 7
_FURTHER_BACK = 9
_STARTED = "_started"
_LAST = "_last"  # microseconds: as a timestamp it would come back in the machine's local time
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Closure:
    """How far reading went beyond the end of the range, and what was still open at each end.

    `open_at` pairs each margin with the number of sessions that start in the range and were not closed there: the first entry
    is what a fixed margin of one gap would have cut. The proof of closure is a last entry of zero. `limit` tells why
    reading stopped otherwise: `cap` or `available_until` (the end of what has landed).
    """

    open_at: tuple[tuple[timedelta, int], ...] = ()
    limit: str = ""

    @property
    def margin(self) -> timedelta:
        return self.open_at[-1][0] if self.open_at else timedelta(0)

    @property
    def cut_at_first_read_end(self) -> int:
        return self.open_at[0][1] if self.open_at else 0

    @property
    def still_open(self) -> int:
        return self.open_at[-1][1] if self.open_at else 0


@dataclass(frozen=True)
class Followed:
    """The sessions that are open at the first edge: one row of key and end (microseconds) for each, known up to `read_end`."""

    sessions: pa.Table
    first_edge: datetime
    read_end: datetime
    closure: Closure

    def rows_of(self, spark: SparkSession, rows: DataFrame, ahead: UntilClosed, time: str) -> DataFrame:
        """Of rows beyond the first edge, those that belong to one of the sessions."""
        ends = F.broadcast(spark.createDataFrame(self.sessions.rename_columns(["_key", _LAST])))
        return rows.join(ends, (F.col(ahead.key) == F.col("_key")) & (micros(F.col(time)) <= F.col(_LAST)), "left_semi")


def follow(
    spark: SparkSession,
    read: Read,
    ahead: UntilClosed,
    *,
    time: str,
    hours: HourRange,
    start: datetime,
    read_ends: Iterator[datetime],
    available_until: datetime,
) -> Followed:
    """Follow the sessions that start in `hours` and are open at the first of the edges, up to the one where all are closed.

    `read` gives the events of a span of time; `start` is where reading begins, a lookback before the hours.
    """
    open_at: list[tuple[timedelta, int]] = []
    ended: list[pa.Table] = []
    still, first, reached = None, start, start
    while (still is None or still.num_rows) and (ahead_of := list(islice(read_ends, _EDGES_AT_ONCE))):
        if still is None:
            first = ahead_of[0]
            found = _open_at(spark, first, read, ahead, time, hours, start, ahead_of[-1])
        else:
            found = _go_on(spark, still, read(reached, ahead_of[-1]), ahead, time)
        for reached in ahead_of:
            is_open = pc.greater(found[_LAST], _moment(reached) - _length(ahead.gap))
            still = found.filter(is_open)
            open_at.append((reached - hours.end, still.num_rows))
            if not still.num_rows:
                break
        ended.append(found.filter(pc.invert(is_open)))
    assert still is not None, "a window has an edge"
    limit = "" if not still.num_rows else ("cap" if reached < available_until else "end of the landed hours")
    return Followed(pa.concat_tables([*ended, still]), first, reached, Closure(tuple(open_at), limit))


def _open_at(
    spark: SparkSession,
    read_end: datetime,
    read: Read,
    ahead: UntilClosed,
    time: str,
    hours: HourRange,
    start: datetime,
    end: datetime,
) -> pa.Table:
    """The sessions that start in `hours` and are open at the edge, with their ends as far as events before `end` tell them.

    One that goes on beyond the hours has an event within a gap of their end, and one within a gap of the edge: only keys that
    have both are looked at. It mostly takes the last hours to see where they start; further back it is looked for the rest.
    """
    seam = min(hours.end, read_end)
    around = (
        read(max(start, seam - ahead.gap), read_end)
        .groupBy(ahead.key)
        .agg(F.min(time).alias("_first"), F.max(time).alias(_LAST))
    )
    keys = around.where((F.col("_first") < F.lit(seam)) & (F.col(_LAST) >= F.lit(read_end - ahead.gap))).select(ahead.key)
    known, back = [], _GAPS_BACK
    while True:
        begin = max(start, seam - back * ahead.gap)
        events = read(begin, end).select(ahead.key, time).join(F.broadcast(keys), ahead.key, "left_semi")
        sessions = _sessions(events, ahead, time).where(within(SESSION_START, hours))
        found = sessions.where(F.col(_LAST) > F.lit(_moment(read_end) - _length(ahead.gap)))
        table = _collected(found.select(ahead.key, _LAST, micros(F.col(SESSION_START)).alias(_STARTED)))
        # One whose first event comes within a gap of where reading began may have begun before.
        certain = pc.greater_equal(table[_STARTED], _moment(start if begin == start else begin + ahead.gap))
        known.append(table.filter(certain).drop_columns(_STARTED))
        doubtful = table.filter(pc.invert(certain)).select([ahead.key])
        if not doubtful.num_rows:
            return pa.concat_tables(known)
        keys, back = spark.createDataFrame(doubtful), back * _FURTHER_BACK


def _go_on(spark: SparkSession, still: pa.Table, more: DataFrame, ahead: UntilClosed, time: str) -> pa.Table:
    """The open sessions with their ends as far as `more` events tell them. A key has at most one open session."""
    known = spark.createDataFrame(still)
    theirs = more.select(ahead.key, time).join(F.broadcast(known.select(ahead.key)), ahead.key, "left_semi")
    ends = known.select(ahead.key, F.timestamp_micros(_LAST).alias(time))
    sessions = _sessions(ends.unionByName(theirs), ahead, time)
    return _collected(sessions.groupBy(ahead.key).agg(F.min_by(_LAST, SESSION_START).alias(_LAST)))


def _sessions(events: DataFrame, ahead: UntilClosed, time: str) -> DataFrame:
    started = with_session_start(events, ahead, time)
    return started.groupBy(ahead.key, SESSION_START).agg(F.max(micros(F.col(time))).alias(_LAST))


def _collected(sessions: DataFrame) -> pa.Table:
    return sessions.toArrow()


def _moment(moment: datetime) -> int:
    return _length(moment - _EPOCH)


def _length(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
