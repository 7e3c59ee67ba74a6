"""Event files: lines of text, compressed or not, or records in one of `formats`.

Where files of text begin with the names of their columns, that line is declared as `header`, exactly as it is written. Lines
equal to it are not events; a file that begins with another line has other columns and is not landed.

A place that a pipeline declares has no `..`. Whoever may put files into the folder of hourly files may not make others of this
machine land: a link that leads out of the folder is no file. A link that the declaration itself names is followed.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.fs
from pyspark.sql import functions as F

from backfill_platform.adapters.files.contents import Contents
from backfill_platform.adapters.files.formats import FileFormat, Text
from backfill_platform.adapters.files.integrity import LookedThrough
from backfill_platform.adapters.files.patterns import files_of, fixed_folder, named
from backfill_platform.adapters.records.frames import payload
from backfill_platform.adapters.records.inspection import Inspection
from backfill_platform.adapters.records.storage import located
from backfill_platform.adapters.records.taking import Taken
from backfill_platform.domain.hours import HourRange
from backfill_platform.domain.offsets import Spans
from backfill_platform.domain.uris import local_path
from backfill_platform.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_NOTHING: Taken = {}


class _Files:
    """What both kinds of file sources have in common."""

    missing_place = "event_time: not within the hours of its file"
    undecodable = "line: not in the encoding of its file"

    def payload(self, given: Collection[str]) -> "Column":
        """The payload of a quarantine row with the columns `given`: the line as it came, or the columns of a record as JSON."""
        return payload(given)

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
    format: FileFormat = field(default_factory=Text)

    def __post_init__(self) -> None:
        _ = self._contents  # refuses what does not fit together
        _check_place(self.uri)

    @cached_property
    def _contents(self) -> Contents:
        return Contents(self.format, self.encoding, self.header)

    def files(self, hours: HourRange) -> tuple[str, ...]:
        """The files that hold lines of the given hours."""
        return (self.uri,) if self.hours.intersect(hours) else ()

    def inspect(self, hours: Iterable[datetime], taken: Taken = _NOTHING) -> Inspection:
        """Look through the file; hours are absent where it is missing, damaged, has another header, or not the hour.

        `taken` are the columns that are taken from records, with Spark's names of their types: the file must have them.
        """
        filesystem, path = located(self.uri)
        info = filesystem.get_file_info(path)
        if info.type != pyarrow.fs.FileType.File:
            return Inspection(dict.fromkeys(hours, f"there is no file {self.uri}"))
        found = self._contents.look_through(filesystem, info, self.uri, taken)
        reason = found.problem or f"{self.uri} has only the hours {self.hours}"
        absent = {hour: reason for hour in hours if found.problem or hour not in self.hours}
        return Inspection(absent, {self.hours.start: found.lines})

    def lines(self, spark: "SparkSession", hours: Collection[datetime], taken: Taken = _NOTHING) -> "DataFrame":
        """Columns `line`, `undecodable` and `file_hour` (the first of the file): all lines of the file but its header.

        Of a format with records, also the columns `taken` (all own ones if there are none) and `_unfit` (`Contents.rows`).
        """
        return self._contents.rows(spark, {self.uri: self.hours.start}, taken)

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
    format: FileFormat = field(default_factory=Text)

    def __post_init__(self) -> None:
        _ = self._contents  # refuses what does not fit together
        _check_place(self.pattern)
        if "%H" not in self.pattern:
            raise SpecError(f"'{self.pattern}' names no hour; it needs strftime codes such as %Y-%m-%d and %H")

    @cached_property
    def _contents(self) -> Contents:
        return Contents(self.format, self.encoding, self.header)

    def files(self, hours: HourRange) -> tuple[str, ...]:
        """What holds the lines of the given hours: files, folders or patterns."""
        return tuple(named(self.pattern, hour) for hour in hours)

    def inspect(self, hours: Iterable[datetime], taken: Taken = _NOTHING) -> Inspection:
        """Look through the files of the hours; an hour is absent without one, with a damaged one, or one with another header.

        An hour without events needs an empty file. `taken` are the columns that are taken from records, with Spark's names of
        their types: the files must have them.
        """
        found = files_of(self.pattern, hours)
        with ThreadPoolExecutor() as pool:
            looked = {hour: [pool.submit(self._look_through, info, taken) for info in files] for hour, files in found.items()}
        absent, lines = {}, {}
        for hour, files in looked.items():
            each = [one.result() for one in files]
            problems = [one.problem for one in each if one.problem]
            if not each or problems:
                absent[hour] = problems[0] if problems else f"there is no file {named(self.pattern, hour)}"
            else:
                lines[hour] = sum(one.lines for one in each)
        return Inspection(absent, lines)

    def _look_through(self, info: pyarrow.fs.FileInfo, taken: Taken) -> LookedThrough:
        folder = local_path(fixed_folder(self.pattern))
        if folder and not Path(info.path).resolve().is_relative_to(Path(folder).resolve()):
            return LookedThrough(problem=f"{self._uri(info)} is a link that leads out of {folder}; put the file itself there")
        filesystem, _ = located(self.pattern)
        return self._contents.look_through(filesystem, info, self._uri(info), taken)

    def lines(self, spark: "SparkSession", hours: Collection[datetime], taken: Taken = _NOTHING) -> "DataFrame":
        """Columns `line`, `undecodable` and `file_hour`, for the files of the hours; headers are left out.

        Of a format with records, also the columns `taken` (all own ones if there are none) and `_unfit` (`Contents.rows`).
        """
        found = files_of(self.pattern, hours)
        files = {self._uri(info): hour for hour, infos in found.items() for info in infos}
        return self._contents.rows(spark, files, taken)

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
