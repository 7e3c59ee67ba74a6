"""Building tables of a pipeline without lake and warehouse: many random streams, cut into chunks of hours, in one Spark job.

A JVM has a high price per job and none per row. So the streams and chunks that Hypothesis draws get distinct keys and
are built together: a key never sees the events of another one, so each chunk is built as if alone.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import HealthCheck, Phase
from pyspark.sql import functions as F

from backfill_platform.adapters.spark.checks import require_columns
from backfill_platform.adapters.spark.events import events_for
from backfill_platform.adapters.spark.reader import spark_schema
from backfill_platform.domain.column_types import ColumnType
from backfill_platform.domain.hours import HOUR, HourRange
from backfill_platform.domain.tables import Table
from backfill_platform.domain.windows import Window
from backfill_platform.pipelines.spec import DerivedTable, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WITHOUT_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)
PATIENT = (HealthCheck.too_slow, HealthCheck.data_too_large)  # many streams are drawn at once, on a busy machine
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KEYS = 1_000  # more than any stream has

Row = tuple[Any, ...]
Stream = tuple[list[Any], list[int]]  # events with a time `at`, and the hours after which their range is cut


class Chunk(NamedTuple):
    """One chunk of one stream: its number among all chunks, its hours, and the half-open window that it reads."""

    number: int
    hours: HourRange
    start: datetime
    end: datetime

    def own(self, row: Row, key: int) -> Row:
        """The row with its key, at position `key`, made this chunk's own."""
        return (*row[:key], self.number * KEYS + row[key], *row[key + 1 :])


class Difference(NamedTuple):
    """A stream of which some chunking gives other rows than the reference. Keys tell the chunks apart."""

    events: list[Any]
    cuts: list[int]
    too_much: Counter[Row]
    missing: Counter[Row]


def chunks_of(numbers: Iterator[int], hours: HourRange, cuts: Iterable[int], window: Window) -> list[Chunk]:
    """The hours, cut where `cuts` say (hours after the start), and what each chunk reads by its declared window."""
    length = len(hours)
    read_ends = sorted({0, length, *(cut for cut in cuts if 0 < cut < length)})
    parts = [HourRange(hours.start + a * HOUR, hours.start + b * HOUR) for a, b in pairwise(read_ends)]
    return [
        Chunk(next(numbers), part, window.read_from(part, hours.start), next(window.read_ends(part, hours.end)))
        for part in parts
    ]


def built(spark: "SparkSession", pipeline: Pipeline, name: str, rows: Sequence[Row]) -> "DataFrame":
    """What a derived table makes of rows of the table that it reads, as a build step does."""
    declared = pipeline.declared(name)
    assert isinstance(declared, DerivedTable)
    source = pipeline.declared(declared.inputs[0])
    frame = spark.createDataFrame(list(rows), spark_schema(source.table))
    once = source is pipeline.raw and pipeline.raw.same_event
    events = frame.dropDuplicates(list(pipeline.raw.same_event)) if once else frame
    events, _ = events_for(declared.window, events, (), pipeline.raw.event_time, [])
    return require_columns(declared.build(events), pipeline.rules(name), str(declared.table))


def differences(
    spark: "SparkSession",
    pipeline: Pipeline,
    name: str,
    streams: Iterable[Stream],
    *,
    hours: HourRange,
    key: str,
    row_of: Callable[[Any], Row],
    reference: Callable[[list[Any]], Iterable[Row]],
    window: Window | None = None,
) -> list[Difference]:
    """Streams for which a derived table, built over all hours or in chunks, differs from the reference; the shortest first.

    Each chunk reads what `window`, by default the declared one, says. Hypothesis need not shrink what fails, in one job after
    the other: with many streams in a job there is a short one among those that fail.
    """
    declared = pipeline.declared(name)
    assert isinstance(declared, DerivedTable)
    table, source = declared.table, pipeline.declared(declared.inputs[0]).table
    numbers, rows = count(), []
    stream_of: dict[int, Stream] = {}
    chunk_of: dict[int, Chunk] = {}
    expected: Counter[Row] = Counter()
    for events, cuts in streams:
        reference_rows = list(reference(events))
        for whole_or_cut in ([], cuts):
            for chunk in chunks_of(numbers, hours, whole_or_cut, window or declared.window):
                chunk_of[chunk.number], stream_of[chunk.number] = chunk, (events, cuts)
                read = (row_of(event) for event in events if chunk.start <= event.at < chunk.end)
                rows += [chunk.own(row, source.column_names.index(key)) for row in read]
                expected.update(
                    chunk.own(row, table.column_names.index(key)) for row in reference_rows if row[0] in chunk.hours
                )
    column = table.column_names.index(key)
    all_rows = counted(built(spark, pipeline, name, rows), table)
    owned_rows = Counter({row: times for row, times in all_rows.items() if row[0] in chunk_of[row[column] // KEYS].hours})
    differing = {row[column] // KEYS for row in (owned_rows - expected) + (expected - owned_rows)}
    shown = [
        Difference(*stream_of[number], _of(number, column, owned_rows - expected), _of(number, column, expected - owned_rows))
        for number in differing
    ]
    return sorted(shown, key=lambda difference: len(difference.events))


def _of(number: int, column: int, rows: Counter[Row]) -> Counter[Row]:
    return Counter({row: times for row, times in rows.items() if row[column] // KEYS == number})


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
