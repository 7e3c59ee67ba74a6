"""Values of records, made to fit the types that a table declares. It runs in Spark's Python workers, without this package.

A value fits where nothing of it is lost: numbers that are whole and in range, times within the years 1 to 9999. Nanoseconds are
cut off, and a column of text takes any value, as JSON where it is no text.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Fitted = tuple[pa.Array, Collection[int]]  # the values, NULL where one does not fit, and the rows of these

TYPES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "binary": pa.binary(),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999  # microseconds of the years 1 and 9999
_WHOLE = r"^[+-]?[0-9]{1,40}$"
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d{1,9})?)?)?(Z|[+-]\d\d(:?\d\d)?)?)?", re.ASCII)
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}


class Micros(int):
    """A moment in microseconds since 1970, which may be outside the years that Python knows."""


class Number(float):
    """A number of a JSON text with a fraction or an exponent, and how it was written."""

    text: str

    @classmethod
    def of(cls, text: str) -> Number:
        """The number that the text says."""
        number = cls(text)
        number.text = text
        return number


def kind_of(given: pa.DataType) -> str:
    """The declared type that a type of Arrow fits best, by Spark's name; text for what has none."""
    given = given.value_type if pa.types.is_dictionary(given) else given
    if pa.types.is_boolean(given):
        return "boolean"
    if pa.types.is_integer(given) and given != pa.uint64():
        return "bigint"
    if pa.types.is_floating(given):
        return "double"
    if pa.types.is_timestamp(given) or pa.types.is_date(given):
        return "timestamp"
    if pa.types.is_binary(given) or pa.types.is_large_binary(given) or pa.types.is_fixed_size_binary(given):
        return "binary"
    return "string"


def fit_array(values: pa.Array, kind: str) -> Fitted:
    """The values of a column of a file as the declared type `kind`, by Spark's name of it."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    try:
        quick = _cast(values, kind)
    except pa.ArrowInvalid:  # a value does not fit: which one is found out below
        quick = None
    return (quick, ()) if quick is not None else fit_values(plain_values(values), kind)


def plain_values(values: pa.Array) -> list[Any]:
    """The values for Python; times, of which Python has fewer, as `Micros`."""
    return _moments(values) if pa.types.is_temporal(values.type) else list(values.to_pylist())


def _cast(values: pa.Array, kind: str) -> pa.Array | None:
    """The values where all of them fit; None, or ArrowInvalid, where they must be looked at one by one."""
    given, wanted = values.type, TYPES[kind]
    whole = pa.types.is_integer(given)
    number = whole or pa.types.is_floating(given) or pa.types.is_decimal(given)
    if kind in ("int", "bigint") and number:
        return values.cast(wanted)
    if kind == "double" and number:
        return values.cast(wanted, safe=False)
    if kind == "timestamp" and (pa.types.is_timestamp(given) or pa.types.is_date(given)):
        return _cast_times(values)
    if kind == "timestamp" and _is_text(given):
        return _cast_text(values.cast(pa.string()), kind)
    if kind == "string" and whole:
        return values.cast(wanted)
    if kind in ("string", "binary") and _is_text(given):
        return values.cast(wanted)
    if kind == "binary" and (pa.types.is_large_binary(given) or pa.types.is_fixed_size_binary(given)):
        return values.cast(wanted)
    return values if given == wanted else values.cast(wanted) if pa.types.is_null(given) else None


def _is_text(given: pa.DataType) -> bool:
    return bool(pa.types.is_string(given) or pa.types.is_large_string(given) or pa.types.is_string_view(given))


def _cast_times(values: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(values.type) and values.type.unit == "ns":
        values = pc.floor_temporal(values.cast(pa.timestamp("ns")), unit="microsecond")
    times = values.cast(pa.timestamp("us")) if pa.types.is_date(values.type) else values
    times = times.cast(TYPES["timestamp"])
    return times if _within_years(times) else None


def _within_years(times: pa.Array) -> bool:
    span = pc.min_max(times.cast(pa.int64()))
    return span["min"].as_py() is None or (span["min"].as_py() >= _FIRST and span["max"].as_py() <= _LAST)


def _moments(values: pa.Array) -> list[Any]:
    """Times as numbers: Python's own have fewer years."""
    if pa.types.is_date32(values.type):
        return [None if day is None else Micros(day * 86_400_000_000) for day in values.cast(pa.int32()).to_pylist()]
    if pa.types.is_date64(values.type):
        return [None if day is None else Micros(day * 1000) for day in values.cast(pa.int64()).to_pylist()]
    if not pa.types.is_timestamp(values.type):
        return [None if one is None else str(one) for one in values.to_pylist()]
    unit = values.type.unit
    numbers = values.cast(pa.timestamp(unit)).cast(pa.int64()).to_pylist()
    factor = _UNITS.get(unit)
    return [None if one is None else Micros(one * factor if factor else one // 1000) for one in numbers]


def fit_text(texts: pa.Array, kind: str) -> Fitted:
    """Fields of a text file as the declared type; an empty one is NULL."""
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    if kind == "string":
        return texts, ()
    try:
        quick = _cast_text(texts, kind)
    except pa.ArrowInvalid:
        quick = None
    return (quick, ()) if quick is not None else _one_by_one(texts.to_pylist(), kind, _of_text)


def _cast_text(texts: pa.Array, kind: str) -> pa.Array | None:
    if kind == "binary":
        return texts.cast(TYPES[kind])
    if kind == "timestamp":
        try:
            times = texts.cast(TYPES[kind])
        except pa.ArrowInvalid:  # times without a zone are UTC
            times = texts.cast(pa.timestamp("us")).cast(TYPES[kind])
        return times if _within_years(times) else None
    if kind in ("int", "bigint", "double"):
        # Arrow also takes hexadecimal numbers.
        pattern = _NUMBER if kind == "double" else _WHOLE
        if not pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py():
            return None
        numbers = texts.cast(TYPES[kind])
        return numbers if kind != "double" or pc.all(pc.is_finite(numbers), min_count=0).as_py() else None
    return None


def _of_text(text: str, kind: str) -> Any:
    if kind == "boolean" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind in ("int", "bigint") and re.fullmatch(_WHOLE[1:-1], text):
        return _whole(int(text), kind)
    if kind == "double" and re.fullmatch(_NUMBER[1:-1], text) and math.isfinite(number := float(text)):
        return number
    if kind in ("timestamp", "binary"):
        return fitted(text, kind)
    raise ValueError(text)


def fit_values(values: Sequence[Any], kind: str) -> Fitted:
    """Python values as the declared type."""
    quick = {"boolean": bool, "int": int, "bigint": int, "double": float, "string": str, "binary": bytes}.get(kind)
    kinds = set(map(type, values)) - {type(None)}
    if kinds <= {quick} or (kind == "double" and kinds <= {int, float}):
        try:
            return pa.array(values, TYPES[kind]), ()
        except (pa.ArrowInvalid, OverflowError, UnicodeEncodeError):
            pass
    return _one_by_one(values, kind, fitted)


def _one_by_one(values: Sequence[Any], kind: str, fit: Callable[[Any, str], Any]) -> Fitted:
    found, unfit = [], []
    for row, value in enumerate(values):
        try:
            found.append(None if value is None else fit(value, kind))
        except (ValueError, ArithmeticError):
            found.append(None)
            unfit.append(row)
    return pa.array(found, TYPES[kind]), unfit


def fitted(value: Any, kind: str) -> Any:
    """The value as the declared type, a timestamp in microseconds.

    Raises ValueError or ArithmeticError where it does not fit.
    """
    if kind == "string":
        text = value if isinstance(value, str) else value.decode() if isinstance(value, bytes) else as_json(value)
        text.encode()  # half a surrogate pair is no text
        return text
    if kind == "boolean" and isinstance(value, bool):
        return value
    if kind in ("int", "bigint"):
        return _whole(value, kind)
    if kind == "double":
        return _real(value)
    if kind == "timestamp":
        return _moment(value)
    if kind == "binary" and isinstance(value, str | bytes):
        return value.encode() if isinstance(value, str) else value
    raise ValueError(kind)


def _whole(value: Any, kind: str) -> int:
    if isinstance(value, Number):
        value = Decimal(value.text)
    if isinstance(value, bool | Micros) or not isinstance(value, int | float | Decimal):
        raise ValueError(kind)
    if isinstance(value, Decimal) and value.adjusted() > 20:
        raise ValueError(kind)  # before a number of a billion digits is made
    number, bits = int(value), 31 if kind == "int" else 63
    if number != value or not -(1 << bits) <= number < 1 << bits:
        raise ValueError(kind)
    return number


def _real(value: Any) -> float:
    if isinstance(value, bool | Micros) or not isinstance(value, int | float | Decimal):
        raise ValueError("double")
    number = float(value)
    if isinstance(value, Number | Decimal) and not math.isfinite(number):
        raise ValueError("double")
    return number


def _moment(value: Any) -> int:
    if isinstance(value, str):
        if not _TIME.fullmatch(value):
            raise ValueError(value)
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        value = Micros((aware - _EPOCH) // timedelta(microseconds=1))
    if not isinstance(value, Micros) or not _FIRST <= value <= _LAST:
        raise ValueError("timestamp")
    return int(value)


def as_json(value: Any) -> str:
    """The value as JSON text: times as ISO 8601, decimals as they are, bytes as UTF-8 or in base64."""
    is_json = isinstance(value, str | int | float | dict | list | tuple) and not isinstance(value, Number | Micros)
    if not is_json:
        return _plain(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)


def record_json(record: Mapping[str, Any]) -> str:
    """A record as JSON text that can be written as UTF-8."""
    plain = {name: _plain(value) if isinstance(value, Micros) else value for name, value in record.items()}
    text = json.dumps(plain, ensure_ascii=False, separators=(",", ":"), default=_plain)
    return text.encode(errors="backslashreplace").decode()


def _plain(value: object) -> str:
    if isinstance(value, Number):
        return value.text
    if isinstance(value, Micros):
        return (_EPOCH + timedelta(microseconds=value)).isoformat() if _FIRST <= value <= _LAST else str(int(value))
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return str(value)
