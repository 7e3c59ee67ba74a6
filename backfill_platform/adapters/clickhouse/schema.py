"""Creates targets from the declaration of a table, which stays the only place where columns are declared.

The hour column is a `DateTime64(6, 'UTC')` like every other timestamp, not a `DateTime`: a cast to `DateTime` drops fractions
and wraps dates before 1970 and after 2105 around, silently and even with `accurateCast`, so that a row that is not on the full
hour would look right once it is stored. The hour is the first column of the sorting key, so it costs almost nothing.
"""

import hashlib

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.preconditions import check_declaration, check_target
from backfill_platform.adapters.clickhouse.sql import (
    column_type,
    column_types,
    identifier,
    literal,
    names,
    partition_key,
    sign_of,
    sorting_key,
    target_name,
)
from backfill_platform.domain.tables import Table

STAGING_DATABASE = "backfill_staging"  # tables of one attempt, dropped when it ends
PATCHES_DATABASE = "backfill_patches"  # what was published, for undo
_VERSION = identifier("version")


def schema_hash(table: Table) -> str:
    """A hash of all that fingerprints depend on: column names, order and types, and the key. Stored with fingerprints."""
    text = repr((list(column_types(table).items()), sorting_key(table), table.partitioning.value))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def database_statement(name: str) -> str:
    """The statement that creates a database when it is absent."""
    return f"CREATE DATABASE IF NOT EXISTS {identifier(name)}"


def target_statement(table: Table) -> str:
    """The statement that creates a target when it is absent."""
    definitions, constraint, engine = column_definitions(table), "", str(table.target.engine)
    if table.collapses:
        definitions.append(f"{sign_of(table)} Int8 COMMENT '1 for a state, -1 for its cancel'")
        constraint = f",\n    CONSTRAINT sign_is_plus_or_minus_one CHECK {sign_of(table)} IN (-1, 1)"
        engine += f"({sign_of(table)})"
    elif deleted := table.target.deleted:
        definitions += [
            f"{_VERSION} UInt64 COMMENT 'of rows with one key, the highest counts'",
            f"{identifier(deleted)} UInt8 COMMENT '1 where the row is gone'",
        ]
        engine += f"({_VERSION}, {identifier(deleted)})"
    columns = ",\n    ".join(definitions)
    return (
        f"CREATE TABLE IF NOT EXISTS {target_name(table)} (\n    {columns}{constraint}\n"
        f") ENGINE = {engine}\n"
        f"PARTITION BY {partition_key(table)}\n"
        f"ORDER BY ({names(sorting_key(table))})"
    )


def column_definitions(table: Table) -> list[str]:
    """One `name type COMMENT ...` for each declared column."""
    return [
        f"{identifier(column.name)} {column_type(column)}"
        + (f" COMMENT {literal(column.description)}" if column.description else "")
        for column in table.stored_columns
    ]


def create_target(warehouse: Warehouse, table: Table) -> None:
    """Create the target when it is absent, and check that an existing one is as declared.

    Raises PreconditionError naming every difference; nothing of an existing table is changed.
    """
    check_declaration(table)
    database, _ = table.stored_in
    warehouse.command(database_statement(database), doing=f"creating the database {database}")
    warehouse.command(target_statement(table), doing=f"creating {table}")
    check_target(warehouse, table)
