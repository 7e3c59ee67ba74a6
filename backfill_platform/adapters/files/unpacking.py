"""Lines of files that Spark cannot unpack. It runs in Spark's Python workers and imports nothing of this package."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.fs

_CHUNK = 1 << 20
_END = re.compile(rb"\r\n|\r|\n")
_MARK = b"\xef\xbb\xbf"


def unpacked_lines(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Columns `value` (the bytes of a line) and `_epoch`, for the files in column `_uri` with their `_epoch`.

    Lines end as they do for Spark: at a line feed, a carriage return, or both.
    """
    for batch in batches:
        for row in batch.to_pylist():
            for lines in _lines(row["_uri"]):
                epochs = pa.array([row["_epoch"]] * len(lines), pa.int64())
                yield pa.RecordBatch.from_arrays([pa.array(lines, pa.binary()), epochs], ["value", "_epoch"])


def place_of(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of a file, and its path there."""
    path = uri.removeprefix("file://")
    return pyarrow.fs.FileSystem.from_uri(uri) if "://" in path else (pyarrow.fs.LocalFileSystem(), path)


def _lines(uri: str) -> Iterator[list[bytes]]:
    filesystem, path = place_of(uri)
    with filesystem.open_input_stream(path, compression="detect") as stream:
        rest = bytes(stream.read(_CHUNK)).removeprefix(_MARK)
        while chunk := stream.read(_CHUNK):
            # What comes after the last line feed may go on in the next chunk.
            whole, end, rest = (rest + chunk).rpartition(b"\n")
            if end:
                yield _END.split(whole + end)[:-1]
    if rest:
        lines = _END.split(rest)
        yield lines if lines[-1] else lines[:-1]
