"""What a target must be before a repair may touch it.

Every refusal is one sentence that says how to fix the table, or why it cannot be repaired yet. All of them are reported at
once.
"""

import re
from collections.abc import Iterator

from backfill_platform.core.tables import Layer, Table
from backfill_platform.errors import PreconditionError
from backfill_platform.warehouse.client import Row, Warehouse
from backfill_platform.warehouse.sql import SIGN, column_types, partition_key, sorting_key

_TABLE = """
SELECT engine, engine_full, partition_key, sorting_key, arrayZip(dependencies_database, dependencies_table)
FROM system.tables WHERE database = {database:String} AND name = {name:String}
"""
_COLUMNS = """
SELECT name, type, default_kind FROM system.columns WHERE database = {database:String} AND table = {name:String}
ORDER BY position
"""


def target_exists(warehouse: Warehouse, table: Table) -> bool:
    """Whether the warehouse has a table of that name, whatever it is."""
    database, name = table.path
    found = warehouse.rows(_TABLE, parameters={"database": database, "name": name}, doing=f"looking for {table}")
    return bool(found)


def check_declaration(table: Table) -> None:
    """Raise PreconditionError when no warehouse could hold such a table."""
    if table.layer is Layer.RAW:
        raise PreconditionError(f"{table}: rows of raw have no key to be cancelled by; publish a table derived from it")


def check_target(warehouse: Warehouse, table: Table) -> None:
    """Raise PreconditionError when the target is absent, is not what is declared, or cannot be repaired safely as it is."""
    check_declaration(table)
    database, name = table.path
    parameters = {"database": database, "name": name}
    found = warehouse.rows(_TABLE, parameters=parameters, doing=f"reading what {table} is")
    if not found:
        raise PreconditionError(f"{table} does not exist in the warehouse; create it from its declaration with create_target")
    columns = warehouse.rows(_COLUMNS, parameters=parameters, doing=f"reading the columns of {table}")
    refusals = [*_engine(table, found[0]), *_keys(table, found[0]), *_columns(table, columns)]
    if refusals:
        raise PreconditionError(f"{table} cannot be repaired as it is: " + "; ".join(refusals))


def _engine(table: Table, found: Row) -> Iterator[str]:
    engine, full, _, _, dependents = found
    if engine.startswith(("Replicated", "Shared")):
        yield (
            f"its engine is {engine}, and a replicated table ignores a repair that attaches the same rows a second time, so "
            "it needs the insert mode, which is not built yet"
        )
    elif engine == "Distributed":
        yield "it is a Distributed table; repair the local table of each shard"
    elif engine == "VersionedCollapsingMergeTree":
        yield "versioned collapsing is not supported yet; recreate it with CollapsingMergeTree(sign)"
    elif engine != "CollapsingMergeTree":
        yield f"its engine is {engine}, which cannot cancel single rows; recreate it with CollapsingMergeTree({SIGN})"
    elif not re.match(rf"CollapsingMergeTree\(`?{SIGN}`?\)", full):
        yield f"it collapses by another column than {SIGN}; recreate it with CollapsingMergeTree({SIGN})"
    if dependents:
        views = ", ".join(sorted(".".join(view) for view in dependents))
        yield (
            f"materialized views read it ({views}), and they do not see a repair that attaches partitions; detach or drop them "
            "during the repair and rebuild them for its hours, until the insert mode is built"
        )


def _keys(table: Table, found: Row) -> Iterator[str]:
    _, _, partition, key, _ = found
    plain = _unquoted(key)
    if plain.startswith("(") and plain.endswith(")"):  # ClickHouse keeps the brackets around a single column
        plain = plain[1:-1]
    columns = [column.strip() for column in plain.split(",")]
    # A subset of the key lets ClickHouse collapse different rows into one; without the hour or the partition columns in it,
    # rows collapse across hours or partitions, and a row that moves between two of them vanishes.
    if columns != list(sorting_key(table)):
        yield f"its ORDER BY is ({', '.join(columns)}), declared is ({', '.join(sorting_key(table))}); recreate it so"
    if _unquoted(partition) != _unquoted(partition_key(table)):
        has = f"is {_unquoted(partition)}" if partition else "is missing"
        yield f"its PARTITION BY {has}, declared is {_unquoted(partition_key(table))}; recreate it or change the declaration"


def _columns(table: Table, found: list[Row]) -> Iterator[str]:
    declared = {**column_types(table), SIGN: "Int8"}
    stored = {name: type_ for name, type_, kind in found if kind in ("", "DEFAULT")}
    for name, _, kind in found:
        if kind == "MATERIALIZED":
            yield (
                f"column {name} is MATERIALIZED, so a cancel row would get a value of its own instead of a copy; make it an "
                "ordinary column or an ALIAS"
            )
        elif kind == "EPHEMERAL":
            yield f"column {name} is EPHEMERAL, so its effect cannot be read back for a cancel row; drop it"
    for name, type_ in declared.items():
        if name not in stored:
            yield f"column {name} {type_} is missing; add it"
        elif _plain(stored[name]) != type_:
            yield f"column {name} is {stored[name]}, declared is {type_}; change the one or the other"
    for name in stored:
        if name not in declared:
            yield f"column {name} is not declared, so repaired rows would lose its value; declare it or drop it"


def _unquoted(expression: str) -> str:
    return expression.replace("`", "")


def _plain(type_: str) -> str:
    # LowCardinality is a way to store the same values: hashes, casts and ATTACH are the same with and without it.
    return re.sub(r"\ALowCardinality\((.*)\)\Z", r"\1", type_)
