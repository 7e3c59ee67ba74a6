"""The type that a column of the lake needs so that it can hold what a column of ClickHouse holds.

Small whole numbers are taken into wider ones: a value that is too large for ClickHouse then goes to quarantine by itself, and
does not end the computation of its hour.
"""

from backfill_platform.domain.column_types import ArrayType, ColumnType, DataType, DecimalType, Field, MapType, StructType
from backfill_platform.domain.stored_types import StoredType
from backfill_platform.errors import SpecError

_TYPES: dict[str, DataType] = {
    "Bool": ColumnType.BOOLEAN,
    **dict.fromkeys(("Int8", "Int16", "Int32", "UInt8", "UInt16"), ColumnType.INT32),
    **dict.fromkeys(("Int64", "UInt32"), ColumnType.INT64),
    "UInt64": DecimalType(20, 0),
    **dict.fromkeys(("Int128", "Int256", "UInt128", "UInt256"), DecimalType(38, 0)),
    "Float32": ColumnType.FLOAT32,
    "Float64": ColumnType.FLOAT64,
    **dict.fromkeys(("String", "FixedString", "UUID", "Enum8", "Enum16"), ColumnType.STRING),
    **dict.fromkeys(("Date", "Date32"), ColumnType.DATE),
    **dict.fromkeys(("DateTime", "DateTime64"), ColumnType.TIMESTAMP),
}


def lake_type(stored: StoredType) -> DataType:
    """The type of the lake for a type of ClickHouse. Raises SpecError where there is none."""
    match stored.name:
        case "Array":
            (element,) = stored.parts
            return ArrayType(lake_type(element), element.nullable)
        case "Map":
            key, value = stored.parts
            return MapType(lake_type(key), lake_type(value), value.nullable)
        case "Tuple":
            names = stored.arguments or tuple(f"_{number}" for number in range(1, len(stored.parts) + 1))
            fields = zip(names, stored.parts, strict=True)
            return StructType(tuple(Field(name, lake_type(part), part.nullable) for name, part in fields))
        case "Decimal":
            precision, scale = stored.numbers
            return DecimalType(min(precision, 38), min(scale, 38))
    if stored.name not in _TYPES:
        raise SpecError(f"{stored} has no type in the lake")
    return _TYPES[stored.name]
