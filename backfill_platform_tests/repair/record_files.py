"""Random records, and files of each format, written without the platform."""

import gzip
import io
import json
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet

KINDS = {
    "number": "bigint",
    "at": "timestamp",
    "user": "string",
    "small": "int",
    "large": "bigint",
    "ratio": "double",
    "fine": "boolean",
    "raw": "binary",
}
TEXTS = [
    "",
    "a",
    "Zoë",
    "日本",
    "\U0001f600",
    'q"u,o;te',
    "two\nlines",
    "tab\tand \\",
    "12",
    "-7",
    "1.5",
    "true",
    "NULL",
    "x" * 300,
]
TIMES = [
    "2026-01-01", "2026-01-01T00:30:00Z", "2026-01-01 00:30", "2026-01-01T00:30:00.123456789+05:30", "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-01:00", "2026-02-30", "yesterday", "2026-01-01T25:00", "1767225600",
    "2026-01-01T00:30:00.5+0530", "20260101", "2026-W01-1", " 2026-01-01", "0000-01-01",
]  # fmt: skip
NUMBERS: list[Any] = [
    0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63), 0.5, 1.0, -2.0, 1e18, 1e300, float(2**63),
]  # fmt: skip
MOMENT = datetime(2026, 1, 1, 0, 30, tzinfo=UTC)


def any_value(chance: random.Random) -> Any:
    """A value of any type that JSON has."""
    return chance.choice(
        [
            None,
            chance.choice(NUMBERS),
            2**63,
            10**25,
            chance.choice(TEXTS),
            chance.choice(TIMES),
            chance.random() < 0.5,
            [1, {"a": None}],
            {"x": {"y": "é"}, "z": 2.5},
        ]
    )


def fitting_value(chance: random.Random, kind: str) -> Any:
    """A value that is likely to fit."""
    if kind == "string":
        return chance.choice(TEXTS)
    if kind == "timestamp":
        return (MOMENT + timedelta(microseconds=chance.randrange(10**9))).isoformat()
    if kind == "boolean":
        return chance.random() < 0.5
    if kind == "binary":
        return chance.choice(TEXTS)
    return chance.choice(NUMBERS if kind == "double" else [number for number in NUMBERS if isinstance(number, int)][:5])


def random_records(chance: random.Random, count: int, first: int) -> list[dict[str, Any]]:
    """Records of JSON's types; each has a number of its own."""
    records = []
    for number in range(first, first + count):
        record: dict[str, Any] = {"number": number}
        for name, kind in KINDS.items():
            if name != "number" and chance.random() < 0.95:
                record[name] = any_value(chance) if chance.random() < 0.1 else fitting_value(chance, kind)
        records.append(dict(chance.sample(list(record.items()), len(record))))
    return records


def json_lines(records: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=number % 2 == 0) + "\n" for number, record in enumerate(records)).encode()


def csv_text(chance: random.Random, rows: Sequence[Mapping[str, str]], names: Sequence[str], delimiter: str) -> str:
    """A CSV file by hand: quotes where needed, and at times where not."""

    def written(text: str) -> str:
        if any(one in text for one in ('"', delimiter, "\n", "\r")) or chance.random() < 0.1:
            return '"' + text.replace('"', '""') + '"'
        return text

    end = chance.choice(["\n", "\r\n"])
    lines = [names, *([row.get(name, "") for name in names] for row in rows)]
    return "".join(delimiter.join(map(written, line)) + end for line in lines)


AVRO = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "number", "type": "long"},
        *(
            {
                "name": name,
                "type": [
                    "null", "boolean", {"type": "long", "logicalType": "timestamp-micros"}, "double", "string", "bytes",
                ] if kind == "timestamp" else ["null", "boolean", "long", "double", "string", "bytes"],
            }
            for name, kind in KINDS.items() if name != "number"
        ),
    ],
}  # fmt: skip


def avro_value(chance: random.Random, kind: str) -> Any:
    """A value of a type that the union has; no long for a time, which would be a time."""
    if kind == "timestamp":
        times = [None, True, 0.5, *TIMES, b"\xff", MOMENT, MOMENT.replace(microsecond=7), datetime.max.replace(tzinfo=UTC)]
        return chance.choice([*times, *[MOMENT] * 60])
    return chance.choice(
        [None, True, 0.5, 1.0, 2**31, 2**63 - 1, *TEXTS, b"\xff", b"\x00", *[fitting_value(chance, kind)] * 60]
    )


def avro(records: Sequence[Mapping[str, Any]], codec: str) -> bytes:
    data = io.BytesIO()
    fastavro.writer(data, fastavro.parse_schema(AVRO), records, codec=codec, sync_interval=500)
    return data.getvalue()


# How a writer may have stored a column, whatever the table declares: the type and values of it.
STORED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [0, -1, 2**31, 2**63 - 1]),
    (pa.int8(), [0, -1, 127]),
    (pa.uint64(), [0, 5, 2**63, 2**64 - 1]),
    (pa.float64(), [0.0, 1.0, 0.5, float("nan"), float("inf"), 1e18, 1e300]),
    (pa.float32(), [0.5, 2.0]),
    (pa.decimal128(30, 2), [Decimal("1.00"), Decimal("1.50"), Decimal("123456789012345678901234.25")]),
    (pa.string(), [*TEXTS, *TIMES]),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "Zoë"]),
    (pa.bool_(), [True, False]),
    (pa.binary(), [b"plain", b"\xff\x00"]),
    (pa.timestamp("us", "UTC"), [MOMENT, datetime(1, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]),
    (pa.timestamp("ms"), [MOMENT.replace(tzinfo=None)]),
    (pa.timestamp("s", "UTC"), [MOMENT]),
    (pa.list_(pa.int64()), [[], [1, None]]),
    (pa.struct([("a", pa.string())]), [{"a": "x"}, {"a": None}]),
]
USUAL: dict[str, list[pa.DataType]] = {
    "bigint": [pa.int64(), pa.int8()],
    "int": [pa.int8(), pa.int64()],
    "timestamp": [pa.timestamp("us", "UTC"), pa.timestamp("ms")],
    "string": [pa.string(), pa.dictionary(pa.int32(), pa.string())],
    "double": [pa.float64(), pa.float32(), pa.int64()],
    "boolean": [pa.bool_()],
    "binary": [pa.binary(), pa.string()],
}


def random_table(chance: random.Random, count: int, first: int, allowed: Sequence[pa.DataType]) -> pa.Table:
    """A table whose columns are at times of another type than is declared."""
    columns = {"number": pa.array(range(first, first + count), pa.int64())}
    stored = [(kind, values) for kind, values in STORED if kind in allowed]
    for name, kind in KINDS.items():
        if name != "number":
            usual = [one for one in stored if one[0] in USUAL[kind]]
            arrow, values = chance.choice(stored if chance.random() < 0.15 else usual)
            some = [None if chance.random() < 0.05 else chance.choice(values) for _ in range(count)]
            columns[name] = pa.array(some, arrow)
    return pa.table(dict(chance.sample(list(columns.items()), len(columns))))


def parquet(chance: random.Random, table: pa.Table) -> bytes:
    data = io.BytesIO()
    pyarrow.parquet.write_table(
        table,
        data,
        row_group_size=chance.choice([3, 1000]),
        compression=chance.choice(["snappy", "zstd", "gzip", "none"]),
        use_deprecated_int96_timestamps=chance.random() < 0.3,
    )
    return data.getvalue()


def orc(table: pa.Table) -> bytes:
    data = io.BytesIO()
    pyarrow.orc.write_table(table, data, compression="zstd")
    return data.getvalue()


def packed(data: bytes, ending: str) -> bytes:
    """The bytes as a file with the ending has them."""
    if ending == "gz":
        return gzip.compress(data)
    if ending in ("zst", "lz4", "bz2"):
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, {"zst": "zstd"}.get(ending, ending)) as stream:
            stream.write(data)
        return bytes(sink.getvalue())
    return data
