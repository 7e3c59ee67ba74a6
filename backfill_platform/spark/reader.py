"""Reading what a range of hours needs, and the proof that it was enough.

The caller plans the files (the lake knows them); this module reads rows by event time, not by folder, and follows open keys
until they are closed (`core.windows`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from backfill_platform.core.hours import HourRange
from backfill_platform.core.tables import ColumnType, Table
from backfill_platform.core.windows import UntilClosed, Window
from backfill_platform.spark.sessions import SESSION_START, micros, with_session_start

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PlanFiles = Callable[[datetime, datetime], Sequence[str]]

_SPARK_TYPES: dict[ColumnType, DataType] = {
    ColumnType.BOOLEAN: BooleanType(),
    ColumnType.INT32: IntegerType(),
    ColumnType.INT64: LongType(),
    ColumnType.FLOAT64: DoubleType(),
    ColumnType.STRING: StringType(),
    ColumnType.TIMESTAMP: TimestampType(),
}


@dataclass(frozen=True)
class Closure:
    """How far reading went beyond the end of the range, and what was still open at each end.

    `open_at` pairs each margin with the number of sessions that start in the range and were not closed there: the first entry
    is what a fixed margin of one gap would have cut. The proof of closure is a last entry of zero. `limit` tells why
    reading stopped otherwise: `cap` or `horizon` (the end of what has landed).
    """

    open_at: tuple[tuple[timedelta, int], ...] = ()
    limit: str = ""

    @property
    def margin(self) -> timedelta:
        return self.open_at[-1][0] if self.open_at else timedelta(0)

    @property
    def cut_at_first_edge(self) -> int:
        return self.open_at[0][1] if self.open_at else 0

    @property
    def still_open(self) -> int:
        return self.open_at[-1][1] if self.open_at else 0


@dataclass(frozen=True)
class RangeRead:
    """The rows a transform needs for a range, and the files and bounds `[start, end)` they were read from.

    Call `release` when the rows have been used: the open keys are kept in Spark's storage until then.
    """

    rows: DataFrame
    start: datetime
    end: datetime
    files: int
    closure: Closure
    kept: tuple[DataFrame, ...] = ()

    def release(self) -> None:
        """Give back what was kept. The rows can still be computed, slowly."""
        for frame in self.kept:
            frame.unpersist()


def spark_schema(table: Table) -> StructType:
    """The Spark schema of a table's Parquet files."""
    return StructType([StructField(column.name, _SPARK_TYPES[column.type], True) for column in table.columns])


def within(column: str, hours: HourRange) -> Column:
    """Whether a timestamp column lies in the half-open range."""
    return between(column, hours.start, hours.end)


def between(column: str, start: datetime, end: datetime) -> Column:
    """Whether a timestamp column lies in `[start, end)`."""
    return (F.col(column) >= F.lit(start)) & (F.col(column) < F.lit(end))


def read_range(
    spark: SparkSession,
    table: Table,
    plan_files: PlanFiles,
    *,
    time: str,
    hours: HourRange,
    window: Window,
    origin: datetime,
    horizon: datetime,
) -> RangeRead:
    """The rows of `table` with `time` in the window of `hours`, extended for open keys until they are closed.

    `origin` and `horizon` bound what exists: the first hour of the pipeline and the end of what has landed.
    """
    start = window.read_from(hours, origin)
    edges = window.edges(hours, horizon)
    edge = next(edges)
    files: set[str] = set()

    def read(begin: datetime, end: datetime) -> DataFrame:
        paths = list(plan_files(begin, end)) if begin < end else []
        files.update(paths)
        schema = spark_schema(table)
        frame = spark.read.schema(schema).parquet(*paths) if paths else spark.createDataFrame([], schema)
        return frame.where(between(time, begin, end))

    rows = read(start, edge)
    ahead = window.lookahead
    if isinstance(ahead, timedelta):
        return RangeRead(rows, start, edge, len(files), Closure())

    open_sessions = _open_sessions(rows, ahead, time, hours, edge).persist()
    kept = [open_sessions]
    counts = [(edge - hours.end, open_sessions.count())]
    for next_edge in edges:
        if counts[-1][1] == 0:
            break
        more = read(edge, next_edge).join(F.broadcast(open_sessions.select(ahead.key)), ahead.key, "left_semi")
        rows = rows.unionByName(more)
        followed = _follow(open_sessions, more, ahead, time, next_edge).persist()
        counts.append((next_edge - hours.end, followed.count()))
        kept.append(followed)
        open_sessions, edge = followed, next_edge
    limit = "" if counts[-1][1] == 0 else ("cap" if edge < horizon else "horizon")
    return RangeRead(rows, start, edge, len(files), Closure(tuple(counts), limit), tuple(kept))


def _open_sessions(rows: DataFrame, ahead: UntilClosed, time: str, hours: HourRange, edge: datetime) -> DataFrame:
    """(key, last): the sessions that start in `hours` and whose key is not idle for a gap before the edge."""
    near_edge = rows.where(_not_idle(F.col(time), ahead.gap, edge)).select(ahead.key).distinct()
    candidates = rows.select(ahead.key, time).join(F.broadcast(near_edge), ahead.key, "left_semi")
    sessions = _sessions(candidates, ahead, time)
    return sessions.where(within(SESSION_START, hours) & _not_idle(F.col("last"), ahead.gap, edge)).select(ahead.key, "last")


def _follow(open_sessions: DataFrame, more: DataFrame, ahead: UntilClosed, time: str, edge: datetime) -> DataFrame:
    """The open sessions that are still open at the next edge. A key has at most one open session."""
    known = open_sessions.select(ahead.key, F.col("last").alias(time))
    sessions = _sessions(known.unionByName(more.select(ahead.key, time)), ahead, time)
    earliest = sessions.groupBy(ahead.key).agg(F.min_by("last", SESSION_START).alias("last"))
    return earliest.where(_not_idle(F.col("last"), ahead.gap, edge))


def _sessions(events: DataFrame, ahead: UntilClosed, time: str) -> DataFrame:
    started = with_session_start(events, key=ahead.key, time=time, gap=ahead.gap)
    return started.groupBy(ahead.key, SESSION_START).agg(F.max(time).alias("last"))


def _not_idle(moment: Column, gap: timedelta, edge: datetime) -> Column:
    return micros(moment) + int(gap.total_seconds() * 1_000_000) > micros(F.lit(edge))
