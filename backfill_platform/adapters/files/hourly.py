"""Event files, compressed or not, one event per line.

Where files begin with the names of their columns, that line is declared as `header`, exactly as it is written. Lines equal to
it are not events; a file that begins with another line has other columns and is not landed.

A place that a pipeline declares has no `..`. Whoever may put files into the folder of hourly files may not make others of this
machine land: a link that leads out of the folder is no file. A link that the declaration itself names is followed.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.fs
from pyspark.sql import functions as F

from backfill_platform.adapters.files.integrity import LookedThrough, look_through
from backfill_platform.adapters.files.patterns import files_of, fixed_folder, located, named
from backfill_platform.adapters.files.text import read_lines
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.offsets import Spans
from backfill_platform.domain.uris import local_path
from backfill_platform.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PYTHON_NAMES = {"UTF-8": "utf-8", "ISO-8859-1": "latin-1"}


@dataclass(frozen=True)
class Inspection:
    """What a look through the files of hours found: the hours that cannot be landed, with the reason, and the lines of others.

    The lines of an archive are those of all its hours, below its first one. Headers are not counted.
    """

    absent: Mapping[datetime, str] = field(default_factory=dict)
    lines: Mapping[datetime, int] = field(default_factory=dict)


class _Files:
    """What both kinds of file sources have in common."""

    missing_place = "event_time: not within the hours of its file"
    undecodable = "line: not in the encoding of its file"

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
        _check_place(self.uri)

    def files(self, hours: HourRange) -> tuple[str, ...]:
        """The files that hold lines of the given hours."""
        return (self.uri,) if self.hours.intersect(hours) else ()

    def inspect(self, hours: Iterable[datetime]) -> Inspection:
        """Look through the file; hours are absent where it is missing, damaged, has another header, or not the hour."""
        filesystem, path = located(self.uri)
        info = filesystem.get_file_info(path)
        if info.type != pyarrow.fs.FileType.File:
            return Inspection(dict.fromkeys(hours, f"there is no file {self.uri}"))
        found = _look_through(filesystem, info, self.uri, self.header, self.encoding)
        reason = found.problem or f"{self.uri} has only the hours {self.hours}"
        absent = {hour: reason for hour in hours if found.problem or hour not in self.hours}
        return Inspection(absent, {self.hours.start: found.lines})

    def lines(self, spark: "SparkSession", hours: Collection[datetime]) -> "DataFrame":
        """Columns `line`, `undecodable` and `file_hour` (the first of the file): all lines of the file but its header."""
        return read_lines(spark, {self.uri: self.hours.start}, self.encoding, self.header)

    def versions(self, hours: Iterable[datetime]) -> dict[datetime, str]:
        """None: that an archive has changed does not tell which of its hours have."""
        return {}

    def ingestion_hour(self, event_time: "Column") -> "Column":
        """The hour of the event where the file has that hour, else NULL."""
        inside = (event_time >= F.lit(self.hours.start)) & (event_time < F.lit(self.hours.end))
        return F.when(inside, F.date_trunc("hour", event_time))


@dataclass(frozen=True)
class HourlyFiles(_Files):
    """The files of each ingestion hour, by a pattern with strftime codes, as in `events/%Y-%m-%d/%H.csv.gz`.

    An hour may have many files: in a folder of its own (`events/%Y/%m/%d/%H/`), or by names with `*`, as in
    `events/client=*/dt=%Y-%m-%d/hour=%H/*.gz`; `**/` stands for folders of any depth. Events in the files that happened earlier
    arrived late; they stay in the ingestion hour of the file.
    """

    pattern: str
    encoding: str = "UTF-8"
    header: str = ""

    def __post_init__(self) -> None:
        _check_encoding(self.encoding)
        _check_place(self.pattern)
        if "%H" not in self.pattern:
            raise SpecError(f"'{self.pattern}' names no hour; it needs strftime codes such as %Y-%m-%d and %H")

    def files(self, hours: HourRange) -> tuple[str, ...]:
        """What holds the lines of the given hours: files, folders or patterns."""
        return tuple(named(self.pattern, hour) for hour in hours)

    def inspect(self, hours: Iterable[datetime]) -> Inspection:
        """Look through the files of the hours; an hour is absent without one, with a damaged one, or one with another header.

        An hour without events needs an empty file.
        """
        found = files_of(self.pattern, hours)
        with ThreadPoolExecutor() as pool:
            looked = {hour: [pool.submit(self._look_through, info) for info in files] for hour, files in found.items()}
        absent, lines = {}, {}
        for hour, files in looked.items():
            each = [one.result() for one in files]
            problems = [one.problem for one in each if one.problem]
            if not each or problems:
                absent[hour] = problems[0] if problems else f"there is no file {named(self.pattern, hour)}"
            else:
                lines[hour] = sum(one.lines for one in each)
        return Inspection(absent, lines)

    def _look_through(self, info: pyarrow.fs.FileInfo) -> LookedThrough:
        folder = local_path(fixed_folder(self.pattern))
        if folder and not Path(info.path).resolve().is_relative_to(Path(folder).resolve()):
            return LookedThrough(problem=f"{self._uri(info)} is a link that leads out of {folder}; put the file itself there")
        filesystem, _ = located(self.pattern)
        return _look_through(filesystem, info, self._uri(info), self.header, self.encoding)

    def lines(self, spark: "SparkSession", hours: Collection[datetime]) -> "DataFrame":
        """Columns `line`, `undecodable` and `file_hour`, for the files of the hours; headers are left out."""
        found = files_of(self.pattern, hours)
        files = {self._uri(info): hour for hour, infos in found.items() for info in infos}
        return read_lines(spark, files, self.encoding, self.header)

    def versions(self, hours: Iterable[datetime]) -> dict[datetime, str]:
        """The size of each hour's files and when they were last written; empty where they are gone."""
        return {hour: _version(files) for hour, files in files_of(self.pattern, hours).items()}

    def ingestion_hour(self, event_time: "Column") -> "Column":
        """The hour of the file, regardless of the time of the event."""
        return F.col("file_hour")

    def _uri(self, info: pyarrow.fs.FileInfo) -> str:
        scheme, separator, _ = self.pattern.partition("://")
        return f"{scheme}://{info.path}" if separator else info.path


FileSource = ArchiveFile | HourlyFiles


def _check_encoding(encoding: str) -> None:
    if encoding not in _PYTHON_NAMES:
        raise SpecError(f"the encoding {encoding} is not supported; it is one of {', '.join(_PYTHON_NAMES)}")


def _check_place(place: str) -> None:
    if ".." in place.split("/"):
        raise SpecError(f"'{place}' leads out of its folder by '..'; name the folder itself")


def _version(files: Sequence[pyarrow.fs.FileInfo]) -> str:
    """The size of files and when the newest was written, UTC, with a digest where they are many; empty where there are none."""
    if not files:
        return ""
    times = [info.mtime for info in files if info.mtime is not None]
    written = f" of {max(times).astimezone(UTC):%Y-%m-%d %H:%M:%S.%f} UTC" if times else ""
    size = f"{sum(info.size for info in files):,} bytes"
    if len(files) == 1:
        return f"{size}{written}"
    each = "".join(f"{info.path}\0{info.size}\0{info.mtime}\0" for info in files)
    return f"{len(files):,} files, {size}{written} ({hashlib.blake2b(each.encode(), digest_size=4).hexdigest()})"


def _look_through(
    filesystem: pyarrow.fs.FileSystem, info: pyarrow.fs.FileInfo, uri: str, header: str, encoding: str
) -> LookedThrough:
    """What is in a file; a problem also where it begins with another line than the header."""
    if local_path(uri) and ":" in info.base_name:
        return LookedThrough(problem=f"{uri} has a colon in its name, which Spark cannot read; rename the file")
    codec = _PYTHON_NAMES[encoding]
    found = look_through(filesystem, info, uri, header.encode(codec))
    if found.problem or not header:
        return found
    first = found.first.decode(codec, errors="replace")
    if first == header or found.empty:
        return found
    return LookedThrough(problem=f"{uri} begins with '{first[: len(header) + 8]}' instead of the header '{header}'")
