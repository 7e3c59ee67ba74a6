"""Following the sessions that are open at the end of a range until they are closed, and the proof that they are.

Each look ahead covers several ends at once: how many sessions each end would have left open follows from where sessions end.
Between looks the open keys, which are few at any moment of a stream, are held in this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.looks import LAST, STARTED, Across, Looks, Wanted
from backfill_platform.adapters.spark.sessions import micros, moment_number
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.windows import UntilClosed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READ_ENDS_AT_ONCE = 3  # seven gaps ahead, then sixty-three: few looks, and a busy stream is not read to its cap in vain
GAPS_BACK = 7
FURTHER_BACK = 9
_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True)
class Closure:
    """How far reading went beyond the end of the range, and what was still open at each end.

    `open_at` pairs each margin with the number of sessions that start in the range and were not closed there: the first entry
    is what a fixed margin of one gap would have cut. A last entry of zero proves closure. Otherwise `limit` says why reading
    stopped: `cap` or `end of the landed hours`.
    """

    open_at: tuple[tuple[timedelta, int], ...] = ()
    limit: str = ""

    @property
    def margin(self) -> timedelta:
        """How far beyond the end of the range was read."""
        return self.open_at[-1][0] if self.open_at else timedelta(0)

    @property
    def cut_at_first_read_end(self) -> int:
        """How many sessions a fixed margin of one gap would have cut."""
        return self.open_at[0][1] if self.open_at else 0

    @property
    def still_open(self) -> int:
        """How many sessions were open where reading stopped."""
        return self.open_at[-1][1] if self.open_at else 0


@dataclass(frozen=True)
class Followed:
    """The sessions open at the first end: one row of key and end (microseconds) for each, known up to `read_end`."""

    sessions: pa.Table
    first_read_end: datetime
    read_end: datetime
    closure: Closure

    def rows_of(self, spark: SparkSession, rows: DataFrame, ahead: UntilClosed, time: str) -> DataFrame:
        """Of rows beyond the first end, those that belong to one of the sessions."""
        ends = F.broadcast(spark.createDataFrame(self.sessions.rename_columns(["_key", LAST])))
        return rows.join(ends, (F.col(ahead.key) == F.col("_key")) & (micros(F.col(time)) <= F.col(LAST)), "left_semi")


def follow(
    looks: Looks, gap: timedelta, *, hours: HourRange, start: datetime, read_ends: Iterator[datetime], available_until: datetime
) -> Followed:
    """Follow the sessions that start in `hours` and are open at the first of `read_ends`, up to the end where all are closed.

    `gap` is that of the sessions; `start` is where reading begins, a lookback before the hours.
    """
    open_at: list[tuple[timedelta, int]] = []
    closed_sessions: list[pa.Table] = []
    open_sessions, first_read_end, read_end = None, start, start
    while (open_sessions is None or open_sessions.num_rows) and (next_ends := list(islice(read_ends, _READ_ENDS_AT_ONCE))):
        if open_sessions is None:
            first_read_end = next_ends[0]
            sessions = _open_at(looks, gap, first_read_end, hours, start, next_ends[-1])
        else:
            sessions = looks.go_on(open_sessions, read_end, next_ends[-1])
        for read_end in next_ends:
            is_open = pc.greater(sessions[LAST], moment_number(read_end - gap))
            open_sessions = sessions.filter(is_open)
            open_at.append((read_end - hours.end, open_sessions.num_rows))
            if not open_sessions.num_rows:
                break
        closed_sessions.append(sessions.filter(pc.invert(is_open)))
    assert open_sessions is not None, "a window has at least one end"
    limit = "" if not open_sessions.num_rows else ("cap" if read_end < available_until else "end of the landed hours")
    return Followed(
        pa.concat_tables([*closed_sessions, open_sessions]), first_read_end, read_end, Closure(tuple(open_at), limit)
    )


def _open_at(looks: Looks, gap: timedelta, read_end: datetime, hours: HourRange, start: datetime, end: datetime) -> pa.Table:
    """The sessions that start in `hours` and are open at `read_end`, with their ends as far as events before `end` show them.

    A session that goes on beyond the hours has an event within a gap of their end, and one within a gap of `read_end`: only
    keys with both are examined. The last hours mostly suffice to find where a session starts; for the others, more is read.
    """
    seam = min(hours.end, read_end)
    keys: Across | pa.Table = Across(max(start, seam - gap), read_end, before=seam, since=read_end - gap)
    wanted = Wanted(hours.start, hours.end, last_from=read_end - gap + _INSTANT)
    certain_sessions, back = [], GAPS_BACK
    while True:
        begin = max(start, seam - back * gap)
        sessions = looks.sessions(keys, begin, end, wanted)
        # A session whose first event comes within a gap of where reading began may have begun before.
        certain = pc.greater_equal(sessions[STARTED], moment_number(start if begin == start else begin + gap))
        certain_sessions.append(sessions.filter(certain).drop_columns(STARTED))
        keys = sessions.filter(pc.invert(certain)).drop_columns([STARTED, LAST])
        if not keys.num_rows:
            return pa.concat_tables(certain_sessions)
        back *= FURTHER_BACK
