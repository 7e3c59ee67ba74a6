"""Reading what a range of hours needs, and the proof that it was enough.

The caller plans the files (the lake knows them); this module reads rows by event time, not by folder, and follows open keys
until they are closed (`domain.windows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from backfill_platform.adapters.spark.arrow_looks import ArrowLooks, arrow_key_type
from backfill_platform.adapters.spark.closure import Closure, follow
from backfill_platform.adapters.spark.column_types import spark_type
from backfill_platform.adapters.spark.hours import between
from backfill_platform.adapters.spark.long_sessions import started_long_before
from backfill_platform.adapters.spark.looks import Looks, PlanFiles, SizedLooks
from backfill_platform.adapters.spark.spark_looks import SparkLooks
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.tables import Table
from backfill_platform.domain.windows import Window

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class RangeRead:
    """The rows a transform needs for a range, the bounds `[start, end)` they were read from, and how many files hold them.

    `paths` are the files that hold all rows of the range itself. `earlier` are the starts of sessions that began long before
    the range and go on into it (`long_sessions`). To know that the bounds suffice, times and keys of later files may have been
    read, too.
    """

    rows: DataFrame
    start: datetime
    end: datetime
    files: int
    closure: Closure
    paths: Sequence[str] = ()
    earlier: pa.Table | None = None


def spark_schema(table: Table) -> StructType:
    """The Spark schema of a table's Parquet files."""
    return StructType([StructField(column.name, spark_type(column.type), True) for column in table.columns])


def stored_rows(spark: SparkSession, table: Table, uris: Sequence[str]) -> DataFrame:
    """The rows of files of the table; none where there are no files.

    A column that a file does not have is NULL; one that was renamed since is read by the name that the file has it under.
    """
    schema = spark_schema(table)
    if not uris:
        return spark.createDataFrame([], schema)
    earlier = [StructField(name, spark_type(column.type), True) for column in table.columns for name in column.was]
    rows = spark.read.schema(StructType([*schema.fields, *earlier])).parquet(*uris)
    if not earlier:
        return rows
    # A file has a column under one of its names, so at most one of them is not NULL.
    return rows.select(*(F.coalesce(column.name, *column.was).alias(column.name) for column in table.columns))


def read_range(
    spark: SparkSession,
    table: Table,
    plan_files: PlanFiles,
    *,
    time: str,
    hours: HourRange,
    window: Window,
    origin: datetime,
    available_until: datetime,
) -> RangeRead:
    """The rows of `table` with `time` in the window of `hours`, extended for open keys until they are closed.

    `origin` and `available_until` bound what exists: the first hour of the pipeline and the end of what has landed.
    """
    start, ahead, read_ends = window.read_from(hours, origin), window.lookahead, window.read_ends(hours, available_until)

    @cache
    def plan(begin: datetime, end: datetime) -> Sequence[str]:
        return plan_files(begin, end) if begin < end else ()

    def read(begin: datetime, end: datetime) -> DataFrame:
        return stored_rows(spark, table, plan(begin, end)).where(between(time, begin, end))

    if isinstance(ahead, timedelta):
        read_end = next(read_ends)
        paths = plan(start, read_end)
        return RangeRead(read(start, read_end), start, read_end, len(paths), Closure(), paths)
    looks: Looks = SparkLooks(spark, read, ahead, time)
    if key_type := arrow_key_type(table.column(ahead.key).type):
        few = ArrowLooks(plan, ahead, time, key_type)
        looks = SizedLooks(few, looks, few.rows)
    followed = follow(looks, ahead.gap, hours=hours, start=start, read_ends=read_ends, available_until=available_until)
    first_read_end, read_end = followed.first_read_end, followed.read_end
    rows = read(start, first_read_end)
    if first_read_end < read_end:
        rows = rows.unionByName(followed.rows_of(spark, read(first_read_end, read_end), ahead, time))
    files = {*plan(start, first_read_end), *plan(first_read_end, read_end)}
    earlier = started_long_before(looks, ahead, hours=hours, origin=origin)
    return RangeRead(rows, start, read_end, len(files), followed.closure, plan(start, first_read_end), earlier)
