"""The types that all engines share: what a pandera schema declares, and Spark, Iceberg, Parquet and ClickHouse hold.

`str()` of a type is part of a table's code version: it never changes. How ClickHouse stores a type is a second, optional
declaration (`stored_types.py`).
"""

from dataclasses import dataclass
from enum import StrEnum

from backfill_platform.errors import SpecError


class ColumnType(StrEnum):
    """The types without parts. Timestamps are UTC, to the microsecond; BINARY is for the raw layer only."""

    BOOLEAN = "boolean"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    STRING = "string"
    DATE = "date"
    TIMESTAMP = "timestamp"
    BINARY = "binary"

    @property
    def is_numeric(self) -> bool:
        """Whether values can be added up; of booleans, how many are true."""
        return self in INTEGERS or self in FLOATS or self is ColumnType.BOOLEAN


INTEGERS = {ColumnType.INT8: 8, ColumnType.INT16: 16, ColumnType.INT32: 32, ColumnType.INT64: 64}  # with their bits
FLOATS = (ColumnType.FLOAT32, ColumnType.FLOAT64)


@dataclass(frozen=True)
class DecimalType:
    """Numbers of `precision` decimal digits, `scale` of them after the point."""

    precision: int
    scale: int
    is_numeric = True

    def __str__(self) -> str:
        return f"decimal({self.precision}, {self.scale})"


@dataclass(frozen=True)
class ArrayType:
    """A list of values of one type, of which each may be NULL where `nullable`."""

    element: "DataType"
    nullable: bool = True
    is_numeric = False

    def __str__(self) -> str:
        return f"array<{_part(self.element, self.nullable)}>"


@dataclass(frozen=True)
class MapType:
    """Values by key, in no order; a value may be NULL where `nullable`."""

    key: "DataType"
    value: "DataType"
    nullable: bool = True
    is_numeric = False

    def __post_init__(self) -> None:
        if not isinstance(self.key, ColumnType) or self.key in (*FLOATS, ColumnType.BINARY):
            raise SpecError(f"{self}: the key of a map must be a boolean, a whole number, text, a date or a timestamp")

    def __str__(self) -> str:
        return f"map<{self.key}, {_part(self.value, self.nullable)}>"


@dataclass(frozen=True)
class Field:
    """One value of a struct."""

    name: str
    type: "DataType"
    nullable: bool = True


@dataclass(frozen=True)
class StructType:
    """Several values with names."""

    fields: tuple[Field, ...]
    is_numeric = False

    def __str__(self) -> str:
        return f"struct<{', '.join(f'{field.name}: {_part(field.type, field.nullable)}' for field in self.fields)}>"


NestedType = ArrayType | MapType | StructType
DataType = ColumnType | DecimalType | NestedType


def is_nested(kind: DataType) -> bool:
    """Whether values of the type have parts."""
    return isinstance(kind, ArrayType | MapType | StructType)


def holds_map(kind: DataType) -> bool:
    """Whether values of the type are, or contain, maps, whose entries may come in any order."""
    match kind:
        case ArrayType():
            return holds_map(kind.element)
        case StructType():
            return any(holds_map(field.type) for field in kind.fields)
    return isinstance(kind, MapType)


def holds_bytes(kind: DataType) -> bool:
    """Whether values of the type are, or contain, bytes."""
    match kind:
        case ArrayType():
            return holds_bytes(kind.element)
        case MapType():
            return holds_bytes(kind.value)
        case StructType():
            return any(holds_bytes(field.type) for field in kind.fields)
    return kind is ColumnType.BINARY


def _part(kind: DataType, nullable: bool) -> str:
    return f"{kind}" if nullable else f"{kind} not null"
