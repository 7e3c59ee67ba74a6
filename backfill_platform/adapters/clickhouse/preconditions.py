"""Reads what a target is, and refuses one that cannot be repaired.

Every refusal is one sentence that says how to fix the table, or why it cannot be repaired. All refusals are reported at once.
"""

import re

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.refusals import refusals, version_of
from backfill_platform.adapters.clickhouse.target import Target, unquoted
from backfill_platform.domain.tables import Layer, Table
from backfill_platform.errors import PreconditionError, WarehouseError

_TABLE = """
SELECT engine, engine_full, partition_key, sorting_key, arrayZip(dependencies_database, dependencies_table),
    position(create_table_query, ' TTL ') > 0
FROM system.tables WHERE database = {database:String} AND name = {name:String}
"""
_COLUMNS = """
SELECT name, type, default_kind, is_in_partition_key FROM system.columns
WHERE database = {database:String} AND table = {name:String} ORDER BY position
"""
_VIEW = """
SELECT create_table_query, toString(uuid) FROM system.tables WHERE database = {database:String} AND name = {name:String}
"""

# Older servers sort inserted rows of equal keys unstably, and a merge loses a state that lies before its cancel.
STABLE_SORT_SINCE = (26, 9, 1, 1456)
# Older servers may bring the parts that REPLACE PARTITION removed back when they start again (ClickHouse issue 107605).
REPLACED_IS_GONE_SINCE = (26, 6, 1, 962)
_OWN = ("DEFAULT", "MATERIALIZED")
_REMEMBERED = 100  # inserts: from a smaller window, live writers push our token before its insert is sent again


def target_exists(warehouse: Warehouse, table: Table) -> bool:
    """Whether the warehouse has a table of that name, of any kind."""
    database, name = table.stored_in
    rows = warehouse.rows(_TABLE, parameters={"database": database, "name": name}, doing=f"looking for {table}")
    return bool(rows)


def check_declaration(table: Table) -> None:
    """Raise PreconditionError when no warehouse could hold such a table."""
    if table.layer is Layer.RAW:
        raise PreconditionError(f"{table}: rows of raw have no key to be cancelled by; publish a table derived from it")


def check_target(warehouse: Warehouse, table: Table) -> Target:
    """Read what the target is.

    Raises PreconditionError when it is absent, differs from its declaration, or cannot be repaired safely as it is.
    """
    check_declaration(table)
    database, name = table.stored_in
    parameters = {"database": database, "name": name}
    rows = warehouse.rows(_TABLE, parameters=parameters, doing=f"reading what {table} is")
    if not rows:
        raise PreconditionError(f"{table} does not exist in the warehouse; create it from its declaration with create_target")
    columns = warehouse.rows(_COLUMNS, parameters=parameters, doing=f"reading the columns of {table}")
    engine, full, _, _, dependents, expires = rows[0]
    _check_policies(warehouse, table)
    found = list(refusals(table, rows[0], columns))
    replaces = _at_least(warehouse.server_version, REPLACED_IS_GONE_SINCE)
    if table.target.replaces_partitions and not replaces:
        found.append(
            f"ClickHouse {warehouse.server_version} may bring replaced partitions back when it starts again; use a server of "
            f"{'.'.join(map(str, REPLACED_IS_GONE_SINCE))} or later"
        )
    if found:
        raise PreconditionError(f"{table} cannot be repaired as it is: " + "; ".join(found))
    version = version_of(full)
    counted = None if version in table.stored_names else version
    types = {name: type_ for name, type_, *_ in columns}
    known = {*table.stored_names, table.sign, counted, table.target.deleted}
    views = tuple(sorted(".".join(view) for view in dependents))
    remembers = engine.startswith("Replicated") or _remembers_tokens(full)
    return Target(
        table,
        engine,
        counted,
        types[counted] if counted else "",
        version if counted is None else None,
        views,
        own=tuple(name for name, _, kind, _ in columns if kind in _OWN and name not in known),
        computed=tuple(name for name, _, kind, _ in columns if kind == "MATERIALIZED"),
        partition=rows[0][2],
        order=rows[0][3],
        repeatable=remembers and all(_fills_what_remembers(warehouse, *view) for view in dependents),
        one_block=version is not None or not table.collapses or _at_least(warehouse.server_version, STABLE_SORT_SINCE),
        replaces=replaces,
        expires=bool(expires),
    )


def _check_policies(warehouse: Warehouse, table: Table) -> None:
    """Refuse a table with row policies: hidden rows would count as missing, and be written again at every repair."""
    database, name = table.stored_in
    try:
        rows = warehouse.rows(
            "SELECT short_name FROM system.row_policies WHERE (database = {database:String} OR empty(database)) "
            "AND (table = {name:String} OR empty(table))",
            parameters={"database": database, "name": name},
            doing=f"looking for row policies of {table}",
        )
    except WarehouseError:  # an embedded server has no access control; a user may lack the right to read policies
        return
    if rows:
        policies = ", ".join(sorted(name for (name,) in rows))
        raise PreconditionError(
            f"{table} has row policies ({policies}) that may hide rows from repairs; repair it as a user to whom none applies"
        )


def _remembers_tokens(full: str) -> bool:
    match = re.search(r"non_replicated_deduplication_window = (\d+)", full)
    return match is not None and int(match.group(1)) >= _REMEMBERED


def _fills_what_remembers(warehouse: Warehouse, database: str, view: str) -> bool:
    """Whether neither the view nor views behind it add an insert twice that is repeated with its token."""
    ((query, uuid),) = warehouse.rows(_VIEW, parameters={"database": database, "name": view}, doing=f"reading the view {view}")
    destination = re.match(r"CREATE MATERIALIZED VIEW \S+ (?:REFRESH .*?)?TO (\S+)", query)
    candidates = [(database, f".inner_id.{uuid}"), (database, f".inner.{view}")]
    if destination:
        place, _, name = unquoted(destination.group(1)).partition(".")
        candidates = [(place, name)]
    for place, name in candidates:
        rows = warehouse.rows(_TABLE, parameters={"database": place, "name": name}, doing=f"reading the view {view}")
        if rows:
            engine, full, _, _, dependents, _ = rows[0]
            remembers = engine.startswith("Replicated") or _remembers_tokens(full)
            return remembers and all(_fills_what_remembers(warehouse, *dependent) for dependent in dependents)
    return False


def _at_least(version: str, least: tuple[int, ...]) -> bool:
    return tuple(int(part) for part in re.findall(r"\d+", version)) >= least
