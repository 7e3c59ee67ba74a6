"""Spark's types for those of our columns, and back; and structs for pandera, which knows all others."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pyspark.sql.types as spark
from pandera.dtypes import immutable
from pandera.engines.pyspark_engine import DataType as PanderaType
from pandera.engines.pyspark_engine import Engine
from pyspark.sql import functions as F

from backfill_platform.domain.column_types import (
    ArrayType,
    ColumnType,
    DataType,
    DecimalType,
    Field,
    MapType,
    StructType,
    holds_map,
)
from backfill_platform.domain.tables import Column, Table
from backfill_platform.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
    from pyspark.sql import DataFrame

_PLAIN: dict[ColumnType, spark.DataType] = {
    ColumnType.BOOLEAN: spark.BooleanType(),
    ColumnType.INT8: spark.ByteType(),
    ColumnType.INT16: spark.ShortType(),
    ColumnType.INT32: spark.IntegerType(),
    ColumnType.INT64: spark.LongType(),
    ColumnType.FLOAT32: spark.FloatType(),
    ColumnType.FLOAT64: spark.DoubleType(),
    ColumnType.STRING: spark.StringType(),
    ColumnType.DATE: spark.DateType(),
    ColumnType.TIMESTAMP: spark.TimestampType(),
    ColumnType.BINARY: spark.BinaryType(),
}
_KINDS = {given: kind for kind, given in _PLAIN.items()}
# Iceberg has no whole numbers below 32 bits.
_WIDENED = {ColumnType.INT8: ColumnType.INT32, ColumnType.INT16: ColumnType.INT32}


@Engine.register_dtype(equivalents=[spark.StructType])  # type: ignore[untyped-decorator, unused-ignore]
@immutable(init=True)
class PanderaStruct(PanderaType):
    """A struct as the type of a column in a pandera schema: pandera has none of its own."""

    type: spark.StructType = dataclasses.field(default_factory=spark.StructType, init=False)

    def __init__(self, fields: Any = None) -> None:
        object.__setattr__(self, "type", spark.StructType(fields))

    @classmethod
    def from_parametrized_dtype(cls, given: spark.StructType) -> Any:
        """The type of pandera for one of Spark."""
        return cls(given.fields)


def spark_type(kind: DataType) -> spark.DataType:
    """Spark's type for values of a column, as it computes with them."""
    return _spark(kind, {})


def written_type(kind: DataType) -> spark.DataType:
    """Spark's type for values of a column, as the lake's files hold them."""
    return _spark(kind, _WIDENED)


def _spark(kind: DataType, other: dict[ColumnType, ColumnType]) -> spark.DataType:
    match kind:
        case DecimalType():
            return spark.DecimalType(kind.precision, kind.scale)
        case ArrayType():
            return spark.ArrayType(_spark(kind.element, other), True)
        case MapType():
            return spark.MapType(_spark(kind.key, other), _spark(kind.value, other), True)
        case StructType():
            return spark.StructType([spark.StructField(f.name, _spark(f.type, other), True) for f in kind.fields])
    return _PLAIN[other.get(kind, kind)]


def declared_type(given: Any) -> DataType:
    """The type of a column that a schema declares with a type of Spark. Raises SpecError for one that is not supported."""
    match given:
        case spark.DecimalType():
            return DecimalType(given.precision, given.scale)
        case spark.ArrayType():
            return ArrayType(declared_type(given.elementType), given.containsNull)
        case spark.MapType():
            return MapType(declared_type(given.keyType), declared_type(given.valueType), given.valueContainsNull)
        case spark.StructType():
            return StructType(tuple(Field(f.name, declared_type(f.dataType), f.nullable) for f in given.fields))
    if given not in _KINDS:
        names = ", ".join(kind.simpleString() for kind in _KINDS)
        raise SpecError(f"it is a {given.simpleString()}; supported are {names}, decimals, arrays, maps and structs")
    return _KINDS[given]


def as_written(rows: DataFrame, table: Table) -> DataFrame:
    """The rows with the types that the lake's files have."""
    wider = [column for column in table.columns if written_type(column.type) != spark_type(column.type)]
    if not wider:  # Spark Connect takes no empty change
        return rows
    return rows.withColumns({column.name: F.col(column.name).cast(written_type(column.type)) for column in wider})


def hashable(column: Column) -> SparkColumn:
    """The values of a column for a hash: Spark hashes no maps, so their entries are listed by key."""
    value = F.col(column.name)
    return _in_order(column.type, value) if holds_map(column.type) else value


def _in_order(kind: DataType, value: SparkColumn) -> SparkColumn:
    match kind:
        case MapType():
            keys = F.array_sort(F.map_keys(value))
            return F.transform(keys, lambda key: F.struct(key, _in_order(kind.value, value[key])))
        case ArrayType() if holds_map(kind.element):
            return F.transform(value, lambda each: _in_order(kind.element, each))
        case StructType() if holds_map(kind):
            parts = [_in_order(field.type, value[field.name]).alias(field.name) for field in kind.fields]
            return F.when(value.isNotNull(), F.struct(*parts))
    return value
