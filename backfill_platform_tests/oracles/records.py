"""Which row a record becomes, in plain Python: the value of each declared column, or the columns that do not fit."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ISO = re.compile(
    r"(?a:(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?(Z|[+-]\d\d(?::?\d\d)?)?)?)",
)


class Unfit(Exception):
    """A value that does not fit its column."""


def row_of(record: Mapping[str, Any], kinds: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """The values of the columns, times in microseconds since 1970, and the columns that do not fit."""
    values, unfit = {}, []
    for name, kind in kinds.items():
        try:
            values[name] = None if record.get(name) is None else value_of(record[name], kind)
        except Unfit:
            values[name] = None
            unfit.append(name)
    return values, unfit


def value_of(value: Any, kind: str) -> Any:
    """The value as the declared type."""
    if kind == "string":
        return text_of(value)
    if kind == "boolean" and isinstance(value, bool):
        return value
    if kind in ("int", "bigint") and is_number(value):
        return whole(value, 32 if kind == "int" else 64)
    if kind == "double" and is_number(value):
        return float(value)
    if kind == "timestamp" and isinstance(value, str | datetime):
        return micros(value if isinstance(value, datetime) else time_of(value))
    if kind == "binary" and isinstance(value, str | bytes):
        return value.encode() if isinstance(value, str) else value
    raise Unfit


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def whole(value: Any, bits: int) -> int:
    try:
        exact = Fraction(value)
    except (OverflowError, ValueError):  # not a number, or an infinite one
        raise Unfit from None
    if exact.denominator != 1 or not -(2 ** (bits - 1)) <= exact < 2 ** (bits - 1):
        raise Unfit
    return int(exact)


def text_of(value: Any) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise Unfit from None
    if isinstance(value, str):
        return value
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def time_of(text: str) -> datetime:
    found = ISO.fullmatch(text)
    if not found:
        raise Unfit
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    try:
        moment = datetime(int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), tzinfo=UTC)
        moment += timedelta(microseconds=int(((fraction or "") + "000000")[:6]))
        if zone and zone != "Z":
            digits = zone[1:].replace(":", "").ljust(4, "0")
            shift = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
            moment -= shift if zone[0] == "+" else -shift
    except (ValueError, OverflowError):
        raise Unfit from None
    return moment


def micros(moment: datetime) -> int:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(microseconds=1)


def field_of(text: str, kind: str) -> Any:
    """The value of a field of a text file."""
    if text == "":
        return None
    if kind == "boolean" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind in ("int", "bigint") and re.fullmatch(r"(?a:[+-]?\d{1,40})", text):
        return whole(int(text), 32 if kind == "int" else 64)
    if kind == "double" and re.fullmatch(r"(?a:[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?)", text):
        try:
            number = float(Decimal(text))
        except (OverflowError, InvalidOperation):
            raise Unfit from None
        if number in (float("inf"), float("-inf")):
            raise Unfit
        return number
    if kind in ("string", "timestamp", "binary"):
        return value_of(text, kind)
    raise Unfit
