"""The rows of one data file of an Iceberg table within an hour. It runs in Spark's Python workers, without this package."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import And, BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask

from backfill_platform.adapters.records.taking import ROWS, Piece


@dataclass(frozen=True)
class TableReading:
    """What is read of a table: its metadata, the properties of its files, which may be secrets, the columns and the filter.

    `zoned` says whether the column of the time has a zone; without one, its times are UTC.
    """

    metadata: Any
    location: str
    properties: Mapping[str, str]
    columns: tuple[str, ...]
    time: str
    zoned: bool
    where: str


def condition(reading: TableReading, start: datetime, end: datetime) -> BooleanExpression:
    """The filter for rows of the half-open span of time."""
    texts = [one.astimezone(UTC).isoformat() if reading.zoned else f"{one:%Y-%m-%dT%H:%M:%S}" for one in (start, end)]
    span = And(parse(f"{reading.time} >= '{texts[0]}'"), parse(f"{reading.time} < '{texts[1]}'"))
    return And(span, parse(reading.where)) if reading.where else span


def batches_of(task: FileScanTask, reading: TableReading, hour: datetime) -> Iterator[pa.RecordBatch]:
    """The rows of a data file within an hour, without those that are deleted."""
    schema = reading.metadata.schema().select(*reading.columns)
    files = load_file_io(dict(reading.properties), reading.location)
    scan = ArrowScan(reading.metadata, files, schema, condition(reading, hour, hour + timedelta(hours=1)))
    yield from scan.to_record_batches([task])


def task_reader(reading: TableReading) -> Callable[[dict[str, Any]], Iterator[Piece]]:
    """Reads the data file that a row has in `_task`, for the hour that it has in `_epoch`."""

    def read(row: dict[str, Any]) -> Iterator[Piece]:
        hour = datetime.fromtimestamp(row["_epoch"], UTC)
        for batch in batches_of(pickle.loads(row["_task"]), reading, hour):
            for start in range(0, len(batch), ROWS):
                part = batch.slice(start, ROWS)
                yield Piece([part.column(name) for name in reading.columns], len(part))

    return read
