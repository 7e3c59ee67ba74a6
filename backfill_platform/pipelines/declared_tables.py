"""Tables from the schemas that declare them, and the names that their columns had before."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pandera.pyspark import DataFrameModel

from backfill_platform.adapters.spark.column_types import declared_type
from backfill_platform.domain.tables import Column, Layer, Partitioning, Table
from backfill_platform.errors import SpecError


def with_earlier_names(table: Table, was: Mapping[str, str | tuple[str, ...]]) -> list[Column]:
    """The columns of a table with the names that they had before. Raises SpecError for one that it does not have."""
    if unknown := sorted(was.keys() - set(table.column_names)):
        raise SpecError(f"{table}: was names {', '.join(unknown)}, which is no column of it; write {{new name: old name}}")
    earlier = {name: (names,) if isinstance(names, str) else names for name, names in was.items()}
    return [replace(column, was=earlier.get(column.name, ())) for column in table.columns]


def table_of(
    layer: Layer, name: str, schema: type[DataFrameModel], *, hour: str, key: tuple[str, ...], partitioning: Partitioning
) -> Table:
    """The table that a pandera schema declares. Raises SpecError for a column whose type the engines do not share."""
    container: Any = schema.to_schema()
    columns = []
    for column_name, declared in container.columns.items():
        try:
            kind = declared_type(declared.dtype.type)
        except SpecError as error:
            raise SpecError(f"{layer}/{name}: column '{column_name}': {error}") from None
        columns.append(Column(column_name, kind, bool(declared.nullable), declared.description or ""))
    return Table(layer, name, tuple(columns), hour=hour, key=key, partitioning=partitioning)
