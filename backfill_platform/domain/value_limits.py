"""Which values of a column's type a stored type of ClickHouse holds exactly: tests, which each engine puts in its own words.

Nothing here is rounded, cut or padded to make it fit: a value either is stored as it is, or it does not fit.
"""

from dataclasses import dataclass
from enum import StrEnum

from backfill_platform.domain.column_types import (
    FLOATS,
    INTEGERS,
    ArrayType,
    ColumnType,
    DataType,
    DecimalType,
    MapType,
    StructType,
    is_nested,
)
from backfill_platform.domain.stored_types import StoredType, width_of
from backfill_platform.errors import SpecError

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_DATE32 = (-25_567, 120_529)  # 1900-01-01 and 2299-12-31, in days since 1970
_DATE = (0, 65_535)
_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


class Measure(StrEnum):
    """What of a value is compared with a number."""

    NUMBER = "number"  # the whole number or decimal itself
    DAYS = "days"  # of a date, since 1970
    MICROS = "micros"  # of a timestamp, since 1970


@dataclass(frozen=True)
class Between:
    """The measure of the value is in `[low, high]`."""

    measure: Measure
    low: int
    high: int


@dataclass(frozen=True)
class Multiple:
    """The timestamp is a multiple of so many microseconds."""

    micros: int


@dataclass(frozen=True)
class Digits:
    """The decimal has no more digits after the point, and no more before it, than these."""

    before: int
    after: int


@dataclass(frozen=True)
class OneOf:
    """The text is one of these."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Bytes:
    """The text has exactly so many bytes in UTF-8."""

    length: int


@dataclass(frozen=True)
class Matches:
    """The whole text matches the pattern, which all engines read alike."""

    pattern: str


Test = Between | Multiple | Digits | OneOf | Bytes | Matches


@dataclass(frozen=True)
class Limit:
    """What values must meet. NULL meets every test, unless it is `required` that there is a value.

    `parts` are the limits of what a value consists of: 'element', 'key', 'value', or the names of a struct.
    """

    tests: tuple[Test, ...] = ()
    required: bool = False
    parts: tuple[tuple[str, "Limit"], ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether every value fits."""
        return not self.tests and not self.required and all(part.is_open for _, part in self.parts)


NO_LIMIT = Limit()


def fit(kind: DataType, stored: StoredType) -> Limit:
    """The limit for values of a type in a column of ClickHouse. Raises SpecError where the two do not go together."""
    match kind:
        case ArrayType() if stored.name == "Array":
            return Limit(parts=(("element", _part(kind.element, kind.nullable, stored.parts[0])),))
        case MapType() if stored.name == "Map":
            key, value = stored.parts
            return Limit(parts=(("key", fit(kind.key, key)), ("value", _part(kind.value, kind.nullable, value))))
        case StructType() if stored.name == "Tuple" and stored.arguments in ((), tuple(field.name for field in kind.fields)):
            if len(stored.parts) == len(kind.fields):
                parts = zip(kind.fields, stored.parts, strict=True)
                return Limit(parts=tuple((f.name, _part(f.type, f.nullable, part)) for f, part in parts))
        case DecimalType():
            return _decimal(kind, stored)
        case ColumnType():
            return _scalar(kind, stored)
    raise _mismatch(kind, stored)


def _part(kind: DataType, nullable: bool, stored: StoredType) -> Limit:
    limit = fit(kind, stored)
    # Spark does not enforce that elements declared without NULL have none.
    return Limit(limit.tests, not nullable or is_nested(kind) or not stored.nullable, limit.parts)


def _decimal(kind: DecimalType, stored: StoredType) -> Limit:
    before = kind.precision - kind.scale
    if stored.name == "Decimal":
        precision, scale = stored.numbers
        if scale >= kind.scale and precision - scale >= before:
            return NO_LIMIT
        # No more digits than the values have: Spark has no decimals of more than 38.
        return Limit((Digits(min(precision - scale, before), min(scale, kind.scale)),))
    if kind.scale == 0 and (ends := _integer(stored)):
        return Limit((Between(Measure.NUMBER, *ends),))
    raise _mismatch(kind, stored)


def _scalar(kind: ColumnType, stored: StoredType) -> Limit:
    if kind in INTEGERS and (ends := _integer(stored)):
        half = 2 ** (INTEGERS[kind] - 1)
        return NO_LIMIT if ends[0] <= -half and ends[1] >= half - 1 else Limit((Between(Measure.NUMBER, *ends),))
    if kind is ColumnType.BOOLEAN and (stored.name == "Bool" or _integer(stored)):
        return NO_LIMIT
    if kind in FLOATS and stored.name in ("Float64", "Float32" if kind is ColumnType.FLOAT32 else ""):
        return NO_LIMIT
    if kind is ColumnType.DATE and stored.name in ("Date", "Date32"):
        return Limit((Between(Measure.DAYS, *(_DATE if stored.name == "Date" else _DATE32)),))
    if kind is ColumnType.TIMESTAMP:
        return _timestamp(stored)
    if kind is ColumnType.STRING:
        return _text(stored)
    raise _mismatch(kind, stored)


def _timestamp(stored: StoredType) -> Limit:
    match stored.name:
        case "DateTime":
            return Limit((Between(Measure.MICROS, 0, (2**32 - 1) * _SECOND), Multiple(_SECOND)))
        case "DateTime64":
            (precision,) = stored.numbers
            if precision == 6:
                return NO_LIMIT
            if precision < 6:
                return Limit((Multiple(10 ** (6 - precision)),))
            most = (2**63 - 1) // 10 ** (precision - 6)
            return Limit((Between(Measure.MICROS, -most, most),))
        case "Date" | "Date32":
            first, last = _DATE if stored.name == "Date" else _DATE32
            return Limit((Between(Measure.MICROS, first * _DAY, last * _DAY), Multiple(_DAY)))
    raise _mismatch(ColumnType.TIMESTAMP, stored)


def _text(stored: StoredType) -> Limit:
    match stored.name:
        case "String":
            return NO_LIMIT
        case "UUID":
            return Limit((Matches(_UUID),))
        case "Enum8" | "Enum16":
            return Limit((OneOf(stored.arguments),))
        case "FixedString":
            return Limit((Bytes(stored.numbers[0]),))
    raise _mismatch(ColumnType.STRING, stored)


def _integer(stored: StoredType) -> tuple[int, int] | None:
    return width_of(stored.name) if "Int" in stored.name else None


def _mismatch(kind: DataType, stored: StoredType) -> SpecError:
    return SpecError(f"a {kind} cannot be stored as {stored}")
