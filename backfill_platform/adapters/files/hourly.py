"""Event files, compressed or not, one event per line.

Where files begin with the names of their columns, that line is declared as `header`, exactly as it is written. Lines equal to
it are not events; a file that begins with another line has other columns and is not landed.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow.fs
from pyspark.sql import functions as F

from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.offsets import Spans
from backfill_platform.domain.uris import local_path
from backfill_platform.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_ENCODINGS = ("UTF-8", "ISO-8859-1")
_CODE = re.compile("%[YmdHj]")
_PYTHON_NAMES = {"UTF-8": "utf-8-sig", "ISO-8859-1": "latin-1"}  # Spark skips a byte order mark, so it is skipped here


class _Files:
    """What both kinds of file sources have in common."""

    missing_place = "event_time: not within the hours of its file"
    undecodable = "line: not in the encoding of its file"
    cheap_to_read = True  # reading again is as cheap as caching

    def payload(self) -> "Column":
        """The payload of a quarantine row: the line."""
        return F.col("line")

    def spans(self, hour: datetime) -> Spans:
        """Files have no offsets."""
        return ()


@dataclass(frozen=True)
class ArchiveFile(_Files):
    """One file with the events of many hours, in any order.

    The ingestion hour of an event is its event hour. A line whose time cannot be read, or lies outside `hours`, belongs to the
    first hour of the file, where it is quarantined: so it is in exactly one hour, whichever hours are landed together.
    """

    uri: str
    hours: HourRange
    encoding: str = "UTF-8"
    header: str = ""

    def __post_init__(self) -> None:
        _check_encoding(self.encoding)

    def files(self, hours: HourRange) -> tuple[str, ...]:
        """The files that hold lines of the given hours."""
        return (self.uri,) if self.hours.intersect(hours) else ()

    def absent(self, hours: Iterable[datetime]) -> dict[datetime, str]:
        """The hours that cannot be landed, with the reason: no file, one with another header, or one without the hour."""
        unusable = _why_unusable(self.uri, self.header, self.encoding)
        reason = unusable or f"{self.uri} has only the hours {self.hours}"
        return {hour: reason for hour in hours if unusable or hour not in self.hours}

    def lines(self, spark: "SparkSession", hours: Collection[datetime]) -> "DataFrame":
        """Columns `line`, `undecodable` and `file_hour` (the first of the file): all lines of the file but its header."""
        return _read(spark, [(self.uri, self.hours.start)], self.encoding, self.header)

    def ingestion_hour(self, event_time: "Column") -> "Column":
        """The hour of the event where the file has that hour, else NULL."""
        inside = (event_time >= F.lit(self.hours.start)) & (event_time < F.lit(self.hours.end))
        return F.when(inside, F.date_trunc("hour", event_time))


@dataclass(frozen=True)
class HourlyFiles(_Files):
    """One file per ingestion hour; `pattern` contains strftime codes, as in `events/%Y-%m-%d/%H.csv.gz`.

    Events in the file that happened earlier arrived late; they stay in the ingestion hour of the file.
    """

    pattern: str
    encoding: str = "UTF-8"
    header: str = ""

    def __post_init__(self) -> None:
        _check_encoding(self.encoding)
        if "%H" not in self.pattern:
            raise SpecError(f"'{self.pattern}' names no hour; it needs strftime codes such as %Y-%m-%d and %H")

    def files(self, hours: HourRange) -> tuple[str, ...]:
        """The files that hold lines of the given hours."""
        return tuple(_named(self.pattern, hour) for hour in hours)

    def absent(self, hours: Iterable[datetime]) -> dict[datetime, str]:
        """The hours that cannot be landed, with the reason: no file, or one with another header.

        An hour without events needs an empty file.
        """
        reasons = {hour: _why_unusable(_named(self.pattern, hour), self.header, self.encoding) for hour in hours}
        return {hour: reason for hour, reason in reasons.items() if reason}

    def lines(self, spark: "SparkSession", hours: Collection[datetime]) -> "DataFrame":
        """Columns `line`, `undecodable` and `file_hour`, for the files of the hours; headers are left out."""
        return _read(spark, [(_named(self.pattern, hour), hour) for hour in hours], self.encoding, self.header)

    def ingestion_hour(self, event_time: "Column") -> "Column":
        """The hour of the file, regardless of the time of the event."""
        return F.col("file_hour")


FileSource = ArchiveFile | HourlyFiles


def _read(spark: "SparkSession", files: list[tuple[str, datetime]], encoding: str, header: str) -> "DataFrame":
    # Spark keeps the bytes of a text line as they are, so that decoding here loses nothing, blank lines included.
    if encoding == "UTF-8":
        undecodable = ~F.is_valid_utf8("value")
        line = F.when(undecodable, F.decode(F.col("value").cast("binary"), "ISO-8859-1")).otherwise(F.col("value"))
    else:
        undecodable = F.lit(False)
        line = F.decode(F.col("value").cast("binary"), encoding)
    columns = (line.alias("line"), undecodable.alias("undecodable"))
    parts = [spark.read.text(uri).select(*columns, F.lit(hour).alias("file_hour")) for uri, hour in files]
    lines = reduce(lambda left, right: left.unionByName(right), parts)
    # By content, not by position: Spark splits large files, and concatenated files repeat the header.
    return lines.where(F.col("line") != header) if header else lines


def _check_encoding(encoding: str) -> None:
    if encoding not in _ENCODINGS:
        raise SpecError(f"the encoding {encoding} is not supported; it is one of {', '.join(_ENCODINGS)}")


def _named(pattern: str, hour: datetime) -> str:
    """The URI for an hour. Only date codes are replaced: a `%` in a folder's name stays."""
    return _CODE.sub(lambda code: hour.strftime(code[0]), pattern)


def _why_unusable(uri: str, header: str, encoding: str) -> str:
    """Why the lines of the file cannot be read as declared; empty when they can."""
    local = local_path(uri)
    filesystem, path = (pyarrow.fs.LocalFileSystem(), local) if local else pyarrow.fs.FileSystem.from_uri(uri)
    if filesystem.get_file_info(path).type != pyarrow.fs.FileType.File:
        return f"there is no file {uri}"
    if not header:
        return ""
    with filesystem.open_input_stream(path, compression="detect") as stream:
        beginning = stream.read(4 * len(header) + 8).decode(_PYTHON_NAMES[encoding], errors="replace")
    first = re.split("[\r\n]", beginning, maxsplit=1)[0]
    return "" if first == header or not beginning else f"{uri} begins with '{first}' instead of the header '{header}'"
