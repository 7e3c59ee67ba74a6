"""Event files, compressed or not, one event per line."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow.fs
from pyspark.sql import functions as F

from backfill_platform.core.hours import HourRange
from backfill_platform.core.uris import local_path
from backfill_platform.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ENCODINGS = ("UTF-8", "ISO-8859-1")
_CODE = re.compile("%[YmdHj]")


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

    def __post_init__(self) -> None:
        _check_encoding(self.encoding)

    def files(self, hours: HourRange) -> tuple[str, ...]:
        """The files that hold lines of the given hours."""
        return (self.uri,) if self.hours.intersect(hours) else ()

    def absent(self, hours: Iterable[datetime]) -> dict[datetime, str]:
        """The hours that cannot be landed, with the reason: the file is not there, or does not have the hour."""
        there = _exists(self.uri)
        reason = f"{self.uri} has only the hours {self.hours}" if there else f"there is no file {self.uri}"
        return {hour: reason for hour in hours if not there or hour not in self.hours}

    def lines(self, spark: "SparkSession", hours: Collection[datetime]) -> "DataFrame":
        """Columns `line`, `undecodable` and `file_hour` (the first of the file): all lines of the file."""
        return _read(spark, [(self.uri, self.hours.start)], self.encoding)

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
        _check_encoding(self.encoding)
        if "%H" not in self.pattern:
            raise SpecError(f"'{self.pattern}' names no hour; it needs strftime codes such as %Y-%m-%d and %H")

    def files(self, hours: HourRange) -> tuple[str, ...]:
        """The files that hold lines of the given hours."""
        return tuple(_named(self.pattern, hour) for hour in hours)

    def absent(self, hours: Iterable[datetime]) -> dict[datetime, str]:
        """The hours that cannot be landed, because their file is not there; an hour without events needs an empty file."""
        named = ((hour, _named(self.pattern, hour)) for hour in hours)
        return {hour: f"there is no file {uri}" for hour, uri in named if not _exists(uri)}

    def lines(self, spark: "SparkSession", hours: Collection[datetime]) -> "DataFrame":
        """Columns `line`, `undecodable` and `file_hour`, for the files of the hours."""
        return _read(spark, [(_named(self.pattern, hour), hour) for hour in hours], self.encoding)

    def ingestion_hour(self, event_time: "Column") -> "Column":
        """The hour of the file, whenever the event happened."""
        return F.col("file_hour")


FileSource = ArchiveFile | HourlyFiles


def _read(spark: "SparkSession", files: list[tuple[str, datetime]], encoding: str) -> "DataFrame":
    # Spark keeps the bytes of a text line as they are, so that decoding here loses nothing, blank lines included.
    if encoding == "UTF-8":
        undecodable = ~F.is_valid_utf8("value")
        line = F.when(undecodable, F.decode(F.col("value").cast("binary"), "ISO-8859-1")).otherwise(F.col("value"))
    else:
        undecodable = F.lit(False)
        line = F.decode(F.col("value").cast("binary"), encoding)
    columns = (line.alias("line"), undecodable.alias("undecodable"))
    parts = [spark.read.text(uri).select(*columns, F.lit(hour).alias("file_hour")) for uri, hour in files]
    return reduce(lambda one, other: one.unionByName(other), parts)


def _check_encoding(encoding: str) -> None:
    if encoding not in _ENCODINGS:
        raise SpecError(f"the encoding {encoding} is not supported; it is one of {', '.join(_ENCODINGS)}")


def _named(pattern: str, hour: datetime) -> str:
    """The pattern for an hour. Only date codes are replaced: a `%` in a folder's name stays."""
    return _CODE.sub(lambda code: hour.strftime(code[0]), pattern)


def _exists(uri: str) -> bool:
    local = local_path(uri)
    filesystem, path = (pyarrow.fs.LocalFileSystem(), local) if local else pyarrow.fs.FileSystem.from_uri(uri)
    return bool(filesystem.get_file_info(path).type == pyarrow.fs.FileType.File)
