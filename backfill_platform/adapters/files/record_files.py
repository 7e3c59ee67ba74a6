"""Records of one file, in pieces. It runs in Spark's Python workers, without this package, and where files are looked through.

A piece has the columns that were asked for by name, and of a text file the text of each record. What makes a file unreadable is
raised; a record that is none is a row of its own.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet

from backfill_platform.adapters.files import avro_container
from backfill_platform.adapters.files.integrity import MOST_RATIO, MOST_UNPACKED
from backfill_platform.adapters.files.unpacking import place_of
from backfill_platform.adapters.records import fitting
from backfill_platform.adapters.records.taking import ROWS, Piece

LONGEST_RECORD = 16 << 20  # characters


class Unreadable(Exception):
    """Why a file cannot be read to its end."""


class MissingColumn(Exception):
    """A column that a file lacks."""


@dataclass(frozen=True)
class Reading:
    """What is read of each file: the format by its name, the columns, and those of them that may be missing."""

    format: str
    columns: tuple[str, ...]
    may_lack: tuple[str, ...] = ()
    delimiter: str = ","
    encoding: str = "utf-8"


def pieces_of(uri: str, reading: Reading) -> Iterator[Piece]:
    """The records of a file. Raises MissingColumn, Unreadable, and what the bytes make the libraries raise."""
    return _READERS[reading.format](uri, reading)


def place_reader(reading: Reading) -> Callable[[dict[str, Any]], Iterator[Piece]]:
    """Reads the file that a row names in `_uri`."""

    def read(row: dict[str, Any]) -> Iterator[Piece]:
        return pieces_of(row["_uri"], reading)

    return read


def _columns(reading: Reading, there: Sequence[str]) -> list[str]:
    """The columns to read of a file that has the columns `there`."""
    for name in reading.columns:
        if name not in there and name not in reading.may_lack:
            raise MissingColumn(name)
        if there.count(name) > 1:
            raise Unreadable(f"it has several columns '{name}'")
    return [name for name in reading.columns if name in there]


def _of_batch(batch: pa.RecordBatch, reading: Reading) -> Piece:
    names = batch.schema.names
    return Piece([batch.column(name) if name in names else pa.nulls(len(batch)) for name in reading.columns], len(batch))


def _parquet(uri: str, reading: Reading) -> Iterator[Piece]:
    filesystem, path = place_of(uri)
    with filesystem.open_input_file(path) as source:
        file = pyarrow.parquet.ParquetFile(
            source, coerce_int96_timestamp_unit="us", page_checksum_verification=True, pre_buffer=False
        )
        names = _columns(reading, file.schema_arrow.names)
        if not names:
            yield from _nothing_but_nulls(file.metadata.num_rows, reading)
            return
        for batch in file.iter_batches(ROWS, columns=names, use_threads=False):
            yield _of_batch(batch, reading)


def _orc(uri: str, reading: Reading) -> Iterator[Piece]:
    filesystem, path = place_of(uri)
    with filesystem.open_input_file(path) as source:
        file = pyarrow.orc.ORCFile(source)
        names = _columns(reading, file.schema.names)
        if not names:
            yield from _nothing_but_nulls(file.nrows, reading)
            return
        for stripe in range(file.nstripes):
            batch = file.read_stripe(stripe, columns=names)
            for start in range(0, len(batch), ROWS):
                yield _of_batch(batch.slice(start, ROWS), reading)


def _nothing_but_nulls(rows: int, reading: Reading) -> Iterator[Piece]:
    for start in range(0, rows, ROWS):
        count = min(ROWS, rows - start)
        yield Piece([pa.nulls(count) for _ in reading.columns], count)


def _avro(uri: str, reading: Reading) -> Iterator[Piece]:
    filesystem, path = place_of(uri)
    with filesystem.open_input_stream(path, compression=None, buffer_size=1 << 20) as source:
        container = avro_container.Container(source)
        _columns(reading, container.names)
        for _, read in container.blocks():
            records = list(read())
            columns = [_timed([one.get(name) for one in records], container.units.get(name, 0)) for name in reading.columns]
            yield Piece(columns, len(records))


def _timed(values: list[Any], unit: int) -> list[Any]:
    if not unit:
        return values
    moments = (value if type(value) is not int else value // -unit if unit < 0 else value * unit for value in values)
    return [fitting.Micros(value) if type(value) is int else value for value in moments]


def _csv(uri: str, reading: Reading) -> Iterator[Piece]:
    filesystem, path = place_of(uri)
    most = max(MOST_UNPACKED, MOST_RATIO * (filesystem.get_file_info(path).size or 1))
    with filesystem.open_input_stream(path, compression="detect") as source:
        records = CsvRecords(source, reading, most)
        names = records.header()
        if not names:
            return
        _columns(reading, names)
        places = [names.index(name) if name in names else None for name in reading.columns]
        while piece := _csv_piece(records, places, len(names), reading.encoding):
            yield piece


class CsvRecords:
    """The fields of each record, None where they cannot be told apart, with its text. Blank lines are no records."""

    def __init__(self, source: Any, reading: Reading, most: int = MOST_UNPACKED) -> None:
        """Of `source`, not more than `most` characters are read."""
        csv.field_size_limit(LONGEST_RECORD)
        self._most = most
        self._taken: list[str] = []
        self._encoding = reading.encoding
        # Bytes that are not in the encoding come through as lone surrogates, and are found when Arrow takes the text.
        lines = io.TextIOWrapper(io.BufferedReader(source, 1 << 20), reading.encoding, "surrogateescape", newline="")
        self._reader = csv.reader(self._lines(lines), delimiter=reading.delimiter, strict=True)

    def _lines(self, lines: io.TextIOWrapper) -> Iterator[str]:
        size = total = 0
        while line := lines.readline(LONGEST_RECORD + 1):
            size = len(line) + (size if self._taken else 0)
            total += len(line)
            if total > self._most:
                raise Unreadable(
                    f"it unpacks to more than {MOST_RATIO} times its size and {MOST_UNPACKED >> 30} GiB; no data does"
                )
            if size > LONGEST_RECORD:
                raise Unreadable(f"it has a record of more than {LONGEST_RECORD >> 20} MiB; no event is that long")
            self._taken.append(line)
            yield line

    def header(self) -> list[str]:
        """The names of the columns, which come first; none of an empty file. Raises Unreadable."""
        for fields, text in self:
            if fields is None or "\0" in text:
                raise Unreadable("it does not begin with the names of its columns")
            # A byte order mark of UTF-8 may be there in whatever encoding a file is declared.
            mark = "\ufeff" if self._encoding == "utf-8" else "\xef\xbb\xbf"
            return [fields[0].removeprefix(mark), *fields[1:]]
        return []

    def __iter__(self) -> CsvRecords:
        return self

    def __next__(self) -> tuple[list[str] | None, str]:
        while True:
            self._taken.clear()
            try:
                fields = next(self._reader)
            except csv.Error as error:
                if "unexpected end of data" in str(error):
                    raise Unreadable("it ends within a field in quotes") from error
                fields = None
            if fields != []:
                return fields, "".join(self._taken)


def _csv_piece(records: CsvRecords, places: Sequence[int | None], width: int, encoding: str) -> Piece | None:
    rows: list[Sequence[str]] = []
    texts: list[str] = []
    broken: list[int] = []
    blank = [""] * width
    for fields, text in records:
        if fields is None or len(fields) != width:
            broken.append(len(rows))
            fields = blank
        rows.append(fields)
        texts.append(text.rstrip("\r\n"))
        if len(rows) == ROWS:
            break
    if not rows:
        return None
    undecodable = []
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        for row, text in enumerate(texts):
            raw = text.encode(encoding, "surrogateescape")
            if text != raw.decode(encoding, "replace"):
                undecodable.append(row)
                rows[row], texts[row] = blank, raw.decode("latin-1")
    columns = list(zip(*rows, strict=True))
    empty = pa.nulls(len(rows), pa.string())
    arrays = [empty if place is None else pa.array(columns[place], pa.string()) for place in places]
    return Piece(arrays, len(rows), texts, broken, undecodable)


_READERS: dict[str, Callable[[str, Reading], Iterator[Piece]]] = {"parquet": _parquet, "orc": _orc, "avro": _avro, "csv": _csv}
