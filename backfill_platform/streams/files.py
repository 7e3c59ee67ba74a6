"""Event files, compressed or not, one event per line."""

from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backfill_platform.core.hours import HourRange
from backfill_platform.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True)
class ArchiveFile:
    """One file with the events of many hours, in any order.

    An event is taken to have arrived when it happened: its ingestion hour is its event hour. A line whose time cannot be
    read, or lies outside `hours`, belongs to the first hour of the file, where it is quarantined: so it is in exactly one
    hour, whichever hours are landed together.
    """

    uri: str
    hours: HourRange
    encoding: str = "UTF-8"

    def files(self, hours: HourRange) -> tuple[str, ...]:
        """The files that hold lines of the given hours."""
        return (self.uri,) if self.hours.intersect(hours) else ()

    def lines(self, spark: "SparkSession", hours: HourRange) -> "DataFrame":
        """Columns `line` (decoded) and `file_hour` (the first of the file), for the files that hold the hours."""
        return _read(spark, [(uri, self.hours.start) for uri in self.files(hours)], self.encoding)

    def ingestion_hour(self, event_time: "Column") -> "Column":
        """The hour of the event where the file has that hour, else NULL."""
        inside = (event_time >= F.lit(self.hours.start)) & (event_time < F.lit(self.hours.end))
        return F.when(inside, F.date_trunc("hour", event_time))


@dataclass(frozen=True)
class HourlyFiles:
    """One file per ingestion hour; `pattern` holds strftime codes, as in `events/%Y-%m-%d/%H.csv.gz`.

    Events that happened earlier but sit in the file arrived late, and stay in the ingestion hour of the file.
    """

    pattern: str
    encoding: str = "UTF-8"

    def __post_init__(self) -> None:
        if "%H" not in self.pattern:
            raise SpecError(f"'{self.pattern}' names no hour; it needs strftime codes such as %Y-%m-%d and %H")

    def files(self, hours: HourRange) -> tuple[str, ...]:
        """The files that hold lines of the given hours."""
        return tuple(hour.strftime(self.pattern) for hour in hours)

    def lines(self, spark: "SparkSession", hours: HourRange) -> "DataFrame":
        """Columns `line` (decoded) and `file_hour`, for the files of the hours."""
        return _read(spark, [(hour.strftime(self.pattern), hour) for hour in hours], self.encoding)

    def ingestion_hour(self, event_time: "Column") -> "Column":
        """The hour of the file, whenever the event happened."""
        return F.col("file_hour")


FileSource = ArchiveFile | HourlyFiles


def _read(spark: "SparkSession", files: list[tuple[str, datetime]], encoding: str) -> "DataFrame":
    # Spark keeps the bytes of a text line as they are, so that decoding here loses nothing, blank lines included.
    line = F.decode(F.col("value").cast("binary"), encoding).alias("line")
    parts = [spark.read.text(uri).select(line, F.lit(hour).alias("file_hour")) for uri, hour in files]
    if not parts:
        return spark.createDataFrame([], "line string, file_hour timestamp")
    return reduce(lambda one, other: one.unionByName(other), parts)
