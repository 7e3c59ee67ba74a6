"""How ClickHouse stores the values of a column: its types, read from their text, and what they can hold of a column's type.

ClickHouse wraps, cuts and pads values that do not fit, silently: a day of 2200 in a `Date`, a fraction in a `DateTime`, a short
text in a `FixedString`. So `fit` says which values of a column's type a stored type holds exactly; Spark sets the others aside,
and the load refuses them once more.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from backfill_platform.domain.column_types import (
    ArrayType,
    ColumnType,
    DataType,
    DecimalType,
    MapType,
    StructType,
)
from backfill_platform.errors import SpecError

_DECIMALS = {"Decimal32": 9, "Decimal64": 18, "Decimal128": 38, "Decimal256": 76}
_NAME = re.compile(r"[A-Za-z]\w*")


@dataclass(frozen=True)
class StoredType:
    """A type of ClickHouse: its name, its wrappers, and what is in its brackets.

    `arguments` are numbers, texts (zones), or the names of an enum; `parts` the types of an array, map or tuple, whose names
    are `arguments` where they have any. `str()` is the text that `system.columns` shows.
    """

    name: str
    arguments: tuple[str, ...] = ()
    parts: tuple["StoredType", ...] = ()
    numbers: tuple[int, ...] = ()
    nullable: bool = False
    low_cardinality: bool = False

    def __str__(self) -> str:
        text = self._plain()
        text = f"Nullable({text})" if self.nullable else text
        return f"LowCardinality({text})" if self.low_cardinality else text

    def _plain(self) -> str:
        match self.name:
            case "Enum8" | "Enum16":
                inside = ", ".join(f"{_quoted(n)} = {v}" for n, v in zip(self.arguments, self.numbers, strict=True))
            case "DateTime" | "DateTime64":
                inside = ", ".join([*map(str, self.numbers), *map(_quoted, self.arguments)])
            case "Tuple" if self.arguments:
                inside = ", ".join(f"{n} {part}" for n, part in zip(self.arguments, self.parts, strict=True))
            case "Array" | "Map" | "Tuple":
                inside = ", ".join(map(str, self.parts))
            case _:
                inside = ", ".join(map(str, self.numbers))
        return f"{self.name}({inside})" if inside else self.name

    @property
    def plain(self) -> "StoredType":
        """The type without LowCardinality at any depth, which changes how values are stored, and neither hash nor cast."""
        return replace(self, low_cardinality=False, parts=tuple(part.plain for part in self.parts))


@cache
def parse(text: str) -> StoredType:
    """The type that a text of ClickHouse names. Raises SpecError for text that is no type this platform can store."""
    reader = _Reader(text)
    kind = reader.type()
    if reader.rest:
        raise SpecError(f"'{text}' cannot be read as a ClickHouse type from '{reader.rest}' on")
    return kind


class _Reader:
    """Reads a type from the front of a text."""

    def __init__(self, text: str) -> None:
        self._text, self.rest = text, text.strip()

    def _fail(self, why: str) -> SpecError:
        return SpecError(f"'{self._text}' cannot be read as a ClickHouse type: {why}")

    def _take(self, pattern: str) -> str | None:
        match = re.match(rf"\s*({pattern})\s*", self.rest)
        if match is None:
            return None
        self.rest = self.rest[match.end() :]
        return match.group(1)

    def _need(self, pattern: str, what: str) -> str:
        taken = self._take(pattern)
        if taken is None:
            raise self._fail(f"{what} is missing before '{self.rest}'")
        return taken

    def type(self) -> StoredType:
        name = self._need(_NAME.pattern, "the name of a type")
        if name in ("Nullable", "LowCardinality"):
            self._need(r"\(", "(")
            inside = self.type()
            self._need(r"\)", ")")
            if name == "Nullable":
                if inside.parts or inside.name in ("Array", "Map", "Tuple"):
                    raise self._fail(f"ClickHouse has no Nullable({inside.name})")
                return replace(inside, nullable=True)
            return replace(inside, low_cardinality=True)
        if name not in _BARE and name not in _READERS:
            raise self._fail(f"{name} is not supported; supported are {', '.join((*_BARE, *_READERS))}")
        return _READERS[name](self, name) if name in _READERS else StoredType(name)

    def _brackets(self, name: str) -> None:
        self._need(r"\(", f"( after {name}")

    def numbers(self, name: str, least: int, most: int) -> tuple[int, ...]:
        self._brackets(name)
        found = [int(self._need(r"-?\d+", "a number"))]
        while self._take(","):
            found.append(int(self._need(r"-?\d+", "a number")))
        self._need(r"\)", ")")
        if not least <= len(found) <= most:
            raise self._fail(f"{name} takes {least} to {most} numbers")
        return tuple(found)

    def _string(self) -> str:
        return re.sub(r"\\(.)", r"\1", self._need(r"'(?:[^'\\]|\\.)*'", "a text in quotes")[1:-1])

    def decimal(self, name: str) -> StoredType:
        if name in _DECIMALS:
            return StoredType("Decimal", numbers=(_DECIMALS[name], *self.numbers(name, 1, 1)))
        found = self.numbers(name, 1, 2)
        return StoredType("Decimal", numbers=(found[0], found[1] if len(found) > 1 else 0))

    def fixed(self, name: str) -> StoredType:
        return StoredType(name, numbers=self.numbers(name, 1, 1))

    def time(self, name: str) -> StoredType:
        if self._take(r"\(") is None:
            return StoredType(name, numbers=(3,) if name == "DateTime64" else ())
        numbers: tuple[int, ...] = ()
        zone: tuple[str, ...] = ()
        if name == "DateTime64":
            numbers = (int(self._need(r"\d", "a precision of 0 to 9")),)
        if name == "DateTime" or self._take(","):
            zone = (self._string(),)
        self._need(r"\)", ")")
        return StoredType(name, zone, numbers=numbers)

    def enum(self, name: str) -> StoredType:
        self._brackets(name)
        values: dict[str, int] = {}
        while True:
            label = self._string()
            self._need("=", "the number of each name, as in Enum8('a' = 1),")
            values[label] = int(self._need(r"-?\d+", "a number"))
            if not self._take(","):
                break
        self._need(r"\)", ")")
        ordered = sorted(values, key=lambda label: values[label])
        return StoredType(name, tuple(ordered), numbers=tuple(values[label] for label in ordered))

    def collection(self, name: str) -> StoredType:
        self._brackets(name)
        names, parts = [], []
        while True:
            named = re.match(r"\s*(`[^`]+`|[A-Za-z_]\w*)\s+(?=[A-Za-z])", self.rest) if name == "Tuple" else None
            if named:
                names.append(named.group(1).strip("`"))
                self.rest = self.rest[named.end() :]
            parts.append(self.type())
            if not self._take(","):
                break
        self._need(r"\)", ")")
        if name != "Tuple" and len(parts) != (2 if name == "Map" else 1):
            raise self._fail(f"{name} has another number of types")
        if names and len(names) != len(parts):
            raise self._fail("either all values of a Tuple have names, or none has")
        return StoredType(name, tuple(names), tuple(parts))


_BITS = (8, 16, 32, 64, 128, 256)
_WIDTHS: Mapping[str, tuple[int, int]] = {
    **{f"Int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in _BITS},
    **{f"UInt{bits}": (0, 2**bits - 1) for bits in _BITS},
}
_BARE = ("Bool", *_WIDTHS, "Float32", "Float64", "String", "UUID", "Date", "Date32")
_READERS = {
    **dict.fromkeys(("Decimal", *_DECIMALS), _Reader.decimal),
    "FixedString": _Reader.fixed,
    "DateTime": _Reader.time,
    "DateTime64": _Reader.time,
    "Enum8": _Reader.enum,
    "Enum16": _Reader.enum,
    **dict.fromkeys(("Array", "Map", "Tuple"), _Reader.collection),
}
_NATURAL = {
    ColumnType.BOOLEAN: StoredType("Bool"),
    ColumnType.INT8: StoredType("Int8"),
    ColumnType.INT16: StoredType("Int16"),
    ColumnType.INT32: StoredType("Int32"),
    ColumnType.INT64: StoredType("Int64"),
    ColumnType.FLOAT32: StoredType("Float32"),
    ColumnType.FLOAT64: StoredType("Float64"),
    ColumnType.STRING: StoredType("String"),
    ColumnType.DATE: StoredType("Date32"),
    ColumnType.TIMESTAMP: StoredType("DateTime64", ("UTC",), numbers=(6,)),
    ColumnType.BINARY: StoredType("String"),
}


def natural(kind: DataType, nullable: bool) -> StoredType:
    """What a column is stored as where nothing else is declared.

    NULL in place of an array, map or struct is not stored: ClickHouse has no such value.
    """
    match kind:
        case DecimalType():
            return StoredType("Decimal", numbers=(kind.precision, kind.scale), nullable=nullable)
        case ArrayType():
            return StoredType("Array", parts=(natural(kind.element, kind.nullable),))
        case MapType():
            return StoredType("Map", parts=(natural(kind.key, False), natural(kind.value, kind.nullable)))
        case StructType():
            parts = tuple(natural(field.type, field.nullable) for field in kind.fields)
            return StoredType("Tuple", tuple(field.name for field in kind.fields), parts)
    return replace(_NATURAL[kind], nullable=nullable)


def width_of(name: str) -> tuple[int, int]:
    """The least and the greatest number that an integer type of ClickHouse holds. Raises KeyError."""
    return _WIDTHS[name]


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
