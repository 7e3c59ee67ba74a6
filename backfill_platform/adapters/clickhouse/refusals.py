"""What keeps a table from being repaired as it is: one sentence for each reason, which says how to fix it."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from backfill_platform.adapters.clickhouse.client import Row
from backfill_platform.adapters.clickhouse.sql import column_types, sorting_key
from backfill_platform.adapters.clickhouse.target import unquoted
from backfill_platform.domain.tables import Table, TargetEngine
from backfill_platform.errors import SpecError

_COLLAPSING = re.compile(r"(Versioned)?CollapsingMergeTree")
_COUNTED = re.compile(r"U?Int(32|64)\Z")
_REPLACING_COUNTED = re.compile(r"U?Int(8|16|32|64)\Z|DateTime(\('[^']*'\))?\Z|DateTime64\([369](, '[^']*')?\)\Z")


def refusals(table: Table, row: Row, columns: list[Row]) -> Iterator[str]:
    """Every reason, in the order engine, keys, columns. `row` and `columns` are those that `preconditions` reads."""
    yield from _engine(table, row)
    yield from _keys(table, row, columns)
    yield from _columns(table, columns, row[1])


def version_of(full: str) -> str | None:
    """The version column of an engine, given with its arguments, if it has one."""
    arguments = _arguments(full)
    if "Versioned" in full.partition("(")[0]:
        return arguments[-1]
    return arguments[0] if "ReplacingMergeTree" in full.partition("(")[0] and arguments else None


def deleted_of(full: str) -> str:
    """The column by which a ReplacingMergeTree marks deleted rows, or nothing."""
    arguments = _arguments(full)
    return arguments[1] if "ReplacingMergeTree" in full.partition("(")[0] and len(arguments) > 1 else ""


def collapses_by(full: str) -> str:
    """The sign column of an engine that collapses."""
    return (_arguments(full) or [""])[-2 if "Versioned" in full.partition("(")[0] else -1]


def _arguments(full: str) -> list[str]:
    """The columns among the arguments of the engine; the paths and names of a replicated one are texts."""
    match = re.match(r"\w+\(([^()]*)\)", full)
    every = [unquoted(argument.strip()) for argument in match.group(1).split(",")] if match else []
    return [argument for argument in every if argument and not argument.startswith("'")]


def _engine(table: Table, row: Row) -> Iterator[str]:
    engine, full, *_ = row
    plain = engine.removeprefix("Replicated")
    collapsing = f"recreate it with CollapsingMergeTree({table.target.sign}), and copy its rows with 1 as {table.target.sign}"
    if engine == "Distributed":
        yield "it is a Distributed table; repair the local table of each shard"
    elif _COLLAPSING.fullmatch(plain):
        if not table.collapses:
            yield f"its engine is {engine}, declared is {table.target.engine}; leave out the engine of the target"
        elif collapses_by(full) != table.sign:
            yield f"it collapses by a column other than {table.sign}; declare target=TargetTable(sign='{collapses_by(full)}')"
    elif plain not in list(TargetEngine):
        yield f"its engine is {engine}, which cannot cancel single rows; {collapsing}"
    elif plain != table.target.engine or deleted_of(full) != table.target.deleted:
        yield _other_engine(table, full, collapsing)
    elif engine != plain and table.target.replaces_partitions:
        yield (
            f"its engine is {engine}, whose partitions would have to be replaced, which is not done where others may write on "
            "other replicas; recreate it with ReplicatedReplacingMergeTree(version, is_deleted) or "
            "ReplicatedCollapsingMergeTree(sign)"
        )
    if re.search(r"table_readonly = 1\b", full):
        yield "it is read-only; ALTER TABLE ... MODIFY SETTING table_readonly = 0 makes it writable"


def _other_engine(table: Table, full: str, collapsing: str) -> str:
    engine, deleted = full.partition("(")[0].split()[0], deleted_of(full)
    declared = f"{table.target.engine}" + (f" with '{table.target.deleted}' for deleted rows" if table.target.deleted else "")
    marks = f", whose column {deleted} marks deleted rows" if deleted else ""
    more = f", deleted='{deleted}'" if deleted else ""
    how = "" if deleted else ", and its partitions are replaced"
    fitting = f"target=TargetTable(engine='{engine.removeprefix('Replicated')}'{more})"
    either = f", or {collapsing}" if table.collapses else ""
    return f"its engine is {engine}{marks}, declared is {declared}; declare {fitting}{how}{either}"


def _keys(table: Table, row: Row, stored: list[Row]) -> Iterator[str]:
    _, full, partition, key, *_ = row
    if full.startswith("MergeTree"):  # no row takes another one's place, so the order of rows means nothing
        return
    version = version_of(full) if "Versioned" in full else None
    plain = unquoted(key)
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
        vanishes = "is never collapsed with its cancel" if "Collapsing" in full else "never takes the place of the old one"
        yield (
            f"its PARTITION BY is {unquoted(partition)}, and {', '.join(moving)} is not in its ORDER BY: a row whose value "
            f"changes moves to another partition, and {vanishes}; recreate it with ORDER BY "
            f"({', '.join([*columns, *moving])})"
        )


def _columns(table: Table, columns: list[Row], full: str) -> Iterator[str]:
    types = {name: type_ for name, type_, *_ in columns}
    declared = column_types(table)
    if "Collapsing" in full:  # what it is, if it is another column than the declared one, is said of the engine
        sign = collapses_by(full)
        declared |= {sign if sign in types else table.target.sign: "Int8"}
    if marks := deleted_of(full):
        declared |= {marks: "UInt8"}
    stored = {name: type_ for name, type_, kind, _ in columns if kind == "" or (kind == "DEFAULT" and name in declared)}
    version = version_of(full)
    if version is not None:
        yield from _version(version, types[version], is_declared=version in declared, versioned="Versioned" in full)
    if version not in declared:
        stored.pop(version or "", None)
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


def _version(name: str, type_: str, *, is_declared: bool, versioned: bool) -> Iterator[str]:
    if is_declared and versioned:
        yield f"its version column {name} is declared; leave it out of the schema, repairs count versions themselves"
    elif versioned and not _COUNTED.match(type_):
        yield f"its version column {name} is neither (U)Int32 nor (U)Int64, so a repair cannot count it up; recreate it so"
    elif not is_declared and not versioned and not _REPLACING_COUNTED.match(type_):
        yield (
            f"its version column {name} is {type_}, which a repair cannot count up; declare it if the lake has it, or "
            "recreate it as UInt64, DateTime, or DateTime64(3), (6) or (9)"
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


def _plain(type_: str) -> str:
    # LowCardinality only changes how values are stored: hashes, casts and ATTACH are the same with and without it.
    return re.sub(r"LowCardinality\(((?:[^()]|\([^()]*\))*)\)", r"\1", type_)
