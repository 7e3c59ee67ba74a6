"""What the files of a source hold: how they are looked through before Spark reads them, and how they are read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow.fs
import pyarrow.orc
import pyarrow.parquet

from backfill_platform.adapters.files import avro_container, csv_files, json_lines, record_files, unpacking
from backfill_platform.adapters.files import reading as reading_
from backfill_platform.adapters.files.formats import Avro, Csv, FileFormat, JsonLines, Orc, Parquet, Tabular, Text
from backfill_platform.adapters.files.integrity import MOST_RATIO, MOST_UNPACKED, LookedThrough, look_through
from backfill_platform.adapters.files.own_columns import columns_of, own_columns
from backfill_platform.adapters.files.reading import MissingColumn, Reading, Unreadable
from backfill_platform.adapters.files.record_files import pieces_of
from backfill_platform.adapters.files.text import read_lines
from backfill_platform.adapters.records import fitting, taking
from backfill_platform.adapters.records.frames import UNFIT, declared, let_travel, rows_of
from backfill_platform.adapters.records.taking import Taken
from backfill_platform.domain.uris import local_path
from backfill_platform.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PYTHON_NAMES = {"UTF-8": "utf-8", "ISO-8859-1": "latin-1"}


@dataclass(frozen=True)
class Contents:
    """The format of files with what is declared of their text. Raises SpecError where that does not fit together."""

    format: FileFormat = field(default_factory=Text)
    encoding: str = "UTF-8"
    header: str = ""

    def __post_init__(self) -> None:
        if self.encoding not in _PYTHON_NAMES:
            raise SpecError(f"the encoding {self.encoding} is not supported; it is one of {', '.join(_PYTHON_NAMES)}")
        name = type(self.format).__name__
        if self.header and not isinstance(self.format, Text):
            raise SpecError(f"a header is declared for lines of text only; the format {name} needs none")
        if self.encoding != "UTF-8" and isinstance(self.format, Parquet | Orc | Avro):
            raise SpecError(f"the format {name} has an encoding of its own, so none is declared")

    def look_through(
        self, filesystem: pyarrow.fs.FileSystem, info: pyarrow.fs.FileInfo, uri: str, taken: Taken
    ) -> LookedThrough:
        """Read a file to its end and count its records; `problem` says why it cannot be landed. `taken` as in `rows`."""
        if isinstance(self.format, Text | JsonLines):
            return self._look_through_lines(filesystem, info, uri)
        try:
            reading = self._reading(taken or columns_of(uri, self._reading(())))
            counted = _counted(uri, info.size or 1, reading)
            rows = sum(piece.rows for piece in pieces_of(uri, reading))
        except MissingColumn as error:
            return LookedThrough(problem=f"{uri} has no column '{error}'; {self._how_to_lack(str(error))}")
        except Exception as error:  # noqa: BLE001 - whatever damaged bytes make the libraries raise
            text = (str(error) or type(error).__name__).strip().partition("\n")[0]
            return LookedThrough(problem=f"{uri} cannot be read to its end as {type(self.format).__name__}: {text}")
        problem = "" if counted in (None, rows) else f"{uri} says that it has {counted} records, and has {rows}"
        return LookedThrough(rows, problem=problem)

    def _how_to_lack(self, name: str) -> str:
        return f"if it came later than the file, declare {type(self.format).__name__}(added_later=('{name}',))"

    def _look_through_lines(self, filesystem: pyarrow.fs.FileSystem, info: pyarrow.fs.FileInfo, uri: str) -> LookedThrough:
        if local_path(uri) and ":" in info.base_name:
            return LookedThrough(problem=f"{uri} has a colon in its name, which Spark cannot read; rename the file")
        codec = _PYTHON_NAMES[self.encoding]
        found = look_through(filesystem, info, uri, self.header.encode(codec))
        if found.problem or not self.header:
            return found
        first = found.first.decode(codec, errors="replace")
        if first == self.header or found.empty:
            return found
        begin = first[: len(self.header) + 8]
        return LookedThrough(problem=f"{uri} begins with '{begin}' instead of the header '{self.header}'")

    def rows(self, spark: SparkSession, files: Mapping[str, datetime], taken: Taken) -> DataFrame:
        """The lines or records of files with their hours: columns `line`, `undecodable`, `file_hour`, and those of records.

        Of records these are the columns `taken`, with Spark's names of their types, and `_unfit`: the names of columns whose
        values do not fit, the empty name for a record that cannot be read. Without `taken`, records give all their own columns.
        Raises SpecError where such a column has a name of the platform's.
        """
        if isinstance(self.format, Text):
            return read_lines(spark, files, self.encoding, self.header)
        if isinstance(self.format, JsonLines):
            return _json_rows(read_lines(spark, files, self.encoding), taken)
        own = {} if taken else own_columns(files, self._reading(()))
        reading = self._reading(taken or own)
        reading = replace(reading, may_lack=tuple(own)) if own else reading
        let_travel(avro_container, csv_files, reading_, record_files, unpacking)
        places = [(uri, int(hour.timestamp())) for uri, hour in files.items()]
        return rows_of(spark, places, "_uri string, _epoch bigint", record_files.place_reader(reading), taken or own)

    def _reading(self, columns: Collection[str]) -> Reading:
        assert isinstance(self.format, Tabular)
        delimiter = self.format.delimiter if isinstance(self.format, Csv) else ","
        name = type(self.format).__name__.lower()
        return Reading(name, tuple(columns), self.format.added_later, delimiter, _PYTHON_NAMES[self.encoding])


def _counted(uri: str, size: int, reading: Reading) -> int | None:
    """How many records a file says it has, None where nothing says so. Raises Unreadable for what no data unpacks to."""
    filesystem, path = unpacking.place_of(uri)
    if reading.format == "orc":
        with filesystem.open_input_file(path) as source:
            return int(pyarrow.orc.ORCFile(source).nrows)
    if reading.format != "parquet":
        return None
    with filesystem.open_input_file(path) as source:
        metadata = pyarrow.parquet.ParquetFile(source).metadata
        unpacked = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    if unpacked > MOST_UNPACKED and unpacked > MOST_RATIO * size:
        raise Unreadable(f"it unpacks to more than {MOST_RATIO} times its size and {MOST_UNPACKED >> 30} GiB; no data does")
    return int(metadata.num_rows)


def _json_rows(lines: DataFrame, taken: Taken) -> DataFrame:
    if not taken:
        return lines
    let_travel(fitting, taking, json_lines)
    schema = ", ".join([*declared(taken), f"{UNFIT} array<string>", *declared(dict(lines.dtypes))])
    return lines.mapInArrow(json_lines.records_of_lines(dict(taken)), schema)
