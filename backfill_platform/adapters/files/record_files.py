"""Records of one file, in pieces. It runs in Spark's Python workers, without this package, and where files are looked through.

A piece has the columns that were asked for by name, and of a text file the text of each record. What makes a file unreadable is
raised; a record that is none is a row of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc
import pyarrow.parquet

from backfill_platform.adapters.files import avro_container, csv_files
from backfill_platform.adapters.files.reading import Reading, columns_of
from backfill_platform.adapters.files.unpacking import place_of
from backfill_platform.adapters.records import fitting
from backfill_platform.adapters.records.taking import ROWS, Piece

LONGEST_RECORD = 16 << 20  # characters


def pieces_of(uri: str, reading: Reading) -> Iterator[Piece]:
    """The records of a file. Raises MissingColumn, Unreadable, and what the bytes make the libraries raise."""
    return _READERS[reading.format](uri, reading)


def place_reader(reading: Reading) -> Callable[[dict[str, Any]], Iterator[Piece]]:
    """Reads the file that a row names in `_uri`."""

    def read(row: dict[str, Any]) -> Iterator[Piece]:
        return pieces_of(row["_uri"], reading)

    return read


def _of_batch(batch: pa.RecordBatch, reading: Reading) -> Piece:
    names = batch.schema.names
    return Piece([batch.column(name) if name in names else pa.nulls(len(batch)) for name in reading.columns], len(batch))


def _parquet(uri: str, reading: Reading) -> Iterator[Piece]:
    filesystem, path = place_of(uri)
    with filesystem.open_input_file(path) as source:
        file = pyarrow.parquet.ParquetFile(
            source, coerce_int96_timestamp_unit="us", page_checksum_verification=True, pre_buffer=False
        )
        names = columns_of(reading, file.schema_arrow.names)
        if not names:
            yield from _nothing_but_nulls(file.metadata.num_rows, reading)
            return
        for batch in file.iter_batches(ROWS, columns=names, use_threads=False):
            yield _of_batch(batch, reading)


def _orc(uri: str, reading: Reading) -> Iterator[Piece]:
    filesystem, path = place_of(uri)
    with filesystem.open_input_file(path) as source:
        file = pyarrow.orc.ORCFile(source)
        names = columns_of(reading, file.schema.names)
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
        columns_of(reading, container.names)
        for _, read in container.blocks():
            records = list(read())
            columns = [_timed([one.get(name) for one in records], container.units.get(name, 0)) for name in reading.columns]
            yield Piece(columns, len(records))


def _timed(values: list[Any], unit: int) -> Any:
    """The values of a column whose whole numbers are times of the unit."""
    if not unit:
        return values
    if set(map(type, values)) <= {int, type(None)}:
        try:
            numbers = pa.array(values, pa.int64())
            if unit > 0:
                return pc.multiply_checked(numbers, unit).cast(pa.timestamp("us", "UTC"))
            return numbers.cast(pa.timestamp("ns", "UTC"))
        except pa.ArrowInvalid:  # beyond what Arrow has
            pass
    moments = (value if type(value) is not int else value // -unit if unit < 0 else value * unit for value in values)
    return [fitting.Micros(value) if type(value) is int else value for value in moments]


_READERS: dict[str, Callable[[str, Reading], Iterator[Piece]]] = {
    "parquet": _parquet,
    "orc": _orc,
    "avro": _avro,
    "csv": csv_files.pieces_of,
}
