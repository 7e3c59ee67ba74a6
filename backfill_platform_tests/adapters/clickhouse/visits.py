"""The cast of the warehouse tests: a table of visits, some of its rows, and ways to look at what is stored."""

import itertools
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backfill_platform.adapters.clickhouse.client import Warehouse
from backfill_platform.adapters.clickhouse.publishing.prepare import HourPublish, Prepared, prepare
from backfill_platform.adapters.clickhouse.publishing.publish import publish
from backfill_platform.adapters.clickhouse.publishing.staging import OnStep, Staging, no_step
from backfill_platform.adapters.clickhouse.schema import target_statement
from backfill_platform.adapters.clickhouse.sql import names, row_hash, seen, signed, target_name, within
from backfill_platform.adapters.clickhouse.sql import net_rows as stored_rows
from backfill_platform.domain.column_types import ColumnType
from backfill_platform.domain.fingerprint import Fingerprint
from backfill_platform.domain.tables import Column, Layer, Partitioning, Table, TargetEngine, TargetTable

SIGN = "sign"
Row = dict[str, Any]
Change = tuple[str, str]  # of a CREATE TABLE: a piece of it, and what stands there instead

VERSIONED: Change = (
    ") ENGINE = CollapsingMergeTree(`sign`)",
    ", version UInt64) ENGINE = VersionedCollapsingMergeTree(`sign`, version)",
)
REMEMBERS: Change = (
    "ORDER BY (`hour`, `visitor`)",
    "ORDER BY (`hour`, `visitor`) SETTINGS non_replicated_deduplication_window = 1000",
)

VISITS = Table(
    Layer.TRANSFORMED,
    "visits",
    (
        Column("hour", ColumnType.TIMESTAMP, description="the hour the visit's owner began in"),
        Column("visitor", ColumnType.STRING),
        Column("pages", ColumnType.INT32),
        Column("revenue", ColumnType.INT64, nullable=True),
        Column("score", ColumnType.FLOAT64, nullable=True),
        Column("country", ColumnType.STRING, nullable=True),
        Column("is_open", ColumnType.BOOLEAN),
        Column("seen_at", ColumnType.TIMESTAMP, nullable=True),
    ),
    key=("visitor",),
)

# Hours of two days: TEN and ELEVEN share a daily partition, LATE and MIDNIGHT are neighbours in two.
TEN = datetime(1998, 4, 30, 10, tzinfo=UTC)
ELEVEN = TEN + timedelta(hours=1)
TWELVE = TEN + timedelta(hours=2)
LATE = TEN.replace(hour=23)
MIDNIGHT = LATE + timedelta(hours=1)

_ARROW: dict[object, pa.DataType] = {
    ColumnType.BOOLEAN: pa.bool_(),
    ColumnType.INT32: pa.int32(),
    ColumnType.INT64: pa.int64(),
    ColumnType.FLOAT64: pa.float64(),
    ColumnType.STRING: pa.string(),
    ColumnType.TIMESTAMP: pa.timestamp("us", "UTC"),
}

# The partitions of tables: by hour and by day in each run of the tests.
PARTITIONINGS = [
    Partitioning.DAY,
    Partitioning.HOUR,
    pytest.param(Partitioning.WEEK, marks=pytest.mark.whole),
    pytest.param(Partitioning.MONTH, marks=pytest.mark.whole),
]

_attempts = itertools.count()

# Ways a target may be made, by what they are published with; `with a view` ones feed a table of totals.
KINDS: dict[str, tuple[Change, ...]] = {
    "attach": (),
    "attach, versioned": (VERSIONED,),
    "insert, with a view": (REMEMBERS,),
    "insert, versioned, with a view": (VERSIONED, REMEMBERS),
}

# Ways a target may be made that take no cancels.
OTHER_ENGINES: dict[str, TargetTable] = {
    "replacing, marked": TargetTable(engine=TargetEngine.REPLACING, deleted="gone"),
    "replacing": TargetTable(engine=TargetEngine.REPLACING),
    "plain": TargetTable(engine=TargetEngine.PLAIN),
}


def visit(hour: datetime, visitor: str, **values: Any) -> Row:
    """A visit; give what differs from an ordinary one."""
    ordinary = {
        "hour": hour,
        "visitor": visitor,
        "pages": 3,
        "revenue": 250,
        "score": 0.5,
        "country": "fr",
        "is_open": False,
        "seen_at": datetime(1998, 4, 30, 10, 59, 59, 123457, tzinfo=UTC),
    }
    return ordinary | values


def create_as(warehouse: Warehouse, table: Table, *changes: Change) -> None:
    """Create the target with its statement changed, as somebody else would have created it."""
    statement = target_statement(table)
    for old, new in changes:
        assert old in statement
        statement = statement.replace(old, new)
    warehouse.command("CREATE DATABASE IF NOT EXISTS transformed", doing="preparing")
    warehouse.command(statement, doing="preparing")


def create_kind(warehouse: Warehouse, table: Table, kind: str) -> None:
    """Create a target of one of KINDS or OTHER_ENGINES; with its view, which adds up pages by hour."""
    create_as(warehouse, table, *KINDS.get(kind, ()))
    if "view" in kind:
        totals = f"transformed.{table.name}_totals"
        for statement in (
            f"CREATE TABLE {totals} (hour DateTime64(6, 'UTC'), pages Int64, visits Int64) ENGINE = SummingMergeTree "
            "ORDER BY hour SETTINGS non_replicated_deduplication_window = 1000",
            f"CREATE MATERIALIZED VIEW {totals}_view TO {totals} AS SELECT hour, sum(pages * sign) AS pages, "
            f"sum(toInt64(sign)) AS visits FROM {target_name(table)} GROUP BY hour",
        ):
            warehouse.command(statement, doing="preparing")


def view_totals(warehouse: Warehouse, table: Table) -> dict[datetime, tuple[int, int]]:
    """What the view of the target has added up: pages and visits of each hour that has any."""
    totals = warehouse.rows(
        f"SELECT toUnixTimestamp(hour) AS h, sum(pages), sum(visits) FROM transformed.{table.name}_totals GROUP BY h "
        "HAVING sum(visits) != 0",
        doing="reading what the view has added up",
    )
    return {datetime.fromtimestamp(number, UTC): (pages, visits) for number, pages, visits in totals}


def counts(rows: Iterable[Row]) -> dict[datetime, int]:
    """Rows of each hour, as the lake would know them."""
    return dict(Counter(row["hour"] for row in rows))


def write_parquet(path: Path, rows: Iterable[Row], **types: pa.DataType | None) -> str:
    """A file as Spark writes it to the lake (nullable columns, zstd, UTC microseconds); its path.

    `types` replaces the type of a column, None leaves it out.
    """
    schema = pa.schema(
        [(c.name, types.get(c.name, _ARROW[c.type])) for c in VISITS.columns if types.get(c.name, c) is not None]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows), schema), path, compression="zstd")
    return str(path)


def attempt() -> str:
    """A name that no other attempt of this process has."""
    return f"t{next(_attempts)}"


def staged(warehouse: Warehouse, table: Table, rows: Iterable[Row], *, on_step: OnStep = no_step) -> Staging:
    """A staging with the rows loaded, left open as a crash would leave it."""
    rows = list(rows)
    staging = Staging(warehouse, table, attempt(), sorted(counts(rows)) or [TEN], lease_seconds=5, on_step=on_step)
    staging.open()
    staging.load_rows(rows, counts(rows))
    return staging


def dry_run(warehouse: Warehouse, table: Table, hours: Collection[datetime], rows: Iterable[Row], **options: Any) -> Prepared:
    """Prepare the rows; the staging tables are gone afterwards."""
    rows = list(rows)
    with Staging(warehouse, table, attempt(), hours, exclusive=False) as staging:
        staging.load_rows(rows, counts(rows))
        return prepare(staging, hours, **options)


def repair(
    warehouse: Warehouse,
    table: Table,
    hours: Collection[datetime],
    rows: Iterable[Row],
    on_step: OnStep = no_step,
    *,
    lease_seconds: int = 5,
    **options: Any,
) -> dict[datetime, HourPublish]:
    """Make the hours hold exactly the rows; the result of each hour."""
    rows = list(rows)
    with Staging(warehouse, table, attempt(), hours, lease_seconds=lease_seconds, on_step=on_step) as staging:
        staging.load_rows(rows, counts(rows))
        results = publish(prepare(staging, hours, on_step=on_step, **options), on_step=on_step)
    return {result.hour: result for result in results}


def statuses(results: Mapping[datetime, HourPublish]) -> dict[datetime, str]:
    return {hour: str(result.status) for hour, result in results.items()}


def write_live(warehouse: Warehouse, table: Table, rows: Iterable[Row], sign: int = 1, **more: Any) -> None:
    """What a live writer does: an insert of its own into the target; `more` are columns with one value for all rows."""
    database, name = table.path
    others = {SIGN: sign, **more} if table.collapses else more
    columns = (*table.column_names, *others)
    data = [[*(row[column] for column in table.column_names), *others.values()] for row in rows]
    warehouse.insert_rows(database, name, columns, data, settings={"optimize_on_insert": 0}, doing="writing live")


def exact(row: Iterable[Any]) -> tuple[Any, ...]:
    """A row that equals another one only when all its values are the same, bit by bit."""
    return tuple(struct.pack(">d", value) if isinstance(value, float) else value for value in row)


def as_counter(rows: Iterable[Row]) -> Counter[tuple[Any, ...]]:
    return Counter(exact(row[name] for name in VISITS.column_names) for row in rows)


def net_rows(warehouse: Warehouse, table: Table, source: str | None = None) -> Counter[tuple[Any, ...]]:
    """Every row whose signs do not add up to zero, with their sum; a cancel without its state counts negative.

    Of a table without signs: every row that a reader sees, with how often it is there.
    """
    columns = names(table.column_names)
    sign = table.sign if source else signed(table)
    rows = warehouse.rows(
        f"SELECT {columns}, sum({sign}) AS __net FROM {source or stored_rows(table)} GROUP BY {columns} HAVING __net != 0",
        doing="reading the net state",
    )
    return Counter({exact(row): net for *row, net in rows})


def final_rows(warehouse: Warehouse, table: Table) -> Counter[tuple[Any, ...]]:
    """What a reader with FINAL sees."""
    sql = f"SELECT {names(table.column_names)} FROM {seen(table)}"
    return Counter(exact(row) for row in warehouse.rows(sql, doing="reading FINAL"))


def outside(warehouse: Warehouse, table: Table, hours: Collection[datetime]) -> tuple[int, Fingerprint]:
    """How many rows, cancels included, are stored outside the hours, and their fingerprint."""
    where = within(table, hours)
    ((raw, rows, hash_),) = warehouse.rows(
        f"SELECT count(), sum({signed(table)}), sum({signed(table)} * reinterpretAsInt64({row_hash(table)})) "
        f"FROM {stored_rows(table)} WHERE NOT {where.sql}",
        parameters=where.parameters,
        doing="reading what must not change",
    )
    return raw, Fingerprint(rows, hash_)


def assert_holds(warehouse: Warehouse, table: Table, rows: list[Row]) -> None:
    """Net state and FINAL are exactly the rows, before and after all merges."""
    assert net_rows(warehouse, table) == as_counter(rows) == final_rows(warehouse, table)
    warehouse.command(f"OPTIMIZE TABLE {target_name(table)} FINAL", doing="merging")
    assert net_rows(warehouse, table) == as_counter(rows) == final_rows(warehouse, table)
