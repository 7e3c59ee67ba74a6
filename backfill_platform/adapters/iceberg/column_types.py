"""Iceberg's types for those of our columns. It has no whole numbers below 32 bits."""

from collections.abc import Collection
from itertools import count

from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)
from pyiceberg.types import DecimalType as IcebergDecimal
from pyiceberg.types import MapType as IcebergMap
from pyiceberg.types import StructType as IcebergStruct

from backfill_platform.domain.column_types import ArrayType, ColumnType, DataType, DecimalType, MapType, StructType
from backfill_platform.domain.tables import Column

_PLAIN = {
    ColumnType.BOOLEAN: BooleanType(),
    ColumnType.INT8: IntegerType(),
    ColumnType.INT16: IntegerType(),
    ColumnType.INT32: IntegerType(),
    ColumnType.INT64: LongType(),
    ColumnType.FLOAT32: FloatType(),
    ColumnType.FLOAT64: DoubleType(),
    ColumnType.STRING: StringType(),
    ColumnType.DATE: DateType(),
    ColumnType.TIMESTAMP: TimestamptzType(),
    ColumnType.BINARY: BinaryType(),
}


def fields_of(columns: Collection[Column]) -> list[NestedField]:
    """The fields of a schema with these columns: all optional, as in the files."""
    inner = count(len(columns) + 1)
    return [
        NestedField(number, column.name, _type(column.type, inner), required=False, doc=column.description)
        for number, column in enumerate(columns, 1)
    ]


def shape(kind: IcebergType) -> str:
    """A type as text, without the numbers that a catalog gives to the parts of it."""
    match kind:
        case ListType():
            return f"list<{shape(kind.element_type)}>"
        case IcebergMap():
            return f"map<{shape(kind.key_type)}, {shape(kind.value_type)}>"
        case IcebergStruct():
            return f"struct<{', '.join(f'{field.name}: {shape(field.field_type)}' for field in kind.fields)}>"
    return str(kind)


def _type(kind: DataType, ids: "count[int]") -> IcebergType:
    match kind:
        case DecimalType():
            return IcebergDecimal(kind.precision, kind.scale)
        case ArrayType():
            return ListType(next(ids), _type(kind.element, ids), element_required=False)
        case MapType():
            return IcebergMap(next(ids), _type(kind.key, ids), next(ids), _type(kind.value, ids), value_required=False)
        case StructType():
            fields = [NestedField(next(ids), field.name, _type(field.type, ids), required=False) for field in kind.fields]
            return IcebergStruct(*fields)
    return _PLAIN[kind]
