"""What a target is, what a repair requires of it, and how repairs are published to it.

Every refusal is one sentence that says how to fix the table, or why it cannot be repaired. All refusals are reported at once.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from backfill_platform.adapters.clickhouse.client import Row, Warehouse
from backfill_platform.adapters.clickhouse.sql import (
    column_types,
    identifier,
    names,
    sign_of,
    sorting_key,
    target_name,
)
from backfill_platform.domain.tables import Layer, Partitioning, Table
from backfill_platform.errors import PreconditionError, SpecError, WarehouseError

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
# The ways to write that a table is partitioned by hours, days, weeks or months.
_PARTITIONS = {
    Partitioning.HOUR: ("toStartOfHour({})",),
    Partitioning.DAY: ("toYYYYMMDD({})", "toDate({})", "toStartOfDay({})"),
    Partitioning.WEEK: ("toMonday({})",),
    Partitioning.MONTH: ("toYYYYMM({})", "toStartOfMonth({})"),
}
_OWN = ("DEFAULT", "MATERIALIZED")
_REMEMBERED = 100  # inserts: from a smaller window, live writers push our token before its insert is sent again


class Mode(StrEnum):
    """How a delta becomes part of a target."""

    ATTACH = "attach"  # all partitions with one statement, which materialized views do not see
    INSERT = "insert"  # partition by partition, each insert with its own token; views see it like any insert


@dataclass(frozen=True)
class Target:
    """A table of the warehouse that repairs may be published to, as `system.tables` describes it.

    `version` is the version column of a VersionedCollapsingMergeTree. `views` are the materialized views that read the table.
    `repeatable` says whether an INSERT may be sent again with its token: the table and those that the views fill remember it.
    `own` are columns of the table that are not declared: a cancel copies them, a state gets their default; `computed` are those
    of them that are MATERIALIZED. `one_block` says whether cancels and states of a partition can be inserted together.
    `expires` says whether it may have a TTL, of the table or of a column, that drops rows or values while parts are merged.
    `replaces` says whether the server can replace a partition for good.
    """

    table: Table
    engine: str = "CollapsingMergeTree"
    version: str | None = None
    version_type: str = ""
    views: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    partition: str = ""
    order: str = ""
    repeatable: bool = False
    one_block: bool = True
    expires: bool = False
    replaces: bool = True

    @property
    def replicated(self) -> bool:
        """Whether the engine is a Replicated one."""
        return self.engine.startswith("Replicated")

    @property
    def plain_engine(self) -> str:
        """The engine clauses of a table that collapses in the same way and is not replicated."""
        arguments = ", ".join(identifier(name) for name in (self.table.sign, self.version) if name)
        partition = f"PARTITION BY {self.partition} " if self.partition else ""
        return f"{self.engine.removeprefix('Replicated')}({arguments}) {partition}ORDER BY ({self.order})"

    @property
    def copied(self) -> tuple[str, ...]:
        """The columns that a cancel has from the row that it cancels: all but the sign."""
        return (*self.table.stored_names, *self.own, *([self.version] if self.version else []))

    @property
    def settings(self) -> Mapping[str, str | int]:
        """What an insert into the table, or into a copy of it, needs so that all of these columns can be written."""
        return {"insert_allow_materialized_columns": 1} if self.computed else {}

    @property
    def rewritable(self) -> bool:
        """Whether the hours that share a partition are those that the declaration says, so that one can be replaced."""
        table = self.table
        if table.target.hour or "DateTime" not in str(table.column(table.hour).stored):
            return False
        if table.column(table.hour).stored.arguments != ("UTC",):
            return False
        expressions = {how.format(identifier(table.hour)) for how in _PARTITIONS[table.partitioning]}
        return _unquoted(self.partition) in {_unquoted(one) for one in expressions}

    @property
    def mode(self) -> Mode:
        """INSERT where views would miss an ATTACH, or replicas would ignore it as a repetition."""
        return Mode.INSERT if self.views or self.replicated else Mode.ATTACH

    @property
    def why(self) -> str:
        """The mode and its reason, as text."""
        if self.replicated:
            return "insert, partition by partition: replicas may ignore an attached delta as a repetition"
        if self.views:
            return f"insert, partition by partition: {', '.join(self.views)} must see it"
        return "attach, all hours in one statement: no materialized view reads the table"

    def stored(self, where: str) -> str:
        """A SELECT of the stored rows, one for each key: what FINAL shows. `where` filters by the hour column.

        FINAL of a versioned table may show cancels, and several versions of one key, of which the newest counts.
        """
        everything = ", ".join(["*", *map(identifier, self.computed)])
        rows = f"SELECT {everything} FROM {target_name(self.table)} FINAL WHERE {where}"
        if self.version is None:
            return rows
        keys = names(sorting_key(self.table))
        return f"{rows} AND {sign_of(self.table)} = 1 ORDER BY {keys}, {identifier(self.version)} DESC LIMIT 1 BY {keys}"


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
    version = _version(engine, full)
    types = {name: type_ for name, type_, *_ in columns}
    refusals = [*_engine(table, rows[0]), *_keys(table, rows[0], columns, version), *_columns(table, columns, full, version)]
    if refusals:
        raise PreconditionError(f"{table} cannot be repaired as it is: " + "; ".join(refusals))
    known = {*table.stored_names, table.sign, version}
    views = tuple(sorted(".".join(view) for view in dependents))
    remembers = engine.startswith("Replicated") or _remembers_tokens(full)
    return Target(
        table,
        engine,
        version,
        types[version] if version else "",
        views,
        own=tuple(name for name, _, kind, _ in columns if kind in _OWN and name not in known),
        computed=tuple(name for name, _, kind, _ in columns if kind == "MATERIALIZED"),
        partition=rows[0][2],
        order=rows[0][3],
        repeatable=remembers and all(_fills_what_remembers(warehouse, *view) for view in dependents),
        one_block=version is not None or _at_least(warehouse.server_version, STABLE_SORT_SINCE),
        replaces=_at_least(warehouse.server_version, REPLACED_IS_GONE_SINCE),
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


_ENGINE = re.compile(r"(Replicated)?(Versioned)?CollapsingMergeTree")
_VERSION_TYPES = re.compile(r"U?Int(32|64)\Z")


def _arguments(full: str) -> list[str]:
    """The arguments of the engine; the paths of a replicated one hold no brackets."""
    match = re.match(r"\w+\(([^()]*)\)", full)
    return [_unquoted(argument.strip()) for argument in match.group(1).split(",")] if match else []


def _version(engine: str, full: str) -> str | None:
    return _arguments(full)[-1] if "Versioned" in engine else None


def _collapses_by(full: str) -> str:
    """The sign column of an engine that collapses."""
    return (_arguments(full) or [""])[-2 if "Versioned" in full.partition("(")[0] else -1]


def _remembers_tokens(full: str) -> bool:
    match = re.search(r"non_replicated_deduplication_window = (\d+)", full)
    return match is not None and int(match.group(1)) >= _REMEMBERED


def _fills_what_remembers(warehouse: Warehouse, database: str, view: str) -> bool:
    """Whether neither the view nor views behind it add an insert twice that is repeated with its token."""
    ((query, uuid),) = warehouse.rows(_VIEW, parameters={"database": database, "name": view}, doing=f"reading the view {view}")
    destination = re.match(r"CREATE MATERIALIZED VIEW \S+ (?:REFRESH .*?)?TO (\S+)", query)
    candidates = [(database, f".inner_id.{uuid}"), (database, f".inner.{view}")]
    if destination:
        place, _, name = _unquoted(destination.group(1)).partition(".")
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


def _engine(table: Table, row: Row) -> Iterator[str]:
    engine, full, *_ = row
    if engine == "Distributed":
        yield "it is a Distributed table; repair the local table of each shard"
    elif not _ENGINE.fullmatch(engine):
        yield (
            f"its engine is {engine}, which cannot cancel single rows; recreate it with CollapsingMergeTree({table.sign}), and "
            f"copy its rows with 1 as {table.sign}"
        )
    elif _collapses_by(full) != table.sign:
        yield f"it collapses by a column other than {table.sign}; declare target=TargetTable(sign='{_collapses_by(full)}')"
    if re.search(r"table_readonly = 1\b", full):
        yield "it is read-only; ALTER TABLE ... MODIFY SETTING table_readonly = 0 makes it writable"


def _keys(table: Table, row: Row, stored: list[Row], version: str | None) -> Iterator[str]:
    _, _, partition, key, *_ = row
    plain = _unquoted(key)
    if plain.startswith("(") and plain.endswith(")"):  # ClickHouse keeps the brackets around a single column
        plain = plain[1:-1]
    columns = _outermost(plain)
    if version is not None and columns[-1] == version:  # ClickHouse adds it by itself
        columns = columns[:-1]
    # With a subset of the key ClickHouse collapses different rows into one; without the hour or the partition columns in it,
    # rows collapse across hours or partitions, and a row that moves between two of them vanishes. More columns do no harm.
    if lacking := [name for name in sorting_key(table) if name not in columns]:
        yield (
            f"its ORDER BY is ({', '.join(columns)}) and lacks {', '.join(lacking)}: different rows would collapse into one; "
            f"recreate it with ORDER BY ({', '.join([*columns, *lacking] if plain else lacking)})"
        )
    if floats := [name for name, type_, *_ in stored if name in columns and "Float" in type_]:
        yield f"its ORDER BY has floats ({', '.join(floats)}), of which equal ones may differ; recreate it without them"
    if moving := [name for name, _, _, partitions in stored if partitions and name not in columns]:
        yield (
            f"its PARTITION BY is {_unquoted(partition)}, and {', '.join(moving)} is not in its ORDER BY: a row whose value "
            "changes moves to another partition, and is never collapsed with its cancel; recreate it with ORDER BY "
            f"({', '.join([*columns, *moving])})"
        )


def _columns(table: Table, columns: list[Row], full: str, version: str | None) -> Iterator[str]:
    types = {name: type_ for name, type_, *_ in columns}
    declared = column_types(table)
    if "Collapsing" in full:  # what it is, if it is another column than the declared one, is said of the engine
        sign = _collapses_by(full)
        declared |= {sign if sign in types else table.sign: "Int8"}
    stored = {name: type_ for name, type_, kind, _ in columns if kind == "" or (kind == "DEFAULT" and name in declared)}
    if version in declared:
        yield f"its version column {version} is declared; leave it out of the schema, repairs count versions themselves"
    elif version is not None and not _VERSION_TYPES.match(stored.pop(version, types[version])):
        yield f"its version column {version} is neither (U)Int32 nor (U)Int64, so a repair cannot count it up; recreate it so"
    yield from _computed_columns(columns, declared)
    for name, type_ in declared.items():
        if name not in types:
            yield f"column {name} {type_} is missing; add it (`backfill migrate --plan`)"
        elif name in stored and _plain(stored[name]) != _plain(type_):
            yield f"column {name} is {stored[name]}, declared is {type_}; {_how_to_agree(table, name, stored[name])}"
    for name in stored:
        if name not in declared and name != table.sign:
            yield (
                f"column {name} is not declared, so repaired rows would lose its value; declare it, drop it, or say what they "
                f"have there: ALTER TABLE ... MODIFY COLUMN {name} {stored[name]} DEFAULT ..."
            )


def _how_to_agree(table: Table, name: str, type_: str) -> str:
    """What to change, where a column has another type than declared."""
    if name in table.stored_names:
        with suppress(SpecError):
            _ = replace(table.column(name), stored_as=type_).limit
            return f"declare stored_as={{{name!r}: {type_!r}}}, or change the table"
    return "change one of the two"


def _computed_columns(columns: list[Row], declared: Mapping[str, str]) -> Iterator[str]:
    for name, _, kind, _ in columns:
        if kind in ("MATERIALIZED", "ALIAS") and name in declared:
            yield f"column {name} is {kind}, so ClickHouse computes what the lake has; leave it out of the schema"
        elif kind == "EPHEMERAL":
            yield f"column {name} is EPHEMERAL, so its effect cannot be read back for a cancel row; drop it"


def _outermost(expressions: str) -> list[str]:
    """The parts of a list of expressions, which may hold commas in brackets themselves."""
    parts, depth = [""], 0
    for letter in expressions:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _unquoted(expression: str) -> str:
    return expression.replace("`", "")


def _plain(type_: str) -> str:
    # LowCardinality only changes how values are stored: hashes, casts and ATTACH are the same with and without it.
    return re.sub(r"LowCardinality\(((?:[^()]|\([^()]*\))*)\)", r"\1", type_)
