"""How the tables that ClickHouse keeps of a target follow its declaration: the target, its patches, and what attempts left.

All of them get the same statements, so that what a repair wrote before can still be compared with what is stored, and undone.
Every statement may be run again: a migration that died is planned anew from what the tables are by then.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.quoting import identifier, literal, qualified
from backfill_platform.adapters.clickhouse.schema import PATCHES_DATABASE, STAGING_DATABASE
from backfill_platform.domain.column_changes import ColumnChange, Kind, renamed, widens
from backfill_platform.domain.stored_types import parse
from backfill_platform.domain.tables import Column, Table
from backfill_platform.errors import SpecError

_SYNC = {"alter_sync": 2, "mutations_sync": 2}
_TEXT = re.compile(r"'(?:[^'\\]|\\.)*'")


@dataclass(frozen=True)
class StoredTable:
    """A table of ClickHouse with the columns of a target: its database and name, and what is to be done to it."""

    database: str
    name: str
    changes: tuple[ColumnChange, ...]

    def __str__(self) -> str:
        return f"{self.database}.{self.name}"


def stored_tables(warehouse: Warehouse, table: Table, drops: Collection[str]) -> list[StoredTable]:
    """The target first, where it exists, and then its copies, each with its changes; refusals are said of the target."""
    target = table.stored_in
    rows = warehouse.rows(
        "SELECT database, name FROM system.tables WHERE database = {database:String} AND name = {name:String} "
        "UNION ALL SELECT database, name FROM system.tables WHERE comment = {comment:String} AND "
        "(database = {patches:String} OR (database = {staging:String} AND endsWith(name, '_desired')))",
        parameters={
            "database": target[0],
            "name": target[1],
            "comment": str(table),
            "patches": PATCHES_DATABASE,
            "staging": STAGING_DATABASE,
        },
        doing=f"looking for the tables of {table}",
    )
    found = []
    for database, name in sorted(rows, key=lambda row: (row != target, row)):
        changes = list(_changes(table, _columns(warehouse, database, name), drops))
        if (database, name) == target:
            changes = [_unless_used(warehouse, table, change) for change in changes]
        found.append(StoredTable(database, name, tuple(changes)))
    return found


def alter(warehouse: Warehouse, table: Table, stored: StoredTable, change: ColumnChange) -> None:
    """Make one change of one table. Raises WarehouseError when ClickHouse refuses it, saying why."""
    name = identifier(change.column)
    match change.kind:
        case Kind.ADD:
            what = f"ADD COLUMN IF NOT EXISTS {_definition(table.column(change.column))}{_place(table, change.column)}"
        case Kind.WIDEN:
            what = f"MODIFY COLUMN {name} {change.after}"
        case Kind.RENAME:
            what = f"RENAME COLUMN IF EXISTS {identifier(change.before)} TO {name}"
        case _:
            what = f"DROP COLUMN IF EXISTS {name}"
    warehouse.command(
        f"ALTER TABLE {qualified(stored.database, stored.name)} {what}", settings=_SYNC, doing=f"{change} in {stored}"
    )


def _definition(column: Column) -> str:
    comment = f" COMMENT {literal(column.description)}" if column.description else ""
    return f"{identifier(column.name)} {column.stored}{comment}"


def _place(table: Table, name: str) -> str:
    """After the column that is declared before it; ClickHouse has that by now, because columns are added in their order."""
    before = table.stored_names.index(name) - 1
    return f" AFTER {identifier(table.stored_names[before])}" if before >= 0 else " FIRST"


@dataclass(frozen=True)
class _Stored:
    type: str
    in_key: bool
    computed: bool


def _columns(warehouse: Warehouse, database: str, name: str) -> dict[str, _Stored]:
    rows = warehouse.rows(
        "SELECT name, type, is_in_sorting_key OR is_in_partition_key OR is_in_primary_key OR is_in_sampling_key, "
        "default_kind != '' FROM system.columns WHERE database = {database:String} AND table = {name:String} ORDER BY position",
        parameters={"database": database, "name": name},
        doing=f"reading the columns of {database}.{name}",
    )
    return {column: _Stored(type_, bool(key), bool(computed)) for column, type_, key, computed in rows}


def _changes(table: Table, stored: Mapping[str, _Stored], drops: Collection[str]) -> Iterator[ColumnChange]:
    moved = renamed(table, stored)
    for name in drops:
        # Dropped first: a computed column of the table's own stays.
        if name in stored and name not in (*table.stored_names, table.sign, *moved.values()):
            yield _of_key(ColumnChange(Kind.DROP, name), stored[name])
    for name, before in moved.items():
        yield _of_key(ColumnChange(Kind.RENAME, name, before), stored[before])
    for column in table.stored_columns:
        there = stored.get(moved.get(column.name, column.name))
        if there is None:
            yield ColumnChange(Kind.ADD, column.name, after=str(column.stored))
        elif there.computed:
            continue  # what a repair makes of it, `check_target` says
        elif (change := _typed(column, there)) is not None:
            yield change


def _typed(column: Column, there: _Stored) -> ColumnChange | None:
    """What gives the column its declared type; LowCardinality does not count."""
    with suppress(SpecError):  # of a type that this platform does not know
        before, after = parse(there.type).plain, column.stored.plain
        if before == after:
            return None
        if widens(before, after):
            return _of_key(ColumnChange(Kind.WIDEN, column.name, there.type, str(column.stored)), there)
    why = f"{there.type} cannot become {column.stored} with its values as they are; declare a new column"
    return ColumnChange(Kind.REFUSE, column.name, after=why)


def _of_key(change: ColumnChange, there: _Stored) -> ColumnChange:
    if not there.in_key:
        return change
    why = f"ClickHouse cannot {change.kind} it, because ORDER BY or PARTITION BY have it; publish to a table of another name"
    return ColumnChange(Kind.REFUSE, change.column, after=why)


def _unless_used(warehouse: Warehouse, table: Table, change: ColumnChange) -> ColumnChange:
    """The change, refused where something else that ClickHouse has would break by it, or go on with other values."""
    if change.kind in (Kind.ADD, Kind.REFUSE):
        return change
    column = change.before if change.kind is Kind.RENAME else change.column
    if readers := _readers(warehouse, table, column):
        why = f"{', '.join(readers)} use the column {column}; drop them, migrate, and create them again"
        return ColumnChange(Kind.REFUSE, change.column, after=why)
    return change


def _readers(warehouse: Warehouse, table: Table, column: str) -> list[str]:
    """What names the column: views, tables over the target, and its own indexes, projections, defaults, constraints and TTL."""
    database, name = table.stored_in
    rows = warehouse.rows(
        "SELECT database, name, create_table_query FROM system.tables WHERE position(create_table_query, {name:String}) > 0 "
        "AND (match(engine, 'View|Distributed|Buffer|Merge$|Dictionary') "
        "OR (database = {database:String} AND name = {name:String}))",
        parameters={"database": database, "name": name},
        doing=f"looking what reads {table}",
    )
    found = []
    for where, who, query in rows:
        mentions = len(re.findall(rf"\b{re.escape(column)}\b", _TEXT.sub("''", query)))
        if (where, who) == (database, name):
            if mentions > 1:
                found.append("its own indexes, projections, constraints, defaults or TTL")
        # A Distributed or Buffer table names the one below it in quotes.
        elif mentions and re.search(rf"\b{re.escape(name)}\b", query):
            found.append(f"{where}.{who}")
    return sorted(found)
