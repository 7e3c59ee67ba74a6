"""Parquet files of one hour each, written by Arrow. It runs in Spark's Python workers and imports nothing of this package."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

EPOCH = "_epoch"
_MOST_WAITING = 500_000  # rows in memory, which become one row group


def write_hours(uri: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows below the folder, a file for each hour, and return `_epoch` and `uri` of the files.

    The rows come sorted by their last column `_epoch`, the seconds of their hour. What was written is deleted on any error.
    """
    files = _HourFiles(uri)
    try:
        for batch in batches:
            rows = pa.table(batch.columns[:-1], names=batch.schema.names[:-1])
            runs, start = pc.run_end_encode(batch.column(EPOCH)), 0
            for epoch, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
                files.take(epoch, rows.slice(start, end - start))
                start = end
        files.close()
    except BaseException:
        files.delete()
        raise
    yield pa.RecordBatch.from_arrays([pa.array(files.epochs, pa.int64()), pa.array(files.uris, pa.string())], [EPOCH, "uri"])


class _HourFiles:
    """The files of a task, one open at a time."""

    def __init__(self, uri: str) -> None:
        self.epochs: list[Any] = []
        self.uris: list[str] = []
        self._folder = uri
        self._filesystem, self._path = pyarrow.fs.LocalFileSystem(), uri.removeprefix("file://")
        if "://" in self._path:
            self._filesystem, self._path = pyarrow.fs.FileSystem.from_uri(uri)
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []

    def take(self, epoch: int, rows: pa.Table) -> None:
        if not self.epochs or epoch != self.epochs[-1]:
            self.close()
            self._open(epoch, rows.schema)
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) > _MOST_WAITING:
            self._flush()

    def _open(self, epoch: int, schema: pa.Schema) -> None:
        if (
            not self.epochs and self._filesystem.type_name == "local"
        ):  # a bucket has no folders, only objects that stand for them
            self._filesystem.create_dir(self._path, recursive=True)
        name = f"{uuid.uuid4().hex}.parquet"
        self.epochs.append(epoch)
        self.uris.append(f"{self._folder}/{name}")
        self._writer = pq.ParquetWriter(f"{self._path}/{name}", schema, filesystem=self._filesystem, compression="zstd")

    def _flush(self) -> None:
        if self._writer is not None and self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting))
        self._waiting.clear()

    def close(self) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def delete(self) -> None:
        for uri in self.uris:
            self._filesystem.delete_file(f"{self._path}/{uri.rpartition('/')[2]}")
