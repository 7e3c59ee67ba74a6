"""Event files, compressed or not, one event per line."""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from backfill_platform.core.hours import HourRange, format_hour
from backfill_platform.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
        """Columns `line` (decoded), `arrived` (NULL: when it happened) and `fallback_hour`, for the files of the hours."""
        return _read(spark, [(self.uri, None, self.hours.start)], self.encoding)


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
        """Columns `line` (decoded), `arrived` (the file's hour) and `fallback_hour`, for the files of the hours."""
        return _read(spark, [(hour.strftime(self.pattern), hour, hour) for hour in hours], self.encoding)


FileSource = ArchiveFile | HourlyFiles


def _read(
    spark: "SparkSession", files: list[tuple[str, datetime | None, datetime]], encoding: str
) -> "DataFrame":
    parts = []
    for uri, arrived, fallback in files:
        # Spark keeps the bytes of a text line as they are, so that decoding here loses nothing, blank lines included.
        line = F.decode(F.col("value").cast("binary"), encoding)
        parts.append(
            spark.read.text(uri).select(
                line.alias("line"), _moment(arrived).alias("arrived"), _moment(fallback).alias("fallback_hour")
            )
        )
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    return whole


def _moment(moment: datetime | None) -> F.Column:  # type: ignore[name-defined]
    text = None if moment is None else format_hour(moment) + ":00:00Z"
    return F.lit(text).cast("timestamp")
