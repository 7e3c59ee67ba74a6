"""Building tables of a pipeline without lake and warehouse: many random streams, cut into chunks of hours, in one Spark job.

A JVM has a high price per job and none per row. So the streams and chunks that Hypothesis draws are told apart by their key
and built together: a key never sees another one's events, and so each chunk is as if it had been built alone.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F

from backfill_platform.core.hours import HOUR, HourRange
from backfill_platform.core.tables import ColumnType, Table
from backfill_platform.core.windows import Window
from backfill_platform.pipelines.spec import DerivedTable, Pipeline
from backfill_platform.repair.land import without_duplicates
from backfill_platform.spark.checks import require_columns
from backfill_platform.spark.reader import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEYS = 1_000  # more than any stream has

Row = tuple[Any, ...]


class Chunk(NamedTuple):
    """One chunk of one stream: its number among all chunks, its hours, and the half-open window that it reads."""

    number: int
    hours: HourRange
    start: datetime
    end: datetime

    def key(self, key: int) -> int:
        """The key of an event as this chunk has it."""
        return self.number * KEYS + key


def chunks_of(numbers: Iterator[int], hours: HourRange, cuts: Iterable[int], window: Window) -> list[Chunk]:
    """The hours, cut where `cuts` say (hours after the start), and what each chunk reads by its declared window."""
    length = len(hours)
    edges = sorted({0, length, *(cut for cut in cuts if 0 < cut < length)})
    parts = [HourRange(hours.start + a * HOUR, hours.start + b * HOUR) for a, b in pairwise(edges)]
    return [
        Chunk(next(numbers), part, window.read_from(part, hours.start), next(window.edges(part, hours.end))) for part in parts
    ]


def built(spark: "SparkSession", pipeline: Pipeline, name: str, rows: Sequence[Row]) -> "DataFrame":
    """What a derived table makes of rows of the table that it reads, as a build step does."""
    declared = pipeline.declared(name)
    assert isinstance(declared, DerivedTable)
    source = pipeline.declared(declared.reads)
    frame = spark.createDataFrame(list(rows), spark_schema(source.table))
    events = without_duplicates(frame, pipeline.raw.same_event) if source is pipeline.raw else frame
    return require_columns(declared.build(events), pipeline.rules(name), str(declared.table))


def counted(frame: "DataFrame", table: Table) -> Counter[Row]:
    """The rows, in the order of the table's columns; collected as numbers, because PySpark gives times in local time."""
    times = [column.type is ColumnType.TIMESTAMP for column in table.columns]
    chosen = [F.unix_micros(name) if time else F.col(name) for name, time in zip(table.column_names, times, strict=True)]
    return Counter(
        tuple(moment(value) if time and value is not None else value for value, time in zip(row, times, strict=True))
        for row in frame.select(*chosen).collect()
    )


def moment(micros: int) -> datetime:
    """The moment so many microseconds after 1970."""
    return EPOCH + timedelta(microseconds=micros)
