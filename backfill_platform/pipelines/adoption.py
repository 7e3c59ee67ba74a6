"""The declaration that a table of ClickHouse suggests: what is read from it, what is guessed, and why.

Nothing here asks a server or writes a file. Every guess is named, so that a person can correct it.
"""

import keyword
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pandera.pyspark import DataFrameModel

from backfill_platform.adapters.clickhouse.table_facts import ColumnFacts, TableFacts
from backfill_platform.adapters.clickhouse.target import PARTITIONS
from backfill_platform.domain.column_types import FLOATS, ColumnType, is_nested
from backfill_platform.domain.lake_types import lake_type
from backfill_platform.domain.stored_types import natural, parse
from backfill_platform.domain.tables import Column, Layer, Partitioning, Table, TargetEngine, TargetTable
from backfill_platform.errors import SpecError, UsageError

_TENANTS = ("tenant", "tenant_id", "account_id", "customer_id", "org_id", "organization_id", "workspace_id", "team_id")
_TIMES = ("event_time", "eventtime", "timestamp", "created_at", "time", "ts")
_IDENTIFIERS = ("id", "uuid", "guid", "event_id", "eventid")
_COUNTED = re.compile(r"_?(row_?)?ver(sion)?\Z", re.I)
# The functions that a PARTITION BY may use, with what they divide the rows by.
_FUNCTIONS = {way.partition("(")[0]: how for how, ways in PARTITIONS.items() for way in ways}


@dataclass(frozen=True)
class Wishes:
    """What a person says instead of letting it be guessed; empty where nothing is said."""

    key: tuple[str, ...] = ()
    tenant: str = ""
    hour: str = ""


@dataclass(frozen=True)
class Guess:
    """Something of the declaration, what it is taken for, and why."""

    what: str
    value: str
    because: str


@dataclass(frozen=True)
class Adoption:
    """A table as it would be declared: `time` is the column that its hour is computed from, `guesses` say how it came about."""

    table: Table
    time: str
    guesses: tuple[Guess, ...]


def adopt(facts: TableFacts, wishes: Wishes) -> Adoption:
    """The declaration of a table that is there.

    Raises UsageError for a wish that names no column, SpecError naming each column or clause that cannot be declared, with what
    to do about it.
    """
    if facts.engine.removeprefix("Replicated") not in (*TargetEngine, "VersionedCollapsingMergeTree"):
        raise SpecError(_wrong_engine(facts))
    _check_wishes(facts, wishes)
    columns, problems = _columns(facts)
    if problems:
        raise SpecError(f"{facts.database}.{facts.name} cannot be adopted as it is: {'; '.join(problems)}")
    hour, time, guessed_hour = _hour(facts, columns, wishes)
    key, guessed_key = _key(facts, columns, wishes, time)
    tenant, guessed_tenant = _tenant(columns, key, wishes)
    if tenant and tenant not in key:
        key = (tenant, *key)
    guesses = [*_read(facts), guessed_hour, guessed_key, guessed_tenant]
    partitioning = next(
        (how for name, how in _FUNCTIONS.items() if re.search(rf"\b{name}\(", facts.partition)), Partitioning.DAY
    )
    target = TargetTable(
        facts.database,
        facts.name,
        facts.sign or "sign",
        "" if hour == "hour" else hour,
        TargetEngine.COLLAPSING if facts.sign else TargetEngine(facts.engine.removeprefix("Replicated")),
        facts.deleted,
    )
    hours = () if hour == "hour" else (Column("hour", ColumnType.TIMESTAMP, description="the hour, UTC"),)
    table = Table(
        Layer.TRANSFORMED, plain_name(facts.name), (*hours, *columns), key=tuple(name for name in key if name != "hour"),
        partitioning=partitioning, tenant=tenant, target=target,
    )  # fmt: skip
    return Adoption(table, time, tuple(guesses))


def plain_name(name: str) -> str:
    """A name of ClickHouse as a name of a pipeline, a table and a module."""
    plain = re.sub(r"\W+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)).strip("_").lower()
    plain = plain if plain[:1].isalpha() else f"t_{plain}"
    return f"{plain}_table" if keyword.iskeyword(plain) else plain


def _wrong_engine(facts: TableFacts) -> str:
    place = f"{facts.database}.{facts.name}"
    if facts.engine == "Distributed":
        return f"{place} is a Distributed table; adopt the local table of a shard"
    if "View" in facts.engine:
        return f"{place} is a {facts.engine}; adopt the table that it reads, or that it writes to"
    return (
        f"{place} has the engine {facts.engine}, whose rows cannot be repaired; create a table with ENGINE = "
        "ReplacingMergeTree(version, is_deleted) or MergeTree and PARTITION BY toYYYYMMDD of its time, and copy its rows"
    )


def _check_wishes(facts: TableFacts, wishes: Wishes) -> None:
    have = [column.name for column in facts.columns]
    for option, names in (("--key", wishes.key), ("--tenant", (wishes.tenant,) if wishes.tenant else ())):
        if unknown := [name for name in names if name not in have]:
            raise UsageError(
                f"{option}: {facts.database}.{facts.name} has no column {', '.join(unknown)}; it has {', '.join(have)}"
            )


def _columns(facts: TableFacts) -> tuple[tuple[Column, ...], list[str]]:
    """The columns to declare, and what is wrong with those that cannot be."""
    columns: list[Column] = []
    problems: list[str] = []
    for one in facts.columns:
        if one.filled in ("MATERIALIZED", "ALIAS") or one.name in _own(facts):
            continue
        try:
            columns.append(_column(one))
        except SpecError as error:
            if one.filled != "DEFAULT":  # what has a default may stay the table's own
                problems.append(
                    f"column {one.name}: {error}; so that it keeps a value of its own: ALTER TABLE {facts.database}."
                    f"{facts.name} MODIFY COLUMN `{one.name}` {one.type} DEFAULT ..."
                )
    problems += [f"column {name} differs from another one in case alone; rename one" for name in _alike(columns)]
    return tuple(columns), problems


def _alike(columns: Sequence[Column]) -> Iterator[str]:
    seen: set[str] = set()
    for column in columns:
        if column.name.lower() in seen:
            yield column.name
        seen.add(column.name.lower())


def _own(facts: TableFacts) -> set[str]:
    """The columns that belong to the engine and not to the schema."""
    version = next((one for one in facts.columns if one.name == facts.version), None)
    of_engine = {facts.sign, facts.deleted}
    if version and (facts.sign or version.filled == "DEFAULT" or _COUNTED.match(version.name)):
        of_engine.add(version.name)
    return of_engine


def _column(one: ColumnFacts) -> Column:
    if not re.fullmatch(r"[A-Za-z]\w*", one.name, re.ASCII) or keyword.iskeyword(one.name) or hasattr(DataFrameModel, one.name):
        raise SpecError("its name cannot be one of a schema")
    stored = parse(one.type)
    kind = lake_type(stored)
    column = Column(
        one.name, kind, stored.nullable, one.comment, "" if stored == natural(kind, stored.nullable) else str(stored)
    )
    _ = column.limit
    if column.name == "hour" and kind is not ColumnType.TIMESTAMP:
        raise SpecError("its name is the one of the hour; rename it")
    return column


def _hour(facts: TableFacts, columns: Sequence[Column], wishes: Wishes) -> tuple[str, str, Guess]:
    """The hour as the table has it, the column that it comes from, and how that was found."""
    times = [column.name for column in columns if column.type is ColumnType.TIMESTAMP and not column.nullable]
    days = [column.name for column in columns if column.type is ColumnType.DATE and not column.nullable]
    if wishes.hour:
        words = re.findall(r"\w+", wishes.hour)
        time = next((name for name in (*times, *days) if name in words), "")
        if not time:
            raise UsageError(f"--hour: {wishes.hour} is computed from none of {', '.join((*times, *days)) or 'its columns'}")
        return wishes.hour, time, Guess("hour", wishes.hour, "--hour")
    if "hour" in times:
        return "hour", "hour", Guess("hour", "hour", "a column of that name")
    ordered = [name for name in times if name in _names_in(facts.order)]
    parts = [name for name in times if name in _names_in(facts.partition)]
    usual = [name for name in times if name.lower() in _TIMES]
    for found, because in (
        (ordered, "ORDER BY has it"),
        (parts, "PARTITION BY has it"),
        (usual, "its name"),
        (times, "the first time"),
    ):
        if found:
            return found[0], found[0], Guess("hour", found[0], because)
    if days:
        return (
            f"toDateTime({days[0]}, 'UTC')",
            days[0],
            Guess("hour", f"the first one of {days[0]}", "it has days, no times"),
        )
    raise SpecError(
        f"{facts.database}.{facts.name} cannot be adopted as it is: no column is a time (DateTime or DateTime64, not Nullable)"
        ", so its rows belong to no hour; add one: ALTER TABLE ... ADD COLUMN event_time DateTime"
    )


def _names_in(expression: str) -> set[str]:
    return set(re.findall(r"\w+", expression))


def _key(facts: TableFacts, columns: Sequence[Column], wishes: Wishes, time: str) -> tuple[tuple[str, ...], Guess]:
    able = [c.name for c in columns if not (c.nullable or c.type in FLOATS or is_nested(c.type))]
    if wishes.key:
        key = wishes.key if time in (*wishes.key, "hour") else (*wishes.key, time)
        return key, Guess("key", ", ".join(key), "--key")
    ordered = [name for name in able if name in _names_in(facts.order)]
    because = "ORDER BY has these"
    if facts.engine == "MergeTree":
        first = [name for name in able[:2] if name.lower().endswith("id")]
        identifiers = [name for name in able if name.lower() in _IDENTIFIERS] or first
        if identifiers:
            ordered, because = identifiers[:1], "it looks like an identifier"
        else:
            because = "ORDER BY has these; nothing says that they identify a row"
    key = tuple(dict.fromkeys([*ordered, time]))
    return key, Guess("key", ", ".join(key), because)


def _tenant(columns: Sequence[Column], key: Collection[str], wishes: Wishes) -> tuple[str, Guess]:
    if wishes.tenant:
        return wishes.tenant, Guess("tenant", wishes.tenant, "--tenant")
    found = next((column.name for column in columns if column.name.lower() in _TENANTS and column.name in key), "")
    because = "its name" if found else "no column of the key is named like one; --tenant names one"
    return found, Guess("tenant", found or "none", because)


def _read(facts: TableFacts) -> Iterator[Guess]:
    yield Guess("engine", facts.full.partition(" ")[0], "the table")
    if facts.version:
        whose = "repairs count it up" if facts.version in _own(facts) else "it comes from the lake"
        yield Guess("version", facts.version, whose)
    yield Guess(
        "partitions", facts.partition or "none: each repair of a table that does not collapse writes all of it", "the table"
    )
