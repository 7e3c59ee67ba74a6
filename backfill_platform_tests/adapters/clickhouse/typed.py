"""A table with every type that the platform stores, rows of it, and a model in plain Python of what each type holds."""

import math
import struct
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.domain.column_types import ArrayType, ColumnType, DataType, DecimalType, Field, MapType, StructType
from backfill_platform.domain.tables import Column, Layer, Table
from backfill_platform_tests.adapters.clickhouse.visits import TEN

Row = dict[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INTS = {ColumnType.INT8: 8, ColumnType.INT16: 16, ColumnType.INT32: 32, ColumnType.INT64: 64}
STRUCT = StructType((Field("size", ColumnType.INT32), Field("name", ColumnType.STRING), Field("on", ColumnType.DATE)))

# name -> the type that is declared, and what it is stored as; '' for what it is stored as by itself
KINDS: dict[str, tuple[DataType, str]] = {
    "flag": (ColumnType.BOOLEAN, "Nullable(Bool)"),
    "flag_number": (ColumnType.BOOLEAN, "Nullable(UInt8)"),
    "byte": (ColumnType.INT8, ""),
    "short": (ColumnType.INT16, ""),
    "whole": (ColumnType.INT32, ""),
    "big": (ColumnType.INT64, ""),
    "u8": (ColumnType.INT32, "Nullable(UInt8)"),
    "u16": (ColumnType.INT32, "Nullable(UInt16)"),
    "u32": (ColumnType.INT64, "Nullable(UInt32)"),
    "u64": (ColumnType.INT64, "Nullable(UInt64)"),
    "u64_all": (DecimalType(20, 0), "Nullable(UInt64)"),
    "i8": (ColumnType.INT64, "Nullable(Int8)"),
    "i16": (ColumnType.INT64, "Nullable(Int16)"),
    "single": (ColumnType.FLOAT32, ""),
    "double": (ColumnType.FLOAT64, ""),
    "widened": (ColumnType.FLOAT32, "Nullable(Float64)"),
    "money": (DecimalType(18, 4), ""),
    "money_short": (DecimalType(18, 4), "Nullable(Decimal(9, 2))"),
    "money_wide": (DecimalType(9, 2), "Nullable(Decimal(38, 10))"),
    "money_shifted": (DecimalType(38, 0), "Nullable(Decimal(60, 30))"),
    "share": (DecimalType(5, 5), "Nullable(Decimal(5, 1))"),
    "text": (ColumnType.STRING, ""),
    "document": (ColumnType.STRING, "Nullable(String)"),
    "kind": (ColumnType.STRING, "LowCardinality(Nullable(String))"),
    "id": (ColumnType.STRING, "Nullable(UUID)"),
    "status": (ColumnType.STRING, "Nullable(Enum8('new' = -1, 'it''s'  = 2, 'done' = 7))".replace("''", "\\'")),
    "code": (ColumnType.STRING, "Nullable(FixedString(3))"),
    "day": (ColumnType.DATE, ""),
    "day_short": (ColumnType.DATE, "Nullable(Date)"),
    "at": (ColumnType.TIMESTAMP, ""),
    "at_second": (ColumnType.TIMESTAMP, "Nullable(DateTime('Europe/Berlin'))"),
    "at_milli": (ColumnType.TIMESTAMP, "Nullable(DateTime64(3, 'Asia/Kolkata'))"),
    "at_nano": (ColumnType.TIMESTAMP, "Nullable(DateTime64(9, 'UTC'))"),
    "at_day": (ColumnType.TIMESTAMP, "Nullable(Date)"),
    "tags": (ArrayType(ColumnType.STRING), ""),
    "sizes": (ArrayType(ColumnType.INT16), "Array(UInt8)"),
    "ids": (ArrayType(ColumnType.STRING), "Array(Nullable(UUID))"),
    "grid": (ArrayType(ArrayType(ColumnType.FLOAT64)), ""),
    "counts": (MapType(ColumnType.STRING, ColumnType.INT64), ""),
    "small": (MapType(ColumnType.INT32, ColumnType.INT32), "Map(UInt8, UInt8)"),
    "lists": (MapType(ColumnType.STRING, ArrayType(ColumnType.STRING)), ""),
    "thing": (STRUCT, ""),
    "things": (ArrayType(STRUCT), "Array(Tuple(size UInt16, name LowCardinality(String), on Date))"),
    "many": (ArrayType(MapType(ColumnType.STRING, ColumnType.INT32)), ""),
}
NESTED = ("tags", "sizes", "ids", "grid", "counts", "small", "lists", "thing", "things", "many")

TYPED = Table(
    Layer.TRANSFORMED,
    "typed",
    (
        Column("hour", ColumnType.TIMESTAMP),
        Column("n", ColumnType.INT32),
        *(Column(name, kind, name not in NESTED, stored_as=stored) for name, (kind, stored) in KINDS.items()),
    ),
    key=("n",),
)

_UUIDS = st.uuids().map(str)
_MOMENTS = st.integers(-62_135_510_400_000_000, 253_402_214_400_000_000) | st.integers(-(10**12), 4_400_000_000_000_000)
_TIMES = _MOMENTS.map(lambda micros: EPOCH + timedelta(microseconds=micros))
_DAYS = st.dates(date(1, 1, 1), date(9999, 12, 31)) | st.dates(date(1969, 12, 30), date(2150, 1, 1))
_WORDS = st.text(max_size=4)
# Values at the edges of what some type holds, besides those that Hypothesis thinks of.
_OF: dict[DataType, st.SearchStrategy[Any]] = {
    ColumnType.BOOLEAN: st.booleans(),
    ColumnType.FLOAT32: st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan, math.inf]),
    ColumnType.FLOAT64: st.floats() | st.sampled_from([0.0, -0.0, math.nan, -math.inf]),
    ColumnType.STRING: _WORDS | _UUIDS | st.sampled_from(["new", "it's", "done", "abc", "ab", "é1", '{"a": [1]}', "x" * 36]),
    ColumnType.DATE: _DAYS,
    ColumnType.TIMESTAMP: _TIMES
    | _TIMES.map(lambda at: at.replace(microsecond=0))
    | _TIMES.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000))
    | _DAYS.map(lambda day: datetime(day.year, day.month, day.day, tzinfo=UTC)),
}


def values(kind: DataType) -> st.SearchStrategy[Any]:
    """Values of a declared type, without NULL."""
    match kind:
        case DecimalType():
            small = st.integers(-1000, 1000).map(lambda n: Decimal(f"{n}E-{kind.scale}"))
            most = 10**kind.precision - 1
            return small | st.integers(-most, most).map(lambda n: Decimal(f"{n}E-{kind.scale}"))
        case ArrayType():
            return st.lists(st.none() | values(kind.element), max_size=3)
        case MapType():
            return st.dictionaries(values(kind.key), st.none() | values(kind.value), max_size=3)
        case StructType():
            parts = st.tuples(*(st.none() | values(field.type) for field in kind.fields))
            return parts.map(lambda given: dict(zip([field.name for field in kind.fields], given, strict=True)))
    if kind in INTS:
        half = 2 ** (INTS[ColumnType(str(kind))] - 1)
        return st.integers(-half, half - 1) | st.integers(max(-half, -300), min(half - 1, 300))
    return _OF[kind]


@st.composite
def rows(draw: st.DrawFn, number: int) -> list[Row]:
    """Rows in which some columns have values, any of which may be one that its stored type does not hold."""
    drawn = []
    for n in range(number):
        names = draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=4, max_size=4, unique=True))
        drawn.append(plain_row(n, **{name: draw(values(KINDS[name][0])) for name in names}))
    return drawn


def plain_row(number: int, **given: Any) -> Row:
    """A row in which all is NULL or empty, but for what is given."""
    nothing = {name: None for name in KINDS if name not in NESTED}
    empty: Row = {name: [] for name in NESTED} | {"counts": {}, "small": {}, "lists": {}}
    return {"hour": TEN, "n": number, **nothing, **empty, "thing": dict.fromkeys(("size", "name", "on")), **given}


# --- which values fit: written down again, without the product's code ---


def _inside(low: int, high: int) -> Any:
    return lambda value: low <= value <= high


def _micros(value: datetime) -> int:
    return (value - EPOCH) // timedelta(microseconds=1)


def _day_of(value: date) -> int:
    return (value - date(1970, 1, 1)).days


def _is_uuid(value: str) -> bool:
    pieces = value.split("-")
    return [len(piece) for piece in pieces] == [8, 4, 4, 4, 12] and set("".join(pieces)) <= set("0123456789abcdef")


def _each(fits: Any, *, nulls: bool = True) -> Any:
    return lambda many: all(nulls if one is None else fits(one) for one in many)


_ANY: Any = lambda value: True  # noqa: E731
FITS: dict[str, Any] = {
    "u8": _inside(0, 255),
    "u16": _inside(0, 65535),
    "u32": _inside(0, 2**32 - 1),
    "u64": _inside(0, 2**64 - 1),
    "u64_all": _inside(0, 2**64 - 1),
    "i8": _inside(-128, 127),
    "i16": _inside(-32768, 32767),
    "money_short": lambda value: value == round(value, 2) and abs(value) < 10**7,
    "money_shifted": lambda value: abs(value) < 10**30,
    "share": lambda value: value == round(value, 1),
    "id": _is_uuid,
    "status": lambda value: value in ("new", "it's", "done"),
    "code": lambda value: len(value.encode()) == 3,
    "day": lambda value: date(1900, 1, 1) <= value <= date(2299, 12, 31),
    "day_short": lambda value: date(1970, 1, 1) <= value <= date(2149, 6, 6),
    "at_second": lambda value: value.microsecond == 0 and 0 <= _micros(value) < 2**32 * 10**6,
    "at_milli": lambda value: value.microsecond % 1000 == 0,
    "at_nano": lambda value: abs(_micros(value)) <= (2**63 - 1) // 1000,
    "at_day": lambda value: value.time() == datetime.min.time() and 0 <= _day_of(value.date()) <= 65535,
    "sizes": _each(_inside(0, 255), nulls=False),
    "ids": _each(_is_uuid),
    "grid": _each(_ANY, nulls=False),
    "small": lambda value: all(0 <= k <= 255 and v is not None and 0 <= v <= 255 for k, v in value.items()),
    "lists": lambda value: all(one is not None for one in value.values()),
    "thing": lambda value: value["on"] is None or FITS["day"](value["on"]),
    "things": _each(
        lambda one: None not in one.values() and 0 <= one["size"] <= 65535 and FITS["day_short"](one["on"]), nulls=False
    ),
    "many": _each(_ANY, nulls=False),
}


def misfits(given: Row) -> set[str]:
    """The columns whose value their stored type does not hold."""
    return {name for name, fits in FITS.items() if name in given and given[name] is not None and not fits(given[name])}


# --- values of either side, made comparable bit by bit ---


def canonical(kind: DataType, value: Any) -> Any:
    """A value that equals another one only when both are the same, bit by bit; entries of maps in one order."""
    if value is None:
        return None
    match kind:
        case ArrayType():
            return tuple(canonical(kind.element, one) for one in value)
        case MapType():
            entries = ((canonical(kind.key, k), canonical(kind.value, v)) for k, v in value.items())
            return tuple(sorted(entries, key=lambda pair: repr(pair[0])))
        case StructType():
            parts = [value[field.name] for field in kind.fields] if isinstance(value, dict) else value
            return tuple(canonical(field.type, one) for field, one in zip(kind.fields, parts, strict=True))
    return _PLAIN.get(kind, lambda same: same)(value)


_PLAIN: dict[DataType, Any] = {
    **{kind: Decimal for kind, _ in KINDS.values() if isinstance(kind, DecimalType)},
    **dict.fromkeys(
        (ColumnType.FLOAT32, ColumnType.FLOAT64), lambda value: "nan" if math.isnan(value) else struct.pack(">d", value)
    ),
    ColumnType.BOOLEAN: int,
    ColumnType.TIMESTAMP: lambda value: _micros(value) if isinstance(value, datetime) else value,
    ColumnType.DATE: lambda value: _day_of(value) if isinstance(value, date) else value,
    ColumnType.STRING: str,
}


def canonical_row(given: Row) -> tuple[Any, ...]:
    """A row, made comparable."""
    return (given["n"], *(canonical(kind, given[name]) for name, (kind, _) in KINDS.items()))


# What is read of a column that the driver gives in another time zone, or not at all before 1970.
READ = {
    "code": "toString(code)",
    "day": "toInt32(day)",
    "day_short": "toInt32(toDate32(day_short))",
    "at": "toUnixTimestamp64Micro(at)",
    "at_second": "toInt64(toUnixTimestamp(at_second)) * 1000000",
    "at_milli": "toUnixTimestamp64Milli(at_milli) * 1000",
    "at_nano": "intDiv(toUnixTimestamp64Nano(at_nano), 1000)",
    "at_day": "toInt64(toInt32(toDate32(at_day))) * 86400000000",
}


def stored_rows(warehouse: Warehouse, source: str, where: str = "1") -> Counter[tuple[Any, ...]]:
    """The rows of a quoted table, made comparable."""
    columns = ", ".join(f"{READ.get(name, name)} AS __{name}" for name in KINDS)
    rows = warehouse.rows(f"SELECT n AS __n, {columns} FROM {source} WHERE {where}", doing="reading rows")
    return Counter(canonical_row(dict(zip(("n", *KINDS), values_, strict=True))) for values_ in rows)


def renamed(name: str) -> Table:
    """The table under another name."""
    return replace(TYPED, name=name)
