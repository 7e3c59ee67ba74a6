"""Avro object container files, block by block. It runs in Spark's Python workers and imports nothing of this package.

fastavro decodes the records. Its own reader of containers unpacks blocks without a limit, needs another library for snappy, and
ends at a time that Python's own types cannot hold; so blocks and times are read here.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import fastavro
import pyarrow as pa

MOST_UNPACKED = 256 << 20  # bytes of a block
_HEADER = {
    "type": "record",
    "name": "Header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": 4}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}},
    ],
}
_UNITS = {
    "date": 86_400_000_000,
    "timestamp-millis": 1_000,
    "timestamp-micros": 1,
    "timestamp-nanos": -1_000,
}
_Unpack = Callable[[bytes], bytes]


class Container:
    """An open container: its columns with their types, and the units of those that hold times."""

    def __init__(self, stream: Any) -> None:
        """Read the header. Raises ValueError, or what the bytes make fastavro raise."""
        self._stream = stream
        self._header = _decoded(stream, _HEADER)
        if self._header["magic"] != b"Obj\x01":
            raise ValueError("it does not begin as an Avro container")
        meta: dict[str, bytes] = self._header["meta"]
        written = json.loads(meta["avro.schema"])
        if not isinstance(written, dict) or written.get("type") != "record":
            raise ValueError("its values are no records")
        codec = meta.get("avro.codec", b"null").decode()
        if codec not in _UNPACK:
            raise ValueError(f"its codec {codec} is not supported; it is one of {', '.join(_UNPACK)}")
        self._unpack = _UNPACK[codec]
        self.names = [field["name"] for field in written["fields"]]
        self.types = {field["name"]: field["type"] for field in written["fields"]}
        self.units = {name: unit for name, one in self.types.items() if (unit := _unit(one))}
        self._schema = fastavro.parse_schema(_without_times(written))

    def blocks(self) -> Iterator[tuple[int, Callable[[], Iterator[dict[str, Any]]]]]:
        """The number of records of each block, by the file, and what reads them.

        Raises EOFError or ValueError where the file is cut short or damaged.
        """
        while (count := _long(self._stream, may_end=True)) is not None:
            size = _long(self._stream) or 0
            if count < 0 or size < 0:
                raise ValueError("a block has a negative size")
            packed = _exactly(self._stream, size)
            if _exactly(self._stream, 16) != self._header["sync"]:
                raise ValueError("a block does not end with the mark of its file")
            data = self._unpack(packed)
            yield count, partial(self._records, count, data)

    def _records(self, count: int, data: bytes) -> Iterator[dict[str, Any]]:
        block = io.BytesIO(data)
        for _ in range(count):
            yield _decoded(block, self._schema)
        if block.read(1):
            raise ValueError("a block has more than its records")


def _decoded(stream: Any, schema: Any) -> Any:
    return fastavro.schemaless_reader(stream, schema, None)


def _unit(one: Any) -> int:
    """Microseconds of a unit of a type of times, negative where it is a fraction; 0 for other types."""
    branches = one if isinstance(one, list) else [one]
    logical = [str(branch.get("logicalType", "")) for branch in branches if isinstance(branch, dict)]
    return next((_UNITS[name] for text in logical if (name := text.removeprefix("local-")) in _UNITS), 0)


def _without_times(schema: Any) -> Any:
    """The schema without logical types that may fail for a value; decimals stay."""
    if isinstance(schema, list):
        return [_without_times(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name != "logicalType" or value == "decimal"}
    return {
        name: _without_times(value) if name in ("type", "items", "values", "fields") else value for name, value in kept.items()
    }


def _long(stream: Any, *, may_end: bool = False) -> int | None:
    number = shift = 0
    while True:
        byte: bytes = stream.read(1)
        if not byte:
            if may_end and not shift:
                return None
            raise EOFError("it ends within a block")
        number |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return (number >> 1) ^ -(number & 1)
        shift += 7
        if shift > 63:
            raise ValueError("a number is longer than 64 bits")


def _exactly(stream: Any, size: int) -> bytes:
    if size > MOST_UNPACKED:
        raise ValueError(f"a block has more than {MOST_UNPACKED >> 20} MiB")
    data = bytes(stream.read(size))
    if len(data) != size:
        raise EOFError("it ends within a block")
    return data


def _limited(decompressor: Callable[[], Any]) -> _Unpack:
    def unpack(packed: bytes) -> bytes:
        one = decompressor()
        data = bytes(one.decompress(packed, MOST_UNPACKED))
        if not one.eof:
            _refuse_large(len(data) >= MOST_UNPACKED)
            raise EOFError("a block cannot be unpacked to its end")
        return data

    return unpack


def _unpack_snappy(packed: bytes) -> bytes:
    data, check = packed[:-4], packed[-4:]
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    _refuse_large(size > MOST_UNPACKED)
    unpacked = pa.Codec("snappy").decompress(data, size, asbytes=True)
    if zlib.crc32(unpacked).to_bytes(4, "big") != check:
        raise ValueError("a block does not match its checksum")
    return bytes(unpacked)


def _unpack_zstandard(packed: bytes) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
        data = bytes(stream.read(MOST_UNPACKED + 1))
    _refuse_large(len(data) > MOST_UNPACKED)
    return data


def _refuse_large(is_large: bool) -> None:
    if is_large:
        raise ValueError(f"a block unpacks to more than {MOST_UNPACKED >> 20} MiB")


_UNPACK: dict[str, _Unpack] = {
    "null": bytes,
    "deflate": _limited(lambda: zlib.decompressobj(-15)),
    "bzip2": _limited(bz2.BZ2Decompressor),
    "xz": _limited(lzma.LZMADecompressor),
    "snappy": _unpack_snappy,
    "zstandard": _unpack_zstandard,
}
