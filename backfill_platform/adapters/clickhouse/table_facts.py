"""What ClickHouse says of a table that nobody has declared: its clauses, its columns, its first and last time."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.quoting import names, qualified
from backfill_platform.adapters.clickhouse.refusals import collapses_by, deleted_of, version_of
from backfill_platform.errors import UsageError

_ROWS_LOOKED_AT = 1_000_000


@dataclass(frozen=True)
class ColumnFacts:
    """A column: its type as text, how it is filled (empty, DEFAULT, MATERIALIZED, ALIAS, EPHEMERAL) and its comment."""

    name: str
    type: str
    filled: str = ""
    comment: str = ""


@dataclass(frozen=True)
class TableFacts:
    """A table: its engine, with arguments in `full`, its PARTITION BY and ORDER BY, and its columns in their order."""

    database: str
    name: str
    engine: str
    full: str
    partition: str
    order: str
    columns: tuple[ColumnFacts, ...]

    @property
    def sign(self) -> str:
        """The sign column of a table that collapses, else nothing."""
        return collapses_by(self.full) if "Collapsing" in self.engine else ""

    @property
    def version(self) -> str:
        """The version column, or nothing."""
        return version_of(self.full) or ""

    @property
    def deleted(self) -> str:
        """The column that marks deleted rows, or nothing."""
        return deleted_of(self.full)


def read_facts(warehouse: Warehouse, database: str, name: str) -> TableFacts:
    """The facts of a table. Raises UsageError when there is none of the name."""
    parameters = {"database": database, "name": name}
    found = warehouse.rows(
        "SELECT engine, engine_full, partition_key, sorting_key FROM system.tables WHERE database = {database:String} "
        "AND name = {name:String}",
        parameters=parameters,
        doing=f"reading what {database}.{name} is",
    )
    if not found:
        near = warehouse.rows(
            "SELECT database || '.' || name FROM system.tables WHERE lower(name) = lower({name:String}) ORDER BY 1 LIMIT 3",
            parameters=parameters,
            doing=f"looking for {name}",
        )
        hint = f"; did you mean {' or '.join(one for (one,) in near)}?" if near else ""
        raise UsageError(f"there is no table {database}.{name} in ClickHouse{hint}")
    columns = warehouse.rows(
        "SELECT name, type, default_kind, comment FROM system.columns WHERE database = {database:String} "
        "AND table = {name:String} ORDER BY position",
        parameters=parameters,
        doing=f"reading the columns of {database}.{name}",
    )
    engine, full, partition, order = found[0]
    return TableFacts(database, name, engine, full, partition, order, tuple(ColumnFacts(*one) for one in columns))


def times_of(warehouse: Warehouse, facts: TableFacts, expression: str) -> tuple[datetime, datetime] | None:
    """The first and the last time of a table, in UTC; None where it has no rows, or the time is of no such type."""
    rows = warehouse.rows(
        f"SELECT count(), toUnixTimestamp(min({expression})), toUnixTimestamp(max({expression})) "
        f"FROM {qualified(facts.database, facts.name)}",
        doing=f"reading the times of {facts.database}.{facts.name}",
    )
    ((count, first, last),) = rows
    return (datetime.fromtimestamp(first, UTC), datetime.fromtimestamp(last, UTC)) if count else None


def repeated(warehouse: Warehouse, facts: TableFacts, key: Collection[str]) -> tuple[int, int]:
    """How many of the first rows of a table have a key that another of them has, and how many were looked at."""
    final = "" if facts.engine == "MergeTree" else " FINAL"
    ((rows, keys),) = warehouse.rows(
        f"SELECT count(), uniqExact(cityHash64(tuple({names(key)}))) FROM (SELECT {names(key)} "
        f"FROM {qualified(facts.database, facts.name)}{final} LIMIT {_ROWS_LOOKED_AT})",
        doing=f"looking for repeated keys in {facts.database}.{facts.name}",
    )
    return rows - keys, rows
