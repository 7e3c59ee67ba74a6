"""How a lake table's schema follows its declaration: by field id, in one commit, without rewriting a file.

Files have no field ids. Iceberg reads a column by all names that its mapping has for the id; Spark and ClickHouse read it by
those that are declared (`Column.was`). So the two must agree, which `forgotten_names` sees to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from pyiceberg.types import DecimalType, DoubleType, FloatType, IcebergType, IntegerType, LongType

from backfill_platform.adapters.iceberg.changes import Change
from backfill_platform.adapters.iceberg.column_types import fields_of, shape
from backfill_platform.domain.column_changes import ColumnChange, Kind, renamed
from backfill_platform.domain.tables import Table

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

_BOUNDS = "write.metadata.metrics.column."


def differences(iceberg_table: IcebergTable, table: Table) -> list[str]:
    """How the lake table differs from its declaration, in words; nothing where it does not."""
    stored = {field.name: shape(field.field_type) for field in iceberg_table.schema().fields}
    declared = {field.name: shape(field.field_type) for field in fields_of(table.columns)}
    differing = [f"{name} {kind}" for name, kind in sorted(set(stored.items()) ^ set(declared.items()))]
    return differing or [
        f"{name}, which was {', '.join(names)}" for name, names in forgotten_names(iceberg_table, table).items()
    ]


def forgotten_names(iceberg_table: IcebergTable, table: Table) -> dict[str, list[str]]:
    """The columns that files may have under names that the declaration does not give, with these names."""
    mapping = iceberg_table.name_mapping()
    known = {column.name: {column.name, *column.was} for column in table.columns}
    if mapping is None:
        return {}
    ids = {field.field_id: field.name for field in iceberg_table.schema().fields}
    found = {ids[field.field_id]: sorted(set(field.names)) for field in mapping.root if field.field_id in ids}
    lacking = {name: [one for one in names if one not in known.get(name, names)] for name, names in found.items()}
    return {name: names for name, names in lacking.items() if names}


def column_changes(iceberg_table: IcebergTable, table: Table, drops: Collection[str], *, empty: bool) -> list[ColumnChange]:
    """What makes the lake table as it is declared. `drops` may be dropped; `empty` says that no hour of it was ever built."""
    return list(_changes(iceberg_table, table, drops, empty))


def _changes(iceberg_table: IcebergTable, table: Table, drops: Collection[str], empty: bool) -> Iterator[ColumnChange]:
    stored = {field.name: field.field_type for field in iceberg_table.schema().fields}
    declared = {field.name: field.field_type for field in fields_of(table.columns)}
    moved = renamed(table, stored)
    for name, names in forgotten_names(iceberg_table, table).items():
        if name in declared:
            why = f"older files have it as {', '.join(names)}; declare was={{{name!r}: {names[0]!r}}}, and keep that"
            yield ColumnChange(Kind.REFUSE, name, after=why)
    for name, kind in declared.items():
        if name in moved:
            yield ColumnChange(Kind.RENAME, name, moved[name])
            yield from _typed(name, stored[moved[name]], kind)
        elif name in stored:
            yield from _typed(name, stored[name], kind)
        else:
            yield _added(iceberg_table, table, name, kind, empty)
    for name in stored:
        if name in declared or name in moved.values():
            continue
        if name in (table.hour, *table.key):
            yield ColumnChange(Kind.REFUSE, name, after="it is part of the key; declare a table of another name")
        elif name in drops:
            yield ColumnChange(Kind.DROP, name)
        else:
            why = f"it is not declared any more: say --drop {name}, or which column it has become, with was={{NEW: {name!r}}}"
            yield ColumnChange(Kind.REFUSE, name, after=why)


def _added(iceberg_table: IcebergTable, table: Table, name: str, kind: IcebergType, empty: bool) -> ColumnChange:
    column = table.column(name)
    if column.was:
        why = f"it was {', '.join(column.was)}, which the lake does not have; leave was out for a new column"
        return ColumnChange(Kind.REFUSE, name, after=why)
    if name in (table.hour, *table.key):
        why = "a new column cannot be part of the key: older rows have none; declare a table of another name"
        return ColumnChange(Kind.REFUSE, name, after=why)
    if not column.nullable and not empty:
        why = "hours that were built before have no value for it; declare it nullable"
        return ColumnChange(Kind.REFUSE, name, after=why)
    for schema in iceberg_table.schemas().values():
        for field in schema.fields:
            if field.name == name and not empty and not _widens(field.field_type, kind):
                why = f"a column of this name was {shape(field.field_type)} once, and older files have it; take another name"
                return ColumnChange(Kind.REFUSE, name, after=why)
    return ColumnChange(Kind.ADD, name, after=shape(kind))


def _typed(name: str, before: IcebergType, after: IcebergType) -> Iterator[ColumnChange]:
    if shape(before) == shape(after):
        return
    if _widens(before, after):
        yield ColumnChange(Kind.WIDEN, name, shape(before), shape(after))
    else:
        why = f"{shape(before)} cannot become {shape(after)} with its values as they are; declare a new column"
        yield ColumnChange(Kind.REFUSE, name, after=why)


def _widens(before: IcebergType, after: IcebergType) -> bool:
    match before:
        case IntegerType():
            return isinstance(after, IntegerType | LongType)
        case FloatType():
            return isinstance(after, FloatType | DoubleType)
        case DecimalType() if isinstance(after, DecimalType):
            return before.scale == after.scale and before.precision <= after.precision
    return shape(before) == shape(after)


def evolve(table: Table, changes: Collection[ColumnChange], properties: dict[str, str]) -> Change:
    """The commit that makes the changes. It is planned anew on newer metadata: what is done already is left out."""

    def change(iceberg_table: IcebergTable) -> None:
        fields = {field.name: field for field in fields_of(table.columns)}
        stored = set(iceberg_table.schema().column_names)
        # All paths are those of the schema as it is before the change.
        paths = {one.column: one.before for one in changes if one.kind is Kind.RENAME and one.before in stored}
        with iceberg_table.transaction() as transaction:
            with transaction.update_schema() as update:
                for one in changes:
                    match one.kind:
                        case Kind.ADD if one.column not in stored:
                            update.add_column(one.column, fields[one.column].field_type, doc=fields[one.column].doc)
                        case Kind.RENAME if one.column in paths:
                            update.rename_column(one.before, one.column)
                        case Kind.DROP if one.column in stored:
                            update.delete_column(one.column)
                        case Kind.WIDEN:
                            update.update_column(paths.get(one.column, one.column), fields[one.column].field_type)
            stale = [name for name in iceberg_table.properties if name.startswith(_BOUNDS) and name not in properties]
            transaction.set_properties(properties)
            if stale:
                transaction.remove_properties(*stale)

    return change
